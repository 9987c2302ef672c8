"""Updates as rows: how a change becomes an array of values, and comes back (Wormhole 3: an update is a set of key-value pairs).

No I/O. The names in a change hardly ever differ from those of the one before: they are sent once, as a Schema, and a row is

    [sequence, index, committed_us, schema, values of the columns..., of the key unless the schema has key_in_columns...,
     of the old key..., of the attached keys...]

with the history in the Updates frame around it. Schema 0 needs no Schema frame; its rows say everything themselves:

    [sequence, index, committed_us, 0, operation, database, table, key, columns, old_key, unchanged, attached]

with key, columns, old_key and attached as maps or nil. It serves what has no fixed form, once the schemas are used up, and what has a name
that is no text (half of a surrogate pair), which is sent with backslashes: "\\ud800". A row is encoded once, whoever it goes to.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from roskva.capture.positions import Position
from roskva.capture.updates import Change, Operation, Update, Value
from roskva.capture.wire import Schema
from roskva.errors import MalformedMessage

SCHEMAS_MAX: Final = 10_000  # of one publisher; kinds of rows beyond go as schema 0
SHAPES_MAX: Final = 64  # of one operation on one table, for the same reason
HEAD: Final = 4  # values of a row before those that its schema names
LOOSE: Final = Schema(0, "", "", "", (), (), None, (), None, False)

_encode: Final = msgspec.msgpack.Encoder().encode
_rows: Final[msgspec.msgpack.Decoder[list[tuple[Any, ...]]]] = msgspec.msgpack.Decoder(list[tuple[Any, ...]])
_make: Final = tuple.__new__
_OPERATIONS: Final = {operation.value: operation for operation in Operation}


class Row(NamedTuple):
    """A change, encoded."""

    schema: int
    data: bytes


class Schemas:
    """The publisher's side: numbers the kinds of rows. Safe from several threads."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Schema] = {}
        self._numbered: dict[int, Schema] = {}
        self._shapes: dict[tuple[object, ...], int] = {}
        self._last: tuple[tuple[object, ...], Schema] = ((), LOOSE)  # the kind of the last change, by whichever thread
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def numbered(self, number: int) -> Schema:
        return self._numbered[number]

    def encoded(self, change: Change) -> Row:
        position, committed_us, operation, database, table, key, columns, old_key, unchanged, attached, _ = change
        in_columns = True
        for name, value in key.items():
            # The same object, not an equal one: 1, 1.0 and True are equal.
            if columns.get(name, _ABSENT) is not value:
                in_columns = False
                break
        if old_key is None and attached is None:
            kind: tuple[object, ...] = (operation, database, table, in_columns, tuple(columns), tuple(key), unchanged)
        else:
            kind = (operation, database, table, in_columns, tuple(columns), tuple(key), unchanged,
                    None if old_key is None else tuple(old_key), None if attached is None else tuple(attached))  # fmt: skip
        # Most changes are of the kind of the one before, and to compare with that is quicker than to hash.
        last, schema = self._last
        if kind != last:
            found = self._known.get(kind)
            schema = self._named(kind, change, in_columns) if found is None else found
            self._last = (kind, schema)
        if schema.number == 0:
            row = (position[1], position[2], committed_us, 0, operation, database, table, key, columns, old_key, unchanged, attached)
            try:
                return Row(0, _encode(row))
            except (UnicodeEncodeError, OverflowError, TypeError):
                return Row(0, _encode(_sendable_whole(change)))
        values: tuple[object, ...] = (position[1], position[2], committed_us, schema.number, *columns.values())
        if not in_columns:
            values += tuple(key.values())
        if old_key is not None:
            values += tuple(old_key.values())
        if attached is not None:
            values += tuple(attached.values())
        try:
            row_of: Row = _make(Row, (schema.number, _encode(values)))  # a third of the time of calling the class
            return row_of
        except (UnicodeEncodeError, OverflowError, TypeError):
            return Row(schema.number, _encode(tuple(_sendable(value) for value in values)))

    def _named(self, kind: tuple[object, ...], change: Change, in_columns: bool) -> Schema:
        with self._lock:
            known = self._known.get(kind)
            if known is not None:
                return known
            table = kind[:3]
            shapes = self._shapes.get(table, 0)
            if shapes >= SHAPES_MAX or len(self._known) >= SCHEMAS_MAX or not _can_be_named(change):
                return LOOSE
            self._shapes[table] = shapes + 1
            schema = Schema(
                len(self._known) + 1,
                str(change.operation),
                change.database,
                change.table,
                tuple(change.key),
                tuple(change.columns),
                None if change.old_key is None else tuple(change.old_key),
                change.unchanged,
                None if change.attached is None else tuple(change.attached),
                in_columns,
            )
            self._numbered[schema.number] = schema
            self._known[kind] = schema
            return schema


_ABSENT: Final = object()


def _can_be_named(change: Change) -> bool:
    """Whether all its names are text: a Schema has no other form for them."""
    names = [change.database, change.table, *change.columns, *change.key, *change.unchanged]
    try:
        "".join([*names, *(change.old_key or ()), *(change.attached or ())]).encode()
    except (UnicodeEncodeError, TypeError):
        return False
    return True


def _sendable_whole(change: Change) -> tuple[object, ...]:
    """A row of schema 0, of a change that has names or values which msgpack cannot hold."""
    position, committed_us, operation, database, table, key, columns, old_key, unchanged, attached, _ = change
    where = (position.sequence, position.index, committed_us, 0, operation, _sendable_name(database), _sendable_name(table))
    return (*where, *map(_sendable, (key, columns, old_key)), tuple(map(_sendable_name, unchanged)), _sendable(attached))


def _sendable_name(name: object) -> str:
    return str(name).encode(errors="backslashreplace").decode()


def _sendable(value: object) -> object:
    """What msgpack cannot hold, as a datastore should not have given it to us: text that is no text as bytes, large numbers as text."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogateescape") if _escaped(value) else value.encode(errors="surrogatepass")
        return value
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, Mapping):
        return {_sendable_name(name): _sendable(inner) for name, inner in value.items()}
    if value is None or isinstance(value, int | float | bytes | tuple):
        return value
    return str(value)


def _escaped(text: str) -> bool:
    return all(not 0xD800 <= ord(character) <= 0xDFFF or 0xDC80 <= ord(character) <= 0xDCFF for character in text)


class Decoding:
    """The subscriber's side: what the publisher of one connection has said of its rows."""

    def __init__(self) -> None:
        self._schemas: dict[int, tuple[Schema, Operation, int, bool]] = {}

    def learn(self, schema: Schema) -> None:
        operation = _OPERATIONS.get(schema.operation)
        if operation is None or schema.number < 1:
            raise MalformedMessage(f"The schema {schema.number} of a capture connection names no operation: {schema.operation[:32]!r}.")
        if schema.key_in_columns and not set(schema.key) <= set(schema.columns):
            raise MalformedMessage(f"The schema {schema.number} of a capture connection has a key that is not among its columns.")
        if len(self._schemas) >= 2 * SCHEMAS_MAX:
            raise MalformedMessage("The publisher sends more schemas than it may.")
        width = HEAD + len(schema.columns) + (0 if schema.key_in_columns else len(schema.key))
        width += len(schema.old_key or ()) + len(schema.attached or ())
        simple = schema.key_in_columns and schema.old_key is None and schema.attached is None
        self._schemas[schema.number] = (schema, operation, width, simple)

    def updates(self, shard: int, history: int, rows: msgspec.Raw | bytes) -> list[Update]:
        """What an Updates frame holds, for a flow of this shard."""
        try:
            decoded = _rows.decode(rows)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"The rows of a capture connection cannot be read: {str(error)[:200]}.") from None
        found: list[Update] = []
        add = found.append
        new = tuple.__new__  # half the time of calling the classes, for what is done three times per row
        schemas = self._schemas
        number = -1
        try:
            for row in decoded:
                if row[3] != number:
                    number = row[3]
                    if number == 0:
                        add(Update(shard, _loose(history, row)))
                        number = -1
                        continue
                    schema, operation, width, simple = schemas[number]
                    database, table, key, columns, unchanged = schema.database, schema.table, schema.key, schema.columns, schema.unchanged
                if len(row) != width:
                    raise MalformedMessage(f"A row of schema {number} has {len(row)} values instead of {width}.")
                sequence, index, committed_us, _, *values = row
                position = new(Position, (history, sequence, index))
                named = dict(zip(columns, values, strict=False))
                if simple:
                    keyed = {name: named[name] for name in key}
                    change = new(Change, (position, committed_us, operation, database, table, keyed, named, None, unchanged, None, 0))
                else:
                    change = _whole(schema, operation, position, committed_us, named, values[len(columns) :])
                add(new(Update, (shard, change)))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MalformedMessage(f"A row of a capture connection is not of its schema: {str(error)[:100]}.") from None
        return found


def _whole(
    schema: Schema, operation: Operation, position: Position, committed_us: int, columns: dict[str, Value], rest: list[Value]
) -> Change:
    at = 0
    if schema.key_in_columns:
        key = {name: columns[name] for name in schema.key}
    else:
        key = dict(zip(schema.key, rest, strict=False))
        at = len(schema.key)
    old_key: dict[str, Value] | None = None
    if schema.old_key is not None:
        old_key = dict(zip(schema.old_key, rest[at:], strict=False))
        at += len(schema.old_key)
    attached = None if schema.attached is None else dict(zip(schema.attached, rest[at:], strict=True))
    return Change(position, committed_us, operation, schema.database, schema.table, key, columns, old_key, schema.unchanged, attached)


def _loose(history: int, row: tuple[Any, ...]) -> Change:
    sequence, index, committed_us, _, operation, database, table, key, columns, old_key, unchanged, attached = row
    position = Position(history, sequence, index)
    return Change(position, committed_us, Operation(operation), database, table, key, columns, old_key, tuple(unchanged), attached)
