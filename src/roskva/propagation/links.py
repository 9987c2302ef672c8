"""Propagation: tells Registrars what the Matcher found, and writes in their stead if they do not answer (Thialfi 4.1.4, 4.2.3).

One call per Registrar and task, several at once: all are sent, then all are collected. `Links.propagate` returns when every tuple is
acknowledged by its client, durable, void or put aside: only then may Spark commit the batch. What may happen to a call:

    answered     SETTLED and DROP_COPY are final; UNAVAILABLE is asked again, with pauses, then written blindly; if neither works for
                 `scratch_after_s`, it is PUT_ASIDE: the caller's to see to (Thialfi 4.2.6). What a sweep asks of owners waits
    not the owner   asked again with fresh members, up to three times; then a blind write
    no answer    asked once more with fresh members; then a blind write, and the gateway is down for this worker
    down         blind writes at once, so that one hung gateway does not cost every batch a time-out, until a probe answers

Clients' rows that were put aside a moment ago get one quick try, and no patience (`breaker.py`).

A blind write makes the same judgement and the same writes as the Registrar would for a client that is offline; the mark that is
written before it tells the owner to look. Imports no Spark.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.keys import load_keys
from roskva.model import (
    NOT_OWNER,
    OUTCOME_COVERED,
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    PUT_ASIDE,
    UNAVAILABLE,
    Propagation,
    Stamps,
)
from roskva.probes import reached
from roskva.propagation.blind import write_blindly
from roskva.propagation.breaker import Breaker
from roskva.propagation.link import Link, LinkBroken
from roskva.propagation.patience import Backoff
from roskva.propagation.surroundings import REAL, Surroundings
from roskva.protocol.internal import Probe, Probed, Propagate, Propagated
from roskva.registrar.cells import client_row
from roskva.registrar.members import MEMBERS_ROW, Member, MemberView
from roskva.table.interface import RowKey, Table

log = logging.getLogger(__name__)

_CALL_MAX: Final = 5_000  # propagations in one frame; more go as several, and each answer gives the next one its full time
_MEMBERS_EVERY_S: Final = 0.5
_PROBE_EVERY_S: Final = 0.5
_NOT_OWNER_MAX: Final = 3
_NO_ANSWER_MAX: Final = 2
_UNAVAILABLE_MAX: Final = 10  # some ten seconds: if the row can be written at all, then by us too
# What may be told later: an update and what was lost from scratch, what a registration yields when its owner repeats it.
_PUT_ASIDE: Final = frozenset({OUTCOME_UPDATE, OUTCOME_LOST, OUTCOME_VERSION, OUTCOME_UNKNOWN, OUTCOME_COVERED, OUTCOME_UNREGISTERED})


@dataclass(slots=True)
class Told:
    """How a propagation went."""

    verdicts: list[int]  # SETTLED, DROP_COPY or PUT_ASIDE, in the order of what was told; UNAVAILABLE only if rounds were limited
    blind_writes: int = 0
    retries: int = 0


@dataclass(slots=True, eq=False)
class _Open:
    """One tuple that is not settled yet."""

    index: int
    told: Propagation
    row: RowKey
    hurried: bool  # one try is enough
    no_answers: int = 0
    strays: int = 0  # times that whom we asked said that it is not the owner
    refusals: int = 0  # times that it said that the row is unavailable
    not_written: bool = False  # blindly, at the last try

    @property
    def given_up(self) -> bool:
        refused = self.refusals >= (1 if self.hurried else _UNAVAILABLE_MAX)
        return self.no_answers >= _NO_ANSWER_MAX or self.strays >= _NOT_OWNER_MAX or refused

    @property
    def may_be_put_aside(self) -> bool:
        return self.told.outcome in _PUT_ASIDE


def _stamps_of(items: Iterable[_Open], stamps: Sequence[Stamps]) -> list[Stamps]:
    """Those of the updates that these tell of: a later version, found in the row, was told instead of some."""
    told = {(item.told.object, item.told.version) for item in items if item.told.outcome == OUTCOME_UPDATE}
    return [one for one in stamps if (one.object, one.version) in told]


class Links:
    """A worker's connections to gateways. Used by one thread; the probing thread shares only what the lock guards."""

    def __init__(self, settings: Settings, table: Table, key: bytes | None = None, around: Surroundings = REAL) -> None:
        self._around = around
        self._settings = settings
        self._table = table
        self._key = key
        self._view = MemberView(settings.member_timeout_s)
        self._viewed_s = -_MEMBERS_EVERY_S
        self._links: dict[str, Link] = {}
        self._calls = itertools.count(1)
        self._lock = threading.Lock()
        self._down: dict[str, Member] = {}
        self._probing = False
        self._breaker = Breaker(around.clock)

    def propagate(
        self,
        propagations: Sequence[Propagation],
        rounds_max: int | None = None,
        patient: bool = True,
        stamps: Sequence[Stamps] = (),
    ) -> Told:
        """Tell every Registrar, or write in its stead, until all is settled or put aside. Never raises for a row or a Registrar.

        With `rounds_max`, for what may as well be asked another time: what is open after so many rounds is answered UNAVAILABLE.
        Without patience, rows that cannot be written are put aside after one try: for what was put aside before. The stamps of sampled
        updates go along with what is told of them.
        """
        result = Told([UNAVAILABLE] * len(propagations))
        waiting = self._begin(propagations, patient, result)
        backoff = Backoff("telling Registrars", self._around)
        patience_until_s = self._around.clock() + self._settings.scratch_after_s
        while waiting:
            round_began_s = self._around.clock()
            self._refresh_members(fresh=backoff.rounds > 0)
            calls, blindly = self._route(waiting)
            unsettled = self._ask(calls, result, stamps)
            blindly += [item for item in unsettled if item.given_up]
            waiting = [item for item in unsettled if not item.given_up]
            waiting += self._write_blindly(blindly, result)
            waiting = self._put_aside(waiting, patience_until_s, round_began_s, result)
            if waiting and backoff.rounds + 1 == rounds_max:
                break
            if waiting:
                result.retries += 1
                backoff.pause(f"{len(waiting):,} propagations are open")
        return result

    def _begin(self, propagations: Sequence[Propagation], patient: bool, result: Told) -> list[_Open]:
        """What is to be told. Who was put aside a moment ago is tried once, or, if that takes too much time, not even that."""
        waiting: list[_Open] = []
        for index, told in enumerate(propagations):
            row = client_row(told.client, self._settings.partitions)
            item = _Open(index, told, row, not patient or self._breaker.failing(row) or self._breaker.hurried(row))
            if item.hurried and item.may_be_put_aside and not self._breaker.may_try(row):
                result.verdicts[index] = PUT_ASIDE
            else:
                waiting.append(item)
        return waiting

    def _put_aside(self, waiting: list[_Open], patience_until_s: float, round_began_s: float, result: Told) -> list[_Open]:
        """Where patience is over: neither the Registrar nor we can write the row. Answers what waits on."""
        now_s = self._around.clock()
        hurried = {item for item in waiting if item.hurried}
        for item in waiting:
            item.hurried |= now_s >= patience_until_s  # who is refused is written blindly in the next round, if not yet
        over = [item for item in waiting if item.hurried and item.not_written and item.may_be_put_aside]
        for item in over:
            result.verdicts[item.index] = PUT_ASIDE
            if item in hurried:
                self._breaker.tried_in_vain(item.row, round_began_s)
        self._breaker.put_aside(item.row for item in over)
        return [item for item in waiting if result.verdicts[item.index] != PUT_ASIDE]

    @property
    def down(self) -> set[str]:
        """The gateways that get no calls now."""
        with self._lock:
            return set(self._down)

    def close(self) -> None:
        """Hang up; the probing thread ends by itself."""
        with self._lock:
            self._down.clear()
        for identity in list(self._links):
            self._hang_up(identity)

    def _refresh_members(self, fresh: bool) -> None:
        now_s = self._around.clock()
        if not fresh and now_s - self._viewed_s < _MEMBERS_EVERY_S:
            return
        try:
            cells = list(self._table.read([MEMBERS_ROW])[MEMBERS_ROW].values())
        except Unavailable as error:
            log.warning("the members cannot be read now: %s", error)
            cells = []  # those known so far age by themselves
        else:
            self._viewed_s = now_s
        if self._view.observe(cells, now_s):
            for identity in self._links.keys() - self._view.live.keys():
                self._links.pop(identity).close()
            with self._lock:
                self._down = {identity: member for identity, member in self._down.items() if identity in self._view.live}

    def _route(self, waiting: Iterable[_Open]) -> tuple[dict[str, list[_Open]], list[_Open]]:
        """Who is asked what, and what is written without asking: nobody lives, or the owner is down."""
        calls: dict[str, list[_Open]] = {}
        blindly: list[_Open] = []
        down = self.down
        owners: dict[int, str | None] = {}
        for item in waiting:
            partition = item.row.partition
            if partition not in owners:
                owner = self._view.owner(partition)
                owners[partition] = None if owner is None or owner.id in down else owner.id
            identity = owners[partition]
            if identity is None:
                blindly.append(item)
            else:
                calls.setdefault(identity, []).append(item)
        return calls, blindly

    def _ask(self, calls: Mapping[str, list[_Open]], result: Told, stamps: Sequence[Stamps]) -> list[_Open]:
        """Send all calls, then collect the answers. What is not settled comes back, counted."""
        sent: list[tuple[str, dict[int, list[_Open]]]] = []
        unsettled: list[_Open] = []
        for identity, items in calls.items():
            chunks = {next(self._calls): items[at : at + _CALL_MAX] for at in range(0, len(items), _CALL_MAX)}
            if self._send(identity, chunks, stamps):
                sent.append((identity, chunks))
            else:
                unsettled += self._no_answer(identity, chunks)
        for identity, chunks in sent:
            self._collect(identity, chunks, result, unsettled)
            if chunks:
                unsettled += self._no_answer(identity, chunks)
        return unsettled

    def _send(self, identity: str, chunks: Mapping[int, list[_Open]], stamps: Sequence[Stamps]) -> bool:
        """A connection that was kept open may have died long ago: it is made anew once, within the same time."""
        deadline_s = self._around.clock() + self._settings.propagation_timeout_s
        for attempt in (1, 2):
            kept = identity in self._links
            try:
                link = self._link(identity, deadline_s)
                for call, items in chunks.items():
                    link.send(Propagate(call, [item.told for item in items], _stamps_of(items, stamps) if stamps else []), deadline_s)
                return True
            except OSError as error:
                self._hang_up(identity)
                if not kept or attempt == 2 or isinstance(error, TimeoutError):
                    log.warning("gateway %s cannot be called: %s", identity, error)
                    return False
        return False

    def _collect(self, identity: str, chunks: dict[int, list[_Open]], result: Told, unsettled: list[_Open]) -> None:
        """Take answers until all chunks have one, or time is over; answered chunks are removed."""
        link = self._links[identity]
        deadline_s = self._around.clock() + self._settings.propagation_timeout_s
        try:
            while chunks:
                frame = link.receive(deadline_s)
                if not isinstance(frame, Propagated) or frame.call not in chunks:
                    continue  # gateways also talk among themselves on such connections: not for us
                items = chunks[frame.call]
                if len(items) != len(frame.verdicts):
                    raise LinkBroken(f"{len(frame.verdicts):,} verdicts for {len(items):,} propagations")
                del chunks[frame.call]
                deadline_s = self._around.clock() + self._settings.propagation_timeout_s
                for item, verdict in zip(items, frame.verdicts, strict=True):
                    if verdict in (NOT_OWNER, UNAVAILABLE):
                        reached("links: not the owner" if verdict == NOT_OWNER else "links: a row is unavailable")
                        item.strays += verdict == NOT_OWNER
                        item.refusals += verdict == UNAVAILABLE
                        unsettled.append(item)
                    else:
                        result.verdicts[item.index] = verdict
                        self._breaker.served([item.row])
        except OSError as error:
            log.warning("gateway %s did not answer: %s", identity, error)
            self._hang_up(identity)

    def _no_answer(self, identity: str, chunks: Mapping[int, list[_Open]]) -> list[_Open]:
        items = [item for chunk in chunks.values() for item in chunk]
        for item in items:
            item.no_answers += 1
        if any(item.given_up for item in items):
            self._take_down(identity)
        return items

    def _link(self, identity: str, deadline_s: float) -> Link:
        link = self._links.get(identity)
        if link is None:
            member = self._view.live.get(identity)
            if member is None:
                raise LinkBroken("it is no longer a member")
            link = self._links[identity] = Link(member, self._internal_key(), max(0.01, deadline_s - self._around.clock()), self._around)
        return link

    def _hang_up(self, identity: str) -> None:
        link = self._links.pop(identity, None)
        if link is not None:
            link.close()

    def _internal_key(self) -> bytes:
        if self._key is None:
            self._key = load_keys(self._settings.data).internal
        return self._key

    def _write_blindly(self, items: Sequence[_Open], result: Told) -> list[_Open]:
        """Answers those that could not be written now."""
        if not items:
            return []
        reached("links: written in a Registrar's stead")
        verdicts = write_blindly(self._table, self._settings, [item.told for item in items], self._around)
        failed: list[_Open] = []
        for item, verdict in zip(items, verdicts, strict=True):
            item.not_written = verdict is None
            if verdict is None:
                failed.append(item)
            else:
                result.verdicts[item.index] = verdict
                result.blind_writes += 1
                self._breaker.served([item.row])
        return failed

    def _take_down(self, identity: str) -> None:
        member = self._view.live.get(identity)
        if member is None:
            return
        key = self._internal_key()
        with self._lock:
            self._down[identity] = member
            if not self._probing:
                self._probing = True
                self._around.spawn("probes", partial(self._probe, key))
        log.warning("gateway %s is down for this worker: blind writes until it answers a probe", identity)

    def _probe(self, key: bytes) -> None:
        """Ask those that are down whether they are back; ends when none is."""
        while True:
            self._around.sleep(_PROBE_EVERY_S)
            with self._lock:
                down = list(self._down.values())
                if not down:
                    self._probing = False
                    return
            for member in down:
                if self._answers_probe(member, key):
                    reached("links: a gateway answers probes again")
                    with self._lock:
                        self._down.pop(member.id, None)

    def _answers_probe(self, member: Member, key: bytes) -> bool:
        timeout_s = self._settings.propagation_timeout_s
        deadline_s = self._around.clock() + timeout_s
        try:
            link = Link(member, key, timeout_s, self._around)
        except OSError:
            return False
        try:
            link.send(Probe(1), deadline_s)
            while True:
                if isinstance(link.receive(deadline_s), Probed):
                    return True
        except OSError:
            return False
        finally:
            link.close()
