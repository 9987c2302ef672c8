"""Keys with which backends publish (docs/settings.md, `publish_keys`): the backend has the key, the settings hold its hash.

A key has 256 random bits, so a plain hash cannot be turned round; nothing slow is needed, as it would be for passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

KEY_PREFIX: Final = "rk_"  # so that tools that look for leaked secrets can find them
HASH_PREFIX: Final = "sha256:"
_KEY_BYTES: Final = 32


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def hash_of(key: str) -> str:
    # Whatever a header held is hashed, half surrogate pairs too: it is nobody's key, and no error.
    return HASH_PREFIX + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def is_one_of(key: str, hashes: Sequence[str]) -> bool:
    """Whether this is a key of one of the hashes. All are compared, and to their end, so that the time tells nothing."""
    shown = hash_of(key).encode()
    found = False
    for known in hashes:
        found |= hmac.compare_digest(shown, known.encode("utf-8", "surrogatepass"))
    return found
