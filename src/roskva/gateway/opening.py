"""A connection until its first request is there: counted from the moment it arrives, then handed to picows or to aiohttp.

Which of the two the head says (gateway/server.py). Until then nothing of a connection may cost much: whoever is one too many is refused
before TLS, and whoever does not come to the point within OPENING_S is cut off by the port's sweep.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final, cast

import msgspec

from roskva.errors import MalformedMessage, MessageTooLarge, Overloaded, RoskvaError, TooManyConnections, Unavailable
from roskva.gateway.addresses import peer_of
from roskva.gateway.publish import error_object
from roskva.gateway.websocket import WebSocketConnection

if TYPE_CHECKING:
    from roskva.gateway.server import Port

log = logging.getLogger(__name__)

OPENING_S: Final = 10.0
HEAD_BYTES_MAX: Final = 16 << 10
_CHANNEL_STARTS: Final = (b"GET /v1/channel ", b"GET /v1/channel?")


class Opening(asyncio.Protocol):
    """A connection whose first request is still arriving. Once its head is complete, picows or aiohttp takes over."""

    __slots__ = ("_address", "_head", "_port", "_securing", "_transport")

    def __init__(self, port: Port) -> None:
        self._port = port
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._address = ""  # that it is counted for, here
        self._securing: asyncio.Task[None] | None = None  # while TLS is agreed on

    def arrived(self, peer: str) -> bytes | None:
        """Before anything is spent on it: counted, or the answer that refuses it."""
        port, admission = self._port, self._port.admission
        if port.full():
            port.metrics.connections_refused += 1
            port.metrics.limited_connections += 1
            return _OVERLOADED
        # Whose connection it is that a proxy brings stands in its head.
        address = "" if admission.addresses.is_proxy(peer) else admission.addresses.counted(peer)
        if not admission.has_room(address):
            port.metrics.connections_refused += 1
            return _TOO_MANY
        admission.count(address)
        self._address = address
        port.openings[self] = time.monotonic()
        return None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._port.certificates is None:
            refusal = self.arrived(peer_of(transport))
            if refusal is not None:
                self._transport.write(refusal)
                self._transport.close()

    async def secure(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        """Speak TLS from the first byte on. Whoever does not, or cannot, is gone at once."""
        self._securing = asyncio.current_task()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, accepted, ssl=context, ssl_handshake_timeout=OPENING_S, ssl_shutdown_timeout=OPENING_S
            )
        except OSError as error:
            log.debug("no TLS: %s", error)
        finally:
            self._securing = None
            if self._transport is None:  # else it is told when the connection is lost
                self._port.metrics.connections_refused += 1
                self._gone()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        self._port.openings.pop(self, None)
        address, self._address = self._address, ""
        self._port.admission.leave(address)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = self._head + data if self._head else data
        if not head[:1].isalpha():  # not a request: TLS on a plain port, say
            self._refuse(_NO_REQUEST)
        elif b"\r\n\r\n" in head:
            self._hand_over(self._transport, head)
        elif len(head) > HEAD_BYTES_MAX:
            self._refuse(_HEAD_TOO_LARGE)
        else:
            self._head = head

    def _hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        fields = _fields(data) if data.startswith(_CHANNEL_STARTS) else {}
        origin = self._origin(transport, fields) if fields.get(b"upgrade") == b"websocket" else None
        if origin is None:
            self._hand_to_http(transport, data)
        else:
            self._hand_to_picows(transport, data, fields, origin)

    def _origin(self, transport: asyncio.Transport, fields: dict[bytes, bytes]) -> str | None:
        """None for a page that nobody knows: aiohttp's route refuses it with a reason."""
        origin, host, forwarded = (fields.get(name, b"").decode("latin-1") for name in (b"origin", b"host", b"x-forwarded-for"))
        return self._port.admission.origins.foreign(origin, host, self._port.certificates is not None, transport, forwarded)

    def _hand_to_http(self, transport: asyncio.Transport, data: bytes) -> None:
        protocol = self._port.http()
        self._port.http_came(protocol, self._passed_on())
        _exchange(transport, protocol, data)

    def _hand_to_picows(self, transport: asyncio.Transport, data: bytes, fields: dict[bytes, bytes], origin: str) -> None:
        port, admission = self._port, self._port.admission
        address = self._address
        forwarded = fields.get(b"x-forwarded-for", b"").decode("latin-1")
        if not address:
            address = admission.addresses.counted(peer_of(transport), forwarded)
            if not admission.has_room(address):
                self._refuse(_TOO_MANY)
                return
            admission.count(address)
        self._passed_on()
        connection = WebSocketConnection(port, address, origin)
        _exchange(transport, port.websocket(connection), data)
        if not connection.number:  # picows refused the upgrade, and says no more about it
            admission.leave(address)

    def _passed_on(self) -> str:
        """It is not for this to count any more."""
        del self._port.openings[self]
        address, self._address = self._address, ""
        return address

    def _refuse(self, answer: bytes) -> None:
        self._port.metrics.connections_refused += 1
        if self._transport is not None:
            self._transport.write(answer)
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._port.metrics.connections_refused += 1
            self._transport.abort()
        elif self._securing is not None:
            self._securing.cancel()


def _answer(status: str, error: RoskvaError) -> bytes:
    body = msgspec.json.encode({"error": error_object(error)})
    fields = ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
    if isinstance(error, Unavailable):
        fields.append(f"Retry-After: {error.retry_after_s:.0f}")
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode() + body


_OVERLOADED: Final = _answer("503 Service Unavailable", Overloaded("This gateway has as many connections as connections_max allows."))
_TOO_MANY: Final = _answer("503 Service Unavailable", TooManyConnections("connections_per_address_max"))
_NO_REQUEST: Final = _answer("400 Bad Request", MalformedMessage("This is no HTTP request."))
_HEAD_TOO_LARGE: Final = _answer("431 Request Header Fields Too Large", MessageTooLarge(HEAD_BYTES_MAX + 1, HEAD_BYTES_MAX))


def _fields(head: bytes) -> dict[bytes, bytes]:
    """Of several of a name, the last."""
    lines = head[: head.index(b"\r\n\r\n")].lower().split(b"\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def _exchange(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """The loop chooses how to read when reading starts: stop, exchange the protocol, feed it what came, and start again."""
    transport.pause_reading()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if isinstance(protocol, asyncio.BufferedProtocol):
        _feed(protocol, data)
    else:
        cast(asyncio.Protocol, protocol).data_received(data)
    if not transport.is_closing():
        transport.resume_reading()


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        buffer.release()
        protocol.buffer_updated(count)
        view = view[count:]
