"""What was just accepted goes to the clients that are online, here and at the other gateways: gathered, and told together.

Whatever is accepted by one commit is told right after it, so many updates in a turn of the event loop. While the process has time to spare
that is all. While it has none, it rests after each telling, so that more of a client's notifications share a message, a system call and an
acknowledgement: the longer the less time it has, up to a limit. Each rest costs everybody its length, so it becomes shorter as soon as
there is time again. Nothing waits for this that is promised: the pipeline tells whatever is not told here.

The time that counts is that of all threads of the process, not the event loop's alone: the loop has idle moments while the threads that
write hold the interpreter's lock, and publishers that wait for their answers would keep it so, busy with messages of one notification each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from roskva.model import Stamps, Update

BUSY: Final = 0.9  # of the time of one core: above it there is none to spare, and rests grow
AT_EASE: Final = 0.88  # below it they become shorter
LOOKS_APART_S: Final = 0.25  # in less, a moment of much work would look like all the time
REST_S_MIN: Final = 0.001  # uvloop's timers know milliseconds: less is none
REST_S_MAX: Final = 0.1
GROWTH: Final = 3.0
SHRINKAGE: Final = 0.4  # in the time from look to look
TOLD_PER_TURN: Final = 1_000  # updates; while there are as many, there is no rest, but a turn of the loop

Tell = Callable[[Sequence[Update], Sequence[Stamps]], None]


def rest_after(rest_s: float, worked_s: float, elapsed_s: float) -> float:
    """How long a rest is, if the one before was so long and the process has been at work for so much of the time since."""
    if worked_s > BUSY * elapsed_s:
        return min(max(rest_s * GROWTH, REST_S_MIN), REST_S_MAX)
    if worked_s < AT_EASE * elapsed_s:
        shorter_s = rest_s * SHRINKAGE ** (elapsed_s / LOOKS_APART_S)
        return shorter_s if shorter_s >= REST_S_MIN else 0.0
    return rest_s


class Hinting:
    """Belongs to the event loop on which it is told the first update."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._updates: list[Update] = []
        self._stamps: list[Stamps] = []
        self._rest_s = 0.0
        self._rests_until_s = 0.0
        self._looked_s = time.monotonic()
        self._worked_s = time.process_time()
        self._next: asyncio.Handle | None = None  # the next telling, or the end of the turn after the last one
        self._in_turn = False  # it is the latter
        self._stopped = False

    def hint(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """These are durable in the feed; of sampled ones, since when."""
        if self._stopped:
            return
        before = len(self._updates)
        self._updates += updates
        self._stamps += stamps
        if self._next is None:
            self._tell_later(self._rests_until_s - time.monotonic())
        elif before < TOLD_PER_TURN <= len(self._updates) and not self._in_turn:
            self._next.cancel()
            self._tell_later(0.0)

    def flush(self) -> None:
        """Whoever was accepted together has been told so: what may be told now is, without another turn of the loop."""
        if self._next is not None and not self._in_turn and not self._stopped and time.monotonic() >= self._rests_until_s:
            self._next.cancel()
            self._pass_on()

    def _tell_later(self, rest_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(rest_s, self._pass_on) if rest_s > 0 else loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        updates, self._updates = self._updates[:TOLD_PER_TURN], self._updates[TOLD_PER_TURN:]
        stamps, self._stamps = self._stamps, []
        if self._updates:
            now = {(update.object, update.version) for update in updates}
            self._stamps = [one for one in stamps if (one.object, one.version) not in now]
            stamps = [one for one in stamps if (one.object, one.version) in now]
        self._in_turn = True
        self._next = asyncio.get_running_loop().call_soon(self._turned)
        self._tell(updates, stamps)

    def _turned(self) -> None:
        """The loop has dealt with all that had come meanwhile."""
        self._next = None
        self._in_turn = False
        now_s = time.monotonic()  # uvloop's own time stands still within a turn
        self._look(now_s)
        self._rests_until_s = now_s + self._rest_s
        if len(self._updates) >= TOLD_PER_TURN:
            self._pass_on()
        elif self._updates:
            self._tell_later(self._rest_s)

    def _look(self, now_s: float) -> None:
        """How busy the process was since the last look."""
        elapsed_s = now_s - self._looked_s
        if elapsed_s >= LOOKS_APART_S:
            worked_s = time.process_time()
            self._rest_s = rest_after(self._rest_s, worked_s - self._worked_s, elapsed_s)
            self._looked_s, self._worked_s = now_s, worked_s

    def stop(self) -> None:
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
