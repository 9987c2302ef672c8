"""The pipeline of the simulated world: a model of Spark's driver around the real tasks, with their real links and blind writes.

As Spark does: a batch is a range of offsets, logged before it runs, cut into tasks that run beside each other; its commit is logged when
all are done, asynchronously, at most once a second, and never while idle. A driver that dies repeats everything since the last commit
that was logged. Its workers may live on as orphans for a while. A successor copies the newest checkpoint; if that is lost it begins with
the oldest record. The Bridge's column expressions are Spark's and are not here: the rules that count (`matcher.forms`) are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from roskva.feed.interface import Position
from roskva.pipeline.events import Origin
from roskva.pipeline.fanout import FanOut
from roskva.pipeline.matching import Task
from roskva.pipeline.offsets import FAN_OUT, MATCHING, STREAMS, Place, Range, Stream, advance, plan, share_out
from roskva.pipeline.repair import Lost, Repair, lost_in, newest_of, partitions_to_repair
from roskva.propagation.breaker import Breaker
from roskva.propagation.links import Links
from roskva.propagation.patience import persist
from roskva.propagation.surroundings import Surroundings
from roskva.simulation.blocking import BlockingFeed, BlockingTable, SimulatedManifest
from roskva.simulation.fibers import Fiber, block
from roskva.simulation.network import FiberSocket
from roskva.simulation.processes import Process
from roskva.simulation.sweeping import Sweeping
from roskva.table.manifest import Address

if TYPE_CHECKING:
    from roskva.simulation.world import World

_LOG_EVERY_S: Final = 1.0
_LOOK_FOR_LOSSES_S: Final = 2.0
_RETRY_HORIZON_S: Final = 60.0  # no publisher repeats for longer
_BRIDGED: Final = (None,) * 4  # the Bridge left it open: `forms.extract` decides


@dataclass
class Checkpoint:
    """What a query logged. Ends of batches by number, and which of them are done."""

    ends: dict[int, dict[Place, Position]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def copied(self) -> Checkpoint:
        return Checkpoint({number: dict(end) for number, end in self.ends.items()}, set(self.done))


class Workers:
    """The connections of one driver's workers: what pipeline.connections keeps from task to task."""

    def __init__(self, world: World, process: Process, slot: str) -> None:
        self.settings = world.settings
        self.process = process
        self.table = BlockingTable(world.stores, process)
        self.feed = BlockingFeed(world.stores, process)
        self.manifest = SimulatedManifest(world.stores)
        chance = world.chance_for(f"workers of {process.name}, {slot}")  # no two of them give marks the same name
        self.around = Surroundings(
            clock=process.clock,
            wall_clock=process.wall_clock,
            sleep=lambda seconds: block(asyncio.sleep(seconds)),
            spawn=lambda name, work: block(_spawned(process, work)),
            unique=chance.randbytes,
            dial=lambda address, timeout: FiberSocket.dial(world.network, process, address, timeout),
        )
        self.links = Links(self.settings, self.table, world.internal_key, self.around)
        self.breaker = Breaker(process.clock)


async def _spawned(process: Process, work: Callable[[], None]) -> None:
    process.spawn(Fiber(work).run())


class SimulatedDriver:
    """One life of the pipeline's process."""

    def __init__(self, world: World, boot: int) -> None:
        self.world = world
        self.name = f"pipeline-{boot}"
        self._chance = world.chance_for(self.name)
        skew_s = world.skew_s(self._chance)
        self.process = Process(self.name, world.loop, host="pipeline", wall_skew_s=skew_s, calendar=world.calendar)
        # Orphans: the workers' process may outlive the driver's.
        self.workers = Process(f"{self.name}-workers", world.loop, host="pipeline", wall_skew_s=skew_s, calendar=world.calendar)
        self.checkpoints = {stream.name: world.checkpoints[stream.name].copied() for stream in STREAMS}
        world.checkpoints = self.checkpoints  # the newest: what a successor copies
        self.batches = 0
        self._slots: dict[tuple[str, int], Workers] = {}
        self.sweeping = Sweeping(self)
        self._reached: dict[str, dict[Place, Position]] = {}  # by query: the end of the last batch that is done

    def start(self) -> None:
        for stream in STREAMS:
            self.process.spawn(self._query(stream))
        self.process.spawn(self._repairs())
        self.sweeping.start()
        if self.world.knobs.sweep_pause_s:
            self.process.spawn(self._retention())

    def kill(self, orphans_for_s: float = 0.0) -> None:
        self.process.kill()
        if orphans_for_s:
            self.world.loop.call_later(orphans_for_s, self.workers.kill)
        else:
            self.workers.kill()

    def lag(self) -> int:
        """Records that no batch of this driver has dealt with."""
        total = 0
        for stream in STREAMS:
            reached = self._reached.get(stream.name, {})
            for place, newest in self._newest(stream).items():
                done = reached.get(place)
                total += newest.offset - done.offset if done is not None and done.incarnation == newest.incarnation else newest.offset
        return total

    async def _query(self, stream: Stream) -> None:
        log = self.checkpoints[stream.name]
        number = max(log.done, default=-1)
        start = dict(log.ends.get(number, {})) or self._oldest(stream)
        # A range that was logged and is not done is repeated as it was.
        pending = sorted(batch for batch in log.ends if batch > number)
        self._reached[stream.name] = start
        logged_s = float("-inf")
        while True:
            number += 1
            if pending and pending[0] == number:
                pending.pop(0)
                end = log.ends[number]
            else:
                end = await self._next_end(stream, start)
                if self._chance.random() < 0.5:  # logged in time, or too late for a driver that dies in this batch
                    log.ends[number] = end
            await self._run_batch(stream, start, end)
            start = self._reached[stream.name] = {**start, **end}
            self.batches += 1
            if self.world.loop.time() - logged_s >= _LOG_EVERY_S:
                logged_s = self.world.loop.time()
                log.ends[number] = end
                log.done.add(number)
                self._forget_old(log, number)
                self._consumed(stream, end)
            else:
                # Neither the range nor the commit reach the log: a restart begins before it.
                log.ends.pop(number, None)
                number -= 1

    async def _repairs(self) -> None:
        """As the real driver: whenever a look at the manifest shows a lost partition, one pass over all clients' rows."""
        stores, pace = self.world.stores, self.world.knobs.pace
        repaired: dict[Lost, float] = {}
        while True:
            await asyncio.sleep(_LOOK_FOR_LOSSES_S * pace)
            await self.process.breathe()
            lost = [one for one in lost_in(stores.incarnations) if one not in repaired]
            if lost:
                await self._pass_over_rows(partitions_to_repair(lost, self.world.knobs.partitions), newest_of(lost))
                repaired.update(dict.fromkeys(lost, self.world.loop.time()))
            for one, since_s in list(repaired.items()):
                if self.world.loop.time() - since_s > _RETRY_HORIZON_S * pace:
                    stores.mark_complete(one.address, one.incarnation)
                    del repaired[one]

    async def _pass_over_rows(self, lost: frozenset[int], newest: int) -> None:
        repair = Repair(self.connected("repair", 0))  # type: ignore[arg-type]
        for partition in range(self.world.knobs.partitions):
            await self.all_done([self.workers.spawn(Fiber(partial(repair.run, partition, lost, newest)).run())])

    def _forget_old(self, log: Checkpoint, number: int) -> None:
        for old in [one for one in log.ends if one < number - 20]:
            log.ends.pop(old)
            log.done.discard(old)

    def _consumed(self, stream: Stream, end: dict[Place, Position]) -> None:
        """Retention: what was consumed may go, now or later."""
        stores = self.world.stores
        for (topic, partition), position in end.items():
            if self._chance.random() < 0.2 and position.incarnation == stores.incarnations[Address("feed", topic, partition)].incarnation:
                stores.trim(topic, partition, position.offset)

    async def _retention(self) -> None:
        """What was consumed goes, also while nothing happens: sweeps forget nothing that records in the feed could bring back."""
        while True:
            await asyncio.sleep(self._chance.uniform(1.0, 10.0) * self.world.knobs.pace)
            for stream in STREAMS:
                log = self.checkpoints[stream.name]
                if log.done:
                    self._consumed(stream, log.ends[max(log.done)])

    def _positions(self, stream: Stream, which: Callable[[str], dict[int, Position]]) -> dict[Place, Position]:
        return {(topic, p): at for topic in stream.topics for p, at in which(topic).items()}

    def _oldest(self, stream: Stream) -> dict[Place, Position]:
        return self._positions(stream, self.world.stores.oldest)

    def _newest(self, stream: Stream) -> dict[Place, Position]:
        return self._positions(stream, self.world.stores.newest)

    async def _next_end(self, stream: Stream, start: dict[Place, Position]) -> dict[Place, Position]:
        records_max = self.world.settings.records_per_batch_max
        while True:
            await self.process.breathe()
            end = advance(start, self._oldest(stream), self._newest(stream), records_max)
            if end != start:
                await asyncio.sleep(self._chance.uniform(0.001, 0.05))  # planning
                return end
            self.world.stores.appended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.world.knobs.pace):
                    await self.world.stores.appended.wait()

    async def _run_batch(self, stream: Stream, start: dict[Place, Position], end: dict[Place, Position]) -> None:
        planned = plan(start, end, self._oldest(stream), self._newest(stream))
        tasks_max = self.world.settings.pipeline_cores if stream == MATCHING else 1
        shares = _cut(planned.ranges, tasks_max, self._chance.random() < 0.3)
        running = []
        for slot, share in enumerate(shares):
            work = partial(self._task, stream, share, self.connected(stream.name, slot))
            running.append(self.workers.spawn(Fiber(work).run()))
        await self.all_done(running)

    def connected(self, what: str, slot: int) -> Workers:
        """One set of connections, and of dice, for each: two with the same dice would give their marks the same names."""
        if (what, slot) not in self._slots:
            self._slots[what, slot] = Workers(self.world, self.workers, f"{what} {slot}")
        return self._slots[what, slot]

    async def all_done(self, running: list[asyncio.Task[Any]]) -> None:
        # Not `gather`: if this driver dies, its workers go on.
        while running:
            done, rest = await asyncio.wait(running)
            for one in (task for task in running if task in done):  # a set has no order that two runs share
                if one.cancelled() or one.exception() is not None:
                    error = None if one.cancelled() else one.exception()
                    self.world.tell(self.name, f"a task failed: {error!r}")
                    self.world.task_failed(error)
                    self.kill()
                    raise asyncio.CancelledError  # the batch is not done
            running = [task for task in running if task in rest]

    def _task(self, stream: Stream, ranges: list[Range], connected: Any) -> None:
        block(asyncio.sleep(self._chance.uniform(0.0, 0.02)))
        rows: list[tuple[Any, ...]] = []
        for wanted in ranges:
            read = partial(connected.feed.read, wanted.topic, wanted.partition, wanted.start, wanted.end)
            records = persist("reading the feed", read, connected.around)
            rows += [
                (wanted.topic, wanted.partition, record.offset, wanted.incarnation, record.time_ms, record.headers, record.value)
                for record in records
            ]
        if not rows:
            return
        if stream == FAN_OUT:
            FanOut(connected).run([Origin._make(row) for row in rows])
        else:
            Task(connected).run([(*row, *_BRIDGED) for row in rows])


def _cut(ranges: list[Range], tasks_max: int, singly: bool) -> list[list[Range]]:
    """As the source shares them out; or, as a larger machine might, each partition by itself."""
    if not singly:
        return share_out(ranges, tasks_max)
    by_partition: dict[int, list[Range]] = {}
    for item in ranges:
        by_partition.setdefault(item.partition, []).append(item)
    return list(by_partition.values())
