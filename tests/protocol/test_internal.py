"""Frames between gateways and the pipeline: round trips, and the proof of the internal key."""

from __future__ import annotations

import msgspec
import pytest

from roskva.model import OUTCOME_UPDATE, ClientId, Propagation, object_key
from roskva.protocol.internal import (
    Announce,
    Challenge,
    Closed,
    Deliver,
    Disconnect,
    Forward,
    Frame,
    Hello,
    Probe,
    Probed,
    Propagate,
    Propagated,
    Prove,
    SessionNoted,
    callee_proof,
    caller_proof,
    decode_frame,
    encode_frame,
    is_proof,
)

TOLD = Propagation(ClientId("c"), object_key("demo", 0, b"\xff\x00"), 1 << 32 | 1, OUTCOME_UPDATE, 2**63 - 1)
FRAMES: list[Frame] = [
    Hello(b"nonce", "caller", "member"),
    Challenge(b"nonce", b"mac"),
    Prove(b"mac"),
    SessionNoted(3, "demo"),
    Propagate(1, [TOLD, TOLD]),
    Propagated(1, [0, 1, 2, 3]),
    Probe(2),
    Probed(2),
    Forward(3, b"{}"),
    Announce(3, "token"),
    Closed(3),
    Deliver(3, b"{}"),
    Disconnect(3, "overloaded"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    encoded = encode_frame(frame)
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    assert decode_frame(encoded[4:]) == frame


def test_every_kind_of_frame_has_a_tag_of_its_own() -> None:
    assert len({encode_frame(frame)[5] for frame in FRAMES}) == len(FRAMES)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x63", b"\x91\x02", b"\x80"])
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_frame(body)


def test_a_proof_is_of_the_key_the_role_both_nonces_and_both_members() -> None:
    hello = Hello(b"nonce", "one", "two")
    good = callee_proof(b"key", hello, b"other")
    assert is_proof(callee_proof(b"key", Hello(b"nonce", "one", "two"), b"other"), good)
    others = {
        caller_proof(b"key", hello, b"other"),
        callee_proof(b"yek", hello, b"other"),
        callee_proof(b"key", hello, b"another"),
        callee_proof(b"key", Hello(b"other", "one", "two"), b"nonce"),
        callee_proof(b"key", Hello(b"nonce", "two", "one"), b"other"),
        callee_proof(b"key", Hello(b"nonce", "onet", "wo"), b"other"),
    }
    assert len(others) == 6
    assert not any(is_proof(other, good) for other in others)
