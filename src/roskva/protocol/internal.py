"""The calls between gateways, and from the pipeline to gateways: frames on a connection that proved to know the internal key.

A frame is a length (4 bytes, big-endian) and a msgpack array that begins with its tag. Whoever accepts the connection says
`Challenge`; the caller answers `Prove` with the HMAC of the nonce; then either side may send at any time. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from roskva.model import Propagation

FRAME_BYTES_MAX: Final = 64 << 20


class Challenge(Struct, frozen=True, array_like=True, tag=0):
    nonce: bytes


class Prove(Struct, frozen=True, array_like=True, tag=1):
    mac: bytes
    member: str  # who calls: a gateway's member id, or empty for the pipeline


class Propagate(Struct, frozen=True, array_like=True, tag=2):
    """From a Matcher task: the Registrar answers when each is acknowledged by its client, durable or void."""

    call: int
    propagations: list[Propagation]


class Propagated(Struct, frozen=True, array_like=True, tag=3):
    call: int
    verdicts: list[int]  # model.SETTLED, DROP_COPY, NOT_OWNER or UNAVAILABLE, in the order of the call


class Probe(Struct, frozen=True, array_like=True, tag=4):
    call: int


class Probed(Struct, frozen=True, array_like=True, tag=5):
    call: int


class Forward(Struct, frozen=True, array_like=True, tag=6):
    """A message of a client whose connection is here and whose Registrar is there. `connection` is the sender's number for it."""

    connection: int
    data: bytes


class Announce(Struct, frozen=True, array_like=True, tag=7):
    """The client of this token is connected here: the owner confirms by speaking to it."""

    connection: int
    token: str


class Closed(Struct, frozen=True, array_like=True, tag=8):
    connection: int


class Deliver(Struct, frozen=True, array_like=True, tag=9):
    """From the owner: send this to the connection that it numbers."""

    connection: int
    data: bytes


class Disconnect(Struct, frozen=True, array_like=True, tag=10):
    connection: int
    code: str


class SessionNoted(Struct, frozen=True, array_like=True, tag=11):
    """From the owner: a session of this application speaks over the connection; "": none any more."""

    connection: int
    application: str


Frame = Challenge | Prove | Propagate | Propagated | Probe | Probed | Forward | Announce | Closed | Deliver | Disconnect | SessionNoted

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


def decode_frame(body: bytes | memoryview) -> Frame:
    return _decoder.decode(body)


def proof(key: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, nonce, hashlib.sha256)
