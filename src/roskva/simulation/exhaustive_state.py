"""What a state of the exhaustive search is made of, and what the Matcher's core makes of its row. Plain, frozen data.

Not here: what may happen to a state (`exhaustive_world`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from roskva.matcher.cells import REG, object_row
from roskva.matcher.core import Batch, collapse, match
from roskva.model import ClientId, Propagation, Registration, Update
from roskva.simulation.exhaustive_client import OBJECT
from roskva.table.interface import Cell, Row, RowKey, wins

T = TypeVar("T")

FREE: Final = 0
LOSS: Final = 1
CRASH: Final = 2
REGISTRAR_CRASH: Final = 3  # a crash that takes the memory for the other clients along
CRASH_KINDS: Final = {
    "client": "a client dies, its state was kept, and the Registrar is told that its connection is gone",
    "half-open": "the same, and the Registrar is not told",
    "registrar": "the Registrar dies with its memory and its connections, between any two durable steps",
    "announced": "the Registrar dies with its memory; connections live on in other gateways, which announce their clients",
    "driver": "the pipeline's driver dies with its tasks, and repeats the batch",
    "orphans": "the same, and its tasks live on beside their repeats",
    "blind": "the Registrar does not answer a task, which writes in its stead",
}
PARTITIONS: Final = 1
FEED_INCARNATION: Final = 1


@dataclass(frozen=True, slots=True)
class Size:
    clients: int = 2
    versions: int = 3
    crashes: int = 1
    losses: int = 1
    delays: int = 0  # how often time may pass although something else could happen
    kinds: frozenset[str] = frozenset(("client", "registrar", "driver"))  # of crashes: of CRASH_KINDS
    ordered: bool = False  # whether messages of a connection arrive in the order in which they were sent, as over a WebSocket
    states_versions: bool = False  # whether applications name the version they hold when they register


class Task(NamedTuple):
    name: str
    step: int  # of write and read; beyond them it tells
    first: int  # its updates: versions above this one
    last: int


class Shared(NamedTuple):
    published: int = 0
    committed: int = 0
    begun: int = -1  # up to which version the batch in progress takes updates; -1: there is none
    tasks: tuple[Task, ...] = ()
    version: Cell | None = None  # of the Matcher's row
    crashes: int = 0  # left
    losses: int = 0
    delays: int = 0
    now: float = 0.0
    timeouts: int = 0


class Tell(NamedTuple):
    task: str
    told: Propagation
    asked: bool  # the Registrar was, and has not answered


Packets = tuple[tuple[int, bytes], ...]  # (link, message)
Records = tuple[tuple[Registration, ...], ...]  # of the feed, client by client


class Part(NamedTuple):
    client: int
    desk: int
    copies: tuple[Cell, ...] = ()  # of the Matcher's row
    to_server: Packets = ()
    to_client: Packets = ()
    queued: tuple[Registration, ...] = ()  # in the feed, of no batch yet
    taken: tuple[Registration, ...] = ()  # of the batch in progress
    orphaned: tuple[Registration, ...] = ()  # of a batch whose driver died, while a worker went on
    tells: tuple[Tell, ...] = ()


class Move(NamedTuple):
    """One thing that may happen to a part."""

    what: tuple[object, ...]
    part: int
    cost: int


class Step(NamedTuple):
    """One thing that may happen to a state. `part`: whose; -1: of nobody in particular."""

    what: tuple[object, ...]
    part: int
    shared: Shared
    parts: tuple[int, ...]  # not yet in order


class ClientTurn(NamedTuple):
    """What an input made of a client."""

    client: int
    sent: Packets
    hung_up: bool


class DeskTurn(NamedTuple):
    """What an input made of a desk."""

    desk: int
    sent: Packets
    events: tuple[Registration, ...]
    steps: int  # durable ones
    answer: int | None
    work: tuple[Any, ...]


class Numbered(Generic[T]):
    """Things by number, in the order in which they were met."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, thing: T, form: Hashable) -> int:
        known = self._numbers.get(form)
        if known is None:
            known = self._numbers[form] = len(self.things)
            self.things.append(thing)
        return known

    def __len__(self) -> int:
        return len(self.things)


def batch_of(task: Task, records: Records) -> Batch:
    updates = [Update(OBJECT, version, "") for version in range(task.first + 1, task.last + 1)]
    registrations = [one._replace(client=global_id(place, one.client)) for place, some in enumerate(records) for one in some]
    return collapse(updates, registrations)


def matched(task: Task, records: Records, version: Cell | None, copies: tuple[tuple[Cell, ...], ...]) -> list[list[Tell]]:
    """What the Matcher's core makes of the row as it is now: whom to tell what, client by client."""
    row: dict[bytes, Cell] = {} if version is None else {version.name: version}
    for place, some in enumerate(copies):
        for cell in some:
            name = REG + global_id(place, ClientId(cell.name[len(REG) :].decode())).encode()
            row[name] = cell._replace(name=name)
    rows: dict[RowKey, Row] = {object_row(OBJECT, PARTITIONS): row}
    tells: list[list[Tell]] = [[] for _ in copies]
    for told in match(batch_of(task, records), rows, PARTITIONS, lambda key: FEED_INCARNATION):
        whose, _, client = told.client.partition("/")
        tells[int(whose)].append(Tell(task.name, told._replace(client=ClientId(client)), asked=False))
    return tells


def with_copy(part: Part, cell: Cell) -> Part:
    old = next((one for one in part.copies if one.name == cell.name), None)
    if old is not None and not wins(cell, old):
        return part
    return part._replace(copies=tuple(sorted((*(one for one in part.copies if one is not old), cell))))


def without(packets: Packets, packet: tuple[int, bytes]) -> Packets:
    place = packets.index(packet)
    return packets[:place] + packets[place + 1 :]


def global_id(place: int, client: ClientId) -> ClientId:
    """Each part calls its clients alike; in the Matcher's row they differ."""
    return ClientId(f"{place}/{client}")


def local_cell(cell: Cell) -> tuple[int | None, Cell]:
    """Whose copy a cell of the Matcher's row is, and how its part calls it. None: it is the version."""
    if not cell.name.startswith(REG):
        return None, cell
    place, _, client = cell.name[len(REG) :].decode().partition("/")
    return int(place), cell._replace(name=REG + client.encode())
