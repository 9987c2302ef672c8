"""Intervals between notifications: one client is told of one object at most once in so long, and then of the latest version.

The first version after a quiet interval goes at once. What comes within the interval is held back: of several the newest, which goes when
the interval is over and begins the next one. `notify_interval_ms` of the application or of the registration, the larger of the two.

Held back is not lost. What the fast path brought is only remembered, since the pipeline comes for it in any case; what the pipeline brings
is written into the client's row, as for a client that does not answer, before its call is answered (`delivery`). So an interval is memory
of a session and of nothing else: if it ends with its session, its gateway or for want of room, there is a notification more. Nor is what is
held back owed yet: a client may be in sync, and be one interval behind, as it or its application wished.

Never held back: unknowns, what a registration itself yields, and repeats of what was not acknowledged. A repeat begins the interval anew
unless something waits for its end already, so that nothing waits for ever.

One heap and one timer for all clients. At most `outstanding_max` intervals are here; what is sent beyond that begins none.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from roskva.model import ObjectKey
from roskva.probes import reached
from roskva.registrar.counters import Counters
from roskva.registrar.sessions import Outstanding, Session

_TOGETHER_S: Final = 0.005  # intervals that end within so long end together: one turn of the loop, one message for each client
TOLD_PER_TURN: Final = 500  # intervals that end together: those beyond end in the next turns, and apart from them ever after
_ENDED_KEPT_MIN: Final = 1_000  # of ended sessions, in the heap, before it is made anew


class Interval:
    """One object's at one client: since a version was sent, until the next may be."""

    __slots__ = ("ended", "held", "hinted", "object", "queued", "seqno", "session", "stored", "until_s", "version")

    def __init__(self, session: Session, key: ObjectKey, seqno: int) -> None:
        self.session = session
        self.object = key
        self.seqno = seqno  # of the registration: what was sent for one holds back nothing of the next
        self.version = -1  # the highest that was sent
        self.until_s = 0.0
        self.held: int | None = None  # the highest that waits for the end
        self.hinted = False  # it came by the fast path
        self.stored = False  # it, or an earlier one that waited, is or may be in the row: the answer must be written
        self.queued = False  # whether it is in the heap
        self.ended = False  # it counts no longer

    def __lt__(self, other: Interval) -> bool:
        return self.until_s < other.until_s


class Pacing:
    def __init__(self, intervals_max: int, counters: Counters, clock: Callable[[], float], over: Callable[[], None]) -> None:
        self._max = intervals_max
        self._counters = counters
        self._clock = clock
        self._over = over  # called when intervals are over: `due` then names those that held something back
        self._heap: list[tuple[float, Interval]] = []
        self._ended = 0  # of those in the heap
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def holds(self, session: Session, key: ObjectKey, seqno: int, version: int, now_s: float, *, stored: bool) -> bool:
        """Whether this version waits, and is remembered here until it may be sent. `stored`: it is in the row, or is being written."""
        interval = session.intervals.get(key) if session.intervals else None
        if interval is None or interval.seqno != seqno or now_s >= interval.until_s or version <= interval.version:
            return False
        if interval.held is None:
            self._counters.held_back += 1
        if interval.held is None or version > interval.held:
            interval.held = version
        interval.stored = interval.stored or stored
        interval.hinted = interval.hinted or not stored
        reached("pacing: a version is held back")
        return True

    def leaves_out(self, session: Session, key: ObjectKey, seqno: int, version: int, now_s: float) -> bool:
        """The same for the fast path, which says nothing within an interval: no earlier version that comes late, and nothing for a
        registration that was made anew, of which its index has not heard (seed 2149).
        """
        if self.holds(session, key, seqno, version, now_s, stored=False):
            return True
        interval = session.intervals.get(key) if session.intervals else None
        return interval is not None and interval.seqno >= seqno and now_s < interval.until_s

    def sent(self, session: Session, entry: Outstanding, now_s: float) -> bool:
        """This goes out now. Answers whether something that it takes the place of is stored, so that its answer must be written."""
        key = entry.object
        length_s = _length_s(session, key)
        interval = session.intervals.get(key) if session.intervals else None
        if entry.version is None or (interval is None and not length_s):
            return False
        if interval is not None and interval.held is not None and interval.seqno == entry.seqno and interval.held > entry.version:
            return False  # a repeat of an earlier version: what waits does not wait longer for it
        stored = interval is not None and interval.seqno == entry.seqno and interval.stored
        if interval is not None and (interval.seqno != entry.seqno or not length_s):
            self.end(interval)
            interval = None
        if not length_s:
            return stored
        if interval is None:
            interval = self._begin(session, key, entry.seqno, now_s + length_s)
            if interval is None:
                return stored
        self._release(interval)
        interval.version = max(interval.version, entry.version)
        interval.until_s = now_s + length_s  # the heap learns of it when the earlier end has come
        return stored

    def _begin(self, session: Session, key: ObjectKey, seqno: int, until_s: float) -> Interval | None:
        if len(self._heap) >= self._max:
            reached("pacing: no room for another interval")
            return None
        interval = Interval(session, key, seqno)
        busy = session.begin()
        if busy.intervals is None:
            busy.intervals = {}
        busy.intervals[key] = interval
        self._queue(interval, until_s)
        return interval

    def _queue(self, interval: Interval, until_s: float) -> None:
        interval.until_s = until_s
        interval.queued = True
        heapq.heappush(self._heap, (until_s, interval))
        self._set_timer()

    @staticmethod
    def _release(interval: Interval) -> None:
        interval.held = None
        interval.stored = interval.hinted = False

    def due(self, now_s: float) -> list[Interval]:
        """Intervals that are over and held something back, so many as a turn of the loop tells. Each is now to be sent, or ended."""
        found: list[Interval] = []
        while self._heap and self._heap[0][0] <= now_s and len(found) < TOLD_PER_TURN:
            _, interval = heapq.heappop(self._heap)
            interval.queued = False
            if interval.ended:
                self._ended -= 1
            elif interval.until_s > now_s:
                self._queue(interval, interval.until_s)
            elif interval.held is not None:
                found.append(interval)
            else:
                self._drop(interval)
        return found

    def go_on(self, interval: Interval) -> None:
        """After one that was due was sent: the next interval has begun."""
        if not interval.ended:
            self._queue(interval, interval.until_s)

    def end(self, interval: Interval) -> None:
        """It counts no longer, nor what it held back: the row has that, or the pipeline brings it, or a later one was sent."""
        if interval.ended:
            return
        self._drop(interval)
        self._ended += interval.queued
        if self._ended > _ENDED_KEPT_MIN and 2 * self._ended > len(self._heap):
            self._heap = [one for one in self._heap if not one[1].ended]
            heapq.heapify(self._heap)
            self._ended = 0

    def _drop(self, interval: Interval) -> None:
        self._release(interval)
        interval.ended = True
        intervals = interval.session.intervals
        if intervals is not None and intervals.get(interval.object) is interval:
            del intervals[interval.object]
            if not intervals:
                interval.session.busy.intervals = None

    def forget(self, session: Session, key: ObjectKey | None = None) -> None:
        """The session ended, or (with a key) an object was unregistered."""
        intervals = session.intervals
        if intervals:
            for interval in list(intervals.values()) if key is None else [intervals[key]] if key in intervals else []:
                self.end(interval)

    # The one timer.

    def _set_timer(self) -> None:
        if not self._heap or (self._timer is not None and self._timer_s <= self._heap[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._heap[0][0]
        pause_s = max(_TOGETHER_S, self._timer_s - self._clock())
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        try:
            self._over()
        finally:
            self._set_timer()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _length_s(session: Session, key: ObjectKey) -> float:
    """The larger of the application's and the registration's counts."""
    length_ms = session.settings.notify_interval_ms
    if session.asked_ms is not None:
        length_ms = max(length_ms, session.asked_ms.get(key, 0))
    return length_ms / 1000.0
