"""The cells of the table "scratch", and where they lie: what could not be written or told now (Thialfi 4.2.6).

    v:{object}                       @version   of an update: since when it counts as known, and how often it was brought home
    t:{client} 0 {object} {seqno}    @version   of a client that is registered for it and was not told: nothing
    l:{client} 0 {object} {seqno}    @0         of a client whose registration is to be made anew, and was not: nothing
    i:{partition} {invalidation}     @0         of an invalidation that could not be walked to its end: nothing

Each lies in a row of its own, named by a salted hash of what it is about. The salt is the number of the attempt: where one place cannot
be written, the next one lies elsewhere. Later versions overwrite earlier ones, so a long outage holds one cell per object or
registration, not one per update. No cell says who made a change: nobody is left out on what comes from here (trap 11). Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from roskva.matcher.events import Invalidation, decode_fan_out, encode_invalidation
from roskva.model import OUTCOME_LOST, OUTCOME_UPDATE, ClientId, ObjectKey, Propagation, split_object_key
from roskva.table.interface import Cell, RowKey

SCRATCH: Final = "scratch"
ATTEMPTS: Final = 4  # places for one cell
_VERSION: Final = b"v:"
_TOLD: Final = b"t:"
_LOST: Final = b"l:"
_WALK: Final = b"i:"
_ROW_BYTES: Final = 16


class Homeless(NamedTuple):
    """A version that its object's row did not take, or whose registered clients could not be read."""

    object: ObjectKey
    version: int
    since: int  # for its cell, as it was when it first came (`feed.known`): its way through scratch makes nothing known
    rounds: int = 0  # times that it was brought home


class Unwalked(NamedTuple):
    """An invalidation, from where its walk could not go on; `partition` of the Matcher's rows and of the feed "fan-outs"."""

    invalidation: Invalidation
    partition: int


def place(cell: Cell, attempt: int, partitions: int) -> RowKey:
    """Where a cell goes at this attempt: the same for all versions of an object, or of one registration."""
    digest = hashlib.blake2b(cell.name, digest_size=_ROW_BYTES + 8, salt=attempt.to_bytes(8, "big")).digest()
    return RowKey(SCRATCH, int.from_bytes(digest[_ROW_BYTES:], "big") % partitions, digest[:_ROW_BYTES])


def homeless_cell(homeless: Homeless) -> Cell:
    # What is put aside once more is another cell than the one that was brought home before, and wins over it. So whoever brought
    # that one home may forget it at any time later: exactly that one.
    value = homeless.since.to_bytes(8, "big") + homeless.rounds.to_bytes(8, "big")
    return Cell(_VERSION + homeless.object, homeless.version, value)


def untold_cell(told: Propagation) -> Cell:
    """Of an update, or of a registration that is to be made anew."""
    kind = _LOST if told.outcome == OUTCOME_LOST else _TOLD
    return Cell(kind + told.client.encode() + b"\x00" + told.object + told.seqno.to_bytes(8, "big"), told.version, b"")


def unwalked_cell(unwalked: Unwalked) -> Cell:
    return Cell(_WALK + unwalked.partition.to_bytes(2, "big") + encode_invalidation(unwalked.invalidation), 0, b"")


def read_cell(cell: Cell) -> Homeless | Propagation | Unwalked:
    """What a cell stands for. Raises ValueError for one that no part of the service wrote."""
    kind, rest = cell.name[:2], cell.name[2:]
    if kind == _VERSION:
        return _read_homeless(rest, cell)
    if kind in (_TOLD, _LOST):
        client, _, named = rest.partition(b"\x00")
        key, seqno = _checked(named[:-8]), int.from_bytes(named[-8:], "big")
        return Propagation(ClientId(client.decode()), key, seqno, OUTCOME_LOST if kind == _LOST else OUTCOME_UPDATE, cell.timestamp)
    if kind == _WALK:
        try:
            record = decode_fan_out(rest[2:])
        except msgspec.DecodeError as error:
            raise ValueError(f"no invalidation: {error}") from None
        if isinstance(record, Invalidation):
            return Unwalked(record, int.from_bytes(rest[:2], "big"))
    raise ValueError(f"no cell of scratch: {cell.name!r}")


def _read_homeless(key: bytes, cell: Cell) -> Homeless:
    value = cell.value or b""
    if len(value) != 16:
        raise ValueError(f"no version that was put aside: {cell.name!r}")
    return Homeless(_checked(key), cell.timestamp, int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big"))


def _checked(key: bytes) -> ObjectKey:
    application, _, name = split_object_key(ObjectKey(key))
    if not application or not name:
        raise ValueError(f"no object's key: {key!r}")
    return ObjectKey(key)
