"""The keys of a deployment: those that sign tokens, the one that gateways and pipeline prove to each other, those of trusted servers
and of operators.

They live in DATA/keys.json, readable by its owner only:

    {"signing": {"1": base64, "2": base64}, "internal": base64, "trusted": base64, "admin": base64}

The signing key with the largest number signs, all of them verify: to rotate, add one with a larger number and restart;
remove the old one when every client has been heard since. Who knows `trusted` may carry many clients over one connection; without
it nobody may. Who knows `admin` may look at everything and order what operators order; a file of an earlier version gets one at the
next start. With the settings, this file is all that an operator must keep.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from roskva.durable import private_directory, sync_directory
from roskva.errors import KeysUnusable
from roskva.protocol.tokens import Keyring

_KEY_BYTES: Final = 32
_FILE: Final = "keys.json"


class Keys(NamedTuple):
    keyring: Keyring
    internal: bytes
    trusted: str = ""  # as it stands in the file; empty: there is none
    admin: str = ""


class _KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signing: dict[str, str]
    internal: str
    trusted: str = ""
    admin: str = ""


def load_keys(data_dir: Path) -> Keys:
    """The keys of this data directory; made when there are none. Two processes that start at once get the same ones."""
    path = Path(data_dir) / _FILE
    if not path.exists():
        _create(path)
    keys = _parse(path, _read(path))
    if not keys.admin:
        _add_admin(path)
        keys = _parse(path, _read(path))
    return keys


def administration(data_dir: Path) -> dict[str, str]:
    """The header that opens what is for operators, by the keys of this data directory; without any that can be read, no header."""
    return bearer(admin_key(data_dir))


def admin_key(data_dir: Path) -> str:
    """For commands beside the service: makes nothing and changes nothing. Empty: there is none that can be read."""
    path = Path(data_dir) / _FILE
    try:
        return _parse(path, _read(path)).admin
    except KeysUnusable:
        return ""


def trusted_key(data_dir: Path) -> str:
    """The same, of trusted servers."""
    path = Path(data_dir) / _FILE
    try:
        return _parse(path, _read(path)).trusted
    except KeysUnusable:
        return ""


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key; of an empty one, none."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeysUnusable(str(path), error.strerror or str(error)) from None


def _parse(path: Path, content: bytes) -> Keys:
    try:
        stored = msgspec.json.decode(content, type=_KeysFile)
        signing = {int(number): _decode(key) for number, key in stored.signing.items()}
        internal = _decode(stored.internal)
        if len(internal) < 16:
            raise ValueError("the internal key is shorter than 16 bytes")
        if stored.trusted and len(_decode(stored.trusted)) < 16:
            raise ValueError("the key of trusted servers is shorter than 16 bytes")
        if stored.admin and len(_decode(stored.admin)) < 16:
            raise ValueError("the key of operators is shorter than 16 bytes")
        return Keys(Keyring(signing), internal, stored.trusted, stored.admin)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise KeysUnusable(str(path), str(error)) from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a key is not base64: {error}") from None


def _create(path: Path) -> None:
    """Link into place what was written aside: whoever links first wins."""
    private_directory(path.parent)
    keys = _KeysFile(signing={"1": _new_key()}, internal=_new_key(), trusted=_new_key(), admin=_new_key())
    try:
        # Without an existing file: another process that is first has made the keys.
        with _aside(path, keys) as aside, contextlib.suppress(FileExistsError):
            os.link(aside, path)
            sync_directory(path.parent)
    except OSError as error:
        raise KeysUnusable(str(path), f"it cannot be created: {error.strerror or error}") from None


def _add_admin(path: Path) -> None:
    """To a file of an earlier version. One process at a time looks again, and adds it if it is still missing."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            stored = msgspec.json.decode(path.read_bytes(), type=_KeysFile)
            if stored.admin:
                return
            with _aside(path, msgspec.structs.replace(stored, admin=_new_key())) as aside:
                os.replace(aside, path)
                sync_directory(path.parent)
        finally:
            os.close(folder)
    except (OSError, msgspec.DecodeError) as error:
        raise KeysUnusable(str(path), f"it lacks the key `admin`, which cannot be added: {error}") from None


@contextlib.contextmanager
def _aside(path: Path, keys: _KeysFile) -> Iterator[Path]:
    """The keys in a file beside the one that counts, durable: nobody ever reads half a file."""
    aside = path.with_name(f".{_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
