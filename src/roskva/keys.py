"""The keys of a deployment: those that sign tokens, the one that gateways and pipeline prove to each other, and that of trusted servers.

They live in DATA/keys.json, readable by its owner only:

    {"signing": {"1": base64, "2": base64}, "internal": base64, "trusted": base64}

The signing key with the largest number signs, all of them verify: to rotate, add one with a larger number and restart;
remove the old one when every client has been heard since. Who knows `trusted` may carry many clients over one connection; without
it nobody may. With the settings, this file is all that an operator must keep.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from roskva.durable import sync_directory
from roskva.errors import KeysUnusable
from roskva.protocol.tokens import Keyring

_KEY_BYTES: Final = 32
_FILE: Final = "keys.json"


class Keys(NamedTuple):
    keyring: Keyring
    internal: bytes
    trusted: str = ""  # as it stands in the file; empty: there is none


class _KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signing: dict[str, str]
    internal: str
    trusted: str = ""


def load_keys(data_dir: Path) -> Keys:
    """The keys of this data directory; made when there are none. Two processes that start at once get the same ones."""
    path = Path(data_dir) / _FILE
    if not path.exists():
        _create(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KeysUnusable(str(path), error.strerror or str(error)) from None
    return _parse(path, content)


def _parse(path: Path, content: bytes) -> Keys:
    try:
        stored = msgspec.json.decode(content, type=_KeysFile)
        signing = {int(number): _decode(key) for number, key in stored.signing.items()}
        internal = _decode(stored.internal)
        if len(internal) < 16:
            raise ValueError("the internal key is shorter than 16 bytes")
        if stored.trusted and len(_decode(stored.trusted)) < 16:
            raise ValueError("the key of trusted servers is shorter than 16 bytes")
        return Keys(Keyring(signing), internal, stored.trusted)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise KeysUnusable(str(path), str(error)) from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a key is not base64: {error}") from None


def _create(path: Path) -> None:
    """Write aside, make durable, then link into place: whoever links first wins, and nobody ever reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = _KeysFile(signing={"1": _new_key()}, internal=_new_key(), trusted=_new_key())
    aside = path.with_name(f".{_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            return  # another process was first: its keys are the keys
        sync_directory(path.parent)
    except OSError as error:
        raise KeysUnusable(str(path), f"it cannot be created: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
