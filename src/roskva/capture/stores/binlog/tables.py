"""What a table map says: the columns of a table as they were when its rows were logged.

Pure. With `binlog_row_metadata=FULL` the log itself names columns, key, members and character sets, so rows are read as they were written,
whatever has become of the table since. Without it somebody must describe the table as it is now; see `Described`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from roskva.capture.stores.binlog import values as v
from roskva.capture.stores.binlog.values import Form
from roskva.errors import CaptureRefused

# Bytes beside each type of a column in a table map; none for the others.
_META_BYTES: Final = {
    v.FLOAT: 1, v.DOUBLE: 1, v.VARCHAR: 2, v.BIT: 2, v.TIMESTAMP2: 1, v.DATETIME2: 1, v.TIME2: 1, v.VARCHAR_COMPRESSED: 2,
    v.BLOB_COMPRESSED: 1, v.VECTOR: 1, v.JSON: 1, v.NEWDECIMAL: 2, v.ENUM: 2, v.SET: 2, v.BLOB: 1, v.VAR_STRING: 2, v.STRING: 2,
    v.GEOMETRY: 1,
}  # fmt: skip
_SIGNEDNESS, _CHARSET_DEFAULT, _CHARSETS, _NAMES, _SETS, _ENUMS = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIX, _MEMBER_CHARSET_DEFAULT, _MEMBER_CHARSETS = 8, 9, 10, 11


class Column(NamedTuple):
    """What the database says of a column now."""

    name: str
    unsigned: bool
    codec: str | None
    members: tuple[str, ...] | None = None


class Described(NamedTuple):
    """A table as it is now, for logs that do not say how it was. If columns were renamed or swapped since, they bear the wrong names."""

    columns: tuple[Column, ...]
    key: tuple[int, ...]


Describe: TypeAlias = Callable[[str, str], Described | None]  # database and table; None: there is no such table any more
Codecs: TypeAlias = Mapping[int, str | None]  # Python's codec by the number of a collation


@dataclass(frozen=True, slots=True)
class Table:
    database: str
    name: str
    columns: tuple[str, ...]
    forms: tuple[Form, ...]
    key: tuple[int, ...]  # places of the columns of the primary key; none: there is no such


def read_table_map(body: bytes, codecs: Codecs, describe: Describe, textual: frozenset[int]) -> Table:
    """`body`: from after the table's number and the flags. `textual`: types of columns that are counted where character sets are listed."""
    database, at = _named(body, 0)
    name, at = _named(body, at)
    count, at = lenenc(body, at)
    kinds = body[at : at + count]
    size, at = lenenc(body, at + count)
    metas = list(_metas(kinds, body[at : at + size]))
    at += size + (count + 7) // 8  # which columns may be NULL: a row says it itself
    fields = dict(_fields(body, at))
    named = _NAMES in fields
    table = _logged(kinds, metas, fields, codecs, textual) if named else _described(database, name, kinds, describe(database, name))
    forms = []
    for place, (kind, meta, column) in enumerate(zip(kinds, metas, table.columns, strict=True)):
        form = _form(kind, meta, column)
        if form is None:
            raise CaptureRefused(
                f"The column {column.name} of {database}.{name} ({place + 1}.) is of type {kind}, which capture cannot read."
            )
        forms.append(form)
    return Table(database, name, tuple(column.name for column in table.columns), tuple(forms), table.key)


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A number in one byte, or in the two, three or eight after it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width


def _named(body: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + body[at]
    return body[at + 1 : end].decode(errors="replace"), end + 1


def _metas(kinds: bytes, packed: bytes) -> Iterator[int]:
    at = 0
    for kind in kinds:
        width = _META_BYTES.get(kind, 0)
        yield int.from_bytes(packed[at : at + width], "little")
        at += width


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        size, begin = lenenc(body, at + 1)
        yield body[at], body[begin : begin + size]
        at = begin + size


def _real(kind: int, meta: int) -> int:
    return v.string_of(meta)[0] if kind == v.STRING else kind


def _logged(kinds: bytes, metas: Sequence[int], fields: Mapping[int, bytes], codecs: Codecs, textual: frozenset[int]) -> Described:
    real = [_real(kind, meta) for kind, meta in zip(kinds, metas, strict=True)]
    unsigned = _unsigned(real, fields)
    charsets = _codecs_of(real, fields, codecs, textual)
    members = {**_members(real, v.ENUM, fields.get(_ENUMS), charsets), **_members(real, v.SET, fields.get(_SETS), charsets)}
    names = [name.decode(errors="replace") for name in _strings(fields[_NAMES])]
    columns = (Column(name, place in unsigned, charsets.get(place), members.get(place)) for place, name in enumerate(names))
    key = tuple(_numbers(fields.get(_KEY, b""))) or tuple(_numbers(fields.get(_KEY_WITH_PREFIX, b"")))[::2]
    return Described(tuple(columns), key)


def _described(database: str, name: str, kinds: bytes, described: Described | None) -> Described:
    if described is None:  # dropped since: nobody knows more than what the log has
        return Described(tuple(Column(f"@{place + 1}", False, _UNKNOWN) for place in range(len(kinds))), ())
    if len(described.columns) != len(kinds):
        raise CaptureRefused(
            f"Rows of {database}.{name} were logged with {len(kinds)} columns, it has {len(described.columns)} now, and the log does not "
            "name them: SET GLOBAL binlog_row_metadata = FULL, and let the flows begin anew after the change of the table."
        )
    return described


_UNKNOWN: Final = "?"  # of a column of which nobody knows the character set, nor whether it has any


def _unsigned(real: Sequence[int], fields: Mapping[int, bytes]) -> set[int]:
    flags = fields.get(_SIGNEDNESS, b"")
    numeric = [place for place, kind in enumerate(real) if kind in v.NUMERIC]
    return {place for nth, place in enumerate(numeric) if nth // 8 < len(flags) and flags[nth // 8] & 0x80 >> nth % 8}


def _codecs_of(real: Sequence[int], fields: Mapping[int, bytes], codecs: Codecs, textual: frozenset[int]) -> dict[int, str | None]:
    texts = [place for place, kind in enumerate(real) if kind in textual]
    lists = [place for place, kind in enumerate(real) if kind in (v.ENUM, v.SET)]
    found: dict[int, str | None] = {}
    for places, default, each in ((texts, _CHARSET_DEFAULT, _CHARSETS), (lists, _MEMBER_CHARSET_DEFAULT, _MEMBER_CHARSETS)):
        if default in fields:
            common, *others = _numbers(fields[default])
            exceptions = dict(zip(others[::2], others[1::2], strict=True))
            found.update((place, codecs.get(exceptions.get(nth, common))) for nth, place in enumerate(places))
        elif each in fields:
            found.update((place, codecs.get(collation)) for place, collation in zip(places, _numbers(fields[each]), strict=True))
    return found


def _members(real: Sequence[int], kind: int, packed: bytes | None, codecs: Mapping[int, str | None]) -> dict[int, tuple[str, ...]]:
    if packed is None:
        return {}
    found: dict[int, tuple[str, ...]] = {}
    at = 0
    for place in (place for place, of in enumerate(real) if of == kind):
        count, at = lenenc(packed, at)
        members = []
        for _ in range(count):
            size, begin = lenenc(packed, at)
            at = begin + size
            members.append(packed[begin:at].decode(codecs.get(place) or "utf-8", errors="replace"))
        found[place] = tuple(members)
    return found


def _numbers(packed: bytes) -> list[int]:
    found, at = [], 0
    while at < len(packed):
        number, at = lenenc(packed, at)
        found.append(number)
    return found


def _strings(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        size, begin = lenenc(packed, at)
        at = begin + size
        yield packed[begin:at]


_WIDTHS: Final = {v.TINY: 1, v.SHORT: 2, v.INT24: 3, v.LONG: 4, v.LONGLONG: 8}
_TIMES: Final = {v.TIMESTAMP2: v.timestamp, v.DATETIME2: v.datetime, v.TIME2: v.time}


def _form(kind: int, meta: int, column: Column) -> Form | None:
    if kind in _WIDTHS:
        return v.integer(_WIDTHS[kind], column.unsigned)
    if kind in v.PLAIN:
        return v.PLAIN[kind]
    if kind in _TIMES:
        return _TIMES[kind](meta)
    if kind == v.NEWDECIMAL:
        return v.decimal(meta & 0xFF, meta >> 8)
    if kind == v.BIT:
        return v.bit(meta & 0xFF, meta >> 8)
    if kind == v.JSON:
        return v.document(meta)
    if kind in (v.GEOMETRY, v.VECTOR):
        return v.binary(meta)
    return _string_form(kind, meta, column)


def _string_form(kind: int, meta: int, column: Column) -> Form | None:
    tried = column.codec == _UNKNOWN
    codec = None if tried else column.codec
    if kind == v.BLOB:
        return v.text(meta, codec, tried)
    if kind in (v.VARCHAR, v.VAR_STRING):
        return v.text(2 if meta > 255 else 1, codec, tried)
    if kind == v.VARCHAR_COMPRESSED:
        return v.compressed(2 if meta > 255 else 1, codec)
    if kind == v.BLOB_COMPRESSED:
        return v.compressed(meta, codec)
    real, length = v.string_of(meta) if kind == v.STRING else (kind, meta >> 8)
    if real == v.ENUM:
        return v.enumerated(length, column.members)
    if real == v.SET:
        return v.member_set(length, column.members)
    if real == v.STRING:
        prefix = 2 if length > 255 else 1
        return v.filled(prefix, length) if codec is None and not tried else v.text(prefix, codec, tried)
    return None
