"""What the application wishes to be registered for, and what it still waits to hear about (Thialfi 4.1.3). Pure.

The client, not the server, is the keeper of registrations: this set is what every loss is repaired from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from roskva.errors import InvalidSetting
from roskva.model import name_to_text
from roskva.protocol.messages import NOTIFY_INTERVAL_MS_MAX, BucketSummary, Summary, SyncObject
from roskva.protocol.summaries import SetDigest, bucket_of, bucket_summaries


def check_interval(interval_ms: object) -> None:
    """None: nothing is stated. The service refuses a message with anything else that is no whole number in range, and all that is in it."""
    if interval_ms is None or (type(interval_ms) is int and 0 <= interval_ms <= NOTIFY_INTERVAL_MS_MAX):
        return
    raise InvalidSetting(f"notify_interval_ms is {interval_ms!r}; it must be a whole number from 0 to {NOTIFY_INTERVAL_MS_MAX:,}.")


@dataclass(frozen=True, slots=True)
class Held:
    """The version that the application stated when it registered: it holds it, and still does so after a restart."""

    version: int
    epoch: int


@dataclass(slots=True)
class Desired:
    """Names with the version held, their summary kept up to date with each change, and the wishes not yet confirmed."""

    _names: dict[bytes, Held | None] = field(default_factory=dict)
    _digest: SetDigest = field(default_factory=SetDigest)
    interval_ms: dict[bytes, int] = field(default_factory=dict)  # at most one notification in so long, of those that state it
    unconfirmed: dict[bytes, bool] = field(default_factory=dict)  # name -> is it to be registered?

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._names)

    def held(self, name: bytes) -> Held | None:
        return self._names.get(name)

    def add(self, name: bytes, held: Held | None) -> bool:
        """Whether this changed the set. Only what the application states is kept as held: to state a version is to
        acknowledge it, so the library must not make one up from what it happened to see in memory."""
        new = name not in self._names
        if new:
            self._digest.add(name)
            self.unconfirmed[name] = True
        if new or held is not None:
            self._names[name] = held
        return new

    def pace(self, name: bytes, interval_ms: int | None) -> bool:
        """Whether this changed the interval that is stated with a name. None leaves it."""
        if interval_ms is None or self.interval_ms.get(name) == interval_ms:
            return False
        self.interval_ms[name] = interval_ms
        self.unconfirmed.setdefault(name, True)
        return True

    def remove(self, name: bytes) -> bool:
        """Whether this changed the set."""
        self.interval_ms.pop(name, None)
        if name not in self._names:
            return False
        del self._names[name]
        self._digest.remove(name)
        self.unconfirmed[name] = False
        return True

    def summary(self) -> Summary:
        return self._digest.summary()

    def matches(self, summary: Summary) -> bool:
        return self._digest.matches(summary)

    def sync_object(self, name: bytes) -> SyncObject:
        held, interval_ms = self._names[name], self.interval_ms.get(name)
        if held is None:
            return SyncObject(object=name_to_text(name), notify_interval_ms=interval_ms)
        return SyncObject(object=name_to_text(name), version=str(held.version), epoch=held.epoch, notify_interval_ms=interval_ms)

    def bucket_summaries(self) -> list[BucketSummary]:
        return bucket_summaries(self._names)

    def by_bucket(self, buckets: Iterable[int]) -> dict[int, list[bytes]]:
        """The names of these buckets. An empty one is an answer too: the server has something there that we do not wish for."""
        wanted: dict[int, list[bytes]] = {bucket: [] for bucket in buckets}
        for name in self._names:
            names = wanted.get(bucket_of(name))
            if names is not None:
                names.append(name)
        return wanted
