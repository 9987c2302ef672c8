"""`capture check` for a MariaDB server: what capture needs of it, tried or looked up, and the statement that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from roskva.capture.interface import Finding
from roskva.capture.stores.mariadb.locating import Log, Remembered
from roskva.capture.stores.mariadb.protocol import Dump, LogRefused, Session, Start, session
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.errors import RoskvaError

DAY_S: Final = 86_400
KEPT_S_MIN: Final = DAY_S  # less of a log than this, and a subscriber that is down for a night has lost updates


def check_server(settings: MariadbSettings) -> list[Finding]:
    found: list[Finding] = []
    try:
        with session(settings) as statements:
            found.append(Finding(f"connection to {settings.where} as {settings.user}", True))
            found.extend(_check_settings(statements))
            found.extend(_check_log(statements, settings))
            found.extend(_check_replica(statements))
    except (RoskvaError, LogRefused) as error:
        found.append(Finding(f"connection to {settings.where} as {settings.user}", False, str(error), _grants(settings)))
    return found


def _grants(settings: MariadbSettings) -> str:
    return f"GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, SELECT ON *.* TO '{settings.user}'@'%'"


def _check_settings(statements: Session) -> Iterator[Finding]:
    def holds(variable: str, right: Callable[[str], bool], means: str, do: str) -> Finding:
        value = statements.variable(variable)
        ok = right(value)
        return Finding(f"{variable} = {value}", ok, "" if ok else means, "" if ok else do)

    yield holds("log_bin", _on, "there is no log to read", "log_bin in the server's configuration, and a restart")
    yield holds(
        "binlog_format",
        lambda value: value == "ROW",
        "the log has statements instead of rows, and is refused where it has",
        "SET GLOBAL binlog_format = 'ROW', and in the server's configuration; sessions that are open keep theirs",
    )
    yield holds(
        "binlog_row_metadata",
        lambda value: value == "FULL",
        "the log does not name columns nor key: they are taken from the table as it is when the row is read, wrong if it was altered since",
        "SET GLOBAL binlog_row_metadata = 'FULL', and in the server's configuration",
    )
    yield holds(
        "binlog_row_image",
        lambda value: value in ("FULL", "FULL_NODUP"),
        "columns that were not changed are missing from updates, and from deletions all but the key: what a shard's rule asks for, too",
        "SET GLOBAL binlog_row_image = 'FULL', and in the server's configuration",
    )
    yield holds(
        "gtid_strict_mode",
        _on,
        "two servers that are written to at once can give the same sequence number, and their log is refused then",
        "SET GLOBAL gtid_strict_mode = ON on every server, and in their configuration",
    )
    yield holds("binlog_checksum", lambda value: value == "CRC32", "a damaged log is not noticed", "SET GLOBAL binlog_checksum = 'CRC32'")
    yield holds(
        "sync_binlog",
        lambda value: value == "1",
        "if the machine loses its power, the log may lose commits that were published already",
        "SET GLOBAL sync_binlog = 1, if the disk bears it",
    )
    yield _check_expiry(statements)


def _on(value: str) -> bool:
    return value in ("ON", "1")


def _check_expiry(statements: Session) -> Finding:
    """Nothing in the server knows of us: a subscriber that is behind by more than this has lost updates."""
    days, seconds = float(statements.variable("expire_logs_days") or 0), float(statements.variable("binlog_expire_logs_seconds") or 0)
    kept_s = seconds or days * DAY_S
    if not kept_s:
        return Finding(
            "binlog_expire_logs_seconds = 0", True, "the server keeps its log until somebody purges it, and nothing but that frees the disk"
        )
    what = f"the log is kept for {kept_s / 3600:g} hours"
    if kept_s >= KEPT_S_MIN:
        return Finding(what, True, "a subscriber that is further behind loses updates; nothing holds the log for it")
    return Finding(what, False, "a subscriber that is further behind loses updates", f"SET GLOBAL binlog_expire_logs_seconds = {7 * DAY_S}")


def _check_log(statements: Session, settings: MariadbSettings) -> Iterator[Finding]:
    """By trying it: what a right is called has changed from version to version."""
    try:
        log = Log(statements, settings, Remembered())
        oldest, end = log.oldest, log.end
    except (RoskvaError, LogRefused) as error:
        yield Finding("the list of the log's files, and one GTID domain", False, str(error), _grants(settings))
        return
    yield Finding(f"the log from {oldest} to {end}, {log.bytes:,} bytes, of the GTID domain {settings.domain} alone", True)
    try:
        dump = Dump(settings, Start(file=log.files[-1][0]), blocking=False)
        try:
            dump.events(settings.connect_timeout_s)
        finally:
            dump.release()
        yield Finding("reading the log", True)
    except (RoskvaError, LogRefused) as error:
        yield Finding("reading the log", False, str(error), _grants(settings))


def _check_replica(statements: Session) -> Iterator[Finding]:
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
    ok = _on(statements.variable("log_slave_updates"))
    do = "" if ok else "log_slave_updates in the server's configuration, and a restart"
    yield Finding("a replica that logs what it replicates", ok, "" if ok else "what comes from the primary is not in this server's log", do)
    yield Finding(
        "slave_run_triggers_for_rbr",
        statements.variable("slave_run_triggers_for_rbr") in ("NO", ""),
        "rows that triggers add here are counted, so that positions within a commit differ from the primary's",
        "SET GLOBAL slave_run_triggers_for_rbr = 'NO'",
    )
