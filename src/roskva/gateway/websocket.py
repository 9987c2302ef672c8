"""Client connections over WebSocket: on picows, and on aiohttp for connections that arrive there.

One of these objects exists per connected client, tens of thousands in a process: slots only, no task, no timer. Text frames
carry one message each. A client that does not read: once `send_buffer_bytes_max` bytes wait for it, further messages are
dropped (a channel may drop; what matters is sent again), and if it has not caught up within SLOW_S it is disconnected. Its
client catches up on return.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp import WSCloseCode as HttpCloseCode
from aiohttp import WSMsgType as HttpMsgType
from aiohttp import web
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from roskva.errors import (
    GoingAway,
    MalformedMessage,
    MessageTooLarge,
    Overloaded,
    RateLimited,
    SlowConsumer,
    TooManyConnections,
    Unavailable,
)
from roskva.gateway.admission import Noted
from roskva.gateway.routing import Party, error_message
from roskva.gateway.unfinished import FREE_BYTES

if TYPE_CHECKING:
    from roskva.gateway.server import Port

SLOW_S: Final = 5.0
CLOSE_WAIT_S: Final = 2.0  # for the client's half of the closing handshake

OK: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
TEXT_ONLY: Final = 1003
POLICY: Final = 1008
TOO_LARGE: Final = 1009
TRY_AGAIN: Final = 1013

# The close code tells a client's library what to do; the reason carries the name of the error (docs/errors.md).
CLOSE_CODES: Final = {
    GoingAway.code: GOING_AWAY,
    "protocol-error": PROTOCOL_ERROR,
    "binary-frame": TEXT_ONLY,
    MessageTooLarge.code: TOO_LARGE,
    Unavailable.code: TRY_AGAIN,
    Overloaded.code: TRY_AGAIN,
    SlowConsumer.code: TRY_AGAIN,
    TooManyConnections.code: TRY_AGAIN,
}
BINARY_REFUSED: Final = MalformedMessage("The frame is binary: messages are text frames of JSON.")

_TEXT: Final = WSMsgType.TEXT
# Larger ones picows gives to the transport without a copy, with their head in a buffer that it uses again for the next one: if the socket
# is full, the head is overwritten before it is sent.
_COPIED_BYTES_MAX: Final = 8192
_NO_HEADERS: Final[dict[str, str]] = {}
# libuv reads a socket up to 32 times in a turn of the loop, as long as there is something. Of one that had so much at once it reads once.
_TURN_BYTES: Final = 4096
_FILLED_BYTES_MAX: Final = 8192


class WebSocketConnection(WSListener, Noted):
    """A client's connection, on picows."""

    __slots__ = (
        "_closing", "_note", "_partial", "_port", "_transport",
        "address", "malformed", "number", "owner", "party", "token", "unfinished",
    )  # fmt: skip

    address: str
    party: Party
    number: int
    token: str
    owner: str | None
    malformed: int
    unfinished: int

    def __init__(self, port: Port, address: str, origin: str) -> None:
        self._port = port
        self._transport: WSTransport | None = None
        self._partial: bytearray | None = None  # the fragments of a message so far
        self._closing = False
        self.address = address
        self.party = port.admission.party(origin)
        self.number = 0
        self.token = ""
        self.owner = None
        self.malformed = 0
        self.unfinished = 0  # bytes of a message that is not complete, and perhaps some before it
        self._note = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        # The upgrade is done; what it said would be kept for the life of the connection, more than a kilobyte.
        request = transport.request
        request.headers = transport.response.headers = _NO_HEADERS  # type: ignore[assignment]
        request.method = request.path = request.version = b""
        transport.underlying_transport.set_write_buffer_limits(high=self._port.send_buffer_bytes_max)
        self.unfinished = 0  # what came so far was the upgrade
        self._port.opened(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._transport = None
        self._port.closed(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._closing and frame.msg_type != WSMsgType.CLOSE:
            return
        if frame.msg_type == _TEXT and frame.fin and self._partial is None and not frame.rsv1:
            if self.unfinished > FREE_BYTES:
                self._port.admission.finished(self)
            self.unfinished = 0
            self._port.received(self, frame.get_payload_as_bytes())
        else:
            self._unusual(transport, frame)

    def _unusual(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._partial is None or (kind == WSMsgType.CONTINUATION and frame.fin):
            self._port.admission.finished(self)
            self.unfinished = 0
        if kind == WSMsgType.CLOSE:
            self._closing = True
            code = frame.get_close_code()
            transport.send_close(WSCloseCode.OK if code == WSCloseCode.NO_INFO else code)
            transport.disconnect()
        elif not self._port.admission.spoke(self):  # pings and fragments are counted as messages are
            if kind not in (WSMsgType.PING, WSMsgType.PONG):
                self.close(RateLimited.code)  # a message with a hole in it is none
        elif kind == WSMsgType.PING:
            if self not in self._port.paused:  # nobody who does not read makes us collect answers
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind == WSMsgType.PONG:
            return
        elif frame.rsv1 or (kind == WSMsgType.CONTINUATION) == (self._partial is None):
            self.close("protocol-error")  # compressed without having agreed to it, or fragments out of order
        elif kind == WSMsgType.BINARY:
            self.send(error_message(BINARY_REFUSED, self.token))
            self.close("binary-frame")
        else:
            self._fragment(frame)

    def _fragment(self, frame: WSFrame) -> None:
        partial = self._partial = self._partial or bytearray()
        if len(partial) + frame.payload_size > self._port.message_bytes_max:
            self.send(error_message(MessageTooLarge(len(partial) + frame.payload_size, self._port.message_bytes_max), self.token))
            self.close(MessageTooLarge.code)
            return
        partial += frame.get_payload_as_bytes()
        if frame.fin:
            self._partial = None
            self._port.received(self, bytes(partial))

    def grew(self) -> None:
        if not self._closing:
            self._port.admission.unfinished.grew(self, self.unfinished)

    def let_others(self) -> None:
        """It says very much: the rest of it in the next turn of the loop, after what others have to say."""
        if not self._closing and self._transport is not None:
            self._transport.underlying_transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._closing and self._transport is not None:
            self._transport.underlying_transport.resume_reading()

    def pause_writing(self) -> None:
        self._port.paused[self] = time.monotonic()

    def resume_writing(self) -> None:
        self._port.paused.pop(self, None)

    def send(self, data: bytes) -> None:
        if self._closing or self._transport is None:
            return
        port = self._port
        if port.paused and self in port.paused:
            port.metrics.messages_dropped += 1
            return
        port.metrics.messages_sent += 1
        if len(data) > _COPIED_BYTES_MAX:
            self._transport.underlying_transport.write(_framed(data))
        else:
            self._transport.send(_TEXT, data)

    def close(self, code: str) -> None:
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._transport.send_close(CLOSE_CODES.get(code, POLICY), code)  # type: ignore[arg-type]
        if code in (RateLimited.code, Overloaded.code):
            # Whoever says too much goes on saying it: to read that, if only to drop it, takes a core until the connection is gone.
            self._transport.underlying_transport.pause_reading()
        asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._transport.disconnect, False)

    def abort(self) -> None:
        """At once: what waits to be sent is thrown away."""
        self._closing = True
        if self._transport is not None:
            self._transport.disconnect(False)


class ChannelProtocol(WSProtocol):  # type: ignore[misc]  # an extension's class
    """picows' protocol, and how much of an unfinished message its buffer holds."""

    __slots__ = ("connection",)
    connection: WebSocketConnection

    def get_buffer(self, size_hint: int) -> memoryview:
        """picows doubles a buffer that was filled, whatever with. One that is large already is filled with nothing but a larger message."""
        free: memoryview = _get_buffer(self, size_hint)
        return free if len(free) <= _FILLED_BYTES_MAX else free[: len(free) // 2]

    def buffer_updated(self, count: int) -> None:
        connection = self.connection
        connection.unfinished += count
        _buffer_updated(self, count)
        if connection.unfinished > FREE_BYTES:
            connection.grew()
        if count > _TURN_BYTES:
            connection.let_others()


_get_buffer: Final[Any] = WSProtocol.get_buffer
_buffer_updated: Final[Any] = WSProtocol.buffer_updated


def _framed(data: bytes) -> bytes:
    """A text frame of more than 125 bytes."""
    size = len(data)
    return (b"\x81\x7e" + size.to_bytes(2, "big") if size < 1 << 16 else b"\x81\x7f" + size.to_bytes(8, "big")) + data


class HttpConnection(Noted):
    """A client's connection on an HTTP connection that was used before, as some proxies do: on aiohttp, at a higher price."""

    __slots__ = (
        "_closed", "_note", "_port", "_queue", "_queued_bytes", "_transport",
        "address", "malformed", "number", "owner", "party", "token", "unfinished",
    )  # fmt: skip

    def __init__(self, port: Port, address: str, origin: str) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._queue: asyncio.Queue[bytes | str] = asyncio.Queue()  # a str is the name of an error to close with
        self._queued_bytes = 0
        self._closed = False
        self.address = address
        self.party = port.admission.party(origin)
        self.number = 0
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self.unfinished = 0
        self._note: object | None = None

    def grew(self) -> None:
        self._port.admission.unfinished.grew(self, self.unfinished)

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        if self._queued_bytes > self._port.send_buffer_bytes_max:
            self._port.paused.setdefault(self, time.monotonic())
            self._port.metrics.messages_dropped += 1
            return
        self._port.metrics.messages_sent += 1
        self._queued_bytes += len(data)
        self._queue.put_nowait(data)

    def close(self, code: str) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(code)

    def abort(self) -> None:
        """At once: what waits to be sent is thrown away, and whoever waits to send it wakes up."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    async def run(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False, autoping=False, max_msg_size=self._port.message_bytes_max, timeout=CLOSE_WAIT_S)
        await socket.prepare(request)
        self._transport = request.transport
        # Nobody else tells how much of a message has arrived.
        request.protocol._payload_parser = _Counting(request.protocol._payload_parser, self)
        self._port.admission.count(self.address)
        self._port.opened(self)
        writing = asyncio.create_task(self._write(socket))
        try:
            async for message in socket:
                self._port.admission.finished(self)
                self.unfinished = 0
                if message.type == HttpMsgType.TEXT:
                    self._port.received(self, message.data.encode())
                elif message.type in (HttpMsgType.PING, HttpMsgType.PONG):
                    if self._port.admission.spoke(self) and message.type == HttpMsgType.PING and not self._closed:
                        await socket.pong(message.data)
                elif message.type == HttpMsgType.BINARY:
                    self.send(error_message(BINARY_REFUSED, self.token))
                    self.close("binary-frame")
        finally:
            self._closed = True
            writing.cancel()
            self._port.closed(self)
        return socket

    async def _write(self, socket: web.WebSocketResponse) -> None:
        while True:
            data = await self._queue.get()
            try:
                if isinstance(data, str):
                    await socket.close(code=HttpCloseCode(CLOSE_CODES.get(data, POLICY)), message=data.encode())
                    return
                await socket.send_str(data.decode())
            except ConnectionError:
                return
            self._queued_bytes -= len(data)
            if self._queued_bytes <= self._port.send_buffer_bytes_max:
                self._port.paused.pop(self, None)


class _Counting:
    """aiohttp's parser of frames, and how much of an unfinished message it holds."""

    __slots__ = ("_connection", "_parser")

    def __init__(self, parser: Any, connection: HttpConnection) -> None:
        self._parser = parser
        self._connection = connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        connection = self._connection
        connection.unfinished += len(data)
        if connection.unfinished > FREE_BYTES:
            connection.grew()
        fed: tuple[bool, bytes] = self._parser.feed_data(data)
        return fed

    def feed_eof(self) -> None:
        self._parser.feed_eof()
