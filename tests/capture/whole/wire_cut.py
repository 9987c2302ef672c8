"""A line between two programs that a test cuts: connections are reset and refused, or go on and carry nothing more."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final, Self

_AT_ONCE: Final = struct.pack("ii", 1, 0)  # of SO_LINGER: a reset instead of an orderly end


class Line:
    """From a port of its own to another one, in threads. Use it with `with`."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._silent: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, args=(self._door,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Whoever is connected is reset, and nobody else gets through."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def silence(self) -> None:
        """Whoever is connected stays so, and hears nothing more; later ones get through."""
        with self._lock:
            self._silent = set(self._ends)

    def mend(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, args=(self._door,), daemon=True).start()

    def _serve(self, door: socket.socket) -> None:
        while True:
            try:
                near, _ = door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._lock:
                    silent = one in self._silent
                if not silent:
                    other.sendall(data)
            with self._lock:
                silent = one in self._silent
            if not silent:
                other.shutdown(socket.SHUT_RDWR)
