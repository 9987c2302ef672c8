"""Many clients over one connection to a gateway, which knows this program by a key (docs/protocol.md, The trusted channel)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from types import TracebackType
from typing import Final, Self
from weakref import WeakValueDictionary

import aiohttp

from roskva.client.channels.link import CLOSE_S, CONNECT_S, MESSAGE_BYTES_MAX
from roskva.client.limits import connect_pause_s
from roskva.protocol.channel import Channel
from roskva.protocol.messages import Config

log = logging.getLogger(__name__)

QUEUE_MAX: Final = 100_000  # messages of all clients


class _Numbered(Channel):
    """The client's end of one client's channel."""

    def __init__(self, line: TrustedLine, number: int) -> None:
        self._line = line
        self._number = number

    def send(self, data: bytes) -> None:
        self._line.put(b"%d %b" % (self._number, data))

    def ended(self) -> None:
        self._line.put(b"%d" % self._number)


class TrustedLine:
    """`async with TrustedLine(url, key) as line`, and then any number of `Client(application=..., channel=line.channel())`.

    `key` is `trusted` of the service's keys.json. If the connection breaks it is made again, and all clients speak again.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = f"{url.rstrip('/')}/v1/trusted"
        self._key = key
        self._channels: WeakValueDictionary[int, _Numbered] = WeakValueDictionary()
        self._last = 0
        self._queue: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.connected = False

    def channel(self) -> Channel:
        """The channel of one more client."""
        self._last += 1
        channel = self._channels[self._last] = _Numbered(self, self._last)
        return channel

    def put(self, frame: bytes) -> None:
        """For the channels: send this, or drop it if there is no connection."""
        if self.connected and len(self._queue) < QUEUE_MAX:
            self._queue.append(frame)
            self._ready.set()

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._stay_connected(), name="roskva-trusted")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _stay_connected(self) -> None:
        failures = 0
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                try:
                    async with asyncio.timeout(CONNECT_S):
                        socket = await http.ws_connect(
                            self._url,
                            headers={"Authorization": f"Bearer {self._key}"},
                            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                            max_msg_size=MESSAGE_BYTES_MAX,
                        )
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    if not failures:
                        log.warning("%s cannot be used: %s. The line keeps trying.", self._url, error)
                    failures += 1
                else:
                    failures = 0
                    await self._carry(socket)
                await asyncio.sleep(connect_pause_s(Config(), failures, random.random()))

    async def _carry(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.connected = True
        writing = asyncio.create_task(self._write(socket), name="roskva-trusted-write")
        for channel in list(self._channels.values()):
            channel.interrupted()  # what was sent before is lost
        try:
            async for frame in socket:
                if frame.type == aiohttp.WSMsgType.TEXT:
                    self._received(frame.data.encode())
            log.info("the connection to %s ended with %s", self._url, socket.close_code)
        finally:
            self.connected = False
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            self._queue.clear()
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.wait_for(socket.close(), CLOSE_S + 1.0)

    def _received(self, frame: bytes) -> None:
        digits, _, data = frame.partition(b" ")
        channel = self._channels.get(int(digits)) if digits.isdigit() and len(digits) < 20 else None
        if channel is not None:
            channel.received(data)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            if not self._queue:
                self._ready.clear()
                await self._ready.wait()
            else:
                with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # the reader notices
                    await socket.send_frame(self._queue.popleft(), aiohttp.WSMsgType.TEXT)
