"""Processes of the simulated world: they have a clock of their own, and may die at any point where their code waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from roskva.simulation.loop import PROCESS, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_LOOK_S = 0.5
DAY_S = 86_400.0
_WRONG_MAX_S = 200_000.0  # no clock is set further off than this, however often it is set


class Calendar:
    """The time of day in one world. Its days may be short: nothing but sweeps counts them, and worlds of minutes see months pass."""

    def __init__(self, loop: VirtualLoop, start_s: float = 1_700_000_000.0, day_s: float = DAY_S) -> None:
        self._loop = loop
        self._start_s = start_s
        self._speed = DAY_S / day_s

    def now_s(self) -> float:
        return self._start_s + self._loop.time() * self._speed

    def of_s(self, seconds: float) -> float:
        """What a span of the world's time is by the clocks on its walls."""
        return seconds * self._speed


class Process:
    """One life of a program. What it has in memory is in the objects that its tasks hold, and dies with them."""

    def __init__(self, name: str, loop: VirtualLoop, host: str, wall_skew_s: float = 0.0, calendar: Calendar | None = None) -> None:
        self.name = name
        self.host = host  # the machine: partitions of the network are between machines
        self.alive = True
        self.paused_until_s = 0.0  # it hangs until then (SIGSTOP)
        self.died: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._started_s = loop.time()
        self._wall_skew_s = wall_skew_s
        self._calendar = calendar or Calendar(loop)
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were made
        self._at_death: list[Callable[[], None]] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def clock(self) -> float:
        """Monotonic, and comparable with nobody else's."""
        return self._loop.time() - self._started_s + 1_000.0

    def wall_clock(self) -> float:
        return self._calendar.now_s() + self._wall_skew_s

    def set_clock_s(self, by_s: float) -> None:
        """Somebody sets the wall clock."""
        self._wall_skew_s = max(-_WRONG_MAX_S, min(_WRONG_MAX_S, self._wall_skew_s + by_s))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(work, context=self.context.copy())

    def at_death(self, action: Callable[[], None]) -> None:
        """What others notice: connections break."""
        self._at_death.append(action)

    def kill(self) -> None:
        """As kill -9 does: nothing more of it has an effect."""
        if not self.alive:
            return
        self.alive = False
        for action in self._at_death:
            action()
        for task in list(self._tasks):
            task.cancel()
        if not self.died.done():
            self.died.set_result(None)

    async def breathe(self) -> None:
        """Called wherever the process does something to the world: a dead one goes no further, a hanging one waits."""
        while (left_s := self.paused_until_s - self._loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, PAUSE_LOOK_S))  # it may be woken before its time
        if not self.alive:
            raise asyncio.CancelledError
