"""The Registrar that runs in gateways, asyncio and all, in the model's world: its loop's clock is the world's, its lanes the model's table.

Nothing waits for real time and nothing runs in threads, so a run is decided by what the world does alone. `slow` lets reads and writes take
some of the world's time, so that operations overlap in ways that they do not when every step is over at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from roskva.config import ApplicationSettings, Settings
from roskva.errors import TokenInvalid, Unavailable
from roskva.feed.interface import Entry
from roskva.model import UNAVAILABLE, Propagation
from roskva.protocol.messages import ClientMessage
from roskva.protocol.tokens import Keyring
from roskva.registrar.handshakes import unverified
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.service import Registrar
from roskva.registrar.sessions import Channel
from roskva.table.interface import Mutation, Row, RowKey
from tests.properties.registrar import DATA_CENTER
from tests.properties.store import PARTITIONS, Crash, ModelFeed, ModelTable, Steps

WALL_CLOCK_AHEAD_S: Final = 1e9  # the wall clock is another one, and nobody may mix them up


class WorldLoop(asyncio.BaseEventLoop):
    """An event loop without sockets, threads and waiting: the world says what time it is, and when to run what is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._world_clock = clock
        self._selector = self
        self._clock_resolution = 1e-6  # above what a float tells apart after years: a timer that is due by less would never fire

    def time(self) -> float:
        return self._world_clock()

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def run_ready(self) -> None:
        """Until nothing more happens without time passing."""
        while True:
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready and self.next_timer() > self.time():  # type: ignore[attr-defined]
                return

    def next_timer(self) -> float:
        return min((timer.when() for timer in self._scheduled if not timer.cancelled()), default=float("inf"))  # type: ignore[attr-defined]


class Lanes:
    """The asyncio front end of the model's table and feed. In a process that died, no call ever returns."""

    def __init__(self, process: ServiceShell, table: ModelTable, feed: ModelFeed, steps: Steps, incarnation: int) -> None:
        self.process = process
        self.table = self  # what the Registrar asks of the engine itself: `delete_rows`
        self._table = table
        self._feed = feed
        self._steps = steps
        self._incarnation = incarnation

    async def write(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            await self._durable(lambda: self._table.write(mutations, self._steps))

    async def append(self, topic: str, entries: Sequence[Entry]) -> None:
        await self._durable(lambda: self._feed.append(topic, [entry.value for entry in entries], self._steps))

    async def read(self, rows: Sequence[RowKey], prefix: bytes = b"") -> dict[RowKey, Row]:
        await self._pause()
        found = self._table.read(rows, prefix)
        await self._pause()
        return found

    async def incarnation_of(self, table: str, partition: int) -> int:
        await self._pause()
        return self._incarnation

    async def _durable(self, step: Callable[[], None]) -> None:
        await self._pause()
        try:
            step()
        except Crash as crash:
            self.process.crash = crash
            await asyncio.get_running_loop().create_future()
        await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self.process.pause_s())
        if self.process.crash is not None:
            await asyncio.get_running_loop().create_future()

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        for row in rows:
            self._table.rows.pop(row, None)


class ServiceCall:
    """A propagation call under way. It ends by itself; nobody outside knows when."""

    until_s: Final = float("inf")

    def __init__(self, task: asyncio.Task[list[int]], count: int) -> None:
        self.task = task
        self.count = count

    def answered(self) -> bool:
        return self.task.done()


class ServiceShell:
    """The same face as RegistrarShell."""

    def __init__(
        self,
        table: ModelTable,
        feed: ModelFeed,
        steps: Steps,
        clock: Callable[[], float],
        keyring: Keyring,
        application: ApplicationSettings,
        mint: Callable[[], str],
        operations_max: int,
        incarnation: int,
        pause_s: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.pause_s = pause_s
        self.crash: Crash | None = None
        self._keyring = keyring
        self._loop = WorldLoop(clock)
        members = MemberView(timeout_s=1e12)
        members.observe([member_cell(Member(id="model", internal="", public=""), 1)], clock())
        settings = Settings(
            data_center=DATA_CENTER,
            partitions=PARTITIONS,
            settling_s=1.0,
            operations_per_message_max=operations_max,
            applications={"demo": application},
        )
        lanes: Any = Lanes(self, table, feed, steps, incarnation)
        self.registrar = Registrar(
            settings,
            lanes,
            lanes,
            keyring,
            "model",
            members,
            clock=clock,
            wall_clock=lambda: clock() + WALL_CLOCK_AHEAD_S,
            unguessable=lambda size: mint(),
        )
        self._loop.create_task(self.registrar.start())
        self._run()

    @property
    def sessions(self) -> dict[Any, Any]:
        return self.registrar.sessions

    def drop_caches(self) -> None:
        self.registrar.rows.drop_all()

    def _run(self) -> None:
        """Let the loop do all that is ready."""
        self._loop.run_ready()
        if self.crash is not None:
            raise self.crash

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon(work, *arguments)
        self._run()

    def receive(self, channel: Channel, message: ClientMessage) -> None:
        """As a gateway does: the token's signature is verified before the Registrar sees it."""
        claims = None
        if message.token:
            try:
                claims = self._keyring.verify(message.token)
            except TokenInvalid as error:
                unverified(channel, message.token, error, 0)
                return
        self._do(self.registrar.receive, channel, message, claims)

    def announce(self, channel: Channel, token: str) -> None:
        self._do(self.registrar.announce, channel, self._keyring.verify(token), token)

    def closed(self, channel: Channel) -> None:
        self._do(self.registrar.closed, channel)

    def begin(self, propagations: Sequence[Propagation]) -> ServiceCall:
        call = ServiceCall(self._loop.create_task(self.registrar.propagate(list(propagations))), len(propagations))
        self._run()
        return call

    def finish(self, call: ServiceCall) -> list[int]:
        """As a gateway answers: what a call could not do is unavailable, and is asked again."""
        failure = call.task.exception()
        if failure is None:
            return call.task.result()
        if not isinstance(failure, Unavailable):
            raise failure
        return [UNAVAILABLE] * call.count

    def next_deadline(self) -> float:
        return self._loop.next_timer()

    def tick(self) -> None:
        self._run()

    def stop(self) -> None:
        """The process is gone: nothing that it had begun ever lands."""
        self.crash = self.crash or Crash("registrar")
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_ready()
        self._loop.close()
