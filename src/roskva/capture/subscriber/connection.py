"""One connection to one publisher: the handshake, and the frames of all flows that it carries (wire.py).

A protocol of asyncio, so that what arrives is cut and queued without a task or a wait in between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final, cast

from roskva.capture import wire
from roskva.capture.rows import Decoding
from roskva.capture.subscriber.callbacks import Shard
from roskva.capture.subscriber.flow import ReceivedFlow
from roskva.errors import CaptureRefused, MalformedMessage, RoskvaError, ServiceUnreachable, from_report

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
CLOSE_S: Final = 2.0


class Connection(asyncio.Protocol):
    """`opened` makes the flow of a shard notice, or answers None if this publisher is not its owner any more."""

    def __init__(
        self,
        hello: wire.Hello,
        key: bytes,
        opened: Callable[[Connection, wire.Open], ReceivedFlow | None],
    ) -> None:
        self.decoding = Decoding()
        self.flows: dict[int, ReceivedFlow] = {}
        self.dataset = ""
        self.publisher = ""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[RoskvaError] = asyncio.get_running_loop().create_future()
        self._hello = wire.body_of(hello)
        self._challenge = b""
        self._key = key
        self._opened = opened
        self._framing = wire.Framing()
        self._transport: asyncio.Transport | None = None
        self._error: RoskvaError | None = None
        self._heard_s = 0.0
        self._pings = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._heard_s = asyncio.get_running_loop().time()
        self._transport.write(wire.with_length(self._hello))

    def data_received(self, data: bytes) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        try:
            for body in self._framing.feed(data):
                if self.closing:
                    return
                if self.greeted.done():
                    self._received(body)
                else:
                    self._greet(body)
        except RoskvaError as error:
            self.broken(error)

    def connection_lost(self, problem: Exception | None) -> None:
        why = self._error or ServiceUnreachable(f"The connection to the publisher {self.publisher} ended: {problem or 'closed'}.")
        for flow in self.flows.values():
            flow.end()
        if not self.greeted.done():
            self.greeted.set_exception(why)
        if not self.lost.done():
            self.lost.set_result(why)

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, frame: wire.AnyFrame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(wire.framed(frame))

    def broken(self, error: RoskvaError) -> None:
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def beat(self, load: float, away_s: float = 0.0) -> None:
        """Called now and then: says how busy we are, and hangs up on a publisher that is silent. `away_s`: so long of the time since the
        last call nobody listened here, since the process was stopped or a callback blocked the event loop; that is no silence."""
        self._heard_s += away_s
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        if silent_s > wire.SILENCE_S_MAX:
            self.broken(ServiceUnreachable(f"The publisher {self.publisher} was silent for {silent_s:.0f} s."))
            return
        if self.greeted.done():
            self.send(wire.Load(load))
            self._pings += 1
            self.send(wire.Ping(self._pings))

    async def leave(self) -> None:
        """End on purpose, when all flows have ended."""
        if self._transport is not None and not self._transport.is_closing():
            self.send(wire.Bye("stopped"))
            self._transport.close()
            await asyncio.wait([self.lost], timeout=CLOSE_S)
            self._transport.abort()

    def _greet(self, body: bytes) -> None:
        frame = wire.greeting(body)
        if isinstance(frame, wire.Refused):
            raise from_report(frame.code, frame.message)
        if isinstance(frame, wire.Challenge) and not self._challenge:
            if frame.version != wire.VERSION:
                raise CaptureRefused(f"The publisher {frame.publisher[:64]!r} speaks version {frame.version}, and we {wire.VERSION}.")
            if len(frame.nonce) != wire.NONCE_BYTES:
                raise MalformedMessage("The publisher's challenge has no nonce.")
            self._challenge, self.dataset, self.publisher = body, frame.dataset, frame.publisher
            self.send(wire.Proof(wire.proof(self._key, wire.ROLE_SUBSCRIBER, self._hello, body)))
        elif isinstance(frame, wire.Welcome) and self._challenge:
            wire.verify(self._key, wire.ROLE_PUBLISHER, self._hello, self._challenge, frame.proof)
            self._framing.frame_bytes_max = wire.FRAME_BYTES_MAX
            self.greeted.set_result(None)
        else:
            raise MalformedMessage(f"A {type(frame).__name__} came out of turn in the handshake with a publisher.")

    def _received(self, body: bytes) -> None:
        frame = wire.to_subscriber(body)
        if isinstance(frame, wire.Updates | wire.Compressed):
            self._put(frame, wire.cost_of(frame))
        elif isinstance(frame, wire.Token | wire.DataLoss):
            self._put(frame, 0)
        elif isinstance(frame, wire.Schema):
            self.decoding.learn(frame)
        elif isinstance(frame, wire.Open):
            flow = self._opened(self, frame)
            if flow is None:
                self.send(wire.Closed(frame.flow))
        elif isinstance(frame, wire.Close):
            closed = self.flows.get(frame.flow)
            if closed is not None:
                closed.end()
        elif isinstance(frame, wire.Ping):
            self.send(wire.Pong(frame.number))
        elif isinstance(frame, wire.Bye):
            self.broken(ServiceUnreachable(f"The publisher {self.publisher} stops: {frame.why[:100]}."))

    def _put(self, frame: wire.Updates | wire.Compressed | wire.Token | wire.DataLoss, size: int) -> None:
        flow = self.flows.get(frame.flow)
        if flow is not None:  # otherwise it ended here while this was on its way
            flow.put(frame, size)

    def shard_of(self, frame: wire.Open) -> Shard:
        return Shard(self.dataset, frame.shard)


def new_nonce() -> bytes:
    return secrets.token_bytes(wire.NONCE_BYTES)
