"""One line of a log in files: a change as a JSON object, written by producers and read by capture.

    {"operation": "update", "table": "documents", "key": {"id": 7}, "columns": {"title": "Edda"}, "committed_us": 1735689600000000}

`operation` is insert, update, delete, truncate or message, `table` names the table (of a message: its prefix); both must be there. The rest
may be left out: `key` and `columns` (objects of names and values), `old_key` (before the change, if that changed the key), `unchanged`
(names of columns that were left out since they stayed as they were), `attached` (keys of the producer's own), `committed_us` (microseconds
since 1970). A name that is none of these makes the line a malformed one: a misspelled `columns` must not become a change without any.

A value is null, true, false, a number or text. Bytes, and text that is not UTF-8, are `{"base64": "..."}`, an object of that one name. Any
other object, an array, an integer beyond 64 bits and a number beyond a double become text: the JSON that stood there. A number keeps no
more digits than a double has: write decimals as text.

A line that cannot be read is not lost and stops nothing: it becomes a change of its own, of the operation MESSAGE and the table MALFORMED,
with its first bytes and the reason as columns. Of which row it was nobody can say: to Roskva's clients everything is unknown then
(mapping.py), and the publisher counts it as a problem until it is started again.

Pure: no files here, they are file_log.py's and files.py's.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from roskva.capture.positions import Position
from roskva.capture.updates import MALFORMED, Change, Columns, Operation, Value

MALFORMED_BYTES_MAX: Final = 4096  # of a malformed line that its change carries; `size` says how long it is
_INTEGER_MAX: Final = 2**63 - 1
_Integer = Annotated[int, msgspec.Meta(ge=-_INTEGER_MAX - 1, le=_INTEGER_MAX)]
_Plain = dict[str, bool | _Integer | float | str | None]


class Entry(NamedTuple):
    """What a producer appends: a change that has no position yet."""

    operation: Operation
    table: str
    key: Columns = {}  # noqa: RUF012
    columns: Columns = {}  # noqa: RUF012
    old_key: Columns | None = None
    unchanged: tuple[str, ...] = ()
    attached: Columns | None = None
    committed_us: int | None = None  # None: when it is appended


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    operation: Operation
    table: str
    key: _Plain = {}
    columns: _Plain = {}
    old_key: _Plain | None = None
    unchanged: tuple[str, ...] = ()
    attached: _Plain | None = None
    committed_us: Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)] | None = None


class _AnyLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The same, with values of every kind, as they stand there: decoded only where the first did not do, since it takes longer."""

    operation: Operation
    table: str
    key: dict[str, msgspec.Raw] = {}
    columns: dict[str, msgspec.Raw] = {}
    old_key: dict[str, msgspec.Raw] | None = None
    unchanged: tuple[str, ...] = ()
    attached: dict[str, msgspec.Raw] | None = None
    committed_us: Annotated[int, msgspec.Meta(ge=0, le=_INTEGER_MAX)] | None = None


class _Bytes(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    base64: str


_decode = msgspec.json.Decoder(_Line).decode
_decode_any = msgspec.json.Decoder(_AnyLine).decode
_decode_bytes = msgspec.json.Decoder(_Bytes).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_scalar: Callable[[bytes], bool | int | float | None] = msgspec.json.Decoder(bool | _Integer | float | None).decode
_encode = msgspec.json.Encoder().encode


def line_of(entry: Entry, committed_us: int) -> bytes:
    """As it stands in the file, with its newline."""
    record: dict[str, Any] = {"operation": entry.operation, "table": entry.table}
    for name, columns in (("key", entry.key), ("columns", entry.columns), ("old_key", entry.old_key), ("attached", entry.attached)):
        if columns:
            record[name] = _written(columns)
    if entry.unchanged:
        record["unchanged"] = entry.unchanged
    record["committed_us"] = committed_us if entry.committed_us is None else entry.committed_us
    return _encode(record) + b"\n"


def change_of(line: bytes, position: Position, database: str, read_us: int) -> Change:
    """The change that a line without its newline tells of; `read_us` is its commit time if it says none."""
    size = len(line) + 1
    try:
        try:
            found = _decode(line)
        except msgspec.ValidationError:
            return _change_of_any(_decode_any(line), position, database, read_us, size)
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of UTF-8 and base64 are ValueErrors
        return malformed(line, size, str(error), position, database, read_us)
    committed_us = read_us if found.committed_us is None else found.committed_us
    key, columns, old_key, attached = found.key, found.columns, found.old_key, found.attached
    return Change(position, committed_us, found.operation, database, found.table, key, columns, old_key, found.unchanged, attached, size)


def _change_of_any(found: _AnyLine, position: Position, database: str, read_us: int, size: int) -> Change:
    committed_us = read_us if found.committed_us is None else found.committed_us
    key, columns = _values(found.key), _values(found.columns)
    old_key = None if found.old_key is None else _values(found.old_key)
    attached = None if found.attached is None else _values(found.attached)
    return Change(position, committed_us, found.operation, database, found.table, key, columns, old_key, found.unchanged, attached, size)


def malformed(beginning: bytes, size: int, reason: str, position: Position, database: str, read_us: int) -> Change:
    columns: Columns = {"line": beginning[:MALFORMED_BYTES_MAX], "reason": reason[:256]}
    return Change(position, read_us, Operation.MESSAGE, database, MALFORMED, {}, columns, size=size)


def _written(columns: Columns) -> Mapping[str, Any]:
    return {name: _written_value(value) for name, value in columns.items()}


def _written_value(value: Value) -> Any:
    if isinstance(value, bytes):
        return {"base64": binascii.b2a_base64(value, newline=False).decode()}
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return str(value)  # JSON has neither infinity nor what is no number
    if isinstance(value, int) and not -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
        return str(value)
    return value


def _values(columns: dict[str, msgspec.Raw]) -> dict[str, Value]:
    return {name: _read_value(bytes(raw)) for name, raw in columns.items()}


def _read_value(raw: bytes) -> Value:
    if raw[:1] == b'"':
        return _decode_text(raw)
    try:
        if raw[:1] == b"{":
            return binascii.a2b_base64(_decode_bytes(raw).base64, strict_mode=True)
        return _decode_scalar(raw)
    except msgspec.ValidationError:
        return raw.decode("utf-8")
