"""What a cached value is worth: fresh, stale or unknown; when it must be fetched, and what may be acknowledged (Thialfi 3.1 to 3.3).

Theory of operation. A notification is an obligation: a value must come that is at least as new. Two things show that one is:

    the fetch that brought it began after the notification came        (trap 19: one that was under way before does not count)
    it has a version of its own, of the same epoch and not smaller     (not for an unknown, which names no version)

and one thing shows that it is not, however late the fetch began: a version of its own that is smaller than the one notified, or than
the one held. Then a replica answered that lags behind, and the fetch is repeated after a pause.

    owed              obligations that the value does not meet: the entry is stale, or unknown if that is all that was told
    met               notifications whose obligation is met: to be acknowledged as soon as the store holds the value
    acknowledged      by the caller, with what `stored` and `noticed` answer; never before

The caller's duties: call `begin` before it calls the application's fetch, and `adopt` or `failed` after it; call `stored` when the store
holds the value that `adopt` took; one fetch at a time. `now` never falls. `told_until` is up to when the service told of every change of
this object: now, while the client is connected and in sync; None, if the object's registration is not confirmed.

Pure: no clock, no dice, no waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from roskva.client.actions import Notification

_NEVER: Final = float("-inf")
_DOUBLINGS_MAX: Final = 32


class State(StrEnum):
    FRESH = "fresh"  # the service has told of no later version, and would
    STALE = "stale"  # a later version was told of, and not yet fetched
    UNKNOWN = "unknown"  # there is no value; or there may be a later one: the service said so, or says nothing


@dataclass(frozen=True, slots=True)
class Standing:
    """What `LiveCache.state` answers: the state, and for how many seconds it has been so."""

    state: State
    for_s: float


class Choice(Enum):
    SERVE = "serve the value"
    FETCH = "fetch"
    FAIL = "the last fetch failed, and it is too early for another"


@dataclass(frozen=True, slots=True)
class Pauses:
    """Between fetches of an object that fail or answer too old a value. After `tries_max` in a row the next use tries again."""

    min_s: float = 0.1
    max_s: float = 30.0
    tries_max: int = 12

    def pause_s(self, tries: int, dice: float) -> float:
        bound_s = min(self.max_s, self.min_s * 2.0 ** min(tries, _DOUBLINGS_MAX))
        return bound_s * (0.5 + dice / 2)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A fetch: what had been noticed when it began, and the epoch in which versions were counted, as far as was known."""

    mark: int
    began: float
    epoch: int


@dataclass(frozen=True, slots=True)
class _Owed:
    mark: int
    notification: Notification | None  # None: the application itself said that the value is outdated


@dataclass(slots=True)
class Entry:
    """One object of the cache."""

    opened: float
    pauses: Pauses = field(default_factory=Pauses)
    value: object = None
    present: bool = False
    version: int | None = None
    epoch: int = 0
    began: float = _NEVER  # the fetch that brought the value; never: the store of an earlier run
    fresh_since: float = _NEVER
    stale_since: float = _NEVER
    kept: bool = False  # the store holds the value
    tries: int = 0  # in a row, without success
    retry_at: float = _NEVER
    lagging: bool = False  # the last fetch answered, but too old a value
    trouble: str = ""  # why the last fetch failed
    _mark: int = 0
    _owed: list[_Owed] = field(default_factory=list)
    _met: list[Notification] = field(default_factory=list)

    def restored(self, value: object, version: int | None, epoch: int) -> None:
        """The store of an earlier run has it. What that run acknowledged, the store held; what it did not, comes again."""
        self.value, self.version, self.epoch = value, version, epoch
        self.present = self.kept = True
        self.fresh_since = self.opened

    @property
    def due(self) -> bool:
        """Something waits for a fetch, or for the store."""
        return bool(self._owed or self._met)

    @property
    def unacknowledged(self) -> list[Notification]:
        return [one.notification for one in self._owed if one.notification is not None] + self._met

    def noticed(self, now: float, notification: Notification) -> list[Notification]:
        """The service tells of a change. Answers what may be acknowledged at once: a version that the store holds already."""
        if not self._owed:
            self.stale_since = now
        self._owed = [one for one in self._owed if one.notification is None or not _replaces(notification, one.notification)]
        self._met = [one for one in self._met if not _replaces(notification, one)]
        if self.present and _reaches(self.version, self.epoch, notification):
            if self.kept:
                return [notification]
            self._met.append(notification)
            return []
        self._owe(notification)
        return []

    def outdated(self, now: float) -> None:
        """The application says so."""
        if not self._owed:
            self.stale_since = now
        self._owed = [one for one in self._owed if one.notification is not None]
        self._owe(None)

    def _owe(self, notification: Notification | None) -> None:
        self._mark += 1
        self.tries = min(self.tries, self.pauses.tries_max - 1)  # worth another try, but no sooner than the pauses allow
        self._owed.append(_Owed(self._mark, notification))

    def begin(self, now: float, epoch: int) -> Attempt:
        return Attempt(self._mark, now, epoch)

    def suffices(self, attempt: Attempt) -> bool:
        """Will this fetch, if it succeeds, meet all that is owed?"""
        return all(one.mark <= attempt.mark for one in self._owed)

    def adopt(self, now: float, attempt: Attempt, value: object, version: int | None, dice: float) -> bool:
        """A fetch answered. Whether it is the entry's value from now on: then it goes to the store."""
        behind = version is not None and self.version is not None and attempt.epoch == self.epoch and version < self.version
        takes = not (behind and self.present)
        if takes:
            self.value, self.version, self.epoch = value, version, attempt.epoch
            self.present, self.kept = True, False
            self.began = attempt.began
        if not takes or self._lags(attempt, version):
            self._put_off(now, dice)
            self.lagging = True
            self.trouble = f"the answer's version is {version}, and a later one is known"
            return takes
        left = []
        for one in self._owed:
            if one.mark > attempt.mark and not (one.notification is not None and _reaches(version, attempt.epoch, one.notification)):
                left.append(one)
            elif one.notification is not None:
                self._met.append(one.notification)
        self._owed = left
        self.fresh_since = now
        self.tries, self.retry_at, self.lagging, self.trouble = 0, _NEVER, False, ""
        return True

    def stored(self) -> list[Notification]:
        """The store holds the value. Answers what is to be acknowledged now."""
        self.kept = True
        met, self._met = self._met, []
        return met

    def failed(self, now: float, trouble: str, dice: float) -> None:
        """The fetch raised, or its answer could not be stored. The value stays as it is; another try follows after a pause."""
        self._put_off(now, dice)
        self.lagging = False
        self.trouble = trouble

    def _put_off(self, now: float, dice: float) -> None:
        self.retry_at = now + self.pauses.pause_s(self.tries, dice)
        self.tries += 1

    def _lags(self, attempt: Attempt, version: int | None) -> bool:
        """A notification that came before the fetch began names a later version. Versions of two epochs do not compare."""
        if version is None:
            return False
        told = [one.notification for one in self._owed if one.mark <= attempt.mark and one.notification is not None]
        return any(one.version is not None and one.epoch == attempt.epoch and version < one.version for one in told)

    def choose(self, now: float, told_until: float | None, out_of_sync_s: float) -> Choice:
        """What to answer whoever asks for the value. Out of sync it is good for `out_of_sync_s` after it was last known to be current."""
        if not self.present:
            return Choice.FETCH
        if not self._owed and now - self._known_at(told_until) <= out_of_sync_s:
            return Choice.SERVE
        if not self._owed and told_until is not None and told_until >= now:
            return Choice.SERVE
        if now < self.retry_at:
            return Choice.SERVE if self.lagging else Choice.FAIL
        return Choice.FETCH

    def standing(self, now: float, told_until: float | None) -> Standing:
        if not self.present:
            return Standing(State.UNKNOWN, now - self.opened)
        if self._owed:
            may_be = all(one.notification is not None and one.notification.unknown for one in self._owed)
            return Standing(State.UNKNOWN if may_be else State.STALE, now - self.stale_since)
        if told_until is not None and told_until >= now:
            return Standing(State.FRESH, now - self.fresh_since)
        return Standing(State.UNKNOWN, now - max(self.opened, self._known_at(told_until)))

    def _known_at(self, told_until: float | None) -> float:
        """When the value was last known to be current: when its fetch began, or when the service last said so."""
        return self.began if told_until is None else max(self.began, told_until)


def _replaces(new: Notification, old: Notification) -> bool:
    """Whoever acknowledges `new` need not acknowledge `old`: a later one of its kind, or of an epoch that ended."""
    return new.unknown == old.unknown or new.epoch > old.epoch


def _reaches(version: int | None, epoch: int, notification: Notification) -> bool:
    """A value of this version is the one notified, or a later one."""
    return version is not None and notification.version is not None and epoch == notification.epoch and version >= notification.version
