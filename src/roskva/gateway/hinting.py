"""What was just accepted goes to the clients that are online, here and at the other gateways: gathered, and told together.

Whatever is accepted by one commit is told right after it, so many updates in a turn of the event loop. Then there is a rest, so that
more of a client's notifications share a message, a system call and an acknowledgement. It costs everybody its length, so it is a small
part of what the loop needs for the telling and for all else that waits then: next to nothing while there is time to spare. Only when the
loop is at work for more than 1 / (1 + RESTS) of the time does each rest gather more than the one before, until enough is shared, or up to
the limit. Nothing waits for this that is promised: the pipeline tells whatever is not told here.

A loop that has not had a moment to spare since the last telling is behind: then what was accepted waits until it has one, or up to the
limit, so that more is shared. Publishers that wait for their answers before they send more would otherwise keep it so: busy with messages
of one notification each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from roskva.model import Stamps, Update

RESTS: Final = 0.2  # times as long as the telling and the turn of the loop after it took,
REST_S_MAX: Final = 0.1  # but no longer
TOLD_PER_TURN: Final = 1_000  # updates; while there are as many, there is no rest, but a turn of the loop

Tell = Callable[[Sequence[Update], Sequence[Stamps]], None]


class Hinting:
    """Belongs to the event loop on which it is told the first update."""

    def __init__(self, tell: Tell, behind: Callable[[], bool] = lambda: False) -> None:
        """`behind`: whether something waits for the loop at this moment."""
        self._tell = tell
        self._behind = behind
        self._caught_up = True  # since the last telling, at some moment
        self._updates: list[Update] = []
        self._stamps: list[Stamps] = []
        self._rests_until_s = 0.0
        self._told_s = 0.0
        self._next: asyncio.Handle | None = None  # the next telling, or the end of the turn after the last one
        self._in_turn = False  # it is the latter
        self._stopped = False

    def hint(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        """These are durable in the feed; of sampled ones, since when."""
        if self._stopped:
            return
        self._look()
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
            self._tell_unless_behind()

    def _tell_later(self, rest_s: float) -> None:
        """A timer of uvloop knows milliseconds: less than half of one is no rest, but the loop's next turn."""
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(rest_s, self._tell_unless_behind) if rest_s > 0 else loop.call_soon(self._tell_unless_behind)

    def _tell_unless_behind(self) -> None:
        self._look()
        if self._caught_up or len(self._updates) >= TOLD_PER_TURN or time.monotonic() >= self._told_s + REST_S_MAX:
            self._pass_on()
        else:
            self._next = asyncio.get_running_loop().call_soon(self._tell_unless_behind)  # after all that waits: it is at work anyway

    def _look(self) -> None:
        if not self._caught_up:
            self._caught_up = not self._behind()

    def _pass_on(self) -> None:
        updates, self._updates = self._updates[:TOLD_PER_TURN], self._updates[TOLD_PER_TURN:]
        stamps, self._stamps = self._stamps, []
        if self._updates:
            now = {(update.object, update.version) for update in updates}
            self._stamps = [one for one in stamps if (one.object, one.version) not in now]
            stamps = [one for one in stamps if (one.object, one.version) in now]
        began_s = time.monotonic()  # uvloop's own time stands still within a turn
        self._in_turn = True
        self._caught_up = False
        self._next = asyncio.get_running_loop().call_soon(self._turned, began_s)
        self._tell(updates, stamps)

    def _turned(self, began_s: float) -> None:
        """The loop has dealt with all that had come meanwhile."""
        self._next = None
        self._in_turn = False
        self._told_s = now_s = time.monotonic()
        self._look()
        self._rests_until_s = now_s + min(RESTS * (now_s - began_s), REST_S_MAX)
        if len(self._updates) >= TOLD_PER_TURN:
            self._pass_on()
        elif self._updates:
            self._tell_later(self._rests_until_s - now_s)

    def stop(self) -> None:
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
