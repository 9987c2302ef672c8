"""Reads the log of a RocksDB from one place on: the Reader of rocksdb.py, which says what is promised.

It keeps one log file open, and goes to the next when that has a record: RocksDB writes nothing to the old one after it has written to the
new one. An open file can be read to its end even if it is archived or deleted meanwhile.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.stores.local_files import answering, commit_us
from roskva.capture.stores.rocksdb_files import Logs, some_records
from roskva.capture.stores.rocksdb_wal import (
    BATCH_HEADER,
    BLOCK_BYTES,
    DELETE,
    DELETE_RANGE,
    ENTITY,
    MERGE,
    PUT,
    SINGLE_DELETE,
    Record,
    operations,
)
from roskva.capture.updates import Change, Columns, Operation
from roskva.errors import DatastoreUnavailable, LogCut, RoskvaError, WrongHistory

_WINDOW_BYTES: Final = 1 << 20
_DIRECTORY_TICK_NS: Final = 50_000_000  # longer than the clock of a file system stands still


class Place(NamedTuple):
    log: int  # its number; 0: before the first
    offset: int


class Reading(NamedTuple):
    """What the readers of a datastore share."""

    database: str
    logs: Logs
    family_name: Callable[[int], str]
    identity: Callable[[], str]
    poll_interval_s: float
    sync_first: bool


class RocksDBReader:
    def __init__(
        self, reading: Reading, place: Place, after: int, store_closed: threading.Event, on_close: Callable[[RocksDBReader], None]
    ) -> None:
        self._reading = reading
        self._number, self._offset = place  # where the next record begins
        self._after = after  # sequence of the last operation handed out
        self._expected = after + 1  # of the next record
        self._seeking = True  # records before it may come first
        self._bytes = 0  # read since the last batch
        self._store_closed = store_closed
        self._on_close = on_close
        self._closed = False
        self._lock = threading.Lock()  # held while files are used, not while waiting
        self._descriptor = -1
        self._synced = False  # all of this log: it is finished
        self._window = _WINDOW_BYTES
        self._pending: Iterator[Change] = iter(())
        self._failure: RoskvaError | None = None  # to be raised when what comes before it was handed out
        self._names: dict[int, str] = {}  # of column families
        self._identity = reading.identity()
        self._listed_ns: int | None = None  # the directory's time when it was listed
        self._later: list[int] = []  # logs after ours

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._closed or self._store_closed.is_set():
                    raise DatastoreUnavailable(f"The reader of the log in {self._reading.logs.directory} was closed.")
                with answering(self._reading.logs.directory):
                    changes = list(itertools.islice(self._pending, changes_max))
                    while not changes and self._more():
                        changes = list(itertools.islice(self._pending, changes_max))
            remaining_s = deadline_s - time.monotonic()
            if changes or remaining_s <= 0:
                if changes:
                    self._after = changes[-1].position.sequence
                bytes_read, self._bytes = self._bytes, 0
                return Batch(changes, Position(0, self._after), bytes_read)
            self._store_closed.wait(min(remaining_s, self._reading.poll_interval_s))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._leave()
        self._on_close(self)

    def _more(self) -> bool:
        """Read on, when all was handed out: whether there may be something now."""
        if self._failure is not None:
            raise self._failure
        following = self._next_log()  # looked for before our log is read: if it is there, we will have read all of ours
        if self._number and self._fill(following is not None):
            return True
        if following is None:
            return False
        self._leave()
        self._number, self._offset, self._seeking = following, 0, False
        return True

    def _fill(self, finished: bool) -> bool:
        """The next records of this log: whether there are any."""
        if self._descriptor < 0:
            self._descriptor = self._reading.logs.open(self._number)
        found = some_records(self._descriptor, self._offset, self._number, self._window)
        first = next(found, None)
        status = os.fstat(self._descriptor)
        if status.st_size < self._offset:
            raise WrongHistory(Position(0, self._after), f"the log {self._number} of RocksDB has been shortened")
        self._window = BLOCK_BYTES if first is None else _WINDOW_BYTES  # a recycled file is full of what it held before
        if first is None:
            return False
        if self._reading.sync_first and not self._synced:
            os.fdatasync(self._descriptor)
            self._synced = finished
        self._pending = self._changes(itertools.chain([first], found), commit_us(status))
        return True

    def _changes(self, found: Iterator[Record], committed_us: int) -> Iterator[Change]:
        """Never raises: what was found before the trouble is handed out first."""
        database, names = self._reading.database, self._names
        put, keyless = Operation.INSERT, DELETE_RANGE
        try:
            for content, begin, end in found:
                first, count = BATCH_HEADER.unpack_from(content)
                expected = self._expected
                if first > expected:
                    raise LogCut(Position(0, expected - 1), Position(0, first - 1))
                if first < expected and not self._seeking:
                    raise WrongHistory(Position(0, expected - 1), f"the log of RocksDB goes back to {first}")
                self._offset = end
                self._bytes += end - begin
                # Without an operation: perhaps the end of a two-phase commit, which must not be passed over.
                if first + count < expected or (first + count == expected and count > 0):
                    continue
                self._seeking, self._expected = False, first + count
                for sequence, kind, family, key, value, log_data, size in operations(content):
                    if sequence < expected:
                        continue
                    table = names.get(family) or self._name(family)
                    operation, columns = (put, {"value": value}) if kind == PUT else _meaning(kind, key, value)
                    attached = _attached(log_data) if log_data else None
                    keys = {} if kind == keyless else {"key": key}
                    yield Change(
                        Position(0, sequence, 1), committed_us, operation, database, table, keys, columns, None, (), attached, size
                    )
        except RoskvaError as error:
            self._failure = error

    def _name(self, family: int) -> str:
        name = self._names[family] = self._reading.family_name(family)
        return name

    def _next_log(self) -> int | None:
        """A log after ours that has a record."""
        directory = self._reading.logs.directory
        changed_ns = os.stat(directory).st_mtime_ns
        if changed_ns != self._listed_ns:
            if self._reading.identity() != self._identity:
                raise WrongHistory(Position(0, self._after), f"the database in {directory} is another one than before")
            self._later = [number for number in self._reading.logs.listed() if number > self._number]
            # Something may be added in the same tick of the file system's clock: then it is listed again.
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > _DIRECTORY_TICK_NS else None
        for number in self._later:
            if number > self._number and self._reading.logs.first(number) is not None:
                return number
        return None

    def _leave(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._synced = -1, False


def _meaning(kind: int, key: bytes, value: bytes) -> tuple[Operation, dict[str, bytes]]:
    if kind == MERGE:
        return Operation.UPDATE, {"merge": value}
    if kind == ENTITY:
        return Operation.INSERT, {"entity": value}
    if kind == DELETE_RANGE:
        return Operation.MESSAGE, {"delete_from": key, "delete_before": value}  # RANGE_DELETED
    assert kind in (DELETE, SINGLE_DELETE)
    return Operation.DELETE, {}


def _attached(log_data: tuple[bytes, ...]) -> Columns:
    """The first as `log_data`, others as `log_data_2` and so on."""
    return {"log_data" if number == 1 else f"log_data_{number}": blob for number, blob in enumerate(log_data, 1)}
