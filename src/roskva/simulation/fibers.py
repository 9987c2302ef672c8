"""Blocking code on virtual time: Spark's tasks wait for tables and sockets, and here everything that waits is a task of the loop.

A fiber is a thread that runs only while the loop's thread stands still for it, so there is never more than one of them at work, and the
order of things is the loop's alone. When the code in it blocks, it hands an awaitable over and stands still itself. A fiber that is
cancelled gets `Killed` out of the call that it waits in, and of every later one: nothing that it does any more has an effect.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

_local = threading.local()
_idle: list[_Thread] = []


class Killed(BaseException):
    """The process of this code is gone."""


def block(awaitable: Awaitable[T]) -> T:
    """Called in a fiber: wait for it, on virtual time."""
    fiber: Fiber[Any] = _local.fiber
    return cast(T, fiber.wait_for(awaitable))


class _Thread:
    """Runs one fiber after the other: starting a thread costs more than most of them do."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="fiber", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.work.get()()


class Fiber(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._to_loop: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._to_fiber: SimpleQueue[tuple[BaseException | None, Any]] = SimpleQueue()
        self._killed = False

    async def run(self) -> T:
        thread = _idle.pop() if _idle else _Thread()
        thread.work.put(self._enter)
        try:
            while True:
                kind, value = self._to_loop.get()
                if kind == "returned":
                    return cast(T, value)
                if kind == "raised":
                    raise value
                try:
                    answer: tuple[BaseException | None, Any] = (None, await value)
                except Exception as error:
                    answer = (error, None)
                except BaseException:
                    self._kill()
                    raise
                self._to_fiber.put(answer)
        finally:
            _idle.append(thread)

    def _enter(self) -> None:
        _local.fiber = self
        try:
            outcome: tuple[str, Any] = ("returned", self._work())
        except BaseException as error:
            outcome = ("raised", error)
        self._to_loop.put(outcome)

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        if self._killed:
            if hasattr(awaitable, "close"):
                awaitable.close()
            raise Killed
        self._to_loop.put(("waits", awaitable))
        error, value = self._to_fiber.get()
        if error is not None:
            raise error
        return value

    def _kill(self) -> None:
        """Let the code run to its end without any effect."""
        self._killed = True
        self._to_fiber.put((Killed(), None))
        while self._to_loop.get()[0] == "waits":
            self._to_fiber.put((Killed(), None))
