"""The file that a client keeps its state in between runs: written whole or not at all, and held by one client at a time.

The lock is on a file beside it (`NAME.lock`), since the state itself is replaced by renaming. Two clients with one state would
supersede each other (the server would stop one of them); here the second is told at once. Blocking: call it from a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
from pathlib import Path

from roskva.client.state import KeptState, StateDamaged, decode_state, encode_state
from roskva.durable import sync_directory
from roskva.errors import InvalidSetting, RoskvaError, StateInUse

log = logging.getLogger(__name__)


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
        sync_directory(self.path.parent)

    def delete(self) -> None:
        """Nothing is left of this client here. Its lock's file stays, empty, as below."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.absolute().parent)

    def close(self) -> None:
        """Let go of the lock. The lock's file stays: removing it would let two clients hold two different files."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = None


def new_device() -> str:
    return secrets.token_hex(8)


def open_identity(file: StateFile, application: str, device: str) -> tuple[str, bytes | None]:
    """Lock and read the file: which device this is (`device`, if given, must agree), and the state for the core, if any.

    A file that cannot be read as a state is replaced, with a warning: this run is a new client. One that belongs to another
    application or device is left alone, and refused.
    """
    kept = file.open()
    try:
        state = _decode(file, kept)
        if state is None:
            device = device or new_device()
            file.write(encode_state(application, device, ""))
            return device, None
        if state.application != application:
            raise InvalidSetting(f"The state file {file.path} belongs to the application {state.application!r}.")
        if device and state.device != device:
            raise InvalidSetting(f"The state file {file.path} belongs to the device {state.device!r}.")
    except OSError as error:
        file.close()
        raise InvalidSetting(f"The state file {file.path} cannot be written: {error.strerror}.") from None
    except RoskvaError:
        file.close()
        raise
    return state.device, kept


def _decode(file: StateFile, kept: bytes | None) -> KeptState | None:
    try:
        return None if kept is None else decode_state(kept)
    except StateDamaged as damage:
        log.warning("the state file %s is of no use (%s): this run is a new client", file.path, damage)
        return None
