"""What travels in the feed "fan-outs": updates of large objects, and invalidations. JSON that a person can read, object keys in base64.

Updates are written and read by tasks; invalidations come from a gateway, where an operator or a backend ordered them. Pure.
"""

from __future__ import annotations

import msgspec

from roskva.model import Update


class Invalidation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everyone registered for these objects is to be told "unknown"."""

    invalidate: bytes  # an object's key; with `prefix`, how the keys begin: of one partition, the one that the record lies in
    prefix: bool = False
    after: bytes = b""  # where a walk goes on that could not be ended: after this key, or, of a single object, this cell


_encoder = msgspec.json.Encoder()
_updates = msgspec.json.Decoder(Update)
_either: msgspec.json.Decoder[Update | Invalidation] = msgspec.json.Decoder(Update | Invalidation)


def encode_update(update: Update) -> bytes:
    return _encoder.encode(update)


def decode_update(value: bytes) -> Update:
    """Raises msgspec.DecodeError (of which ValidationError is one) for what no task wrote."""
    return _updates.decode(value)


def encode_invalidation(invalidation: Invalidation) -> bytes:
    return _encoder.encode(invalidation)


def decode_fan_out(value: bytes) -> Update | Invalidation:
    """Whichever of the two it is: an update is an array, an invalidation an object. Raises as `decode_update` does."""
    return _either.decode(value)
