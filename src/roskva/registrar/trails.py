"""The trails of sampled updates through this gateway: when they were told, sent and acknowledged (Thialfi 6.3).

What costs nothing for all others: a sampled update brings its stamps along, an entry that waits for its acknowledgement keeps them, and
nobody looks anything up for an update without. Of each, a few clients are followed. Nothing depends on it: what is forgotten here is a
sample less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from roskva.model import ObjectKey, Stamps
from roskva.registrar.sessions import Outstanding, Session
from roskva.telemetry.latency import Latency

CLIENTS_MAX: Final = 4  # that are followed, of one update and way
_DURABLE_MAX: Final = 1_000  # sampled updates whose pipeline has not come yet

ByUpdate = Mapping[tuple[ObjectKey, int], Stamps]
NOBODY: Final[Mapping[Session, list[Outstanding]]] = {}


class Trails:
    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self.latency = Latency()
        self._wall_clock = wall_clock
        self._durable_us: dict[tuple[ObjectKey, int], int] = {}  # of sampled updates, until the pipeline comes with them

    def now_us(self) -> int:
        return int(self._wall_clock() * 1_000_000)

    def accepted(self, stamps: Sequence[Stamps]) -> None:
        """Durable just now, at this gateway."""
        for one in stamps:
            self.latency.accepted(one)
        self.noted(stamps)

    def noted(self, stamps: Sequence[Stamps]) -> None:
        """Durable just now, here or at another gateway: the record itself cannot say when it was."""
        for one in stamps:
            while len(self._durable_us) >= _DURABLE_MAX:
                del self._durable_us[next(iter(self._durable_us))]
            self._durable_us[one.object, one.version] = one.durable_us

    def told(self, stamps: Sequence[Stamps]) -> ByUpdate:
        """The pipeline came with them now."""
        now_us = self.now_us()
        found: dict[tuple[ObjectKey, int], Stamps] = {}
        for one in stamps:
            update = one.object, one.version
            durable_us = self._durable_us.pop(update, one.durable_us)
            # A batch may read a record a moment before the gateway's own thread has come back from the fsync.
            told = one._replace(durable_us=min(durable_us, one.picked_us), told_us=now_us)
            self.latency.told(told)
            found[update] = told
        return found

    def of(self, stamps: Sequence[Stamps]) -> ByUpdate:
        return {(one.object, one.version): one for one in stamps}

    def follow(self, by_update: ByUpdate, told: Iterable[tuple[Session, Outstanding]], now_s: float) -> Mapping[Session, list[Outstanding]]:
        """Of those who are told of a sampled update now, a few: to be given to `sent` when that is done."""
        followed: dict[Session, list[Outstanding]] = {}
        counts: dict[tuple[ObjectKey, int], int] = {}
        for session, entry in told:
            if entry.version is None or entry.sent_s != now_s:  # sent earlier: another way was first
                continue
            update = entry.object, entry.version
            stamps, count = by_update.get(update), counts.get(update, 0)
            if stamps is not None and count < CLIENTS_MAX:
                counts[update] = count + 1
                entry.trail = stamps
                followed.setdefault(session, []).append(entry)
        return followed

    def sent(self, entries: Iterable[Outstanding]) -> None:
        """Their message was given to the connection just now."""
        now_us = self.now_us()
        for entry in entries:
            if entry.trail is not None:
                entry.trail = entry.trail._replace(sent_us=now_us)
                self.latency.sent(entry.trail)

    def acknowledged(self, entry: Outstanding) -> None:
        """Of an entry with a trail: unless it stands for a later version by now."""
        if entry.trail is not None and entry.trail.version == entry.version:
            self.latency.acknowledged(entry.trail, self.now_us())
