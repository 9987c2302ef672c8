"""An event loop on virtual time: when nothing is left to do, the clock moves to the next timer. No selector, no thread, no waiting.

What runs is decided by the order in which it was asked for and by virtual time alone, so a run with the same seed is the same run. Tasks
belong to the process in whose context they were made (see processes.py), and so do the tasks that those make.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roskva.simulation.network import Network
    from roskva.simulation.processes import Process

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)  # the one whose code runs now


class DeadWorld(Exception):
    """Nothing will ever happen again, and somebody still waits."""


class VirtualLoop(asyncio.BaseEventLoop):
    network: Network

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = self
        self._clock_resolution = 1e-9
        self.steps = 0  # turns of the loop: how much work a run was
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """In the place of a selector's: there is nothing to wait for but time."""
        self.steps += 1
        if timeout is None:
            raise DeadWorld("nothing is scheduled any more")
        self._now_s += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

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
