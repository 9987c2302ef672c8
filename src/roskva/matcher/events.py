"""How an update travels in the feed "fan-outs": JSON that a person can read, object keys in base64. Written and read by tasks. Pure."""

from __future__ import annotations

import msgspec

from roskva.model import Update

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Update)


def encode_update(update: Update) -> bytes:
    return _encoder.encode(update)


def decode_update(value: bytes) -> Update:
    """Raises msgspec.DecodeError (of which ValidationError is one) for what no task wrote."""
    return _decoder.decode(value)
