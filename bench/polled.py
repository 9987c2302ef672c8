"""Lean clients by long poll: what LeanClient is over a WebSocket, over two kept HTTP connections, one that asks and one that says.

The same messages, the same arrays of what was heard; only the way differs. HTTP is written and read by hand, as in load.py, so that what is
compared is the gateway's part.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from picows import WSFrame, WSMsgType, WSTransport

from bench.clients import LeanClient

_MESSAGES_MAX: Final = 100  # of one request
_OPEN_S: Final = 30.0

Answered = Callable[[int, bytes], None]


class HttpConnection(asyncio.Protocol):
    """One request at a time over a kept connection."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._answered: Answered | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def busy(self) -> bool:
        return self._answered is not None

    def ask(self, request: bytes, answered: Answered) -> None:
        assert self._transport is not None
        self._answered = answered
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        status = int(head[9:12])
        length = 0 if status == 204 else int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        answered, self._answered = self._answered, None
        assert answered is not None
        answered(status, rest[:length])

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Line:
    """A message of a body, in the place of a WebSocket's frame."""

    __slots__ = ("_data", "msg_type")

    def __init__(self, data: bytes) -> None:
        self.msg_type = WSMsgType.TEXT
        self._data = data

    def get_payload_as_memoryview(self) -> memoryview:
        return memoryview(self._data)


class _Way:
    """In the place of a WebSocket's transport: polls without a pause, and says what there is to say when the last was taken."""

    def __init__(self, client: PolledClient, host: str) -> None:
        self._client = client
        self._host = host
        self._asking = HttpConnection(self._end)
        self._saying = HttpConnection(self._end)
        self._to_say: deque[bytes] = deque()
        self._path = ""
        self._ended = False

    async def open(self) -> None:
        host, port = self._host.split(":")
        loop = asyncio.get_running_loop()
        for connection in (self._asking, self._saying):
            await loop.create_connection(lambda connection=connection: connection, host, int(port))  # type: ignore[misc]
        opened: asyncio.Future[bytes] = loop.create_future()

        def answered(status: int, body: bytes) -> None:
            if not opened.done():
                opened.set_result(body)

        self._saying.ask(self._request("POST", "/v1/channels"), answered)
        async with asyncio.timeout(_OPEN_S):
            self._path = f"/v1/channels/{json.loads(await opened)['id']}"
        self._poll()

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        length = f"Content-Length: {len(body)}\r\n" if method != "GET" else ""
        return f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n{length}\r\n".encode() + body

    def _poll(self) -> None:
        self._asking.ask(self._request("GET", self._path), self._heard)

    def _heard(self, status: int, body: bytes) -> None:
        if status not in (200, 204):
            self._end()
            return
        self._poll()  # first: what comes meanwhile finds it there
        for line in body.split(b"\n"):
            if line:
                self._client.on_ws_frame(cast(WSTransport, self), cast(WSFrame, _Line(line)))

    def send(self, kind: object, data: bytes) -> None:
        self._to_say.append(data)
        if not self._saying.busy:
            self._say()

    def _say(self) -> None:
        messages = [self._to_say.popleft() for _ in range(min(_MESSAGES_MAX, len(self._to_say)))]
        self._saying.ask(self._request("POST", self._path, b"\n".join(messages)), self._said)

    def _said(self, status: int, body: bytes) -> None:
        if status != 204:
            self._end()
        elif self._to_say:
            self._say()

    def disconnect(self, graceful: bool = True) -> None:
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._asking.close()
            self._saying.close()
            self._client.on_ws_disconnected(cast(WSTransport, self))


class PolledClient(LeanClient):
    """A lean client over long polls."""

    __slots__ = ()

    async def _open(self, url: str) -> None:
        way = _Way(self, url)
        await way.open()
        self.on_ws_connected(cast(WSTransport, way))

    @staticmethod
    def address(url: str) -> str:
        return url.removeprefix("http://")
