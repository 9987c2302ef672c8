"""The cells of the table "scratch", and where they lie: what could not be written or told now (Thialfi 4.2.6).

    v:{object}                       @version   of an update: incarnation of its feed partition, and how often it was brought home
    t:{client} 0 {object} {seqno}    @version   of a client that is registered for it and was not told: nothing

Each lies in a row of its own, named by a salted hash of what it is about. The salt is the number of the attempt: where one place cannot
be written, the next one lies elsewhere. Later versions overwrite earlier ones, so a long outage holds one cell per object or
registration, not one per update. No cell says who made a change: nobody is left out on what comes from here (trap 11). Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from roskva.model import OUTCOME_UPDATE, ClientId, ObjectKey, Propagation
from roskva.table.interface import Cell, RowKey

SCRATCH: Final = "scratch"
ATTEMPTS: Final = 4  # places for one cell
_VERSION: Final = b"v:"
_TOLD: Final = b"t:"
_ROW_BYTES: Final = 16


class Homeless(NamedTuple):
    """A version that its object's row did not take, or whose registered clients could not be read."""

    object: ObjectKey
    version: int
    incarnation: int  # of the feed partition that brought it; 0: it is in the row already
    rounds: int = 0  # times that it was brought home


def place(cell: Cell, attempt: int, partitions: int) -> RowKey:
    """Where a cell goes at this attempt: the same for all versions of an object, or of one registration."""
    digest = hashlib.blake2b(cell.name, digest_size=_ROW_BYTES + 8, salt=attempt.to_bytes(8, "big")).digest()
    return RowKey(SCRATCH, int.from_bytes(digest[_ROW_BYTES:], "big") % partitions, digest[:_ROW_BYTES])


def homeless_cell(homeless: Homeless) -> Cell:
    # What is put aside once more is another cell than the one that was brought home before, and wins over it. So whoever brought
    # that one home may forget it at any time later: exactly that one.
    value = homeless.incarnation.to_bytes(8, "big") + homeless.rounds.to_bytes(8, "big")
    return Cell(_VERSION + homeless.object, homeless.version, value)


def untold_cell(told: Propagation) -> Cell:
    return Cell(_TOLD + told.client.encode() + b"\x00" + told.object + told.seqno.to_bytes(8, "big"), told.version, b"")


def read_cell(cell: Cell) -> Homeless | Propagation:
    """What a cell stands for. Raises ValueError for one that no part of the service wrote."""
    value = cell.value or b""
    if cell.name.startswith(_VERSION) and len(value) == 16 and b"\x00" in cell.name:
        key = ObjectKey(cell.name[len(_VERSION) :])
        return Homeless(key, cell.timestamp, int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big"))
    client, found, rest = cell.name[len(_TOLD) :].partition(b"\x00")
    if cell.name.startswith(_TOLD) and found and b"\x00" in rest[:-8]:
        seqno = int.from_bytes(rest[-8:], "big")
        return Propagation(ClientId(client.decode()), ObjectKey(rest[:-8]), seqno, OUTCOME_UPDATE, cell.timestamp)
    raise ValueError(f"no cell of scratch: {cell.name!r}")
