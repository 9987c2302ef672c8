"""RocksDB: its write-ahead log, read by our own decoder from the files while the database is open in another process (Wormhole 2 and 3).

Why not through the library, which has an iterator over the log: it must open the database for that, as a reader or as a secondary instance.
Then it replays the log into memory, wants every comparator that the database was made with, refuses what a newer version has written, and
sees new batches only after another replay each time. The form of the log has been the same for long (rocksdb_wal.py), reading it asks for
nothing but the right to read, costs the database nothing but the reading, and is about as quick: 170,000 batches of one operation a second,
made into changes, where the library's iterator alone gave 193,000.

A position's sequence is RocksDB's sequence number of the operation itself, its index 1. Not that of its batch with the place in it: batches
written by several threads at once are joined in the log, and joined otherwise in a replica. Sequence numbers are the same in a checkpoint,
and in a copy to which the same operations are applied in their order and nothing else: then the latest sequence number of the copy is its
position, and it needs to store none. A gap in the numbers means that something was written without the log (disableWAL, an ingested file),
or that a part of the log is missing: whoever comes to it is told of a loss (LogCut). Numbers that go back are a WrongHistory.

A put is an `insert`: RocksDB does not tell whether there was a value before. A delete and a single delete are a `delete`; a merge is an
`update` with the column `merge` (the operand: only the database knows how to apply it); a write of wide columns is an `insert` with the
column `entity`, as RocksDB encodes it; the deletion of a range is a `message` with the columns `delete_from` and `delete_before`. The table
is the column family (`column-family-N` if it was dropped so long ago that its name is forgotten), the key {"key": bytes}, the value
{"value": bytes}. What the producer writes with PutLogData before an operation of the same batch is `attached` to that, as {"log_data":
bytes}; after the last one, it is left out.

RocksDB keeps no commit times: a change has that of the last write to its log file, which is exact at the log's end and later than the
commit before it. It keeps no log for us either, unless WAL_ttl_seconds or WAL_size_limit_MB are set: `check` says so. Its identity is its
own file IDENTITY, which a checkpoint does not take along: give replicas the same `identity`.

What was read is synced before it is handed out (`sync_first`), as in files.py and for the same reason: RocksDB uses the sequence numbers of
what a power loss has taken once more. Not read: compressed logs, two-phase commits (WritePrepared and WriteUnprepared count otherwise).

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from roskva.capture.interface import Finding, Retained
from roskva.capture.positions import Position
from roskva.capture.stores.local_files import CLOCK_SLACK_S, answering
from roskva.capture.stores.rocksdb_files import Logs, Manifest, read_manifest, read_options
from roskva.capture.stores.rocksdb_reader import Place, Reading, RocksDBReader
from roskva.errors import DatastoreUnavailable, LogCut, RoskvaError, WrongHistory

_IDENTITY: Final = "IDENTITY"


class RocksDBDatastore:
    """The database in one directory. `database` is the name that its changes carry."""

    def __init__(
        self,
        directory: Path,
        database: str = "rocksdb",
        *,
        identity: str | None = None,
        wal_directory: Path | None = None,
        poll_interval_s: float = 0.005,
        sync_first: bool = True,
    ) -> None:
        self.directory = directory
        self._logs = Logs(wal_directory or directory)
        self._reading = Reading(database, self._logs, self.family_name, self._own_identity, poll_interval_s, sync_first)
        self._given_identity = identity
        self._known_identity: str | None = None
        self._confirmed: Position | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._manifest: tuple[object, Manifest] | None = None
        self._unknown_families: dict[int, str] = {}
        self._readers: set[RocksDBReader] = set()

    @property
    def identity(self) -> str:
        return self._given_identity or self._first_identity()

    def retained(self) -> Retained:
        with answering(self.directory):
            oldest, end = self._extent()
            confirmed = None if self._confirmed is None else min(max(self._confirmed.sequence, oldest), end)
            behind = None if confirmed is None else self._bytes_after(confirmed)
            kept = self._logs.bytes
            options = read_options(self.directory)
        limit = int(options.get("WAL_size_limit_MB", "0")) << 20 or None
        # Where the log is dropped by its age, or as soon as it can be: once some of it was, what is there is what is kept.
        if oldest and (limit is None or int(options.get("WAL_ttl_seconds", "0"))):
            limit = kept
        at = None if confirmed is None else Position(0, confirmed)
        return Retained(Position(0, oldest), Position(0, end), behind, limit, at, kept, same_log=True)

    def read_after(self, position: Position) -> RocksDBReader:
        if self._closed.is_set():
            raise DatastoreUnavailable(f"The datastore of {self.directory} was closed.")
        if position.history != 0:
            raise WrongHistory(position, "a RocksDB has no history but 0")
        known = self._first_identity()
        with answering(self.directory):
            if self._own_identity() != known:
                raise WrongHistory(position, f"the database in {self.directory} is another one than before")
            after = max(0, position.sequence - (position.index == 0))
            oldest, end = self._extent()
            if after < oldest:
                raise LogCut(position, Position(0, oldest))
            if after > end:
                raise WrongHistory(position, f"the database in {self.directory} has come to {end} only")
            place = self._place_of(after)
        reader = RocksDBReader(self._reading, place, after, self._closed, self._forget)
        with self._lock:
            self._readers.add(reader)
        return reader

    def at_time(self, time_s: float) -> Position:
        """Before the first log file that was written to since then: no operation of those before it was committed later."""
        with answering(self.directory):
            oldest, end = self._extent()
            for number in self._logs.numbers():
                with self._logs.opened(number) as descriptor:
                    written_s = os.fstat(descriptor).st_mtime
                first = self._logs.first(number)
                if written_s >= time_s - CLOCK_SLACK_S and first is not None and first > oldest:
                    if first - 1 == oldest > 0:  # what was before it may have been written since then, too: nothing tells
                        raise LogCut(f"the time {time_s:.3f}", Position(0, oldest))
                    return Position(0, first - 1)
            return Position(0, end)

    def confirm(self, position: Position) -> None:
        """RocksDB drops its log by time and size, whatever we say; it is remembered to tell how much is behind."""
        self._confirmed = position

    def prepare(self) -> None:
        """Nothing: what is missing are options of whoever opens the database (`check`)."""

    def check(self) -> list[Finding]:
        try:
            with answering(self.directory):
                self._own_identity()
                options, logs = read_options(self.directory), self._logs.listed()
                self._extent()
        except RoskvaError as error:
            return [Finding(f"the database in {self.directory} can be read", False, str(error), "let this user read its directory")]
        kept = options.get("WAL_ttl_seconds", "0") != "0" or options.get("WAL_size_limit_MB", "0") != "0"
        plain = options.get("wal_compression", "kNoCompression") == "kNoCompression"
        unbuffered = options.get("manual_wal_flush", "false") == "false"
        return [
            Finding(f"the database in {self.directory} can be read", True),
            Finding(
                f"there is a log in {self._logs.directory}",
                bool(logs),
                "" if logs else "nothing can be read",
                "" if logs else f"name the directory that the database has as wal_dir: {options.get('wal_dir', 'its own')}",
            ),
            Finding(
                "the log is kept after a flush",
                kept,
                "" if kept else "a subscriber that is behind at a flush loses what it has not read",
                "" if kept else "open the database with WAL_ttl_seconds=86400, or WAL_size_limit_MB",
            ),
            Finding(
                "the log is not compressed",
                plain,
                "" if plain else "it cannot be read",
                "" if plain else "open the database with wal_compression=kNoCompression",
            ),
            Finding(
                "what is written is in the log at once",
                unbuffered,
                "" if unbuffered else "changes come when the producer calls FlushWAL",
                "" if unbuffered else "open the database with manual_wal_flush=false",
            ),
        ]

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()

    def family_name(self, number: int) -> str:
        """A family is in the MANIFEST before anything of it is in the log."""
        if number == 0:
            return "default"
        with self._lock:
            known = self._manifest[1].families.get(number) if self._manifest else None
            known = known or self._unknown_families.get(number)
        if known is None:
            known = self._read_manifest().families.get(number)
        if known is None:
            known = f"column-family-{number}"
            with self._lock:
                self._unknown_families[number] = known
        return known

    def _first_identity(self) -> str:
        with answering(self.directory), self._lock:
            if self._known_identity is None:
                self._known_identity = self._own_identity()
            return self._known_identity

    def _own_identity(self) -> str:
        return (self.directory / _IDENTITY).read_text().strip()

    def _forget(self, reader: RocksDBReader) -> None:
        with self._lock:
            self._readers.discard(reader)

    def _read_manifest(self) -> Manifest:
        current = (self.directory / "CURRENT").read_text().strip()
        status = (self.directory / current).stat()
        seen = (current, status.st_size, status.st_mtime_ns)
        with self._lock:
            if self._manifest is not None and self._manifest[0] == seen:
                return self._manifest[1]
        manifest = read_manifest(self.directory)
        with self._lock:
            self._manifest = (seen, manifest)
        return manifest

    def _extent(self) -> tuple[int, int]:
        """The sequence before the first that can be read, and the last one.

        The MANIFEST is read before the logs: what it knows to be written was written to them before, if it was written to a log at all.
        """
        last = self._read_manifest().last_sequence
        numbers = self._logs.numbers()
        if not numbers:
            return last, last
        logged, _ = self._logs.end(numbers[-1])
        if logged < last:
            return last, last
        first = self._logs.first(numbers[0])
        return (first or 1) - 1, logged

    def _place_of(self, after: int) -> Place:
        """Where the record stands that has the operation after this one; or where it will."""
        for number in reversed(self._logs.numbers()):
            first = self._logs.first(number)
            if first is not None and first <= after + 1:
                with self._logs.opened(number) as descriptor:
                    return Place(number, self._logs.offset_of(descriptor, number, after + 1))
        return Place(0, 0)

    def _bytes_after(self, sequence: int) -> int:
        place, total = self._place_of(sequence), 0
        for number in self._logs.numbers():
            if number >= place.log:
                begin = place.offset if number == place.log else 0
                total += max(0, self._logs.end(number)[1] - begin)
        return total
