"""TLS between publishers and subscribers, of the files that the settings name. Raises InvalidSetting, with the path of what cannot be used.

Subscribers and publishers show each other that they know the application's key, with and without TLS: it keeps what is sent from others'
eyes, and lets subscribers know the publisher before they speak to it.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from roskva.capture.settings import CaptureSettings
from roskva.tls import serving, show, trust


def for_publisher(settings: CaptureSettings) -> ssl.SSLContext | None:
    """What the publisher's port speaks; None: it is plain."""
    given = settings.publisher
    if not given.tls_certificate:
        return None
    context = serving(Path(given.tls_certificate), Path(given.tls_key), "publisher.")
    if given.tls_client_ca:
        trust(context, Path(given.tls_client_ca), "publisher.tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def for_subscriber(settings: CaptureSettings, application: str) -> ssl.SSLContext | None:
    """What this application's subscribers speak with publishers; None: they speak plainly."""
    given, path = settings.applications[application], f"applications.{application}."
    if not given.tls_ca and not settings.publisher.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which trusts nobody yet
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.tls_ca:
        trust(context, Path(given.tls_ca), f"{path}tls_ca")
    else:
        # On the publisher's own machine: it is the one that has this certificate, whatever name that is for and whoever signed it.
        trust(context, Path(settings.publisher.tls_certificate), "publisher.tls_certificate")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    if given.tls_certificate:
        show(context, Path(given.tls_certificate), Path(given.tls_key), path)
    return context
