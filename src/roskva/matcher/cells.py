"""The cells of an object's row in the Matcher table (Thialfi Table 2): `version` and one `reg:{client}` per registered client.

Two more are the sweeps' own: `idle`, at the timestamp of the version, with the day on which nobody was found registered for it; and a
stamp in the place of `u`, with the day on which a copy was found unregistered. Whoever matches reads neither. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from roskva.model import ClientId, ObjectKey, partition_of
from roskva.table.interface import Cell, Row, RowKey

VERSION: Final = b"version"
REG: Final = b"reg:"
IDLE: Final = b"idle"

_REGISTERED: Final = b"r"
_UNREGISTERED: Final = b"u"  # sorts above registered: at one seqno, dropping a copy wins
_STAMPED: Final = b"v"  # unregistered, and since when a sweep knows it: above any device that may follow `u`
_DAY_BYTES: Final = 4


class KnownVersion(NamedTuple):
    version: int
    source: str
    incarnation: int  # the newest, of what may have held a later one, when it was written (`feed.known`)


class Copy(NamedTuple):
    """The Matcher's copy of a live registration."""

    client: ClientId
    seqno: int
    device: str


def object_row(key: ObjectKey, partitions: int) -> RowKey:
    return RowKey("matcher", partition_of(key, partitions), key)


def version_cell(version: int, source: str, incarnation: int) -> Cell:
    # The incarnation leads the value: a version that is published again after the feed was lost wins over its old self.
    return Cell(VERSION, version, incarnation.to_bytes(8, "big") + source.encode())


def registration_cell(client: ClientId, seqno: int, device: str, registered: bool) -> Cell:
    state = _REGISTERED if registered else _UNREGISTERED
    return Cell(REG + client.encode(), seqno, state + device.encode())


def read_version(row: Row) -> KnownVersion | None:
    cell = row.get(VERSION)
    if cell is None or cell.value is None:
        return None
    return KnownVersion(cell.timestamp, cell.value[8:].decode(), int.from_bytes(cell.value[:8], "big"))


def read_copies(row: Row) -> list[Copy]:
    return [
        Copy(ClientId(name[len(REG) :].decode()), cell.timestamp, cell.value[1:].decode())
        for name, cell in row.items()
        if cell.value is not None and name.startswith(REG) and cell.value.startswith(_REGISTERED)
    ]


def is_registered(cell: Cell) -> bool:
    """Whether a copy stands for a registration that lives."""
    return cell.value is not None and cell.value.startswith(_REGISTERED)


def stamped_copy(copy: Cell, day: int) -> Cell:
    """A copy that is unregistered, with the day on which a sweep first saw that."""
    return Cell(copy.name, copy.timestamp, _STAMPED + day.to_bytes(_DAY_BYTES, "big"))


def stamp_of(copy: Cell) -> int | None:
    """The day on which a sweep first saw it unregistered; None: it has no stamp."""
    if copy.value is None or not copy.value.startswith(_STAMPED):
        return None
    return int.from_bytes(copy.value[1:], "big")


def idle_cell(version: int, day: int) -> Cell:
    return Cell(IDLE, version, day.to_bytes(_DAY_BYTES, "big"))


def idle_day(cell: Cell) -> int:
    return int.from_bytes(cell.value or b"", "big")
