"""The publication: which tables the readers see, and what they are told of one that they could not see for a while.

It has no filters and lists whole tables: a filter in it could make the producer's own UPDATE fail. But even a publication without any does
that for a table that has no key: such a table is not published, and it is said what to do first.

Theory of operation. A publication lists tables by their numbers. One that is dropped and created again (a migration that puts another in
its place, pg_restore --clean) is not in it any more, and the server tells no reader, nor of what went with the old one. So `prepare` is
called again and again while capture runs. It publishes the table again, and in the same transaction writes a message to the log: changes
are missing here (gaps.py). A reader that comes to it raises LogCut (replication.py), so that each flow is told at that place, whenever it
comes there. Nothing but the log remembers it, and nothing else must survive a crash but the secret by which it is known to be ours.

What a transaction wrote before its table was published is not sent, even if it ends after that. The table is locked against writers for the
moment in which it is added, so that there is no such transaction; if others keep it from that for LOCK_MS_MAX, they go on, and it is tried
again. Where somebody else has published it, the message comes when all transactions of that time have ended.

Functions and a small memory over a cursor whose statements are transactions. Nothing here is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg2

from roskva.capture.stores.postgres.connecting import PostgresSettings, literal, named, quoted
from roskva.capture.stores.postgres.decoding import GAP
from roskva.capture.stores.postgres.gaps import Gaps
from roskva.errors import CaptureRefused, DatastoreUnavailable

LOCK_MS_MAX: Final = 500  # writers wait no longer for us; less than deadlock_timeout, so that nobody's transaction is ended for ours
TABLES_SHOWN_MAX: Final = 5
_SCHEMAS_OF_THE_SYSTEM: Final = "n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'"

# A table that has rows and is in the log. Its identity: d = by its primary key, f = the whole row, i = another index, n = nothing.
TABLES: Final = f"""
    SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relreplident::text AS identity,
           EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND {_SCHEMAS_OF_THE_SYSTEM}
"""
PUBLISHED_NAME: Final = "quote_ident(schemaname) || '.' || quote_ident(tablename)"
WITHOUT_IDENTITY: Final = "(identity = 'n' OR identity = 'd' AND NOT has_key)"
# The number of the table, and that of its entry in the publication: whoever takes it out and adds it again leaves a gap, too.
_PUBLISHED: Final = f"""
    SELECT t.name, t.oid::bigint, coalesce(r.oid::bigint, 0)
    FROM pg_publication p JOIN pg_publication_tables v ON v.pubname = p.pubname JOIN ({TABLES}) AS t ON t.name = {PUBLISHED_NAME}
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = t.oid
    WHERE p.pubname = %s
"""


class Publication:
    """Of one store; one call at a time."""

    def __init__(self, settings: PostgresSettings, gaps: Gaps) -> None:
        self._settings = settings
        self._words = gaps
        self._published: dict[str, tuple[int, int]] = {}  # the tables that are asked for, as they were when it was looked last
        self._gaps: dict[str, int] = {}  # tables -> the first transaction that is too young to have written before they were published

    def exists(self, cursor: Any) -> bool:
        return self._found(cursor) is not None

    def prepare(self, cursor: Any, read: bool) -> None:
        """Creates it, or adds the tables that it lacks. One that publishes all tables lacks none. `read`: somebody may have read from the
        log without them, and must be told."""
        settings = self._settings
        found = self._found(cursor)
        if found is not None and (found[0] or not settings.tables):
            return
        wanted, absent = _wanted_tables(cursor, settings)
        if found is None:
            _refuse(settings, absent, _without_identity(cursor, wanted))
            self._create(cursor, wanted)
            if not settings.tables:
                return
        published = self._look(cursor)
        missing = [table for table in wanted if table not in published]
        bad = _without_identity(cursor, missing)
        added = [table for table in missing if table not in bad]
        if added:
            self._add(cursor, added, read)
            published = self._look(cursor)
        now = {table: published[table] for table in wanted if table in published}
        if read:
            self._tell(cursor, [table for table, numbers in self._published.items() if now.get(table) != numbers and table not in added])
        self._published = now
        _refuse(settings, absent, bad)  # after all that can be done

    def _found(self, cursor: Any) -> tuple[bool] | None:
        """Whether it publishes all tables."""
        cursor.execute("SELECT puballtables FROM pg_publication WHERE pubname = %s", (self._settings.publication,))
        found: tuple[bool] | None = cursor.fetchone()
        return found

    def _look(self, cursor: Any) -> dict[str, tuple[int, int]]:
        cursor.execute(_PUBLISHED, (self._settings.publication,))
        return {name: (table, entry) for name, table, entry in cursor.fetchall()}

    def _create(self, cursor: Any, wanted: Sequence[str]) -> None:
        what = f"FOR TABLE {', '.join(wanted)}" if self._settings.tables else "FOR ALL TABLES"
        # A row of a partitioned table is of that table, whichever part it lies in.
        command = f"CREATE PUBLICATION {quoted(self._settings.publication)} {what} WITH (publish_via_partition_root = true)"
        self._publish(cursor, command, command)

    def _add(self, cursor: Any, tables: Sequence[str], read: bool) -> None:
        listed = ", ".join(tables)
        command = f"ALTER PUBLICATION {quoted(self._settings.publication)} ADD TABLE {listed}"
        whole = f"BEGIN; SET LOCAL lock_timeout = {LOCK_MS_MAX}; LOCK TABLE {listed} IN SHARE MODE; {command}; "
        whole += f"{self._message(tables)}; " if read else ""
        try:
            self._publish(cursor, whole + "COMMIT", command)
        except BaseException:
            _roll_back(cursor)
            raise

    def _message(self, tables: Sequence[str]) -> str:
        return f"SELECT pg_logical_emit_message(true, {literal(GAP)}, {literal(self._words.message(tables))})"

    def _tell(self, cursor: Any, tables: Sequence[str]) -> None:
        """Of these, and of earlier ones, as soon as nobody writes any more who began before they were published."""
        if not tables and not self._gaps:
            return
        cursor.execute("SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s")
        oldest, next_one = cursor.fetchone()
        self._gaps.update(dict.fromkeys(tables, next_one))
        if ended := [table for table, young in self._gaps.items() if young <= oldest]:
            cursor.execute(self._message(ended))
            self._gaps = {table: young for table, young in self._gaps.items() if table not in ended}

    def _publish(self, cursor: Any, command: str, for_a_person: str) -> None:
        settings = self._settings
        try:
            cursor.execute(command)
        except psycopg2.errors.DuplicateObject:
            _roll_back(cursor)  # somebody else has just made it; what is still missing is seen the next time
        except psycopg2.errors.LockNotAvailable:
            raise DatastoreUnavailable(
                f"{settings.place}: a table could not be published, since it waits for transactions that write to it. They may end by "
                "themselves; this shows them: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
                "ORDER BY xact_start."
            ) from None
        except psycopg2.errors.InsufficientPrivilege as error:
            said = " ".join(str(error).split())
            who = "the owner of these tables, who may CREATE in the database" if settings.tables else "a superuser"
            raise CaptureRefused(f"{settings.place}: {said}. Do this as {who}: {for_a_person}.") from None
        except psycopg2.Error as error:
            raise named(settings, error, f"making the publication {settings.publication!r}") from None


def _roll_back(cursor: Any) -> None:
    """A failed transaction must not stay open; a connection that is gone has none."""
    with suppress(psycopg2.Error):
        cursor.execute("ROLLBACK")


def _wanted_tables(cursor: Any, settings: PostgresSettings) -> tuple[list[str], list[str]]:
    """Those that are there, as SQL names them; and those that are not, as the settings do."""
    if not settings.tables:
        cursor.execute(f"SELECT name FROM ({TABLES}) AS tables ORDER BY name")
        return [name for (name,) in cursor.fetchall()], []
    wanted, absent = [], []
    for table in settings.tables:
        cursor.execute(f"SELECT name FROM ({TABLES}) AS tables WHERE oid = to_regclass(%s)", (table,))
        found = cursor.fetchone()
        if found is None:
            absent.append(table)
        elif found[0] not in wanted:
            wanted.append(found[0])
    return wanted, absent


def _without_identity(cursor: Any, wanted: Sequence[str]) -> list[str]:
    if not wanted:
        return []
    cursor.execute(f"SELECT name FROM ({TABLES}) AS tables WHERE {WITHOUT_IDENTITY} AND name = ANY(%s) ORDER BY name", (list(wanted),))
    return [name for (name,) in cursor.fetchall()]


def _refuse(settings: PostgresSettings, absent: Sequence[str], bad: Sequence[str]) -> None:
    if absent:
        raise CaptureRefused(
            f"{settings.place} has no table {absent[0]!r} that is in the log: a table is named as in SQL, with its schema."
        )
    if bad:
        commands = "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in bad[:TABLES_SHOWN_MAX])
        raise CaptureRefused(
            f"{settings.place} has {len(bad)} tables without a key. If they are published, every UPDATE and DELETE of them fails. "
            f"Do this: {commands}; or name the tables that shall be captured."
        )
