"""`capture check`: foreign keys that change rows without a word in the log.

InnoDB does ON DELETE CASCADE, ON UPDATE CASCADE and SET NULL below the binary log, which has the parent's row and none of its children's:
whoever keeps something of a child is never told. No trigger of the child sees it, either. With RESTRICT the server refuses instead, so that
whoever deletes the parent must delete its children first, and their rows are in the log as all others.

The rules are read from SHOW CREATE TABLE: information_schema.REFERENTIAL_CONSTRAINTS shows nothing to a user who may only SELECT (10.11).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.protocol import Session, session
from roskva.capture.stores.binlog.settings import ServerSettings

_KEYS: Final = """
    SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME
    FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL ORDER BY 1, 2, 3, ORDINAL_POSITION
"""
_RULE: Final = re.compile(r" (ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT))(?= ON |,?$)")


class Cascade(NamedTuple):
    """A foreign key of a table, by which rows of it change with those of its parent."""

    database: str
    table: str
    name: str
    rules: tuple[str, ...]  # as the statement has them: ON DELETE CASCADE
    parent: tuple[str, str]  # database and table
    columns: tuple[str, ...]
    of_parent: tuple[str, ...]


def check_cascades(settings: ServerSettings, told: Callable[[str, str], bool]) -> Iterator[Finding]:
    """`told`: whether anybody is told of the rows of this database and table."""
    with session(settings) as statements:
        statements.rows("SET SESSION sql_mode = '', sql_quote_show_create = 1")  # so that what is shown is written in one way
        found = list(_cascades(statements, told))
    yield from map(_finding, found)


def _cascades(statements: Session, told: Callable[[str, str], bool]) -> Iterator[Cascade]:
    for (database, table), keys in groupby(statements.rows(_KEYS), itemgetter(0, 1)):
        if not told(database, table):
            continue
        ((_, written),) = statements.rows(f"SHOW CREATE TABLE {_quoted(database, table)}".replace("%", "%%"))
        for name, rows in groupby(keys, itemgetter(2)):
            rules = rules_of(str(written), name)
            if rules:
                _, _, _, columns, databases, tables, of_parent = zip(*rows, strict=True)
                yield Cascade(database, table, name, rules, (databases[0], tables[0]), columns, of_parent)


def rules_of(written: str, name: str) -> tuple[str, ...]:
    """Of the foreign key of this name, those that change rows. `written`: the statement that creates its table, a line for each key."""
    begins = f"  CONSTRAINT {_quoted(name)} FOREIGN KEY "
    return tuple(rule for line in written.split("\n") if line.startswith(begins) for rule in _RULE.findall(line))


def _finding(one: Cascade) -> Finding:
    child, parent = _quoted(one.database, one.table), _quoted(*one.parent)
    there = "" if child == parent else f", or in a trigger BEFORE DELETE of {parent}"
    return Finding(
        f"every row of {one.database}.{one.table} that changes is in the log",
        False,
        f"its foreign key {one.name} has {' and '.join(one.rules)}: what the server changes with a row of {'.'.join(one.parent)} is not "
        f"in the log, and whoever is told of {one.table} keeps what is gone",
        f"ALTER TABLE {child} DROP FOREIGN KEY {_quoted(one.name)}, ADD FOREIGN KEY ({_listed(one.columns)}) REFERENCES {parent} "
        f"({_listed(one.of_parent)}); then change or delete its rows before those that they refer to, in the application{there}",
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
