"""Rows to objects: what a change of a table means for Roskva's own objects and versions. Pure.

    table = "documents"             or several: ["documents", "drafts"]
    object = "doc:{id}"             or several: ["doc:{id}", "folder:{folder_id}"]; {{ and }} are braces
    version = "commit position"     or a column of whole numbers that grow with each change of the object
    source = "{updated_by}"         the device that made the change, which is not told of it; left away, everyone is told

A column in braces is looked for in the row after the change, then in its key, then in what the producer attached. What a change means:

- It is published, also if it deleted the row: whoever caches the object must drop it. `deletes = false` tells of no deletion.
- A change of the key is one of two objects, the old and the new.
- TRUNCATE: every object that begins like the template up to its first brace is invalidated: its version is unknown, and clients fetch it.
- The version is the position of the commit (`Position.sequence`; in Postgres the commit's LSN). History and place in the commit are not
  part of it, since a version is one number: all rows of a commit have one version, and when the history changes (a replica was promoted,
  and may not have what was told of last) the application is reset: its epoch rises, and lower versions count again. What still comes from
  an earlier history after that is invalidated, not published: its number may be one that the new history has for something else.
- A message is of no row, also if its prefix is the name of a table. (That a range of rows was deleted is one in RocksDB: all that begin
  like the template are invalidated. That a line of a log in files cannot be read is one, too: it may have told of any row, and every object
  that a mapping can name is invalidated, as after a loss.)
- A version that is a column says nothing about a deletion, nor about the object that a changed key left: these are invalidated.

What a row may lack, and what happens then; each is counted in `counts`:

    null          a column in the template is NULL: this row has no such object. Nothing is told
    missing       the log does not have the column (of a deleted row it has the key alone, unless the table says otherwise; of an update not
                  what was left unchanged and large; or there is no such column): nobody knows which object it was, so all that begin like
                  the template are invalidated. `missing = "skip"` tells nobody
    unusable      the name is empty or longer than a name may be: nobody can have registered for it. Nothing is told
    no version    the column of the version holds none: the object is invalidated
    no source     the source is NULL, missing or too long: everyone is told

An object that a row names in a column that is not its key ("folder:{folder_id}") is told of rows that enter it, not of those that leave:
the log has the row after the change. Map the table of the folders, or let a trigger touch it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from roskva.capture.updates import MALFORMED, MALFORMED_COLUMNS, RANGE_DELETED, Change, Columns, Operation, Value
from roskva.errors import InvalidDevice, InvalidFilter
from roskva.model import NAME_BYTES_MAX, VERSION_MAX, check_device

COMMIT_POSITION: Final = "commit position"
TEMPLATE_CHARACTERS_MAX: Final = 512
INVALIDATIONS_MAX: Final = (
    50  # of single objects in one batch; more become one of all that begin like them. The service takes 10 in a second
)
_INTEGER: Final = re.compile(r"[0-9]{1,19}")
_COUNTED: Final = ("null", "missing", "unusable", "no version", "no source")


@dataclass(frozen=True, slots=True)
class Publish:
    object: bytes
    version: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Invalidate:
    """The version of this object is unknown; `prefix`: of all that begin like this, and of the whole application if it is empty."""

    name: bytes
    prefix: bool = False
    within: bytes = b""  # a prefix that covers it, if there are too many


@dataclass(frozen=True, slots=True)
class Reset:
    """The log has another history from here on: raise the application's epoch before anything that follows is published."""

    history: int


Instruction: TypeAlias = Publish | Invalidate | Reset


@dataclass(frozen=True, slots=True)
class Column:
    name: str


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[bytes | Column, ...]

    @property
    def prefix(self) -> bytes:
        """What every name made of it begins with."""
        first = self.parts[0]
        return first if isinstance(first, bytes) else b""

    @property
    def constant(self) -> bool:
        return not any(isinstance(part, Column) for part in self.parts)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, Column))

    def filled(self, row: Columns) -> bytes | str:
        """The name; or why there is none."""
        pieces = []
        for part in self.parts:
            if isinstance(part, Column):
                if part.name not in row:
                    return "missing"
                value = row[part.name]
                if value is None:
                    return "null"
                pieces.append(_as_bytes(value))
            else:
                pieces.append(part)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Rule:
    """One [[roskva.mapping]]. `parse_mapping` makes it of text."""

    tables: tuple[str, ...]
    objects: tuple[Template, ...]
    version: str | None = None  # a column; None: the commit's position
    source: Template | None = None
    deletes: bool = True
    skip_missing: bool = False


def parse_mapping(
    tables: Sequence[str],
    objects: Sequence[str],
    version: str = COMMIT_POSITION,
    source: str = "",
    deletes: bool = True,
    skip_missing: bool = False,
) -> Rule:
    """Raises InvalidFilter, with the place, for what is no template."""
    column = None if version == COMMIT_POSITION else version
    near = difflib.get_close_matches(version.lower().replace("_", " "), [COMMIT_POSITION], n=1, cutoff=0.8)
    if column is not None and (near or " " in version.strip() or not version.strip()):
        raise InvalidFilter("version", version, 0, f'"{COMMIT_POSITION}" or a column\'s name is expected')
    return Rule(
        tuple(tables),
        tuple(parse_template("object", text) for text in objects),
        column,
        parse_template("source", source) if source else None,
        deletes,
        skip_missing,
    )


def parse_template(what: str, text: str) -> Template:
    if not 1 <= len(text) <= TEMPLATE_CHARACTERS_MAX:
        raise InvalidFilter(what, text, 0, f"it has {len(text):,} characters, and 1 to {TEMPLATE_CHARACTERS_MAX} are allowed")
    parts: list[bytes | Column] = []
    literal, at = "", 0
    while at < len(text):
        character = text[at]
        if character in "{}" and text.startswith(2 * character, at):
            literal += character
            at += 2
        elif character == "{":
            end = text.find("}", at)
            name = text[at + 1 : end]
            if end < 0:
                raise InvalidFilter(what, text, at, "a brace is opened that is not closed; write {{ for a brace")
            if not name or name != name.strip() or "{" in name:
                raise InvalidFilter(what, text, at, "the braces must hold a column's name, such as {id}; write {{ for a brace")
            if literal:
                parts.append(_encoded(what, text, literal))
                literal = ""
            parts.append(Column(name))
            at = end + 1
        elif character == "}":
            raise InvalidFilter(what, text, at, "a brace is closed that was not opened; write }} for a brace")
        else:
            literal += character
            at += 1
    if literal:
        parts.append(_encoded(what, text, literal))
    if sum(len(part) for part in parts if isinstance(part, bytes)) > NAME_BYTES_MAX:
        raise InvalidFilter(what, text, 0, f"a name has at most {NAME_BYTES_MAX} bytes")
    return Template(tuple(parts))


def _encoded(what: str, text: str, literal: str) -> bytes:
    try:
        return literal.encode()
    except UnicodeEncodeError:
        raise InvalidFilter(what, text, text.find(literal), "it holds half of a surrogate pair") from None


class Mapper:
    """All mappings of an application. Keeps nothing but counts."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.counts = dict.fromkeys(_COUNTED, 0)
        self._rules: dict[str, list[Rule]] = {}
        self._prefixes: set[bytes] = set()
        for rule in rules:
            for table in rule.tables:
                self._rules.setdefault(table, []).append(rule)
            self._prefixes |= {template.prefix for template in rule.objects}

    def instructions(self, change: Change, history: int | None) -> list[Instruction]:
        """What must be done about a change, in this order. `history` is that of what was published last; None: nothing was yet."""
        found: list[Instruction] = []
        if history is not None and change.position.history > history:
            found.append(Reset(change.position.history))
        of_the_past = history is not None and change.position.history < history
        if change.operation is Operation.MESSAGE and change.columns.keys() != RANGE_DELETED:
            # The columns, too, are looked at: users of a database may write messages of any prefix, and this one makes everybody fetch.
            if change.table == MALFORMED and change.columns.keys() == MALFORMED_COLUMNS:
                found += self.everything()
            return found
        for rule in self._rules.get(change.table, ()):
            if change.operation is Operation.TRUNCATE:
                for template in rule.objects:
                    if template.constant:
                        found.append(self._told(rule, change, template.prefix, template, {}, of_the_past, left=True))
                    else:
                        found.append(Invalidate(template.prefix, prefix=True))
            elif rule.deletes or change.operation is not Operation.DELETE:
                self._of_row(rule, change, of_the_past, found)
        return found

    def everything(self) -> list[Invalidate]:
        """Changes were lost, nobody knows of what: every object that a mapping can name."""
        return [Invalidate(prefix, prefix=True) for prefix in _shortest(self._prefixes)]

    def _of_row(self, rule: Rule, change: Change, of_the_past: bool, found: list[Instruction]) -> None:
        row = {**(change.attached or {}), **change.key, **change.columns}
        for template in rule.objects:
            name = template.filled(row)
            if change.old_key is not None:
                old = template.filled({**row, **change.old_key})
                if old != name:
                    self._object(rule, change, template, old, row, of_the_past, True, found)
            self._object(rule, change, template, name, row, of_the_past, change.operation is Operation.DELETE, found)

    def _object(
        self,
        rule: Rule,
        change: Change,
        template: Template,
        name: bytes | str,
        row: Columns,
        of_the_past: bool,
        left: bool,
        found: list[Instruction],
    ) -> None:
        """`left`: the row is not this object any more, so that a column of it is no version."""
        if isinstance(name, str):
            self.counts[name] += 1
            if name == "missing" and not rule.skip_missing:
                found.append(Invalidate(template.prefix, prefix=True))
        elif not 1 <= len(name) <= NAME_BYTES_MAX:
            self.counts["unusable"] += 1
        else:
            found.append(self._told(rule, change, name, template, row, of_the_past, left))

    def _told(
        self, rule: Rule, change: Change, name: bytes, template: Template, row: Columns, of_the_past: bool, left: bool
    ) -> Publish | Invalidate:
        version: int | None
        if rule.version is None:
            version = change.position.sequence
        elif left:
            return Invalidate(name, within=template.prefix)
        else:
            version = _version(row.get(rule.version))
            if version is None:
                self.counts["no version"] += 1
        if version is None or of_the_past:
            return Invalidate(name, within=template.prefix)
        return Publish(name, version, self._source(rule, row))

    def _source(self, rule: Rule, row: Columns) -> str | None:
        if rule.source is None:
            return None
        filled = rule.source.filled(row)
        if isinstance(filled, bytes):
            try:
                return check_device(filled.decode())
            except (UnicodeDecodeError, InvalidDevice):
                pass
        self.counts["no source"] += 1
        return None


@dataclass(frozen=True, slots=True)
class Work:
    """What is left to do of some instructions: each object once."""

    publishes: tuple[Publish, ...]
    invalidations: tuple[Invalidate, ...]


def coalesced(instructions: Iterable[Publish | Invalidate]) -> Work:
    """Only the highest version of an object counts. Changes from several sources have none: each source knows its own change alone."""
    publishes: dict[bytes, Publish] = {}
    names: dict[bytes, bytes] = {}
    prefixes: set[bytes] = set()
    for one in instructions:
        if isinstance(one, Publish):
            before = publishes.get(one.object)
            if before is None:
                publishes[one.object] = one
            else:
                source = one.source if one.source == before.source else None
                publishes[one.object] = Publish(one.object, max(one.version, before.version), source)
        elif one.prefix:
            prefixes.add(one.name)
        else:
            names[one.name] = one.within
    if len(names) > INVALIDATIONS_MAX:
        prefixes |= set(names.values())
        names = {}
    covering = tuple(_shortest(prefixes))
    single = [Invalidate(name) for name in names if not name.startswith(covering)]
    return Work(tuple(publishes.values()), (*(Invalidate(prefix, prefix=True) for prefix in covering), *single))


def _shortest(prefixes: Iterable[bytes]) -> list[bytes]:
    """Without those that another one covers."""
    found: list[bytes] = []
    for prefix in sorted(prefixes):
        if not prefix.startswith(tuple(found)):
            found.append(prefix)
    return found


def _version(value: Value) -> int | None:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= VERSION_MAX else None


def _as_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode(errors="surrogatepass")
