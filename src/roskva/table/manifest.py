"""The manifest: which incarnation of every partition counts, and the applications' epochs. The one place with compare-and-set.

A partition's file says which deployment and incarnation it is; the manifest says which one it must be. Whoever finds a
difference records `lost` here first, and only then may a fresh file be created, as `recovering`: so no writer can recreate a
lost partition before its loss is known (docs/architecture.md, tables). One small SQLite file with a rollback journal: there is
no log beside it that could be deleted alone. A manifest that is missing or unreadable means that everything starts anew.
Must not import an engine, asyncio or Spark.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from roskva.durable import private_directory, sync_directory
from roskva.errors import DataOutdated, InvalidSetting, PartitionUnavailable

log = logging.getLogger(__name__)

SCHEMA: Final = 2  # of the data directory as a whole: manifest, partition files, cells. There is no migration: `roskva drop all`
COMPLETE: Final = "complete"
LOST: Final = "lost"  # recorded, not yet created again
RECOVERING: Final = "recovering"  # created again; what is absent from it may have existed
BUSY_S: Final = 1.0

# Connections that a fork copied into this process. They belong to the parent: to close them here would be to speak for it.
inherited: list[object] = []
_INCARNATION_IN_NAME: Final = re.compile(r"\.(\d{1,18})\.db$")

_TABLES: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE partitions (
  kind TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, state TEXT NOT NULL, created INTEGER NOT NULL,
  PRIMARY KEY (kind, name, partition)
) WITHOUT ROWID;
CREATE TABLE epochs (application TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")


class Address(NamedTuple):
    kind: str  # "table", "feed" or "subscriptions"
    name: str
    partition: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}-{self.partition}"


class PartitionRecord(NamedTuple):
    incarnation: int
    state: str
    created: bool  # False: its file is yet to be made; nobody may open one


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the manifest says, at one instant."""

    deployment: str
    data_center: str
    partitions: int
    records: Mapping[Address, PartitionRecord]
    epochs: Mapping[str, int]


class _Garbled(sqlite3.DatabaseError):
    """A manifest that SQLite can read, and that says what cannot be."""


class Manifest:
    """Safe from several threads and processes, and after a fork. Open it with `Manifest.open`."""

    _pid: int
    _lock: threading.Lock
    _connection: sqlite3.Connection | None
    _identity: tuple[int, int] | None
    _data_version: int
    _snapshot: Snapshot | None
    _seen: Snapshot | None
    _checked_s: float  # when the last look began

    def __init__(self, path: Path, partitions: int, data_center: str) -> None:
        self.path = path
        self.partitions = partitions
        self.data_center = data_center
        self._known_before = False  # has this process seen a manifest here? Then a missing one was lost
        self._reset()

    @classmethod
    def open(cls, path: Path, partitions: int, data_center: str) -> Manifest:
        """Open the manifest, or begin a new deployment if there is none. InvalidSetting if it was made with other settings."""
        manifest = cls(path, partitions, data_center)
        manifest.snapshot()
        return manifest

    def snapshot(self, age_s: float = 0.0) -> Snapshot:
        """What the manifest says now, or said up to `age_s` seconds ago. Costs microseconds while nothing changed."""
        if self._pid != os.getpid():
            inherited.append(self._connection)
            self._reset()
        oldest_s = time.monotonic() - age_s
        cached = self._snapshot
        if cached is not None and self._checked_s > oldest_s:
            return cached
        with self._lock:
            # Whoever waited for a look that began after its own call need not look again: lanes come here all at once.
            if self._snapshot is not None and self._checked_s > oldest_s:
                return self._snapshot
            return self._guarded(self._refreshed)

    def seen(self) -> Snapshot:
        """What the last look found, without looking: for an event loop, which must not wait for who writes the manifest."""
        return self._seen if self._seen is not None and self._pid == os.getpid() else self.snapshot()

    def record(self, kind: str, name: str, partition: int) -> PartitionRecord:
        """What holds for one partition. One that a manifest begun anew has not heard of yet is lost."""
        return self.snapshot().records.get(Address(kind, name, partition), PartitionRecord(0, LOST, False))

    def epoch(self, application: str) -> int:
        return self.snapshot().epochs.get(application, 0)

    def ensure(self, kind: str, names: Iterable[str], partitions: int | None = None) -> None:
        """Enter partitions that the manifest has never heard of, to be created by whoever opens them first."""
        count = self.partitions if partitions is None else partitions
        wanted = [Address(kind, name, partition) for name in names for partition in range(count)]
        known = self.snapshot().records
        if all(address in known for address in wanted):
            return

        def insert(connection: sqlite3.Connection) -> None:
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            first = max(int(facts["first_incarnation"]), _now_ms())
            rows = [(*address, first, facts["first_state"]) for address in wanted]
            connection.executemany("INSERT OR IGNORE INTO partitions VALUES (?, ?, ?, ?, ?, 0)", rows)

        self._change(insert)

    def record_lost(self, kind: str, name: str, partition: int, seen_incarnation: int) -> bool:
        """Record a loss, unless it is recorded already: whoever noticed second does nothing. Answers whether it did."""

        def lose(connection: sqlite3.Connection) -> bool:
            cursor = connection.execute(
                # Above that of every other partition: which loss was the later one is seen by them. The clock keeps incarnations
                # from repeating even if an old manifest was put back.
                "UPDATE partitions SET incarnation = max((SELECT max(incarnation) FROM partitions) + 1, ?), state = ?, created = 0"
                " WHERE kind = ? AND name = ? AND partition = ? AND incarnation = ?",
                (_now_ms(), LOST, kind, name, partition, seen_incarnation),
            )
            return cursor.rowcount == 1

        return self._change(lose)

    def create(self, address: Address, seen_incarnation: int, place: Callable[[], None]) -> bool:
        """Call `place` to put the new file where it belongs, if the manifest still asks for it. Answers whether it did.

        If we die between the two, the manifest still says "to be created", nobody has opened the file, and it is made again.
        """

        def created(connection: sqlite3.Connection) -> bool:
            cursor = connection.execute(
                "UPDATE partitions SET created = 1, state = CASE state WHEN ? THEN ? ELSE state END"
                " WHERE kind = ? AND name = ? AND partition = ? AND incarnation = ? AND created = 0",
                (LOST, RECOVERING, *address, seen_incarnation),
            )
            if cursor.rowcount != 1:
                return False
            place()
            return True

        return self._change(created)

    def mark_complete(self, kind: str, name: str, partition: int, incarnation: int) -> bool:
        """The recovery of this incarnation is done. False if it was lost again meanwhile."""

        def complete(connection: sqlite3.Connection) -> bool:
            cursor = connection.execute(
                "UPDATE partitions SET state = ? WHERE kind = ? AND name = ? AND partition = ? AND incarnation = ? AND created = 1",
                (COMPLETE, kind, name, partition, incarnation),
            )
            return cursor.rowcount == 1

        return self._change(complete)

    def raise_epoch(self, application: str, seen_epoch: int) -> int:
        """Raise an application's epoch by one if it is still `seen_epoch`; answers the epoch that now holds."""

        def rise(connection: sqlite3.Connection) -> int:
            connection.execute("INSERT OR IGNORE INTO epochs VALUES (?, 0)", (application,))
            connection.execute("UPDATE epochs SET epoch = epoch + 1 WHERE application = ? AND epoch = ?", (application, seen_epoch))
            return int(connection.execute("SELECT epoch FROM epochs WHERE application = ?", (application,)).fetchone()[0])

        return self._change(rise)

    @staticmethod
    def set_outdated_aside(path: Path) -> None:
        """Move a manifest of an older schema out of the way, for whoever drops all. What is opened next begins anew.

        Its partitions' files must still lie there: by them the next one knows that clients may hold what it has not heard of.
        """
        with open(path.with_name(path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
                try:
                    outdated = _schema(connection) < SCHEMA
                finally:
                    connection.close()
                if outdated:
                    os.replace(path, path.with_name(path.name + ".outdated"))
                    path.with_name(path.name + "-journal").unlink(missing_ok=True)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._snapshot = None

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection = None
        self._identity = None
        self._data_version = -1
        self._snapshot = self._seen = None
        self._checked_s = 0.0

    def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self.snapshot()  # opens it, in this process, and makes sure that it is the one at the path

        def changed() -> T:
            self._refreshed()
            connection = self._connection
            assert connection is not None
            self._snapshot = None  # data_version does not move for our own changes
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            if self._identity != _identity_of(self.path):
                raise PartitionUnavailable("The manifest was replaced while it was written.", "manifest")
            return result

        with self._lock:
            return self._guarded(changed)

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.DatabaseError as error:
            connection, self._connection, self._snapshot = self._connection, None, None
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
            if _unreadable(error):
                self._put_aside()
            raise PartitionUnavailable(f"The manifest {self.path.name} cannot be used: {error}.", "manifest") from error

    def _refreshed(self) -> Snapshot:
        began_s = time.monotonic()
        identity = _identity_of(self.path)
        if self._connection is None or identity is None or identity != self._identity:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._open()
        assert self._connection is not None
        data_version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if self._snapshot is None or data_version != self._data_version:
            self._snapshot = self._seen = self._load(self._connection)
            self._data_version = data_version
        self._checked_s = began_s
        return self._snapshot

    def _open(self) -> None:
        for _ in range(3):
            if _identity_of(self.path) is None:
                self._begin_deployment()
            identity = _identity_of(self.path)
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            try:
                connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
                connection.execute("PRAGMA synchronous=FULL")
                self._check_facts(connection)
            except sqlite3.DatabaseError as error:
                if _unreadable(error):
                    self._put_aside()
                    continue
                if _identity_of(self.path) is None:
                    continue
                raise
            if identity is not None and identity == _identity_of(self.path):
                self._connection, self._identity, self._snapshot, self._known_before = connection, identity, None, True
                return
            connection.close()
        raise PartitionUnavailable(f"The manifest {self.path.name} is being replaced over and over.", "manifest")

    def _check_facts(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):  # it has a few pages: this takes a tenth of a millisecond
            raise _Garbled("its pages do not fit together")
        schema = _schema(connection)
        if schema != SCHEMA:
            connection.close()
            if schema < SCHEMA:
                raise DataOutdated(self.path.parent)
            raise InvalidSetting(f"The data directory {self.path.parent} was made by a later version of Roskva.")
        facts, _, _ = _contents(connection)
        problem = ""
        if int(facts["partitions"]) != self.partitions:
            problem = f"The data directory {self.path.parent} has {facts['partitions']} partitions, the settings say {self.partitions}:"
            problem += " their number is fixed when the data directory is created."
        elif facts["data_center"] != self.data_center:
            problem = f"The data directory {self.path.parent} belongs to the data center {facts['data_center']!r},"
            problem += f" the settings say {self.data_center!r}."
        if problem:
            connection.close()
            raise InvalidSetting(problem)

    def _load(self, connection: sqlite3.Connection) -> Snapshot:
        connection.execute("BEGIN")
        try:
            facts, records, epochs = _contents(connection)
        finally:
            connection.execute("COMMIT")
        found = MappingProxyType(records), MappingProxyType(epochs)
        return Snapshot(facts["deployment"], facts["data_center"], int(facts["partitions"]), *found)

    def _begin_deployment(self) -> None:
        """Write a new manifest beside the place and link it in: of several processes that try, one wins."""
        directory = self.path.parent
        private_directory(directory)
        newest_found = _newest_incarnation(directory)
        # Data of an earlier deployment, or an earlier manifest in our memory: something was lost, so nothing is known complete.
        anew = self._known_before or newest_found is not None
        facts = {
            "schema": SCHEMA,
            "deployment": secrets.token_hex(16),
            "data_center": self.data_center,
            "partitions": self.partitions,
            "first_incarnation": max(_now_ms(), (newest_found or 0) + 1),
            "first_state": RECOVERING if anew else COMPLETE,
        }
        fresh = self.path.with_name(f"{self.path.name}.new-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            connection = sqlite3.connect(fresh, isolation_level=None)
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
            connection.executemany("INSERT INTO facts VALUES (?, ?)", [(name, str(value)) for name, value in facts.items()])
            connection.close()
            with suppress(FileExistsError):
                os.link(fresh, self.path)
            sync_directory(directory)
        finally:
            fresh.unlink(missing_ok=True)

    def _put_aside(self) -> None:
        """Move an unreadable manifest out of the way. The lock keeps a slow second process from moving its successor."""
        with open(self.path.with_name(self.path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
                try:
                    if connection.execute("PRAGMA quick_check").fetchone() == ("ok",):
                        if _schema(connection) == SCHEMA:
                            _contents(connection)
                        return
                finally:
                    connection.close()
            except sqlite3.DatabaseError as error:
                if not _unreadable(error):
                    return
            self._known_before = True
            aside = self.path.with_name(self.path.name + ".unreadable")
            with suppress(FileNotFoundError):
                os.replace(self.path, aside)
                log.error(
                    "The manifest %s cannot be read: everything begins anew. Clients register again by themselves and are told"
                    ' "unknown". It is kept as %s until the next one.',
                    self.path,
                    aside.name,
                )
            self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)


def _schema(connection: sqlite3.Connection) -> int:
    """Read by itself: of another schema, nobody knows what the rest looks like."""
    found = connection.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone()
    try:
        return int(found[0])
    except (TypeError, ValueError):
        raise _Garbled("it does not say of which schema it is") from None


def _contents(connection: sqlite3.Connection) -> tuple[dict[str, str], dict[Address, PartitionRecord], dict[str, int]]:
    """All that a manifest says: facts, partitions, epochs."""
    try:
        facts = {str(name): str(value) for name, value in connection.execute("SELECT name, value FROM facts")}
        records = {
            Address(kind, name, int(partition)): PartitionRecord(int(incarnation), state, bool(created))
            for kind, name, partition, incarnation, state, created in connection.execute("SELECT * FROM partitions")
        }
        epochs = {str(name): int(epoch) for name, epoch in connection.execute("SELECT application, epoch FROM epochs")}
        numbers = [int(facts[name]) for name in ("schema", "partitions", "first_incarnation")]
    except (ValueError, TypeError) as error:
        raise _Garbled(f"it holds what cannot be: {error}") from None
    except KeyError as error:
        raise _Garbled(f"it lacks the fact {error}") from None
    states = {record.state for record in records.values()} | {facts.get("first_state", "")}
    if not states <= {COMPLETE, LOST, RECOVERING} or min(numbers) < 0 or not facts.get("deployment") or "data_center" not in facts:
        raise _Garbled("it holds what cannot be")
    return facts, records, epochs


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _unreadable(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return (
        isinstance(error, _Garbled)
        or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or any(sign in str(error) for sign in ("no such table", "no such column", "Could not decode to UTF-8"))
    )


def _newest_incarnation(directory: Path) -> int | None:
    """The largest incarnation among the partition files of an earlier deployment, by their names; None if there are none."""
    found = [_INCARNATION_IN_NAME.search(path.name) for path in directory.glob("*/*.db")]
    return max((int(match[1]) for match in found if match), default=None)
