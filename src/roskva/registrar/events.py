"""How a registration travels in the feed "registrations": JSON that a person can read, object keys in base64.

The Registrar encodes, the Matcher's task decodes. Pure.
"""

from __future__ import annotations

import msgspec

from roskva.model import Registration

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Registration)


def encode_registration(registration: Registration) -> bytes:
    return _encoder.encode(registration)


def decode_registration(value: bytes) -> Registration:
    """Raises msgspec.DecodeError (of which ValidationError is one) for what no Registrar wrote."""
    return _decoder.decode(value)
