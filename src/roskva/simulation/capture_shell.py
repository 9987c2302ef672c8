"""A world for the shell of capture: real publishers and subscribers on virtual time, who die, are restarted, moved, rewound and cut off.

Simulated are the log, the place of the datamarkers and the network (capture_shell_publishers.py), and what callbacks do with what comes
(capture_shell_subscribers.py). First faults, then peace: everybody must get everything. `python -m roskva.simulation.capture_shell 1 300`
runs seeds; a failure prints its seed, its knobs and what happened last.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, Final

from roskva.capture.flows import Terms
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName, Peer
from roskva.capture.positions import BEGINNING
from roskva.capture.publisher.notes import ORDER, PAUSED
from roskva.capture.publisher.settings import ApplicationSettings, PublisherSettings
from roskva.capture.updates import Change, Update
from roskva.errors import RoskvaError
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_log import Log, Replica
from roskva.simulation.capture_running import main, told
from roskva.simulation.capture_shell_knobs import PARTING, Knobs, knobs_of
from roskva.simulation.capture_shell_publishers import Place, ShellLoop, SimulatedPublisher
from roskva.simulation.capture_shell_subscribers import KEY, Member
from roskva.simulation.loop import DeadWorld
from roskva.simulation.network import Network
from roskva.simulation.processes import Process

_PEACE_S: Final = 400.0
TAKEOVER_S: Final = 6.0
_LOG_S: Final = 0.3


@dataclass(frozen=True)
class ByColumn:
    """The rule for the shard (sharding.py): the log says it."""

    shards: int
    misplaced: ClassVar[dict[str, int]] = {}

    def shards_of(self, change: Change) -> tuple[int, ...]:
        shard = change.columns["shard"]
        assert isinstance(shard, int)
        return (shard,)


@dataclass(frozen=True)
class WantedBy:
    """The filter of an application: the log says it, too."""

    application: str

    def __call__(self, update: Update) -> bool:
        wanted = update.change.columns["wanted"]
        assert isinstance(wanted, str)
        return self.application in wanted.split()


@dataclass(eq=False)
class Site:
    """Where a publisher runs, over all its lives."""

    name: str
    replica: Replica
    settings: PublisherSettings
    life: Process | None = None
    publisher: SimulatedPublisher | None = None

    @property
    def working(self) -> SimulatedPublisher | None:
        return self.publisher if self.publisher is not None and self.publisher.ready_now else None


class World:
    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.dice = Random(knobs.seed)
        self.loop = ShellLoop(Random(self.dice.random()))
        self.network = Network(self.loop, Random(self.dice.random()))
        self.counts: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=60)
        self.failure: Broken | None = None
        self.checkers = Checkers()
        self.place = Place(self)
        applications = {f"a{number}": kind for number, kind in enumerate(knobs.kinds)}
        self.log = Log(list(applications), knobs.shards)
        names = [f"p{number}" for number in range(knobs.publishers)]
        self.addresses = [f"{name}:1" for name in names]
        self.sites = [Site(name, Replica(self.log), self._settings(name, names, list(applications))) for name in names]
        self.members = [
            Member(self, name, kind, f"{name}.{number}", knobs.window_bytes)
            for name, kind in applications.items()
            for number in range(1 if kind == "spark" else knobs.members)
        ]
        self.flows = [FlowName(name, shard) for name in applications for shard in range(knobs.shards)]
        self.exclusive = not PARTING & set(knobs.faults)
        self._opened = 0
        self.loop.set_exception_handler(self._complained)
        for flow in self.flows:
            self.checkers.began(flow, Terms(), BEGINNING)

    def _settings(self, name: str, names: list[str], applications: list[str]) -> PublisherSettings:
        knobs = self.knobs
        own = {each: ApplicationSettings(KEY, WantedBy(each), start="oldest", balance=knobs.balance) for each in applications}
        limits = Limits(
            datamarker_period_s=2.0, allocation_period_s=1.0, buffer_updates_max=self.dice.choice((8, 200)), choke_max_s=3.0, caravans_max=3
        )
        return PublisherSettings(
            name=name,
            listen=f"{name}:1",
            control=None,
            applications=own,
            shards=ByColumn(knobs.shards),
            peers=tuple(Peer(each) for each in names) if len(names) > 1 else (),
            limits=limits,
            tick_s=0.25,
            look_s=1.5,
            beat_s=1.0,
            takeover_s=TAKEOVER_S,
            steady_s=3.0,
            close_s_max=knobs.close_s_max,
        )

    # What others ask of it.

    def opened(self) -> int:
        self._opened += 1
        return self._opened

    @contextmanager
    def watching(self) -> Iterator[None]:
        try:
            yield
        except Broken as broken:
            self.failure = self.failure or broken

    def holders(self, flow: FlowName) -> list[str]:
        return [site.name for site in self.sites if site.working is not None and flow in site.working.owning.held]

    def _complained(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback raises nobody catches. A task's error is heard of when it is collected as garbage, whenever that is."""
        if "future" not in context and "exception" in context:
            self.failure = self.failure or Broken("invariant", f"{context['message']}: {context['exception']!r}")

    # Its course.

    async def live(self) -> None:
        for site in self.sites:
            self._start(site)
        for member in self.members:
            member.delay_s = self.knobs.delay_s
            member.start()
        for _ in range(self.knobs.steps):
            await asyncio.sleep(self.dice.expovariate(1 / _LOG_S))
            self._step()
            self._look()
        self._make_peace()
        deadline_s = self.loop.time() + _PEACE_S
        while missing := self._missing():
            await asyncio.sleep(1.0)
            self._look()
            if self.loop.time() > deadline_s:
                raise Broken("caught up", f"still missing: {missing}")

    def _look(self) -> None:
        if self.failure is not None:
            raise self.failure
        for site in self.sites:
            publisher = site.publisher
            if publisher is not None and publisher.failed is not None and publisher.failed.done() and publisher.failed.exception():
                raise Broken("invariant", f"{site.name} fails: {publisher.failed.exception()!r}")

    def _step(self) -> None:
        dice = self.dice
        if dice.random() < 0.6:
            entries = self.log.commit(dice, dice.choice((1, 3, 20)), int(self.loop.time() * 1e6))
            self.checkers.written(entries)
        for site in self.sites:
            site.replica.replicate(dice.randint(0, 3))
            if site.life is None and dice.random() < 0.2:
                self._start(site)
        for member in self.members:
            if member.life is None and dice.random() < 0.3:
                member.start()
        if self.knobs.faults and dice.random() < 0.3:
            fault = dice.choice(self.knobs.faults)
            self.counts[fault] += 1
            self.trace.append(f"{self.loop.time():.2f} {fault}: {self._go_wrong(fault)}")

    def _start(self, site: Site) -> None:
        site.life = Process(site.name, self.loop, site.name)
        site.publisher = SimulatedPublisher(site.settings, site.replica, self.place, site.life, self.knobs.rows_per_batch_max)
        site.life.spawn(site.publisher.start())

    def _kill(self, site: Site) -> None:
        if site.life is not None:
            site.life.kill()
        site.life = site.publisher = None

    # What goes wrong.

    def _go_wrong(self, fault: str) -> str:
        """The answer: with whom."""
        dice = self.dice
        site, member = dice.choice(self.sites), dice.choice(self.members)
        match fault:
            case "kill publisher":
                self._kill(site)
            case "restart publisher":
                publisher = site.working
                if publisher is not None and site.life is not None:
                    publisher.ready_now = False
                    site.life.spawn(self._restart(site, publisher))
            case "kill process":
                member.kill()
                return member.name
            case "restart process":
                member.stop_asked.set()
                return member.name
            case "break link":
                self.network.break_streams(site.name, member.name)
                return f"{site.name} {member.name}"
            case "cut":
                self.network.cut(site.name, member.name)
                self.loop.call_later(dice.uniform(1.0, 25.0), self.network.mend, site.name, member.name)
                return f"{site.name} {member.name}"
            case "place away":
                self.place.away_until_s[site.name] = self.loop.time() + dice.choice((0.5, 3.0, 12.0))
            case "tempers":
                for each in self.members:
                    each.delay_s, each.fails = dice.choice((0.0, 0.1, 0.7)), dice.choice((0.0, 0.05))
            case "full":
                member.full_until_s = self.loop.time() + dice.choice((2.0, 8.0))
                return member.name
            case "give away":
                if member.subscriber is not None and member.subscriber.shards:
                    shard = dice.choice(sorted(member.subscriber.shards))
                    member.subscriber.hand_over(shard, dice.choice(["", *(each.name for each in self.members)]))
                    return f"{member.name} {shard.number}"
            case _ if site.working is not None and site.life is not None:
                return f"{site.name} {self._by_an_operator(fault, site.working, site)}"
        return site.name

    async def _restart(self, site: Site, publisher: SimulatedPublisher) -> None:
        await publisher.stop()
        if site.publisher is publisher:
            self.loop.call_soon(self._kill, site)

    def _by_an_operator(self, fault: str, publisher: SimulatedPublisher, site: Site) -> str:
        dice = self.dice
        flow = dice.choice(self.flows)
        held = sorted(publisher.owning.held)
        if fault == "move":
            names = [each.name for each in self.sites]
            dice.shuffle(names)
            order = json.dumps(names).encode() if dice.random() < 0.7 else b""
            self._ask(site, publisher.owning.note(ORDER + flow.application, order))
        elif fault == "pause":
            self._ask(site, publisher.owning.note(f"{PAUSED}{flow}", dice.choice((b"by hand", b""))))
        elif fault == "configure":
            terms = Terms(staleness_max_s=dice.choice((0.0, 0.5)))
            settings = dict(site.settings.applications) | {
                flow.application: replace(site.settings.applications[flow.application], terms=terms)
            }
            site.settings = replace(site.settings, applications=settings)
            self._configure(publisher, site.settings)
        elif fault == "without application":
            left = {name: each for name, each in site.settings.applications.items() if name != flow.application}
            self._configure(publisher, replace(site.settings, applications=left))
            self.loop.call_later(dice.uniform(0.1, 6.0), self._with_all, site)
        elif held and fault == "reassign":
            flow = dice.choice(held)
            names = [member.name for member in self.members if member.application == flow.application]
            publisher.process.context.copy().run(publisher.placing.reassign, flow, dice.choice(("", *names)), self.loop.time())
        elif held and fault == "rewind":
            return self._rewind(site, publisher, dice.choice(held))
        return str(flow)

    def _with_all(self, site: Site) -> None:
        if site.life is not None and site.working is not None:
            self._configure(site.working, site.settings)

    def _configure(self, publisher: SimulatedPublisher, settings: PublisherSettings) -> None:
        """In its process, as all that it does."""
        publisher.process.context.copy().run(publisher.configure, settings)

    def _rewind(self, site: Site, publisher: SimulatedPublisher, flow: FlowName) -> str:
        """Back, to what is still there. A query has what it has: it would take nothing twice, and is let alone."""
        record = self.place.records[flow]
        oldest = max(each.replica.oldest for each in self.sites)
        ends = [self.log.end_of(count) for count in range(len(self.log.commits) + 1)]
        places = [end for end in ends if record.datamarker is not None and oldest <= end <= record.datamarker]
        if places and self.knobs.kinds[int(flow.application[1:])] != "spark":
            position = self.dice.choice(places)
            self._ask(site, publisher.owning.rewind([flow], position))
            return f"{flow} to {position}"
        return f"{flow} not"

    def _ask(self, site: Site, command: Coroutine[Any, Any, Any]) -> None:
        async def asked() -> None:
            with suppress(RoskvaError):
                await command

        assert site.life is not None
        site.life.spawn(asked())

    # Peace.

    def _make_peace(self) -> None:
        self.trace.append(f"{self.loop.time():.2f} peace")
        self.network.heal()
        self.place.away_until_s.clear()
        for member in self.members:
            member.delay_s = member.fails = member.full_until_s = 0.0
            if member.life is None:
                member.start()
        for site in self.sites:
            site.replica.replicate(len(self.log.commits))
            if site.life is None:
                self._start(site)

    def _missing(self) -> dict[str, int]:
        """Who stops or dies late has another life first, and what an operator had begun has no effect."""
        self.place.noted.clear()
        for site in self.sites:
            if site.life is None:
                self._start(site)
        for member in self.members:
            if member.life is None:
                member.start()
        behind = {str(flow): self.checkers.behind(flow, 0) for flow in self.flows}
        return {flow: count for flow, count in behind.items() if count}

    def close(self) -> None:
        for site in self.sites:
            self._kill(site)
        for member in self.members:
            member.kill()
        self.loop.set_exception_handler(lambda loop, context: None)
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(_gathered(pending))
        self.loop.close()


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=1.0)


def run(seed: int) -> World:
    """Raises Broken, with the seed, its knobs and what happened last."""
    world = World(knobs_of(seed))
    logger = logging.getLogger("roskva")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with told(seed, world):
            try:
                world.loop.run_until_complete(world.live())
            except DeadWorld as error:
                raise Broken("caught up", str(error)) from error
    finally:
        world.close()
        logger.setLevel(level)
    return world


if __name__ == "__main__":
    main(run, int(sys.argv[1]), int(sys.argv[2]))
