"""The model's table and feed: what the contracts of `table` and `feed` promise, and nothing more, in dictionaries and lists.

Both may be told to fail: a write then raises, and has landed or not, as a real engine's may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from roskva.errors import PartitionUnavailable
from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.model import ClientId
from roskva.table.interface import Cell, Mutation, Row, RowKey, check_mutation, wins


class Fault(Enum):
    NONE = "none"
    LOST = "the write raised and did not land"
    LANDED = "the write raised and landed"


class Crash(Exception):
    """The process that made this call died in it."""


class ModelTable:
    """Rows of cells under the table's one rule, `wins`. Deletes are kept, as engines keep them, and read as absent."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[bytes, Cell]] = {}
        self.faults: deque[Fault] = deque()  # of the writes to come
        self.log: list[Mutation] = []  # every write that landed, for tests that count or order them
        self.marks: list[ClientId] = []  # never cleared by readers: each keeps a cursor

    def write(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            check_mutation(mutation)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is not Fault.LOST:
            for mutation in mutations:
                self._land(mutation)
        if fault is not Fault.NONE:
            raise PartitionUnavailable("The model's table failed as it was told to.", "model")

    def mark(self, clients: Iterable[ClientId]) -> None:
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is not Fault.LOST:
            self.marks += clients
        if fault is not Fault.NONE:
            raise PartitionUnavailable("The model's marks failed as they were told to.", "model")

    def _land(self, mutation: Mutation) -> None:
        self.log.append(mutation)
        row = self.rows.setdefault(mutation.row, {})
        for cell in mutation.cells:
            old = row.get(cell.name)
            if old is None or wins(cell, old):
                row[cell.name] = cell

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"") -> dict[RowKey, Row]:
        return {
            key: {
                name: cell
                for name, cell in sorted(self.rows.get(key, {}).items())
                if cell.value is not None and name.startswith(prefix)
            }
            for key in rows
        }


class ModelFeed:
    """Two logs, and how far the pipeline has committed each. Offsets are positions in the lists and are never reused."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {UPDATES: [], REGISTRATIONS: []}
        self.committed: dict[str, int] = {UPDATES: 0, REGISTRATIONS: 0}
        self.refusals = 0  # appends to come that raise and do not land

    def append(self, topic: str, values: Iterable[bytes]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise PartitionUnavailable("The model's feed failed as it was told to.", "model")
        self.topics[topic] += values

    def ends(self) -> dict[str, int]:
        return {topic: len(values) for topic, values in self.topics.items()}

    def lag(self) -> int:
        return sum(len(values) - self.committed[topic] for topic, values in self.topics.items())
