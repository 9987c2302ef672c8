"""`capture check` for a MySQL server: what it has of its own, which is GTIDs of one source, in order, and events that are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.checking import Checking, check_log_bin, check_logs_of_replica, check_rows, check_safety, holds, is_on
from roskva.capture.stores.binlog.files import Remembered
from roskva.capture.stores.binlog.protocol import Session
from roskva.capture.stores.mysql.locating import Log
from roskva.capture.stores.mysql.settings import MysqlSettings

WHOLE_IMAGES: Final = ("FULL",)


class CheckingMysql(Checking[MysqlSettings]):
    what_the_log_is = "the list of the log's files, and one source of GTIDs"

    def __init__(self, settings: MysqlSettings, source: str) -> None:
        """`source`: whose commits are read, if that is known by now."""
        super().__init__(settings)
        self._source = source
        self._seen: Log | None = None

    @property
    def _grants(self) -> str:
        return f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO '{self._settings.user}'@'%'"

    def _settings_of(self, statements: Session) -> Iterator[Finding]:
        yield check_log_bin(statements)
        for variable in ("gtid_mode", "enforce_gtid_consistency"):
            yield holds(
                statements,
                variable,
                is_on,
                "commits may have no GTID, and so no position",
                "gtid_mode = ON and enforce_gtid_consistency = ON in the server's configuration, and a restart",
            )
        yield from check_rows(statements, WHOLE_IMAGES)
        yield holds(
            statements,
            "binlog_row_value_options",
            lambda value: not value,
            "the log has parts of JSON values instead of the whole, and is refused where it has",
            "SET GLOBAL binlog_row_value_options = '', and in the server's configuration; sessions that are open keep theirs",
        )
        yield holds(
            statements,
            "binlog_transaction_compression",
            lambda value: not is_on(value),
            "compressed transactions are not read: the log is refused where it has one",
            "SET GLOBAL binlog_transaction_compression = OFF, and in the server's configuration; sessions that are open keep theirs",
        )
        yield holds(
            statements,
            "binlog_order_commits",
            is_on,
            "what comes earlier in the log may be seen later by who reads the tables",
            "SET GLOBAL binlog_order_commits = ON",
        )
        yield from check_safety(statements)

    def _log(self, statements: Session) -> tuple[Finding, str]:
        log = self._seen = Log(statements, self._settings, Remembered(), self._source)
        what = f"the log from {log.oldest} to {log.end}, {log.bytes:,} bytes, of the source {log.source} alone"
        file = log.files[-1][0]
        others = log.others_since(0)
        if not others:
            return Finding(what, True), file
        named = ", ".join(others)
        if self._settings.source and not log.others_since(len(log.files) - 1):
            return Finding(f"{what}, after commits of {named}", True, "a flow that begins at `oldest`, or before them, stops there"), file
        do = (
            f"once every flow is behind them: FLUSH BINARY LOGS, and PURGE BINARY LOGS up to the new file. If one of them is written to "
            f'now: source = "{others[-1]}" in [datastore], and begin anew'
        )
        return Finding(what, False, f"it has commits of others, too: {named}. A flow that comes to one of them stops there", do), file

    def _replica(self, statements: Session) -> Iterator[Finding]:
        log = self._seen
        if log is None or not log.follows:
            return  # why it could not be looked at was told
        yield check_logs_of_replica(log.logs_what_it_replicates, "log_replica_updates")
        name = "replica" if statements.variable("replica_preserve_commit_order") else "slave"
        variable = f"{name}_preserve_commit_order"
        ok = is_on(statements.variable(variable)) or statements.variable(f"{name}_parallel_workers") in ("0", "1")
        do = "" if ok else f"STOP REPLICA SQL_THREAD, SET GLOBAL {variable} = ON, START REPLICA; and in the server's configuration"
        yield Finding(variable, ok, "" if ok else "commits are logged out of order, and the log is refused where they are", do)
