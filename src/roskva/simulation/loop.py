"""An event loop on virtual time: when nothing is left to do, the clock moves to the next timer. No selector, no thread, no waiting.

What runs is decided by the order in which it was asked for and by virtual time alone, so a run with the same seed is the same run. Tasks
belong to the process in whose context they were made (see processes.py), and so do the tasks that those make.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from roskva.simulation.network import Network
    from roskva.simulation.processes import Process

_CANCELLED_KEPT: Final = 200  # timers; more than that, and more than half of all, are thrown out

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)  # the one whose code runs now


class DeadWorld(Exception):
    """Nothing will ever happen again, and somebody still waits."""


class Call:
    """What the loop will run, and what asyncio calls a handle: it asks for no more than this. Of a timer, `due_s` is when."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop", "due_s")

    def __init__(
        self, loop: VirtualLoop, due_s: float | None, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self.due_s = due_s

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._args = ()  # what they hold may go
            if self.due_s is not None:
                self._loop.cancelled += 1

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        if not self._cancelled:
            try:
                self._context.run(self._callback, *self._args)
            except Exception as error:
                self._loop.call_exception_handler({"message": f"Exception in callback {self._callback!r}", "exception": error})


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own loop asks a selector, compares timers in Python and makes much of each handle; half of a world's time went there."""

    network: Network
    _ready: Any  # of BaseEventLoop: what runs in this turn

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Call]] = []  # a heap; of the same moment, the first asked for is the first
        self._asked = 0
        self.cancelled = 0  # of the timers in the heap
        self.steps = 0  # turns of the loop: how much work a run was
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Call:  # type: ignore[override]
        call = Call(self, None, callback, args, context)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Call:
        timer = Call(self, when, callback, args, context)
        self._asked += 1
        heapq.heappush(self._timers, (when, self._asked, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Call:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """One turn: whatever is ready; if nothing is, the clock moves to the next timer."""
        self.steps += 1
        ready, timers = self._ready, self._timers
        if self.cancelled > _CANCELLED_KEPT and self.cancelled > len(timers) // 2:
            timers[:] = [entry for entry in timers if not entry[2].cancelled()]
            heapq.heapify(timers)
            self.cancelled = 0
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self.cancelled -= 1
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise DeadWorld("nothing is scheduled any more")
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            timer = heapq.heappop(timers)[2]
            if timer.cancelled():
                self.cancelled -= 1
            else:
                timer.due_s = None  # cancelling it is nothing to the heap any more
                ready.append(timer)
        for _ in range(len(ready)):
            ready.popleft().run()

    def _write_to_self(self) -> None:
        pass

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS, None)
        if process is not None:
            process.adopt(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """What would run in a thread runs at once: the models behind it are made for that."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        process = PROCESS.get()
        assert process is not None, "only processes connect"
        return await self.network.connect(process, f"{host}:{port}", protocol_factory)
