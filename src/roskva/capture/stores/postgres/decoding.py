"""What the output plugin `pgoutput` writes, as changes (PostgreSQL's manual, "Logical Replication Message Formats", protocol 1).

Pure. A message is a kind and its fields; a transaction is Begin, its changes and Commit, and arrives whole and in the order of commits.
Tables are described by Relation messages before their first change, and again after each change of their form.

The position of a change is the LSN of its commit, which Begin carries, and its place in the transaction, from 1: each row, each table of a
TRUNCATE and each message counts, whether or not anybody wants it. A message outside of transactions stands at the last byte of its own
record: Postgres gives the byte after it, where the next commit may begin.

Values arrive as text. Booleans, integers, floating-point numbers (but NaN and the infinities, which JSON lacks) and bytea become what they
are; everything else stays as the database writes it, with dates in ISO form and UTC. Text that is not UTF-8, which a database with the
encoding SQL_ASCII may hold, becomes bytes. A column of a domain's type is text: the log does not say what the domain is of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from struct import Struct
from typing import Final

from roskva.capture.positions import Position
from roskva.capture.stores.postgres.timelines import Timelines
from roskva.capture.updates import Change, Columns, Operation, Value
from roskva.errors import CaptureRefused

# The prefix of a message of our own: changes are missing here (gaps.py).
GAP: Final = "roskva.unpublished"
ATTACHED_BYTES_MAX: Final = 64 << 10  # a larger message of our prefix is a message like any other
POSTGRES_EPOCH_US: Final = 946_684_800_000_000  # 2000-01-01, from which Postgres counts, since 1970

_BEGIN: Final = Struct(">xQqI")
_MESSAGE: Final = Struct(">xBQ")
_RELATION: Final = Struct(">xI")
_COLUMN: Final = Struct(">Ii")
_TRUNCATE: Final = Struct(">xIB")
_uint32: Final = Struct(">I").unpack_from
_uint16: Final = Struct(">H").unpack_from

_TEXT_KIND, _NULL_KIND, _UNCHANGED_KIND = b"tnu"
_NEW, _OLD, _KEY = b"NOK"
_NO_COLUMNS: Final[Columns] = {}
_ALL: Final = 1 << 62
_INTEGER_MAX: Final = 2**63 - 1
_make: Final = tuple.__new__  # of a named tuple: half the time of its constructor, and this is done for every row


def _text(raw: bytes) -> Value:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _bool(raw: bytes) -> Value:
    return raw == b"t"


def _float(raw: bytes) -> Value:
    number = float(raw)
    return number if math.isfinite(number) else raw.decode()


def _bytea(raw: bytes) -> Value:
    return bytes.fromhex(raw[2:].decode())  # the connection asks for the form "hex"


# By the fixed numbers of pg_type: bool, bytea, int8, int2, int4, oid, float4, float8.
_VALUES: Final[dict[int, Callable[[bytes], Value]]] = {
    16: _bool, 17: _bytea, 20: int, 21: int, 23: int, 26: int, 700: _float, 701: _float,
}  # fmt: skip


def _name(payload: bytes, at: int) -> tuple[str, int]:
    end = payload.index(0, at)
    return payload[at:end].decode(errors="backslashreplace"), end + 1


class Relation:
    """One table, as it was when its changes were made."""

    __slots__ = ("columns", "key", "lenient", "name")

    def __init__(
        self,
        name: str,
        columns: tuple[tuple[str, Callable[[bytes], Value]], ...],
        key: tuple[str, ...],
        lenient: Relation | None = None,
    ) -> None:
        self.name = name
        self.columns = columns
        self.key = key
        self.lenient = lenient  # the same, for a row with text that is none: they are so few that no other row shall pay for them


class Decoder:
    """Takes the messages of one stream in their order, and answers changes after `after`.

    `primary_key` answers the names of the columns of a table's primary key, by the table's number: of a table with REPLICA IDENTITY FULL
    the log says only that every column identifies it.

    `gap` is the place, once it came to one, at which changes of a table of this publication are missing: nothing more is fed to it then.
    `is_gap` answers of what stands in a message of the prefix GAP whether it says so.
    """

    def __init__(
        self,
        database: str,
        timelines: Timelines,
        after: Position,
        primary_key: Callable[[int], tuple[str, ...]],
        prefix: str = "roskva",
        is_gap: Callable[[bytes], bool] = lambda content: False,
    ) -> None:
        self.reached = after
        self.gap: Position | None = None
        self.in_transaction = False
        self._database = database
        self._timelines = timelines
        self._after = after
        self._primary_key = primary_key
        self._prefix = prefix
        self._is_gap = is_gap
        self._relations: dict[int, Relation] = {}
        self._history = 0
        self._sequence = 0
        self._index = 0
        self._skipped = 0  # changes of this transaction up to this index are dealt with already
        self._committed_us = 0
        self._attached: Columns | None = None

    def feed(self, payload: bytes, sent_us: int, out: list[Change]) -> None:
        """One message; what changed is added to `out`. `sent_us` is when the server sent it."""
        kind = payload[0]
        if kind == 0x49:  # Insert
            relation = self._relations[_uint32(payload, 1)[0]]
            self._index = index = self._index + 1  # as _counts does, without the call: most logs are full of these
            if index > self._skipped:
                columns, unchanged, _ = self._row(relation, payload, 6)
                out.append(self._change(Operation.INSERT, relation, columns, columns, None, unchanged, len(payload)))
        elif kind == 0x55:  # Update
            relation = self._relations[_uint32(payload, 1)[0]]
            if self._counts():
                out.append(self._update(relation, payload))
        elif kind == 0x44:  # Delete
            relation = self._relations[_uint32(payload, 1)[0]]
            if self._counts():
                columns, _, _ = self._row(relation, payload, 6)
                if payload[5] == _KEY:  # the rest of the row is written as NULL, and was not
                    columns = {name: columns[name] for name in relation.key}
                out.append(self._change(Operation.DELETE, relation, columns, columns, None, (), len(payload)))
        elif kind == 0x42:  # Begin
            self._begin(payload)
        elif kind == 0x43:  # Commit
            self.in_transaction = False
            self._attached = None
            self._reach(Position(self._history, self._sequence))
        elif kind == 0x52:  # Relation
            self._describe(payload)
        elif kind == 0x4D:  # Message
            self._message(payload, sent_us, out)
        elif kind == 0x54:  # Truncate
            self._truncate(payload, out)
        elif kind not in b"OY":  # Origin, and Type, which names a type of the user's own: neither changes what a row means
            raise CaptureRefused(f"The server has sent a message of the unknown kind {payload[:1]!r}.")

    def passed(self, lsn: int) -> None:
        """The server has said that it sent everything of commits below this LSN."""
        # In the middle of a transaction it says no more than that, if it speaks the truth.
        self._reach(self._timelines.before(min(lsn, self._sequence) if self.in_transaction else lsn))

    def _reach(self, position: Position) -> None:
        if position > self.reached:
            self.reached = position

    def _begin(self, payload: bytes) -> None:
        sequence, committed, _ = _BEGIN.unpack_from(payload)
        self._sequence = sequence
        self._committed_us = committed + POSTGRES_EPOCH_US
        self._history = self._timelines.history_of(sequence)
        self._index = 0
        self._attached = None
        self.in_transaction = True
        commit, after = (self._history, sequence), self._after
        self._skipped = 0 if commit > after[:2] else after.index if commit == after[:2] else _ALL
        # What `reached` has passed will be confirmed and dropped: a server that sent it later would have us lose it.
        assert self._skipped == _ALL or (*commit, self._skipped + 1) > self.reached, f"{commit} comes after {self.reached}"

    def _counts(self) -> bool:
        """Counts one change of the transaction; whether it is wanted."""
        self._index = index = self._index + 1
        return index > self._skipped

    def _change(
        self,
        operation: Operation,
        relation: Relation,
        columns: Columns,
        identified_by: Columns,
        old_key: Columns | None,
        unchanged: tuple[str, ...],
        size: int,
    ) -> Change:
        position: Position = _make(Position, (self._history, self._sequence, self._index))
        self.reached = position
        names = relation.key
        # A key of a few kilobytes may be left out like any other column that the log keeps elsewhere.
        key: Columns = _NO_COLUMNS
        if names:
            key = found = {}
            for name in names:  # a comprehension would be one more call for every row
                if name in identified_by:
                    found[name] = identified_by[name]
        change: Change = _make(
            Change,
            (
                position,
                self._committed_us,
                operation,
                self._database,
                relation.name,
                key,
                columns,
                old_key,
                unchanged,
                self._attached,
                size,
            ),
        )
        return change

    def _update(self, relation: Relation, payload: bytes) -> Change:
        kind, at = payload[5], 6
        if kind == _NEW:
            columns, unchanged, _ = self._row(relation, payload, at)
            return self._change(Operation.UPDATE, relation, columns, columns, None, unchanged, len(payload))
        old, _, at = self._row(relation, payload, at)
        columns, unchanged, _ = self._row(relation, payload, at + 1)
        if kind == _OLD and unchanged:  # the old row is whole, and these are as they were
            columns = {name: columns[name] if name in columns else old[name] for name, _ in relation.columns}
            unchanged = ()
        names = relation.key
        if names:
            new_key = {name: columns.get(name, old[name]) for name in names}
            old_key: Columns | None = {name: old[name] for name in names}
            if old_key == new_key:
                old_key = None
        else:
            new_key, old_key = {}, old  # it has no key: the whole row says which one it was
        return self._change(Operation.UPDATE, relation, columns, new_key, old_key, unchanged, len(payload))

    def _row(self, relation: Relation, payload: bytes, at: int) -> tuple[dict[str, Value], tuple[str, ...], int]:
        """The columns of a row, those that are left out, and where it ends."""
        columns: dict[str, Value] = {}
        unchanged: tuple[str, ...] = ()
        begin = at
        at += 2  # the number of columns is that of the relation
        try:
            for name, value in relation.columns:
                kind = payload[at]
                if kind == _TEXT_KIND:
                    start = at + 5
                    at = start + _uint32(payload, at + 1)[0]
                    columns[name] = value(payload[start:at])
                elif kind == _NULL_KIND:
                    columns[name] = None
                    at += 1
                elif kind == _UNCHANGED_KIND:
                    unchanged = (*unchanged, name)
                    at += 1
                else:
                    raise CaptureRefused(f"The column {name} of {relation.name} came in the unknown form {chr(kind)!r}.")
        except UnicodeDecodeError:
            if relation.lenient is None:
                raise
            return self._row(relation.lenient, payload, begin)
        return columns, unchanged, at

    def _describe(self, payload: bytes) -> None:
        (number,) = _RELATION.unpack_from(payload)
        schema, at = _name(payload, 5)
        table, at = _name(payload, at)
        identity = payload[at]
        (count,) = _uint16(payload, at + 1)
        at += 3
        columns = []
        key = []
        for _ in range(count):
            flags = payload[at]
            name, at = _name(payload, at + 1)
            type_number, _modifier = _COLUMN.unpack_from(payload, at)
            at += _COLUMN.size
            columns.append((name, _VALUES.get(type_number, bytes.decode)))
            if flags & 1:
                key.append(name)
        if identity == 0x66:  # FULL: every column is marked
            names = set(key)
            primary = self._primary_key(number)
            key = list(primary) if names.issuperset(primary) else []
        # A part of the system catalogs has an empty name here; the default schema goes without saying.
        full_name = table if schema == "public" else f"{schema or 'pg_catalog'}.{table}"
        lenient = Relation(full_name, tuple((name, _text if value is bytes.decode else value) for name, value in columns), tuple(key))
        self._relations[number] = Relation(full_name, tuple(columns), tuple(key), lenient)

    def _truncate(self, payload: bytes, out: list[Change]) -> None:
        count, _options = _TRUNCATE.unpack_from(payload)
        for place in range(count):
            relation = self._relations[_uint32(payload, _TRUNCATE.size + 4 * place)[0]]
            if self._counts():
                change = self._change(Operation.TRUNCATE, relation, _NO_COLUMNS, _NO_COLUMNS, None, (), len(payload) // count)
                out.append(change)

    def _message(self, payload: bytes, sent_us: int, out: list[Change]) -> None:
        transactional, lsn = _MESSAGE.unpack_from(payload)
        prefix, at = _name(payload, _MESSAGE.size)
        content = payload[at + 4 : at + 4 + _uint32(payload, at)[0]]
        if transactional:
            attached = keys_from_message(content) if prefix == self._prefix else None
            wanted = self._counts()
            if prefix == GAP:
                if wanted and self._is_gap(content):
                    self.gap = Position(self._history, self._sequence, self._index)
            elif attached is not None:
                self._attached = {**(self._attached or {}), **attached}
            elif wanted:
                out.append(self._of_message(prefix, content, len(payload)))
            return
        if prefix == GAP:  # our own stand in transactions: this is somebody else's, and no change either
            return
        self._sequence, self._index = lsn - 1, 1
        self._history = self._timelines.history_of(lsn - 1)
        self._committed_us = self._committed_us or sent_us  # it has no time of its own: that of the last commit before it, if one was read
        if (self._history, self._sequence, 1) > self._after:
            out.append(self._of_message(prefix, content, len(payload)))

    def _of_message(self, prefix: str, content: bytes, size: int) -> Change:
        relation = Relation(prefix, (), ())
        return self._change(Operation.MESSAGE, relation, {"content": _text(content)}, _NO_COLUMNS, None, (), size)


def keys_from_message(content: bytes) -> Columns | None:
    """The keys that a producer attaches to the changes after its message in the transaction: a JSON object. None: it is something else."""
    if len(content) > ATTACHED_BYTES_MAX:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {_as_text(name): value if _is_plain(value) else _as_text(json.dumps(value, ensure_ascii=False)) for name, value in found.items()}


def _as_text(text: str) -> str:
    """JSON may escape half of a surrogate pair, which is no text: any user of the database may write it. It stays escaped."""
    return text.encode(errors="backslashreplace").decode()


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= _INTEGER_MAX
    return value is None or isinstance(value, str)
