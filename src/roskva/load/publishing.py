"""Publishes as a load: POST /v1/publish over kept connections, lean, since they share the machine with what they measure.

The version of an update is the moment at which it was due, in microseconds since 1970 (as in Thialfi 6.2), so whoever hears of it knows how
long it took, in any process; a service that falls behind cannot hide it. Updates go at once, and together if they are due together, or
while all connections wait for answers: as roskva.Publisher sends them. Nothing is tried again: what is refused is counted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from roskva.load.measuring import Counts, Latencies
from roskva.load.plan import Plan

_WAITING_MAX: Final = 1_000  # full requests of updates that are due and not answered: beyond, updates are skipped and counted
_AGAIN_S: Final = 0.5
_ANSWER_BYTES_MAX: Final = 16 << 20


class _Result(msgspec.Struct):
    ok: bool = False


class _Answer(msgspec.Struct):
    results: list[_Result] = []


class _Update(NamedTuple):
    object: int
    version: int
    due_us: int


_Request = Sequence[_Update]


class _Connection(asyncio.Protocol):
    """One HTTP connection; one request at a time."""

    def __init__(self, pool: Publishing) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._request: _Request | None = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: _Request, data: bytes) -> None:
        assert self._transport is not None
        self._request = request
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        digits = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
        if (found and not digits.isdigit()) or len(self._buffer) > _ANSWER_BYTES_MAX:
            self.close()  # not an answer of the service
            return
        if not found or len(rest) < int(digits):
            return
        body, self._buffer = rest[: int(digits)], rest[int(digits) :]
        request, self._request = self._request, None
        if request is not None:
            self._pool.answered(self, request, head.startswith(b"HTTP/1.1 200"), body)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.gone(self, self._request)
        if not self.lost.done():
            self.lost.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Publishing:
    """Connections that publish; updates wait for a free one. `accepted` is told object and version of whatever is durable."""

    def __init__(self, plan: Plan, url: str, key: str, counts: Counts, accepted: Callable[[int, int], None]) -> None:
        parts = urlsplit(url)
        self._plan = plan
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        shown = f"Authorization: Bearer {key}\r\n" if key else ""
        self._head = f"POST /v1/publish HTTP/1.1\r\nHost: {parts.netloc}\r\n{shown}Content-Type: application/json\r\nContent-Length: "
        self._counts = counts
        self._accepted = accepted
        self._free: list[_Connection] = []
        self._waiting: deque[_Update] = deque()
        self._last_version = 0
        self.unanswered = 0  # updates, those that wait included
        self.answers = Latencies()

    async def stay(self) -> None:
        """One connection, made again whenever it breaks."""
        loop = asyncio.get_running_loop()
        while True:
            connection: _Connection | None = None
            try:
                _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port, ssl=self._tls)
                self._next(connection)
                await connection.lost
            except OSError:
                pass  # the lines tell of it
            finally:
                if connection is not None:
                    connection.close()
            await asyncio.sleep(_AGAIN_S)

    def publish(self, number: int, due_us: int) -> None:
        """A new version of this object; `flush` sends it."""
        if self.unanswered >= _WAITING_MAX * self._plan.batch:
            self._counts.publish_skipped += 1
            return
        version = max(due_us, self._last_version + 1)  # of one object each must be above the last; several may be due at once
        self._last_version = version
        self.unanswered += 1
        self._waiting.append(_Update(number, version, due_us))

    def flush(self) -> None:
        while self._free and self._waiting:
            self._next(self._free.pop())

    def _next(self, connection: _Connection) -> None:
        if not self._waiting:
            self._free.append(connection)
            return
        request = [self._waiting.popleft() for _ in range(min(self._plan.batch, len(self._waiting)))]
        named = [f'{{"object":"{self._plan.name(one.object)}","version":{one.version}}}' for one in request]
        body = f'{{"application":"{self._plan.application}","updates":[{",".join(named)}]}}'.encode()
        connection.send(request, f"{self._head}{len(body)}\r\n\r\n".encode() + body)

    def answered(self, connection: _Connection, request: _Request, ok: bool, body: bytes) -> None:
        self.unanswered -= len(request)
        now_us = time.time_ns() // 1000
        results = [True] * len(request) if ok and b'"error"' not in body else _results(body, len(request))
        for update, accepted in zip(request, results, strict=True):
            self.answers.note(now_us - update.due_us)
            if accepted:
                self._counts.published += 1
                self._accepted(update.object, update.version)
            else:
                self._counts.publish_refused += 1
        self._next(connection)

    def gone(self, connection: _Connection, request: _Request | None) -> None:
        if connection in self._free:
            self._free.remove(connection)
        if request is not None:
            self.unanswered -= len(request)
            self._counts.publish_lost += len(request)

    def give_up(self) -> None:
        """Nobody waits any longer for those that could not even be sent."""
        self._counts.publish_skipped += len(self._waiting)
        self.unanswered -= len(self._waiting)
        self._waiting.clear()


def _results(body: bytes, count: int) -> list[bool]:
    try:
        results = msgspec.json.decode(body, type=_Answer).results
    except (msgspec.DecodeError, UnicodeDecodeError):
        results = []
    return [one.ok for one in results] if len(results) == count else [False] * count
