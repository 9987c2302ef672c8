"""Datastores to measure: a server of its own, or a log in a temporary directory, each with the same table of rows, and a backlog on demand.

The servers are those of the tests (tests/capture/stores), with settings of a database in use: what is committed is synced to the disk.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg2

from bench.service import BenchFailed
from roskva.capture.settings import settings_of
from roskva.capture.stores.file_lines import Entry
from roskva.capture.stores.file_log import FileLog
from roskva.capture.stores.opening import datastore_of
from roskva.capture.stores.rocksdb_library import RocksDB, library_path
from roskva.capture.updates import Operation, Value
from tests.capture.stores.servers_binlog import BinlogServer
from tests.capture.stores.servers_mariadb import MariadbServer
from tests.capture.stores.servers_mysql import PROGRAMS as MYSQL
from tests.capture.stores.servers_mysql import MysqlServer
from tests.capture.stores.servers_postgres import PostgresServer, directory_for_postgres

DATABASE: Final = "bench"
TABLE: Final = "documents"
ROW: Final = "id bigint, owner, amount and updated_at of their kinds, and a title of 32 characters"
POSTGRES_SETTINGS: Final = {"fsync": "on", "shared_buffers": "256MB", "min_wal_size": "1GB", "max_wal_size": "8GB"}
BINLOG_OPTIONS: Final = ("--innodb-buffer-pool-size=256M", "--max-binlog-size=1G")
_UNSYNCED: Final = ("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")  # while a backlog is written
_TITLE: Final = "the title of row number "
# Of the rows from %s to %s; owners say of which shard each is.
INSERT: Final = (
    f"INSERT INTO {TABLE} SELECT g, g %% {{owners}}, g %% 97, '{_TITLE}' || lpad(g::text, 8, '0'), clock_timestamp()"
    " FROM generate_series(%s::bigint, %s::bigint) g"
)
_FILL: Final = f"""
CREATE PROCEDURE fill(begins bigint, ends bigint, step bigint) LANGUAGE plpgsql AS $$
BEGIN
  WHILE begins < ends LOOP
    INSERT INTO {TABLE} SELECT g, g % 1000, g % 97, '{_TITLE}' || lpad(g::text, 8, '0'), clock_timestamp()
      FROM generate_series(begins, least(begins + step, ends) - 1) g;
    COMMIT;
    begins := begins + step;
  END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True)
class Store:
    """One that runs, prepared for capture, and empty."""

    name: str
    settings: dict[str, object]  # [datastore] of the settings file
    fill: Callable[[int, int], None]  # write so many rows, so many in each commit
    pids: tuple[int, ...] = ()  # of its server

    def prepare(self) -> None:
        """Slot and publication are there before the rows: without them the log would not be kept."""
        store = datastore_of(settings_of({"dataset": {"name": "bench"}, "datastore": self.settings}))
        try:
            store.prepare()
        finally:
            store.close()


class BenchPostgres(PostgresServer):
    def create(self) -> BenchPostgres:
        """With log segments of the usual size."""
        self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"
        )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def datastore(self, slot: str = "roskva") -> dict[str, object]:
        return {"kind": "postgres", "dsn": self.dsn(DATABASE), "slot": slot, "tables": [TABLE]}

    def store(self, slot: str = "roskva") -> Store:
        return Store("postgres", self.datastore(slot), self.fill, (self.pid,))

    def fill(self, rows: int, per_commit: int) -> None:
        with closing(psycopg2.connect(self.dsn(DATABASE))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                cursor.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {TABLE}")
                (first,) = cursor.fetchone()
                cursor.execute("CALL fill(%s, %s, %s)", (first, first + rows, per_commit))
                cursor.execute("CHECKPOINT")

    def senders(self) -> list[int]:
        """The processes that send the log to readers."""
        found = self.execute("postgres", "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'")
        return [int(pid) for (pid,) in found]

    def drop_slot(self, slot: str) -> None:
        """If it is there; whoever reads from it has ended."""
        self.execute(
            "postgres",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active",
        )


@contextlib.contextmanager
def postgres(**settings: str) -> Iterator[BenchPostgres]:
    """A server with the database, the table, and the procedure that fills it."""
    with directory_for_postgres() as directory:
        server = BenchPostgres(directory, **{**POSTGRES_SETTINGS, **settings}).create()
        try:
            server.start()
            server.create_database(DATABASE)
            columns = "id bigint PRIMARY KEY, owner integer, amount integer, title text, updated_at timestamptz"
            server.execute(DATABASE, f"CREATE TABLE {TABLE} ({columns})", _FILL)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def postgres_store() -> Iterator[Store]:
    with postgres() as server:
        yield server.store()


@contextlib.contextmanager
def mariadb_store() -> Iterator[Store]:
    if not Path("/usr/sbin/mariadbd").exists():
        raise BenchFailed("There is no MariaDB server: install it (Debian: mariadb-server).")
    with _binlog_store("mariadb", MariadbServer) as store:
        yield store


@contextlib.contextmanager
def mysql_store() -> Iterator[Store]:
    if not (MYSQL / "bin" / "mysqld").exists():
        raise BenchFailed("There is no MySQL server: scripts/setup.sh test installs one, on linux x86_64.")
    with _binlog_store("mysql", MysqlServer) as store:
        yield store


@contextlib.contextmanager
def _binlog_store(kind: str, made: type[BinlogServer]) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix=f"roskva-{kind}-") as folder:
        server = made(Path(folder), options=BINLOG_OPTIONS)
        server.start()
        try:
            columns = "id bigint PRIMARY KEY, owner integer, amount integer, title varchar(64), updated_at datetime(6)"
            server.run(f"CREATE DATABASE {DATABASE}", f"CREATE TABLE {DATABASE}.{TABLE} ({columns})")
            assert server.process is not None
            settings = {"kind": kind, "port": server.port, "user": "root"}
            yield Store(kind, settings, lambda rows, per_commit: _fill_binlog(server, rows, per_commit), (server.process.pid,))
        finally:
            server.kill()


def _fill_binlog(server: BinlogServer, rows: int, per_commit: int) -> None:
    server.run(*_UNSYNCED)
    with closing(server.connect(DATABASE)) as connection, connection.cursor() as cursor:
        for first in range(1, rows + 1, per_commit):
            numbers = range(first, min(first + per_commit, rows + 1))
            values = ", ".join(f"({seq}, {seq % 1000}, {seq % 97}, '{_TITLE}{seq:08d}', NOW(6))" for seq in numbers)
            cursor.execute(f"INSERT INTO {TABLE} VALUES {values}")


@contextlib.contextmanager
def rocksdb_store() -> Iterator[Store]:
    if library_path() is None:
        raise BenchFailed("There is no RocksDB: install its library (Debian: librocksdb7.8).")
    with tempfile.TemporaryDirectory(prefix="roskva-rocksdb-") as folder, RocksDB(Path(folder) / "db", wal_ttl_s=3600) as database:
        settings: dict[str, object] = {"kind": "rocksdb", "path": str(Path(folder) / "db")}
        yield Store("rocksdb", settings, lambda rows, per_commit: _fill_rocksdb(database, rows, per_commit))


def _fill_rocksdb(database: RocksDB, rows: int, per_commit: int) -> None:
    for first in range(1, rows + 1, per_commit):
        with database.batch() as batch:
            for number in range(first, min(first + per_commit, rows + 1)):
                value = f'{{"owner": {number % 1000}, "amount": {number % 97}, "title": "{_TITLE}{number:08d}"}}'
                batch.put(struct.pack(">Q", number), value.encode())
            database.write(batch)


@contextlib.contextmanager
def files_store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="roskva-files-") as folder, FileLog(Path(folder)) as log:
        settings: dict[str, object] = {"kind": "files", "path": folder}
        yield Store("files", settings, lambda rows, per_commit: _fill_files(log, rows))


def _fill_files(log: FileLog, rows: int) -> None:
    """Each line is a commit of its own, whatever is appended together."""
    for first in range(1, rows + 1, 10_000):
        log.append([_entry(number) for number in range(first, min(first + 10_000, rows + 1))])


def _entry(number: int) -> Entry:
    columns: dict[str, Value] = {"id": number, "owner": number % 1000, "amount": number % 97, "title": f"{_TITLE}{number:08d}"}
    return Entry(Operation.INSERT, TABLE, {"id": number}, columns)
