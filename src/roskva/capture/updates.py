"""What a change of a database looks like, whatever the database: key-value pairs, and where it stands in the log (Wormhole 3).

Pure. A datastore makes a `Change` of each entry of its log; the publisher adds the shard. Values are JSON's, and bytes: numbers that a
double cannot hold (numeric, large integers beyond 64 bits), times and everything else that has no kind of its own are text, as the database
writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from roskva.capture.positions import Position

Value: TypeAlias = bool | int | float | str | bytes | None
Columns: TypeAlias = Mapping[str, Value]


class Operation(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"  # the whole table: no key, no columns
    MESSAGE = "message"  # of no row: the producer wrote it into the log itself; or MALFORMED, or RANGE_DELETED


# The table and the columns of a MESSAGE that says that a line of the log cannot be read (files): what it told of, nobody knows.
MALFORMED: Final = "malformed-line"
MALFORMED_COLUMNS: Final = frozenset(("line", "reason"))
# The columns of a MESSAGE that says that a range of a table's rows was deleted (RocksDB): which ones, the log does not have.
RANGE_DELETED: Final = frozenset(("delete_from", "delete_before"))


class Change(NamedTuple):
    """One change of one row, committed."""

    position: Position
    committed_us: int  # since 1970, by the database's clock
    operation: Operation
    database: str
    table: str  # with its schema, where there are such and it is not the default one; of a message its prefix
    key: Columns  # after the change; of a deleted row before it. Empty: the table has no key
    columns: Columns  # after the change; of a deleted row what the log has of it
    old_key: Columns | None = None  # before the change, if that changed the key
    unchanged: tuple[str, ...] = ()  # columns that the log leaves out, since the change left them as they were (TOAST)
    attached: Columns | None = None  # keys that the producer wrote beside its transaction
    size: int = 0  # bytes that it took in the log, about


def of_many(change: Change) -> bool:
    """Whether it is of rows that went together, and that the log does not name."""
    if change.operation is Operation.MESSAGE:
        return change.columns.keys() == RANGE_DELETED
    return change.operation is Operation.TRUNCATE


class Update(NamedTuple):
    """A change on its way to a subscriber: in the flow of its shard."""

    shard: int
    change: Change
