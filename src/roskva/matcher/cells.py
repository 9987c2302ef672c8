"""The cells of an object's row in the Matcher table (Thialfi Table 2): `version` and one `reg:{client}` per registered client.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from roskva.model import ClientId, ObjectKey, partition_of
from roskva.table.interface import Cell, Row, RowKey

VERSION: Final = b"version"
REG: Final = b"reg:"

_REGISTERED: Final = b"r"
_UNREGISTERED: Final = b"u"  # sorts above registered: at one seqno, dropping a copy wins


class KnownVersion(NamedTuple):
    version: int
    source: str
    incarnation: int  # of the feed partition that brought it


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
