"""Where a transcript is played: the world of tests/properties, in which every step is said aloud and nothing happens by chance.

Client cores, the Registrar's shell, table, feed, channels and time are that world's. What differs: every message, write and callback
becomes a line; the Matcher's tasks move when the scenario says so (`matching`); a process that dies stays dead, and a connection that
broke stays broken, until the scenario says otherwise. `run(0)` is everything that happens without time passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from roskva.client.actions import Action, RegistrationFailed, Send
from roskva.errors import PartitionUnavailable, Unavailable
from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.model import ClientId, name_of
from roskva.protocol.messages import Ack, ClientMessage, Status, decode_client, decode_server
from roskva.registrar import core
from roskva.registrar.cells import client_row
from roskva.registrar.events import decode_registration
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import Session
from roskva.table.interface import Mutation, Row, RowKey
from tests.properties.application import Application
from tests.properties.pipeline import read_update
from tests.properties.registrar import RegistrarShell
from tests.properties.store import PARTITIONS, Crash, ModelFeed, ModelTable, Steps
from tests.properties.world import SETTINGS, Link, Packet, World
from tests.protocol.replay import _told
from tests.transcripts.matching import Matching
from tests.transcripts.words import Speech, Summaries, cell_text, registration_text, row_name, some, update_text

T = TypeVar("T")
DICE: Final = 0.5  # every pause with jitter is the middle one


class SpokenTable(ModelTable):
    """Says who writes what; and some of its rows may be unavailable."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self.unavailable: set[RowKey] = set()

    def write(self, mutations: Sequence[Mutation], steps: Steps) -> None:
        self._refuse(mutation.row for mutation in mutations)
        landed = len(self.log)
        try:
            super().write(mutations, steps)
        finally:
            for mutation in self.log[landed:]:
                cells = some(cell_text(mutation.row, cell) for cell in mutation.cells)
                self._say(f"{steps.process} writes {row_name(mutation.row)}: {cells}")

    def mark(self, clients: Iterable[ClientId], steps: Steps) -> None:
        marked = len(self.marks)
        try:
            super().mark(clients, steps)
        finally:
            if self.marks[marked:]:
                self._say(f"{steps.process} marks {', '.join(self.marks[marked:])}")

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"") -> dict[RowKey, Row]:
        self._refuse(rows)
        return super().read(rows, prefix)

    def _refuse(self, rows: Iterable[RowKey]) -> None:
        for row in rows:
            if row in self.unavailable:
                raise PartitionUnavailable("The row cannot be written or read now.", "model")


class SpokenFeed(ModelFeed):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def append(self, topic: str, values: Iterable[bytes], steps: Steps) -> None:
        before = len(self.topics[topic])
        try:
            super().append(topic, values, steps)
        finally:
            self.spoken(topic, before)

    def spoken(self, topic: str, start: int) -> None:
        values = self.topics[topic][start:]
        if topic == REGISTRATIONS and values:
            self._say(f"feed: {some(registration_text(decode_registration(value)) for value in values)}")
        elif values:
            self._say(f"feed: {some(update_text(read_update(value)) for value in values)}")


class SpokenLink(Link):
    world: Stage

    def send(self, data: bytes) -> None:
        before = len(self.world.in_flight)
        super().send(data)
        lost = "" if len(self.world.in_flight) > before else " (lost: the connection is gone)"
        self.world.learn_sets()
        self.world.say(f"registrar -> {name_of_player(self.owner)}: {self.world.speech.of_server(decode_server(data))}{lost}")


class Registrar(RegistrarShell):
    """Where the service has moved ahead of the model: an operation on a row without `created` is followed by a fresh look at it,
    and what another process settled is confirmed as soon as the row is read."""

    confirmed: Sequence[Status] = ()

    def _operate(self, session: Session, message: ClientMessage) -> None:
        if self.row(session.client).created is None:
            self._reread(session)
        else:
            super()._operate(session, message)

    def _drop_settled(self, row: ClientRow) -> None:
        before = [key for client, key in self.appended if client == row.client]
        super()._drop_settled(row)
        self.confirmed = [core.confirmation(row, key) for key in before if (row.client, key) not in self.appended]

    def _take_in(self, session: Session, row: ClientRow) -> None:
        super()._take_in(session, row)
        confirmed, self.confirmed = self.confirmed, []
        if confirmed:
            self._speak(session, status=confirmed)


class Player(Application):
    """An application with a name; its device is called the same."""

    world: Stage

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        super().__init__(stage, len(stage.applications))

    def install(self) -> None:
        super().install()
        self.device = self.name.rstrip("'")  # a clone, written phone', has the state and the device of its model
        self.run_anew()

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                self.world.say(f"{self.name} app: {_told(action).replace(': ', ' ', 1)}")
            super().carry_out([action])
            if isinstance(action, RegistrationFailed) and not action.transient:
                self.wishes.discard(action.name)


def name_of_player(application: Application) -> str:
    """A stage has no other applications than players."""
    assert isinstance(application, Player)
    return application.name


class Stage(World):
    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.quiet = False
        super().__post_init__()
        self.dice = lambda: DICE
        counted = iter(range(1, 1_000))
        self.mint = lambda: ClientId(f"id-{next(counted)}")
        self.reconnecting = False
        self.table: SpokenTable = SpokenTable(self.say)
        self.feed: SpokenFeed = SpokenFeed(self.say)
        self.registrar_steps, self.pipeline_steps = Steps("registrar"), Steps("matcher")
        self.pipeline: Any = Matching(self.table, self.feed, self.pipeline_steps, self.say)
        self.summaries = Summaries()
        self.speech = Speech(self.keyring, self.summaries)
        self.players: dict[str, Player] = {}
        self.copies: dict[RowKey, dict[bytes, Any]] = {}  # of rows, for a scenario that restores one
        self.start_registrar()

    # What is said.

    def say(self, line: str) -> None:
        if not self.quiet:
            self.lines.append(line)

    def learn_sets(self) -> None:
        for player in self.applications:
            self.summaries.learn(player.core.desired)
        for key in self.table.rows:
            if key.table == "registrar":
                cells = self.table.rows[key].values()
                self.summaries.learn(name_of(one) for one in ClientRow(ClientId(key.key.decode()), cells).registered())

    # The world's own doings, spoken.

    def start_registrar(self) -> None:
        self.registrar = Registrar(
            self.table,
            self.feed,
            self.registrar_steps,
            lambda: self.now,
            self.keyring,
            SETTINGS,
            self.mint,
            self.operations_max,
            incarnation=self.incarnation,
        )

    def connect(self, application: Application) -> None:
        self.reconnects.pop(application, None)
        if application not in self.links and not application.stopped:
            self.links[application] = SpokenLink(self, application)
            application.call(application.core.connected)

    def to_server(self, application: Application, message: ClientMessage) -> None:
        self.learn_sets()
        lost = "" if application in self.links else " (lost: no connection)"
        self.say(f"{name_of_player(application)} -> registrar: {self.speech.of_client(message)}{lost}")
        super().to_server(application, message)

    def deliver(self, packet: Packet) -> None:
        if packet.to_server and self.registrar is None and packet.link.open:
            self.say(f"nobody hears {name_of_player(packet.link.owner)}")
        super().deliver(packet)

    def survive(self, work: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return work(*arguments)
        except Crash as crash:
            self.say(f"the {crash} dies")
            if str(crash) == "registrar":
                self.stop_registrar(links_break=True)
        except Unavailable as error:
            self.say(f"delayed: {error.code}")
        return None

    def _move_pipeline(self) -> bool:
        return bool(self.survive(self.pipeline.move, self.registrar))

    def publish(self, name: bytes, version: int, source: Application | None = None) -> None:
        before = len(self.feed.topics[UPDATES])
        super().publish(name, version, source)
        self.feed.spoken(UPDATES, before)

    # What only a scenario does.

    def tell(self, task: Any) -> None:
        whom = self.registrar if self.reachable else None
        self.survive(self.pipeline.tell, task, whom)

    def match_everything(self) -> None:
        """Batches, one after the other, until the feed is empty or somebody must be waited for."""
        for number in range(1, 100):
            if not self.pipeline.open_records() or self.pipeline.tasks:
                return
            task = self.pipeline.take("batch" if number == 1 else f"batch {number}", None, None)
            if not self.pipeline.write(task) or not self.pipeline.read(task):
                return
            self.pipeline.match(task)
            self.tell(task)
            self.run(0)
        raise AssertionError("the Matcher never comes to an end")

    def forge(self, player: Player, ack: Ack) -> None:
        """A message that no core would send, from a client's connection."""
        link = self.links[player]
        message = ClientMessage(token=link.token, summary=player.core.desired.summary(), acks=[ack])
        self.to_server(player, message)

    def client_key(self, client: str) -> RowKey:
        return client_row(ClientId(client), PARTITIONS)

    def packet_text(self, packet: Packet) -> str:
        name = name_of_player(packet.link.owner)
        if packet.to_server:
            return f"{name} -> registrar: {self.speech.of_client(decode_client(packet.data, 1 << 20))}"
        return f"registrar -> {name}: {self.speech.of_server(decode_server(packet.data))}"
