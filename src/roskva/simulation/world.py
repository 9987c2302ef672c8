"""One world from one seed: safety phase with faults, then healing, then the checkers must hold (see docs/correctness.md).

    outcome = simulate(draw(seed))     # .failure is None, or says what broke; .trace has one line per event

Nothing in it sleeps, opens a file or a socket, or asks a real clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roskva.config import ApplicationSettings, Settings
from roskva.model import ClientId
from roskva.pipeline.offsets import STREAMS
from roskva.protocol.messages import Config
from roskva.protocol.tokens import Keyring
from roskva.simulation.backends import Backend, Truth
from roskva.simulation.checkers import (
    Broken,
    Checker,
    LatestLearned,
    NoRegress,
    NoStorm,
    NothingForgotten,
    NothingUnfinished,
    OnlyPublished,
    QueuesBounded,
    SourceLeftOut,
    SummariesAgree,
    TwinsTold,
    UnregisteredSilence,
    Watch,
    WorkDone,
)
from roskva.simulation.clients import Application
from roskva.simulation.gateways import SimulatedGateway
from roskva.simulation.knobs import Knobs
from roskva.simulation.loop import DeadWorld, VirtualLoop
from roskva.simulation.nemesis import LATE_MAX_S, Nemesis
from roskva.simulation.network import Network
from roskva.simulation.pipelines import Checkpoint, SimulatedDriver
from roskva.simulation.stores import Stores
from roskva.simulation.workload import Workload

HEALING_S: Final = 90.0  # of virtual time, after which the promise must hold
NEWCOMER_S: Final = 60.0  # in which somebody new learns everything
PROMPT_S: Final = 6.0  # within which a healthy world learns of an update: before the second retry of anything
_LOOK_EVERY_S: Final = 1.0
_REST_S: Final = 12.0
_STEPS_MAX: Final = 4_000_000  # turns of the loop: more is a busy loop
TRACE_LINES_MAX: Final = 100_000


@dataclass
class Outcome:
    """What became of a world."""

    knobs: Knobs
    failure: str | None = None
    checker: str = ""  # which one broke, if one did
    virtual_s: float = 0.0
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Two runs of one seed have the same."""
        return hashlib.sha256("\n".join([*self.trace, str(self.steps)]).encode()).hexdigest()[:16]


class _Complaints(logging.Handler):
    """What the service logs as an error with a traceback is a defect: nothing here is unexpected to it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], Broken):
            self._tell(f"{record.getMessage()}: {record.exc_info[1]!r}")


class World:
    def __init__(self, knobs: Knobs, trace: bool = True) -> None:
        self.knobs = knobs
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._unexpected)
        self.outcome = Outcome(knobs)
        self.faulty = True
        self.epoch = 0
        self._tracing = trace
        self._over = False
        self.settings = _settings(knobs)
        demo = self.settings.applications["demo"]
        self.client_config = Config(keepalive_s=demo.keepalive_s, retry_min_s=demo.retry_min_s, retry_max_s=demo.retry_max_s)
        self.keyring = Keyring({1: b"k" * 32})
        self.internal_key = b"i" * 32
        self.network = Network(self.loop, self.chance_for("network"), knobs.jitter_s)
        self.stores = Stores(self.loop, self.chance_for("stores"), knobs.partitions)
        self.checkpoints = {stream.name: Checkpoint() for stream in STREAMS}
        self.names = [f"o{number}".encode() for number in range(knobs.objects)]
        self.truth: dict[bytes, Truth] = {name: Truth() for name in self.names}
        self.newcomers = NothingForgotten()
        self.storm = NoStorm()
        self.silence = UnregisteredSilence()
        self.twins = TwinsTold()
        self.checkers: list[Checker] = [
            QueuesBounded(),
            WorkDone(),
            LatestLearned(),
            NoRegress(),
            OnlyPublished(),
            SourceLeftOut(),
            self.silence,
            SummariesAgree(),
            NothingUnfinished(),
            self.twins,
            self.newcomers,
            self.storm,
        ]
        self.watch = Watch(self.checkers)
        self.gateways: dict[int, SimulatedGateway] = {}
        self._boots: Counter[str] = Counter()
        self._down_until_s: dict[str, float] = {}  # whom the nemesis keeps down, whatever its supervisor does
        self.driver: SimulatedDriver | None = None
        self.applications: list[Application] = []
        self.clones: list[Application] = []
        self.backend = Backend(self, 0)
        self.nemesis = Nemesis(self)

    # Chance and words.

    def chance_for(self, who: str) -> random.Random:
        """Everybody has dice of their own: what one does more or less changes nobody else's luck."""
        return random.Random(f"{self.knobs.seed} {who}")

    def skew_s(self, chance: random.Random) -> float:
        return chance.uniform(-self.knobs.skew_s, self.knobs.skew_s)

    def tell(self, who: str, what: str) -> None:
        if self._tracing and len(self.outcome.trace) < TRACE_LINES_MAX:
            self.outcome.trace.append(f"{self.loop.time():10.4f}  {who:<14}  {what}")

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Broken):
            self._fail(str(error), error.checker)
        elif error is not None and not isinstance(error, (asyncio.CancelledError, ConnectionError)):
            self._fail(f"unexpected: {error!r} ({context.get('message')})")

    def _complained(self, what: str) -> None:
        self._fail(f"the service logged an unexpected error: {what}")

    def _fail(self, why: str, checker: str = "") -> None:
        if self.outcome.failure is None and not self._over:
            self.outcome.failure, self.outcome.checker = why, checker
            self.tell("world", f"BROKEN: {why}")
            if self.loop.is_running():
                self.loop.stop()

    def task_failed(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(f"a task of the pipeline raised {error!r}")

    # Processes.

    def start_gateway(self, slot: int) -> None:
        alive = slot in self.gateways and self.gateways[slot].process.alive
        if alive or self.loop.time() < self._down_until_s.get(f"gateway {slot}", 0.0):
            return
        self._boots["gateway"] += 1
        gateway = self.gateways[slot] = SimulatedGateway(self, slot, self._boots["gateway"])
        self.tell(gateway.member_id, "starts")
        gateway.process.died.add_done_callback(lambda _: self._gateway_died(gateway))
        gateway.start()

    def _gateway_died(self, gateway: SimulatedGateway) -> None:
        """Its supervisor starts another."""
        self.tell(gateway.member_id, "is gone")
        self.loop.call_later(2.0, self.start_gateway, gateway.slot)

    def kill_gateway(self, slot: int, restart_after_s: float) -> None:
        if slot in self.gateways:
            self._down_until_s[f"gateway {slot}"] = self.loop.time() + restart_after_s
            self.gateways[slot].process.kill()
            self.loop.call_later(restart_after_s, self.start_gateway, slot)

    def stop_gateway(self, slot: int) -> None:
        gateway = self.gateways.get(slot)
        if gateway is not None and gateway.process.alive and gateway.serving:
            gateway.process.spawn(gateway.stop())

    def living_gateways(self) -> list[SimulatedGateway]:
        return [gateway for gateway in self.gateways.values() if gateway.process.alive]

    def some_gateway(self, chance: random.Random) -> SimulatedGateway | None:
        """Where somebody connects: also to one that is dead, since nobody knows."""
        return self.gateways[chance.randrange(self.knobs.gateways)] if self.gateways else None

    def start_pipeline(self) -> None:
        alive = self.driver is not None and self.driver.process.alive
        if alive or self.loop.time() < self._down_until_s.get("pipeline", 0.0):
            return
        self._boots["pipeline"] += 1
        driver = self.driver = SimulatedDriver(self, self._boots["pipeline"])
        self.tell(driver.name, "starts")
        driver.process.died.add_done_callback(lambda _: self.loop.call_later(1.0, self.start_pipeline))
        driver.start()

    def kill_pipeline(self, restart_after_s: float, orphans_for_s: float = 0.0, checkpoint_lost: bool = False) -> None:
        self._down_until_s["pipeline"] = self.loop.time() + restart_after_s
        if self.driver is not None:
            self.tell(self.driver.name, "dies")
            self.driver.kill(orphans_for_s)
        if checkpoint_lost:
            self.checkpoints = {stream.name: Checkpoint() for stream in STREAMS}
        self.loop.call_later(restart_after_s, self.start_pipeline)

    def kill_client(self, application: Application, keep: bool, restart_after_s: float) -> None:
        if application.running:
            application.kill()
            if not keep:
                application.install()
            self.loop.call_later(restart_after_s, self._start_client, application)

    def _start_client(self, application: Application) -> None:
        if not application.running:
            application.start()

    def clone(self, application: Application) -> Application:
        """Somebody starts a second process with a copy of the state."""
        self._boots["clone"] += 1
        twin = Application(self, application.number)
        twin.device, twin.state, twin.wishes = application.device, application.state, dict(application.wishes)
        twin.chance = self.chance_for(f"clone {self._boots['clone']}")
        application.cloned = True
        self.clones.append(twin)
        self.tell(application.device, "is cloned")
        twin.start()
        return twin

    def kill_backend(self) -> None:
        self.backend.process.kill()
        self._boots["backend"] += 1
        self.backend = Backend(self, self._boots["backend"])

    def lose_everything(self) -> None:
        self.stores.lose_everything()

    def hosts(self) -> list[str]:
        return [
            *(f"gateway-{slot}" for slot in range(self.knobs.gateways)),
            "pipeline",
            self.backend.process.host,
            *(f"client-{application.number}" for application in self.applications),
        ]

    # What checkers ask.

    def lag(self) -> int:
        return 0 if self.driver is None else self.driver.lag()

    def acknowledged(self, name: bytes, version: int) -> None:
        self.tell(self.backend.process.name, f"{name.decode()} {version} is acknowledged")

    def client_of(self, application: Application) -> ClientId:
        token = application.core._handshake.token
        return self.keyring.verify(token).client if token else ClientId("")

    def settled_since_registration(self, application: Application, name: bytes) -> bool:
        """Whether its registration was confirmed, and a moment ago: the answer to a registration names no source."""
        confirmed = application.confirmed.get(name)
        return confirmed is not None and confirmed[0] and self.loop.time() - confirmed[1] > 2.0

    # Phases.

    def run(self) -> Outcome:
        complaints = _Complaints(self._complained)
        logger = logging.getLogger("roskva")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(complaints)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._live())
        except (RuntimeError, DeadWorld) as error:
            if self.outcome.failure is None:
                self.outcome.failure = f"the world stopped: {error}"
        except Broken as error:
            self._fail(str(error), error.checker)
        finally:
            logger.removeHandler(complaints)
            logger.setLevel(level)
            logger.propagate = propagate
            self._end()
        return self.outcome

    async def _live(self) -> None:
        for slot in range(self.knobs.gateways):
            self.start_gateway(slot)
        self.start_pipeline()
        workload = Workload(self)
        workload.begin()
        nemesis = asyncio.ensure_future(self.nemesis.run())
        await workload.run()
        self.faulty = False
        nemesis.cancel()
        self.tell("world", "faults stop")
        self.heal()
        await self._end_twins()
        await asyncio.sleep(LATE_MAX_S if "late messages" in self.knobs.faults else 1.0)
        await self._come_to_rest("after the faults", HEALING_S * self.knobs.pace)
        await self._rest()
        await self._one_more_update(workload)
        await self._newcomer(workload)

    def heal(self) -> None:
        self.network.heal()
        self.stores.heal()
        self._down_until_s.clear()
        for process in (*(gateway.process for gateway in self.living_gateways()), *([self.driver.workers] if self.driver else [])):
            process.paused_until_s = 0.0
        for slot in range(self.knobs.gateways):
            self.start_gateway(slot)
        self.start_pipeline()
        for application in self.applications:
            self._start_client(application)

    async def _end_twins(self) -> None:
        """Of two that run with one state, one is told. Then: what a twin acknowledged the other never saw, and it begins anew."""
        await self._come_to_rest("with two processes of one state", HEALING_S * self.knobs.pace, [self.twins])
        for clone in self.clones:
            clone.kill()
        for application in self.applications:
            if application.cloned:
                application.kill()
                application.install()
                application.start()

    async def _come_to_rest(self, when: str, within_s: float, checkers: Sequence[Checker] = ()) -> None:
        began_s = self.loop.time()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            reasons = ((checker, reason) for checker in checkers or self.checkers if (reason := checker.reason(self)) is not None)
            checker, reason = next(reasons, (None, ""))
            if checker is None:
                return
            if self.loop.time() - began_s > within_s:
                raise checker.broken(f"{when}, {within_s:g} s later: {reason}")
            if self.loop.steps > _STEPS_MAX:
                raise self.storm.broken(f"{_STEPS_MAX:,} turns of the loop and no rest: {reason}")

    async def _rest(self) -> None:
        before = self.network.counts["sent"]
        await asyncio.sleep(_REST_S)
        self.storm.at_rest(self, _REST_S, self.network.counts["sent"] - before)

    async def _one_more_update(self, workload: Workload) -> None:
        """In a healthy world, news travel without a retry, and cost a few messages for each who hears of them."""
        before, began_s = self.network.counts["sent"], self.loop.time()
        listeners = workload.one_more_update()
        crowded = self.knobs.outstanding_max < listeners  # more than memory takes: the rest comes a few at a time
        await self._come_to_rest("after one more update", HEALING_S if crowded else PROMPT_S * self.knobs.pace)
        self.storm.after_updates(self, self.loop.time() - began_s, self.network.counts["sent"] - before, listeners)

    async def _newcomer(self, workload: Workload) -> None:
        before = self.stores.appended_to("registrations")
        self.newcomers.newcomer = workload.newcomer()
        await self._come_to_rest("with a newcomer", NEWCOMER_S * self.knobs.pace)
        self.storm.after_registrations(self.knobs.objects, self.stores.appended_to("registrations") - before)

    def _end(self) -> None:
        self._over = True
        outcome = self.outcome
        outcome.virtual_s, outcome.steps = self.loop.time(), self.loop.steps
        outcome.counts = {
            **{f"fault: {name}": count for name, count in sorted(self.nemesis.done.items())},
            **{f"network: {name}": count for name, count in self.network.counts.items()},
            **{f"stores: {name}": count for name, count in sorted(self.stores.counts.items())},
            "published": sum(len(truth.versions) for truth in self.truth.values()),
        }
        for application in (*self.applications, *self.clones):
            application.kill()
        if self.driver is not None:
            self.driver.kill()
        for gateway in self.gateways.values():
            gateway.process.kill()
        self.backend.process.kill()
        self.loop.set_exception_handler(lambda loop, context: None)
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(_gathered(pending))
        asyncio.set_event_loop(None)
        self.loop.close()


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=1.0)


def _settings(knobs: Knobs) -> Settings:
    # Shorter than in service, in the same proportions: a healed world is at rest within minutes of its own time.
    pace = knobs.pace
    demo = ApplicationSettings(
        heartbeat_s=knobs.heartbeat_s * pace,
        offline_s=4 * knobs.heartbeat_s * pace,
        keepalive_s=10.0 * pace,
        retry_min_s=1.0,
        retry_max_s=8.0 * pace,
        connect_max_s=8.0 * pace,
        resend_min_s=1.0,
        resend_max_s=8.0 * pace,
    )
    return Settings(
        partitions=knobs.partitions,
        applications={"demo": demo},
        fan_out_above=knobs.fan_out_above,
        records_per_batch_max=knobs.records_per_batch_max,
        rows_cached_max=knobs.rows_cached_max,
        outstanding_max=knobs.outstanding_max,
        operations_per_message_max=knobs.operations_per_message_max,
        settling_s=knobs.settling_s * pace,
        ack_wait_ms=knobs.ack_wait_ms,
        propagation_timeout_s=1.0,
        member_heartbeat_s=1.0 * pace,
        member_timeout_s=5.0 * pace,
        mark_poll_s=1.0 * pace,
        mark_bucket_s=4.0 * pace,
        mark_retention_s=40.0 * pace,
        scan_s=15.0 * pace,
        scratch_every_s=10.0 * pace,
    )


def simulate(knobs: Knobs, trace: bool = True) -> Outcome:
    return World(knobs, trace).run()
