"""Client connections that are fetched over HTTP: by long polls, or as server-sent events (docs/protocol.md, Channels).

A connection is an object here and not a socket: messages wait in it until somebody fetches them. One reader at a time: a newer poll
or stream sends the older away. The same limits as on a WebSocket: once `send_buffer_bytes_max` bytes wait further messages are
dropped, and if nobody fetches them within SLOW_S the connection is closed. Without a reader for IDLE_S it is closed, and its client
counts as disconnected. No task and no timer of its own: the port's sweeper wakes the readers whose time is over.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final, TypeVar

from roskva.errors import ChannelClosed
from roskva.gateway.admission import Noted

if TYPE_CHECKING:
    from aiohttp import web

    from roskva.gateway.server import Port

WAIT_S: Final = 50.0  # for a message; below the 60 s after which nginx gives an answer up (its default proxy_read_timeout)
IDLE_S: Final = 30.0  # without a reader
CLOSED_S: Final = 10.0  # for which a closed connection is remembered, to tell its client why

T = TypeVar("T")


class PolledConnection(Noted):
    """A client's connection, fetched by requests that name it by its unguessable id."""

    __slots__ = (
        "_deadline_s",
        "_note",
        "_port",
        "_queue",
        "_queued_bytes",
        "_reader",
        "_request",
        "address",
        "closed_with",
        "id",
        "malformed",
        "number",
        "owner",
        "party",
        "token",
    )

    def __init__(self, port: Port, address: str, origin: str) -> None:
        self._port = port
        self.address = address
        self.party = port.admission.party(origin)
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._request: web.BaseRequest | None = None  # of the reader
        self._reader: asyncio.Future[None] | None = None  # while it waits
        self._deadline_s = 0.0  # of its wait
        self.id = f"{port.member}.{secrets.token_urlsafe(18)}"
        self.closed_with = ""  # the name of the reason
        self.number = 0
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self._note: object | None = None

    def send(self, data: bytes) -> None:
        if self.closed_with:
            return
        if self._queued_bytes > self._port.send_buffer_bytes_max:
            self._port.paused.setdefault(self, time.monotonic())
            self._port.metrics.messages_dropped += 1
            return
        self._port.metrics.messages_sent += 1
        self._queued_bytes += len(data)
        self._queue.append(data)
        if self._reader is not None:
            self._wake()

    def close(self, code: str) -> None:
        """What waits can still be fetched; whoever comes after that is told the reason."""
        if not self.closed_with:
            self.closed_with = code
            self._port.polls.left(self)
            self._wake()

    def abort(self) -> None:
        """At once: what waits is thrown away, and a stream that does not take it is cut off."""
        self._queue, self._queued_bytes = [], 0
        if self._request is not None and self._request.transport is not None:
            self._request.transport.abort()
        self.close("slow-consumer")

    def take(self) -> list[bytes]:
        """Everything that waits, for the reader to send."""
        taken, self._queue, self._queued_bytes = self._queue, [], 0
        self._port.paused.pop(self, None)
        return taken

    def begin_reading(self, request: web.BaseRequest) -> None:
        self._request = request
        self._wake()  # an older one is not the reader any more
        self._port.polls.attended(self)

    def is_read_by(self, request: web.BaseRequest) -> bool:
        """Whether this is still the reader, with somebody at its other end. Else what waits is for the next one."""
        return self._request is request and request.transport is not None and not request.transport.is_closing()

    def end_reading(self, request: web.BaseRequest) -> None:
        if self._request is request:
            self._request = None
            self._port.polls.unattended(self)

    async def something(self, wait_s: float) -> None:
        """Wait for a message, for the end of the connection, for another reader, or so long."""
        if self._queue or self.closed_with:
            return
        self._deadline_s = time.monotonic() + wait_s
        reader = self._reader = asyncio.get_running_loop().create_future()
        try:
            await reader
        finally:
            if self._reader is reader:
                self._reader = None

    def look(self, now_s: float) -> None:
        """Once a second: send a waiting reader away whose time is over, or whose peer hung up."""
        if self._reader is not None and (now_s >= self._deadline_s or self._request is None or self._request.transport is None):
            self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)


def holder_of(identity: str) -> str:
    """The gateway, by its member id, that a polled connection was opened at."""
    return identity.partition(".")[0]


class Polls:
    """The polled connections of a port, by id; which of them have a reader, and since when the others have none."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._by_id: dict[str, PolledConnection] = {}
        self._attended: set[PolledConnection] = set()
        self._unattended: dict[PolledConnection, float] = {}  # in the order of their times
        self.closed: dict[PolledConnection, float] = {}  # whose clients were not told yet

    def open(self, address: str, origin: str) -> PolledConnection:
        self._port.check_room(address)
        connection = PolledConnection(self._port, address, origin)
        self._port.admission.count(address)
        self._by_id[connection.id] = connection
        self.unattended(connection)
        self._port.opened(connection)
        return connection

    def named(self, identity: str) -> PolledConnection:
        connection = self._by_id.get(identity)
        if connection is None:
            raise ChannelClosed("it is not known here, or was closed a while ago")
        return connection

    def attended(self, connection: PolledConnection) -> None:
        self._unattended.pop(connection, None)
        self._attended.add(connection)

    def unattended(self, connection: PolledConnection) -> None:
        self._attended.discard(connection)
        if not connection.closed_with:
            self._unattended[connection] = time.monotonic()

    def left(self, connection: PolledConnection) -> None:
        """It is closed: offline from now on, and remembered for a moment, to tell its client."""
        self._unattended.pop(connection, None)
        self.closed[connection] = time.monotonic()
        self._port.closed(connection)

    def forget(self, connection: PolledConnection) -> None:
        self.closed.pop(connection, None)
        self._by_id.pop(connection.id, None)

    def sweep(self, now_s: float) -> None:
        for connection in list(self._attended):
            connection.look(now_s)
        for connection in older(self.closed, now_s - CLOSED_S):
            self.forget(connection)
        for connection in older(self._unattended, now_s - IDLE_S):
            connection.close("idle")


def older(since: dict[T, float], limit_s: float) -> list[T]:
    """Those that are in it since before the limit.

    Times only grow in the order of insertion, so the first young one ends it.
    """
    old: list[T] = []
    for item, time_s in since.items():
        if time_s > limit_s:
            break
        old.append(item)
    return old
