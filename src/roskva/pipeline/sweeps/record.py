"""The record of sweeps in the table: how far each has come, and what the last one of each kind did.

One row, a cell per sweep, JSON. It is for people, and for the schedule to go on from after a restart; no promise rests on it. A dry
run has a cell of its own: it must not count as a sweep. One more cell says which lost partitions are repaired already, so that a restart
does not repeat it. Timestamps of the cells are counters. Imports no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Final

import msgspec

from roskva.pipeline.sweeps.frame import Swept
from roskva.table.interface import Cell, Mutation, Row, RowKey, Table
from roskva.table.manifest import Address

SWEEPS_ROW: Final = RowKey("members", 0, b"sweeps")

PLANNED: Final = "planned"  # never ran; its time counts from when the schedule first saw it
RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"  # by a person or by the end of its process: it goes on where it was
FAILED: Final = "failed"

_DRY: Final = b":dry"
_REPAIRED: Final = b"repaired"


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


class Repaired(msgspec.Struct, frozen=True):
    """A lost partition after the pass that repaired it. One that was lost again since has another incarnation."""

    address: Address
    incarnation: int
    waited_ms: Annotated[int, msgspec.Meta(ge=0)]  # since then, as far as a running pipeline has seen: no clock that is set counts


class _Repairs(msgspec.Struct, frozen=True):
    deployment: str  # a manifest that was begun anew counts its incarnations anew
    repaired: tuple[Repaired, ...]


def read_records(table: Table) -> dict[str, Record]:
    """The last sweep of each kind, dry runs aside. PartitionUnavailable if the table cannot tell."""
    return records_in(table.read([SWEEPS_ROW])[SWEEPS_ROW])


def records_in(row: Row) -> dict[str, Record]:
    found = (_read(cell) for name, cell in row.items() if not name.endswith(_DRY) and name != _REPAIRED)
    return {record.sweep: record for record in found if record is not None}


def read_record(table: Table, sweep: str, dry_run: bool = False) -> Record | None:
    name = _name(sweep, dry_run)
    cell = table.read([SWEEPS_ROW], prefix=name)[SWEEPS_ROW].get(name)
    return None if cell is None else _read(cell)


def write_records(table: Table, records: Iterable[Record], now_ms: Callable[[], int] = clock_ms) -> None:
    """The later call wins, whoever makes it: each begins above what it finds."""
    row = table.read([SWEEPS_ROW])[SWEEPS_ROW]
    written_ms = now_ms()
    dated = (msgspec.structs.replace(record, written_ms=written_ms) for record in records)
    cells = [_next_cell(row, _name(record.sweep, record.dry_run), record) for record in dated]
    if cells:
        table.write([Mutation(SWEEPS_ROW, cells)])


def read_repaired(table: Table, deployment: str) -> tuple[Repaired, ...]:
    """Which lost partitions of this deployment were repaired; none, if nobody can tell any more: then it is done again."""
    cell = table.read([SWEEPS_ROW], prefix=_REPAIRED)[SWEEPS_ROW].get(_REPAIRED)
    try:
        found = None if cell is None or cell.value is None else msgspec.json.decode(cell.value, type=_Repairs)
    except msgspec.DecodeError:
        found = None  # of another version of the service
    return found.repaired if found is not None and found.deployment == deployment else ()


def write_repaired(table: Table, deployment: str, repaired: Iterable[Repaired]) -> None:
    row = table.read([SWEEPS_ROW], prefix=_REPAIRED)[SWEEPS_ROW]
    table.write([Mutation(SWEEPS_ROW, [_next_cell(row, _REPAIRED, _Repairs(deployment, tuple(repaired)))])])


def _next_cell(row: Row, name: bytes, value: msgspec.Struct) -> Cell:
    return Cell(name, row[name].timestamp + 1 if name in row else 1, msgspec.json.encode(value))


def _name(sweep: str, dry_run: bool) -> bytes:
    return sweep.encode() + (_DRY if dry_run else b"")


def _read(cell: Cell) -> Record | None:
    try:
        return None if cell.value is None else msgspec.json.decode(cell.value, type=Record)
    except msgspec.DecodeError:
        return None  # of another version of the service
