"""Subscribers of the shell's world: the real library, with callbacks of every temper, and Spark's receiver with a query in its place.

What a callback dealt with is written down when it returns, with the stream that brought it: the task of a flow has that in its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from roskva.capture import wire
from roskva.capture.flows import Routed, Stream
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.spark.columns import Row
from roskva.capture.spark.offsets import BEGINNING as NOTHING_YET
from roskva.capture.spark.offsets import Offset
from roskva.capture.spark.options import Options
from roskva.capture.spark.receiving import Receiving
from roskva.capture.subscriber.callbacks import Callbacks, Shard
from roskva.capture.subscriber.connection import Connection
from roskva.capture.subscriber.flow import ReceivedFlow
from roskva.capture.subscriber.service import Subscriber
from roskva.capture.updates import Update
from roskva.errors import BadRequest, CaptureRefused, RoskvaError
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_shell_publishers import Ordered, Place, ShellLoop
from roskva.simulation.processes import Process

KEY: Final = b"a key of the simulated subscribers"
KINDS: Final = ("quick", "slow", "many", "later", "spark")
_LOOK_S: Final = 0.3
_IDLE_S: Final = 3.0


class Opened(NamedTuple):
    """A flow, from a publisher's Open to its end."""

    number: int  # of its own
    flow: FlowName
    stream: Stream
    after: Position


_OPENED: ContextVar[Opened] = ContextVar("opened")  # whose task runs


class Host(Protocol):
    """What a subscriber needs of the world."""

    dice: Random
    loop: ShellLoop
    checkers: Checkers
    place: Place
    addresses: list[str]
    members: list[Member]
    exclusive: bool  # nothing parts a process from its publishers: two of them never have one flow

    def watching(self) -> AbstractContextManager[None]: ...

    def opened(self) -> int: ...


class Watched(Subscriber):
    def __init__(self, world: Host, member: Member, callbacks: Callbacks) -> None:
        super().__init__(
            member.application, KEY, world.addresses, callbacks, member.name, window_bytes=member.window_bytes, reconnect_s_max=2.0
        )
        self._world = world
        self._running: Any = Ordered()
        self._dice = Random(world.dice.random())

    def _opened(self, connection: Connection, frame: wire.Open) -> ReceivedFlow | None:
        flow = FlowName(self.application, frame.shard)
        _OPENED.set(Opened(self._world.opened(), flow, Stream(frame.epoch, frame.flow), frame.position))
        return super()._opened(connection, frame)


class Member:
    """A process of an application, over all its lives."""

    def __init__(self, world: Host, application: str, kind: str, name: str, window_bytes: int) -> None:
        self.world, self.application, self.kind, self.name, self.window_bytes = world, application, kind, name, window_bytes
        self.life: Process | None = None
        self.subscriber: Subscriber | None = None
        self.delay_s = 0.0  # of its callbacks, on average
        self.fails = 0.0  # how many of them raise
        self.full_until_s = 0.0  # it has no room for more
        self.busy: dict[FlowName, Opened] = {}  # callbacks that run
        self.done = NOTHING_YET  # of a query: its last batch that is done, as its checkpoint has it
        self.planned: Offset | None = None  # and the one that was begun after it
        self.stop_asked = asyncio.Event()

    def start(self) -> None:
        self.life = Process(self.name, self.world.loop, self.name)
        self.stop_asked = asyncio.Event()
        self.life.spawn(self._query() if self.kind == "spark" else self._live())

    def kill(self) -> None:
        if self.life is not None:
            self.life.kill()
        self.life, self.subscriber = None, None
        self.busy.clear()

    @property
    def full(self) -> bool:
        return self.world.loop.time() < self.full_until_s

    async def wait(self) -> None:
        if self.delay_s > 0:
            await asyncio.sleep(self.world.dice.uniform(0, 2 * self.delay_s))
        if self.world.dice.random() < self.fails:
            raise RuntimeError("this callback fails")

    async def _live(self) -> None:
        callbacks = {"quick": Taking, "slow": Slow, "many": Many, "later": Later}[self.kind](self)
        self.subscriber = Watched(self.world, self, callbacks)
        await self.subscriber.start()
        await self.stop_asked.wait()
        await self.subscriber.stop()
        self.kill()

    # A query of Spark: it plans a batch, reads it, does it, and says so; what it had planned before it died it does again.

    async def _query(self) -> None:
        options = Options(tuple(self.world.addresses), self.application, KEY, updates_max=6, bytes_max=4_000, fail_on_data_loss=False)
        receiving = QueryReceiving(options, self)
        try:
            await receiving.start(self.done)
            await self._batches(receiving)
        except CaptureRefused:
            pass  # no publisher knows the application: somebody starts the query again
        except RoskvaError as error:
            with self.world.watching():
                raise Broken("at least once", f"the query of {self.application} ends: {error}") from error
        await receiving.stop()
        self.kill()

    async def _batches(self, receiving: QueryReceiving) -> None:
        idle_since_s = self.world.loop.time()
        while not self.stop_asked.is_set():
            end = self.planned or await receiving.end_after(self.done, 6, 1.0)
            if end == self.done and self.world.loop.time() - idle_since_s > _IDLE_S:
                end = await receiving.quiet_end(self.done)
            if end == self.done:
                continue
            idle_since_s = self.world.loop.time()
            self.planned = end
            rows = await receiving.between(self.done, end)
            if self.delay_s > 0:
                await asyncio.sleep(self.world.dice.uniform(0, 4 * self.delay_s))
            await asyncio.sleep(max(0.0, self.full_until_s - self.world.loop.time()))
            for shard, each in rows.items():
                self._done(FlowName(self.application, shard), each)
            self.done, self.planned = end, None
            await receiving.acknowledge(end)

    def _done(self, flow: FlowName, rows: Sequence[Row]) -> None:
        """In the sink now: each exactly once, and in order."""
        track = self.world.checkers.tracks[flow]
        with self.world.watching():
            for row in rows:
                if row.lost and flow in self.world.place.may_lose:
                    track.dealt = max(track.dealt, track.upto(row.position))
                    continue
                if row.lost or track.dealt >= len(track.wanted) or track.wanted[track.dealt] != row.position:
                    expected = track.wanted[track.dealt] if track.dealt < len(track.wanted) else None
                    raise Broken("in order", f"{flow}: {row.operation} {row.position} is in the sink after all before {expected}")
                track.dealt += 1


class Taking(Callbacks):
    """The plainest."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.world = member.world

    @contextmanager
    def alone(self) -> Iterator[Opened]:
        opened = _OPENED.get()
        busy = self.member.busy
        with self.world.watching():
            for member in self.world.members if self.world.exclusive else [self.member]:
                if opened.flow in member.busy:
                    raise Broken("one at a time", f"{self.member.name} is called with {opened}, and {member.name} with {member.busy}")
        busy[opened.flow] = opened
        try:
            yield opened
        finally:
            if busy.get(opened.flow) is opened:
                del busy[opened.flow]

    def dealt(self, opened: Opened, update: Update) -> None:
        change = update.change
        with self.world.watching():
            routed = Routed(change.position, update.shard, frozenset((self.member.application,)), 0, change.committed_us, None)
            self.world.checkers.dealt(opened.number, opened.stream, opened.flow, routed, 0)

    def on_shard_notice(self, shard: Shard) -> None:
        with self.alone() as opened, self.world.watching():
            checkers = self.world.checkers
            record = self.world.place.records[opened.flow]
            if record.datamarker is None:
                checkers.begins_anew(opened.flow, opened.after, opened.stream.epoch)
            checkers.noticed(opened.number, opened.stream, opened.flow, opened.after, 0)

    def on_update(self, update: Update) -> Any:
        with self.alone() as opened:
            self.dealt(opened, update)

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        with self.alone() as opened, self.world.watching():
            forced = upto if opened.flow in self.world.place.may_lose else BEGINNING
            self.world.checkers.lost(opened.number, opened.stream, opened.flow, after, upto, forced)

    def on_shard_closed(self, shard: Shard) -> None:
        with self.alone():
            pass


class Slow(Taking):
    async def on_update(self, update: Update) -> None:
        with self.alone() as opened:
            await self.member.wait()
            self.dealt(opened, update)


class Many(Taking):
    """It has a buffer of its own, which may be full: what has no room then was not dealt with, and it says so."""

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        with self.alone() as opened:
            subscriber = self.member.subscriber
            while self.member.full:
                if subscriber is None or shard not in subscriber.shards:
                    raise RuntimeError("no room, and the flow has ended")
                await asyncio.sleep(_LOOK_S)
            await self.member.wait()
            for update in updates:
                self.dealt(opened, update)


class Later(Taking):
    """Acknowledges some time after it was asked."""

    def on_token(self, shard: Shard, datamarker: Position) -> bool:
        self.world.loop.call_later(self.world.dice.uniform(0, 4 * self.member.delay_s + 0.1), self._acknowledge, shard, datamarker)
        return False

    def _acknowledge(self, shard: Shard, position: Position) -> None:
        if self.member.subscriber is not None:
            with suppress(BadRequest):
                self.member.subscriber.acknowledge(shard, position)


class QueryReceiving(Receiving):
    """With the watched subscriber in place of its own."""

    def __init__(self, options: Options, member: Member) -> None:
        super().__init__(options)
        self._subscriber = member.subscriber = Watched(member.world, member, self)
