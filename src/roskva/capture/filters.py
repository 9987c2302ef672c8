"""Filters: which updates an application wants, written as text and asked in the publisher (Wormhole 3.2). Pure.

    [topic = "aq"] OR [mcd_key exists]
    [table in ("t1", "t2")] OR [association_type = "a1" AND shard in 1..5000]
    [table = "documents" AND not operation = "delete" AND key.id in 1.. AND title matches "[A-Z].*"]
    []

A filter is groups joined by OR, a group is basic filters joined by AND, and `[]`, which asks for nothing, lets everything through. A basic
filter is a key and one of these, with `not` before the key for its opposite:

    KEY exists              it is there, and not NULL
    KEY = VALUE             "text" (\\" and \\\\ for the two characters), a number, true, false
    KEY in (VALUE, VALUE)   is one of them
    KEY in 1..5000          a number from 1 to 5000, both included; 1.. and ..5000 are open
    KEY matches "..."       the whole text matches the regular expression (expressions.py says which ones)

Keys: `table`, `database`, `operation` (insert, update, delete, truncate, message) and `shard` are of the update itself. `column.NAME` is a
column after the change, of a deleted row what the log has of it; `key.NAME` a column of its key; `old.NAME` a column of its key before the
change, if that changed it; `attached.NAME` what the producer wrote beside its transaction. NAME alone is the first of column, key and
attached that is there. A name that is no plain word is written in quotes after its prefix: column."my column".

What is missing or NULL exists not, equals nothing, is in nothing and matches nothing: so `not` of these is true. Text is compared with
text, and with bytes that are its UTF-8. A number is compared with numbers, and with text that is one in decimal digits (databases' numeric
comes as such); true and false are no numbers. Of an update only what is true after it is asked: a row that leaves what a filter describes
by an UPDATE is not told of. Who must know of it asks for the table alone, and looks at the columns itself.

What cannot be decided passes, with `not` and without: what the log may have left out, and a text longer than VALUE_CHARACTERS_MAX before a
regular expression. The application gets too much then, never too little. The log leaves out

- an unchanged column that is large (TOAST), also of the key;
- of a deleted row all but its key, unless its table says otherwise (Postgres: REPLICA IDENTITY FULL; MariaDB: binlog_row_image = FULL).
  A deletion that has more than the key is of the whole row, so that what is missing from it is missing from the row;
- columns and keys of the rows of a TRUNCATE, and of the deletion of a range (RocksDB). What is `attached` to these is asked as ever, and
  `old.NAME` is of nothing but a change of the key.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from roskva.capture.expressions import BadExpression, compile_expression
from roskva.capture.updates import Operation
from roskva.errors import InvalidFilter

FILTER_CHARACTERS_MAX: Final = 65_536
VALUE_CHARACTERS_MAX: Final = 4_096  # of a text that a regular expression is asked about
NUMBER_DIGITS_MAX: Final = 100  # of a text that counts as a number

OF_UPDATE: Final = ("table", "database", "operation", "shard")
PREFIXES: Final = ("column", "key", "old", "attached")
_WORDS: Final = frozenset({"and", "or", "not", "exists", "in", "matches", "true", "false", *OF_UPDATE, *PREFIXES})
_NAME: Final = re.compile(r"[^\W\d]\w*")
NUMBER: Final = re.compile(r"-?[0-9]{1,100}(?:\.[0-9]{1,100})?", re.ASCII)
_TOKEN: Final = re.compile(r"(?P<number>-?[0-9]+(?:\.[0-9]+)?)|(?P<name>[^\W\d]\w*)|(?P<sign>\.\.|!=|==|<>|<=|>=|.)", re.DOTALL)
# What people write in other languages, and what it is here.
_ELSEWHERE: Final = {
    "!=": "write not KEY = VALUE",
    "<>": "write not KEY = VALUE",
    "==": "write one =",
    "<": "write KEY in ..VALUE",
    "<=": "write KEY in ..VALUE",
    ">": "write KEY in VALUE..",
    ">=": "write KEY in VALUE..",
    "~": 'write KEY matches "..."',
    "like": 'write KEY matches "..."',
    "is": "write KEY exists, or not KEY exists",
    "not": "write not before the key",
    "between": "write KEY in 1..5000",
}

Literal: TypeAlias = str | bool | int | Decimal


@dataclass(frozen=True, slots=True)
class Key:
    """`of`: one of OF_UPDATE, with no name; one of PREFIXES; or "" for a name alone."""

    of: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Exists:
    pass


@dataclass(frozen=True, slots=True)
class OneOf:
    """`= VALUE` is one of a single value."""

    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Between:
    low: int | Decimal | None
    high: int | Decimal | None


@dataclass(frozen=True, slots=True)
class Matches:
    expression: str


Test: TypeAlias = Exists | OneOf | Between | Matches


@dataclass(frozen=True, slots=True)
class Basic:
    key: Key
    test: Test
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    groups: tuple[tuple[Basic, ...], ...]

    @property
    def names(self) -> frozenset[str]:
        """Of the columns and other keys that it asks for, so that somebody can look whether there are such."""
        return frozenset(basic.key.name for group in self.groups for basic in group if basic.key.name)

    def __str__(self) -> str:
        """As it would be written: `parse_filter` reads the same out of it."""
        return " OR ".join("[" + " AND ".join(map(_written, group)) + "]" for group in self.groups)


EVERYTHING: Final = Filter(((),))


def parse_filter(text: str) -> Filter:
    """Raises InvalidFilter, with the place, what is expected there and a guess at what was meant; nothing else, whatever the text."""
    return _Parser(text).filter()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # where the next token begins
        self._end = 0  # and ends
        self._kind = ""  # number, name, sign, text; empty at the end
        self._token = ""
        if len(text) > FILTER_CHARACTERS_MAX:
            raise self._refuse(f"it has {len(text):,} characters, and {FILTER_CHARACTERS_MAX:,} are allowed", FILTER_CHARACTERS_MAX)
        self._advance()

    def filter(self) -> Filter:
        groups = [self._group()]
        while self._kind:
            if not self._word("or"):
                raise self._expected("OR or the end", {"and": "AND stands within brackets: [a AND b]", "or": ""})
            self._advance()
            groups.append(self._group())
        return Filter(tuple(groups))

    def _group(self) -> tuple[Basic, ...]:
        if self._token != "[" or self._kind != "sign":
            raise self._expected("[", {"": "[] lets everything through"}, "each group of conditions stands in brackets")
        self._advance()
        basics: list[Basic] = []
        while not self._sign("]"):
            if basics:
                if not self._word("and"):
                    raise self._expected("AND or ]", {"or": "OR stands between brackets: [a] OR [b]", "": "a bracket is not closed"})
                self._advance()
            basics.append(self._basic())
        self._advance()
        return tuple(basics)

    def _basic(self) -> Basic:
        if self._sign("("):  # as the paper writes it: [(a = "b") AND (c exists)]
            self._advance()
            basic = self._plain()
            if not self._sign(")"):
                raise self._expected(")", {}, "round brackets hold one condition; there are no deeper ones")
            self._advance()
            return basic
        return self._plain()

    def _plain(self) -> Basic:
        negated = self._word("not")
        if negated:
            self._advance()
        key = self._key()
        if self._word("exists"):
            self._advance()
            return Basic(key, Exists(), negated)
        if self._sign("="):
            self._advance()
            return Basic(key, OneOf((self._literal(key),)), negated)
        if self._word("in"):
            self._advance()
            return Basic(key, self._list(key) if self._sign("(") else self._interval(key), negated)
        if self._word("matches"):
            self._advance()
            return Basic(key, self._expression(key), negated)
        raise self._expected("exists, =, in or matches", _ELSEWHERE, words=("exists", "in", "matches"))

    def _key(self) -> Key:
        if self._kind != "name":
            hint = "a column of that name is written column.NAME" if self._kind == "text" else ""
            raise self._expected("a key, such as a column's name", {}, hint)
        name, at = self._token, self._at
        self._advance()
        if self._sign("."):
            if name not in PREFIXES:
                raise self._refuse(f"{name!r} has no parts; {_list_of(PREFIXES)} have{_meant(name, PREFIXES)}", at)
            self._advance()
            if self._kind not in ("name", "text") or not self._token:
                raise self._expected(f"a name after {name}.")
            found = Key(name, self._token)
            self._advance()
            return found
        if name in OF_UPDATE:
            return Key(name)
        if name.lower() in _WORDS:
            raise self._refuse(f"a key is expected, and {name!r} is a word of filters; a column of that name is written column.{name}", at)
        return Key("", name)

    def _list(self, key: Key) -> OneOf:
        self._advance()
        values = [self._literal(key)]
        while self._sign(","):
            self._advance()
            values.append(self._literal(key))
        if not self._sign(")"):
            raise self._expected(", or )", {"": "the list is not closed"})
        self._advance()
        return OneOf(tuple(values))

    def _interval(self, key: Key) -> Between:
        at = self._at
        if key.of in ("table", "database", "operation"):
            raise self._expected(f"( and a list of texts, since {key.of} is text")
        low = high = None
        if self._kind == "number":
            low = self._number(key)
        elif not self._sign(".."):
            raise self._expected("a list such as (1, 2) or an interval such as 1..5000")
        if not self._sign(".."):
            dash = self._kind == "number" and self._token.startswith("-")
            raise self._expected("..", {}, f"an interval is written {low}..{self._token[1:]}" if dash else "for one value write =")
        self._advance()
        if self._kind == "number":
            high = self._number(key)
        if low is None and high is None:
            raise self._expected("a number")
        if low is not None and high is not None and high < low:
            raise self._refuse(f"the interval ends before it begins: {high} is less than {low}", at)
        return Between(low, high)

    def _number(self, key: Key) -> int | Decimal:
        if NUMBER.fullmatch(self._token) is None:
            raise self._refuse(f"the number has more than {NUMBER_DIGITS_MAX} digits", self._at)
        if key.of == "shard" and "." in self._token:
            raise self._refuse("shards are whole numbers", self._at)
        number = Decimal(self._token) if "." in self._token else int(self._token)
        self._advance()
        return number

    def _literal(self, key: Key) -> Literal:
        at = self._at
        value: Literal
        if self._kind == "number":
            value = self._number(key)
        elif self._kind == "text":
            value = self._token
            self._advance()
        elif self._word("true") or self._word("false"):
            value = self._token.lower() == "true"
            self._advance()
        else:
            hint = f'text stands in quotes: "{self._token}"' if self._kind == "name" else ""
            raise self._expected(
                'a value: "text", a number, true or false', {"null": "a key that is NULL does not exist: write not KEY exists"}, hint
            )
        if key.of == "shard" and type(value) is not int:
            raise self._refuse("a shard is a number, without quotes", at)
        if key.of in ("table", "database", "operation") and not isinstance(value, str):
            raise self._refuse(f'{key.of} is text, in quotes: "{value}"', at)
        if key.of == "operation" and value not in set(Operation):
            raise self._refuse(f"there is no operation {value!r}; there are {_list_of(Operation)}{_meant(str(value), Operation)}", at)
        return value

    def _expression(self, key: Key) -> Matches:
        at = self._at
        if key.of in ("shard", "operation"):
            raise self._refuse(f"{key.of} cannot match an expression; = and in can be asked", at)
        if self._kind != "text":
            raise self._expected("a regular expression in quotes")
        try:
            compile_expression(self._token)
        except BadExpression as error:
            raise self._refuse(f"character {error.at + 1} of the regular expression: {error.reason}", at) from None
        found = Matches(self._token)
        self._advance()
        return found

    def _word(self, word: str) -> bool:
        return self._kind == "name" and self._token.lower() == word

    def _sign(self, sign: str) -> bool:
        return self._kind == "sign" and self._token == sign

    def _advance(self) -> None:
        self._at = self._end
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if self._at == len(self._text):
            self._kind = self._token = ""
        elif self._text[self._at] == '"':
            self._kind, self._token = "text", self._quoted()
        else:
            found = _TOKEN.match(self._text, self._at)
            assert found is not None  # any character is a sign
            self._kind, self._token, self._end = str(found.lastgroup), found[0], found.end()

    def _quoted(self) -> str:
        pieces, at = [], self._at + 1
        while True:
            end = min((place for place in (self._text.find('"', at), self._text.find("\\", at)) if place >= 0), default=-1)
            if end < 0:
                raise self._refuse("the text is not closed; a quotation mark is expected", self._at)
            pieces.append(self._text[at:end])
            if self._text[end] == '"':
                self._end = end + 1
                return "".join(pieces)
            following = self._text[end + 1 : end + 2]
            # Any other backslash stays as it is, so that "\\d+" need not be written with two of them.
            pieces.append(following if following in ('"', "\\") else "\\" + following)
            at = end + 2

    def _expected(self, what: str, hints: dict[str, str] | None = None, hint: str = "", words: tuple[str, ...] = ()) -> InvalidFilter:
        found = "the filter ends" if not self._kind else f"{self._token[:32]!r} stands there"
        hint = (hints or {}).get(self._token.lower() if self._kind != "text" else "\0") or hint
        if not hint and self._kind == "name":
            hint = _meant(self._token, words).removeprefix(": ")
        return self._refuse(f"{what} is expected, and {found}" + (f" ({hint})" if hint else ""), self._at)

    def _refuse(self, reason: str, at: int) -> InvalidFilter:
        return InvalidFilter("filter", self._text, at, reason)


def _meant(word: str, known: tuple[str, ...] | type[Operation]) -> str:
    near = difflib.get_close_matches(word[:32].lower(), list(known), n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def _list_of(words: tuple[str, ...] | type[Operation]) -> str:
    return ", ".join(words)


def _written(basic: Basic) -> str:
    match basic.test:
        case Exists():
            test = "exists"
        case OneOf((value,)):
            test = f"= {_literal(value)}"
        case OneOf(values):
            test = f"in ({', '.join(map(_literal, values))})"
        case Between(low, high):
            test = f"in {'' if low is None else _literal(low)}..{'' if high is None else _literal(high)}"
        case Matches(expression):
            test = f"matches {_literal(expression)}"
    return ("not " if basic.negated else "") + f"{_key(basic.key)} {test}"


def _key(key: Key) -> str:
    if key.of in OF_UPDATE:
        return key.of
    if not key.of:
        return key.name
    return f"{key.of}.{key.name if _NAME.fullmatch(key.name) else _literal(key.name)}"


def _literal(value: Literal) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
