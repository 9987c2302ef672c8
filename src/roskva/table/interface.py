"""The table: rows of timestamped cells, in a fixed number of partitions. The contract that every engine keeps.

Engines: sqlite.py (embedded); Cassandra comes later, and nothing here promises more than it can give.
Contract tests: tests/table/contract.py. Calls block; they are safe from several threads and processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

TABLES: Final = ("registrar", "matcher", "scratch", "marks", "members")
TIMESTAMP_MAX: Final = 2**63 - 1
CELLS_PER_WRITE_MAX: Final = 1_000  # of one row in one write: what the weakest engine takes atomically


class Cell(NamedTuple):
    """One value of a row. The larger timestamp wins; at equal timestamps a delete wins, then the larger value bytes.

    Timestamps are versions, seqnos or counters from 0 to 2^63-1, never clocks. A deleted cell (value None) reads as absent,
    so what must be seen later is written as a value, not as a delete.
    """

    name: bytes
    timestamp: int
    value: bytes | None


class RowKey(NamedTuple):
    table: str  # one of TABLES
    partition: int
    key: bytes


class Mutation(NamedTuple):
    row: RowKey
    cells: Sequence[Cell]


Row = Mapping[bytes, Cell]  # live cells by name; a row without cells is an empty mapping


def wins(new: Cell, old: Cell) -> bool:
    """Whether `new` replaces `old`, cells of one name: the one order that engines, caches and models share."""
    if new.timestamp != old.timestamp:
        return new.timestamp > old.timestamp
    if old.value is None or new.value is None:
        return new.value is None and old.value is not None
    return new.value > old.value


def check_mutation(mutation: Mutation) -> None:
    """ValueError for what no engine takes: every engine refuses it before it writes anything."""
    if len(mutation.cells) > CELLS_PER_WRITE_MAX:
        raise ValueError(f"{len(mutation.cells):,} cells in one mutation; {CELLS_PER_WRITE_MAX:,} are allowed: split it")
    for cell in mutation.cells:
        if not 0 <= cell.timestamp <= TIMESTAMP_MAX:
            raise ValueError(f"the timestamp {cell.timestamp} of a cell is not from 0 to 2^63-1")


class Table(Protocol):
    def write(self, mutations: Sequence[Mutation]) -> None:
        """Make the mutations durable. The cells of one mutation land together or not at all; mutations land in any order.

        Returning means durable. PartitionUnavailable: any of them may or may not have landed; write all of them again. (It
        names one partition that failed; others may not have been tried.) ValueError: see `check_mutation`.
        """
        ...

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        """The live cells whose names begin with `prefix`, by row, in the order of their names, at most `limit` a row.

        With `after`, only names greater than it: a large row is read page by page. A read that begins after a write of that row
        returned sees it. Rows are not read at one instant, and neither are the pages of one.
        """
        ...

    def scan(self, table: str, partition: int, after: bytes = b"", limit: int = 1_000) -> Iterator[tuple[bytes, Row]]:
        """Rows of one partition with keys greater than `after`, in order of their keys, at most `limit` of them."""
        ...

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        """Forget whole rows, deletes included: a later write of any timestamp is seen again. For expired marks."""
        ...

    def forget(self, mutations: Sequence[Mutation]) -> None:
        """Remove exactly these cells, where they are still as given: of this timestamp and this value (None: a delete).

        What won over one of them meanwhile stays. Nothing is left behind that would win over a later write, whatever its timestamp:
        forget only what nothing older can follow. For sweeps. PartitionUnavailable: some may be gone; forget all of them again.
        """
        ...

    def incarnation(self, table: str, partition: int) -> int:
        """The incarnation, by the manifest, of the partition as this engine has it open. It grows when a partition is lost."""
        ...

    def complete(self, table: str, partition: int) -> bool:
        """False while a lost partition is being recovered: what is absent from it may have existed."""
        ...

    def close(self) -> None: ...
