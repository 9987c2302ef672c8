"""Whether what the settings open to other machines is meant to be open (docs/operations.md, Other machines).

On this machine everything works without keys. A port that other machines reach is opened only if every application asks backends for
a key and clients for their user, or somebody said `insecure`.
"""

from __future__ import annotations

from roskva.address import host_and_port, is_loopback
from roskva.config import Settings
from roskva.errors import InvalidSetting


def check_exposure(settings: Settings) -> list[str]:
    """Raises InvalidSetting, with what is missing where and how to add it; answers what a person should be warned of."""
    exposed = {
        name: address for name in ("listen", "internal_listen") if not is_loopback(host_and_port(address := getattr(settings, name))[0])
    }
    if not exposed:
        return []
    where = " and ".join(f"{name} is {address}" for name, address in exposed.items())
    missing = _missing(settings)
    warnings = []
    if missing and not settings.insecure:
        raise InvalidSetting(
            f"{where}, which other machines can reach, but {'; '.join(missing)}."
            " Add what is missing, listen on 127.0.0.1, or say --insecure if everybody who can reach it may do all of that."
        )
    if missing:
        warnings.append(f"insecure: {where}, which other machines can reach, and {'; '.join(missing)}.")
    if "listen" in exposed and not settings.tls_certificate:
        warnings.append(
            f"{where}, without TLS: keys and credentials can be read on the way."
            " Set tls_certificate and tls_key, or let only a proxy that speaks TLS reach it."
        )
    return warnings


def _missing(settings: Settings) -> list[str]:
    """What applications do not ask for, each with the way to change it."""
    found = []
    for name, application in settings.applications.items():
        if not application.publish_keys:
            found.append(f"anybody may publish to {name} (`roskva app key add {name}`)")
        if application.authentication == "none":
            found.append(f'anybody may be a client of {name} (in [applications.{name}]: authentication = "jwt" and jwt_keys)')
    return found
