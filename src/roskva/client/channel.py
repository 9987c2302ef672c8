"""One connection to a gateway: messages out, messages in, until it ends (docs/protocol.md, WebSocket channel).

A channel may drop messages: what does not fit the queue is dropped, and the core repeats what needs an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from roskva.errors import InvalidSetting, MalformedMessage, ServiceUnreachable
from roskva.protocol.messages import ServerMessage, decode_server

log = logging.getLogger(__name__)

CONNECT_S: Final = 15.0
CLOSE_S: Final = 2.0  # for the other side's half of the closing handshake
MESSAGE_BYTES_MAX: Final = 16 << 20
QUEUE_MAX: Final = 1_000


class WebSocketChannel:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[bytes | Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._hang_up = asyncio.Event()

    @classmethod
    async def connect(cls, http: aiohttp.ClientSession, url: str) -> WebSocketChannel:
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await http.ws_connect(
                    url, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S), max_msg_size=MESSAGE_BYTES_MAX, autoping=True
                )
        except TimeoutError:
            raise ServiceUnreachable(f"Nothing answered at {url} within {CONNECT_S:.0f} s.") from None
        except aiohttp.WSServerHandshakeError as error:
            raise ServiceUnreachable(f"{url} answered {error.status} {error.message}.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServiceUnreachable(f"{url} cannot be reached: {error}.") from None
        return cls(socket)

    def send(self, data: bytes) -> None:
        """Never blocks. Dropped if the other side has not taken what was sent before."""
        if self._queue.qsize() < QUEUE_MAX:
            self._queue.put_nowait(data)

    def first(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this before anything that is sent from now on."""
        self._queue.put_nowait(work)

    def hang_up(self) -> None:
        self._hang_up.set()

    async def drained(self) -> None:
        """Everything queued so far has been handed to the network."""
        await self._queue.join()

    async def run(self, received: Callable[[ServerMessage], None]) -> str:
        """Until either side hangs up; answers why it ended. Work that had to be done first is done in any case."""
        tasks = {
            asyncio.create_task(self._read(received), name="roskva-read"),
            asyncio.create_task(self._write(), name="roskva-write"),
            asyncio.create_task(self._hung_up(), name="roskva-hang-up"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (defect := task.exception()) is not None:
                    log.error("a connection ended by a defect of this library", exc_info=defect)
            reasons = [str(task.exception() or task.result()) for task in done]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()
        return reasons[0]

    async def _read(self, received: Callable[[ServerMessage], None]) -> str:
        async for frame in self._socket:
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                continue
            data = frame.data.encode() if isinstance(frame.data, str) else frame.data
            try:
                message = decode_server(data)
            except MalformedMessage as error:
                log.warning("a message of the service was ignored: %s", error)
                continue
            received(message)
        return f"closed by the service with {self._socket.close_code}"

    async def _write(self) -> str:
        while True:
            item = await self._queue.get()
            try:
                if isinstance(item, bytes):
                    await self._socket.send_frame(item, aiohttp.WSMsgType.TEXT)
                else:
                    await item()
            except (ConnectionError, aiohttp.ClientError) as error:
                return f"broken: {error}"
            finally:
                self._queue.task_done()

    async def _hung_up(self) -> str:
        await self._hang_up.wait()
        return "closed by this client"

    async def _close(self) -> None:
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if not isinstance(item, bytes):
                await item()
            self._queue.task_done()
        with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
            await asyncio.wait_for(self._socket.close(), CLOSE_S + 1.0)


def channel_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidSetting(f"{url!r} is not the address of a service: http://HOST:PORT is expected.")
    return f"{url.rstrip('/')}/v1/channel"
