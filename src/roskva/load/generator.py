"""One process of the load: its clients, their lines, their arrival at a steady pace, and the publishes; all on one event loop.

No task and no timer per client: one loop lets clients arrive, one repeats and heartbeats (wheel.py), one publishes.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from array import array
from collections import deque
from collections.abc import Coroutine, MutableSequence, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final, Self

from roskva.errors import BadRequest, RoskvaError
from roskva.load.clients import ABSENT, IN_SYNC, Clients
from roskva.load.line import Line
from roskva.load.measuring import Latencies, Report
from roskva.load.plan import Plan
from roskva.load.publishing import Publishing
from roskva.load.wheel import TICK_S

_ARRIVING_MAX: Final = 2_000  # clients that have arrived and are not in sync: beyond, others wait
_STEP_S: Final = 0.01
_PUBLISH_STEP_S: Final = 0.001
_IDLE_S: Final = 0.1
_STOOD_STILL_S: Final = 5.0
_TRIES_MAX: Final = 100  # to find a client in sync by chance
_SILENT_KEEPALIVES: Final = 2.0


class Generator:
    """`async with Generator(...)`: clients `first` to `first + count - 1` of the plan, of which `wanted` arrive, one after the other.

    `tokens` are what the clients kept from an earlier run, "" where they kept none. `latest` holds the highest accepted version of each
    object; processes that share it see each other's, and change it one at a time, by `lock`.
    """

    def __init__(
        self,
        plan: Plan,
        url: str,
        key: str,
        publish_key: str = "",
        first: int = 0,
        count: int | None = None,
        tokens: Sequence[str] = (),
        latest: MutableSequence[int] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        now_s = time.monotonic()
        count = plan.clients if count is None else count
        self.plan = plan
        self.clients = Clients(plan, first, count, self._send, random.random, secrets.token_urlsafe(6), now_s)
        self.clients.tokens[: len(tokens)] = tokens
        self.counts = self.clients.counts
        self.latest: MutableSequence[int] = array("q", [0]) * plan.objects if latest is None else latest
        self._lock = nullcontext() if lock is None else lock
        self.wanted = 0  # so many clients are to arrive
        self.arrivals_per_s = plan.arrivals_per_s * count / plan.clients
        self.rate_per_s = 0.0  # of publishes
        self.update_every_s = 0.0  # of each client in sync
        self.publishing = Publishing(plan, url, publish_key, self.counts, self._accepted)
        told = self.clients.received, self.clients.settled, self._line_changed
        self._lines = [Line(url, key, plan.drop, self.counts, *told, place, plan.lines) for place in range(plan.lines)]
        self._next = 0  # so many have arrived
        self._returning: deque[int] = deque()  # those whose line is back
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: RoskvaError | None = None

    async def __aenter__(self) -> Self:
        self.clients.since_us = time.time_ns() // 1000
        staying = [asyncio.create_task(self._guard(line.stay(first_try_counts=True))) for line in self._lines]
        self._tasks += staying
        try:
            while not all(line.connected for line in self._lines):
                self.check()
                await asyncio.sleep(_STEP_S)
        except BaseException:
            await self._end()
            raise
        self._tasks += [asyncio.create_task(self._guard(work)) for work in (self._arrive(), self._tick(), self._publish())]
        self._tasks += [asyncio.create_task(self.publishing.stay()) for _ in range(self.plan.publishers)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines:
            line.close()

    async def _guard(self, work: Coroutine[object, None, None]) -> None:
        """An error of one of the loops is everybody's."""
        try:
            await work
        except RoskvaError as error:
            self._failure = self._failure or error
        except Exception as error:
            self._failure = self._failure or RoskvaError(f"The load generator failed: {type(error).__name__}: {error}.")

    def check(self) -> None:
        """Raises what no patience helps against."""
        if self.clients.failure:
            raise BadRequest(self.clients.failure)
        if self._failure is not None:
            raise self._failure

    # Lines and clients.

    def _line_of(self, number: int) -> int:
        return number % len(self._lines)

    def _send(self, number: int, message: bytes) -> None:
        self._lines[number % len(self._lines)].send(number, message)

    def _line_changed(self, line: Line, connected: bool) -> None:
        """Its clients are gone with it; when it is back, each must speak again, at the pace of arrivals."""
        place = self._lines.index(line)
        own = [index for index in map(self._nth, range(self._next)) if self._line_of(self.clients.first + index) == place]
        if connected:
            self._returning.extend(index for index in own if self.clients.states[index] == ABSENT)
        else:
            for index in own:
                self.clients.gone(index)

    def drop(self, part: float) -> None:
        """From now on, so much of what the lines carry is lost, in either direction."""
        for line in self._lines:
            line.drop = part

    @property
    def all_in_sync(self) -> bool:
        return self.counts.in_sync >= self.wanted

    async def _arrive(self) -> None:
        credit, before_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(_STEP_S)
            now_s = time.monotonic()
            credit = min(credit + self.arrivals_per_s * (now_s - before_s), max(1.0, self.arrivals_per_s / 10))
            before_s = now_s
            while credit >= 1.0 and self.clients.present - self.counts.in_sync < _ARRIVING_MAX:
                index = self._who_is_next()
                if index is None:
                    break
                credit -= 1.0
                self.clients.arrive(index, now_s)

    def _who_is_next(self) -> int | None:
        while self._returning:
            index = self._returning.popleft()
            if self.clients.states[index] == ABSENT and self._has_way(index):
                return index
        if self._next < min(self.wanted, self.clients.count) and self._has_way(index := self._nth(self._next)):
            self._next += 1
            return index
        return None

    def _nth(self, rank: int) -> int:
        """Who arrives as the one of this rank. A process that has only a part of the clients takes them as they come."""
        return self.plan.arriving(rank) if self.clients.count == self.plan.clients else rank

    def _has_way(self, index: int) -> bool:
        line = self._lines[self._line_of(self.clients.first + index)]
        return line.connected and not line.full

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self.clients.tick(now_s)
            if self._next:
                silent_s = _SILENT_KEEPALIVES * self.clients.config.keepalive_s
                for line in self._lines:
                    line.cut_if_silent(silent_s, now_s)

    # Publishes.

    def _accepted(self, number: int, version: int) -> None:
        with self._lock:
            if version > self.latest[number]:
                self.latest[number] = version

    async def _publish(self) -> None:
        credit, at_s = 0.0, time.time()  # a part of an update that was due until then
        while True:
            rate = self.rate_per_s + (self.counts.in_sync / self.update_every_s if self.update_every_s else 0.0)
            now_s = time.time()
            if now_s - at_s > _STOOD_STILL_S:  # this machine did: not all of it at once
                at_s = now_s
            while rate > 0.0 and (due_s := at_s + (1.0 - credit) / rate) <= now_s:
                if (number := self._object()) is not None:
                    self.publishing.publish(number, int(due_s * 1e6))
                credit, at_s = 0.0, due_s
            self.publishing.flush()
            credit += (now_s - at_s) * rate
            at_s = now_s
            pause_s = (1.0 - credit) / rate if rate > 0.0 else _IDLE_S
            await asyncio.sleep(max(_PUBLISH_STEP_S, min(_IDLE_S, pause_s)))

    def _object(self) -> int | None:
        """An object of a client that is in sync, by chance."""
        states = self.clients.states
        for _ in range(_TRIES_MAX if self._next else 0):
            index = self._nth(random.randrange(self._next))
            if states[index] == IN_SYNC:
                return self.plan.object_of(self.clients.first + index, random.randrange(self.plan.registrations))
        return None

    async def answered(self, timeout_s: float) -> None:
        """Stop publishing, and wait until all that was published is answered; after so long, for nothing any more."""
        self.rate_per_s = self.update_every_s = 0.0
        until_s = time.monotonic() + timeout_s
        while self.publishing.unanswered and time.monotonic() < until_s:
            await asyncio.sleep(_STEP_S)
            self.check()
        self.publishing.give_up()

    async def drained(self, timeout_s: float) -> bool:
        """Stop publishing, and wait until every wanted client is in sync and was told whatever was accepted; whether that came about."""
        self.rate_per_s = self.update_every_s = 0.0
        until_s = time.monotonic() + timeout_s
        while True:
            await asyncio.sleep(0.2)
            self.check()
            over = time.monotonic() >= until_s
            if over:
                self.publishing.give_up()
            # What one that fell out does not know is not missing: it counts as complete only when all are back.
            if over or (self.all_in_sync and not self.publishing.unanswered):
                self.counts.missing = await asyncio.to_thread(self.clients.missing, self.latest)
                complete = self.all_in_sync and not self.counts.missing
                if over or (complete and not self.publishing.unanswered):
                    return complete

    @property
    def lacking(self) -> str:
        """What `drained` waited for in vain, in words."""
        out = self.wanted - self.counts.in_sync
        missing = self.counts.missing
        return f"{out:,} of {self.wanted:,} clients are not in sync, and the others were not told of {missing:,} accepted versions."

    def report(self) -> Report:
        """What was counted; the latencies are of the time since the last report."""
        down = next((line.trouble or "not connected" for line in self._lines if not line.connected), "")
        report = Report(self.counts, self.clients.latencies, self.publishing.answers, down)
        self.clients.latencies, self.publishing.answers = Latencies(), Latencies()
        return report
