"""Certificates and keys from files, for whoever speaks TLS. Raises InvalidSetting, with the setting and the file that cannot be used.

Reads files: not for an event loop.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from roskva.errors import InvalidSetting


def serving(certificate: Path, key: Path, settings: str = "") -> ssl.SSLContext:
    """For a port. `settings`: what stands before `tls_certificate` and `tls_key`, such as `publisher.`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could ask for one after the other
    show(context, certificate, key, settings)
    return context


def show(context: ssl.SSLContext, certificate: Path, key: Path, settings: str = "") -> None:
    """This is who we are."""
    for setting, path in (("tls_certificate", certificate), ("tls_key", key)):
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise InvalidSetting(f"{settings}{setting}: the file {path} cannot be read: {error.strerror}.") from None
    try:
        # Without a password an encrypted key would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidSetting(f"{settings}tls_key: the key in {key} does not belong to the certificate in {certificate}.") from None
        what = f"the files {certificate} and {key} are not a certificate chain and its unencrypted key in PEM"
        raise InvalidSetting(f"{settings}tls_certificate, tls_key: {what} ({error.reason or error}).") from None
    except OSError as error:  # removed a moment ago
        raise InvalidSetting(f"{settings}tls_certificate, tls_key: {certificate} and {key} cannot be read: {error.strerror}.") from None


def trust(context: ssl.SSLContext, file: Path, setting: str) -> None:
    """Whoever these have signed, and they themselves."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise InvalidSetting(f"{setting}: {file} holds no certificates in PEM ({error.reason or error}).") from None
    except OSError as error:
        raise InvalidSetting(f"{setting}: {file} cannot be read: {error.strerror}.") from None
