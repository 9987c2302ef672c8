"""Tokens: only what this service signed is believed, whatever happened to it on the way."""

from __future__ import annotations

import base64
import hashlib
import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.errors import TokenInvalid
from roskva.model import ClientId
from roskva.protocol.tokens import Claims, Keyring

OLD, NEW = b"o" * 32, b"n" * 32
CLAIMS = Claims(ClientId("client-1"), "demo", "phone", 3, "local", 1)
KEYRING = Keyring({1: OLD, 2: NEW})
TOKEN = KEYRING.sign(CLAIMS)
claims = st.builds(
    Claims,
    client=st.text(min_size=1, max_size=16).map(ClientId),
    application=st.text(max_size=16),
    device=st.text(max_size=16),
    session=st.integers(0, 2**31),
    data_center=st.text(max_size=8),
    incarnation=st.integers(0, 2**62),
)


def raw(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@given(claims)
def test_what_was_signed_is_read_back(claims: Claims) -> None:
    assert KEYRING.verify(KEYRING.sign(claims)) == claims


def test_the_newest_key_signs_and_every_key_of_the_ring_verifies() -> None:
    old_token = Keyring({1: OLD}).sign(CLAIMS)
    assert raw(TOKEN)[1] == 2
    assert KEYRING.verify(old_token) == CLAIMS
    assert Keyring({2: NEW}).verify(TOKEN) == CLAIMS


def test_a_key_that_left_the_ring_verifies_no_more() -> None:
    with pytest.raises(TokenInvalid, match="no longer in use"):
        Keyring({2: NEW}).verify(Keyring({1: OLD}).sign(CLAIMS))


def test_the_right_number_with_another_key_is_a_wrong_signature() -> None:
    with pytest.raises(TokenInvalid, match="signature"):
        Keyring({2: b"x" * 32}).verify(TOKEN)


def test_a_signature_of_one_token_does_not_carry_another() -> None:
    other = KEYRING.sign(CLAIMS._replace(client=ClientId("client-2")))
    swapped = raw(TOKEN)[:18] + raw(other)[18:]
    with pytest.raises(TokenInvalid, match="signature"):
        KEYRING.verify(text(swapped))


def test_the_key_number_is_bound_to_its_key() -> None:
    data = raw(TOKEN)
    with pytest.raises(TokenInvalid, match="signature"):
        KEYRING.verify(text(data[:1] + b"\x01" + data[2:]))


@given(st.integers(0, len(raw(TOKEN)) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, change: int) -> None:
    data = bytearray(raw(TOKEN))
    data[place] ^= change
    with pytest.raises(TokenInvalid):
        KEYRING.verify(text(bytes(data)))


@given(st.integers(0, len(TOKEN) - 1), st.characters())
def test_no_changed_character_goes_unnoticed(place: int, character: str) -> None:
    """One token has one text: neither odd characters nor the spare bits of the last one may make a second."""
    if character == TOKEN[place]:
        return
    with pytest.raises(TokenInvalid):
        KEYRING.verify(TOKEN[:place] + character + TOKEN[place + 1 :])


@given(st.integers(0, len(TOKEN)), st.characters())
def test_no_added_character_goes_unnoticed(place: int, character: str) -> None:
    with pytest.raises(TokenInvalid):
        KEYRING.verify(TOKEN[:place] + character + TOKEN[place:])


@pytest.mark.parametrize("length", range(len(TOKEN)))
def test_no_truncated_token_is_believed(length: int) -> None:
    with pytest.raises(TokenInvalid):
        KEYRING.verify(TOKEN[:length])


@given(st.text(max_size=200))
def test_no_text_brings_the_verifier_down(token: str) -> None:
    with pytest.raises(TokenInvalid):
        KEYRING.verify(token)


def test_a_signed_body_of_another_form_is_refused_by_name() -> None:
    """A newer version of the service, rolled back, leaves such tokens behind."""
    for body in (b"\x98\xa1\xff", b"\x91" * 5_000, msgspec.msgpack.encode({"client": "client-1"})):
        mac = hmac.digest(NEW, body, hashlib.sha256)[:16]
        with pytest.raises(TokenInvalid, match="another version"):
            KEYRING.verify(text(b"\x01\x02" + mac + body))
    with pytest.raises(TokenInvalid, match="not one of this service"):
        KEYRING.verify(text(b"\x02\x02" + mac + body))


@pytest.mark.parametrize("keys", [{}, {0: OLD}, {256: OLD}, {1: b"short"}])
def test_an_unusable_keyring_is_refused(keys: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match="keyring"):
        Keyring(keys)


def test_the_longest_token_fits_its_field() -> None:
    longest = Claims(ClientId("c" * 16), "a" * 64, "d" * 128, 2**31, "x" * 64, 2**63 - 1)
    assert len(KEYRING.sign(longest)) <= 512
