"""TLS between publishers and subscribers, of the files that the settings name. Raises InvalidSetting, with the path of what cannot be used.

Subscribers and publishers show each other that they know the application's key, with and without TLS: it keeps what is sent from others'
eyes, and lets subscribers know the publisher before they speak to it.
"""

from __future__ import annotations

import ssl

from roskva.capture.settings import CaptureSettings
from roskva.errors import InvalidSetting


def for_publisher(settings: CaptureSettings) -> ssl.SSLContext | None:
    """What the publisher's port speaks; None: it is plain."""
    given = settings.publisher
    if not given.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could ask for one after the other
    _show(context, given.tls_certificate, given.tls_key, "publisher")
    if given.tls_client_ca:
        _trust(context, given.tls_client_ca, "publisher.tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def for_subscriber(settings: CaptureSettings, application: str) -> ssl.SSLContext | None:
    """What this application's subscribers speak with publishers; None: they speak plainly."""
    given, path = settings.applications[application], f"applications.{application}"
    if not given.tls_ca and not settings.publisher.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which trusts nobody yet
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.tls_ca:
        _trust(context, given.tls_ca, f"{path}.tls_ca")
    else:
        # On the publisher's own machine: it is the one that has this certificate, whatever name that is for and whoever signed it.
        _trust(context, settings.publisher.tls_certificate, "publisher.tls_certificate")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    if given.tls_certificate:
        _show(context, given.tls_certificate, given.tls_key, path)
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str, path: str) -> None:
    try:
        # Without a password an encrypted key would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidSetting(f"{path}.tls_key: the key in {key} does not belong to the certificate in {certificate}.") from None
        what = f"{certificate} and {key} are not a certificate chain and its unencrypted key in PEM"
        raise InvalidSetting(f"{path}.tls_certificate, tls_key: {what} ({error.reason or error}).") from None
    except OSError as error:
        raise InvalidSetting(f"{path}.tls_certificate, tls_key: {certificate} or {key} cannot be read: {error.strerror}.") from None


def _trust(context: ssl.SSLContext, file: str, path: str) -> None:
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise InvalidSetting(f"{path}: {file} holds no certificates in PEM ({error.reason or error}).") from None
    except OSError as error:
        raise InvalidSetting(f"{path}: {file} cannot be read: {error.strerror}.") from None
