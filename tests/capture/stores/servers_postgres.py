"""A real PostgreSQL of Debian's, started for tests on a free port of the loopback, and ended by its process ids.

It refuses to run as root: then it runs as the user postgres, in a directory of that user. Its log segments are 1 MB, so that a test fills
several in no time, and nothing is synced to the disk: what these tests kill is processes, never the machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg2
from psycopg2 import sql

STARTS_WITHIN_S: Final = 30.0
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "wal_level": "logical",
    "max_replication_slots": "30",
    "max_wal_senders": "20",
    "shared_buffers": "16MB",
    "min_wal_size": "2MB",
    "max_wal_size": "64MB",
    "autovacuum": "off",
    "timezone": "Asia/Tokyo",  # not what capture shall show
    "log_min_messages": "fatal",
}


def binaries() -> Path:
    """Where Debian keeps the newest server's programs; they are not in the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert found, "no PostgreSQL server is installed: apt-get install postgresql"
    return found[-1]


def free_port() -> int:
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        return int(asking.getsockname()[1])


class PostgresServer:
    """One server with its directory. `start` may be called again after `stop` or `kill`."""

    def programs(self) -> Path:
        return binaries()

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.settings = {**_SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(directory, "postgres", "postgres")

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs() / program), *arguments], cwd=self.directory, capture_output=True, text=True, timeout=60, **self._as_user
        )
        assert done.returncode == 0, done.stderr

    def create(self) -> PostgresServer:
        self.run(
            "initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--wal-segsize=1", "--no-sync",
            "--no-instructions",
        )  # fmt: skip
        return self

    def copy_of(self, primary: PostgresServer) -> PostgresServer:
        """A physical replica, which follows the primary when it is started."""
        self.run("pg_basebackup", "-D", str(self.data), "-d", primary.dsn("postgres"), "-R", "-X", "stream", "-c", "fast", "--no-sync")
        return self

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def dsn(self, database: str, user: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user={user} dbname={database}"

    def start(self) -> PostgresServer:
        assert self._process is None
        arguments = [f"-c{name}={value}" for name, value in self.settings.items()]
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while not self._answers():
            assert time.monotonic() < deadline_s, (self.directory / "log").read_text()[-2000:]
            if self._process is None or self._process.poll() is not None:  # the children of a killed one may still be on their way out
                with (self.directory / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [str(self.programs() / "postgres"), "-D", str(self.data), "-p", str(self.port), *arguments],
                        cwd=self.directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_user,
                    )  # fmt: skip
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            psycopg2.connect(self.dsn("postgres"), connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: at once, but orderly ("fast"); every client is cut off."""
        if self._process is not None:
            self._process.send_signal(mode)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Kill -9, of every process that it has: as when the machine goes, but for what is in memory of the disk."""
        process = self._process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(10)
        self._process = None

    def execute(self, database: str, *statements: str, user: str = "postgres") -> list[tuple[Any, ...]]:
        """Each in a transaction of its own; answers the rows of the last one."""
        with closing(psycopg2.connect(self.dsn(database, user))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []

    def transaction(self, database: str, *statements: str | tuple[str, Sequence[Any]]) -> None:
        """All in one transaction."""
        with closing(psycopg2.connect(self.dsn(database))) as connection, connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(*((statement,) if isinstance(statement, str) else statement))

    def create_database(self, name: str, options: str = "") -> None:
        statement = sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name))
        with closing(psycopg2.connect(self.dsn("postgres"))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)

    def release(self, name: str) -> None:
        """Ends those who use a database, and drops its slots, which would keep the log for ever. The rest goes with the server."""
        deadline_s = time.monotonic() + 10.0
        left = True
        while left and time.monotonic() < deadline_s:
            self.execute("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            left = bool(self.execute("postgres", f"SELECT 1 FROM pg_replication_slots WHERE database = '{name}' AND active"))
        self.execute("postgres", f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}'")


@contextmanager
def directory_for_postgres() -> Iterator[Path]:
    """Not below pytest's own directory, which the user postgres may not enter when the tests run as root."""
    directory = Path(tempfile.mkdtemp(prefix="roskva-postgres-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running_postgres(**settings: str) -> Iterator[PostgresServer]:
    """A new server, for as long as the block lasts."""
    with directory_for_postgres() as directory:
        server = PostgresServer(directory, **settings).create()
        try:
            yield server.start()
        finally:
            server.stop()


@contextmanager
def running_replica(primary: PostgresServer, **settings: str) -> Iterator[PostgresServer]:
    """A standby of the primary, for as long as the block lasts."""
    with directory_for_postgres() as directory:
        server = PostgresServer(directory, **settings).copy_of(primary)
        try:
            yield server.start()
        finally:
            server.stop()
