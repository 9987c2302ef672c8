"""`capture check` for a server with a binary log: what MariaDB and MySQL have in common, tried or looked up, with what mends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, Generic

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.files import Given
from roskva.capture.stores.binlog.protocol import Dump, LogRefused, Session, Start, session
from roskva.errors import RoskvaError

DAY_S: Final = 86_400
KEPT_S_MIN: Final = DAY_S  # less of a log than this, and a subscriber that is down for a night has lost updates


class Checking(ABC, Generic[Given]):
    """Of one server."""

    what_the_log_is: str  # that is looked at, as a person reads it: "the list of the log's files"

    def __init__(self, settings: Given) -> None:
        self._settings = settings

    @property
    @abstractmethod
    def _grants(self) -> str:
        """The statement that gives all rights that are needed."""

    @abstractmethod
    def _settings_of(self, statements: Session) -> Iterator[Finding]: ...

    @abstractmethod
    def _log(self, statements: Session) -> tuple[Finding, str]:
        """What there is of it, and the name of its last file. What cannot be read is raised."""

    @abstractmethod
    def _replica(self, statements: Session) -> Iterator[Finding]: ...

    def all(self) -> list[Finding]:
        found: list[Finding] = []
        what = f"connection to {self._settings.where} as {self._settings.user}"
        try:
            with session(self._settings) as statements:
                found.append(Finding(what, True))
                found.extend(self._settings_of(statements))
                found.extend(self._check_log(statements))
                found.extend(self._replica(statements))
        except (RoskvaError, LogRefused) as error:
            found.append(Finding(what, False, str(error), self._grants))
        return found

    def _check_log(self, statements: Session) -> Iterator[Finding]:
        """By trying it: what a right is called has changed from version to version."""
        try:
            finding, file = self._log(statements)
        except (RoskvaError, LogRefused) as error:
            yield Finding(self.what_the_log_is, False, str(error), self._grants)
            return
        yield finding
        try:
            dump = Dump(self._settings, Start(file=file), blocking=False)
            try:
                dump.events(self._settings.connect_timeout_s)
            finally:
                dump.release()
            yield Finding("reading the log", True)
        except (RoskvaError, LogRefused) as error:
            yield Finding("reading the log", False, str(error), self._grants)


def holds(statements: Session, variable: str, right: Callable[[str], bool], means: str, do: str) -> Finding:
    value = statements.variable(variable)
    ok = right(value)
    return Finding(f"{variable} = {value}", ok, "" if ok else means, "" if ok else do)


def is_on(value: str) -> bool:
    return value in ("ON", "1")


def check_log_bin(statements: Session) -> Finding:
    return holds(statements, "log_bin", is_on, "there is no log to read", "log_bin in the server's configuration, and a restart")


def check_rows(statements: Session, images: tuple[str, ...]) -> Iterator[Finding]:
    """That the log has rows, and all of each. `images`: values of binlog_row_image that mean that."""
    yield holds(
        statements,
        "binlog_format",
        lambda value: value == "ROW",
        "the log has statements instead of rows, and is refused where it has",
        "SET GLOBAL binlog_format = 'ROW', and in the server's configuration; sessions that are open keep theirs",
    )
    yield holds(
        statements,
        "binlog_row_metadata",
        lambda value: value == "FULL",
        "the log does not name columns nor key: they are taken from the table as it is when the row is read, wrong if it was altered since",
        "SET GLOBAL binlog_row_metadata = 'FULL', and in the server's configuration",
    )
    yield holds(
        statements,
        "binlog_row_image",
        lambda value: value in images,
        "columns that were not changed are missing from updates, and from deletions all but the key: what a shard's rule asks for, too",
        "SET GLOBAL binlog_row_image = 'FULL', and in the server's configuration",
    )


def check_safety(statements: Session) -> Iterator[Finding]:
    """That what was told is not undone by a crash, and for how long it can be read."""
    yield holds(
        statements,
        "binlog_checksum",
        lambda value: value == "CRC32",
        "a damaged log is not noticed",
        "SET GLOBAL binlog_checksum = 'CRC32'",
    )
    yield holds(
        statements,
        "sync_binlog",
        lambda value: value == "1",
        "if the machine loses its power, the log may lose commits that were published already",
        "SET GLOBAL sync_binlog = 1, if the disk bears it",
    )
    yield _check_expiry(statements)


def check_logs_of_replica(ok: bool, variable: str) -> Finding:
    do = "" if ok else f"{variable} in the server's configuration, and a restart"
    return Finding(
        "a replica that logs what it replicates", ok, "" if ok else "what comes from the primary is not in this server's log", do
    )


def _check_expiry(statements: Session) -> Finding:
    """Nothing in the server knows of us: a subscriber that is behind by more than this has lost updates."""
    days, seconds = float(statements.variable("expire_logs_days") or 0), float(statements.variable("binlog_expire_logs_seconds") or 0)
    kept_s = seconds or days * DAY_S
    if not kept_s or statements.variable("binlog_expire_logs_auto_purge") == "OFF":
        return Finding(
            f"binlog_expire_logs_seconds = {seconds:g}",
            True,
            "the server keeps its log until somebody purges it, and nothing but that frees the disk",
        )
    what = f"the log is kept for {kept_s / 3600:g} hours"
    if kept_s >= KEPT_S_MIN:
        return Finding(what, True, "a subscriber that is further behind loses updates; nothing holds the log for it")
    return Finding(what, False, "a subscriber that is further behind loses updates", f"SET GLOBAL binlog_expire_logs_seconds = {7 * DAY_S}")
