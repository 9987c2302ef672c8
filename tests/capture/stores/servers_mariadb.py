"""A real MariaDB server, from Debian's package, on a free port and in a folder of the test's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from roskva.capture.stores.mariadb import MariadbSettings
from tests.capture.stores.servers_binlog import BinlogServer

OPTIONS: Final = (
    "--log-bin=bin",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--log-slave-updates",
    "--gtid-strict-mode=ON",
    "--sync-binlog=1",
    "--max-allowed-packet=64M",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--plugin-load-add=ha_blackhole",
)


class MariadbServer(BinlogServer):
    def _needed(self) -> None:
        for program in ("/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"):
            if not Path(program).exists():
                pytest.skip(f"{program} is not installed (Debian: mariadb-server)")

    def _install(self, data: Path) -> list[str]:
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", *self._user, "--auth-root-authentication-method=normal"]
        return [*install, "--skip-test-db", "--innodb-log-file-size=8M"]

    def _command(self) -> list[str]:
        return ["/usr/sbin/mariadbd", "--no-defaults", *self._user, *OPTIONS]

    def settings(self, **changed: Any) -> MariadbSettings:
        return MariadbSettings(**{"dataset": "test", "port": self.port, "user": "root", **changed})
