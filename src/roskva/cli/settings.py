"""Which settings a command goes by: the file that it means, its flags, and the key with which it calls as an operator."""

from __future__ import annotations

import argparse
import os
import urllib.parse
from pathlib import Path
from typing import Final

from roskva.address import is_loopback
from roskva.config import FILE_NAME, Settings, Sources
from roskva.errors import BadRequest, InvalidSetting, RoskvaError

ADMIN_KEY: Final = "ROSKVA_ADMIN_KEY"
_FLAGS: Final = ("data", "listen", "gateways", "gateway_name")
_SWITCHES: Final = ("insecure", "share_port")


def sources_of(arguments: argparse.Namespace) -> Sources:
    """The file of --config or ROSKVA_CONFIG, or roskva.toml if it is here; the environment; the flags."""
    named = getattr(arguments, "config", None) or os.environ.get("ROSKVA_CONFIG")
    return Sources(Path(named or FILE_NAME).absolute(), bool(named), dict(os.environ), flags_of(arguments))


def flags_of(arguments: argparse.Namespace) -> dict[str, str]:
    flags = {}
    for pair in getattr(arguments, "set", []):
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidSetting(f"--set {pair!r} is not of the form NAME=VALUE.")
        flags[name] = value
    flags |= {name: "true" for name in _SWITCHES if getattr(arguments, name, False)}
    return flags | {name: value for name in _FLAGS if (value := getattr(arguments, name, None)) is not None}


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Defaults, file, environment, flags."""
    return sources_of(arguments).load()


def counts_after_s(settings: Settings) -> float:
    """How long after a change of the settings file a running service goes by it, at most: two looks at the file, and what follows."""
    return 2 * settings.reload_s + 1


def publish_key(arguments: argparse.Namespace) -> str:
    """Of --key, which may be @FILE, or of the environment; empty: none."""
    text = str(arguments.key)
    return secret_in(Path(text[1:]), "publish key") if text.startswith("@") else text


def secret_in(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"The {what}'s file {file} cannot be read: {error}.") from None


def as_operator(url: str, arguments: argparse.Namespace) -> dict[str, str]:
    """The header that shows the operators' key to the service there. Without a key the service says what it wants."""
    from roskva.keys import bearer

    return bearer(operator_key(url, arguments))


def operator_key(url: str, arguments: argparse.Namespace) -> str:
    """Of ROSKVA_ADMIN_KEY, or of the data directory; empty: none is known.

    The latter only for this machine: what listens elsewhere must not learn the key of the service here.
    """
    from roskva.keys import admin_key

    if os.environ.get(ADMIN_KEY):
        return os.environ[ADMIN_KEY]
    if not is_loopback(urllib.parse.urlsplit(url).hostname or ""):
        return ""
    try:
        return admin_key(settings_from(arguments).data)
    except RoskvaError:  # settings that the service would refuse, too
        return ""
