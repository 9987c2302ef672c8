"""Tokens: who a client is, signed, opaque to clients (Thialfi 4.1.2).

A token binds client id, application and session to the data center and to the incarnation of the Registrar partition that granted
it. Two owners of one moment may grant two sessions of the same number: their tags differ. It is base64url of: format, key id, MAC
(16 bytes of HMAC-SHA256), body. Keys rotate: the newest signs, all of them verify. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from roskva.errors import TokenInvalid
from roskva.model import ClientId

_FORMAT: Final = 1
_MAC_BYTES: Final = 16


class Claims(NamedTuple):
    client: ClientId
    application: str
    device: str
    session: int
    data_center: str
    incarnation: int
    tag: str = ""  # random: tells apart two sessions that two owners granted under one number
    user: str = ""  # whom the application vouched for; empty where it does not ask


class Keyring:
    """The signing keys by number (1 to 255); the one with the largest number signs."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys or not all(1 <= number <= 255 and len(key) >= 16 for number, key in keys.items()):
            raise ValueError("a keyring needs keys of at least 16 bytes, numbered 1 to 255")
        self._keys = dict(keys)
        self._newest = max(keys)

    def sign(self, claims: Claims) -> str:
        body = msgspec.msgpack.encode(claims)
        head = bytes((_FORMAT, self._newest))
        return base64.urlsafe_b64encode(head + self._mac(self._newest, body) + body).rstrip(b"=").decode()

    def verify(self, token: str) -> Claims:
        try:
            data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            raise TokenInvalid("The token is damaged.") from None
        # One token has one text: base64 alone would ignore odd characters and the spare bits of the last one.
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != token:
            raise TokenInvalid("The token is damaged.")
        if len(data) < 2 + _MAC_BYTES or data[0] != _FORMAT:
            raise TokenInvalid("The token is not one of this service.")
        if data[1] not in self._keys:
            raise TokenInvalid("The token was signed with a key that is no longer in use.")
        body = data[2 + _MAC_BYTES :]
        if not hmac.compare_digest(data[2 : 2 + _MAC_BYTES], self._mac(data[1], body)):
            raise TokenInvalid("The token's signature is wrong.")
        try:
            return msgspec.msgpack.decode(body, type=Claims)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise TokenInvalid("The token is of another version of the service.") from None

    @staticmethod
    def read(token: str) -> Claims:
        """What a token says that was verified before."""
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        return msgspec.msgpack.decode(data[2 + _MAC_BYTES :], type=Claims)

    def _mac(self, number: int, body: bytes) -> bytes:
        return hmac.digest(self._keys[number], body, hashlib.sha256)[:_MAC_BYTES]
