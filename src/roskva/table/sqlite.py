"""The embedded table: one SQLite file per table and partition. Keeps the contract of interface.py.

Cells are rows of one SQL table, and the order in which cells win is one WHERE clause, equal to `interface.wins`. Deleted cells
stay as cells without a value, so that an older write which arrives later stays dead. Rows are written by statements of many
rows at once: every step of a statement hands the interpreter's lock over, and beside a busy event loop that is what costs.
Must not import asyncio or Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from roskva.table.files import CHECK_S, PartitionFile
from roskva.table.interface import TABLES, Cell, Mutation, Row, RowKey, check_mutation
from roskva.table.manifest import COMPLETE, Address, Manifest

TRANSACTION_CELLS_MAX: Final = 2_000  # some 40 ms: others wait at most 200 ms for their turn
_SCAN_PAGE_CELLS: Final = 4_096

_TABLES: Final = """
CREATE TABLE cells (
  row BLOB NOT NULL, name BLOB NOT NULL, timestamp INTEGER NOT NULL, value BLOB, PRIMARY KEY (row, name)
) WITHOUT ROWID;
"""
_WINS: Final = """
ON CONFLICT (row, name) DO UPDATE SET timestamp = excluded.timestamp, value = excluded.value
WHERE excluded.timestamp > timestamp OR (
  excluded.timestamp = timestamp AND value IS NOT NULL AND (excluded.value IS NULL OR excluded.value > value))
"""
# Few statements, each prepared once, whatever the size of a batch.
_ROWS_PER_STATEMENT: Final = (256, 32, 4, 1)
_UPSERTS: Final = {n: f"INSERT INTO cells VALUES {', '.join(['(?, ?, ?, ?)'] * n)} {_WINS}" for n in _ROWS_PER_STATEMENT}
_ALL_NAMES: Final = ""
_NAMES_FROM: Final = " AND name >= ?"
_NAMES_BETWEEN: Final = " AND name >= ? AND name < ?"
_LIMITED_TOGETHER_CELLS: Final = 4_096  # a limited read of many rows reads so many cells at once before it asks row by row
_READS: Final = {
    (n, names): "SELECT row, name, timestamp, value FROM cells"
    f" WHERE row IN ({', '.join('?' * n)}){names} AND value IS NOT NULL ORDER BY row, name"
    for n in _ROWS_PER_STATEMENT
    for names in (_ALL_NAMES, _NAMES_FROM, _NAMES_BETWEEN)
}


class SqliteTable:
    """See interface.Table. Opens files lazily, per process. A lost partition is recorded, and begun anew on the next call."""

    def __init__(self, data_dir: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.partitions = manifest.partitions
        directory = data_dir / "table"
        self._files = {
            (table, partition): PartitionFile(manifest, Address("table", table, partition), directory, _TABLES)
            for table in TABLES
            for partition in range(manifest.partitions)
        }
        manifest.ensure("table", TABLES)

    def write(self, mutations: Sequence[Mutation]) -> None:
        by_partition: dict[tuple[str, int], list[Mutation]] = {}
        for mutation in mutations:
            check_mutation(mutation)
            by_partition.setdefault(mutation.row[:2], []).append(mutation)
        files = [(self._file(*place), batch) for place, batch in by_partition.items()]
        for file, batch in files:
            for parameters in _transactions(batch):
                file.write(partial(_upsert, parameters))

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        whole = limit is None and not after
        if len(rows) == 1 and whole:  # the usual case: half the cost
            cells: dict[bytes, Cell] = {}
            self._file(*rows[0][:2]).read(partial(_read_rows, {rows[0].key: cells}, prefix))
            return {rows[0]: cells}
        found: dict[RowKey, dict[bytes, Cell]] = {row: {} for row in rows}
        by_partition: dict[tuple[str, int], dict[bytes, dict[bytes, Cell]]] = {}
        for row, cells in found.items():
            by_partition.setdefault(row[:2], {})[row.key] = cells
        for place, wanted in by_partition.items():
            file = self._file(*place)
            if whole:
                file.read(partial(_read_rows, wanted, prefix))
            else:
                file.read(partial(_read_limited, wanted, prefix, limit, after))
        return dict(found)

    def scan(self, table: str, partition: int, after: bytes = b"", limit: int = 1_000) -> Iterator[tuple[bytes, Row]]:
        file = self._file(table, partition)
        remaining = limit
        while remaining > 0:
            page = file.read(partial(_scan_page, after))
            if not page:
                return
            after = next(reversed(page))
            yield from list(page.items())[:remaining]
            remaining -= len(page)

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        by_partition: dict[tuple[str, int], list[tuple[bytes]]] = {}
        for row in rows:
            by_partition.setdefault(row[:2], []).append((row.key,))
        for place, keys in by_partition.items():
            self._file(*place).write(partial(_delete, keys))

    def forget(self, mutations: Sequence[Mutation]) -> None:
        by_partition: dict[tuple[str, int], list[tuple[bytes, bytes, int, bytes | None]]] = {}
        for mutation in mutations:
            by_partition.setdefault(mutation.row[:2], []).extend((mutation.row.key, *cell) for cell in mutation.cells)
        for place, cells in by_partition.items():
            for start in range(0, len(cells), TRANSACTION_CELLS_MAX):
                self._file(*place).write(partial(_forget, cells[start : start + TRANSACTION_CELLS_MAX]))

    def incarnation(self, table: str, partition: int) -> int:
        """Also looks whether the files are still there: a poll of this notices a loss that no call ran into."""
        return self._file(table, partition).incarnation()

    def complete(self, table: str, partition: int) -> bool:
        incarnation = self._file(table, partition).incarnation(age_s=CHECK_S)
        record = self.manifest.record("table", table, partition)
        return record.state == COMPLETE and record.incarnation == incarnation

    def path(self, table: str, partition: int) -> Path:
        """The file of the present incarnation, for tests and `doctor`."""
        return self._file(table, partition).path()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _file(self, table: str, partition: int) -> PartitionFile:
        try:
            return self._files[table, partition]
        except KeyError:
            raise ValueError(f"there is no partition {partition} of a table {table!r} here") from None


def _transactions(mutations: Iterable[Mutation]) -> Iterator[list[object]]:
    """The parameters of each transaction: whole mutations, at most TRANSACTION_CELLS_MAX cells, four values a cell."""
    parameters: list[object] = []
    for (_, _, key), cells in mutations:
        if len(parameters) + 4 * len(cells) > 4 * TRANSACTION_CELLS_MAX:
            yield parameters
            parameters = []
        for name, timestamp, value in cells:
            parameters += (key, name, timestamp, value)
    if parameters:
        yield parameters


def _upsert(parameters: list[object], connection: sqlite3.Connection) -> None:
    start = 0
    for count in _ROWS_PER_STATEMENT:
        while len(parameters) - start >= 4 * count:
            connection.execute(_UPSERTS[count], parameters[start : start + 4 * count])
            start += 4 * count


def _delete(keys: list[tuple[bytes]], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM cells WHERE row = ?", keys)


def _forget(cells: list[tuple[bytes, bytes, int, bytes | None]], connection: sqlite3.Connection) -> None:
    connection.executemany("DELETE FROM cells WHERE row = ? AND name = ? AND timestamp = ? AND value IS ?", cells)


def _prefix_clause(prefix: bytes) -> tuple[str, list[bytes]]:
    """Names from the prefix up to what follows all names that begin with it."""
    if not prefix:
        return _ALL_NAMES, []
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return _NAMES_FROM, [prefix]
    return _NAMES_BETWEEN, [prefix, stem[:-1] + bytes((stem[-1] + 1,))]


def _read_rows(wanted: dict[bytes, dict[bytes, Cell]], prefix: bytes, connection: sqlite3.Connection) -> None:
    names, bounds = _prefix_clause(prefix)
    keys = list(wanted)
    start = 0
    for count in _ROWS_PER_STATEMENT:
        while len(keys) - start >= count:
            found = connection.execute(_READS[count, names], keys[start : start + count] + bounds).fetchall()
            for row, name, timestamp, value in found:
                wanted[row][name] = Cell(name, timestamp, value)
            start += count


def _read_limited(
    wanted: dict[bytes, dict[bytes, Cell]], prefix: bytes, limit: int | None, after: bytes, connection: sqlite3.Connection
) -> None:
    """Most rows are small: those that fit together are read by one statement, the others each by its own."""
    clause, bounds = _prefix_clause(prefix)
    keys = list(wanted)
    if not after and limit is not None:
        keys = _read_small(wanted, keys, clause, bounds, limit, connection)
    statement = f"SELECT name, timestamp, value FROM cells WHERE row = ?{clause} AND name > ? AND value IS NOT NULL ORDER BY name LIMIT ?"
    for key in keys:
        # No cell has an empty name, and a limit below zero is none.
        found = connection.execute(statement, [key, *bounds, after, -1 if limit is None else limit]).fetchall()
        wanted[key].update((name, Cell(name, timestamp, value)) for name, timestamp, value in found)


def _read_small(
    wanted: dict[bytes, dict[bytes, Cell]], keys: list[bytes], clause: str, bounds: list[bytes], limit: int, connection: sqlite3.Connection
) -> list[bytes]:
    """Read together what fits together; answers the rows of those statements that met their limit, unread."""
    left: list[bytes] = []
    start = 0
    for count in _ROWS_PER_STATEMENT:
        while len(keys) - start >= count:
            chunk = keys[start : start + count]
            start += count
            found = connection.execute(_READS[count, clause] + " LIMIT ?", [*chunk, *bounds, _LIMITED_TOGETHER_CELLS]).fetchall()
            if len(found) == _LIMITED_TOGETHER_CELLS:
                left += chunk
                continue
            for row, name, timestamp, value in found:
                if len(wanted[row]) < limit:
                    wanted[row][name] = Cell(name, timestamp, value)
    return left


def _scan_page(after: bytes, connection: sqlite3.Connection) -> dict[bytes, Row]:
    """The next whole rows, each read by one statement, so that a mutation is never seen in half."""
    statement = "SELECT row, name, timestamp, value FROM cells WHERE row > ? AND value IS NOT NULL ORDER BY row, name LIMIT ?"
    cells = connection.execute(statement, (after, _SCAN_PAGE_CELLS)).fetchall()
    page: dict[bytes, dict[bytes, Cell]] = {}
    for row, name, timestamp, value in cells:
        page.setdefault(row, {})[name] = Cell(name, timestamp, value)
    if len(cells) == _SCAN_PAGE_CELLS:
        cut = cells[-1][0]  # the page may end inside this row
        del page[cut]
        if not page:
            page[cut] = {}
            _read_rows({cut: page[cut]}, b"", connection)
    return dict(page)
