"""What a state of the exhaustive search is made of, and what the Matcher's core makes of its row. Plain, frozen data.

Not here: what may happen to a state (`exhaustive_world`).
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from roskva.matcher.cells import REG, object_row
from roskva.matcher.core import Batch, collapse, match
from roskva.model import ClientId, Propagation, Registration, Update
from roskva.simulation.exhaustive_client import OBJECT
from roskva.table.interface import Cell, Row, RowKey, wins

T = TypeVar("T")

# Kinds of crashes. Those of one client stand in its part; those of everybody in what is shared.
CRASHES_OF_ONE: Final = {
    "client": "a client dies, its state was kept, and the Registrar is told that its connection is gone",
    "half-open": "the same, and the Registrar is not told",
    "blind": "the Registrar does not answer a task, which writes in its stead",
}
CRASHES_OF_ALL: Final = {
    "registrar": "the Registrar dies with its memory and its connections, between any two durable steps",
    "announced": "the Registrar dies with its memory; connections live on in other gateways, which announce their clients",
    "driver": "the pipeline's driver dies with its tasks, and repeats the batch",
    "orphans": "the same, and its tasks live on beside their repeats",
}
CRASH_KINDS: Final = CRASHES_OF_ONE | CRASHES_OF_ALL
# Other faults, all of one client.
LOSE_TO_CLIENT: Final = "lose to client"
LOSE_TO_SERVER: Final = "lose to server"
REPEAT_TO_CLIENT: Final = "repeat to client"
REPEAT_TO_SERVER: Final = "repeat to server"
DELAY: Final = "delay"  # its clock moves on although something else could happen
UNREGISTER: Final = "unregister"  # its application unregisters, and registers again at any moment after
PARTITIONS: Final = 1
FEED_INCARNATION: Final = 1


@dataclass(frozen=True, slots=True)
class Size:
    clients: int = 2
    versions: int = 3
    crashes: int = 1
    losses: int = 1
    repeats: int = 0
    delays: int = 0  # how often a clock may move although something else could happen
    unregistrations: int = 0
    kinds: frozenset[str] = frozenset(("client", "registrar", "driver"))  # of crashes: of CRASH_KINDS
    ordered: bool = False  # whether messages of a connection arrive in the order in which they were sent, as over a WebSocket
    states_versions: bool = False  # whether applications name the version they hold when they register
    reduced: bool = True  # whether steps that commute are taken in one order only (`exhaustive_reduction`)

    def text(self) -> str:
        counted = {
            "crashes": self.crashes,
            "losses": self.losses,
            "repeats": self.repeats,
            "delays": self.delays,
            "unregistrations": self.unregistrations,
        }
        more = "".join(f" x {count} {name}" for name, count in counted.items() if count or name in ("crashes", "losses"))
        kinds = f" ({', '.join(sorted(self.kinds))})" if self.crashes else ""
        notes = [
            "messages in order" if self.ordered else "messages in any order",
            *(["versions stated"] if self.states_versions else []),
            *([] if self.reduced else ["not reduced"]),
        ]
        return f"{self.clients} clients x 1 object x {self.versions} versions{more}{kinds}, {', '.join(notes)}"


class Task(NamedTuple):
    name: str
    step: int  # of write and read; beyond them it tells
    first: int  # its updates: versions above this one
    last: int

    @property
    def orphan(self) -> bool:
        """Its driver died."""
        return self.name.endswith("'")

    @property
    def of_registrations(self) -> bool:
        return self.name.startswith("registrations")


class Shared(NamedTuple):
    published: int = 0
    committed: int = 0
    begun: int = -1  # up to which version the batch in progress takes updates; -1: there is none
    tasks: tuple[Task, ...] = ()
    version: Cell | None = None  # of the Matcher's row
    faults: tuple[str, ...] = ()  # those of everybody that may still happen


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
    now: float = 0.0  # the clock of this client and of its desk
    timeouts: int = 0  # how often it had to move
    faults: tuple[str, ...] = ()  # those of this client that may still happen


class Actor(Enum):
    """Whose input it is. What a client does commutes with what its desk does, unless it is `BOTH`."""

    CLIENT = "client"
    DESK = "desk"
    BOTH = "both"


class Move(NamedTuple):
    """One thing that may happen to a part, and to nothing else."""

    what: tuple[object, ...]
    part: int
    actor: Actor
    free: bool = True  # not a fault
    fetches: bool = False  # the application fetches: what is published matters
    appends: bool = False  # the desk appends to the feed: whether a batch has begun matters


class Prospects(NamedTuple):
    """What may happen to a part by moves of its own."""

    fetches: bool
    appends: bool


class Step(NamedTuple):
    """One thing that may happen to a state. `part`: whose; -1: of nobody in particular."""

    what: tuple[object, ...]
    part: int
    shared: Shared
    parts: tuple[int, ...]  # not yet in order


class Following(NamedTuple):
    """All that may follow a state."""

    steps: list[Step]
    at_rest: bool  # without a fault or a deadline nothing happens any more
    waits: bool  # at rest, and a promise does not hold yet
    broken: str  # what is wrong with it, if nothing mends that any more


class ClientTurn(NamedTuple):
    """What an input made of a client."""

    client: int
    sent: Packets
    hung_up: bool
    fetched: bool


class DeskTurn(NamedTuple):
    """What an input made of a desk."""

    desk: int
    sent: Packets
    events: tuple[Registration, ...]
    steps: int  # durable ones
    answer: int | None
    work: tuple[Any, ...]


class Numbered(Generic[T]):
    """Things by number, in the order in which they were met. Nobody changes them: who would takes a copy."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._numbers: dict[Hashable, int] = {}
        self._pickled: dict[int, bytes] = {}

    def number(self, thing: T, form: Hashable) -> int:
        known = self._numbers.get(form)
        if known is None:
            known = self._numbers[form] = len(self.things)
            self.things.append(thing)
        return known

    def copy(self, number: int) -> T:
        """Pickled once: that takes a quarter of the time of copy.deepcopy."""
        pickled = self._pickled.get(number)
        if pickled is None:
            pickled = self._pickled[number] = pickle.dumps(self.things[number], pickle.HIGHEST_PROTOCOL)
        copied: T = pickle.loads(pickled)
        return copied

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


def spent(faults: tuple[str, ...], fault: str) -> tuple[str, ...]:
    place = faults.index(fault)
    return faults[:place] + faults[place + 1 :]


def global_id(place: int, client: ClientId) -> ClientId:
    """Each part calls its clients alike; in the Matcher's row they differ."""
    return ClientId(f"{place}/{client}")


def local_cell(cell: Cell) -> tuple[int | None, Cell]:
    """Whose copy a cell of the Matcher's row is, and how its part calls it. None: it is the version."""
    if not cell.name.startswith(REG):
        return None, cell
    place, _, client = cell.name[len(REG) :].decode().partition("/")
    return int(place), cell._replace(name=REG + client.encode())
