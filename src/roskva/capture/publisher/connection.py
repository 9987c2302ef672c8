"""The publisher's end of a connection to one process of an application (wire.py): the handshake, and what both sides say.

A protocol of asyncio. What the core wants sent is gathered, and written once per turn. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from roskva.capture import wire
from roskva.capture.flows import Routed, Stream
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher.settings import ApplicationSettings
from roskva.capture.rows import Row, Schemas
from roskva.errors import CaptureRefused, MalformedMessage, RoskvaError, TooManyConnections

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
SILENCE_S_MAX: Final = 4 * wire.SILENCE_S_MAX
FRAME_ROWS_BYTES: Final = 2**18  # of rows in one frame, a larger single row aside: flows of one connection take turns
NAME_MAX: Final = 128
CLOSE_S: Final = 2.0
WEIGHT_MAX: Final = 1e6  # of a subscriber beside others


class Host(Protocol):
    """What a connection needs of its publisher."""

    schemas: Schemas

    @property
    def name(self) -> str: ...

    @property
    def dataset(self) -> str: ...

    @property
    def applications(self) -> Mapping[str, ApplicationSettings]: ...

    def admits(self, connection: SubscriberConnection) -> bool: ...

    def greeted(self, connection: SubscriberConnection) -> None:
        """It has shown the key. Raises MemberConnected."""
        ...

    def heard(self, connection: SubscriberConnection, frame: wire.ToPublisher) -> None: ...

    def lost(self, connection: SubscriberConnection) -> None: ...


class SubscriberConnection(asyncio.Protocol):
    def __init__(self, host: Host, number: int) -> None:
        self.number = number
        self.application = ""
        self.member = ""
        self.weight = 1.0
        self.load = 0.0
        self.window_bytes = 0
        self.ready = False
        self.bytes_sent = 0
        self.flows: dict[int, tuple[FlowName, Stream]] = {}  # by the number of the stream: open at the subscriber
        self._host = host
        self._framing = wire.Framing()
        self._transport: asyncio.Transport | None = None
        self._hello = b""
        self._challenge = b""
        self._known_schemas: set[int] = {0}
        self._outgoing: list[bytes] = []
        self._heard_s = 0.0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        if not self._host.admits(self):
            self._refuse(TooManyConnections("connections_max"))
            return
        self._late = loop.call_later(HANDSHAKE_S, self.abort)

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        try:
            for body in self._framing.feed(data):
                if self.closing:
                    return
                if self.ready:
                    self._host.heard(self, wire.to_publisher(body))
                else:
                    self._greet(body)
        except RoskvaError as error:
            log.warning("A connection of application %r ends: %s", self.application, error)
            self._refuse(error)

    def connection_lost(self, problem: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._transport = None
        self._outgoing.clear()
        self._host.lost(self)

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def silent_s(self) -> float:
        return asyncio.get_running_loop().time() - self._heard_s

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def hang_up_if_silent(self) -> None:
        if self.silent_s > SILENCE_S_MAX:
            log.warning("The process %s of application %s was silent for %.0f s.", self.member, self.application, SILENCE_S_MAX)
            self.abort()

    async def leave(self, why: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.ready:
                self.send(wire.Bye(why))
                self.flush()
            self._transport.close()
        for _ in range(int(CLOSE_S / 0.02)):
            if self._transport is None:
                return
            await asyncio.sleep(0.02)
        self.abort()

    def send(self, frame: wire.AnyFrame) -> None:
        self._outgoing.append(wire.framed(frame))

    def send_updates(self, stream: Stream, updates: Sequence[Routed], squeeze: bool) -> None:
        """In frames of bounded size, each of one history, after the schemas that they need."""
        rows: list[bytes] = []
        size = 0
        history = updates[0].position.history
        for update in updates:
            payload = cast(Row, update.payload)
            if payload.schema not in self._known_schemas:
                if payload.schema < 0:
                    self._rows(stream, history, rows, squeeze)
                    rows, size = [], 0
                    self._too_large(stream, update.position)
                    continue
                self._known_schemas.add(payload.schema)
                self.send(self._host.schemas.numbered(payload.schema))
            if size >= FRAME_ROWS_BYTES or update.position.history != history or size + len(payload.data) > wire.FRAME_BYTES_MAX - 1024:
                self._rows(stream, history, rows, squeeze)
                rows, size, history = [], 0, update.position.history
            rows.append(payload.data)
            size += len(payload.data)
        self._rows(stream, history, rows, squeeze)

    def flush(self) -> None:
        if self._outgoing:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            if self._transport is not None and not self._transport.is_closing():
                self.bytes_sent += len(data)
                self._transport.write(data)

    def _rows(self, stream: Stream, history: int, rows: list[bytes], squeeze: bool) -> None:
        if rows:
            self._outgoing.append(wire.updates(stream.number, history, rows, squeeze))

    def _too_large(self, stream: Stream, position: Position) -> None:
        log.error("The change at %s is larger than a frame may be: it is told to %s as lost.", position, self.application)
        self.send(wire.DataLoss(stream.number, position._replace(index=position.index - 1), position))

    def _greet(self, body: bytes) -> None:
        frame = wire.greeting(body)
        if isinstance(frame, wire.Hello) and not self._hello:
            self._challenged(frame, body)
        elif isinstance(frame, wire.Proof) and self._hello:
            settings = self._host.applications.get(self.application)
            # Whoever names an application that is not here learns no more than one with the wrong key.
            key = settings.key if settings is not None else secrets.token_bytes(32)
            wire.verify(key, wire.ROLE_SUBSCRIBER, self._hello, self._challenge, frame.proof)
            if self._late is not None:
                self._late.cancel()
            self._framing.frame_bytes_max = wire.FRAME_BYTES_MAX_TO_PUBLISHER
            self._host.greeted(self)  # first: it may refuse
            self.send(wire.Welcome(wire.proof(key, wire.ROLE_PUBLISHER, self._hello, self._challenge)))
            self.flush()
            self.ready = True
        else:
            raise MalformedMessage(f"A {type(frame).__name__} came out of turn in the handshake with a subscriber.")

    def _challenged(self, hello: wire.Hello, body: bytes) -> None:
        if hello.version != wire.VERSION:
            raise CaptureRefused(f"The subscriber speaks version {hello.version}, and this publisher {wire.VERSION}.")
        if not 0 < len(hello.member) <= NAME_MAX or len(hello.nonce) != wire.NONCE_BYTES or not 0 <= hello.weight <= WEIGHT_MAX:
            raise MalformedMessage("The subscriber's Hello has no member, no nonce or no weight.")
        if hello.window_bytes < 1:
            raise MalformedMessage("The subscriber's Hello has no window.")
        self.application, self.member, self.weight = hello.application, hello.member, hello.weight
        self.window_bytes = hello.window_bytes
        self._hello = body
        challenge = wire.Challenge(wire.VERSION, self._host.name, self._host.dataset, secrets.token_bytes(wire.NONCE_BYTES))
        self._challenge = wire.body_of(challenge)
        self.send(challenge)
        self.flush()

    def _refuse(self, error: RoskvaError) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.send(wire.Refused(error.code, str(error)) if not self.ready else wire.Bye(str(error)))
            self.flush()
            self._transport.close()
