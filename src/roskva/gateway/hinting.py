"""What was just accepted goes to the clients that are online, here and at the other gateways: gathered, and told together.

Whatever is accepted within a turn of the event loop is told in the next, so many updates in a turn. After that there is a rest, three
times as long as the telling took: too short to be noticed while little is published, and the more there is to tell, the more of a
client's notifications share a message, a system call and an acknowledgement. Nothing waits for this that is promised: the pipeline tells
whatever is not told here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from roskva.model import Stamps, Update

RESTS: Final = 3.0  # times as long as the telling took,
REST_S_MAX: Final = 0.1  # but no longer
TOLD_PER_TURN: Final = 1_000  # updates; while there are more, there is no rest, but a turn of the loop

Tell = Callable[[Sequence[Update], Sequence[Stamps]], None]


class Hinting:
    """Belongs to the event loop on which it is told the first update."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._updates: list[Update] = []
        self._stamps: list[Stamps] = []
        self._rests_until_s = 0.0
        self._next: asyncio.Handle | None = None
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
        elif before < TOLD_PER_TURN <= len(self._updates):
            self._next.cancel()
            self._tell_later(0.0)

    def _tell_later(self, rest_s: float) -> None:
        """A timer of uvloop knows milliseconds: less than half of one is no rest, but the loop's next turn."""
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(rest_s, self._pass_on) if rest_s > 0 else loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        self._next = None
        updates, self._updates = self._updates[:TOLD_PER_TURN], self._updates[TOLD_PER_TURN:]
        stamps = self._stamps
        if self._updates:
            now = {(update.object, update.version) for update in updates}
            stamps = [one for one in self._stamps if (one.object, one.version) in now]
            self._stamps = [one for one in self._stamps if (one.object, one.version) not in now]
            self._tell_later(0.0)
        else:
            self._stamps = []
        began_s = time.monotonic()  # uvloop's own time stands still within a turn
        self._tell(updates, stamps)
        ended_s = time.monotonic()
        self._rests_until_s = ended_s + min(RESTS * (ended_s - began_s), REST_S_MAX)

    def stop(self) -> None:
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
