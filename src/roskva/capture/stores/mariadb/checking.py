"""`capture check` for a MariaDB server: what it has of its own, which is GTIDs in order, and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.checking import Checking, check_log_bin, check_logs_of_replica, check_rows, check_safety, holds, is_on
from roskva.capture.stores.binlog.files import Remembered
from roskva.capture.stores.binlog.protocol import Session
from roskva.capture.stores.mariadb.locating import Log
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.errors import RoskvaError

WHOLE_IMAGES: Final = ("FULL", "FULL_NODUP")


class CheckingMariadb(Checking[MariadbSettings]):
    what_the_log_is = "the list of the log's files, and one GTID domain"

    @property
    def _grants(self) -> str:
        return f"GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, SELECT ON *.* TO '{self._settings.user}'@'%'"

    def _settings_of(self, statements: Session) -> Iterator[Finding]:
        yield check_log_bin(statements)
        yield from check_rows(statements, WHOLE_IMAGES)
        yield holds(
            statements,
            "gtid_strict_mode",
            is_on,
            "two servers that are written to at once can give the same sequence number, and their log is refused then",
            "SET GLOBAL gtid_strict_mode = ON on every server, and in their configuration",
        )
        yield from check_safety(statements)

    def _log(self, statements: Session) -> tuple[Finding, str]:
        log = Log(statements, self._settings, Remembered())
        what = f"the log from {log.oldest} to {log.end}, {log.bytes:,} bytes, of the GTID domain {self._settings.domain} alone"
        return Finding(what, True), log.files[-1][0]

    def _replica(self, statements: Session) -> Iterator[Finding]:
        try:
            sources = statements.rows("SHOW ALL SLAVES STATUS")
        except RoskvaError as error:
            yield Finding(
                "whether this is a replica",
                False,
                f"a replica that is behind cannot be told from a restored server: {error}",
                "GRANT SLAVE MONITOR",
            )
            return
        if not sources:
            return
        yield check_logs_of_replica(is_on(statements.variable("log_slave_updates")), "log_slave_updates")
        yield Finding(
            "slave_run_triggers_for_rbr",
            statements.variable("slave_run_triggers_for_rbr") in ("NO", ""),
            "rows that triggers add here are counted, so that positions within a commit differ from the primary's",
            "SET GLOBAL slave_run_triggers_for_rbr = 'NO'",
        )
