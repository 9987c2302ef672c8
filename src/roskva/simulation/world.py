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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from roskva.model import ClientId
from roskva.pipeline.offsets import STREAMS
from roskva.protocol.messages import Config
from roskva.protocol.tokens import Keyring
from roskva.simulation.backends import Backend, Truth
from roskva.simulation.checkers import (
    Broken,
    Checker,
    Departed,
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
from roskva.simulation.checkers_of_intervals import OncePerInterval
from roskva.simulation.checkers_of_sweeps import EveryoneInvalidated, SweptRightly, ViewsAgree
from roskva.simulation.clients import Application
from roskva.simulation.gateways import SimulatedGateway
from roskva.simulation.knobs import Knobs
from roskva.simulation.loop import DeadWorld, VirtualLoop
from roskva.simulation.nemesis import Nemesis
from roskva.simulation.network import Network
from roskva.simulation.operators import History, Operator
from roskva.simulation.phases import live
from roskva.simulation.pipelines import Checkpoint, SimulatedDriver
from roskva.simulation.processes import Calendar
from roskva.simulation.settings import settings_of
from roskva.simulation.stores import Stores

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
        self._tracing = trace
        self._over = False
        self.settings = settings_of(knobs)
        demo = self.settings.applications["demo"]
        self.client_config = Config(keepalive_s=demo.keepalive_s, retry_min_s=demo.retry_min_s, retry_max_s=demo.retry_max_s)
        self.keyring = Keyring({1: b"k" * 32})
        self.internal_key = b"i" * 32
        self.calendar = Calendar(self.loop, knobs.began_s, knobs.day_s)
        self.network = Network(self.loop, self.chance_for("network"), knobs.jitter_s)
        self.stores = Stores(self.loop, self.chance_for("stores"), knobs.partitions)
        self.checkpoints = {stream.name: Checkpoint() for stream in STREAMS}
        self.names = [f"o{number}".encode() for number in range(knobs.objects)]
        self.truth: dict[bytes, Truth] = {name: Truth() for name in self.names}
        self.history = History(self)
        self.newcomers = NothingForgotten()
        self.storm = NoStorm()
        self.silence = UnregisteredSilence()
        self.twins = TwinsTold()
        self.invalidations = EveryoneInvalidated()
        self.kept = SweptRightly(self)
        self.views = ViewsAgree()
        self.departures = Departed()
        self.intervals = OncePerInterval(self)
        if knobs.sweep_pause_s:
            self.stores.observers.append(self.kept)
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
            self.invalidations,
            self.kept,
            self.views,
            self.newcomers,
            self.storm,
            self.departures,
            self.intervals,
        ]
        self.watch = Watch(self.checkers)
        self.gateways: dict[int, SimulatedGateway] = {}
        self._boots: Counter[str] = Counter()
        self._down_until_s: dict[str, float] = {}  # whom the nemesis keeps down, whatever its supervisor does
        self.driver: SimulatedDriver | None = None
        self.operators: list[Operator] = []
        self.sweeps: Counter[str] = Counter()
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

    def fail(self, broken: Broken) -> None:
        """For checkers that see it where nothing may be raised."""
        self._fail(str(broken), broken.checker)

    # Processes.

    def nobody_is_kept_down(self) -> None:
        self._down_until_s.clear()

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
            self.loop.call_later(restart_after_s, self.start_client, application)

    def start_client(self, application: Application) -> None:
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

    def operator(self) -> Operator:
        """Somebody who is about to give an order."""
        self.operators = [operator for operator in self.operators if operator.busy]
        self._boots["operator"] += 1
        operator = Operator(self, self._boots["operator"])
        self.operators.append(operator)
        return operator

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

    @property
    def epoch(self) -> int:
        return self.stores.epochs.get("demo", 0)

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
            self.loop.run_until_complete(live(self))
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

    def _end(self) -> None:
        self._over = True
        outcome = self.outcome
        outcome.virtual_s, outcome.steps = self.loop.time(), self.loop.steps
        outcome.counts = {
            **{f"fault: {name}": count for name, count in sorted(self.nemesis.done.items())},
            **{f"network: {name}": count for name, count in self.network.counts.items()},
            **{f"stores: {name}": count for name, count in sorted(self.stores.counts.items())},
            **{f"sweep: {name}": count for name, count in sorted(self.sweeps.items())},
            **{f"swept: {name}": count for name, count in sorted(self.kept.counts.items())},
            "published": sum(len(truth.serials) for truth in self.truth.values()),
        }
        for application in (*self.applications, *self.clones):
            application.kill()
        if self.driver is not None:
            self.driver.kill()
        for gateway in self.gateways.values():
            gateway.process.kill()
        self.backend.process.kill()
        for operator in self.operators:
            operator.process.kill()
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


def simulate(knobs: Knobs, trace: bool = True) -> Outcome:
    return World(knobs, trace).run()
