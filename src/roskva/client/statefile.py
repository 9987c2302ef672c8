"""The file that a client keeps its state in between runs: written whole or not at all, and held by one client at a time.

The lock is on a file beside it (`NAME.lock`), since the state itself is replaced by renaming. Two clients with one state would
supersede each other (the server would stop one of them); here the second is told at once. Blocking: call it from a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from roskva.errors import InvalidSetting, StateInUse


class StateFile:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def open(self) -> bytes | None:
        """Take the lock and read what an earlier run left; None if nothing did."""
        try:
            lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidSetting(f"The state file {self.path} cannot be used: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StateInUse(self.path) from None
        self._lock = lock
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.close()
            raise InvalidSetting(f"The state file {self.path} cannot be read: {error.strerror}.") from None

    def write(self, data: bytes) -> None:
        """Durable when this returns; a crash in between leaves the old one."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let go of the lock. The lock's file stays: removing it would let two clients hold two different files."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None
