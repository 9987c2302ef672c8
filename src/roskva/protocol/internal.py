"""The calls between gateways, and from the pipeline to gateways: frames on a connection whose sides proved to know the internal key.

A frame is a length (4 bytes, big-endian) and a msgpack array that begins with its tag. The caller says `Hello`, and whom it calls; that
one proves itself first, with `Challenge`: somebody else may listen where a gateway was. Then the caller does, with `Prove`, and either
side may send at any time. A proof is an HMAC of both nonces, of the role and of both members: one made for another connection, for the
other side or for another gateway is worth nothing. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from roskva.model import Propagation, Stamps, Update

FRAME_BYTES_MAX: Final = 64 << 20
NONCE_BYTES: Final = 32


class Challenge(Struct, frozen=True, array_like=True, tag=0):
    nonce: bytes
    mac: bytes  # of who is called


class Prove(Struct, frozen=True, array_like=True, tag=1):
    mac: bytes  # of the caller


class Propagate(Struct, frozen=True, array_like=True, tag=2):
    """From a Matcher task: the Registrar answers when each is acknowledged by its client, durable or void."""

    call: int
    propagations: list[Propagation]
    stamps: list[Stamps] = []  # of sampled updates among them


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


class Hints(Struct, frozen=True, array_like=True, tag=13):
    """Updates that the sender accepted just now: for the fast path, and may be lost."""

    updates: list[Update]
    stamps: list[Stamps] = []  # of sampled ones among them


class Hello(Struct, frozen=True, array_like=True, tag=12):
    nonce: bytes
    caller: str  # a gateway's member id, or empty for the pipeline
    member: str  # who is called


class SessionNoted(Struct, frozen=True, array_like=True, tag=11):
    """From the owner: a session of this application speaks over the connection; "": none any more."""

    connection: int
    application: str


Frame = (
    Challenge
    | Prove
    | Propagate
    | Propagated
    | Probe
    | Probed
    | Forward
    | Announce
    | Closed
    | Deliver
    | Disconnect
    | SessionNoted
    | Hello
    | Hints
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


def decode_frame(body: bytes | memoryview) -> Frame:
    return _decoder.decode(body)


def callee_proof(key: bytes, hello: Hello, nonce: bytes) -> bytes:
    """Of who is called; `nonce` is that of its challenge."""
    return _proof(key, "callee", hello, nonce)


def caller_proof(key: bytes, hello: Hello, nonce: bytes) -> bytes:
    return _proof(key, "caller", hello, nonce)


def _proof(key: bytes, role: str, hello: Hello, nonce: bytes) -> bytes:
    return hmac.digest(key, _encoder.encode((role, hello.nonce, nonce, hello.caller, hello.member)), hashlib.sha256)


def is_proof(shown: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(shown, expected)
