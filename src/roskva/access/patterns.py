"""Patterns of the objects that a user may register for (docs/settings.md, `registrable`). Pure, and called before every notification.

    news:*               everything that begins with news:
    inbox:{sub}          with a claim of the user's credential: text or a number; of a list, any of it
    room:{realm.rooms}:* a claim within a claim (or one whose name has that dot, which goes first)
    {{x}}                braces as they are

A claim's value stands for itself: a star in it is a star and no wildcard, or whoever chooses his own name would register for everything.
A claim that is missing, empty or of another type matches nothing. Patterns see names in their text form (model.name_to_text). A pattern
with `{sub}:*` trusts that no user's name holds the separator: `a` would otherwise match what is of `a:b`.

A match goes over the name once for each part of the pattern, with the set of all places where the part may begin: there is no going
back, so no name and no claim makes it slow. No regular expressions are built.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from roskva.errors import InvalidSetting

PATTERN_CHARACTERS_MAX: Final = 512
_FORBIDDEN_IN_CLAIMS: Final = frozenset("{}*")
_NUMBER_BITS_MAX: Final = 512  # no name is as long as a larger number, and Python refuses to write very large ones
_FEW: Final = 8  # values of a claim that are tried one by one


class Claim(NamedTuple):
    """A place in a pattern where a claim's value stands."""

    name: str
    path: tuple[str, ...]


class _Star:
    pass


_STAR: Final = _Star()
_Part = str | Claim | _Star


class Patterns:
    """What `compile_patterns` makes of them: sorted by how quickly they can be asked."""

    __slots__ = ("_everything", "_exact", "_others", "_prefixes")

    def __init__(self, patterns: Iterable[tuple[_Part, ...]]) -> None:
        exact: set[str] = set()
        prefixes: set[str] = set()
        others: list[tuple[str, tuple[_Part, ...]]] = []
        for parts in patterns:
            match parts:
                case (str(text),):
                    exact.add(text)
                case (_Star(),):
                    prefixes.add("")
                case (str(text), _Star()):
                    prefixes.add(text)
                case (str(text), *rest):
                    others.append((text, tuple(rest)))
                case _:
                    others.append(("", parts))
        self._everything = "" in prefixes
        self._exact = frozenset(exact)
        self._prefixes = tuple(sorted(prefixes))
        self._others = tuple(others)

    def allow(self, claims: Mapping[str, Any], name: str) -> bool:
        """Whether one of the patterns, with these claims, matches the whole name."""
        if self._everything or name in self._exact or (self._prefixes and name.startswith(self._prefixes)):
            return True
        for head, parts in self._others:  # noqa: SIM110  # called before every notification: a generator costs more than the rest
            if name.startswith(head) and _matches(parts, claims, name, len(head)):
                return True
        return False


def compile_patterns(patterns: Sequence[str]) -> Patterns:
    """Raises InvalidSetting, with the place, for what is no pattern."""
    return Patterns([_parse(pattern) for pattern in patterns])


def _matches(parts: Sequence[_Part], claims: Mapping[str, Any], name: str, place: int) -> bool:
    """Whether the parts match the name from there to its end: step by step, as long as there is one way to go."""
    for number, part in enumerate(parts):
        if isinstance(part, str):
            text = part
        elif isinstance(part, _Star):
            return number == len(parts) - 1 or _matches_somewhere(parts[number:], claims, name, place)
        else:
            texts = _values(part, claims)
            if len(texts) != 1:
                return bool(texts) and _matches_somewhere(parts[number:], claims, name, place)
            text = texts[0]
        if not name.startswith(text, place):
            return False
        place += len(text)
    return place == len(name)


def _matches_somewhere(parts: Sequence[_Part], claims: Mapping[str, Any], name: str, start: int) -> bool:
    places: Collection[int] = (start,)  # where the next part may begin
    for part in parts:
        if isinstance(part, _Star):
            places = range(min(places), len(name) + 1)
            continue
        if isinstance(part, str):
            places = _after(part, name, places)
        elif len(texts := _values(part, claims)) <= _FEW:
            places = {place for text in texts for place in _after(text, name, places)}
        else:
            places = _after_any(frozenset(texts), name, places)
        if not places:
            return False
    return len(name) in places


def _after(text: str, name: str, places: Collection[int]) -> list[int]:
    """Where the text ends, of all places at which it stands."""
    size = len(text)
    return [place + size for place in places if name.startswith(text, place)]


def _after_any(texts: frozenset[str], name: str, places: Collection[int]) -> set[int]:
    """The same of many texts: by their lengths, of which no more matter than the name has characters."""
    sizes = {size for text in texts if (size := len(text)) <= len(name)}
    return {place + size for place in places for size in sizes if name[place : place + size] in texts}


def _values(claim: Claim, claims: Mapping[str, Any]) -> list[str]:
    """The texts that a claim stands for; none if it is missing, or not of a kind that counts."""
    value = claims.get(claim.name)
    if isinstance(value, str):
        return [value] if value else []
    if value is None and len(claim.path) > 1:
        value = claims
        for step in claim.path:
            if not isinstance(value, Mapping):
                return []
            value = value.get(step)
    if isinstance(value, list | tuple):
        return [text for one in value if (text := _text(one))]
    text = _text(value)
    return [text] if text else []


def _text(value: object) -> str:
    """Text or a number, as text; empty: something else. True and false are no numbers, and 1.0 is written as 1."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _NUMBER_BITS_MAX:
        return str(value)
    return ""


def _parse(pattern: str) -> tuple[_Part, ...]:
    if not 1 <= len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise InvalidSetting(f"A pattern has {len(pattern):,} characters; 1 to {PATTERN_CHARACTERS_MAX} are allowed.")
    parts: list[_Part] = []
    literal = ""
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if character in "{}" and pattern.startswith(2 * character, place):
            literal += character
            place += 2
        elif character in "{*":
            if literal:
                parts.append(literal)
                literal = ""
            if character == "{":
                claim, place = _parse_claim(pattern, place)
                parts.append(claim)
            else:
                if not parts or parts[-1] is not _STAR:  # several in a row are one
                    parts.append(_STAR)
                place += 1
        elif character == "}":
            raise InvalidSetting(f"{_where(pattern, place)} a brace is closed that was not opened; write }}}} for a brace.")
        else:
            literal += character
            place += 1
    if literal:
        parts.append(literal)
    return tuple(parts)


def _parse_claim(pattern: str, start: int) -> tuple[Claim, int]:
    """The claim whose brace opens here, and where the pattern goes on."""
    end = pattern.find("}", start)
    if end < 0:
        raise InvalidSetting(f"{_where(pattern, start)} a brace is opened that is not closed; write {{{{ for a brace.")
    name = pattern[start + 1 : end]
    path = tuple(name.split("."))
    if not all(path) or not _FORBIDDEN_IN_CLAIMS.isdisjoint(name) or any(map(str.isspace, name)):
        raise InvalidSetting(f"{_where(pattern, start)} the braces must hold a claim's name, such as {{sub}} or {{realm.role}}.")
    return Claim(name, path), end + 1


def _where(pattern: str, place: int) -> str:
    return f"In the pattern {pattern[:80]!r}, at character {place + 1},"
