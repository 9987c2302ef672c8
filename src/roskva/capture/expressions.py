"""Regular expressions whose cost is bounded whatever the expression and the value: for `matches` in filters (Wormhole 3.2).

Pure. Python's `re` goes back and tries again: `(a+)+b` takes time that doubles with each character of the value, and `.*a.*b.*c.*d`, which
has no quantifier within another, still takes the fourth power of its length. A publisher lives beside a database and has many
applications: one of them must not stop it. So an expression here becomes an automaton of positions (Glushkov), which reads each character
once and keeps the set of all places where it may be. Sets that were met are remembered, up to STATES_MAX: a character costs one lookup,
and at worst, with an expression of POSITIONS_MAX characters that meets another set each time, some microseconds.
Where going back cannot cost more than the length times the expression's (one repeated character at most, no choice), `re` does it.

    a  .  [a-z_]  [^0-9]         a character; the dot is any, also the end of a line
    \\d \\w \\s  \\D \\W \\S          digits, letters with digits and underscore, blanks, all of ASCII; what is none of them
    \\.  \\\\  \\n \\r \\t             a character that would mean something else, and three that cannot be written
    ab  a|b  (ab)  (?:ab)        one after the other, one or the other, together
    a*  a+  a?  a{2}  a{2,}  a{2,5}

An expression is compared with the whole value, so there is no ^ and no $. Letters count as they are written. There are no backreferences,
no looking ahead or behind, and no flags: no automaton has them. Lazy quantifiers would change nothing, and are refused, too.
Long, since reading an expression, building its automaton and running it share these few structures and nothing else does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

EXPRESSION_CHARACTERS_MAX: Final = 256
POSITIONS_MAX: Final = 512  # characters of the expression when its {2,5} are written out
PIECES_MAX: Final = 8 * POSITIONS_MAX  # that an automaton is built of: brackets and choices are some, too, also those that hold nothing
DEPTH_MAX: Final = 32  # of groups within groups
REPEATS_MAX: Final = 100  # in {2,5}
STATES_MAX: Final = 256  # remembered; at the limit all are forgotten, and what is needed comes back
NEXTS_MAX: Final = 512  # characters after one state that are remembered
CODE_MAX: Final = 0x10FFFF

_DIGITS: Final = ((48, 57),)
_WORD: Final = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANKS: Final = ((9, 13), (32, 32))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _BLANKS}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class BadExpression(ValueError):
    """`at` is where in the expression, from 0. Whoever reads a filter makes an InvalidFilter of it."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


@dataclass(frozen=True, slots=True)
class One:
    """One character out of some."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None


Node: TypeAlias = One | Sequence | Choice | Repeat


def compile_expression(text: str) -> Callable[[str], bool]:
    """Whether the whole of a text matches. Raises BadExpression."""
    node = _Reader(text).read()
    automaton = _Automaton(node)
    if _goes_back_little(node):
        matched = re.compile(_source(node)).fullmatch
        return lambda value: matched(value) is not None
    return automaton.matches


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > EXPRESSION_CHARACTERS_MAX:
            raise BadExpression(
                EXPRESSION_CHARACTERS_MAX, f"the expression has {len(text):,} characters, and {EXPRESSION_CHARACTERS_MAX} are allowed"
            )
        self._text = text
        self._at = 0

    def read(self) -> Node:
        node = self._choice(0)
        if self._at < len(self._text):  # only a bracket ends a choice early
            raise BadExpression(self._at, "a bracket is closed that was not opened; write \\) for a bracket")
        return node

    def _next(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _choice(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise BadExpression(self._at, f"brackets stand within brackets more than {DEPTH_MAX} deep")
        parts = [self._sequence(depth)]
        while self._next() == "|":
            self._at += 1
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (character := self._next()) not in ("", "|", ")"):
            if character in "*+?{":
                raise BadExpression(
                    self._at, f"there is nothing that {character} could repeat; write \\{character} for the character itself"
                )
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        start, character = self._at, self._next()
        if character not in ("*", "+", "?", "{"):
            return node
        self._at += 1
        if character == "{":
            least, most = self._bounds(start)
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        if self._next() in ("*", "+", "?", "{"):
            raise BadExpression(
                self._at, "one quantifier follows another; a lazy one changes nothing here, and brackets can hold the first"
            )
        # What holds no character is the same however often it comes; written out, brackets within brackets of it would never end.
        if most == 0 or not _holds_any(node):
            return Sequence(())
        return Repeat(node, least, most)

    def _bounds(self, start: int) -> tuple[int, int | None]:
        found = re.compile(r"([0-9]{1,6})(,([0-9]{0,6}))?\}").match(self._text, self._at)
        if found is None:
            raise BadExpression(start, "{2}, {2,} or {2,5} is expected; write \\{ for a brace")
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > REPEATS_MAX:
            raise BadExpression(start, f"at most {REPEATS_MAX} repetitions can be asked for")
        if most is not None and most < least:
            raise BadExpression(start, f"{most} is less than {least}")
        self._at = found.end()
        return least, most

    def _atom(self, depth: int) -> Node:
        start, character = self._at, self._next()
        self._at += 1
        match character:
            case "(":
                return self._group(start, depth)
            case "[":
                return self._set(start)
            case ".":
                return One(((0, CODE_MAX),))
            case "\\":
                return One(self._escaped(start))
            case "^" | "$":
                raise BadExpression(
                    start, f"the whole value is compared: leave {character} away, or write \\{character} for the character itself"
                )
            case "]" | "}":
                raise BadExpression(start, f"write \\{character} for the character itself")
        return One(((ord(character), ord(character)),))

    def _group(self, start: int, depth: int) -> Node:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._next() == "?":
            raise BadExpression(start, "looking ahead or behind, names and flags are not known; (...) and (?:...) are")
        node = self._choice(depth + 1)
        if self._next() != ")":
            raise BadExpression(start, "a bracket is opened that is not closed; write \\( for a bracket")
        self._at += 1
        return node

    def _escaped(self, start: int) -> Ranges:
        """What follows a backslash."""
        character = self._next()
        self._at += 1
        if character in _CONTROLS:
            code = ord(_CONTROLS[character])
            return ((code, code),)
        if character and character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else _others(ranges)
        if character.isascii() and character.isprintable() and not character.isalnum() and character:
            return ((ord(character), ord(character)),)
        if character.isdigit():
            raise BadExpression(start, "what a group has matched cannot be asked for again (a backreference)")
        raise BadExpression(start, f"\\{character} is not known")

    def _set(self, start: int) -> One:
        negated = self._next() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (character := self._next()) != "]":
            at = self._at
            if not character:
                raise BadExpression(start, "a set of characters is opened that is not closed; write \\[ for a bracket")
            low = self._member()
            if self._next() != "-" or self._text.startswith("-]", self._at):
                ranges += low
                continue
            self._at += 1
            high = self._member()
            if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                raise BadExpression(at, "a range goes from one character to another")
            if low[0][0] > high[0][0]:
                raise BadExpression(at, "the range ends before it begins")
            ranges.append((low[0][0], high[0][0]))
        self._at += 1
        if not ranges:
            raise BadExpression(start, "the set has no characters; write \\[ and \\] for brackets")
        joined = _joined(ranges)
        return One(_others(joined) if negated else joined)

    def _member(self) -> Ranges:
        start, character = self._at, self._next()
        self._at += 1
        if character == "\\":
            return self._escaped(start)
        if character in ("[", ""):
            raise BadExpression(start, "write \\[ for a bracket within a set")
        return ((ord(character), ord(character)),)


def _holds_any(node: Node) -> bool:
    """Whether there is a character in it."""
    match node:
        case One():
            return True
        case Repeat(part):
            return _holds_any(part)
        case Sequence(parts) | Choice(parts):
            return any(map(_holds_any, parts))


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def _others(ranges: Ranges) -> Ranges:
    found, low = [], 0
    for start, end in ranges:
        if low < start:
            found.append((low, start - 1))
        low = end + 1
    if low <= CODE_MAX:
        found.append((low, CODE_MAX))
    return tuple(found)


def _goes_back_little(node: Node) -> bool:
    """At most one repetition, of one character, and no choice: going back tries each length of it once."""
    parts = node.parts if isinstance(node, Sequence) else (node,)
    repeats = [part for part in parts if isinstance(part, Repeat)]
    return len(repeats) <= 1 and all(isinstance(part.part if isinstance(part, Repeat) else part, One) for part in parts)


def _source(node: Node) -> str:
    """For `re`, of what `_goes_back_little` lets through."""
    match node:
        case One(ranges):
            return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]" if ranges else "(?!)"
        case Repeat(part, least, most):
            return _source(part) + f"{{{least},{'' if most is None else most}}}"
        case Sequence(parts) | Choice(parts):
            return "".join(map(_source, parts))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of an automaton: which positions may come first and last (a bit for each), and whether it may be empty."""

    empty: bool
    first: int
    last: int


class _State:
    """A set of positions, and where each character leads from it, as far as that was asked."""

    __slots__ = ("accepting", "mask", "nexts")

    def __init__(self, mask: int, accepting: bool) -> None:
        self.mask = mask
        self.accepting = accepting
        self.nexts: dict[str, _State] = {}


class _Automaton:
    """Reads a text once. Safe from several threads: what they remember is the same, whoever was first."""

    def __init__(self, node: Node) -> None:
        self._positions: list[Ranges] = []
        self._follow: list[int] = []
        self._pieces = 0
        whole = self._build(node)
        self._first = whole.first
        self._last = whole.last
        self._bytes = (len(self._positions) + 7) // 8
        self._after_eight: list[dict[int, int]] = [{} for _ in range(self._bytes)]
        self._held: dict[str, int] = {}
        self._states: dict[int, _State] = {}
        # -1 is no set of positions: nothing was read yet.
        self._start = _State(-1, whole.empty)
        self._dead = _State(0, accepting=False)

    def matches(self, text: str) -> bool:
        state, dead = self._start, self._dead
        for character in text:
            following = state.nexts.get(character)
            state = self._step(state, character) if following is None else following
            if state is dead:
                return False
        return state.accepting

    def _step(self, state: _State, character: str) -> _State:
        reached = self._first if state.mask == -1 else self._after(state.mask)
        mask = reached & self._holding(character)
        following = self._dead if mask == 0 else self._states.get(mask)
        if following is None:
            if len(self._states) >= STATES_MAX:
                self._states = {}
                self._start.nexts = {}  # else what is forgotten would be kept by those that lead to it
            following = self._states[mask] = _State(mask, bool(mask & self._last))
        if len(state.nexts) >= NEXTS_MAX:
            state.nexts = {}
        state.nexts[character] = following
        return following

    def _after(self, mask: int) -> int:
        """All positions that may follow those of the set. Eight at a time: what follows each eight of them is remembered."""
        reached = 0
        for place, eight in enumerate(mask.to_bytes(self._bytes, "little")):
            if eight:
                following = self._after_eight[place].get(eight)
                if following is None:
                    following = 0
                    for bit in range(8):
                        if eight >> bit & 1:
                            following |= self._follow[8 * place + bit]
                    self._after_eight[place][eight] = following
                reached |= following
        return reached

    def _holding(self, character: str) -> int:
        """The positions that accept the character."""
        found = self._held.get(character)
        if found is None:
            found, code = 0, ord(character)
            for place, ranges in enumerate(self._positions):
                if _holds(ranges, code):
                    found |= 1 << place
            if len(self._held) >= NEXTS_MAX:
                self._held = {}
            self._held[character] = found
        return found

    def _build(self, node: Node) -> _Piece:
        self._pieces += 1
        if self._pieces > PIECES_MAX:
            raise BadExpression(0, f"with its repetitions written out the expression has more than {PIECES_MAX:,} parts")
        match node:
            case One(ranges):
                if len(self._positions) >= POSITIONS_MAX:
                    raise BadExpression(0, f"with its repetitions written out the expression has more than {POSITIONS_MAX} characters")
                self._positions.append(ranges)
                self._follow.append(0)
                bit = 1 << (len(self._positions) - 1)
                return _Piece(empty=False, first=bit, last=bit)
            case Sequence(parts):
                whole = _Piece(empty=True, first=0, last=0)
                for part in parts:
                    whole = self._then(whole, self._build(part))
                return whole
            case Choice(parts):
                pieces = [self._build(part) for part in parts]
                first = last = 0
                for piece in pieces:
                    first |= piece.first
                    last |= piece.last
                return _Piece(any(piece.empty for piece in pieces), first, last)
            case Repeat(part, least, most):
                return self._repeat(part, least, most)

    def _repeat(self, part: Node, least: int, most: int | None) -> _Piece:
        whole = _Piece(empty=True, first=0, last=0)
        for _ in range(least if most is not None or least == 0 else least - 1):
            whole = self._then(whole, self._build(part))
        if most is None:
            piece = self._build(part)
            self._lead(piece.last, piece.first)
            return self._then(whole, _Piece(piece.empty or least == 0, piece.first, piece.last))
        # a{2,5} is aa(a(a(a)?)?)?: each may end it.
        ends = whole.last
        may_be_empty = whole.empty
        for _ in range(most - least):
            whole = self._then(whole, self._build(part))
            ends |= whole.last
        return _Piece(may_be_empty or whole.empty, whole.first, ends)

    def _then(self, one: _Piece, other: _Piece) -> _Piece:
        self._lead(one.last, other.first)
        first = one.first | (other.first if one.empty else 0)
        last = other.last | (one.last if other.empty else 0)
        return _Piece(one.empty and other.empty, first, last)

    def _lead(self, ends: int, first: int) -> None:
        while ends:
            lowest = ends & -ends
            self._follow[lowest.bit_length() - 1] |= first
            ends ^= lowest


def _holds(ranges: Ranges, code: int) -> bool:
    at = bisect_right(ranges, (code, CODE_MAX)) - 1
    return at >= 0 and ranges[at][0] <= code <= ranges[at][1]
