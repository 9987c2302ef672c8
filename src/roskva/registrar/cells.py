"""The cells of a client's row in the Registrar table (Thialfi Table 2): how they are named, valued and read back.

    created                     @0        application, device and user; absent: the client was collected or lost
    seqno                       @seqno    the largest session granted or seqno used
    seen                        @day      last day on which the client was heard; written at most once a day
    reg:{object}                @seqno    registered, and at most how often it is told of; or unregistered
    pending:{object}            @seqno    on its way to the Matcher, or done
    log:{object}:{seqno}        @version  a notification for that registration: waiting or acknowledged
    unknown:{object}            @seqno    the same, for "unknown"

A value that replaces another at its own timestamp sorts above it: unregistered over registered, done over pending, acknowledged over
waiting. What is closed in this way (`u`, `2`) may be followed by a stamp: the day on which a sweep first saw it closed. It means the same
with and without, and the stamped one wins. What waits (`1`) may be followed by the second at which it began to, for people who look:
nothing is decided by it. Pure.
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
_STAMP_BYTES: Final = 4
_INTERVAL_BYTES: Final = 4
_SECOND_MAX: Final = 256**_STAMP_BYTES - 1


class Created(msgspec.Struct, frozen=True, array_like=True):
    application: str
    device: str
    user: str = ""  # whose client it is, where the application asks; another user on the same device is another client


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


def registration_cells(key: ObjectKey, seqno: int, registered: bool, pending: Pending, interval_ms: int = 0) -> list[Cell]:
    interval = interval_ms.to_bytes(_INTERVAL_BYTES, "big") if interval_ms else b""
    return [
        Cell(REG + key, seqno, REGISTERED + interval if registered else UNREGISTERED),
        Cell(PENDING + key, seqno, _PENDING + msgspec.msgpack.encode(pending)),
    ]


def is_registered(cell: Cell) -> bool:
    """Whether the last operation on a `reg` cell's object registered it."""
    return cell.value is not None and cell.value[:1] == REGISTERED


def interval_ms_of(cell: Cell) -> int:
    """The interval that a registration was made with; 0: none, as in every row before there were any."""
    if cell.value is None or not is_registered(cell) or len(cell.value) != 1 + _INTERVAL_BYTES:
        return 0
    return int.from_bytes(cell.value[1:], "big")


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


def stamped_waiting(cells: Iterable[Cell], time_s: float) -> list[Cell]:
    """The same cells; those of notifications that begin to wait say since when. Still below what acknowledges them."""
    stamp = WAITING + min(max(int(time_s), 0), _SECOND_MAX).to_bytes(_STAMP_BYTES, "big")
    return [Cell(cell.name, cell.timestamp, stamp) if cell.value == WAITING and _is_notification(cell) else cell for cell in cells]


def _is_notification(cell: Cell) -> bool:
    return cell.name.startswith((LOG, UNKNOWN))


def is_waiting(cell: Cell) -> bool:
    """Whether the notification of a `log` or `unknown` cell waits for its acknowledgement."""
    return cell.value is not None and cell.value[:1] == WAITING


def waiting_since_s(cell: Cell) -> int | None:
    """When a notification that waits was stored, in seconds since 1970 by the clock of who did. None: it does not say."""
    if cell.value is None or not is_waiting(cell) or len(cell.value) != 1 + _STAMP_BYTES:
        return None
    return int.from_bytes(cell.value[1:], "big")


def read_created(cell: Cell | None) -> Created | None:
    return None if cell is None or cell.value is None else msgspec.msgpack.decode(cell.value, type=Created)


def read_pending(cell: Cell) -> Pending | None:
    """None: done."""
    if cell.value is None or cell.value.startswith(DONE):
        return None
    try:
        return msgspec.msgpack.decode(cell.value[1:], type=Pending)
    except msgspec.DecodeError:
        return Pending(repair=True)  # of another version of the service: a repair yields "unknown", which is never wrong


def is_pending(cell: Cell | None) -> bool:
    return cell is not None and read_pending(cell) is not None


def closed_on(cell: Cell, day: int) -> Cell:
    """The cell of a registration or notification, closed, with the stamp of that day. What is open or plain loses against it."""
    closed = UNREGISTERED if cell.name.startswith(REG) else DONE if cell.name.startswith(PENDING) else ACKNOWLEDGED
    return Cell(cell.name, cell.timestamp, closed + day.to_bytes(_STAMP_BYTES, "big"))


def is_closed(cell: Cell) -> bool:
    """Whether a cell of a registration or notification is unregistered, done or acknowledged, stamped or not."""
    return cell.value is not None and cell.value.startswith((UNREGISTERED, ACKNOWLEDGED))


def stamp_of(cell: Cell) -> int | None:
    """The day on which a sweep first saw it closed; None: it has no stamp."""
    if cell.value is None or not is_closed(cell) or len(cell.value) != 1 + _STAMP_BYTES:
        return None
    return int.from_bytes(cell.value[1:], "big")
