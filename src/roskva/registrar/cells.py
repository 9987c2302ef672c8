"""The cells of a client's row in the Registrar table (Thialfi Table 2): how they are named, valued and read back.

    created                     @0        application and device; absent: the client was collected or lost
    seqno                       @seqno    the largest session granted or seqno used
    seen                        @day      last day on which the client was heard; written at most once a day
    reg:{object}                @seqno    registered or unregistered
    pending:{object}            @seqno    on its way to the Matcher, or done
    log:{object}:{seqno}        @version  a notification for that registration: waiting or acknowledged
    unknown:{object}            @seqno    the same, for "unknown"

A value that replaces another at its own timestamp sorts above it: unregistered over registered, done over pending, acknowledged over
waiting. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from roskva.model import ClientId, ObjectKey, client_partition
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, RowKey

CREATED: Final = b"created"
SEQNO: Final = b"seqno"
SEEN: Final = b"seen"
REG: Final = b"reg:"
PENDING: Final = b"pending:"
LOG: Final = b"log:"
UNKNOWN: Final = b"unknown:"

REGISTERED: Final = b"r"
UNREGISTERED: Final = b"u"
WAITING: Final = b"1"
ACKNOWLEDGED: Final = b"2"
_PENDING: Final = b"1"
DONE: Final = b"2"


class Created(msgspec.Struct, frozen=True, array_like=True):
    application: str
    device: str


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """What the Matcher must be told again if nobody knows whether it was."""

    held: int | None = None
    repair: bool = False


class LogName(NamedTuple):
    """Which notification a `log` or `unknown` cell stands for."""

    object: ObjectKey
    seqno: int
    unknown: bool


def packed(groups: Iterable[Sequence[Cell]]) -> list[list[Cell]]:
    """Writes of one row, each as large as may be. A group is never split: its cells must land together or not at all."""
    writes: list[list[Cell]] = []
    for group in groups:
        if not writes or len(writes[-1]) + len(group) > CELLS_PER_WRITE_MAX:
            writes.append([])
        writes[-1] += group
    return writes


def client_row(client: ClientId, partitions: int) -> RowKey:
    return RowKey("registrar", client_partition(client, partitions), client.encode())


def created_cell(created: Created) -> Cell:
    return Cell(CREATED, 0, msgspec.msgpack.encode(created))


def seqno_cell(seqno: int, tag: bytes = b"") -> Cell:
    """`tag` is that of the session: of two that two owners granted under one number, the table keeps one."""
    return Cell(SEQNO, seqno, tag)


def seen_cell(day: int) -> Cell:
    return Cell(SEEN, day, b"")


def registration_cells(key: ObjectKey, seqno: int, registered: bool, pending: Pending) -> list[Cell]:
    return [
        Cell(REG + key, seqno, REGISTERED if registered else UNREGISTERED),
        Cell(PENDING + key, seqno, _PENDING + msgspec.msgpack.encode(pending)),
    ]


def done_cell(key: ObjectKey, seqno: int) -> Cell:
    return Cell(PENDING + key, seqno, DONE)


def log_cell(key: ObjectKey, seqno: int, version: int, value: bytes) -> Cell:
    return Cell(log_name(key, seqno), version, value)


def unknown_cell(key: ObjectKey, seqno: int, value: bytes) -> Cell:
    return Cell(UNKNOWN + key, seqno, value)


def log_name(key: ObjectKey, seqno: int) -> bytes:
    # The seqno has a fixed width, so a name is read back from its end, whatever bytes the object holds.
    return LOG + key + b":" + seqno.to_bytes(8, "big")


def read_log_name(cell: Cell) -> LogName:
    if cell.name.startswith(UNKNOWN):
        return LogName(ObjectKey(cell.name[len(UNKNOWN) :]), cell.timestamp, unknown=True)
    return LogName(ObjectKey(cell.name[len(LOG) : -9]), int.from_bytes(cell.name[-8:], "big"), unknown=False)


def read_created(cell: Cell | None) -> Created | None:
    return None if cell is None or cell.value is None else msgspec.msgpack.decode(cell.value, type=Created)


def read_pending(cell: Cell) -> Pending | None:
    """None: done."""
    if cell.value is None or cell.value == DONE:
        return None
    try:
        return msgspec.msgpack.decode(cell.value[1:], type=Pending)
    except msgspec.DecodeError:
        return Pending(repair=True)  # of another version of the service: a repair yields "unknown", which is never wrong
