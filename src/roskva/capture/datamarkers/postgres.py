"""Datamarkers in a PostgreSQL server, which may have standbys: the place for publishers on several hosts (Wormhole 3.3.2).

The dsn is libpq's, and may name several hosts. Whichever of them takes writes is used, so that a promoted standby is found by itself
(`target_session_attrs=read-write`, unless the dsn says otherwise). Three small tables are in the schema that the connection sees first;
another dataset needs another schema or database. Connect to the servers themselves: a pooler that changes servers under a session would
hide a promotion.

What is promised when the server is lost and a standby is promoted:

- Synchronous replication (`synchronous_standby_names`, and the promoted one is among them): nothing that was answered is lost. A primary
  that is cut off from its standbys answers no more, so that publishers which still reach it alone drop their flows (owning.py).
- Asynchronous replication: the newest writes may be lost. A datamarker goes back: updates come again, none is skipped. A counter goes back:
  a dead member seems to live once more, for `takeover_s`. A pause, a move, a removal is undone, a rewind, too: an operator looks again.
  An epoch would go back, too, and an owner of before could write again beside its successor. Hence an epoch is two numbers: the upper
  half is the timeline of the server that gave it, which grows with every promotion. Whoever connects raises, before anything else, all
  epochs of earlier timelines to the first one of this timeline: that is above every epoch that may have been lost, so every owner of
  before is refused, stops, and takes its flows anew.
- Either way the server that was lost must not take writes any more for whoever still reaches it, which is the promoter's duty. Where it is
  neglected two publishers may send a flow at once; a subscriber that hears both listens to the higher epoch.
- A copy of the database that was made otherwise (a dump, a snapshot of the disk) has the timeline of before, or none: stop all publishers,
  and start them and the subscribers again on the copy.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg2

from roskva.capture.datamarkers.interface import DATASET, FORGOTTEN, Beat, Claim, Mark, check_dataset, check_note
from roskva.capture.interface import Finding
from roskva.capture.ownership import FlowName, Record
from roskva.capture.positions import Position
from roskva.capture.stores.postgres.connecting import PostgresSettings, one_line, refusal_to_connect
from roskva.errors import CaptureRefused, RoskvaError, Unavailable

CONNECT_S: Final = 3  # for each host of the dsn
ANSWER_S_MAX: Final = 5.0  # then the connection is given up: the server hangs, or waits for a standby that is gone
EPOCHS_OF_A_TIMELINE: Final = 1 << 32
_LOCK: Final = 0x526F736B7661  # of the making of the tables

# The server bounds what it does itself; a wait for a standby it does not bound, and so the client does.
_SESSION: Final = {
    "synchronous_commit": "on",
    "lock_timeout": "4s",
    "statement_timeout": "4s",
    "idle_in_transaction_session_timeout": "4s",
    "idle_session_timeout": "0",
}
_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS roskva_flows (
    application text, shard int, history bigint, sequence bigint, place bigint,
    epoch bigint NOT NULL, owner text NOT NULL, released bool NOT NULL, PRIMARY KEY (application, shard)
);
CREATE TABLE IF NOT EXISTS roskva_members (name text PRIMARY KEY, counter bigint NOT NULL, about bytea NOT NULL);
CREATE TABLE IF NOT EXISTS roskva_notes (name text PRIMARY KEY, value bytea NOT NULL);
"""
_SERVER: Final = """
SELECT pg_is_in_recovery(), to_regclass('roskva_flows') IS NOT NULL AND to_regclass('roskva_notes') IS NOT NULL,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
    current_setting('synchronous_standby_names') <> '', current_setting('fsync')::bool
"""
_NOTE: Final = "INSERT INTO roskva_notes VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_NAMED: Final = "(application, shard) IN (SELECT * FROM unnest(%s::text[], %s::int[]))"


class _Line:
    """A connection that is given up if a call on it takes too long, whatever libpq waits for."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        # Of our own, so that no other thread ever touches a number that libpq has closed and somebody else has got.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    @contextmanager
    def bounded(self) -> Iterator[None]:
        watchdog = threading.Timer(ANSWER_S_MAX, self._interrupt)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()

    def _interrupt(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self.connection.close()


class PostgresDatamarkers:
    """Safe from several threads; one connection serves all calls, one after the other, and is made again after a failure.

    Each call is one transaction of which the server holds nothing while it waits for us, but for some milliseconds.
    """

    def __init__(self, dsn: str, dataset: str) -> None:
        self._settings = PostgresSettings(dsn)  # raises InvalidSetting
        self._dataset = dataset
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._first_epoch = 0  # of the server's timeline
        self._closed = False
        with self._transaction():
            pass

    def records(self) -> dict[FlowName, Record]:
        with self._transaction() as cursor:
            cursor.execute("SELECT application, shard, history, sequence, place, epoch, owner, released FROM roskva_flows")
            return _records(cursor)

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        refused: list[FlowName] = []
        moved: dict[FlowName, Position] = {}
        with self._transaction() as cursor:
            written = _locked(cursor, [mark.flow for mark in marks])
            for flow, position, epoch in marks:
                record = written.get(flow)
                if record is None or record.epoch != epoch:
                    refused.append(flow)
                    continue
                before = moved.get(flow, record.datamarker)
                if before is None or position > before:
                    moved[flow] = position
            if moved:
                cursor.execute(
                    "UPDATE roskva_flows f SET history = m.history, sequence = m.sequence, place = m.place"
                    " FROM unnest(%s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[])"
                    " AS m(application, shard, history, sequence, place) WHERE f.application = m.application AND f.shard = m.shard",
                    _columns((*flow, *position) for flow, position in moved.items()),
                )
        return refused

    def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
        with self._transaction() as cursor:
            written = _locked(cursor, [claim.flow for claim in claims])
            fresh = sorted({flow for flow, seen in claims if seen == 0 and flow not in written})
            won = {flow: seen + 1 for flow, seen in claims if flow in written and written[flow].epoch == seen}
            if won:
                cursor.execute(
                    "UPDATE roskva_flows f SET epoch = w.epoch, owner = %s, released = false"
                    " FROM unnest(%s::text[], %s::int[], %s::bigint[]) AS w(application, shard, epoch)"
                    " WHERE f.application = w.application AND f.shard = w.shard",
                    (publisher, *_columns((*flow, epoch) for flow, epoch in won.items())),
                )
            if fresh:
                epoch = max(self._first_epoch, _forgotten(cursor)) + 1
                cursor.execute(
                    "INSERT INTO roskva_flows (application, shard, epoch, owner, released)"
                    " SELECT application, shard, %s, %s, false FROM unnest(%s::text[], %s::int[]) AS w(application, shard)"
                    " ON CONFLICT DO NOTHING RETURNING application, shard",
                    (epoch, publisher, *_columns(fresh)),
                )
                won |= {FlowName(*row): epoch for row in cursor.fetchall()}
        return won

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        with self._transaction() as cursor:
            _locked(cursor, flows)
            cursor.execute(f"UPDATE roskva_flows SET released = true WHERE owner = %s AND {_NAMED}", (publisher, *_columns(flows)))

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        with self._transaction() as cursor:
            cursor.execute(
                "UPDATE roskva_flows SET history = %s, sequence = %s, place = %s, epoch = epoch + 1"
                " WHERE application = %s AND shard = %s AND owner = %s AND NOT released RETURNING epoch",
                (*position, *flow, publisher),
            )
            found = cursor.fetchone()
        return 0 if found is None else int(found[0])

    def forget(self, claims: Sequence[Claim]) -> list[FlowName]:
        with self._transaction() as cursor:
            written = _locked(cursor, [claim.flow for claim in claims])
            gone = {flow: seen for flow, seen in claims if flow in written and written[flow].epoch == seen}
            highest = max([_forgotten(cursor), *gone.values()])
            cursor.execute(_NOTE, (FORGOTTEN, str(highest).encode()))
            cursor.execute(f"DELETE FROM roskva_flows WHERE {_NAMED}", _columns(gone))
        return [flow for flow, _ in claims if flow in written and flow not in gone]

    def beat(self, member: str, about: bytes) -> None:
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT INTO roskva_members AS m VALUES (%s, 1, %s)"
                " ON CONFLICT (name) DO UPDATE SET counter = m.counter + 1, about = excluded.about",
                (member, about),
            )

    def members(self) -> dict[str, Beat]:
        with self._transaction() as cursor:
            cursor.execute("SELECT name, counter, about FROM roskva_members")
            return {name: Beat(counter, bytes(about)) for name, counter, about in cursor.fetchall()}

    def leave(self, member: str) -> None:
        with self._transaction() as cursor:
            cursor.execute("DELETE FROM roskva_members WHERE name = %s", (member,))

    def note(self, name: str, value: bytes) -> None:
        check_note(name, value)
        with self._transaction() as cursor:
            if value:
                cursor.execute(_NOTE, (name, value))
            else:
                cursor.execute("DELETE FROM roskva_notes WHERE name = %s", (name,))

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        check_note(name, after)
        with self._transaction() as cursor:
            if not before:
                cursor.execute("INSERT INTO roskva_notes SELECT %s, %s WHERE %s ON CONFLICT DO NOTHING", (name, after, bool(after)))
            elif after:
                cursor.execute("UPDATE roskva_notes SET value = %s WHERE name = %s AND value = %s", (after, name, before))
            else:
                cursor.execute("DELETE FROM roskva_notes WHERE name = %s AND value = %s", (name, before))
            return bool(cursor.rowcount)

    def notes(self) -> Mapping[str, bytes]:
        with self._transaction() as cursor:
            cursor.execute("SELECT name, value FROM roskva_notes WHERE left(name, 1) <> '#'")
            return {name: bytes(value) for name, value in cursor.fetchall()}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    # How it is reached.

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._lock:
            if self._closed:
                raise Unavailable(f"The datamarkers in {self._settings.place} were closed.")
            try:
                if self._line is None:
                    self._line = _Line(_connection(self._settings))
                    with self._line.bounded(), self._line.connection, self._line.connection.cursor() as cursor:
                        self._begin(cursor)
                with self._line.bounded(), self._line.connection, self._line.connection.cursor() as cursor:
                    yield cursor
            except psycopg2.Error as error:
                self._drop()
                raise _named(self._settings, error) from error
            except BaseException:
                self._drop()
                raise

    def _begin(self, cursor: Any) -> None:
        """The first transaction of a connection: the tables are there, and are ours, and epochs of earlier timelines are fenced."""
        in_recovery, made, timeline, *_ = _server(cursor)
        if in_recovery:
            raise Unavailable(f"The datamarkers in {self._settings.place} cannot be written: the server is a standby.")
        if not made:
            self._make(cursor)
        cursor.execute("INSERT INTO roskva_notes VALUES (%s, %s) ON CONFLICT DO NOTHING", (DATASET, self._dataset.encode()))
        cursor.execute("SELECT value FROM roskva_notes WHERE name = %s", (DATASET,))
        check_dataset(self._settings.place, bytes(cursor.fetchone()[0]), self._dataset)
        self._first_epoch = timeline * EPOCHS_OF_A_TIMELINE
        earlier = (self._first_epoch,)
        cursor.execute("SELECT FROM roskva_flows WHERE epoch < %s ORDER BY application, shard FOR UPDATE", earlier)
        cursor.execute("UPDATE roskva_flows SET epoch = %s WHERE epoch < %s", (self._first_epoch, self._first_epoch))

    def _make(self, cursor: Any) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))  # another one may do the same
        try:
            cursor.execute(_TABLES)
        except psycopg2.errors.InsufficientPrivilege as error:
            user = self._settings.parts.get("user", "the role of capture")
            raise CaptureRefused(
                f"{self._settings.place}: the tables of the datamarkers cannot be made: {one_line(str(error))}. "
                f"Do this: CREATE SCHEMA AUTHORIZATION {user}, in that database."
            ) from None

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def _connection(settings: PostgresSettings) -> Any:
    """The dsn's own word counts before ours."""
    given = settings.parts
    wanted: dict[str, object] = {"connect_timeout": CONNECT_S, "target_session_attrs": "read-write", "client_encoding": "UTF8"}
    wanted |= {"application_name": "roskva capture", **_ALIVE}
    options = " ".join([*(f"-c {name}={value}" for name, value in _SESSION.items()), given.get("options", "")]).strip()
    return psycopg2.connect(settings.dsn, options=options, **{name: value for name, value in wanted.items() if name not in given})


def _named(settings: PostgresSettings, error: Exception) -> RoskvaError:
    refused = refusal_to_connect(settings, str(error)) if isinstance(error, psycopg2.OperationalError) else None
    if isinstance(refused, CaptureRefused):
        return refused
    return Unavailable(f"The datamarkers in {settings.place} cannot be read or written: {one_line(str(error))}.")


def _server(cursor: Any) -> tuple[bool, bool, int, bool, bool]:
    """Whether it is a standby, whether the tables are there, its timeline, whether it replicates synchronously, whether it syncs."""
    cursor.execute(_SERVER)
    found: tuple[bool, bool, int, bool, bool] = cursor.fetchone()
    return found


def _locked(cursor: Any, flows: Sequence[FlowName]) -> dict[FlowName, Record]:
    """What is written of them; nobody else changes it until we are done. In one order for all, so that no two wait for each other."""
    cursor.execute(
        "SELECT application, shard, history, sequence, place, epoch, owner, released FROM roskva_flows"
        f" WHERE {_NAMED} ORDER BY application, shard FOR UPDATE",
        _columns(flows),
    )
    return _records(cursor)


def _records(cursor: Any) -> dict[FlowName, Record]:
    return {
        FlowName(application, shard): Record(None if history is None else Position(history, sequence, place), epoch, owner, released)
        for application, shard, history, sequence, place, epoch, owner, released in cursor.fetchall()
    }


def _forgotten(cursor: Any) -> int:
    cursor.execute("SELECT value FROM roskva_notes WHERE name = %s", (FORGOTTEN,))
    found = cursor.fetchone()
    return 0 if found is None else int(bytes(found[0]))


def _columns(rows: Iterable[Sequence[object]]) -> tuple[list[object], ...]:
    """Arrays for unnest."""
    found = list(rows)
    return tuple([row[place] for row in found] for place in range(len(found[0]))) if found else ([], [])


def findings(dsn: str, dataset: str) -> Iterator[Finding]:
    """What `capture check` says of the place. Changes nothing."""
    settings = PostgresSettings(dsn)
    what = f"datamarkers can be kept in {settings.place}"
    try:
        line = _Line(_connection(settings))
    except psycopg2.Error as error:
        named = _named(settings, error)
        yield Finding(what, False, named.what, "correct publisher.datamarkers, or start the server")
        return
    try:
        with line.bounded(), line.connection, line.connection.cursor() as cursor:
            in_recovery, made, _, synchronous, syncs = _server(cursor)
            known = None
            if made:
                cursor.execute("SELECT value FROM roskva_notes WHERE name = %s", (DATASET,))
                known = cursor.fetchone()
    except psycopg2.Error as error:
        yield Finding(what, False, one_line(str(error)), "give its role the right to read and write the tables that begin with roskva_")
        return
    finally:
        line.close()
    if in_recovery:
        yield Finding(what, False, "the server is a standby", "name its primary, too: host=db1,db2")
    elif known is not None and bytes(known[0]) != dataset.encode():
        means = f"they are of the dataset {bytes(known[0]).decode(errors='replace')!r}"
        yield Finding(what, False, means, "add options=-csearch_path=ANOTHER_SCHEMA to publisher.datamarkers")
    elif not made:
        yield Finding(f"no datamarkers are in {settings.place} yet", False, "three small tables", "roskva capture makes it")
    else:
        yield Finding(what, True)
    yield Finding(
        f"{settings.place} {'replicates synchronously' if synchronous else 'does not replicate synchronously'}",
        True,
        "" if synchronous else "if a standby is promoted, some updates come again, and what operators told capture last may be undone",
        "" if synchronous else "ALTER SYSTEM SET synchronous_standby_names = '...'; SELECT pg_reload_conf()",
    )
    if not syncs:
        yield Finding(f"fsync is off in {settings.place}", False, "datamarkers may be lost with the machine", "ALTER SYSTEM SET fsync = on")
