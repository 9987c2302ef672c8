"""The model's table and feed: what the contracts of `table` and `feed` promise, and nothing more, in dictionaries and lists.

Both may be told to fail: a write then raises, and has landed or not, as a real engine's may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

from roskva.errors import PartitionUnavailable
from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.model import ClientId
from roskva.table.interface import Cell, Mutation, Row, RowKey, check_mutation, wins
from roskva.table.marks import head_in, head_row, marks_for

PARTITIONS: Final = 2


class Fault(Enum):
    """What happens to one durable step of a process: a write, a mark or an append."""

    NONE = "it lands"
    LOST = "it raises and has not landed"
    LANDED = "it raises and has landed"
    DIED_BEFORE = "the process dies before it"
    DIED_AFTER = "the process dies when it has landed"


class Crash(Exception):
    """The process that made this call died in it."""


class Steps:
    """The durable steps of one process, each of which may be told to fail."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.faults: deque[Fault] = deque()  # of the steps to come

    def take(self, land: Callable[[], object]) -> None:
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault in (Fault.NONE, Fault.LANDED, Fault.DIED_AFTER):
            land()
        if fault in (Fault.DIED_BEFORE, Fault.DIED_AFTER):
            raise Crash(self.process)
        if fault is not Fault.NONE:
            raise PartitionUnavailable("The model failed as it was told to.", "model")


class ModelTable:
    """Rows of cells under the table's one rule, `wins`. Deletes are kept, as engines keep them, and read as absent."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[bytes, Cell]] = {}
        self.log: list[Mutation] = []  # every write that landed, for tests that count or order them
        self.trace: list[tuple[str, RowKey]] = []  # the same with reads: ("read" or "write", row)
        self.marks: list[ClientId] = []  # never cleared by readers: each keeps a cursor

    def write(self, mutations: Sequence[Mutation], steps: Steps) -> None:
        for mutation in mutations:
            check_mutation(mutation)
        steps.take(lambda: self._land(mutations))

    def mark(self, clients: Iterable[ClientId], steps: Steps) -> None:
        steps.take(lambda: self._land_marks(list(clients)))

    def _land_marks(self, clients: list[ClientId]) -> None:
        """As a list for the model's Registrar, and as cells for the service's."""
        unique = len(self.marks).to_bytes(8, "big")
        self.marks += clients
        heads = {partition: head_in(self.rows.get(head_row(partition), {})) for partition in range(PARTITIONS)}
        for mutation in marks_for(clients, heads, PARTITIONS, unique):
            self.rows.setdefault(mutation.row, {}).update({cell.name: cell for cell in mutation.cells})

    def _land(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            self.log.append(mutation)
            self.trace.append(("write", mutation.row))
            row = self.rows.setdefault(mutation.row, {})
            for cell in mutation.cells:
                old = row.get(cell.name)
                if old is None or wins(cell, old):
                    row[cell.name] = cell

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"") -> dict[RowKey, Row]:
        self.trace += (("read", key) for key in rows)
        return {
            key: {name: cell for name, cell in sorted(self.rows.get(key, {}).items()) if cell.value is not None and name.startswith(prefix)}
            for key in rows
        }


class ModelFeed:
    """Two logs, and how far the pipeline has committed each. Offsets are positions in the lists and are never reused."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {UPDATES: [], REGISTRATIONS: []}
        self.committed: dict[str, int] = {UPDATES: 0, REGISTRATIONS: 0}

    def append(self, topic: str, values: Iterable[bytes], steps: Steps) -> None:
        steps.take(lambda: self.topics[topic].extend(values))

    def ends(self) -> dict[str, int]:
        return {topic: len(values) for topic, values in self.topics.items()}

    def lag(self) -> int:
        return sum(len(values) - self.committed[topic] for topic, values in self.topics.items())
