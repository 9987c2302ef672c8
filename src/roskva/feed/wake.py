"""Waking who waits for the feed, in other processes too: a blocked wait instead of a poll.

A waiter binds a Unix datagram socket in one directory, named after the topics that it waits for; whoever appends to one of them sends
a byte to it. Wake-ups are hints: a lost one costs the waiter one second, as it then looks by itself. Addresses of Unix sockets are
limited to 108 bytes and data directories may lie deeper: both sides go through /proc/self/fd/N/name. Must not import asyncio or Spark.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.01  # who waits is looked for so often: whoever binds in between may miss one wake-up


class Waiter:
    """One bound socket. Bound when it is first needed, since whoever holds a feed may be pickled or forked before."""

    def __init__(self, directory: Path, topics: Sequence[str]) -> None:
        self.pid = os.getpid()
        self._name = "+".join([*topics, secrets.token_hex(6)])
        self._path = directory / self._name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(f"/proc/self/fd/{descriptor}/{self._name}")
        finally:
            os.close(descriptor)

    @property
    def bound(self) -> bool:
        return self.pid == os.getpid() and self._path.exists()

    def forget(self) -> None:
        """Take the wake-ups that have come."""
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(16)

    def sleep(self, timeout_s: float) -> None:
        poll = select.poll()  # not select(): a gateway has more than 1,024 descriptors
        poll.register(self._socket, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def close(self) -> None:
        if self.pid == os.getpid():
            self._path.unlink(missing_ok=True)
        self._socket.close()


class Wakers:
    """The sockets in one directory: to wait on one, and to wake those that wait for a topic."""

    _pid: int
    _idle: dict[tuple[str, ...], list[Waiter]]
    _lock: threading.Lock
    _sender: socket.socket | None
    _descriptor: int
    _names: list[str]
    _look_s: float

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()

    @contextmanager
    def waiter(self, topics: Sequence[str]) -> Iterator[Waiter]:
        """A bound waiter of this process, kept for the next wait for these topics."""
        if self._pid != os.getpid():
            self._reset()
        idle = self._idle.setdefault(tuple(topics), [])
        try:
            waiter = idle.pop()
            if not waiter.bound:
                waiter.close()
                waiter = Waiter(self._directory, topics)
        except IndexError:
            waiter = Waiter(self._directory, topics)
        try:
            yield waiter
        finally:
            idle.append(waiter)

    def wake(self, topic: str) -> None:
        """Send a byte to everyone who waits for the topic. Never blocks, never raises."""
        if self._pid != os.getpid():
            self._reset()
        with suppress(OSError), self._lock:
            now_s = time.monotonic()
            if now_s >= self._look_s:
                self._names = os.listdir(self._directory)
                self._look_s = now_s + LOOK_S
                if self._sender is not None and not self._same_directory():
                    self._close_sender()
            names = [name for name in self._names if topic in name.split("+")]
            if names:
                self._send(names)

    def close(self) -> None:
        idle, self._idle = self._idle, {}
        for waiter in itertools.chain.from_iterable(idle.values()):
            waiter.close()
        with self._lock:
            self._close_sender()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle = {}
        self._lock = threading.Lock()
        self._sender = None
        self._descriptor = -1
        self._names = []
        self._look_s = 0.0

    def _send(self, names: list[str]) -> None:
        if self._sender is None:
            self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        for name in names:
            try:
                self._sender.sendto(b"\x00", f"/proc/self/fd/{self._descriptor}/{name}")
            except BlockingIOError:
                pass  # it has more wake-ups than it can take
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:  # its process is gone
                    with suppress(OSError):
                        os.unlink(name, dir_fd=self._descriptor)

    def _same_directory(self) -> bool:
        """The directory may have been deleted and made again."""
        ours, there = os.fstat(self._descriptor), os.stat(self._directory)
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _close_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
            os.close(self._descriptor)
