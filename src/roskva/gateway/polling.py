"""The HTTP routes of polled connections: open, fetch by long poll or as server-sent events, send, close (docs/protocol.md, Channels).

What waits and for how long is in gateway/polled.py. Messages in bodies stand one to a line: JSON text holds no line end. A connection's id
begins with the gateway that holds it; of several gateways on one port, whoever gets a request for another's passes it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from roskva.errors import ChannelClosed, MalformedMessage, RoskvaError, Unavailable
from roskva.gateway.origins import ORIGIN
from roskva.gateway.peers import Peers
from roskva.gateway.polled import IDLE_S, WAIT_S, PolledConnection, holder_of
from roskva.gateway.publish import error_object
from roskva.gateway.server import Port
from roskva.gateway.unfinished import FREE_BYTES, Unfinished

CHANNELS_PATH: Final = "/v1/channels"
MESSAGES_PER_BODY_MAX: Final = 100
BEAT_S: Final = 20.0  # a comment on a stream so often: proxies and clients see that it lives
_WAIT_MIN_S: Final = 1.0
_NO_STORE: Final = {"Cache-Control": "no-store"}
_LINES: Final = _NO_STORE | {"Content-Type": "application/x-ndjson"}
# nginx would collect a stream's events in a buffer before it passes them on.
_STREAM: Final = _NO_STORE | {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = Callable[[web.Request, int, Callable[[int], None]], Awaitable[bytes]]  # told how much of it has arrived


class Polling:
    def __init__(self, port: Port | None, body: Body, peers: Peers | None = None) -> None:
        self._port = port
        self._body = body
        self._peers = peers

    def routes(self) -> list[web.RouteDef]:
        return [web.post(CHANNELS_PATH, self.open), *self.routes_of_one()]

    def routes_of_one(self) -> list[web.RouteDef]:
        """Of a connection that was opened before."""
        one = CHANNELS_PATH + "/{id}"
        return [
            web.get(one, self._where_it_is(self.poll), allow_head=False),
            web.post(one, self._where_it_is(self.send)),
            web.delete(one, self._where_it_is(self.delete)),
            web.get(one + "/events", self._where_it_is(self.events), allow_head=False),
            web.post(one + "/close", self._where_it_is(self.close)),
        ]

    def _where_it_is(self, handler: Handler) -> Handler:
        """By the gateway that holds the connection. One that is gone took its connections along: their clients open others."""

        async def routed(request: web.Request) -> web.StreamResponse:
            holder = holder_of(request.match_info["id"])
            if self._peers is None or not self._peers.knows(holder):
                return await handler(request)
            try:
                return await self._peers.relay(request, holder)
            except Unavailable:
                raise ChannelClosed("the gateway that held it is gone") from None

        return routed

    async def open(self, request: web.Request) -> web.StreamResponse:
        port = self._serving()
        connection = port.polls.open(port.address_of(request), request.get(ORIGIN, ""))
        told = {"id": connection.id, "wait_s": WAIT_S, "idle_s": IDLE_S}
        return web.Response(body=msgspec.json.encode(told), status=201, content_type="application/json", headers=_NO_STORE)

    async def poll(self, request: web.Request) -> web.StreamResponse:
        connection, wait_s = self._named(request), _wait_in(request)
        connection.begin_reading(request)
        messages: list[bytes] = []
        try:
            await connection.something(wait_s)
            if connection.is_read_by(request):
                messages = connection.take()
                if connection.closed_with and not messages:
                    raise self._told(connection)
        finally:
            connection.end_reading(request)
        return web.Response(body=b"\n".join(messages), headers=_LINES) if messages else web.Response(status=204, headers=_NO_STORE)

    async def events(self, request: web.Request) -> web.StreamResponse:
        connection = self._named(request)
        connection.begin_reading(request)
        response = web.StreamResponse(headers=_STREAM)
        # Whoever reads the stream may be gone at any moment; what it did not get was a channel's drop.
        with contextlib.suppress(ConnectionError):
            try:
                await response.prepare(request)
                await response.write(b":\n\n")  # so that the other side sees that the stream is open
                while await self._write_events(connection, request, response):
                    pass
            finally:
                connection.end_reading(request)
        return response

    async def _write_events(self, connection: PolledConnection, request: web.Request, response: web.StreamResponse) -> bool:
        """What comes next on the stream; answers whether there is more."""
        await connection.something(BEAT_S)
        if not connection.is_read_by(request):
            return False
        if messages := connection.take():
            await response.write(b"".join(b"data: %b\n\n" % message for message in messages))
        elif connection.closed_with:
            error = msgspec.json.encode({"error": error_object(self._told(connection))})
            await response.write(b"event: closed\ndata: %b\n\n" % error)
            return False
        else:
            await response.write(b":\n\n")
        return True

    async def send(self, request: web.Request) -> web.StreamResponse:
        connection = self._named(request)
        await self._receive(connection, request)
        return web.Response(status=204, headers=_NO_STORE)

    async def close(self, request: web.Request) -> web.StreamResponse:
        """For `navigator.sendBeacon`, which can only POST; the body may hold last messages."""
        connection = self._named(request)
        try:
            await self._receive(connection, request)
        finally:
            self._end(connection)
        return web.Response(status=204, headers=_NO_STORE)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        with contextlib.suppress(ChannelClosed):  # closed already: as wished
            self._end(self._named(request))
        return web.Response(status=204, headers=_NO_STORE)

    async def _receive(self, connection: PolledConnection, request: web.Request) -> None:
        port = self._serving()
        if connection.closed_with:
            raise ChannelClosed(connection.closed_with)
        arriving = _Arriving(request)
        try:
            body = await self._body(request, port.message_bytes_max, partial(arriving.grew, port.admission.unfinished))
        finally:
            port.admission.unfinished.done(arriving)
        lines = body.split(b"\n", MESSAGES_PER_BODY_MAX + 1)
        if len(lines) > MESSAGES_PER_BODY_MAX:
            raise MalformedMessage(f"The body holds more than {MESSAGES_PER_BODY_MAX} messages.")
        for line in lines:
            if line and not connection.closed_with:
                port.received(connection, line)

    def _end(self, connection: PolledConnection) -> None:
        connection.close("closed")
        self._serving().polls.forget(connection)

    def _told(self, connection: PolledConnection) -> RoskvaError:
        self._serving().polls.forget(connection)
        return ChannelClosed(connection.closed_with)

    def _named(self, request: web.Request) -> PolledConnection:
        return self._serving().polls.named(request.match_info["id"])

    def _serving(self) -> Port:
        if self._port is None:
            raise Unavailable("The gateway is still starting.")
        return self._port


class _Arriving:
    """The body of a request, while it comes."""

    __slots__ = ("_request",)

    def __init__(self, request: web.Request) -> None:
        self._request = request

    def grew(self, unfinished: Unfinished, size: int) -> None:
        if size > FREE_BYTES:
            unfinished.grew(self, size)

    def close(self, code: str) -> None:
        """Too much of others has come meanwhile. Whoever waits for the rest is told that the connection is lost."""
        if self._request.transport is not None:
            self._request.transport.abort()


def _wait_in(request: web.Request) -> float:
    """A client behind an impatient proxy asks for less than the longest wait."""
    text = request.query.get("wait_s", "")
    if not text:
        return WAIT_S
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise MalformedMessage("`wait_s` is not a number of seconds.")
    return min(WAIT_S, max(_WAIT_MIN_S, float(text)))
