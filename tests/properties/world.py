"""Client cores, a Registrar and a Matcher joined in memory: virtual time, a channel that drops, repeats and reorders, processes that die.

Nothing here waits or reads a clock. What chance decides is decided by the caller (Hypothesis), apart from the clients' jitter, which comes
from a seed. `run` lets time pass; `heal` ends all faults and lets time pass until the promise holds, or says why it does not:

    every registered client has learned the latest version, or "unknown" after it; summaries agree; nothing is owed or waits.

Long, because everything that meets in it is in one place: processes, channel, time, promise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from roskva.config import ApplicationSettings
from roskva.errors import Unavailable
from roskva.feed.interface import UPDATES
from roskva.model import ClientId, object_key
from roskva.protocol.messages import ClientMessage, Config, ServerMessage, decode_client, decode_server, encode
from roskva.protocol.tokens import Keyring
from roskva.registrar.cells import client_row
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import Session
from roskva.table.interface import Row
from tests.properties.application import Application
from tests.properties.pipeline import APPLICATION, PipelineShell, Task, copies_of
from tests.properties.registrar import RegistrarShell
from tests.properties.service import ServiceShell
from tests.properties.store import PARTITIONS, Crash, ModelFeed, ModelTable, Steps

# Shorter than in service, in the same proportions: a healed world is at rest within minutes of its own time.
SETTINGS: Final = ApplicationSettings(
    heartbeat_s=60.0, offline_s=240.0, keepalive_s=10.0, retry_min_s=1.0, retry_max_s=8.0, resend_min_s=1.0, resend_max_s=8.0
)
IN_FLIGHT_MAX: Final = 60  # a channel that holds messages back forgets the oldest beyond this
HEAL_S: Final = 600.0
_CHUNK_S: Final = 30.0
_ROUNDS_MAX: Final = 3_000
_RECONNECT_S: Final = 0.5

T = TypeVar("T")


@dataclass(eq=False)
class Link:
    """One connection of one client. Messages of a closed one are gone."""

    world: World
    owner: Application
    open: bool = True
    session: object | None = None  # the Registrar's note
    token: str = ""  # the last that was used over it, as the gateway that holds the connection knows it

    def send(self, data: bytes) -> None:
        if self.open:
            self.world.server_said.append(decode_server(data))
            self.world.in_flight.append(Packet(self, data, to_server=False))
        self.world.trim_network()

    def close(self, code: str) -> None:
        """Never at once: the Registrar is in the midst of something."""
        self.world.closing.append(self)


@dataclass(eq=False)
class Packet:
    link: Link
    data: bytes
    to_server: bool


@dataclass
class World:
    seed: int = 0
    operations_max: int = 1_000
    service: bool = False  # the Registrar that gateways run, instead of the model's
    slow: bool = False  # its reads and writes take time
    now: float = 1_000.0
    flowing: bool = True  # what is sent arrives at once, in order; else it stays in flight until somebody delivers it
    lossy: bool = False  # of what flows, some is lost, some arrives twice, some late
    reachable: bool = True  # whether the pipeline reaches the Registrar; if not, it writes in its stead
    pipeline_runs: bool = True  # batches follow each other by themselves; else somebody moves them
    in_flight: list[Packet] = field(default_factory=list)
    closing: list[Link] = field(default_factory=list)  # connections that the Registrar wants closed
    published: dict[bytes, list[int]] = field(default_factory=dict)
    clients_said: list[ClientMessage] = field(default_factory=list)  # every message that was sent, for tests that look at them
    server_said: list[ServerMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        self.dice = chance.random
        self._fate: Callable[[], str] = lambda: chance.choice(("deliver", "deliver", "deliver", "repeat", "drop", "delay"))
        self._pause_s = lambda: 0.03 * chance.random() if self.slow else 0.0
        self.incarnation = 1  # of the Registrar's table
        nonces, clients = itertools.count(1), itertools.count(1)
        self.nonce = lambda: f"nonce-{next(nonces)}"
        self.mint: Callable[[], ClientId] = lambda: ClientId(f"client-{next(clients)}")
        self.client_config = Config(keepalive_s=SETTINGS.keepalive_s, retry_min_s=SETTINGS.retry_min_s, retry_max_s=SETTINGS.retry_max_s)
        self.keyring = Keyring({1: b"k" * 32})
        self.table = ModelTable()
        self.feed = ModelFeed()
        self.registrar_steps, self.pipeline_steps = Steps("registrar"), Steps("pipeline")
        self.pipeline = PipelineShell(self.table, self.feed, self.pipeline_steps)
        self.registrar: RegistrarShell | ServiceShell | None = None
        self.applications: list[Application] = []
        self.links: dict[Application, Link] = {}
        self.reconnects: dict[Application, float] = {}
        self.reconnecting = True
        self.start_registrar()

    @property
    def model(self) -> RegistrarShell:
        """The model's Registrar, for tests that look into it."""
        assert isinstance(self.registrar, RegistrarShell)
        return self.registrar

    # Processes.

    def start_registrar(self) -> None:
        clock = lambda: self.now  # noqa: E731
        if self.service:
            self.registrar = ServiceShell(
                self.table,
                self.feed,
                self.registrar_steps,
                clock,
                self.keyring,
                SETTINGS,
                self.mint,
                self.operations_max,
                self.incarnation,
                self._pause_s,
            )
        else:
            self.registrar = RegistrarShell(
                self.table,
                self.feed,
                self.registrar_steps,
                clock,
                self.keyring,
                SETTINGS,
                self.mint,
                self.operations_max,
                incarnation=self.incarnation,
            )

    def stop_registrar(self, links_break: bool) -> None:
        """It dies with all that it had in memory. `links_break`: the clients' connections were of the same process."""
        stopped, self.registrar = self.registrar, None
        if stopped is not None:
            stopped.stop()
        for application, link in list(self.links.items()):
            link.session = None
            if links_break:
                self.disconnect(application, noticed=True)

    def restart_registrar(self, links_break: bool) -> None:
        self.stop_registrar(links_break)
        self.start_registrar()
        self.announce()

    def lose_registrar_table(self) -> None:
        """All rows of clients are gone. The manifest gives the table a new incarnation, and connected sessions start anew."""
        self.incarnation += 1
        self.table.rows = {key: row for key, row in self.table.rows.items() if key.table != "registrar"}
        self.restart_registrar(links_break=False)

    def announce(self) -> None:
        """Gateways tell a new owner which clients are connected to them."""
        assert self.registrar is not None
        for link in list(self.links.values()):
            if link.token and self.registrar is not None:
                self.survive(self.registrar.announce, link, link.token)

    def add(self, prompt: bool = True, states_versions: bool = False) -> Application:
        application = Application(self, len(self.applications))
        application.prompt, application.states_versions = prompt, states_versions
        self.applications.append(application)
        application.start()
        self.connect(application)
        return application

    def restart(self, application: Application, keep_state: bool) -> None:
        self.disconnect(application, noticed=False)
        if keep_state:
            application.run_anew()
        else:
            application.install()
        application.start()
        self.connect(application)

    def publish(self, name: bytes, version: int, source: Application | None = None) -> None:
        """The backend's store has the version before Roskva hears of it; the source has it too, durably."""
        self.published.setdefault(name, []).append(version)
        device = ""
        if source is not None:
            device = source.device
            source.made.add((name, version))
        update = {"object": name.decode(), "version": version, "source": device}
        self.feed.topics[UPDATES].append(msgspec.json.encode(update))

    def publish_again(self, name: bytes, pick: int) -> None:
        """One of the object's old records once more."""
        records = [value for value in self.feed.topics[UPDATES] if msgspec.json.decode(value)["object"] == name.decode()]
        if records:
            self.feed.topics[UPDATES].append(records[pick % len(records)])

    def latest(self, name: bytes) -> int:
        return max(self.published[name])

    # The channel.

    def connect(self, application: Application) -> None:
        self.reconnects.pop(application, None)
        if application not in self.links and not application.stopped:
            self.links[application] = Link(self, application)
            application.call(application.core.connected)

    def disconnect(self, application: Application, noticed: bool) -> None:
        """The connection is gone. The Registrar is told (`noticed`), or finds out when the client has been silent for long."""
        link = self.links.pop(application, None)
        if link is None:
            return
        link.open = False
        self.in_flight = [packet for packet in self.in_flight if packet.link is not link]
        if noticed and self.registrar is not None:
            self.survive(self.registrar.closed, link)
        application.call(application.core.disconnected)
        self.reconnects[application] = self.now + _RECONNECT_S

    def to_server(self, application: Application, message: ClientMessage) -> None:
        link = self.links.get(application)
        if link is not None:
            link.token = message.token or link.token
            self.clients_said.append(message)
            self.in_flight.append(Packet(link, encode(message), to_server=True))
            self.trim_network()

    def trim_network(self) -> None:
        if not self.flowing:
            del self.in_flight[:-IN_FLIGHT_MAX]

    def deliver(self, packet: Packet) -> None:
        if not packet.link.open:
            return
        if not packet.to_server:
            message = decode_server(packet.data)
            packet.link.owner.carry_out(packet.link.owner.core.received(self.now, message))
        elif self.registrar is not None:
            self.survive(self.registrar.receive, packet.link, decode_client(packet.data, 1 << 20))

    def survive(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Do a process's work; if the process dies in it, start it again. A gateway that dies takes its connections along."""
        try:
            return work(*arguments)
        except Crash as crash:
            if str(crash) == "registrar":
                self.restart_registrar(links_break=True)
            else:
                self.pipeline.die()
        except Unavailable:
            pass  # background work is delayed
        return None

    # Time.

    def run(self, duration_s: float) -> None:
        end = self.now + duration_s
        for _ in range(_ROUNDS_MAX):
            self.pump()
            due = self._next_deadline()
            if due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self._fire()
        raise AssertionError(f"the world is not at rest after {_ROUNDS_MAX:,} rounds within {duration_s} s")

    def pump(self) -> None:
        """Everything that happens without time passing."""
        for _ in range(_ROUNDS_MAX):
            if self.closing:
                link = self.closing.pop()
                if link.open:
                    self.disconnect(link.owner, noticed=True)
            elif self.flowing and self.in_flight:
                self._carry(self.in_flight.pop(0))
            elif not (self.pipeline_runs and self._move_pipeline()):
                return
        raise AssertionError(f"the world is not at rest after {_ROUNDS_MAX:,} rounds without time passing")

    def _carry(self, packet: Packet) -> None:
        fate = self._fate() if self.lossy else "deliver"
        if fate == "delay":
            self.in_flight.append(packet)
        elif fate != "drop":
            self.deliver(packet)
        if fate == "repeat":
            self.in_flight.append(packet)

    def _move_pipeline(self) -> bool:
        pipeline = self.pipeline
        if not pipeline.tasks and (self.feed.lag() or pipeline.begun is not None):
            pipeline.begin()
        moved = [self.step(task) is not False for task in [*pipeline.orphans, *pipeline.tasks]]
        return any(moved)

    def step(self, task: Task) -> bool | None:
        """Move one task of the pipeline; False: it waits for its Registrar."""
        return self.survive(self.pipeline.step, task, self.registrar if self.reachable else None)

    def _next_deadline(self) -> float:
        deadlines = [deadline for application in self.links if (deadline := application.core.next_deadline()) is not None]
        if self.reconnecting:
            deadlines += self.reconnects.values()
        if self.registrar is not None:
            deadlines.append(self.registrar.next_deadline())
        if self.pipeline_runs and (until := self.pipeline.waiting_until()) is not None:
            deadlines.append(until)
        return min(deadlines, default=float("inf"))

    def _fire(self) -> None:
        if self.registrar is not None and self.registrar.next_deadline() <= self.now:
            self.survive(self.registrar.tick)
        for application in list(self.links):
            deadline = application.core.next_deadline()
            if deadline is not None and deadline <= self.now:
                application.call(application.core.tick)
        for application, due in list(self.reconnects.items()):
            if self.reconnecting and due <= self.now:
                self.connect(application)

    def close(self) -> None:
        """End of the world."""
        if self.registrar is not None:
            self.registrar.stop()
        self.registrar = None

    # The promise.

    def heal(self) -> None:
        """No more faults: all processes run, channels carry, applications deal with what they are shown."""
        self.registrar_steps.faults.clear()
        self.pipeline_steps.faults.clear()
        self.flowing = self.reachable = self.pipeline_runs = self.reconnecting = True
        self.lossy = self.slow = False
        if self.registrar is None:
            self.start_registrar()
            self.announce()
        for application in self.applications:
            application.prompt = True
            while application.queue:
                application.deal_with()
            if application.stopped:
                self.restart(application, keep_state=True)
        until = self.now + HEAL_S
        while (faults := self.broken_promises()) and self.now < until:
            self.run(_CHUNK_S)
            stopped = [application.device for application in self.applications if application.stopped]
            assert not stopped, f"{stopped} stopped though nothing failed any more"
        assert not faults, f"after {HEAL_S} s without faults: {faults}"

    def broken_promises(self) -> list[str]:
        """What is not as it must be once everything is at rest."""
        faults: list[str] = []
        if self.feed.lag() or self.pipeline.tasks:
            faults.append(f"the feed has {self.feed.lag()} uncommitted records")
        for application in self.applications:
            faults += self._broken_promises_to(application)
        return faults

    def _broken_promises_to(self, application: Application) -> list[str]:
        who = application.device
        faults = [
            f"{who} knows {name!r} at {application.store.get(name)}, and never learned of {missing}"
            for name in application.wishes
            if (missing := application.missing(name))
        ]
        if set(application.core.desired) != application.wishes:
            faults.append(f"{who} wishes {application.wishes}, its core {set(application.core.desired)}")
        if not application.core.in_sync(self.now):
            faults.append(f"{who} is not in sync")
        unconfirmed = [name for name in application.wishes if application.confirmed.get(name) is not True]
        if unconfirmed:
            faults.append(f"{who} was never told that it is registered for {unconfirmed}")
        session = self.session_of(application)
        if session is None:
            return [*faults, f"{who} has no session"]
        row = self.row_of(session.client)
        has = {bytes(key[key.index(b"\x00") + 5 :]) for key in row.registered()}
        if has != application.wishes:
            faults.append(f"{who} wishes {application.wishes}, its row has {has}")
        if waiting := [*map(str, row.pending()), *map(str, row.waiting())]:
            faults.append(f"in the row of {who} wait {waiting}")
        for name in {*self.published, *application.wishes}:
            key = object_key(APPLICATION, 0, name)
            if (session.client in copies_of(self.table, key)) != (name in application.wishes):
                faults.append(f"the Matcher's copy for {who} and {name!r} is wrong")
        return faults

    def session_of(self, application: Application) -> Session | None:
        link = self.links.get(application)
        return link.session if link is not None and isinstance(link.session, Session) else None

    def row_of(self, client: ClientId) -> ClientRow:
        """The row as it durably is."""
        key = client_row(client, PARTITIONS)
        return ClientRow(client, self.table.read([key])[key].values())

    def matcher_row(self, name: bytes) -> Row:
        from roskva.matcher.cells import object_row

        row = object_row(object_key(APPLICATION, 0, name), PARTITIONS)
        return self.table.read([row])[row]
