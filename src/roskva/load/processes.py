"""A load of one or more processes: each runs a part of the clients on an event loop of its own, and tells every second what it counted.

The processes are forked before anything runs here, and share one array, of the highest accepted version of each object. They take orders
over a pipe, ignore Ctrl-C, which is for whoever gives the orders, and end when the pipe does. The end has two steps: only when the last
publish of every process is answered does the array say what each of their clients must know.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import multiprocessing
import resource
import signal
import time
from collections.abc import MutableSequence, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import uvloop

from roskva.errors import RoskvaError, Unavailable
from roskva.load.generator import Generator
from roskva.load.measuring import Report, merged
from roskva.load.plan import Plan

_LOOK_S: Final = 0.05
_LOOKS: Final = 10  # for orders, between two reports
_END_S: Final = 5.0
_PUBLISH: Final = "publish"
_DRAIN: Final = "drain"
_LEARN: Final = "learn"
_LEARN_MIN_S: Final = 1.0


class Target(NamedTuple):
    url: str
    key: str  # of trusted servers
    publish_key: str = ""


class _Answered(NamedTuple):
    """A process's publishes are: it adds nothing any more to what clients must know."""


class _Done(NamedTuple):
    """A process's last word."""

    report: Report
    tokens: list[str]


class Load:
    """`with Load(...)`: the clients arrive at once. The rest is `poll`, and an order now and then."""

    def __init__(self, plan: Plan, target: Target, processes: int, tokens: Sequence[str]) -> None:
        self._plan = plan
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._reports: list[Report | None] = [None] * processes
        self._answered = [False] * processes
        self._done: list[_Done | None] = [None] * processes
        self._drained_by_s = 0.0
        context = multiprocessing.get_context("fork")
        latest = cast(MutableSequence[int], memoryview(mmap.mmap(-1, 8 * plan.objects)).cast("q"))
        lock = context.Lock()
        for place in range(processes):
            first, after = (plan.clients * part // processes for part in (place, place + 1))
            ours, theirs = context.Pipe()
            part = _Part(plan, target, first, after - first, list(tokens[first:after]), 1.0 / processes)
            process = context.Process(target=_work, args=(part, theirs, latest, lock, [*self._pipes, ours]), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()

    def poll(self, timeout_s: float) -> Report | None:
        """What all of them counted, once each has told anew; None if that has not come about in time. Raises what one of them met."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0 and not all(self._reports):
            open_pipes = [pipe for place, pipe in enumerate(self._pipes) if self._done[place] is None]
            for ready in wait(open_pipes, left_s):
                self._hear(self._pipes.index(cast("Connection[Any, Any]", ready)))
        reports = [report for report in self._reports if report is not None]
        if len(reports) < len(self._reports):
            return None
        self._reports = [None if done is None else done.report for done in self._done]
        return merged(reports)

    def _hear(self, place: int) -> None:
        try:
            told = self._pipes[place].recv()
        except (EOFError, OSError):
            raise Unavailable("A process of the load ended without a word.") from None
        if isinstance(told, RoskvaError):
            raise told
        if isinstance(told, _Answered):
            self._answered[place] = True
            if all(self._answered):
                self._order(_LEARN, max(_LEARN_MIN_S, self._drained_by_s - time.monotonic()))
            return
        if isinstance(told, _Done):
            self._done[place] = told
            told = told.report
        self._reports[place] = told

    def publish(self) -> None:
        """From now on, at the plan's rates."""
        self._order(_PUBLISH)

    def drain(self, timeout_s: float) -> None:
        """No more publishes; each process ends when its clients know whatever was accepted, or after so long."""
        self._drained_by_s = time.monotonic() + timeout_s
        self._order(_DRAIN, timeout_s)

    def _order(self, *what: object) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(what)

    @property
    def is_done(self) -> bool:
        return all(done is not None for done in self._done)

    def tokens(self) -> list[str]:
        """What the clients keep, when all is done."""
        return [token for done in self._done if done is not None for token in done.tokens]


class _Part(NamedTuple):
    plan: Plan
    target: Target
    first: int
    clients: int
    tokens: list[str]
    share: float


def _work(
    part: _Part, orders: Connection, latest: MutableSequence[int], lock: AbstractContextManager[object], inherited: Sequence[Connection]
) -> None:
    """One process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for pipe in inherited:  # else nobody's end is ever noticed
        pipe.close()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)  # nothing here goes round in circles
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(part, orders, latest, lock))
        except RoskvaError as error:
            with contextlib.suppress(OSError):
                orders.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass  # who gave the orders is gone


async def _serve(part: _Part, orders: Connection, latest: MutableSequence[int], lock: AbstractContextManager[object]) -> None:
    plan, target = part.plan, part.target
    generator = Generator(plan, target.url, target.key, target.publish_key, part.first, part.clients, part.tokens, latest, lock)
    async with generator:
        generator.wanted = part.clients
        # Clients that update do so from when they are in sync; a rate begins when all are.
        generator.update_every_s = plan.update_every_s
        while (order := await _next_order(generator, orders))[0] == _PUBLISH:
            generator.rate_per_s = plan.rate_per_s * part.share
        generator.wanted = min(generator.wanted, generator.counts.arrived)  # who ends it early does not wait for the others
        await generator.answered(order[1])
        orders.send(_Answered())
        while (order := await _next_order(generator, orders))[0] != _LEARN:
            pass  # to publish, from one who saw too late that all are in sync
        await generator.drained(order[1])
        orders.send(_Done(generator.report(), generator.clients.tokens))


async def _next_order(generator: Generator, orders: Connection) -> tuple[str, float]:
    """What it is, and for how long at most; meanwhile what is counted is told."""
    while not orders.poll():
        generator.check()
        orders.send(generator.report())
        await _pause(orders)
    what, *more = orders.recv()
    return what, float(more[0]) if more else 0.0


async def _pause(orders: Connection) -> None:
    """Until the next report is due, or an order comes."""
    for _ in range(_LOOKS):  # a reader on the event loop would make the pipe one that does not block
        if orders.poll():
            return
        await asyncio.sleep(_LOOK_S)
