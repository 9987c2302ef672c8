"""The trusted channel: many clients over one WebSocket of a server that showed the key (docs/protocol.md, The trusted channel).

For servers that speak for many clients, and for load generators. Each text frame is a client's number, a space and a message; a number
alone says that this client is gone. Every client is a connection like any other, and counts like one. What the other side does not read:
above BUFFER_BYTES_MAX messages are dropped, and after SLOW_S of that the line is cut; its clients catch up when they return.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from aiohttp import WSCloseCode, WSMsgType, web

from roskva.errors import TrustRefused
from roskva.gateway.websocket import CLOSE_CODES, CLOSE_WAIT_S, POLICY, SLOW_S
from roskva.protocol.channel import Channel
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.attached import Attachment
    from roskva.gateway.server import Port

TRUSTED_PATH: Final = "/v1/trusted"
BUFFER_BYTES_MAX: Final = 16 << 20
NUMBER_DIGITS_MAX: Final = 15


class _Numbered(Channel):
    """The gateway's end of one client's channel."""

    def __init__(self, line: TrustedLine, number: int) -> None:
        self._line = line
        self._number = number

    def send(self, data: bytes) -> None:
        self._line.put(b"%d %b" % (self._number, data))


class TrustedLine:
    """One such WebSocket."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._clients: dict[int, tuple[_Numbered, Attachment]] = {}
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._ready = asyncio.Event()
        self._full_since_s: float | None = None
        self._closing = ""
        self._transport: asyncio.Transport | None = None

    async def run(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            compress=False, max_msg_size=self._port.message_bytes_max + NUMBER_DIGITS_MAX + 1, timeout=CLOSE_WAIT_S
        )
        await socket.prepare(request)
        self._transport = request.transport
        self._port.lines.add(self)
        writing = asyncio.create_task(self._write(socket))
        try:
            async for message in socket:
                if not self._closing and (message.type != WSMsgType.TEXT or not self._received(message.data.encode())):
                    self.close("protocol-error")
        finally:
            self._port.lines.discard(self)
            writing.cancel()
            for _, attachment in self._clients.values():
                attachment.closed()
        return socket

    def _received(self, frame: bytes) -> bool:
        """Answers whether it was of the agreed form."""
        digits, space, data = frame.partition(b" ")
        if not (digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
            return False
        number = int(digits)
        if not space:
            if (known := self._clients.pop(number, None)) is not None:
                known[1].closed()
            return True
        if number not in self._clients:
            channel = _Numbered(self, number)
            self._clients[number] = (channel, self._port.attach(channel))
        channel, attachment = self._clients[number]
        channel.received(data)
        if not attachment.is_open:  # refused, or closed by the gateway: the next message may begin anew
            del self._clients[number]
        return True

    def put(self, frame: bytes) -> None:
        if self._closing:
            return
        if self._queued_bytes > BUFFER_BYTES_MAX:
            self._port.metrics.messages_dropped += 1
            now_s = time.monotonic()
            if self._full_since_s is None:
                self._full_since_s = now_s
            elif now_s - self._full_since_s > SLOW_S:
                self._port.metrics.slow_consumers += 1
                self._cut()
            return
        self._queued_bytes += len(frame)
        self._queue.append(frame)
        self._ready.set()

    def close(self, code: str) -> None:
        """After what waits to be sent."""
        self._closing = self._closing or code
        self._ready.set()

    def _cut(self) -> None:
        self._closing = "slow-consumer"
        if self._transport is not None:
            self._transport.abort()

    async def _write(self, socket: web.WebSocketResponse) -> None:
        try:
            while self._queue or not self._closing:
                if not self._queue:
                    self._ready.clear()
                    await self._ready.wait()
                    continue
                frame = self._queue.popleft()
                await socket.send_str(frame.decode())
                self._queued_bytes -= len(frame)
                self._full_since_s = None
            await socket.close(code=WSCloseCode(CLOSE_CODES.get(self._closing, POLICY)), message=self._closing.encode())
        except ConnectionError:
            return


def check_trust(request: web.Request, key: str, metrics: Metrics) -> None:
    kind, _, shown = request.headers.get("Authorization", "").partition(" ")
    # A header may hold bytes that are no text.
    if not key or kind.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode("utf-8", "surrogatepass"), key.encode()):
        metrics.trust_refused += 1
        raise TrustRefused("The connection did not show the key of trusted servers.")
