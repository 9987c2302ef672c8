"""An event loop whose clock is moved by hand. When nothing is left to do and the clock stands still, whoever still waits is told so.

No selector and no thread: what `asyncio.to_thread` is given runs at once, and sockets cannot be opened. The loop knows nothing of Roskva.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TURNS_MAX: Final = 1_000_000  # of the loop at one moment: more means that somebody goes round in circles


class Stuck(Exception):
    """Nothing happens any more while the clock stands still, and what was run is not done: move the clock, or see what it waits for."""


class NotAwaited(Exception):
    """The clock was to be moved inside of what was run, and nobody waited for it."""


class HandLoop(asyncio.BaseEventLoop):
    """`work` is called when nothing else is left to do at this moment, and answers whether it did anything; `due_s` tells when it must."""

    _ready: Any  # of BaseEventLoop: what runs in this turn
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, work: Callable[[], bool], due_s: Callable[[], float]) -> None:
        super().__init__()
        self._work = work
        self._due_s = due_s
        self._now_s = 0.0
        self._limit_s = 0.0  # so far the clock moves by itself
        self._turns = 0
        self._advances: list[tuple[float, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> asyncio.Future[None]:
        """Move the clock, timer by timer; done when it is there and nothing more happens then. Outside of what is run: done at once."""
        there: asyncio.Future[None] = self.create_future()
        self._advances.append((self._now_s + seconds, there))
        if not self.is_running():
            self._turns = 0
            try:
                self.run_until_complete(there)
            finally:
                self._drop_advances()
        return there

    def run(self, coroutine: Coroutine[Any, Any, T], within_s: float) -> T:
        """To its end. The clock may move by itself for `within_s`, if there is nothing else left to do."""
        task = self.create_task(coroutine)
        self._turns, self._limit_s = 0, self._now_s + within_s
        try:
            try:
                result = self.run_until_complete(task)
            finally:
                left = self._drop_advances()
        except Stuck:
            self.end([task])
            raise
        finally:
            self._limit_s = self._now_s
        if left:
            raise NotAwaited("advance must be awaited here: what was run ended before the clock was moved")
        return result

    def _drop_advances(self) -> bool:
        """Answers whether there were any. One that is left would let the clock run by itself in whatever is run next."""
        left = [there for _, there in self._advances if not there.done()]
        self._advances.clear()
        for there in left:
            there.cancel()
        return bool(left)

    def end(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel these, and wait for them as far as they end without time."""
        self._turns = 0
        for task in tasks:
            task.cancel()
        if tasks:
            try:
                self.run_until_complete(asyncio.wait(tasks))
            except Stuck:
                return  # somebody will not be ended; the test has failed already, or ends now
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # it was asked for

    def _run_once(self) -> None:
        """One turn: whatever is ready; then the work; then, if the clock may move, the next moment at which something happens."""
        ready, timers = self._ready, self._scheduled
        self._turns += 1
        if self._turns > _TURNS_MAX:
            raise Stuck(f"{_TURNS_MAX:,} turns at one moment: something goes round in circles")
        if not ready and not self._stopping and not self._work():  # type: ignore[attr-defined]
            self._nothing_left()
        while timers and timers[0].when() <= self._now_s:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _nothing_left(self) -> None:
        for entry in [entry for entry in self._advances if entry[0] <= self._now_s]:
            self._advances.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)
                return  # first what waited for this moment
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
        timer_s = self._scheduled[0].when() if self._scheduled else math.inf
        next_s = min(timer_s, self._due_s(), *(until_s for until_s, _ in self._advances), math.inf)
        if next_s > max(self._limit_s, *(until_s for until_s, _ in self._advances), 0.0):
            waits = "nothing is due at all" if timer_s == math.inf else f"the next timer is due in {timer_s - self._now_s:.3f} s"
            raise Stuck(f"after {self._now_s:.3f} s of the service's time what was run still waits, and {waits}")
        self._now_s = max(self._now_s, next_s)
        self._turns = 0

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """They are dropped when they come to the top."""

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
