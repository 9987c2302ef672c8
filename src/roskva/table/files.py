"""One partition in one SQLite file: opened only as the manifest names it, checked after every write. For both SQLite engines.

A file is named by its incarnation (registrar-0.1731628800123.db), so that connections to a lost one, when they close and tidy
up their `-wal` and `-shm` by name, can never touch its successor. A write counts only if the paths of all three files, their
inodes and the manifest's incarnation still match after the commit returned: deleting only the `-wal` under open connections
would otherwise give two writers separate logs. Connections are pooled per process; none is carried over a fork, and no
transaction is open while anything else is waited for. Must not import asyncio or Spark.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from roskva.durable import private_directory, sync_directory
from roskva.errors import PartitionBusy, PartitionLost, PartitionUnavailable
from roskva.table.damage import damage_of_log, release, watch
from roskva.table.manifest import Address, Manifest, PartitionRecord, inherited

log = logging.getLogger(__name__)

BUSY_S: Final = 0.2  # a partition that is busy for so long, without anybody's progress, is unavailable
BUSY_MAX_S: Final = 2.0  # the same if others do make progress, but we never get our turn
RETRY_S: Final = 0.0005  # SQLite's own back-off sleeps up to 100 ms and starves a writer beside a busy one
UNFINISHED_S: Final = 60.0
CHECK_S: Final = 1.0  # how old the check of path, inode and incarnation may be for a read
# Per connection; SQLite's own 2,000 would be a good part of a gateway's memory. The kernel has the other pages at hand.
PAGES_KEPT_KIB: Final = 256

LOST_FOLDER: Final = "lost"  # where the last lost file of each partition is kept, for whoever wants to look at it

_META: Final = (
    "CREATE TABLE meta (deployment TEXT NOT NULL, address TEXT NOT NULL, incarnation INTEGER NOT NULL, created_ms INTEGER NOT NULL);"
)
_UNFINISHED: Final = ".new-"  # in the names of files that a process is making

# What a loss means for those who use the service, by kind and name of what is lost.
_TOLD_UNKNOWN: Final = 'whoever is registered for its objects is told "unknown" and fetches them'
_MEANING: Final = {
    ("table", "registrar"): "its clients start anew and register again, by themselves",
    ("table", "matcher"): _TOLD_UNKNOWN,
    ("table", "scratch"): 'every registration is made anew, and everyone is told "unknown"',
    ("table", "marks"): "unfinished work of its clients is found when their rows are next read",
    ("table", "members"): "the gateways enter themselves again",
    ("feed", "updates"): _TOLD_UNKNOWN,
    ("feed", "fan-outs"): _TOLD_UNKNOWN,
    ("feed", "registrations"): "registrations on their way are sent again",
    ("feed", "dead-letters"): "the dead letters in it are gone",
    ("subscriptions", "subscriptions"): "nothing is trimmed from the feed until its readers are back",
}

T = TypeVar("T")
Identity = tuple[int, int, int, int]  # device, and the inodes of the file, its -wal and its -shm


class Damaged(sqlite3.DatabaseError):
    """The file holds what cannot be: as bad as a page that SQLite cannot read."""


class _Handle:
    """An open connection and what it must still find at its path."""

    __slots__ = ("checked_s", "connection", "generation", "identity", "incarnation", "path", "size")

    def __init__(self, connection: sqlite3.Connection, path: str, incarnation: int, identity: Identity, size: int, generation: int) -> None:
        self.connection = connection
        self.path = path
        self.incarnation = incarnation
        self.identity = identity
        self.size = size
        self.generation = generation
        self.checked_s = time.monotonic()


class PartitionFile:
    """The file of one partition, in whatever incarnation the manifest names. Safe from several threads."""

    _pid: int
    _idle: list[_Handle]
    _generation: int  # grows when open connections must not come back to the pool
    _turn: threading.Lock

    def __init__(self, manifest: Manifest, address: Address, directory: Path, tables: str, of_connections: str = "") -> None:
        self.address = address
        self._manifest = manifest
        self._directory = directory
        self._tables = tables
        self._of_connections = of_connections  # statements that every connection begins with
        self._reset()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which only reads. What it sees may be of a file that was lost up to CHECK_S ago."""
        handle = self._borrow(CHECK_S)
        try:
            try:
                result = work(handle.connection)
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                result = _once_more(lambda: work(handle.connection))
        except sqlite3.Error as error:
            raise self._failed(handle, error) from error
        except BaseException:
            _close(handle)
            raise
        self._give_back(handle)
        return result

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction. Returning means: durable, in the file that counts."""
        return self._write(lambda connection: _transaction(connection, work))

    def write_at_once(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        """As `write`, of a single statement, which is a transaction by itself; if the file is busy, as `write` does.

        A thread that shares the interpreter with a busy one waits for it after every call of SQLite: of these there are few here.
        """

        def transact(connection: sqlite3.Connection) -> T:
            try:
                return statement(connection)
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
            return _transaction(connection, statement)  # to ask for the lock again and again costs less than to bind all parameters

        return self._write(transact)

    def _write(self, transact: Callable[[sqlite3.Connection], T]) -> T:
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        turn = self._turn
        if not turn.acquire(timeout=BUSY_MAX_S):
            raise PartitionBusy(f"{self.address} is busy.", str(self.address))
        try:
            # Writers check after the commit; an old check beforehand only spares work that could not count.
            handle = self._borrow(CHECK_S)
            try:
                result = transact(handle.connection)
            except sqlite3.Error as error:
                raise self._failed(handle, error) from error
            except BaseException:
                with suppress(sqlite3.Error):
                    if handle.connection.in_transaction:
                        handle.connection.execute("ROLLBACK")
                self._give_back(handle)
                raise
        finally:
            turn.release()
        self._confirm(handle)
        self._give_back(handle)
        return result

    def incarnation(self, age_s: float = 0.0) -> int:
        """The incarnation that is open here and named by the manifest, checked up to `age_s` seconds ago."""
        try:
            handle = self._borrow(age_s)
        except PartitionLost:
            handle = self._borrow(age_s)  # the loss is recorded: this opens its successor
        self._give_back(handle)
        return handle.incarnation

    def path(self) -> Path:
        """Where the present incarnation's file is."""
        return self._path_of(self._manifest.snapshot().records[self.address])

    def close(self) -> None:
        self._generation += 1
        idle, self._idle = self._idle, []
        if self._pid != os.getpid():
            inherited.extend(idle)
            return
        for handle in idle:
            _close(handle)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle = []
        self._generation = 0
        self._turn = threading.Lock()

    def _leave_to_the_parent(self) -> None:
        """We were forked: neither connections nor locks of the parent are ours."""
        inherited.extend(self._idle)
        self._reset()

    def _borrow(self, age_s: float) -> _Handle:
        if self._pid != os.getpid():
            self._leave_to_the_parent()
        try:
            handle = self._idle.pop()
        except IndexError:
            return self._open()
        if time.monotonic() - handle.checked_s >= age_s:
            self._confirm(handle)
        return handle

    def _give_back(self, handle: _Handle) -> None:
        if handle.generation == self._generation:
            self._idle.append(handle)
        else:
            _close(handle)

    def _confirm(self, handle: _Handle) -> None:
        """Is what this connection has open still what lies at the path, and what the manifest names?"""
        try:
            record = self._manifest.snapshot().records.get(self.address)
        except BaseException:
            _close(handle)
            raise
        found = _look(handle.path)
        if record is None or record.incarnation != handle.incarnation:
            _close(handle)
            raise self._lost(handle.incarnation, "was recorded as lost")
        if found is None or found[0] != handle.identity or found[1] < handle.size:
            _close(handle)
            raise self._lost(handle.incarnation, "was deleted or replaced")
        handle.size = found[1]
        handle.checked_s = time.monotonic()

    def _failed(self, handle: _Handle, error: sqlite3.Error) -> PartitionUnavailable | ValueError:
        """What an error of SQLite means for the caller. The connection is used again only if it was not to blame."""
        with suppress(sqlite3.Error):
            if handle.connection.in_transaction:
                handle.connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.IntegrityError) or "binding parameter" in str(error):
            self._give_back(handle)
            return ValueError(f"{self.address} does not take this: {error}")
        if _is_busy(error):
            self._give_back(handle)
            return PartitionBusy(f"{self.address} is busy.", str(self.address))
        if _means_lost(error):
            _close(handle)
            return self._lost(handle.incarnation, f"is damaged ({error})")
        try:
            self._confirm(handle)
        except PartitionUnavailable as unavailable:
            return unavailable
        _close(handle)
        return PartitionUnavailable(f"{self.address} cannot be used: {error}.", str(self.address))

    def _lost(self, seen_incarnation: int, why: str) -> PartitionLost:
        """Record the loss, unless someone has; the next call opens the successor."""
        self.close()
        if self._manifest.record_lost(*self.address, seen_incarnation):
            log.error(
                "%s %s: it is recorded as lost and begins anew; %s. If the file is still there, it is kept in %s until the next loss.",
                self.address,
                why,
                _MEANING.get(self.address[:2], "what it held is repaired"),
                self._directory / LOST_FOLDER,
            )
        return PartitionLost(f"{self.address} {why}: it begins anew, and what it held is repaired.", str(self.address))

    def _path_of(self, record: PartitionRecord) -> Path:
        return self._directory / f"{self.address.name}-{self.address.partition}.{record.incarnation}.db"

    def _open(self) -> _Handle:
        for _ in range(3):
            snapshot = self._manifest.snapshot()
            record = snapshot.records.get(self.address)
            if record is None:  # the manifest itself began anew
                self._manifest.ensure(self.address.kind, [self.address.name], self.address.partition + 1)
            elif not record.created:
                self._create(snapshot.deployment, record)
            else:
                return self._open_created(snapshot.deployment, record)
        raise PartitionUnavailable(f"{self.address} is lost over and over.", str(self.address))

    def _open_created(self, deployment: str, record: PartitionRecord) -> _Handle:
        path = str(self._path_of(record))
        generation = self._generation
        before = _inode(path)
        if before is None or _log_was_deleted(path):
            raise self._lost(record.incarnation, "was deleted")
        connection: sqlite3.Connection | None = None
        index = watch(path)
        try:
            uri = f"{Path(path).absolute().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA cell_size_check=ON")  # of every page that is read, whether it can be one
            connection.execute("PRAGMA journal_size_limit=67108864")
            connection.execute(f"PRAGMA cache_size=-{PAGES_KEPT_KIB}")
            if self._of_connections:
                connection.executescript(self._of_connections)
            meta = connection.execute("SELECT deployment, address, incarnation FROM meta").fetchall()
            damage = damage_of_log(path, index)
            if damage:
                raise Damaged(damage)
        except BaseException as error:
            _close_connection(connection, path)
            if not isinstance(error, sqlite3.Error):
                raise
            if _means_lost(error) or _inode(path) != before:
                raise self._lost(record.incarnation, f"is damaged ({error})") from error
            raise PartitionUnavailable(f"{self.address} cannot be opened: {error}.", str(self.address)) from error
        found = _look(path)
        if meta != [(deployment, str(self.address), record.incarnation)] or found is None or found[0][1] != before:
            _close_connection(connection, path)
            raise self._lost(record.incarnation, "was replaced")
        connection.execute("PRAGMA busy_timeout=0")  # from here on we wait ourselves, see RETRY_S
        return _Handle(connection, path, record.incarnation, found[0], found[1], generation)

    def _create(self, deployment: str, record: PartitionRecord) -> None:
        private_directory(self._directory)
        path = self._path_of(record)
        fresh = path.with_name(f"{path.name}{_UNFINISHED}{os.getpid()}-{threading.get_ident()}")
        try:
            connection = sqlite3.connect(fresh, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.executescript(f"BEGIN; {_META} {self._tables} COMMIT;")
                meta = (deployment, str(self.address), record.incarnation, time.time_ns() // 1_000_000)
                connection.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", meta)
            finally:
                connection.close()
            self._manifest.create(self.address, record.incarnation, lambda: self._place(fresh, path))
        except (sqlite3.Error, OSError) as error:
            raise PartitionUnavailable(f"{self.address} cannot be created: {error}.", str(self.address)) from error
        finally:
            fresh.unlink(missing_ok=True)

    def _place(self, fresh: Path, path: Path) -> None:
        """Put earlier incarnations aside, of each partition the last one, and the new file in its place."""
        prefix = f"{self.address.name}-{self.address.partition}."
        names = [name for name in os.listdir(self._directory) if name.startswith(prefix)]
        for name in names:
            if _UNFINISHED in name and name != fresh.name and _is_old(self._directory / name):
                (self._directory / name).unlink(missing_ok=True)
        earlier = [name for name in names if _UNFINISHED not in name]
        if earlier:
            aside = self._directory / LOST_FOLDER
            aside.mkdir(exist_ok=True)
            for name in os.listdir(aside):
                if name.startswith(prefix):
                    (aside / name).unlink(missing_ok=True)
            for name in earlier:
                with suppress(FileNotFoundError):
                    os.replace(self._directory / name, aside / name)
        os.replace(fresh, path)
        sync_directory(self._directory)


def _is_old(path: Path) -> bool:
    """Whoever began this file has died: to make one takes milliseconds."""
    try:
        return time.time() - os.stat(path).st_mtime > UNFINISHED_S
    except FileNotFoundError:
        return False


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    _begin(connection)
    result = work(connection)
    connection.execute("COMMIT")
    return result


def _begin(connection: sqlite3.Connection) -> None:
    """Take the write lock. A writer that was stopped inside its transaction must not hold us up; a busy one may, for a while."""
    give_up_s = quiet_until_s = 0.0
    version: object = None
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            now_s = time.monotonic()
            give_up_s = give_up_s or now_s + BUSY_MAX_S
            if now_s >= quiet_until_s:
                before, version = version, connection.execute("PRAGMA data_version").fetchone()
                if before == version or now_s >= give_up_s:
                    raise
                quiet_until_s = now_s + BUSY_S
        time.sleep(RETRY_S)


def _once_more(read: Callable[[], T]) -> T:
    """Readers wait for nobody, but for whoever recovers the log after a crash or tidies it up at a last close."""
    deadline_s = time.monotonic() + BUSY_S
    while True:
        time.sleep(RETRY_S)
        try:
            return read()
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= deadline_s:
                raise


def _close(handle: _Handle) -> None:
    _close_connection(handle.connection, handle.path)


def _close_connection(connection: sqlite3.Connection | None, path: str) -> None:
    try:
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
    finally:
        release(path)


def _means_lost(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return (
        isinstance(error, Damaged)
        or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or code in (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_READONLY_DBMOVED)
        # Our own statements and texts are fixed: the file was emptied, overwritten, or made by another version of Roskva.
        or any(sign in str(error) for sign in ("no such table", "no such column", "Could not decode to UTF-8"))
    )


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _look(path: str) -> tuple[Identity, int] | None:
    """What lies at the path now, and the size of the file itself, which never shrinks. None if any of the three is missing.

    While a connection is open its inodes are not given to other files, so equal inodes mean the same files.
    """
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino, os.stat(path + "-wal").st_ino, os.stat(path + "-shm").st_ino), status.st_size
    except FileNotFoundError:
        return None


def _log_was_deleted(path: str) -> bool:
    """A `-shm` without a `-wal`: SQLite itself removes them in the other order, so somebody else did."""
    for attempt in (1, 2, 3):
        if _inode(path + "-wal") is not None or _inode(path + "-shm") is None:
            return False
        time.sleep(0.002 * attempt)  # the last connection may just be closing
    return True
