"""`python -m bench.hostile ATTACK HOST:PORT SECONDS`: somebody who means no good, as a process of its own, for so long and no longer.

From 127.0.0.2 unless told otherwise, an address for which the gateway's limits count. In the end it prints what it did and what it
took, as JSON. Sockets block, frames are made once: it takes as little of the machine as it can, at the lowest priority if asked to. A
credential comes in the environment: a list of arguments anybody may read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

ADDRESS: Final = "127.0.0.2"
CREDENTIAL_VARIABLE: Final = "ROSKVA_BENCH_CREDENTIAL"
SLOW_CONNECTIONS: Final = 500
HANDSHAKING_CONNECTIONS: Final = 125  # on a fast machine each of 32 came above `messages_per_s_max`, and then nothing is answered
OVERSIZED_BYTES: Final = (1 << 20) + 1  # `message_bytes_max` and one
_FRAMES_AT_ONCE: Final = 500
_TIMEOUT_S: Final = 5.0
_UPGRADE: Final = (
    b"GET /v1/channel HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
# Closing says RST: no port waits for a minute until it may be used again.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Hostile:
    """One attacker. What it counts is told in the end."""

    def __init__(self, place: tuple[str, int], address: str, seconds: float, application: str, count: int = sys.maxsize) -> None:
        self._place = place
        self._address = address
        self._count_max = count
        self._until_s = time.monotonic() + seconds
        self._application = application
        self._credential = os.environ.get(CREDENTIAL_VARIABLE, "")
        self.counts: dict[str, int] = {}

    def _count(self, what: str, more: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + more

    def _goes_on(self) -> bool:
        return time.monotonic() < self._until_s

    def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.settimeout(_TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connection.bind((self._address, 0))
            connection.connect(self._place)
        except OSError:
            connection.close()
            raise
        self._count("connections")
        return connection

    def upgraded(self) -> socket.socket:
        connection = self.connect()
        connection.sendall(_UPGRADE)
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(4_096)
            if not piece:
                connection.close()
                raise ConnectionError("it was closed before the upgrade")
            head += piece
        if b" 101 " not in head:
            self._count("upgrades refused")
            connection.close()
            raise ConnectionError("the upgrade was refused")
        return connection

    # What it does.

    def spin(self) -> None:
        """Nothing at all, with the processor: what an attacker on the same machine takes by being there."""
        while self._goes_on():
            for _ in range(100_000):
                pass

    def messages(self) -> None:
        """A signed-in client that says that it is there, as often as the connection takes it; cut off, it comes back."""
        while self._goes_on():
            with contextlib.suppress(OSError), self.upgraded() as connection:
                connection.sendall(frame(self._init("flood")))
                answer = json.loads(read_frame(connection)[1])
                if "grant" not in answer:
                    self._count("handshakes refused")
                    time.sleep(0.05)
                    continue
                speaking = frame(json.dumps({"token": answer["grant"]["token"]}).encode()) * _FRAMES_AT_ONCE
                while self._goes_on():
                    connection.sendall(speaking)
                    self._count("messages", _FRAMES_AT_ONCE)
                    drain(connection)

    def connections(self) -> None:
        """Connect, become a WebSocket, and be gone."""
        while self._goes_on():
            with contextlib.suppress(OSError):
                self.upgraded().close()

    def handshakes(self) -> None:
        """Handshakes over kept connections, each of which waits for its answer."""
        crowd = [self.upgraded() for _ in range(HANDSHAKING_CONNECTIONS)]
        number = 0
        while self._goes_on() and number < self._count_max:
            for connection in crowd:
                number += 1
                connection.sendall(frame(self._init(str(number))))
            for connection in crowd:
                answer = json.loads(read_frame(connection)[1])
                told = answer.get("error") or answer.get("credential") or {}
                self._count(f"handshakes: {told.get('code', 'granted')}")
        for connection in crowd:
            connection.close()

    def oversized(self) -> None:
        """Frames that are larger than a message may be, one for each connection."""
        large = frame(b" " * OVERSIZED_BYTES)
        while self._goes_on():
            with contextlib.suppress(OSError), self.upgraded() as connection:
                self._count("frames")
                connection.sendall(large)
                read_frame(connection)

    def slow(self) -> None:
        """Many connections whose request never comes to its end; whoever is cut off comes back."""
        crowd: list[socket.socket] = []
        while self._goes_on():
            began_s = time.monotonic()
            crowd += [self._slow_one() for _ in range(SLOW_CONNECTIONS - len(crowd))]
            crowd = [connection for connection in crowd if self._drips(connection)]
            time.sleep(max(0.0, began_s + 0.5 - time.monotonic()))
        for connection in crowd:
            connection.close()

    def _slow_one(self) -> socket.socket:
        connection = self.connect()
        connection.sendall(b"GET /v1/channel HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        return connection

    def _drips(self, connection: socket.socket) -> bool:
        try:
            connection.sendall(b"a")
            drain(connection)
        except OSError:
            self._count("cut off")
            connection.close()
            return False
        return True

    def _init(self, nonce: str) -> bytes:
        init = {"nonce": nonce, "application": self._application, "device": "stranger"}
        return json.dumps({"init": init, **({"credential": self._credential} if self._credential else {})}).encode()


ATTACKS: Final[dict[str, Callable[[Hostile], None]]] = {
    "spin": Hostile.spin,
    "messages": Hostile.messages,
    "connections": Hostile.connections,
    "handshakes": Hostile.handshakes,
    "oversized": Hostile.oversized,
    "slow": Hostile.slow,
}


def frame(payload: bytes) -> bytes:
    """A text frame of a client: masked, as it must be, with zeros."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x81, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
    return head + bytes(4) + payload


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    """The kind and payload of the server's next text frame. Raises ConnectionError when it closes instead."""
    while True:
        kind, size = struct.unpack("!BB", _exactly(connection, 2))
        if size == 126:
            (size,) = struct.unpack("!H", _exactly(connection, 2))
        elif size == 127:
            (size,) = struct.unpack("!Q", _exactly(connection, 8))
        payload = _exactly(connection, size)
        if kind & 0x0F == 8:
            raise ConnectionError("the gateway closed it")
        if kind & 0x0F == 1:
            return kind, payload


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError("it was closed")
        found += piece
    return found


def drain(connection: socket.socket) -> None:
    """Take what is there. Raises ConnectionError when there will be no more."""
    connection.setblocking(False)  # a time limit would make it wait
    try:
        with contextlib.suppress(BlockingIOError):
            while connection.recv(1 << 16):
                pass
            raise ConnectionError("it was closed")
    finally:
        connection.settimeout(_TIMEOUT_S)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__.partition("\n")[0])
    parser.add_argument("attack", choices=tuple(ATTACKS))
    parser.add_argument("place", metavar="HOST:PORT")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--address", default=ADDRESS, help="from which it comes")
    parser.add_argument("--application", default="demo")
    parser.add_argument("--count", type=int, default=sys.maxsize, metavar="N", help="handshakes: so many, if there is time for them")
    parser.add_argument("--nice", action="store_true", help="take only what of the processor nobody else wants")
    arguments = parser.parse_args(argv)
    if arguments.nice:
        os.nice(19)
    host, _, port = arguments.place.rpartition(":")
    hostile = Hostile((host, int(port)), arguments.address, arguments.seconds, arguments.application, arguments.count)
    ATTACKS[arguments.attack](hostile)
    print(json.dumps({"did": hostile.counts, "cpu_s": round(time.process_time(), 2)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
