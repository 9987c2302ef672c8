"""A connection over a WebSocket (docs/protocol.md, WebSocket)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import aiohttp

from roskva.client.channels.link import CLOSE_S, CONNECT_S, MESSAGE_BYTES_MAX, Link, Received, answered, not_connected

PING_S: Final = 10.0
PINGS_MAX: Final = 2  # unanswered ones, on a connection on which nothing was ever said


class WebSocketLink(Link):
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self._socket = socket

    @classmethod
    async def connect(cls, http: aiohttp.ClientSession, service: str) -> WebSocketLink:
        url = f"{service}/v1/channel"
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await http.ws_connect(
                    url, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S), max_msg_size=MESSAGE_BYTES_MAX, autoping=False
                )
        except aiohttp.WSServerHandshakeError as error:
            raise answered(url, error.status, error.message) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise not_connected(url, error) from None
        return cls(socket)

    async def _read(self, received: Received) -> str:
        pings = 0
        while True:
            try:
                frame = await self._socket.receive(None if self.heard or pings > PINGS_MAX else PING_S)
            except TimeoutError:  # silent from the start: is there a way at all?
                pings += 1
                if pings > PINGS_MAX:
                    self.cut = True
                    return f"not answered: {PINGS_MAX} pings within {PING_S * pings:.0f} s"
                await self._socket.ping()
                continue
            if frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                self._decoded(frame.data.encode() if isinstance(frame.data, str) else frame.data, received)
            elif frame.type == aiohttp.WSMsgType.PING:
                await self._socket.pong(frame.data)
            elif frame.type == aiohttp.WSMsgType.PONG:
                pings = PINGS_MAX + 1  # there is: its gateway may take its time
            else:
                self.cut = frame.type != aiohttp.WSMsgType.CLOSE
                return f"closed by the service with {self._socket.close_code}"

    async def _put(self, messages: list[bytes]) -> None:
        for data in messages:
            await self._socket.send_frame(data, aiohttp.WSMsgType.TEXT)

    async def _shut(self) -> None:
        with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
            await asyncio.wait_for(self._socket.close(), CLOSE_S + 1.0)
