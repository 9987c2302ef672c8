"""The embedded feed: one SQLite file per topic and partition. Keeps the contract of interface.py.

Offsets are counted in a row of their own, never by rowid, so retention may empty a partition and they still go on. Size is
counted as the bytes of keys, headers and values plus a little per record. Subscriptions are soft: they lie in a file of their
own, and if it is lost nothing is trimmed until the subscribers had time to come back. Must not import asyncio or Spark.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from roskva.errors import FeedFull, PartitionUnavailable
from roskva.feed.interface import TOPICS, Entry, Position, Record
from roskva.feed.wake import Wakers
from roskva.model import partition_of
from roskva.table.files import CHECK_S, Damaged, PartitionFile
from roskva.table.manifest import COMPLETE, Address, Manifest

RECORD_OVERHEAD_BYTES: Final = 32
TRANSACTION_RECORDS_MAX: Final = 5_000  # deleted by one transaction: others wait at most 200 ms for their turn
WAIT_SLICE_S: Final = 1.0  # how often a waiter looks by itself: a missed wake-up costs no more
RETURN_S: Final = 600.0  # how long subscribers have to come back after their file was lost
_HEADROOM: Final = 0.9  # at the limit, consumed records go until so much of it is in use: not for every append anew

_TABLES: Final = """
CREATE TABLE records (
  offset INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, key BLOB NOT NULL, headers BLOB NOT NULL, value BLOB NOT NULL
);
CREATE TABLE once (key BLOB PRIMARY KEY, offset INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX once_by_offset ON once (offset);
CREATE TABLE log (next_offset INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO log VALUES (0, 0);
"""
_SUBSCRIPTION_TABLES: Final = """
CREATE TABLE subscriptions (subscription TEXT NOT NULL, topic TEXT NOT NULL, PRIMARY KEY (subscription, topic)) WITHOUT ROWID;
CREATE TABLE commits (
  subscription TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
  incarnation INTEGER NOT NULL, offset INTEGER NOT NULL,
  PRIMARY KEY (subscription, topic, partition)
) WITHOUT ROWID;
"""
_COMMIT: Final = """
INSERT INTO commits VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET incarnation = excluded.incarnation, offset = excluded.offset
WHERE excluded.incarnation > incarnation OR (excluded.incarnation = incarnation AND excluded.offset > offset)
"""
# Of this process's connections alone, so that whatever inserts a record counts it.
_COUNTING: Final = f"""
PRAGMA temp_store=MEMORY;
CREATE TEMP TRIGGER counting AFTER INSERT ON main.records BEGIN
  UPDATE log SET next_offset = max(next_offset, new.offset + 1),
    bytes = bytes + length(new.key) + length(new.headers) + length(new.value) + {RECORD_OVERHEAD_BYTES};
END;
"""
# Few statements, each prepared once. One that has more places than there are records leaves the others out.
_RECORDS_PER_STATEMENT: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_INSERTS: Final = {
    count: (
        "INSERT INTO records SELECT next_offset + column1, ?, column2, column3, column4 FROM log CROSS JOIN"
        f" (VALUES {', '.join(f'({place}, ?, ?, ?)' for place in range(count))})"
        " WHERE column1 < ? AND typeof(next_offset) = 'integer' AND next_offset >= 0"
        " AND typeof(bytes) = 'integer' AND bytes >= 0 AND bytes + ? <= ?"
    )
    for count in _RECORDS_PER_STATEMENT
}
_NO_RECORD: Final = (None, None, None)


class SqliteFeed:
    """See interface.Feed. Opens files lazily, per process. A lost partition is recorded, and begun anew on the next call."""

    def __init__(self, data_dir: Path, manifest: Manifest, retention_s: float, bytes_max: int) -> None:
        self.manifest = manifest
        self.partitions = manifest.partitions
        self._retention_s = retention_s
        self._bytes_max = bytes_max
        directory = data_dir / "feed"
        self._files = {
            (topic, partition): PartitionFile(manifest, Address("feed", topic, partition), directory, _TABLES, _COUNTING)
            for topic in TOPICS
            for partition in range(manifest.partitions)
        }
        self._subscriptions = PartitionFile(manifest, Address("subscriptions", "subscriptions", 0), directory, _SUBSCRIPTION_TABLES)
        self._wakers = Wakers(directory / "wake")
        manifest.ensure("feed", TOPICS)
        manifest.ensure("subscriptions", ["subscriptions"], 1)

    def append(self, topic: str, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        places = [partition_of(entry.key, self.partitions) for entry in entries]
        answers: list[tuple[int, int]] = [(0, 0)] * len(entries)
        for partition in sorted(set(places)):
            indexes = [index for index, place in enumerate(places) if place == partition]
            offsets = self.append_to(topic, partition, [entries[index] for index in indexes])
            for index, offset in zip(indexes, offsets, strict=True):
                answers[index] = (partition, offset)
        return answers

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        if not entries:
            return []
        size = _size_of(entries)
        file = self._file(topic, partition)
        write = file.write_at_once if len(entries) <= _RECORDS_PER_STATEMENT[-1] else file.write
        insert = partial(write, partial(self._insert, entries, size))
        first = self._with_room(topic, partition, size, insert)
        return list(range(first, first + len(entries)))

    def append_once(self, topic: str, entries: Sequence[Entry]) -> None:
        by_partition: dict[int, dict[bytes, Entry]] = {}
        for entry in entries:
            by_partition.setdefault(partition_of(entry.key, self.partitions), {}).setdefault(entry.key, entry)
        for partition, wanted in by_partition.items():
            insert = partial(self._file(topic, partition).write, partial(self._insert_new, list(wanted.values())))
            self._with_room(topic, partition, _size_of(list(wanted.values())), insert)

    def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        statement = "SELECT offset, time_ms, key, headers, value FROM records WHERE offset >= ? AND offset < ? ORDER BY offset"
        rows = self._file(topic, partition).read(lambda connection: connection.execute(statement, (start, end)).fetchall())
        return [Record(partition, *row) for row in rows]

    def oldest(self, topic: str) -> Mapping[int, Position]:
        return self._positions(topic, "SELECT coalesce((SELECT min(offset) FROM records), (SELECT next_offset FROM log))")

    def newest(self, topic: str) -> Mapping[int, Position]:
        return self._positions(topic, "SELECT next_offset FROM log")

    def wait(self, topics: Sequence[str], seen: Mapping[tuple[str, int], Position], timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        with self._wakers.waiter(topics) as waiter:
            while True:
                waiter.forget()  # before the look: what comes after it is new
                if self._is_past(topics, seen):
                    return True
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return False
                waiter.sleep(min(remaining_s, WAIT_SLICE_S))

    def subscribe(self, subscription: str, topics: Sequence[str]) -> None:
        rows = [(subscription, topic) for topic in topics]
        self._subscriptions.write(lambda c: c.executemany("INSERT OR IGNORE INTO subscriptions VALUES (?, ?)", rows))

    def commit(self, subscription: str, topic: str, positions: Mapping[int, Position]) -> None:
        newest = self.newest(topic)
        rows = [
            (subscription, topic, partition, position.incarnation, min(position.offset, newest[partition].offset))
            for partition, position in positions.items()
            if partition in newest and position.incarnation == newest[partition].incarnation
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR IGNORE INTO subscriptions VALUES (?, ?)", (subscription, topic))
            connection.executemany(_COMMIT, rows)

        self._subscriptions.write(write)

    def committed(self, subscription: str, topic: str) -> Mapping[int, Position]:
        statement = "SELECT partition, incarnation, offset FROM commits WHERE subscription = ? AND topic = ?"
        rows = self._subscriptions.read(lambda c: c.execute(statement, (subscription, topic)).fetchall())
        found = {partition: Position(incarnation, offset) for partition, incarnation, offset in rows}
        present = {partition: self._file(topic, partition).incarnation(CHECK_S) for partition in found}
        return {partition: position for partition, position in found.items() if position.incarnation == present[partition]}

    def trim(self) -> int:
        cutoff_ms = int((time.time() - self._retention_s) * 1000)
        gone = 0
        for topic, partition in self._files:
            floor = self._consumed(topic, partition)
            if floor > 0:
                gone += self._drop(topic, partition, floor, lambda bytes_left, time_ms: time_ms < cutoff_ms)
        return gone

    def incarnation(self, topic: str, partition: int) -> int:
        """The incarnation that is open here; a poll of this notices a loss that no call ran into."""
        return self._file(topic, partition).incarnation()

    def path(self, topic: str, partition: int) -> Path:
        """The file of the present incarnation, for tests and `doctor`."""
        return self._file(topic, partition).path()

    def close(self) -> None:
        self._wakers.close()
        self._subscriptions.close()
        for file in self._files.values():
            file.close()

    def _file(self, topic: str, partition: int) -> PartitionFile:
        try:
            return self._files[topic, partition]
        except KeyError:
            raise ValueError(f"there is no partition {partition} of a topic {topic!r} here") from None

    def _insert(self, entries: Sequence[Entry], size: int, connection: sqlite3.Connection) -> int:
        """A statement, or several within a transaction. Answers the first offset; FeedFull before anything was done."""
        time_ms = time.time_ns() // 1_000_000
        last = -1
        try:
            for start in range(0, len(entries), _RECORDS_PER_STATEMENT[-1]):
                some = entries[start : start + _RECORDS_PER_STATEMENT[-1]]
                places = next(places for places in _RECORDS_PER_STATEMENT if places >= len(some))
                parameters: list[object] = [time_ms]
                for key, value, headers in some:
                    parameters += (key, headers, value)
                parameters += _NO_RECORD * (places - len(some))
                # What is missing in all is asked for by the first, and then there is room for the others.
                parameters += (len(some), 0 if start else size, self._bytes_max)
                cursor = connection.execute(_INSERTS[places], parameters)
                if cursor.rowcount != len(some):
                    _, used = _counts(connection)
                    raise FeedFull(f"The feed holds {used:,} bytes of unread records in this partition; {self._bytes_max:,} are allowed.")
                last = cursor.lastrowid or 0
        except sqlite3.IntegrityError as error:
            if "UNIQUE" not in str(error):
                raise
            raise Damaged(f"its count of offsets is behind its records: {error}") from error
        return last + 1 - len(entries)

    def _insert_new(self, entries: list[Entry], connection: sqlite3.Connection) -> int:
        statement = "SELECT 1 FROM once WHERE key = ?"
        new = [entry for entry in entries if connection.execute(statement, (entry.key,)).fetchone() is None]
        if not new:
            return 0
        first = self._insert(new, _size_of(new), connection)
        connection.executemany("INSERT INTO once VALUES (?, ?)", [(entry.key, first + i) for i, entry in enumerate(new)])
        return first

    def _with_room(self, topic: str, partition: int, size: int, append: Callable[[], int]) -> int:
        """Append; if the partition is full, drop what everyone has consumed, however young, and try once more."""
        try:
            first = append()
        except FeedFull:
            target = int(self._bytes_max * _HEADROOM) - size
            if not self._drop(topic, partition, self._consumed(topic, partition), lambda bytes_left, _: bytes_left > target):
                raise
            first = append()
        self._wakers.wake(topic)
        return first

    def _consumed(self, topic: str, partition: int) -> int:
        """The offset before which every subscription has consumed everything; 0 keeps all."""
        self._subscriptions.incarnation(CHECK_S)
        record = self.manifest.record("subscriptions", "subscriptions", 0)
        statement = (
            "SELECT c.incarnation, c.offset FROM subscriptions s"
            " LEFT JOIN commits c ON c.subscription = s.subscription AND c.topic = s.topic AND c.partition = ?"
            " WHERE s.topic = ?"
        )

        def look(connection: sqlite3.Connection) -> tuple[int, list[tuple[int | None, int | None]]]:
            created_ms = connection.execute("SELECT created_ms FROM meta").fetchone()[0]
            return created_ms, connection.execute(statement, (partition, topic)).fetchall()

        created_ms, commits = self._subscriptions.read(look)
        if record.state != COMPLETE:
            # The file was lost: subscribers that have not committed since are unknown, and their records would go.
            if time.time() * 1000 - created_ms < RETURN_S * 1000:
                return 0
            self.manifest.mark_complete("subscriptions", "subscriptions", 0, record.incarnation)
        incarnation = self._file(topic, partition).incarnation(CHECK_S)
        return min((offset if of == incarnation and offset else 0 for of, offset in commits), default=0)

    def _drop(self, topic: str, partition: int, floor: int, goes: Callable[[int, int], bool]) -> int:
        """Drop the oldest records before `floor` as long as `goes(bytes left, time of the record)`."""
        file = self._file(topic, partition)
        statement = (
            "SELECT offset, time_ms, length(key) + length(headers) + length(value) FROM records WHERE offset < ? ORDER BY offset LIMIT ?"
        )

        def drop_some(connection: sqlite3.Connection) -> int:
            _, left = _counts(connection)
            gone, end = 0, 0
            for offset, time_ms, length in connection.execute(statement, (floor, TRANSACTION_RECORDS_MAX)).fetchall():
                if not goes(left, time_ms):
                    break
                left -= length + RECORD_OVERHEAD_BYTES
                gone, end = gone + 1, offset + 1
            if gone:
                connection.execute("DELETE FROM records WHERE offset < ?", (end,))
                connection.execute("DELETE FROM once WHERE offset < ?", (end,))
                connection.execute("UPDATE log SET bytes = ?", (left,))
            return gone

        total = 0
        while gone := file.write(drop_some):
            total += gone
            if gone < TRANSACTION_RECORDS_MAX:
                break
        return total

    def _positions(self, topic: str, statement: str) -> dict[int, Position]:
        """By partition; the incarnation and the offset are read in one statement, so they belong together."""
        look = f"SELECT incarnation, ({statement}) FROM meta"
        positions = {}
        for partition in range(self.partitions):
            positions[partition] = self._file(topic, partition).read(partial(_position, look))
        return positions

    def _is_past(self, topics: Sequence[str], seen: Mapping[tuple[str, int], Position]) -> bool:
        for topic in topics:
            try:
                newest = self.newest(topic)
            except PartitionUnavailable:
                return True  # the caller will meet it, and knows what it means
            for partition, position in newest.items():
                last = seen.get((topic, partition))
                if position.offset > 0 if last is None else position != last:
                    return True
        return False


def _counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """The next offset, and the bytes that the records count."""
    found = connection.execute("SELECT next_offset, bytes FROM log").fetchall()
    if len(found) != 1 or not all(isinstance(number, int) and number >= 0 for number in found[0]):
        raise Damaged("its count of offsets is gone")
    return found[0][0], found[0][1]


def _position(look: str, connection: sqlite3.Connection) -> Position:
    found = connection.execute(look).fetchall()
    if len(found) != 1 or not all(isinstance(number, int) for number in found[0]):
        raise Damaged("its count of offsets is gone")
    return Position(*found[0])


def _size_of(entries: Sequence[Entry]) -> int:
    return sum(len(key) + len(value) + len(headers) + RECORD_OVERHEAD_BYTES for key, value, headers in entries)
