"""The trusted channel: many clients over one WebSocket of a server that showed the key (docs/protocol.md, The trusted channel).

For servers that speak for many clients, and for load generators. Each text frame is a client's number, a space and a message; a number
alone says that this client is gone. Every client is a connection like any other, and counts like one. What the other side does not read:
above BUFFER_BYTES_MAX messages are dropped, and after SLOW_S of that the line is cut; its clients catch up when they return.

Whoever asks for it has one keepalive for the whole line instead of one for each client (docs/decisions/0032). Frames come in order, so what
was said of a client before the line's keepalive has been read by then; what was dropped is said again first.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiohttp import WSCloseCode, WSMsgType, web

from roskva.errors import MessageTooLarge, RoskvaError, TrustRefused, Unavailable
from roskva.gateway.admission import Noted
from roskva.gateway.connections import Numbered
from roskva.gateway.routing import error_message
from roskva.gateway.websocket import CLOSE_CODES, CLOSE_WAIT_S, POLICY, SLOW_S
from roskva.registrar.sessions import OnLine, Session
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.server import Port

TRUSTED_PATH: Final = "/v1/trusted"
BUFFER_BYTES_MAX: Final = 16 << 20
NUMBER_DIGITS_MAX: Final = 15
_ENDED_PER_TURN: Final = 500  # clients of a line that is gone
_READ_PER_TURN: Final = 32  # messages of a line: what came in one piece may be thousands, and others wait meanwhile
_NAMES_PER_FRAME_MAX: Final = 1_000
_WRITTEN_AT_ONCE_BYTES: Final = 128 << 10
_UNWRITTEN_BYTES_MAX: Final = 64 << 10  # that the transport holds: more waits here, where it is counted
_FULL_LOOK_S: Final = 0.002


class TrustedClient(Noted, OnLine):
    """A client's connection over a line, from its first message until either side ends it.

    One small object, since there may be a million of them: channel, connection and the Registrar's note. It is open while the line knows
    it by its number.
    """

    __slots__ = ("_line", "_note", "name", "owner", "party", "token")

    address = ""  # whoever carries it is trusted

    def __init__(self, line: TrustedLine, name: int) -> None:
        self._line = line
        self.name = name  # its number on the line
        self.party = line.port.admission.party("")
        self.token = ""
        self.owner: str | None = None
        self._note: object | None = None

    @property
    def number(self) -> int:
        return self._line.first + self.name

    @property
    def _port(self) -> Port:  # type: ignore[override]  # Noted only reads it
        return self._line.port

    @property
    def malformed(self) -> int:
        """Messages in a row. Nearly nobody's: the line keeps them."""
        return self._line.malformed.get(self.name, 0)

    @malformed.setter
    def malformed(self, count: int) -> None:
        if count:
            self._line.malformed[self.name] = count
        elif self._line.malformed:
            self._line.malformed.pop(self.name, None)

    @property
    def keeper(self) -> TrustedLine | None:
        return self._line if self._line.keeps else None

    def send(self, data: bytes) -> None:
        line = self._line
        if line.clients.get(self.name) is self:
            line.port.metrics.messages_sent += 1
            line.put(b"%d %b" % (self.name, data), self.name)

    def confirmed(self) -> None:
        self._line.put(b"+%d" % self.name, self.name)

    def unconfirmed(self) -> None:
        if self._line.clients.get(self.name) is self:  # else it is gone for both sides
            self._line.put(b"-%d" % self.name, self.name)

    def close(self, code: str) -> None:
        line = self._line
        if line.clients.get(self.name) is self:
            if line.keeps and isinstance(self._note, Session):
                self.unconfirmed()
            del line.clients[self.name]
            line.malformed.pop(self.name, None)
            line.port.closed(self)

    def abort(self) -> None:
        self.close("aborted")


class TrustedLine:
    """One such WebSocket."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.keeps = False  # one keepalive of the line stands for all sessions that are confirmed on it
        self.clients: Numbered[TrustedClient] = Numbered()
        self.malformed: dict[int, int] = {}  # messages in a row, of those that sent such
        self.first = 0  # of their numbers at this gateway, once it has begun
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._ready = asyncio.Event()
        self._full_since_s: float | None = None
        self._missed: set[int] = set()  # clients of whom a frame was dropped, if the line keeps them alive
        self._closing = ""
        self._transport: asyncio.Transport | None = None

    async def run(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            compress=False, max_msg_size=self.port.message_bytes_max + NUMBER_DIGITS_MAX + 1, timeout=CLOSE_WAIT_S
        )
        await socket.prepare(request)
        self._transport = request.transport
        self.keeps = request.query.get("keepalive") == "line"
        self.first = self.port.connections.line_began(self.clients)
        self.port.lines.add(self)
        writing = asyncio.create_task(self._write(socket))
        try:
            read = 0
            async for message in socket:
                read += 1
                if read % _READ_PER_TURN == 0:  # those that are there already are handed out without a turn of the loop
                    await asyncio.sleep(0)
                if not self._closing and (message.type != WSMsgType.TEXT or not self._received(message.data.encode())):
                    self.close("protocol-error")
        finally:
            self._closing = self._closing or "closed"
            self.port.lines.discard(self)
            writing.cancel()
            try:
                await self._end_clients()
            finally:
                self.port.connections.line_ended(self.first)
        return socket

    async def _end_clients(self) -> None:
        """All of them are gone. Some in each turn of the event loop: there may be a million."""
        try:
            while self.clients:
                for client in list(islice(self.clients.values(), _ENDED_PER_TURN)):
                    client.close("closed")
                await asyncio.sleep(0)
        finally:
            for client in list(self.clients.values()):  # there is no time any more
                client.close("closed")

    def _received(self, frame: bytes) -> bool:
        """Answers whether it was of the agreed form."""
        digits, space, data = frame.partition(b" ")
        if not (digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
            return False
        number = int(digits)
        client = self.clients.get(number)
        if not space:
            if client is not None:
                client.close("closed")
        elif len(data) > self.port.message_bytes_max:
            self._refuse(number, MessageTooLarge(len(data), self.port.message_bytes_max))
        elif client is not None:
            self.port.received(client, data)
        elif self.port.full():
            self.port.metrics.limited_connections += 1
            self._refuse(number, Unavailable("This gateway has as many connections as allowed."))
        else:
            client = self.clients[number] = TrustedClient(self, number)
            self.port.opened(client)
            self.port.received(client, data)
        return True

    def _refuse(self, number: int, error: RoskvaError) -> None:
        self.port.metrics.messages_sent += 1
        self.put(b"%d %b" % (number, error_message(error)))

    @property
    def closed(self) -> bool:
        return bool(self._closing)

    def take_missed(self) -> list[TrustedClient]:
        """Those who are still here and of whom something was dropped. Of the others it is said that they are not."""
        missed, self._missed = self._missed, set()
        for number in missed:
            if self.clients.get(number) is None:
                self.put(b"-%d" % number, number)
        return [client for number in missed if (client := self.clients.get(number)) is not None]

    def tell_settled(self, channels: Sequence[OnLine]) -> None:
        """Not those who lack something that was dropped: they are told again by themselves."""
        here = (one for one in channels if isinstance(one, TrustedClient) and self.clients.get(one.name) is one)
        names = [one.name for one in here if one.name not in self._missed]
        for start in range(0, len(names), _NAMES_PER_FRAME_MAX):
            some = names[start : start + _NAMES_PER_FRAME_MAX]
            self.port.metrics.messages_sent += 1
            if not self.put(b"= " + " ".join(map(str, some)).encode()) and self.keeps:
                self._missed.update(some)

    def keep_alive(self) -> None:
        """Not while the other side lacks something: it would be taken for all that there is."""
        if not self._missed:
            self.put(b"+")

    def put(self, frame: bytes, name: int | None = None) -> bool:
        """`name`: of the client that it is for. False: it was dropped."""
        if self._closing:
            return False
        if self._queued_bytes > BUFFER_BYTES_MAX:
            self.port.metrics.messages_dropped += 1
            if self.keeps and name is not None:
                self._missed.add(name)
            now_s = time.monotonic()
            if self._full_since_s is None:
                self._full_since_s = now_s
            elif now_s - self._full_since_s > SLOW_S:
                self.port.metrics.slow_consumers += 1
                self._cut()
            return False
        self._queued_bytes += len(frame)
        self._queue.append(frame)
        self._ready.set()
        return True

    def close(self, code: str) -> None:
        """After what waits to be sent."""
        self._closing = self._closing or code
        self._ready.set()

    def _cut(self) -> None:
        self._closing = "slow-consumer"
        if self._transport is not None:
            self._transport.abort()

    async def _write(self, socket: web.WebSocketResponse) -> None:
        """What waits goes out together: a call of the kernel for each message would cost more than the message."""
        transport = self._transport
        try:
            while self._queue or not self._closing:
                if transport is None or transport.is_closing():
                    return
                if not self._queue:
                    self._ready.clear()
                    await self._ready.wait()
                elif transport.get_write_buffer_size() > _UNWRITTEN_BYTES_MAX:
                    await asyncio.sleep(_FULL_LOOK_S)
                else:
                    transport.write(self._taken())
                    self._full_since_s = None
            await socket.close(code=WSCloseCode(CLOSE_CODES.get(self._closing, POLICY)), message=self._closing.encode())
        except ConnectionError:
            return

    def _taken(self) -> bytes:
        """Some of the queue, as text frames of a server (RFC 6455, 5.2)."""
        parts: list[bytes] = []
        size = 0
        while self._queue and size < _WRITTEN_AT_ONCE_BYTES:
            frame = self._queue.popleft()
            size += len(frame)
            parts += (_head_of(len(frame)), frame)
        self._queued_bytes -= size
        return b"".join(parts)


def _head_of(length: int) -> bytes:
    if length < 126:
        return bytes((0x81, length))
    return b"\x81\x7e" + length.to_bytes(2, "big") if length < 1 << 16 else b"\x81\x7f" + length.to_bytes(8, "big")


def check_trust(request: web.Request, key: str, metrics: Metrics) -> None:
    kind, _, shown = request.headers.get("Authorization", "").partition(" ")
    # A header may hold bytes that are no text.
    if not key or kind.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode("utf-8", "surrogatepass"), key.encode()):
        metrics.trust_refused += 1
        raise TrustRefused("The connection did not show the key of trusted servers.")
