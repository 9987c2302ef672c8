"""The record of sweeps in the table: how far each has come, and what the last one of each kind did.

One row, a cell per sweep, JSON. It is for people, and for the schedule to go on from after a restart; no promise rests on it. A dry
run has a cell of its own: it must not count as a sweep. Timestamps of the cells are counters. Imports no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from roskva.pipeline.sweeps.frame import Swept
from roskva.table.interface import Cell, Mutation, Row, RowKey, Table

SWEEPS_ROW: Final = RowKey("members", 0, b"sweeps")

PLANNED: Final = "planned"  # never ran; its time counts from when the schedule first saw it
RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"  # by a person or by the end of its process: it goes on where it was
FAILED: Final = "failed"

_DRY: Final = b":dry"


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Record(msgspec.Struct, frozen=True):
    """The last word on one kind of sweep. Times are of the clock of whoever ran it."""

    sweep: str
    state: str
    began_ms: int = 0
    ended_ms: int = 0  # 0: it runs
    written_ms: int = 0
    run: str = ""  # tells apart two that run at the same time
    partition: int = 0  # those before this one are swept
    partitions: int = 0
    dry_run: bool = False
    swept: Swept = msgspec.field(default_factory=Swept)
    error: str = ""


def read_records(table: Table) -> dict[str, Record]:
    """The last sweep of each kind, dry runs aside. PartitionUnavailable if the table cannot tell."""
    return records_in(table.read([SWEEPS_ROW])[SWEEPS_ROW])


def records_in(row: Row) -> dict[str, Record]:
    found = (_read(cell) for name, cell in row.items() if not name.endswith(_DRY))
    return {record.sweep: record for record in found if record is not None}


def read_record(table: Table, sweep: str, dry_run: bool = False) -> Record | None:
    name = _name(sweep, dry_run)
    cell = table.read([SWEEPS_ROW], prefix=name)[SWEEPS_ROW].get(name)
    return None if cell is None else _read(cell)


def write_records(table: Table, records: Iterable[Record], now_ms: Callable[[], int] = clock_ms) -> None:
    """The later call wins, whoever makes it: each begins above what it finds."""
    row = table.read([SWEEPS_ROW])[SWEEPS_ROW]
    written_ms = now_ms()
    cells = []
    for record in records:
        name = _name(record.sweep, record.dry_run)
        counter = row[name].timestamp + 1 if name in row else 1
        cells.append(Cell(name, counter, msgspec.json.encode(msgspec.structs.replace(record, written_ms=written_ms))))
    if cells:
        table.write([Mutation(SWEEPS_ROW, cells)])


def _name(sweep: str, dry_run: bool) -> bytes:
    return sweep.encode() + (_DRY if dry_run else b"")


def _read(cell: Cell) -> Record | None:
    try:
        return None if cell.value is None else msgspec.json.decode(cell.value, type=Record)
    except msgspec.DecodeError:
        return None  # of another version of the service
