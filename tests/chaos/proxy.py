"""A TCP proxy between clients and the gateway: the place where a port is closed, and a client becomes slow."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress


class Proxy:
    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._port = 0
        self._pairs: dict[asyncio.Task[None], asyncio.Event] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """The port is closed, and every connection through it is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._pairs):
            task.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def close_for(self, seconds: float) -> None:
        await self.close()
        await asyncio.sleep(seconds)
        await self.open()

    async def stall_for(self, seconds: float) -> None:
        """Some client takes nothing for a while."""
        if self._pairs:
            flowing = random.choice(list(self._pairs.values()))
            flowing.clear()
            await asyncio.sleep(seconds)
            flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flowing = asyncio.Event()
        flowing.set()
        task = asyncio.current_task()
        assert task is not None
        self._pairs[task] = flowing
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            self._pairs.pop(task, None)
            return
        ways = [
            asyncio.ensure_future(_carry(reader, there_writer, None)),
            asyncio.ensure_future(_carry(there_reader, writer, flowing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for one in (writer, there_writer):
                one.transport.abort()
            self._pairs.pop(task, None)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event | None) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            if flowing is not None:
                await flowing.wait()
            writer.write(data)
            await writer.drain()
