"""Datamarkers in a file of SQLite, beside the datastore."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from roskva.capture.datamarkers.interface import DATASET, FORGOTTEN, Beat, Claim, Mark, check_dataset, check_note
from roskva.capture.ownership import FlowName, Record
from roskva.capture.positions import Position
from roskva.durable import private_directory, sync_directory
from roskva.errors import Unavailable

BUSY_S: Final = 5.0  # that a call waits for another process' write to the same file

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS flows (
    application TEXT NOT NULL, shard INTEGER NOT NULL, history INTEGER, sequence INTEGER, place INTEGER,
    epoch INTEGER NOT NULL, owner TEXT NOT NULL, released INTEGER NOT NULL, PRIMARY KEY (application, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, counter INTEGER NOT NULL, about BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


class SqliteDatamarkers:
    """In a file of SQLite, with every write synced. Safe from several threads, and from several processes of one host; one that is stopped
    in the middle of a write (not killed) holds up the others, which is one more reason to keep it in a replicated place for failover.
    """

    def __init__(self, path: Path, dataset: str) -> None:
        private_directory(path.parent)
        self._path = path
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            with self._call():
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.executescript(_SCHEMA)
                self._connection.execute("INSERT OR IGNORE INTO notes VALUES (?, ?)", (DATASET, dataset.encode()))
                (known,) = self._connection.execute("SELECT value FROM notes WHERE name = ?", (DATASET,)).fetchone()
            sync_directory(path.parent)
            check_dataset(str(path), known, dataset)
        except BaseException:
            self._connection.close()
            raise

    def records(self) -> dict[FlowName, Record]:
        with self._call() as connection:
            rows = connection.execute("SELECT application, shard, history, sequence, place, epoch, owner, released FROM flows").fetchall()
        return {
            FlowName(application, shard): Record(
                None if history is None else Position(history, sequence, place), epoch, owner, bool(released)
            )
            for application, shard, history, sequence, place, epoch, owner, released in rows
        }

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        refused = []
        with self._transaction() as connection:
            for flow, position, epoch in marks:
                found = connection.execute(
                    "SELECT epoch, history, sequence, place FROM flows WHERE application = ? AND shard = ?", flow
                ).fetchone()
                if found is None or found[0] != epoch:
                    refused.append(flow)
                elif found[1] is None or tuple(position) > found[1:]:
                    connection.execute(
                        "UPDATE flows SET history = ?, sequence = ?, place = ? WHERE application = ? AND shard = ?", (*position, *flow)
                    )
        return refused

    def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
        won = {}
        with self._transaction() as connection:
            forgotten = self._forgotten(connection)
            for flow, seen in claims:
                found = connection.execute("SELECT epoch FROM flows WHERE application = ? AND shard = ?", flow).fetchone()
                if (0 if found is None else found[0]) == seen:
                    won[flow] = (forgotten if found is None else seen) + 1
                    connection.execute(
                        "INSERT INTO flows VALUES (?, ?, NULL, NULL, NULL, ?, ?, 0)"
                        " ON CONFLICT DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner, released = 0",
                        (*flow, won[flow], publisher),
                    )
        return won

    def _forgotten(self, connection: sqlite3.Connection) -> int:
        found = connection.execute("SELECT value FROM notes WHERE name = ?", (FORGOTTEN,)).fetchone()
        return 0 if found is None else int(found[0])

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE flows SET released = 1 WHERE application = ? AND shard = ? AND owner = ?", [(*flow, publisher) for flow in flows]
            )

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        with self._transaction() as connection:
            found = connection.execute(
                "UPDATE flows SET history = ?, sequence = ?, place = ?, epoch = epoch + 1"
                " WHERE application = ? AND shard = ? AND owner = ? AND NOT released RETURNING epoch",
                (*position, *flow, publisher),
            ).fetchone()
        return 0 if found is None else int(found[0])

    def forget(self, claims: Sequence[Claim]) -> list[FlowName]:
        refused = []
        with self._transaction() as connection:
            highest = self._forgotten(connection)
            for flow, seen in claims:
                found = connection.execute("SELECT epoch FROM flows WHERE application = ? AND shard = ?", flow).fetchone()
                if found is not None and found[0] != seen:
                    refused.append(flow)
                elif found is not None:
                    connection.execute("DELETE FROM flows WHERE application = ? AND shard = ?", flow)
                    highest = max(highest, seen)
            connection.execute(
                "INSERT INTO notes VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (FORGOTTEN, str(highest).encode())
            )
        return refused

    def beat(self, member: str, about: bytes) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO members VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET counter = counter + 1, about = excluded.about",
                (member, about),
            )

    def members(self) -> dict[str, Beat]:
        with self._call() as connection:
            rows = connection.execute("SELECT name, counter, about FROM members").fetchall()
        return {name: Beat(counter, about) for name, counter, about in rows}

    def leave(self, member: str) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM members WHERE name = ?", (member,))

    def note(self, name: str, value: bytes) -> None:
        check_note(name, value)
        with self._transaction() as connection:
            _note(connection, name, value)

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        check_note(name, after)
        with self._transaction() as connection:
            found = connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
            if (b"" if found is None else found[0]) != before:
                return False
            _note(connection, name, after)
        return True

    def notes(self) -> Mapping[str, bytes]:
        with self._call() as connection:
            return dict(connection.execute("SELECT name, value FROM notes WHERE name NOT LIKE '#%'").fetchall())

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _call(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise Unavailable(f"The datamarkers in {self._path} cannot be read or written: {error}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._call() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _note(connection: sqlite3.Connection, name: str, value: bytes) -> None:
    if value:
        connection.execute("INSERT INTO notes VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))
    else:
        connection.execute("DELETE FROM notes WHERE name = ?", (name,))
