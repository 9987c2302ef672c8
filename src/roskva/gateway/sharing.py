"""One public port for several gateways: the kernel spreads new connections over all that listen there (SO_REUSEPORT).

It would spread them over the gateways of two services, too, or over a service and another program of the same user. So whoever shares
a port holds a lock in the data directory for as long as it has the socket, and joins those who have the port only if one of them holds that
lock: then they are of this service. All others find the address in use. See decision 27. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from roskva.address import bound_socket
from roskva.durable import private_directory
from roskva.errors import AddressInUse, InvalidSetting

RUN: Final = "run"  # the folder of the data directory for what lives only as long as a process does


class SharedPort:
    """A port of this service. `socket` is bound and does not listen; `close` gives up the lock, and the socket unless it was taken."""

    def __init__(self, address: str, data: Path) -> None:
        self._folder = data / RUN
        try:
            private_directory(self._folder)
            with _locked(self._folder / "ports"):  # one at a time: between look and bind nobody else of ours may come
                self.socket = self._bind(address)
                self.port = int(self.socket.getsockname()[1])
                self._lock = _open(self._path)
                fcntl.flock(self._lock, fcntl.LOCK_SH)
                for other in self._folder.glob("port-*"):
                    if other != self._path and not _is_held(other):
                        other.unlink(missing_ok=True)  # of earlier starts, on ports that were free then
        except OSError as error:
            raise InvalidSetting(f"data is {str(data)!r}, but {RUN} in it cannot be written: {error.strerror}.") from None

    def _bind(self, address: str) -> socket.socket:
        try:
            found = bound_socket(address)
        except AddressInUse:
            if not _is_held(self._folder / f"port-{address.rpartition(':')[2]}"):
                raise
            return bound_socket(address, beside_others=True)
        # It was nobody's: from now on it is shared. Others that only mean to reuse it are kept out, also while nobody listens.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return found

    def hold(self) -> None:
        """Keep the port for the service while nobody listens: without this another program could take it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    def renew(self) -> None:
        """Whoever deleted the folder deleted the lock in it."""
        try:
            if os.stat(self._path).st_ino == os.fstat(self._lock).st_ino:
                return
        except OSError:
            pass
        try:
            private_directory(self._folder)
            lock = _open(self._path)
        except OSError:
            return  # the disk is full, or read-only: the next look tries again
        os.close(self._lock)
        self._lock = lock
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @property
    def _path(self) -> Path:
        return self._folder / f"port-{self.port}"

    def close(self) -> None:
        self.socket.close()
        os.close(self._lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_held(path: Path) -> bool:
    """Whether somebody of this service has the lock."""
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    guard = _open(path)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


@contextmanager
def folder_path(folder: Path) -> Iterator[str]:
    """The folder by a short path: addresses of Unix sockets are limited to 108 bytes, and data directories may lie deeper."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
