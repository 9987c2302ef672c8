"""What tests do with a server that has a binary log, MariaDB's or MySQL's: start it, kill it, and ask it things."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final

import pymysql

from roskva.capture.stores.binlog.settings import ServerSettings

START_S_MAX: Final = 60.0
STARTS_MAX: Final = 3  # another process may take the port that was free


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BinlogServer(ABC):
    """Install it once; start, kill and stop it as often as wanted. Whoever made it stops it."""

    _fresh: ClassVar[Path | None] = None  # of a class: what its servers begin with, made once, and copied for each

    def __init__(self, folder: Path, server_id: int = 1, options: Sequence[str] = ()) -> None:
        self._needed()
        self.folder = folder
        self.data = folder / "data"
        self.server_id = server_id
        self.options = tuple(options)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._user = ("--user=root",) if os.getuid() == 0 else ()
        kind = type(self)
        if kind._fresh is None or not kind._fresh.exists():
            kind._fresh = folder / "fresh"
            done = subprocess.run(self._install(kind._fresh), capture_output=True, timeout=START_S_MAX, check=False)
            assert done.returncode == 0, done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
        shutil.copytree(kind._fresh, self.data)

    @abstractmethod
    def _needed(self) -> None:
        """Skips the test if the server's programs are not here."""

    @abstractmethod
    def _install(self, data: Path) -> list[str]:
        """The command that makes what a server begins with."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The program, and what it is told always."""

    @abstractmethod
    def settings(self, **changed: Any) -> ServerSettings: ...

    def start(self) -> None:
        for _ in range(STARTS_MAX):
            with (self.folder / "server.log").open("ab") as log:
                self.process = subprocess.Popen(
                    [
                        *self._command(), f"--datadir={self.data}", "--socket=s.sock", f"--port={self.port}",
                        "--bind-address=127.0.0.1", f"--server-id={self.server_id}", "--pid-file=pid", *self.options,
                    ],
                    stdout=log, stderr=log,
                )  # fmt: skip
            if self._answers():
                return
            self.port = free_port()
        raise AssertionError((self.folder / "server.log").read_text(errors="replace")[-4000:])

    def _answers(self) -> bool:
        assert self.process is not None
        until_s = time.monotonic() + START_S_MAX
        while time.monotonic() < until_s:
            try:
                self.rows("SELECT 1")
            except pymysql.err.MySQLError:
                if self.process.poll() is not None:
                    return False
                time.sleep(0.02)
            else:
                return True
        self.kill()
        return False

    def kill(self) -> None:
        """As if the machine had taken it away: SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_S_MAX)
            self.process = None

    def pause(self, on: bool) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def connect(self, database: str | None = None, **options: Any) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, charset="utf8mb4", **options
        )

    def rows(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def run(self, *statements: str | bytes, database: str | None = None) -> None:
        """In one session."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
