"""Where a LiveCache keeps its values over a restart: the interface, one in memory, one in an SQLite file; and how values become bytes.

Anybody may write another store: three methods, called one at a time, each from a thread of its own, so they may block.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from roskva.durable import sync_directory
from roskva.errors import InvalidSetting, StateInUse

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """One object: its value as the codec wrote it, the version if the application's values have them, and the version's epoch."""

    name: bytes
    value: bytes
    version: int | None = None
    epoch: int = 0


class Store(Protocol):
    """What a LiveCache asks of a store. `durable`: what was written is there after a crash; then versions are stated to the service.

    A store belongs to one client's state, and to one running cache. It must not go back: the service does not repeat what was
    acknowledged because the store held it, so whoever restores a store from a backup must delete the client's state file.
    """

    @property
    def durable(self) -> bool: ...

    def load(self) -> list[Kept]:
        """Everything that is kept, what was written longest ago first. Called before anything else, and once more after `close` if the
        user signs out: then all of it is written as gone."""

    def write(self, kept: Sequence[Kept], gone: Sequence[bytes]) -> None:
        """Keep these, each in place of what its name had, and forget those. Returning means: it is done; raising: it may not be."""

    def close(self) -> None: ...


class Codec(Protocol):
    """Values to bytes and back. What `decode` refuses by raising ValueError counts as not kept."""

    def encode(self, value: Any, /) -> bytes: ...

    def decode(self, data: bytes, /) -> Any: ...


class JsonCodec:
    """Whatever JSON can hold. Tuples come back as lists."""

    def encode(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


class BytesCodec:
    """Values that are bytes already."""

    def encode(self, value: Any, /) -> bytes:
        return bytes(value)

    def decode(self, data: bytes, /) -> Any:
        return data


class MemoryStore:
    """As long as the process lives: for tests. `durable` makes a cache believe that it outlives a restart."""

    def __init__(self, durable: bool = False) -> None:
        self.durable = durable
        self.entries: dict[bytes, Kept] = {}

    def load(self) -> list[Kept]:
        return list(self.entries.values())

    def write(self, kept: Sequence[Kept], gone: Sequence[bytes]) -> None:
        for name in gone:
            self.entries.pop(name, None)
        for one in kept:
            self.entries.pop(one.name, None)
            self.entries[one.name] = one

    def close(self) -> None:
        pass


class SqliteStore:
    """One file, held by one cache at a time. What is damaged is put aside as NAME.damaged, and the cache begins empty."""

    durable: Final = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._connection: sqlite3.Connection | None = None

    def load(self) -> list[Kept]:
        try:
            return self._open()
        except sqlite3.OperationalError as error:
            self.close()
            if "locked" in str(error):
                raise StateInUse(self.path) from None
            raise InvalidSetting(f"The store {self.path} cannot be used: {error}.") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            self.close()
            self._put_aside()
            return self._open()

    def _open(self) -> list[Kept]:
        new = not self.path.exists()
        connection = self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0.0)
        # Never let go: a second cache over the same file would write older values over newer ones. Not WAL, so that it is one file.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, _FORMAT):
            raise sqlite3.DatabaseError(f"format {found}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS kept (turn INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE,"
            " value BLOB NOT NULL, version INTEGER, epoch INTEGER NOT NULL)"
        )
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        rows = connection.execute("SELECT name, value, version, epoch FROM kept ORDER BY turn").fetchall()
        connection.execute("COMMIT")
        if new:
            sync_directory(self.path.absolute().parent)
        return [Kept(bytes(name), bytes(value), version, epoch) for name, value, version, epoch in rows]

    def write(self, kept: Sequence[Kept], gone: Sequence[bytes]) -> None:
        connection = self._connection
        if connection is None:
            raise InvalidSetting(f"The store {self.path} is not open.")
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("DELETE FROM kept WHERE name = ?", [(name,) for name in gone])
            # A row that is replaced gets a new turn: the last one written is the last one loaded.
            connection.executemany(
                "INSERT OR REPLACE INTO kept (name, value, version, epoch) VALUES (?, ?, ?, ?)",
                [(one.name, one.value, one.version, one.epoch) for one in kept],
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if gone and connection.execute("SELECT 1 FROM kept LIMIT 1").fetchone() is None:
            connection.execute("VACUUM")  # deleted rows are still in the file; after signing out they must not be

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _put_aside(self) -> None:
        try:
            os.replace(self.path, self.path.with_name(self.path.name + ".damaged"))
        except OSError as error:
            raise InvalidSetting(f"The store {self.path} is damaged, and cannot be put aside: {error.strerror}.") from None
        for ending in ("-journal", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
