"""One connection from a worker to a gateway, over the internal protocol: blocking, kept open from task to task.

Everything has a deadline: whatever does not come in time raises OSError (TimeoutError is one), and the connection is then closed, so
that a late answer can never be taken for that of a later call. Imports no Spark.
"""

from __future__ import annotations

import secrets
import socket

import msgspec

from roskva.address import host_and_port
from roskva.propagation.surroundings import REAL, Surroundings
from roskva.protocol.internal import (
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    Challenge,
    Frame,
    Hello,
    Prove,
    callee_proof,
    caller_proof,
    decode_frame,
    encode_frame,
    is_proof,
)
from roskva.registrar.members import Member


class LinkBroken(OSError):
    """The peer closed the connection, or does not speak the internal protocol."""


class Link:
    def __init__(self, member: Member, key: bytes, timeout_s: float, around: Surroundings = REAL) -> None:
        """Connect; both sides prove to know the internal key, the gateway first."""
        self._clock = around.clock
        deadline_s = self._clock() + timeout_s
        self._socket = around.dial(host_and_port(member.internal), timeout=timeout_s)
        self._buffer = bytearray()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a call is one small write: never wait for more
            hello = Hello(secrets.token_bytes(NONCE_BYTES), "", member.id)
            self.send(hello, deadline_s)
            challenge = self.receive(deadline_s)
            if not isinstance(challenge, Challenge) or not is_proof(challenge.mac, callee_proof(key, hello, challenge.nonce)):
                raise LinkBroken(f"who listens at {member.internal} is not member {member.id}, or does not know the key")
            self.send(Prove(caller_proof(key, hello, challenge.nonce)), deadline_s)
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
