"""TLS on the public port: the certificate and its key, looked at again and again so that renewed ones are used without a restart.

A new pair is a new context: connections that exist keep theirs. A pair that cannot be used is logged, and the old one goes on.
Connections are accepted here and not by the loop: who is one too many is sent away before the work of a handshake, and what is in one is
counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.tls import serving

if TYPE_CHECKING:
    from roskva.gateway.opening import Opening

log = logging.getLogger(__name__)

_ALPN: Final = ["http/1.1"]
_ACCEPTED_AT_ONCE: Final = 16
_PAUSE_S: Final = 1.0  # when there are no files left

_Signature = tuple[tuple[int, int, int], ...]


class Certificates:
    """`context` is what new connections are served with."""

    def __init__(self, certificate: Path, key: Path, look_s: float) -> None:
        self._certificate = certificate
        self._key = key
        self._look_s = look_s
        self._seen = self._signature()  # before they are read: what changes in between is read once more
        self.context = make_context(certificate, key)
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                log.exception("the certificate could not be looked at")

    def look(self) -> None:
        """Reads the files again if they changed. Blocks: not for the event loop."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self.context = make_context(self._certificate, self._key)
        except InvalidSetting as error:
            log.error("the certificate in use stays: %s", error)
        else:
            log.info("the certificate in %s was read again", self._certificate)

    def _signature(self) -> _Signature:
        found: list[tuple[int, int, int]] = []
        for path in (self._certificate, self._key):
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def certificates_of(settings: Settings) -> Certificates | None:
    """None: the port is plain. Raises InvalidSetting if what is set cannot be used. Reads files: not for the event loop."""
    if not settings.tls_certificate and not settings.tls_key:
        return None
    if not settings.tls_certificate or not settings.tls_key:
        missing = "tls_key" if settings.tls_certificate else "tls_certificate"
        raise InvalidSetting(f"TLS needs both tls_certificate and tls_key, and {missing} is not set.")
    return Certificates(Path(settings.tls_certificate).expanduser(), Path(settings.tls_key).expanduser(), settings.reload_s)


def make_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = serving(certificate, key)
    context.set_alpn_protocols(_ALPN)
    return context


class SecureListener:
    """Accepts connections, and speaks TLS with them."""

    def __init__(self, listener: socket.socket, certificates: Certificates, opening: Callable[[], Opening], backlog: int) -> None:
        self._listener = listener
        self._certificates = certificates
        self._opening = opening
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(backlog)
        self._resume()

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted for a moment: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._resume)
                return
            opening = self._opening()
            if opening.arrived(str(peer[0])) is not None:
                accepted.close()  # nothing can be said before there is TLS
                continue
            accepted.setblocking(False)
            handshake = self._loop.create_task(opening.secure(accepted, self._certificates.context))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
