"""The tables of the outbox, and what a relay does with them: any database with a DB-API driver, in SQL that all of them read.

What is promised: whatever a committed transaction published is told, at least once, and the version that is told last is higher than
every version that was told of the object before that transaction committed. Nothing of a transaction that was rolled back is told. Of
many changes of an object, clients learn the latest.

Versions. A transaction draws its row's id when it writes, and may commit after another that drew a later one: ids are not in the order of
commits, and a version that was made of them could come too late and be ignored. So a row has no version, unless the application gave one,
until it is relayed. A relay goes four steps:

    1. read rows, in a transaction that ends     all of them are committed
    2. take the next version                     one number for the batch, from a counter in the database
    3. publish each object with that version     until the service has it
    4. delete the rows that were read

Any number of relays may do so at a time, in any order, and be killed anywhere. Let a relay read a committed row of object X and then take
version v. Whatever was told of X with a lower version does not matter, v outranks it. Whatever is told of X with a higher version w is
told after w was taken, so after v was, so after the row was committed: whoever fetches X then sees the change. Step 2 must follow step 1,
and that is all. A relay that is killed before step 4 leaves its rows, and they are told again with a later version. The counter follows
the clock in microseconds and never goes back, so that it outranks what was told before even if its table was lost or restored.

A version that the application gives itself is told as it is. Then the application must see to it that it grows in the order of commits,
for instance by a column of the changed row, which stays locked until the commit: `UPDATE documents SET revision = revision + 1`. The
versions of one object should all be given, or none.

A lease keeps relays from doing the same work at a time. It saves work, and nothing else depends on it or on the clocks it needs.

Ids must never be used twice, since a slow relay deletes by id: hence AUTOINCREMENT in SQLite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from roskva.errors import BadRequest
from roskva.model import check_application
from roskva.publisher import update_of

TABLE: Final = "roskva_outbox"
RELAYS: Final = "roskva_outbox_relay"
DELETED_AT_ONCE: Final = 500  # old SQLite takes 999 values in a statement
OBJECT_CHARACTERS_MAX: Final = 192  # a name of 128 bytes has at most 178 in its text form

DDL: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": (
        f"""CREATE TABLE {TABLE} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    application varchar(64) NOT NULL,
    object varchar({OBJECT_CHARACTERS_MAX}) NOT NULL,
    version bigint,
    source varchar(128),
    created_ms bigint NOT NULL,
    refused varchar(64)
)""",
        f"CREATE INDEX {TABLE}_waiting ON {TABLE} (application, id)",
        f"""CREATE TABLE {RELAYS} (
    application varchar(64) PRIMARY KEY,
    version bigint NOT NULL,
    holder varchar(64) NOT NULL,
    until_ms bigint NOT NULL
)""",
    ),
    "mysql": (
        f"""CREATE TABLE {TABLE} (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    application varchar(64) NOT NULL,
    object varchar({OBJECT_CHARACTERS_MAX}) NOT NULL,
    version bigint,
    source varchar(128),
    created_ms bigint NOT NULL,
    refused varchar(64)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
        f"CREATE INDEX {TABLE}_waiting ON {TABLE} (application, id)",
        f"""CREATE TABLE {RELAYS} (
    application varchar(64) NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    holder varchar(64) NOT NULL,
    until_ms bigint NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
    ),
    "sqlite": (
        f"""CREATE TABLE {TABLE} (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    application text NOT NULL,
    object text NOT NULL,
    version integer,
    source text,
    created_ms integer NOT NULL,
    refused text
)""",
        f"CREATE INDEX {TABLE}_waiting ON {TABLE} (application, id)",
        f"""CREATE TABLE {RELAYS} (
    application text NOT NULL PRIMARY KEY,
    version integer NOT NULL,
    holder text NOT NULL,
    until_ms integer NOT NULL
)""",
    ),
}


@dataclass(frozen=True, slots=True)
class Record:
    """What a transaction publishes, checked."""

    application: str
    object: str
    version: int | None
    source: str | None
    created_ms: int


def record_of(application: str, name: str | bytes, version: int | str | None = None, source: str | None = None) -> Record:
    """Raises what a Publisher would: here and now, where the transaction can still be rolled back."""
    update = update_of(name, 0 if version is None else version, source)
    given = None if version is None else int(update.version)
    return Record(check_application(application), update.object, given, update.source, time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class Row:
    """What a relay reads."""

    id: int
    object: str
    version: int | None
    source: str | None


class Cursor(Protocol):
    """Of the DB-API (PEP 249), what is needed."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def fetchall(self) -> Any: ...

    def close(self) -> Any: ...


class Connection(Protocol):
    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...

    def close(self) -> Any: ...


Transaction: TypeAlias = Callable[[], AbstractContextManager[Cursor]]


class Database:
    """The outbox of one database. `transaction` gives a cursor, and commits at its end unless something was raised. One thread's."""

    def __init__(self, transaction: Transaction, mark: str, close: Callable[[], None] = lambda: None) -> None:
        """`mark` is where a value stands in a statement: ? or %s, as the driver's paramstyle says."""
        if mark not in ("?", "%s"):
            raise BadRequest(f"Drivers with values marked as {mark!r} are not supported.")
        self._transaction = transaction
        self._mark = mark
        self.close = close

    def waiting(self, application: str, rows_max: int) -> list[Row]:
        """Those that were committed and not relayed, the oldest first. Not those that the service refused for good."""
        sql = f"SELECT id, object, version, source FROM {TABLE} WHERE application = ? AND refused IS NULL ORDER BY id LIMIT ?"
        with self._transaction() as cursor:
            self._execute(cursor, sql, [application, rows_max])
            return [Row(*row) for row in cursor.fetchall()]

    def next_version(self, application: str, now_us: int) -> int:
        """Higher than every one that was taken before, by whomever."""
        with self._transaction() as cursor:
            sql = f"UPDATE {RELAYS} SET version = CASE WHEN version >= ? THEN version + 1 ELSE ? END WHERE application = ?"
            self._execute(cursor, sql, [now_us, now_us, application])
            self._execute(cursor, f"SELECT version FROM {RELAYS} WHERE application = ?", [application])
            return int(cursor.fetchall()[0][0])

    def lease(self, application: str, holder: str, now_ms: int, until_ms: int) -> bool:
        """Whether the relay is the one that should work now."""
        sql = f"UPDATE {RELAYS} SET holder = ?, until_ms = ? WHERE application = ? AND (holder = ? OR until_ms < ?)"
        with self._transaction() as cursor:
            self._execute(cursor, sql, [holder, until_ms, application, holder, now_ms])
            return cursor.rowcount > 0

    def release(self, application: str, holder: str) -> None:
        with self._transaction() as cursor:
            self._execute(cursor, f"UPDATE {RELAYS} SET until_ms = 0 WHERE application = ? AND holder = ?", [application, holder])

    def prepare(self, application: str) -> None:
        """The application's row of the relays' table. Two that insert it at a time: one fails, and finds it when it is called again."""
        with self._transaction() as cursor:
            self._execute(cursor, f"SELECT version FROM {RELAYS} WHERE application = ?", [application])
            if not cursor.fetchall():
                self._execute(cursor, f"INSERT INTO {RELAYS} (application, version, holder, until_ms) VALUES (?, 0, '', 0)", [application])

    def delete(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), DELETED_AT_ONCE):
            part = list(ids[start : start + DELETED_AT_ONCE])
            with self._transaction() as cursor:
                self._execute(cursor, f"DELETE FROM {TABLE} WHERE id IN ({', '.join('?' * len(part))})", part)

    def refuse(self, row: int, code: str) -> None:
        """The service will never take it: it stays, with the reason, for a person to look at."""
        with self._transaction() as cursor:
            self._execute(cursor, f"UPDATE {TABLE} SET refused = ? WHERE id = ?", [code[:64], row])

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Of each application: rows that wait, rows that were refused, and when the oldest was written, in ms since 1970."""
        sql = f"SELECT application, COUNT(*) - COUNT(refused), COUNT(refused), MIN(created_ms) FROM {TABLE} GROUP BY application"
        with self._transaction() as cursor:
            self._execute(cursor, sql, [])
            return {str(name): (int(waiting), int(refused), int(oldest)) for name, waiting, refused, oldest in cursor.fetchall()}

    def _execute(self, cursor: Cursor, sql: str, values: Sequence[Any]) -> None:
        cursor.execute(sql.replace("?", self._mark), list(values))


def over_dbapi(connect: Callable[[], Connection], mark: str) -> Database:
    """`connect` makes a connection that is not in autocommit mode. One is kept; after an error another is made."""
    kept: list[Connection] = []

    @contextmanager
    def transaction() -> Iterator[Cursor]:
        if not kept:
            kept.append(connect())
        connection = kept[0]
        try:
            cursor = connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()
            connection.commit()
        except BaseException:
            close()  # which rolls back
            raise

    def close() -> None:
        while kept:
            kept.pop().close()

    return Database(transaction, mark, close)
