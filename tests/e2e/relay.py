"""A WebSocket relay that loses, repeats and delays whole messages on their way: what a channel may do, and TCP does not."""

from __future__ import annotations

import asyncio
import random
from typing import Self

import aiohttp
from aiohttp import web


class Relay:
    """Use with `async with`. Connections live on; only messages suffer."""

    def __init__(self, target: str, lost: float, repeated: float, delayed_max_s: float, seed: int) -> None:
        self._target = f"{target}/v1/channel"
        self._lost = lost
        self._repeated = repeated
        self._delayed_max_s = delayed_max_s
        self._chance = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.counts = {"passed": 0, "lost": 0, "repeated": 0}

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/v1/channel", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        near = web.WebSocketResponse(max_msg_size=0)
        await near.prepare(request)
        async with aiohttp.ClientSession() as http, http.ws_connect(self._target, max_msg_size=0) as far:
            ways = [asyncio.create_task(self._pass_on(near, far)), asyncio.create_task(self._pass_on(far, near))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                await near.close()
        return near

    async def _pass_on(
        self, one: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, other: web.WebSocketResponse | aiohttp.ClientWebSocketResponse
    ) -> None:
        async with asyncio.TaskGroup() as under_way:
            async for message in one:
                if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    continue
                data = message.data if isinstance(message.data, str) else message.data.decode()
                if self._chance.random() < self._lost:
                    self.counts["lost"] += 1
                    continue
                self.counts["passed"] += 1
                copies = 2 if self._chance.random() < self._repeated else 1
                self.counts["repeated"] += copies - 1
                for _ in range(copies):
                    under_way.create_task(self._send_later(other, data, self._chance.uniform(0, self._delayed_max_s)))

    @staticmethod
    async def _send_later(socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, data: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not socket.closed:
            await socket.send_str(data)
