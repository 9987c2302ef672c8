"""One connection from a worker to a gateway, over the internal protocol: blocking, kept open from task to task.

Everything has a deadline: whatever does not come in time raises OSError (TimeoutError is one), and the connection is then closed, so
that a late answer can never be taken for that of a later call. Imports no Spark.
"""

from __future__ import annotations

import socket

import msgspec

from roskva.address import host_and_port
from roskva.pipeline.surroundings import REAL, Surroundings
from roskva.protocol.internal import FRAME_BYTES_MAX, Challenge, Frame, Prove, decode_frame, encode_frame, proof


class LinkBroken(OSError):
    """The peer closed the connection, or does not speak the internal protocol."""


class Link:
    def __init__(self, address: str, key: bytes, timeout_s: float, around: Surroundings = REAL) -> None:
        """Connect and prove to know the internal key."""
        self._clock = around.clock
        deadline_s = self._clock() + timeout_s
        self._socket = around.dial(host_and_port(address), timeout=timeout_s)
        self._buffer = bytearray()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a call is one small write: never wait for more
            challenge = self.receive(deadline_s)
            if not isinstance(challenge, Challenge):
                raise LinkBroken(f"{address} does not begin with a challenge")
            self.send(Prove(proof(key, challenge.nonce), ""), deadline_s)
        except BaseException:
            self.close()
            raise

    def send(self, frame: Frame, deadline_s: float) -> None:
        self._socket.settimeout(self._remaining(deadline_s))
        self._socket.sendall(encode_frame(frame))

    def receive(self, deadline_s: float) -> Frame:
        """The next frame; the deadline is on the clock of the surroundings."""
        while True:
            if len(self._buffer) >= 4:
                length = int.from_bytes(self._buffer[:4], "big")
                if length > FRAME_BYTES_MAX:
                    raise LinkBroken(f"a frame of {length:,} bytes")
                if len(self._buffer) >= 4 + length:
                    body = bytes(self._buffer[4 : 4 + length])
                    del self._buffer[: 4 + length]
                    try:
                        return decode_frame(body)
                    except msgspec.DecodeError as error:
                        raise LinkBroken(f"an unreadable frame: {error}") from None
            self._socket.settimeout(self._remaining(deadline_s))
            data = self._socket.recv(1 << 18)
            if not data:
                raise LinkBroken("the peer closed the connection")
            self._buffer += data

    def close(self) -> None:
        self._socket.close()

    def _remaining(self, deadline_s: float) -> float:
        remaining_s = deadline_s - self._clock()
        if remaining_s <= 0:
            raise TimeoutError("no answer in time")
        return remaining_s
