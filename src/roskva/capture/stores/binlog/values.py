"""The values of a row, as MariaDB and MySQL write them into their binary log.

Pure. A form reads the values of one column: `read(data, at)` answers the value and where the next one begins. What a column becomes:

| column | value |
|---|---|
| integers of every size, YEAR, BIT | int |
| FLOAT, DOUBLE | float; a FLOAT as the shortest number that is stored as the same |
| DECIMAL | text, with all its digits |
| CHAR, VARCHAR, TEXT, JSON (of MariaDB) | text; bytes if they are none in the column's character set, or Python does not know that |
| BINARY, VARBINARY, BLOB, UUID, INET6, INET4 | bytes, as they are stored (BINARY filled up with zeros) |
| ENUM, SET | text, a set's members with commas; the number that is stored if the log does not name the members |
| DATE, TIME, DATETIME | text, as the database writes them |
| TIMESTAMP | text, in UTC |
| VECTOR of MySQL | bytes: numbers of four bytes each |
| spatial | bytes: the SRID (4 bytes, little end first) and the WKB |
| JSON of MySQL | text, as the database writes it (`documents`) |
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from roskva.capture.stores.binlog.documents import text_of
from roskva.capture.updates import Value

Read: TypeAlias = Callable[[bytes, int], tuple[Value, int]]


class Form(NamedTuple):
    read: Read
    size: int  # in bytes; below 0: so many bytes before the value say its length
    code: str = ""  # struct's, if it has one for such values: those of neighbours are read in one go


TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR = 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13
NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED, VARCHAR_COMPRESSED = 14, 15, 16, 17, 18, 19, 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255

NUMERIC: Final = frozenset((TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, YEAR, NEWDECIMAL))
# Counted where character sets are listed; MariaDB counts spatial columns, too.
TEXTUAL: Final = frozenset((VARCHAR, VAR_STRING, STRING, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED))

# Python's name of a character set of the server. Others, and `binary`, stay bytes.
CODECS: Final = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "cp1252", "latin2": "iso8859-2",
    "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7", "hebrew": "iso8859-8", "cp1250": "cp1250", "cp1251": "cp1251",
    "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u",
    "big5": "big5", "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "sjis": "shift-jis", "cp932": "cp932", "ujis": "euc-jp",
    "eucjpms": "euc-jp", "euckr": "euc-kr", "tis620": "tis-620", "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le",
    "utf32": "utf-32-be", "macroman": "mac-roman", "macce": "mac-latin2",
}  # fmt: skip

_DIGITS: Final = 9  # that a decimal packs into four bytes
_BYTES_OF_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_CODES: Final = {
    (1, False): "b",
    (1, True): "B",
    (2, False): "h",
    (2, True): "H",
    (4, False): "i",
    (4, True): "I",
    (8, False): "q",
    (8, True): "Q",
}
_SINGLE: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
_TWO: Final = tuple(f"{number:02d}" for number in range(1024))  # numbers of clocks, of which formatting is most of the work


def integer(width: int, unsigned: bool) -> Form:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        return int.from_bytes(data[at : at + width], "little", signed=not unsigned), at + width

    return Form(read, width, _CODES.get((width, unsigned), ""))


def _year(data: bytes, at: int) -> tuple[Value, int]:
    return (1900 + data[at] if data[at] else 0), at + 1


def _single(data: bytes, at: int) -> tuple[Value, int]:
    """0.1 was written, and a double shows 0.10000000149011612 for what is stored: the shortest that is stored alike is meant."""
    (stored,) = _SINGLE.unpack_from(data, at)
    for digits in (6, 7, 8):
        short = float(f"{stored:.{digits}g}")
        with suppress(OverflowError):  # rounded up from the largest there is
            if _SINGLE.pack(short) == data[at : at + 4]:
                return short, at + 4
    return stored, at + 4


def _double(data: bytes, at: int) -> tuple[Value, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def bit(bits: int, octets: int) -> Form:
    width = octets + (1 if bits else 0)
    return Form(lambda data, at: (int.from_bytes(data[at : at + width], "big"), at + width), width)


def decimal(precision: int, scale: int) -> Form:
    """Groups of nine digits, each in four bytes, the largest first; the first bit is the sign, and a negative number is inverted."""
    whole = precision - scale
    lead, trail = whole % _DIGITS, scale % _DIGITS
    whole_bytes = whole // _DIGITS * 4 + _BYTES_OF_DIGITS[lead]
    rest_bits = 8 * (scale // _DIGITS * 4 + _BYTES_OF_DIGITS[trail])
    width = whole_bytes + rest_bits // 8
    positive, ones, rest_mask = 1 << (width * 8 - 1), (1 << (width * 8)) - 1, (1 << rest_bits) - 1

    def read(data: bytes, at: int) -> tuple[Value, int]:
        number = int.from_bytes(data[at : at + width], "big") ^ positive
        sign = ""
        if number & positive:
            sign, number = "-", number ^ ones
        if whole <= _DIGITS and scale <= _DIGITS:
            return f"{sign}{number >> rest_bits}.{number & rest_mask:0{scale}d}" if scale else f"{sign}{number}", at + width
        raw = number.to_bytes(width, "big")
        digits = _packed_digits(raw[:whole_bytes], lead, first=True).lstrip("0") or "0"
        fraction = _packed_digits(raw[whole_bytes:], trail, first=False)
        return f"{sign}{digits}.{fraction}" if scale else sign + digits, at + width

    return Form(read, width)


def _packed_digits(raw: bytes, odd: int, first: bool) -> str:
    """`odd` digits stand in fewer bytes, at the beginning or at the end."""
    odd_bytes = _BYTES_OF_DIGITS[odd]
    at = odd_bytes if first else 0
    groups = (len(raw) - odd_bytes) // 4
    text = "".join(f"{int.from_bytes(raw[at + 4 * group : at + 4 * group + 4], 'big'):09d}" for group in range(groups))
    if not odd:
        return text
    rest = raw[:odd_bytes] if first else raw[len(raw) - odd_bytes :]
    shown = f"{int.from_bytes(rest, 'big'):0{odd}d}"
    return shown + text if first else text + shown


def text(prefix: int, codec: str | None, tried: bool = False) -> Form:
    """`prefix` bytes of length, then the value. `tried`: nobody knows whether it is text, so it is if it can be."""
    if codec is None and not tried:
        return binary(prefix)
    known = codec or "utf-8"

    def short(data: bytes, at: int) -> tuple[Value, int]:
        begin = at + 1
        end = begin + data[at]
        try:
            return data[begin:end].decode(known), end
        except UnicodeDecodeError:
            return data[begin:end], end

    def long(data: bytes, at: int) -> tuple[Value, int]:
        begin = at + prefix
        end = begin + int.from_bytes(data[at:begin], "little")
        try:
            return data[begin:end].decode(known), end
        except UnicodeDecodeError:
            return data[begin:end], end

    return Form(short if prefix == 1 else long, -prefix)


def binary(prefix: int) -> Form:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        begin = at + prefix
        end = begin + int.from_bytes(data[at:begin], "little")
        return data[begin:end], end

    return Form(read, -prefix)


def document(prefix: int) -> Form:
    """JSON of MySQL."""
    bare = binary(prefix).read

    def read(data: bytes, at: int) -> tuple[Value, int]:
        value, end = bare(data, at)
        assert isinstance(value, bytes)
        return text_of(value, _decimal_of), end

    return Form(read, -prefix)


def _decimal_of(precision: int, scale: int, packed: bytes) -> str:
    value, end = decimal(precision, scale).read(packed, 0)
    if not isinstance(value, str) or end != len(packed):
        raise ValueError(f"a decimal of {precision} digits is not in {len(packed)} bytes")
    return value


def filled(prefix: int, length: int) -> Form:
    """BINARY(n): the log leaves out the zeros at its end."""
    bare = binary(prefix).read

    def read(data: bytes, at: int) -> tuple[Value, int]:
        value, end = bare(data, at)
        assert isinstance(value, bytes)
        return value.ljust(length, b"\0"), end

    return Form(read, -prefix)


def compressed(prefix: int, codec: str | None) -> Form:
    """COMPRESSED columns of MariaDB: a byte that says how, the length of what was packed, and that."""
    bare = binary(prefix).read

    def read(data: bytes, at: int) -> tuple[Value, int]:
        packed, end = bare(data, at)
        assert isinstance(packed, bytes)
        value = unpacked(packed)
        try:
            return (value.decode(codec) if codec else value), end
        except UnicodeDecodeError:
            return value, end

    return Form(read, -prefix)


def unpacked(packed: bytes) -> bytes:
    if not packed:
        return packed
    how = packed[0]
    if not how & 0xF0:
        return packed[1:]
    return zlib.decompress(packed[1 + (how & 0x07) :], -zlib.MAX_WBITS if how & 0x08 else zlib.MAX_WBITS)


def enumerated(width: int, members: Sequence[str] | None) -> Form:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        number = int.from_bytes(data[at : at + width], "little")
        if members is None or number > len(members):
            return number, at + width
        return (members[number - 1] if number else ""), at + width  # 0: what was written was no member

    return Form(read, width)


def member_set(width: int, members: Sequence[str] | None) -> Form:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        number = int.from_bytes(data[at : at + width], "little")
        if members is None or number >> len(members):
            return number, at + width
        return ",".join(member for place, member in enumerate(members) if number >> place & 1), at + width

    return Form(read, width)


def _date(data: bytes, at: int) -> tuple[Value, int]:
    number = int.from_bytes(data[at : at + 3], "little")
    return f"{number >> 9:04d}-{number >> 5 & 15:02d}-{number & 31:02d}", at + 3


def datetime(digits: int) -> Form:
    width = 5 + (digits + 1) // 2

    def read(data: bytes, at: int) -> tuple[Value, int]:
        number = int.from_bytes(data[at : at + 5], "big") ^ 1 << 39
        shown = f"{_packed_day(number >> 17)} {_TWO[number >> 12 & 31]}:{_TWO[number >> 6 & 63]}:{_TWO[number & 63]}"
        if digits:
            shown += _fraction(int.from_bytes(data[at + 5 : at + width], "big"), digits)
        return shown, at + width

    return Form(read, width)


def timestamp(digits: int) -> Form:
    width = 4 + (digits + 1) // 2

    def read(data: bytes, at: int) -> tuple[Value, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        return utc(seconds) + _fraction(int.from_bytes(data[at + 4 : at + width], "big"), digits), at + width

    return Form(read, width)


def time(digits: int) -> Form:
    octets = (digits + 1) // 2
    width, zero = 3 + octets, 1 << (8 * (3 + octets) - 1)

    def read(data: bytes, at: int) -> tuple[Value, int]:
        number = int.from_bytes(data[at : at + width], "big") - zero
        sign, number = ("-", -number) if number < 0 else ("", number)
        clock = number >> 8 * octets
        fraction = _fraction(number & (1 << 8 * octets) - 1, digits)
        return f"{sign}{_TWO[clock >> 12 & 1023]}:{_TWO[clock >> 6 & 63]}:{_TWO[clock & 63]}{fraction}", at + width

    return Form(read, width)


def _old_timestamp(data: bytes, at: int) -> tuple[Value, int]:
    return utc(int.from_bytes(data[at : at + 4], "little")), at + 4


def _old_datetime(data: bytes, at: int) -> tuple[Value, int]:
    shown = f"{int.from_bytes(data[at : at + 8], 'little'):014d}"
    return f"{shown[:4]}-{shown[4:6]}-{shown[6:8]} {shown[8:10]}:{shown[10:12]}:{shown[12:14]}", at + 8


def _old_time(data: bytes, at: int) -> tuple[Value, int]:
    number = int.from_bytes(data[at : at + 3], "little", signed=True)
    sign, number = ("-", -number) if number < 0 else ("", number)
    return f"{sign}{number // 10000:02d}:{number // 100 % 100:02d}:{number % 100:02d}", at + 3


def _fraction(stored: int, digits: int) -> str:
    """One, two or three bytes hold hundredths, ten thousandths or millionths."""
    return f".{stored:0{(digits + 1) // 2 * 2}d}"[: digits + 1] if digits else ""


def utc(seconds: int) -> str:
    if not seconds:
        return "0000-00-00 00:00:00"  # what the database shows for it
    days, second = divmod(seconds, 86_400)
    return f"{_day(days)} {_TWO[second // 3600]}:{_TWO[second // 60 % 60]}:{_TWO[second % 60]}"


@lru_cache(1024)
def _packed_day(number: int) -> str:
    month = number >> 5
    return f"{month // 13:04d}-{month % 13:02d}-{number & 31:02d}"


@lru_cache(1024)
def _day(days: int) -> str:
    """The day so many after 1970-01-01. Years are counted from March, so that the odd day comes last."""
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return f"{era * 400 + year + (month <= 2):04d}-{month:02d}-{of_year - (153 * shifted + 2) // 5 + 1:02d}"


# Those of one form, whatever stands beside them.
PLAIN: Final[Mapping[int, Form]] = {
    FLOAT: Form(_single, 4), DOUBLE: Form(_double, 8, "d"), YEAR: Form(_year, 1), DATE: Form(_date, 3), NEWDATE: Form(_date, 3),
    TIMESTAMP: Form(_old_timestamp, 4), DATETIME: Form(_old_datetime, 8), TIME: Form(_old_time, 3),
}  # fmt: skip


@cache
def string_of(meta: int) -> tuple[int, int]:
    """What the two bytes beside a STRING mean: its real type and its length. Two bits of a length above 255 hide in the type."""
    kind, length = meta & 0xFF, meta >> 8
    if kind & 0x30 != 0x30:
        return kind | 0x30, length | (kind & 0x30 ^ 0x30) << 4
    return kind, length
