"""A real MySQL server, from where scripts/setup.sh puts one, on a free port and in a folder of the test's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from roskva.capture.stores.mysql import MysqlSettings
from tests.capture.stores.servers_binlog import BinlogServer

PROGRAMS: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roskva" / "mysql-8.0.33"
SMALL: Final = ("--performance-schema=OFF", "--innodb-buffer-pool-size=16M", "--innodb-redo-log-capacity=8M", "--mysqlx=OFF")
OPTIONS: Final = (
    "--log-bin=bin",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--binlog-row-metadata=FULL",
    "--max-allowed-packet=64M",
    *SMALL,
)


class MysqlServer(BinlogServer):
    def __init__(self, folder: Path, server_id: int = 1, options: Sequence[str] = ()) -> None:
        super().__init__(folder, server_id, options)
        (self.data / "auto.cnf").unlink()  # in which its UUID is: every server has one of its own

    def _needed(self) -> None:
        if not (PROGRAMS / "bin" / "mysqld").exists():
            pytest.skip("MySQL is not there: scripts/setup.sh installs it, on linux x86_64")

    def _install(self, data: Path) -> list[str]:
        return [*self._program(), f"--datadir={data}", "--initialize-insecure", "--innodb-flush-method=nosync", *SMALL]

    def _program(self) -> list[str]:
        return [str(PROGRAMS / "bin" / "mysqld"), "--no-defaults", *self._user]

    def _command(self) -> list[str]:
        return [*self._program(), *OPTIONS]

    @property
    def uuid(self) -> str:
        ((found,),) = self.rows("SELECT @@server_uuid")
        return str(found)

    def settings(self, **changed: Any) -> MysqlSettings:
        return MysqlSettings(**{"dataset": "test", "port": self.port, "user": "root", **changed})
