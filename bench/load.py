"""Publishing as a load: lean HTTP on kept connections, at a steady pace or as fast as it is answered.

A publish counts from the moment at which it was due, not from when a connection was free: a service that falls behind cannot
hide it. Versions are the running number of the publish, objects take turns, so a version alone tells which publish it was.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Self, cast

from bench.service import APPLICATION, BenchFailed
from roskva import Publisher
from roskva.errors import RoskvaError

_WAITING_MAX: Final = 2_000  # requests that are due and not answered: beyond, the step is given up
_TICK_S: Final = 0.001


class _Connection(asyncio.Protocol):
    """One HTTP connection; one request at a time."""

    def __init__(self, pool: Publishers) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._request: Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: Request) -> None:
        assert self._transport is not None
        self._request = request
        self._transport.write(request.data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        request, self._request = self._request, None
        assert request is not None
        accepted = head.startswith(b"HTTP/1.1 200 ") and b'"error"' not in rest
        self._pool.answered(self, request, accepted)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(self)
        if self._request is not None:
            self._pool.answered(None, self._request, False)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Request:
    __slots__ = ("answered", "count", "data", "due_s")

    def __init__(self, data: bytes, count: int, due_s: float, answered: Callable[[], None] | None = None) -> None:
        self.data = data
        self.count = count
        self.due_s = due_s
        self.answered = answered


class Publishers:
    """Connections that publish; requests wait for a free one."""

    def __init__(self, url: str, objects: Sequence[str], connections: int, application: str = APPLICATION) -> None:
        self._url = url
        self._application = application
        self._host = url.removeprefix("http://")
        self._head = f"POST /v1/publish HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\nContent-Length: ".encode()
        self._objects = objects
        self._wanted = connections
        self._free: deque[_Connection] = deque()  # in turns: one that is never used is closed by the gateway after some seconds
        self._all: list[_Connection] = []
        self._waiting: deque[Request] = deque()
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.open_requests = 0
        self.published_s = array("d", [0.0])  # when the publish of this version was due; versions begin at 1
        self.answers_ms = array("d")  # of requests, from due to answered
        self.accepted = 0
        self.refused = 0
        self.connections_lost = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        host, port = self._host.split(":")
        loop = asyncio.get_running_loop()
        for _ in range(self._wanted):
            _, connection = await loop.create_connection(lambda: _Connection(self), host, int(port))
            self._all.append(connection)
        self._free.extend(self._all)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        for connection in list(self._all):
            connection.close()

    def lost(self, connection: _Connection) -> None:
        """The gateway closed a connection: the others go on; what waited for its answer counts as refused."""
        self.connections_lost += not self._closed
        self._all.remove(connection)
        if connection in self._free:
            self._free.remove(connection)

    @property
    def last_version(self) -> int:
        return len(self.published_s) - 1

    def object_of(self, version: int) -> str:
        return self._objects[version % len(self._objects)]

    def latest(self) -> dict[str, int]:
        """The last version of every object that was published so far."""
        last = self.last_version
        return {self.object_of(version): version for version in range(max(1, last - len(self._objects) + 1), last + 1)}

    def publish(self, count: int, due_s: float, answered: Callable[[], None] | None = None) -> None:
        """Publish the next `count` versions in one request."""
        first = len(self.published_s)
        self.published_s.extend([due_s] * count)
        items = [f'{{"object":"{self.object_of(version)}","version":{version}}}' for version in range(first, first + count)]
        if count == 1:
            body = f'{{"application":"{self._application}",{items[0][1:]}'.encode()
        else:
            body = f'{{"application":"{self._application}","updates":[{",".join(items)}]}}'.encode()
        request = Request(b"%s%d\r\n\r\n%s" % (self._head, len(body), body), count, due_s, answered)
        if not self._all:
            raise BenchFailed("The gateway closed every connection of the publishers.")
        self.open_requests += 1
        self._idle.clear()
        if self._free:
            self._free.popleft().send(request)
        else:
            self._waiting.append(request)

    def answered(self, connection: _Connection | None, request: Request, accepted: bool) -> None:
        self.answers_ms.append((time.time() - request.due_s) * 1000)
        if accepted:
            self.accepted += request.count
        else:
            self.refused += request.count
        if connection is not None:
            if self._waiting:
                connection.send(self._waiting.popleft())
            else:
                self._free.append(connection)
        if request.answered is not None:
            request.answered()  # may publish again, and is then not idle
        self.open_requests -= 1
        if self.open_requests == 0:
            self._idle.set()

    async def paced(self, rate_per_s: float, seconds: float, batch: int = 1) -> bool:
        """Publish at a steady rate. False: given up, since too many requests were waiting."""
        began_s = time.time()
        total = round(rate_per_s * seconds / batch)
        done = 0
        while done < total:
            now_s = time.time()
            while done < total and (due_s := began_s + done * batch / rate_per_s) <= now_s:
                self.publish(batch, due_s)
                done += 1
            if self.open_requests > _WAITING_MAX:
                return False
            await asyncio.sleep(max(_TICK_S, began_s + done * batch / rate_per_s - time.time()))
        return True

    async def closed_loop(self, publishers: int, batch: int, seconds: float) -> None:
        """So many publishers, each of which waits for its answer and publishes again at once."""
        until_s = time.time() + seconds

        def again() -> None:
            now_s = time.time()
            if now_s < until_s:
                self.publish(batch, now_s, again)

        for _ in range(publishers):
            again()
        await self.drained(seconds + 30.0)

    async def drained(self, timeout_s: float) -> None:
        """Until every request is answered."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            raise BenchFailed(f"{self.open_requests:,} publish requests were not answered within {timeout_s:g} s.") from None


class CallingPublishers(Publishers):
    """The same, as a backend in Python publishes: a call of `roskva.Publisher.publish` for each update."""

    def __init__(self, url: str, objects: Sequence[str], application: str = APPLICATION) -> None:
        super().__init__(url, objects, 0, application)
        self._publisher: Publisher | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._publisher = Publisher(self._url, application=self._application, retry_for_s=0.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._publisher is not None
        await self._publisher.close()

    def publish(self, count: int, due_s: float, answered: Callable[[], None] | None = None) -> None:
        first = len(self.published_s)
        self.published_s.extend([due_s] * count)
        for version in range(first, first + count):
            self.open_requests += 1
            self._idle.clear()
            task = asyncio.get_running_loop().create_task(self._call(version, Request(b"", 1, due_s, answered)))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _call(self, version: int, request: Request) -> None:
        assert self._publisher is not None
        try:
            await self._publisher.publish(self.object_of(version), version)
        except RoskvaError:
            self.answered(None, request, False)
        else:
            self.answered(None, request, True)


async def until(true: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until it is true; whether it became so in time."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.02)
    return True
