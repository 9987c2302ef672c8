"""What the server's own tables say: the codec of each collation, and the columns of a table as they are now.

The columns are asked for only where the log does not name them (`binlog_row_metadata` is not FULL).
"""

from __future__ import annotations

import re
from typing import Final

from roskva.capture.stores.binlog.protocol import Session
from roskva.capture.stores.binlog.tables import Column, Described
from roskva.capture.stores.binlog.values import CODECS
from roskva.errors import DatastoreUnavailable

_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")


def codecs_of(session: Session) -> dict[int, str | None]:
    statements = (
        "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS",
        # Collations of Unicode 14 have a number for each of several character sets, and stand here only (MariaDB 10.10 and later).
        "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
    )
    found: dict[int, str | None] = {}
    for statement in statements:
        try:
            rows = session.rows(statement)
        except DatastoreUnavailable:
            continue  # an older server has no such column
        found.update({int(number): CODECS.get(str(name)) for number, name in rows if number is not None})
    return found


def described(session: Session, database: str, table: str) -> Described | None:
    """None: there is no such table, or the user may see nothing of it."""
    rows = session.rows(
        "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLUMN_KEY FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        (database, table),
    )
    if not rows:
        return None
    columns = tuple(_column(str(name), str(kind), charset) for name, kind, charset, _ in rows)
    return Described(columns, tuple(place for place, row in enumerate(rows) if row[3] == "PRI"))


def _column(name: str, kind: str, charset: str | None) -> Column:
    members = tuple(member.replace("''", "'") for member in _MEMBER.findall(kind)) if kind.startswith(("enum(", "set(")) else None
    return Column(name, "unsigned" in kind and members is None, CODECS.get(charset) if charset else None, members)
