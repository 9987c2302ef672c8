"""The shard of a row: from a column or a rule, written as text (Wormhole 2: "each update to the dataset is assigned a unique shard"). Pure.

    0                            one shard for everything
    shard_id   column(shard_id)  the number that the column holds
    user_id % 64                 the remainder of a whole number; never negative
    hash(user_id) % 64           of any value, also of several: hash(tenant, user_id) % 64
    hash(primary key) % 64       of all columns of the row's key, in the order of their names

`hash` is the CRC-32 of zlib, which is MySQL's CRC32(), of the UTF-8 of the value as text: whole numbers in decimal digits, true and false,
other numbers in the shortest form that reads the same, bytes as they are; several values with the byte 1F between them. It is the same in
every process, version and replica, and whoever writes the rows can compute it: `zlib.crc32(str(user_id).encode()) % 64`. A column is
looked for in the row, then in its key, then in what the producer attached. Names that are no plain words stand in quotes: "my column" % 64.

Where a row goes when its shard cannot be told is shard 0, always, and counted in `misplaced` by the reason; a message, which is of no row,
is in shard 0, too, unless it says otherwise, and not counted:

    missing        the log does not have the column: of a deleted row it has the key alone, unless its table says otherwise (Postgres:
                   REPLICA IDENTITY FULL); of an update not what it left unchanged and large (TOAST); or there is no such column
    null           the column is NULL
    not a number   and the rule needs a whole one
    out of range   a column's number is no shard: less than 0, or not less than the number of shards

Order is promised within a shard: a rule over the key, or a part of it, has every update of a row in one shard. A change of the key that
moves the row comes in both shards, the old and the new, so that each learns of it; a truncated table, and the deletion of a range, comes in
every shard. A rule over another column is right only if that column never changes and deletions carry it: without it they are in shard 0,
and may overtake earlier changes of their row in its own shard. `capture check` finds such tables; `capture status` and the metrics show
`misplaced`.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from roskva.capture.updates import Change, Columns, Operation, Value, of_many
from roskva.errors import InvalidFilter

SHARDS_MAX: Final = 8_192
RULE_CHARACTERS_MAX: Final = 1_024
HASHED_MAX: Final = 16  # columns in one hash
_BETWEEN: Final = b"\x1f"
_NAME: Final = r'(?:[^\W\d]\w*|"(?:[^"]|"")+")'
_RULE: Final = re.compile(
    rf"\s*(?:(?P<number>[0-9]+)"
    rf"|(?P<call>column|hash)\s*\(\s*(?P<names>primary\s+key|{_NAME}(?:\s*,\s*{_NAME})*)\s*\)"
    rf"|(?P<column>{_NAME}))\s*"
)
_MODULO: Final = re.compile(r"%\s*([0-9]{1,10})\s*")
_INTEGER: Final = re.compile(r"-?[0-9]{1,100}")

Number: TypeAlias = "int | str"  # of a row; or why there is none


@dataclass(frozen=True, slots=True)
class Rule:
    """`columns` empty: the primary key, if it is hashed; else `modulo` holds the one shard there is, which is 0."""

    columns: tuple[str, ...]
    hashed: bool = False
    modulo: int | None = None

    def __str__(self) -> str:
        """As it would be written: `parse_rule` reads the same out of it."""
        if not self.columns and not self.hashed:
            return "0"
        names = ", ".join(map(_written, self.columns))
        text = f"hash({names or 'primary key'})" if self.hashed else names
        return text if self.modulo is None else f"{text} % {self.modulo}"


ONE_SHARD: Final = Rule(())


def parse_rule(text: str, shards: int) -> Rule:
    """Raises InvalidFilter, with the place, for what is no rule, or one that leads beyond the number of shards."""
    if len(text) > RULE_CHARACTERS_MAX:
        raise _refused(text, RULE_CHARACTERS_MAX, f"it has {len(text):,} characters, and {RULE_CHARACTERS_MAX:,} are allowed")
    found = _RULE.match(text)
    if found is None:
        raise _refused(text, 0, _guess(text))
    if found["number"] is not None:
        if int(found["number"]) != 0 or found.end() != len(text):
            raise _refused(text, 0, "a number alone can be 0 only, which is one shard for everything")
        return ONE_SHARD
    call = found["call"]
    hashed = call == "hash"
    primary = found["names"] is not None and re.fullmatch(r"primary\s+key", found["names"]) is not None
    columns = () if primary else tuple(_unquoted(name) for name in re.findall(_NAME, found["names"] or found["column"]))
    if primary and not hashed:
        raise _refused(text, found.start("names"), "a key may have several columns: write hash(primary key)")
    if len(columns) > (HASHED_MAX if hashed else 1):
        raise _refused(text, found.start("names"), f"{HASHED_MAX} columns can be hashed, and column(...) takes one")
    modulo = _MODULO.fullmatch(text, found.end())
    if modulo is None and found.end() != len(text):
        hint = "" if found["call"] else _guess(text, called=text[found.start("column") : found.end("column")])
        raise _refused(text, found.end(), "% and a number of shards, or the end, is expected" + (f" ({hint})" if hint else ""))
    if modulo is None:
        if hashed:
            raise _refused(text, len(text), f"a hash is far larger than a shard: write % {shards} after it")
        return Rule(columns)
    if not 1 <= int(modulo[1]) <= shards:
        raise _refused(text, modulo.start(1), f"the dataset has {shards:,} shards, so the remainder can be of 1 to {shards:,}")
    return Rule(columns, hashed, int(modulo[1]))


def _guess(text: str, called: str = "") -> str:
    known = ("column", "hash")
    word = called or (re.match(r"\s*(\w*)", text) or [""])[0].strip()
    near = difflib.get_close_matches(word[:32].lower(), known, n=1)
    if called:
        return f"did you mean {near[0]}?" if near and "(" in text else ""
    return "a column's name, column(NAME), NAME % NUMBER or hash(NAME) % NUMBER is expected"


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _written(name: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*", name) and name not in ("hash", "column"):
        return name
    return '"' + name.replace('"', '""') + '"'


def _refused(text: str, at: int, reason: str) -> InvalidFilter:
    return InvalidFilter("shard's rule", text, at, reason)


class Sharding:
    """The rules of a dataset: one for all tables, and others for some. Asked for every change.

    `misplaced` counts by reason; nothing else is kept. Belongs to one thread, or is a little wrong in what it counts.
    """

    def __init__(self, shards: int, rule: Rule = ONE_SHARD, tables: Mapping[str, Rule] | None = None) -> None:
        self.shards = shards
        self.misplaced = {"missing": 0, "null": 0, "not a number": 0, "out of range": 0}
        self._of_all = _compiled(rule, shards)
        self._of_tables = {table: _compiled(one, shards) for table, one in (tables or {}).items()}
        self._only_one = shards == 1
        self._every = tuple(range(shards))

    def shards_of(self, change: Change) -> tuple[int, ...]:
        """Almost always one; two if the row moved from one to the other (the old one first); all if rows went that nobody names."""
        if self._only_one:
            return (0,)
        operation = change.operation
        if (operation is Operation.TRUNCATE or operation is Operation.MESSAGE) and of_many(change):
            return self._every
        rule = self._of_tables.get(change.table, self._of_all)
        shard = rule(change.columns, change.key, change.attached)
        if isinstance(shard, str):
            shard = 0 if operation is Operation.MESSAGE else self._place(shard)
        if change.old_key is None:
            return (shard,)
        before = self._place(rule({**change.columns, **change.old_key}, change.old_key, change.attached))
        return (shard,) if before == shard else (before, shard)

    def _place(self, found: Number) -> int:
        if isinstance(found, int):
            return found
        self.misplaced[found] += 1
        return 0


_Compiled: TypeAlias = Callable[[Columns, Columns, Columns | None], Number]


def _compiled(rule: Rule, shards: int) -> _Compiled:
    modulo = rule.modulo
    if rule.hashed:
        assert modulo is not None
        return _hashed(rule.columns, modulo)
    if not rule.columns:
        return lambda columns, key, attached: 0
    (name,) = rule.columns

    def of_number(columns: Columns, key: Columns, attached: Columns | None) -> Number:
        value = _value(name, columns, key, attached)
        if value is None:
            return "null" if name in columns else "missing"
        number = _whole(value)
        if number is None:
            return "not a number"
        if modulo is not None:
            return number % modulo
        return number if 0 <= number < shards else "out of range"

    return of_number


def _hashed(names: tuple[str, ...], modulo: int) -> _Compiled:
    name = names[0] if len(names) == 1 else None

    def of_one(columns: Columns, key: Columns, attached: Columns | None) -> Number:
        value = columns.get(name)  # type: ignore[arg-type]  # it is asked if there is one only
        if type(value) is int:
            return zlib.crc32(b"%d" % value) % modulo
        return of_hash(columns, key, attached)

    def of_hash(columns: Columns, key: Columns, attached: Columns | None) -> Number:
        texts = []
        for name in names or sorted(key):
            value = _value(name, columns, key, attached)
            if value is None:
                return "null" if name in columns else "missing"
            texts.append(_as_bytes(value))
        return zlib.crc32(_BETWEEN.join(texts)) % modulo if texts else "missing"

    return of_hash if name is None else of_one  # the most usual one, and quicker


def _value(name: str, columns: Columns, key: Columns, attached: Columns | None) -> Value:
    if name in columns:
        return columns[name]
    if name in key:
        return key[name]
    return None if attached is None else attached.get(name)


def _whole(value: Value) -> int | None:
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if isinstance(value, str):  # large ones come as text
        return int(value) if _INTEGER.fullmatch(value) else None
    return None


def _as_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode(errors="surrogatepass")
