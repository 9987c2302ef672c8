"""How an input is broken: its structure (JSON, msgpack, lines of TOML, base64) is taken apart and put together wrongly, or its bytes are.

Everything is drawn from the one `Random` that is given: the same seed, the same inputs.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec

BYTES_MAX: Final = 64 << 10  # of an input
_NODES_MAX: Final = 2_000  # of a tree that is taken apart
_DEPTHS: Final = (2, 30, 200, 1_500, 30_000)


class Pairs(list[Any]):
    """A JSON object as [key, value] pairs: a key may come twice."""


class Verbatim(str):
    """Written as it stands, and not as a JSON text."""

    __slots__ = ()


ODD_TEXTS: Final = (
    "", " ", "\0", "\x7f", "\n", "\t", "\\", '"', "'", "\ud800", "\udfff\ud800", "\ufeff", "\ufffe", "\u202e", "\u2028", "e\u0301", "é",
    "😀", "\U0010ffff", "٣", "²", "-1", "+1", "1e5", "0x10", "1_000", "00", "9223372036854775807", "9223372036854775808", "base64:",
    "base64:_wA", "base64:=", "base64:a", "../..", "%00", "{sub}", "*", "null", "true", "a" * 129, "ü" * 65, "a" * 513, "9" * 4_400,
)  # fmt: skip
ODD_VALUES: Final = (
    None, True, False, 0, 1, -1, 255, 256, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, 1e300,
    *(Verbatim(text) for text in ("1e999", "-1e999", "1e-999", "-0", "-0.0", "1.0", "1e2", "01", "NaN", "Infinity", "9" * 4_400, "")),
    *ODD_TEXTS,
)  # fmt: skip
ODD_TOML: Final = (
    "true", "0", "-1", "1e400", "inf", "nan", "9" * 400, "9" * 4_400, "0x10", "1_0", "0.0", "1979-05-27", "''", '"\\u0000"', '"~nobody/x"',
    '"64 MiB"', '"9e99 TiB"', "[]", "[1]", "[[]]", '["a"]', "{a = 1}", '""" \n """', '"[::1]:99999"', '"\\U0010ffff"', "[" * 2_000,
)  # fmt: skip


def mutate(chance: Random, data: bytes, pool: Sequence[bytes], structure: Callable[[Random, bytes, bytes], bytes]) -> bytes:
    """One to a few steps, most of them of the input's structure."""
    for _ in range(1 if chance.random() < 0.6 else chance.randint(2, 6)):
        other = chance.choice(pool)
        data = structure(chance, data, other) if chance.random() < 0.7 else of_bytes(chance, data, other)
    return data[:BYTES_MAX]


def of_bytes(chance: Random, data: bytes, other: bytes) -> bytes:
    start, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    match chance.randrange(8):
        case 0 if data:  # one bit
            at = chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:  # cut off
            return data[:start]
        case 2:  # a part is missing
            return data[:start] + data[end:]
        case 3:  # a part comes again and again
            return data[:end] + data[start:end] * chance.choice((1, 2, 50)) + data[end:]
        case 4:  # something else in between
            return data[:start] + chance.randbytes(chance.choice((1, 2, 8))) + data[start:]
        case 5:
            return data[:start] + chance.choice(ODD_TEXTS).encode(errors="surrogatepass") + data[end if chance.random() < 0.5 else start :]
        case 6:  # one begins, another goes on
            return data[:start] + other[chance.randint(0, len(other)) :]
        case _:
            return other


def of_json(chance: Random, data: bytes, other: bytes) -> bytes:
    try:
        tree, donor = (json.loads(one, object_pairs_hook=lambda pairs: Pairs(map(list, pairs))) for one in (data, other))
        holder = [tree]
        _change(chance, holder, donor)
        text = _written(holder[0], chance.random() < 0.5) if holder else ""
    except (ValueError, RecursionError):
        return of_bytes(chance, data, other)
    return text.encode(errors="surrogatepass")


def of_frames(chance: Random, data: bytes, other: bytes) -> bytes:
    """Frames of the internal port: a length of four bytes, then msgpack. The first one is changed."""
    try:
        tree, donor = (msgspec.msgpack.decode(one[4 : 4 + int.from_bytes(one[:4], "big")]) for one in (data, other))
        holder = [tree]
        _change(chance, holder, donor)
        body = msgspec.msgpack.encode(holder[0]) if holder else b""
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, TypeError):
        return of_bytes(chance, data, other)
    if chance.random() < 0.1 and body and 0x90 <= body[0] < 0x9F:  # one more element, nested deeply
        body = bytes([body[0] + 1]) + body[1:] + b"\x91" * chance.choice(_DEPTHS) + b"\xc0"
    length = len(body) if chance.random() < 0.9 else chance.choice((0, 1, len(body) - 1, len(body) + 1, 4_097, 2**32 - 1)) % 2**32
    return length.to_bytes(4, "big") + body + (other if chance.random() < 0.3 else b"")


def of_toml(chance: Random, data: bytes, other: bytes) -> bytes:
    lines, donors = data.split(b"\n"), other.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, chance.choice(donors))
        case 2:
            lines.insert(at, chance.choice(lines))
        case _:
            name, equals, _ = (lines[at] if b"=" in lines[at] else chance.choice(donors)).partition(b"=")
            lines[at] = name + equals + b" " + chance.choice(ODD_TOML).encode()
    return b"\n".join(lines)


def of_base64(chance: Random, data: bytes, other: bytes) -> bytes:
    """A token: what is inside is changed, and it is written out properly again. Of several parts, one."""
    parts, donors = data.split(b"."), other.split(b".")
    at = chance.randrange(len(parts))
    try:
        inside, donor = (base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in (parts[at], chance.choice(donors)))
    except ValueError:
        return of_bytes(chance, data, other)
    changed = (of_json if inside[:1] == b"{" and chance.random() < 0.7 else of_bytes)(chance, inside, donor)
    parts[at] = base64.urlsafe_b64encode(changed).rstrip(b"=")
    return b".".join(parts)


def _change(chance: Random, holder: list[Any], donor: Any) -> None:
    """One change somewhere in the tree that `holder` holds."""
    places = _places(holder)
    inside, at = chance.choice(places)
    match chance.randrange(8):
        case 0:
            del inside[at]
        case 1:
            inside.insert(at, copy.deepcopy(inside[at]))
        case 2:  # a key, if it is one of a pair
            if isinstance(inside, Pairs):
                inside[at][0] = chance.choice((*ODD_TEXTS, inside[0][0]))
            else:
                inside[at] = [inside[at]]
        case 3:
            depth = chance.choice(_DEPTHS)
            opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
            _put(inside, at, Verbatim(opening * depth + "1" + closing * depth))
        case 4:
            from_inside, from_at = chance.choice(_places([donor]))
            given = copy.deepcopy(from_inside[from_at])
            if isinstance(inside, Pairs) and isinstance(from_inside, Pairs):
                inside.insert(at, given)
            else:
                _put(inside, at, given[1] if isinstance(from_inside, Pairs) else given)
        case 5 if isinstance(inside, Pairs) and isinstance(inside[at][1], str):
            text = inside[at][1]
            cut = chance.randint(0, len(text))
            inside[at][1] = text[:cut] + chance.choice(ODD_TEXTS) + text[cut:]
        case 6 if isinstance(inside, Pairs) and isinstance(inside[at][1], list):
            inside[at][1] *= chance.choice((0, 2, 300))
        case _:
            _put(inside, at, chance.choice(ODD_VALUES))


def _put(inside: list[Any], at: int, value: Any) -> None:
    if isinstance(inside, Pairs):
        inside[at][1] = value
    else:
        inside[at] = value


def _places(holder: list[Any]) -> list[tuple[list[Any], int]]:
    """Every list or object of the tree, with each of its indexes."""
    places: list[tuple[list[Any], int]] = []
    waiting: list[Any] = [holder]
    while waiting and len(places) < _NODES_MAX:
        inside = waiting.pop()
        places += [(inside, at) for at in range(len(inside))]
        values = [pair[1] for pair in inside] if isinstance(inside, Pairs) else inside
        waiting += [value for value in values if isinstance(value, list)]
    return places


def _written(tree: Any, ascii_only: bool) -> str:
    if isinstance(tree, Verbatim):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=ascii_only)}:{_written(value, ascii_only)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(_written(value, ascii_only) for value in tree) + "]"
    if isinstance(tree, int) and not isinstance(tree, bool) and abs(tree) > 10**300:
        return "9" * 400  # more digits than Python prints would stop it
    return json.dumps(tree, ensure_ascii=ascii_only)
