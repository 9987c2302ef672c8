"""JSON documents in the binary form of MySQL, which its log has in them, to the text that CAST(... AS CHAR) shows.

Pure. The form: a byte for the type, then the value. An object or array is the number of its elements, its size in bytes, an entry for each
key (where it stands, how long it is) and for each value (its type, and where it stands; small ones stand in the entry itself). Places count
from after the container's type. What stands in two sizes, `small` and `large`, is in two bytes or in four. Sizes of strings are numbers of
seven bits a byte. What JSON has no type for (dates, decimals, bytes) is `opaque`: MySQL's own type, and the value in its form.
"""

from __future__ import annotations

import json
from base64 import encodebytes
from collections.abc import Callable, Iterator
from decimal import Decimal as Shortest
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias

DEPTH_MAX: Final = 100  # MySQL makes no deeper ones

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL, _STRING, _OPAQUE = 0, 1, 2, 3, 4, 12, 15
_LITERALS: Final = ("null", "true", "false")
_NUMBERS: Final = {5: Struct("<h"), 6: Struct("<H"), 7: Struct("<i"), 8: Struct("<I"), 9: Struct("<q"), 10: Struct("<Q"), 11: Struct("<d")}
# What stands in its entry, of which four bytes or two are for it.
_IN_SMALL: Final = frozenset((_LITERAL, 5, 6))
_IN_LARGE: Final = frozenset((*_IN_SMALL, 7, 8))
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_POINT_MIN, _POINT_MAX = -14, 15  # beyond these a number of the database has an exponent
_LENGTH_BYTES_MAX: Final = 5

DecimalText: TypeAlias = Callable[[int, int, bytes], str]  # of precision, scale and bytes


def text_of(document: bytes, decimal: DecimalText) -> str:
    """Raises ValueError if this is no such document."""
    if not document:
        return "null"  # what the server itself takes it for: INSERT IGNORE leaves it where a value was none
    try:
        return _Document(document, decimal).value(document[0], 1, 1)
    except (LookupError, StructError, OverflowError) as error:
        raise ValueError(f"a JSON document cannot be read: {error!r}") from error


class _Document:
    def __init__(self, data: bytes, decimal: DecimalText) -> None:
        self._data = data
        self._decimal = decimal
        self._left = len(data)  # that may still be read: no byte stands for two values, so that bytes that no server wrote stay small

    def value(self, kind: int, at: int, depth: int) -> str:
        if kind in _NUMBERS:
            (number,) = _NUMBERS[kind].unpack_from(self._data, at)
            self._count(_NUMBERS[kind].size)
            return number_text(number) if isinstance(number, float) else str(number)
        if kind == _LITERAL:
            self._count(1)
            return _LITERALS[self._data[at]]
        if kind == _STRING:
            return json.dumps(self._sized(at).decode(), ensure_ascii=False)
        if kind == _OPAQUE:
            return self._opaque(self._data[at], self._sized(at + 1))
        if depth > DEPTH_MAX:
            raise ValueError(f"a JSON document is deeper than {DEPTH_MAX}")
        if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
            return "{" + ", ".join(self._members(kind == _LARGE_OBJECT, at, depth)) + "}"
        if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
            large = kind == _LARGE_ARRAY
            count, width = self._head(at, large)
            return "[" + ", ".join(self._entries(at, at + 2 * width, count, large, depth)) + "]"
        raise ValueError(f"a JSON document has a value of the type {kind}")

    def _members(self, large: bool, at: int, depth: int) -> Iterator[str]:
        count, width = self._head(at, large)
        keys = at + 2 * width
        values = self._entries(at, keys + count * (width + 2), count, large, depth)
        for entry in range(keys, keys + count * (width + 2), width + 2):
            begin = at + self._number(entry, width)
            key = self._bytes(begin, self._number(entry + width, 2))
            yield f"{json.dumps(key.decode(), ensure_ascii=False)}: {next(values)}"

    def _entries(self, of: int, at: int, count: int, large: bool, depth: int) -> Iterator[str]:
        width, inside = (4, _IN_LARGE) if large else (2, _IN_SMALL)
        for entry in range(at, at + count * (width + 1), width + 1):
            kind = self._data[entry]
            yield self.value(kind, entry + 1 if kind in inside else of + self._number(entry + 1, width), depth + 1)

    def _head(self, at: int, large: bool) -> tuple[int, int]:
        width = 4 if large else 2
        count, size = self._number(at, width), self._number(at + width, width)
        if at + size > len(self._data):
            raise ValueError("a JSON document is cut")
        self._count(2 * width)
        return count, width

    def _number(self, at: int, width: int) -> int:
        if at + width > len(self._data):
            raise ValueError("a JSON document is cut")
        return int.from_bytes(self._data[at : at + width], "little")

    def _sized(self, at: int) -> bytes:
        size = 0
        for place in range(_LENGTH_BYTES_MAX):
            octet = self._data[at + place]
            size |= (octet & 0x7F) << 7 * place
            if octet < 0x80:
                return self._bytes(at + place + 1, size)
        raise ValueError("a JSON document has a string of no length")

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise ValueError("a JSON document is cut")
        self._count(size + 1)
        return self._data[at : at + size]

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("a JSON document has one place for several values")

    def _opaque(self, kind: int, data: bytes) -> str:
        if kind == _DECIMAL:
            return self._decimal(data[0], data[1], data[2:])
        if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
            (packed,) = _NUMBERS[9].unpack(data)
            return f'"{_time_text(kind, packed)}"'
        return json.dumps(f"base64:type{kind}:{encodebytes(data).decode().rstrip()}")


def _time_text(kind: int, packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    clock, day = packed >> 24 & 0x1FFFF, packed >> 41
    month = day >> 5
    date = f"{month // 13:04d}-{month % 13:02d}-{day & 31:02d}"
    if kind == _DATE:
        return date
    # A TIME has no day, and hours that are more than a day's.
    hour = packed >> 36 & 1023 if kind == _TIME else clock >> 12
    time = f"{hour:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{packed & 0xFFFFFF:06d}"
    return sign + time if kind == _TIME else f"{date} {time}"


def number_text(number: float) -> str:
    """As the database writes it: the shortest digits that mean the same number, with an exponent where zeros would be many."""
    sign, digits, exponent = Shortest(repr(number)).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a JSON document has {number!r} for a number")
    text = "".join(map(str, digits))
    point = len(text) + exponent  # before which digit it stands
    text = text.rstrip("0") or "0"
    minus = "-" if sign else ""
    if text == "0":
        return f"{minus}0.0"
    if not (point >= _POINT_MIN and (point <= _POINT_MAX or len(text) > point)):
        return f"{minus}{text[0]}{'.' if text[1:] else ''}{text[1:]}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
