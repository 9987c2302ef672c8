"""What was just accepted goes to the clients of this gateway that are online: gathered, and told together.

Whatever is accepted by one commit is told right after it, so many updates in a turn of the event loop. While the process has time to spare
that is all. While it has none, it rests after each telling, so that more of a client's notifications share a message, a system call and an
acknowledgement: the longer the less time it has, up to a limit. Each rest costs everybody its length, so it becomes shorter as soon as
there is time again, and there is none where it spares nothing: of very many clients hardly one is told of two things within a rest, and
what one request says to a client shares a message anyway. That is tried, and tried again more and more seldom. Nothing waits for this that
is promised: the pipeline tells whatever is not told here.

Of an object that changes again before it was told only the newest version is. At most so many objects wait; at the limit those that wait
longest are left to the pipeline, since what is new is worth most.

The time that counts is that of all threads of the process, not the event loop's alone: the loop has idle moments while the threads that
write hold the interpreter's lock, and publishers that wait for their answers would keep it so, busy with messages of one notification each.
And what the loop waited for a core counts as if it had worked: where other processes take the cores a gateway without time to spare comes
to much less than all of one. A process that is busy with something else than telling does not rest: it would gather little, and everybody
would wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from roskva.model import ObjectKey, Stamps, Update
from roskva.probes import reached

BUSY: Final = 0.9  # of the time of one core: above it there is none to spare, and rests grow
AT_EASE: Final = 0.88  # below it they become shorter
TELLS_MUCH: Final = 0.05  # of the time of one core, in telling: below it they become shorter, too
LOOKS_APART_S: Final = 0.25  # in less, a moment of much work would look like all the time
REST_S_MIN: Final = 0.001  # uvloop's timers know milliseconds: less is none
REST_S_TRIED: Final = 0.005  # the first one
REST_S_JUDGED: Final = 0.045  # from here on a rest must have spared something: with ten thousand clients a shorter one hardly does
REST_S_MAX: Final = 0.3
SPARED: Final = 0.03  # of the messages that it took without a rest: less is not worth one
PAUSE_S_MIN: Final = 2.0  # after a rest that spared nothing, doubling each time
PAUSE_S_MAX: Final = 60.0
GROWTH: Final = 3.0
SHRINKAGE: Final = 0.4  # in the time from look to look
TOLD_PER_TURN: Final = 1_000  # updates; while there are as many, there is no rest, but a turn of the loop
WAITING_MAX: Final = 20_000  # objects
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")

# Tells of some of these, from the first on, and answers of how many: of as many as do not keep others waiting. True: more come in the
# next turn, and what they tell a client may share a message with what these do.
Tell = Callable[[Sequence[Update], Sequence[Stamps], bool], int]


class Pace(Protocol):
    """How long to rest, by what tellings take."""

    def begin(self) -> None:
        """A telling begins."""

    def end(self) -> None: ...

    def rest_s(self, now_s: float) -> float:
        """After the turn of the loop in which it was told."""
        ...


class Told(NamedTuple):
    """What was told up to now, and in how many messages."""

    notifications: int = 0
    messages: int = 0

    def since(self, before: Told) -> Told:
        return Told(self.notifications - before.notifications, self.messages - before.messages)

    @property
    def messages_each(self) -> float:
        return self.messages / self.notifications if self.notifications else 1.0


class Look(NamedTuple):
    """What happened since the one before."""

    elapsed_s: float
    busy_s: float  # of the process
    telling_s: float
    spared: float = 0.0  # messages, of those that it would have taken without the rest
    may_try: bool = True  # no rest was in vain a moment ago

    @property
    def tells_much(self) -> bool:
        return self.telling_s >= TELLS_MUCH * self.elapsed_s

    @property
    def at_ease(self) -> bool:
        return self.busy_s < AT_EASE * self.elapsed_s


def in_vain(rest_s: float, look: Look) -> bool:
    """Whether there was no time to spare, and the rest did not help."""
    return rest_s >= REST_S_JUDGED and look.spared < SPARED and look.tells_much and not look.at_ease


def rest_after(rest_s: float, look: Look) -> float:
    """How long a rest is, if the one before was so long."""
    if in_vain(rest_s, look):
        return 0.0
    if not look.tells_much or look.at_ease:
        shorter_s = rest_s * SHRINKAGE ** (look.elapsed_s / LOOKS_APART_S)
        return shorter_s if shorter_s >= REST_S_MIN else 0.0
    if look.busy_s <= BUSY * look.elapsed_s or not (rest_s or look.may_try):
        return rest_s
    return min(max(rest_s * GROWTH, REST_S_TRIED), REST_S_MAX)


def wanted_s() -> float:
    """How long the process was at work, or this thread, its event loop's, ready to work and without a core."""
    worked_s = time.process_time()
    try:
        _, waited_ns, _ = _SCHEDSTAT.read_bytes().split()  # time on a core, time waiting for one, how often
    except (OSError, ValueError):
        return worked_s  # another system, or a kernel that does not count it
    return worked_s + int(waited_ns) * 1e-9


class ByBusiness:
    """The pace of this process, by how busy it is, and by what it told up to now."""

    def __init__(self, told: Callable[[], Told]) -> None:
        self._told = told
        self._rest_s = 0.0
        self._looked_s = time.monotonic()
        self._wanted_s = wanted_s()
        self._telling_s = 0.0  # since the last look
        self._told_before = Told()
        self._without_rest = 1.0  # messages for each notification, when there was none
        self._pause_s = PAUSE_S_MIN
        self._tries_at_s = 0.0  # not before
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = time.thread_time()

    def end(self) -> None:
        self._telling_s += time.thread_time() - self._began_s

    def rest_s(self, now_s: float) -> float:
        elapsed_s = now_s - self._looked_s
        if elapsed_s >= LOOKS_APART_S:
            now_wanted_s, now_told = wanted_s(), self._told()
            messages_each = now_told.since(self._told_before).messages_each
            if not self._rest_s:
                self._without_rest = messages_each
            spared = 1.0 - messages_each / self._without_rest if self._without_rest else 0.0
            self._judge(Look(elapsed_s, now_wanted_s - self._wanted_s, self._telling_s, spared, now_s >= self._tries_at_s), now_s)
            self._looked_s, self._wanted_s, self._telling_s, self._told_before = now_s, now_wanted_s, 0.0, now_told
        return self._rest_s

    def _judge(self, look: Look, now_s: float) -> None:
        if in_vain(self._rest_s, look):
            self._tries_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        elif self._rest_s >= REST_S_JUDGED and look.spared >= SPARED:
            self._pause_s = PAUSE_S_MIN
        self._rest_s = rest_after(self._rest_s, look)


def newest(before: Update, now: Update) -> Update:
    """One update for two of an object. Its source is left out only if both are its own: it may not know the other."""
    higher = now if now.version >= before.version else before
    return higher if before.source == now.source else higher._replace(source="")


class Hinting:
    """Belongs to the event loop on which it is told the first update."""

    def __init__(
        self,
        tell: Tell,
        pace: Pace,
        clock: Callable[[], float] | None = None,
        told_per_turn: int = TOLD_PER_TURN,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._tell = tell
        self._pace = pace
        self._told_per_turn = told_per_turn
        self._waiting_max = waiting_max
        self._clock = time.monotonic if clock is None else clock
        self._waiting: dict[ObjectKey, Update] = {}  # in the order in which the objects came
        self._next_told: deque[Update] = deque()  # those that waited when the last telling began, and are not told yet
        self._stamps: dict[tuple[ObjectKey, int], Stamps] = {}  # of sampled ones among both
        self._rests_until_s = 0.0
        self._next: asyncio.Handle | None = None  # the next telling, or the end of the turn after the last one
        self._in_turn = False  # it is the latter
        self._stopped = False
        self.overtaken = 0  # updates that were not told, since a newer one of their object was
        self.left_out = 0  # updates that were too many, and are left to the pipeline

    def hint(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """These are durable in the feed; of sampled ones, since when."""
        if self._stopped:
            return
        before = len(self._waiting)
        for stamp in stamps:
            self._stamps[stamp.object, stamp.version] = stamp
        for update in updates:
            known = self._waiting.get(update.object)
            self._waiting[update.object] = update if known is None else self._together(known, update)
        if len(self._waiting) + len(self._next_told) > self._waiting_max:
            self._leave_out()
        if self._next is None:
            self._tell_later(self._rests_until_s - self._clock())
        elif before < self._told_per_turn <= len(self._waiting) and not self._in_turn:
            self._next.cancel()
            self._tell_later(0.0)

    def _together(self, known: Update, update: Update) -> Update:
        self._forget(known if known.version < update.version else update)
        self.overtaken += 1
        return newest(known, update)

    def _leave_out(self) -> None:
        reached("fast path: what waited longest is left to the pipeline")
        self._next_told.extend(self._waiting.values())
        self._waiting = {}
        while len(self._next_told) > self._waiting_max:
            self._forget(self._next_told.popleft())
            self.left_out += 1

    def flush(self) -> None:
        """Whoever was accepted together has been told so: what may be told now is, without another turn of the loop."""
        if self._next is not None and not self._in_turn and not self._stopped and self._clock() >= self._rests_until_s:
            self._next.cancel()
            self._pass_on()

    def _tell_later(self, rest_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(rest_s, self._pass_on) if rest_s > 0 else loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        if not self._next_told:
            self._next_told.extend(self._waiting.values())
            self._waiting = {}
        updates = list(islice(self._next_told, self._told_per_turn))
        stamps = [self._stamps.get((one.object, one.version)) for one in updates] if self._stamps else []
        self._in_turn = True
        self._next = asyncio.get_running_loop().call_soon(self._turned)
        told = len(updates)  # also if it fails: it would fail again
        self._pace.begin()
        try:
            told = self._tell(updates, [stamp for stamp in stamps if stamp is not None], len(updates) < len(self._next_told))
        finally:
            self._pace.end()
            for _ in range(told):
                self._forget(self._next_told.popleft())

    def _forget(self, update: Update) -> None:
        if self._stamps:
            self._stamps.pop((update.object, update.version), None)

    def _turned(self) -> None:
        """The loop has dealt with all that had come meanwhile."""
        self._next = None
        self._in_turn = False
        now_s = self._clock()  # uvloop's own time stands still within a turn
        rest_s = self._pace.rest_s(now_s)
        self._rests_until_s = now_s + rest_s
        if self._next_told or len(self._waiting) >= self._told_per_turn:
            self._pass_on()
        elif self._waiting:
            self._tell_later(rest_s)

    def stop(self) -> None:
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
