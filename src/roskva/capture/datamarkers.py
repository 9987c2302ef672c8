"""Datamarkers: how far each flow has come, kept durably, and who may move them (Wormhole 3.3.1, 3.3.2).

`Datamarkers` is what a publisher needs of the place that keeps them; `SqliteDatamarkers` is a file beside the datastore (single-copy). For
failover between hosts the place is a replicated one, behind the same interface; publishers on one host may share a file. Calls block, and
are made from a thread; a publisher gathers what was acknowledged while the last call was under way and stores it in one.

Every flow has an epoch. Who owns a flow wrote its own name there under an epoch one higher than that of the owner before, in one step that
only one can win; whatever an earlier owner still writes is refused. Must not import the core, nor anything that reads or sends.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from roskva.capture.ownership import FlowName, Record
from roskva.capture.positions import Position
from roskva.durable import private_directory, sync_directory
from roskva.errors import BadRequest, Unavailable

BUSY_S: Final = 5.0  # that a call waits for another process' write to the same file
NOTE_BYTES_MAX: Final = 1_000_000

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS flows (
    application TEXT NOT NULL, shard INTEGER NOT NULL, history INTEGER, sequence INTEGER, place INTEGER,
    epoch INTEGER NOT NULL, owner TEXT NOT NULL, released INTEGER NOT NULL, PRIMARY KEY (application, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, counter INTEGER NOT NULL, about BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""


class Mark(NamedTuple):
    """A datamarker on its way into the store."""

    flow: FlowName
    position: Position
    epoch: int  # of whoever writes it


class Claim(NamedTuple):
    flow: FlowName
    epoch: int


class Beat(NamedTuple):
    """A member, as it was seen: it lives while its counter moves on the observer's own clock."""

    counter: int
    about: bytes


class Datamarkers(Protocol):
    """The place that keeps the datamarkers of one dataset. Returning means durable; raising Unavailable: it may have happened, or not."""

    def records(self) -> dict[FlowName, Record]: ...

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        """Move datamarkers forward: the larger position wins. The answer: flows that have a higher epoch than the mark, where nothing was
        written, because somebody else owns them now.
        """
        ...

    def take(self, claims: Sequence[Claim], publisher: str) -> list[FlowName]:
        """Become the owner of each flow under the claim's epoch, if that of the flow is one less (one that is not there has 0). The answer:
        those that are ours now; of the others somebody was quicker.
        """
        ...

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        """Let another one go on. Only what this publisher owns is released."""
        ...

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        """Set the datamarker where it is told, back or forward, under the next epoch, which is the answer; 0: it is not the owner."""
        ...

    def forget(self, flows: Sequence[FlowName]) -> None:
        """Remove flows that nobody wants any more, datamarkers and all."""
        ...

    def beat(self, member: str, about: bytes) -> None:
        """Move the member's counter."""
        ...

    def members(self) -> dict[str, Beat]: ...

    def leave(self, member: str) -> None:
        """It ends on purpose: nobody needs to wait for its counter."""
        ...

    def note(self, name: str, value: bytes) -> None:
        """Keep a small thing that all publishers shall know, such as an application's order of publishers. Empty: forget it."""
        ...

    def notes(self) -> Mapping[str, bytes]: ...

    def close(self) -> None: ...


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
                self._connection.execute("INSERT OR IGNORE INTO notes VALUES ('#dataset', ?)", (dataset.encode(),))
                (known,) = self._connection.execute("SELECT value FROM notes WHERE name = '#dataset'").fetchone()
            sync_directory(path.parent)
            if known != dataset.encode():
                raise BadRequest(
                    f"The datamarkers in {path} are of the dataset {known.decode()!r}: {dataset!r} needs a file of its own for them."
                )
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
                if found is None or found[0] > epoch:
                    refused.append(flow)
                elif found[1] is None or tuple(position) > found[1:]:
                    connection.execute(
                        "UPDATE flows SET history = ?, sequence = ?, place = ? WHERE application = ? AND shard = ?", (*position, *flow)
                    )
        return refused

    def take(self, claims: Sequence[Claim], publisher: str) -> list[FlowName]:
        won = []
        with self._transaction() as connection:
            for flow, epoch in claims:
                found = connection.execute("SELECT epoch FROM flows WHERE application = ? AND shard = ?", flow).fetchone()
                if (0 if found is None else found[0]) == epoch - 1:
                    connection.execute(
                        "INSERT INTO flows VALUES (?, ?, NULL, NULL, NULL, ?, ?, 0)"
                        " ON CONFLICT DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner, released = 0",
                        (*flow, epoch, publisher),
                    )
                    won.append(flow)
        return won

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

    def forget(self, flows: Sequence[FlowName]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM flows WHERE application = ? AND shard = ?", flows)

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
        if len(value) > NOTE_BYTES_MAX or name.startswith("#"):
            raise BadRequest(f"The note {name[:80]!r} of {len(value):,} bytes cannot be kept beside the datamarkers.")
        with self._transaction() as connection:
            if value:
                connection.execute("INSERT INTO notes VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))
            else:
                connection.execute("DELETE FROM notes WHERE name = ?", (name,))

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
