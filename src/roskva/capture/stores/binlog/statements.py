"""What a statement in the binary log means for rows, since the log has none of those that it takes away.

Pure. With row-based logging, statements are changes of definitions. Some take rows with them: TRUNCATE, DROP TABLE, CREATE OR REPLACE
TABLE, partitions that are dropped, emptied, exchanged or made tables, and tablespaces that are taken away or put in. Whoever keeps rows of
such a table must forget them all: each is told as a TRUNCATE, also where some rows stayed. DROP DATABASE does not name its tables, and is
not among them; nor is RENAME TABLE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_NAME: Final = r'(?:`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|([\w$]++))'
_NAME_GROUPS: Final = 3
_GAP: Final = r"(?:\s|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|--\s[^\n]*\n|\#[^\n]*\n)"  # white space and comments, each in one way only
_TABLE: Final = rf"{_NAME}(?:{_GAP}*\.{_GAP}*{_NAME})?"
_SETTING: Final = rf"{_GAP}*(?:SET{_GAP}+STATEMENT\b.*?\bFOR{_GAP}+)?"
_WAIT: Final = rf"(?:(?:NOWAIT|WAIT{_GAP}+\d+){_GAP}+)?"
# How MySQL is to do it may stand before what is to be done.
_HOW: Final = rf"(?:(?:(?:ALGORITHM|LOCK){_GAP}*=?{_GAP}*\w+|WITH(?:OUT)?{_GAP}+VALIDATION){_GAP}*,{_GAP}*)*"


def _statement(pattern: str) -> re.Pattern[str]:
    return re.compile(_SETTING + pattern, re.IGNORECASE | re.DOTALL)


# The server itself writes DELETE for a table in memory that a restart has emptied.
_TRUNCATES: Final = _statement(rf"TRUNCATE{_GAP}*(?:TABLE\b{_GAP}*)?{_TABLE}")
_DELETES: Final = _statement(rf"DELETE{_GAP}+FROM{_GAP}*{_TABLE}{_GAP}*;?{_GAP}*\Z")
_REPLACES: Final = _statement(rf"CREATE{_GAP}+OR{_GAP}+REPLACE{_GAP}+TABLE\b{_GAP}*{_TABLE}")
_ALTERS: Final = _statement(
    rf"ALTER{_GAP}+(?:ONLINE{_GAP}+)?(?:IGNORE{_GAP}+)?TABLE\b{_GAP}*(?:IF{_GAP}+EXISTS\b{_GAP}*)?{_TABLE}{_GAP}*{_WAIT}{_HOW}"
    rf"(?:(?:TRUNCATE|DROP|CONVERT){_GAP}+PARTITION\b|(?:DISCARD|IMPORT){_GAP}+(?:TABLESPACE|PARTITION)\b"
    rf"|EXCHANGE{_GAP}+PARTITION{_GAP}*{_NAME}{_GAP}*WITH{_GAP}+TABLE\b{_GAP}*{_TABLE})"
)
_DROPS: Final = _statement(rf"DROP{_GAP}+TABLES?\b{_GAP}*(?:IF{_GAP}+EXISTS\b{_GAP}*)?")
_DROPPED: Final = re.compile(rf"{_TABLE}{_GAP}*(,?){_GAP}*", re.IGNORECASE | re.DOTALL)
# Nothing is read in a log: a SELECT is one of a function that writes, and a WITH begins an UPDATE or DELETE.
_WRITES: Final = _statement(r"(INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|SELECT)\b")


class Emptied(NamedTuple):
    database: str
    table: str


def emptied_by(text: str, database: str) -> list[Emptied]:
    """The tables whose rows, all or some, are gone with this statement of a session whose database is this one."""
    for pattern in (_TRUNCATES, _DELETES, _REPLACES):
        if found := pattern.match(text):
            return [_named(found.groups(), database)]
    if found := _ALTERS.match(text):
        groups = found.groups()
        exchanged = groups[3 * _NAME_GROUPS :]  # after the table and the partition
        return [_named(names, database) for names in (groups[: 2 * _NAME_GROUPS], exchanged) if any(names)]
    if found := _DROPS.match(text):
        return _dropped(text, found.end(), database)
    return []


def written_by(text: str) -> str:
    """The verb of a statement that changes rows, and should not be in a log of rows; else nothing."""
    found = _WRITES.match(text)
    return found[1].upper() if found else ""


def _dropped(text: str, at: int, database: str) -> list[Emptied]:
    tables: list[Emptied] = []
    while found := _DROPPED.match(text, at):
        *names, more = found.groups()
        tables.append(_named(names, database))
        if not more:
            break
        at = found.end()
    return tables


def _named(groups: Sequence[str | None], database: str) -> Emptied:
    """`groups`: what `_TABLE` has found, of which the part before the dot may be missing."""
    names = [group.replace("``", "`").replace('""', '"') for group in groups if group]
    return Emptied(names[-2] if len(names) > 1 else database, names[-1])
