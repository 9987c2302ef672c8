"""A client's end of the wire, by hand: what a test sends is exactly what it says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import aiohttp

from roskva.gateway.service import Gateway

WAIT_S = 10.0


def channel_url(gateway: Gateway) -> str:
    return gateway.url.replace("http", "ws", 1) + "/v1/channel"


async def say(socket: aiohttp.ClientWebSocketResponse, **message: Any) -> None:
    await socket.send_str(json.dumps(message))


async def hear(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """The next message."""
    async with asyncio.timeout(WAIT_S):
        message = await socket.receive()
    assert message.type == aiohttp.WSMsgType.TEXT, f"{message.type.name} {message.data} {message.extra}"
    answer: dict[str, Any] = json.loads(message.data)
    return answer


async def hear_until(socket: aiohttp.ClientWebSocketResponse, field: str) -> dict[str, Any]:
    """The next message that has this field."""
    async with asyncio.timeout(WAIT_S):
        while field not in (answer := await hear(socket)):
            pass
    return answer


async def close_of(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, str]:
    """The code and reason with which the gateway closes, after whatever it still says."""
    async with asyncio.timeout(WAIT_S):
        while True:
            message = await socket.receive()
            if message.type == aiohttp.WSMsgType.CLOSE:
                return message.data, message.extra or ""
            if message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.ERROR):
                return socket.close_code, ""


async def handshake(socket: aiohttp.ClientWebSocketResponse, device: str = "device", prior: str | None = None) -> str:
    """A token, by a handshake of application demo."""
    init = {"nonce": "nonce-" + device, "application": "demo", "device": device}
    await say(socket, init=init if prior is None else init | {"prior": prior})
    answer = await hear_until(socket, "grant")
    assert answer["grant"]["nonce"] == init["nonce"]
    token: str = answer["grant"]["token"]
    return token


class Raw:
    """A TCP connection without any protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, gateway: Gateway) -> Raw:
        host, port = gateway.url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_to_end(self) -> bytes:
        """What comes until the other side hangs up, however rudely."""
        found = b""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(1 << 16):
                    found += piece
        return found

    async def read_head(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


UPGRADE = (
    b"GET /v1/channel HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(opcode: int, payload: bytes, fin: bool = True, mask: bool = True, rsv1: bool = False) -> bytes:
    """A WebSocket frame of a client; its mask is zero, so that the payload can be read in a dump."""
    head = bytes([opcode | (0x80 if fin else 0) | (0x40 if rsv1 else 0)])
    bit = 0x80 if mask else 0
    if len(payload) < 126:
        head += bytes([bit | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([bit | 126]) + len(payload).to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + len(payload).to_bytes(8, "big")
    return head + (b"\0\0\0\0" if mask else b"") + payload
