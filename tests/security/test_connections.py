"""Connections that only take: they are refused or end by themselves, are counted, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from roskva.gateway import http as http_module
from roskva.gateway import server, service
from roskva.gateway.service import Gateway
from roskva.gateway.websocket import HttpConnection
from tests.gateway.conftest import Start
from tests.gateway.talking import UPGRADE, Raw, channel_url, close_of, frame, handshake, hear_until, say
from tests.security.conftest import connect_from

ENOUGH = 60  # hostile connections at once


@contextlib.asynccontextmanager
async def served_meanwhile(gateway: Gateway, http: aiohttp.ClientSession) -> AsyncIterator[None]:
    """Another client handshakes, speaks and hears answers all the time, each within two seconds."""
    done = asyncio.Event()
    rounds = 0

    async def ask() -> None:
        nonlocal rounds
        async with http.ws_connect(channel_url(gateway)) as socket:
            token = await handshake(socket, "good")
            while not done.is_set():
                async with asyncio.timeout(2):
                    await say(socket, token=token)
                    await hear_until(socket, "token")
                async with asyncio.timeout(2), http.get(gateway.url + "/healthz") as answer:
                    assert answer.status == 200
                rounds += 1
                await asyncio.sleep(0.02)

    async def rounds_after(count: int) -> None:
        async with asyncio.timeout(10):
            while rounds <= count and not good.done():
                await asyncio.sleep(0.01)

    good = asyncio.create_task(ask())
    try:
        await rounds_after(0)
        before = rounds
        yield
        await rounds_after(before + 1)
    finally:
        done.set()
        async with asyncio.timeout(10):
            await good


async def dribble(raw: Raw, data: bytes, pause_s: float = 0.05) -> None:
    """A byte now and then, until the other side has enough."""
    with contextlib.suppress(ConnectionError):
        for place in range(len(data)):
            if raw.writer.transport.is_closing():
                return  # to write to it is no ConnectionError with uvloop
            await raw.send(data[place : place + 1])
            await asyncio.sleep(pause_s)


async def ended(raw: Raw, within_s: float) -> bytes:
    async with asyncio.timeout(within_s):
        try:
            return await raw.reader.read()
        except ConnectionError:
            return b""


async def test_slowloris_on_the_head(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    gateway.port.opening_s = 0.5
    async with served_meanwhile(gateway, http):
        raws = [await connect_from(gateway) for _ in range(ENOUGH)]
        dribbling = [asyncio.create_task(dribble(raw, b"GET /healthz HTTP/1.1\r\n" + b"X-Slow: y\r\n" * 100)) for raw in raws]
        for raw in raws:
            assert await ended(raw, 5) == b""
        await asyncio.gather(*dribbling)
    assert gateway.metrics.connections_refused == ENOUGH
    assert not gateway.port.openings
    assert not gateway.port.admission._of_address
    for raw in raws:
        await raw.close()


async def test_slowloris_on_the_body(gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BODY_S", 0.5)
    head = b"POST /v1/publish HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n"
    async with served_meanwhile(gateway, http):
        raws = [await connect_from(gateway) for _ in range(20)]
        for raw in raws:
            await raw.send(head)
        dribbling = [asyncio.create_task(dribble(raw, b"x" * 900, 0.1)) for raw in raws]
        for raw in raws:
            assert (await raw.read_head()).startswith(b"HTTP/1.1 400 ")
        assert gateway.intake.bytes_waiting == 0  # nothing is held for them any more
        for task in dribbling:
            task.cancel()
        for raw in raws:
            await raw.close()
    assert gateway.metrics.updates_accepted == 0


async def test_slowloris_on_the_second_head_of_a_kept_connection(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HTTP_IDLE_S", 1.0)
    gateway = await start()
    async with served_meanwhile(gateway, http):
        raws = [await connect_from(gateway) for _ in range(20)]
        for raw in raws:
            await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            await raw.read_head()
        dribbling = [asyncio.create_task(dribble(raw, b"GET /healthz HTTP/1.1\r\n" + b"X-Slow: y\r\n" * 100)) for raw in raws]
        for raw in raws:
            assert await ended(raw, 4) == b'{"alive":true}'
        await asyncio.gather(*dribbling)
    for raw in raws:
        await raw.close()
    async with asyncio.timeout(5):
        while gateway.port.admission._of_address:
            await asyncio.sleep(0.01)


async def test_idle_kept_connections_of_one_address_are_bounded(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_per_address_max=5)
    async with served_meanwhile(gateway, http):
        raws = [await connect_from(gateway) for _ in range(5)]
        for raw in raws:
            await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
        refused = await connect_from(gateway)
        answer = await ended(refused, 5)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 10\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too-many-connections"
        assert gateway.metrics.limited_connections_of_address == 1
        assert gateway.metrics.connections_refused == 1
        await raws.pop().close()
        async with asyncio.timeout(5):
            while not gateway.port.admission.has_room("127.0.0.2"):
                await asyncio.sleep(0.01)
        raws += [refused, again := await connect_from(gateway)]
        await again.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await again.read_head()).startswith(b"HTTP/1.1 200 ")
        for raw in raws:
            await raw.close()


async def test_websockets_of_one_address_are_bounded_and_counted_once(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_per_address_max=3)
    async with served_meanwhile(gateway, http):
        raws = [await connect_from(gateway) for _ in range(3)]
        for raw in raws:
            await raw.send(UPGRADE)
            assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
        assert gateway.port.admission._of_address == {"127.0.0.2": 3}
        refused = await connect_from(gateway)
        assert (await ended(refused, 5)).startswith(b"HTTP/1.1 503 ")
        broken = raws.pop()
        await broken.close()
        async with asyncio.timeout(5):
            while gateway.port.admission._of_address != {"127.0.0.2": 2}:
                await asyncio.sleep(0.01)
        bad = await connect_from(gateway)  # an upgrade that picows refuses is counted no longer than it lasts
        await bad.send(UPGRADE.replace(b"Version: 13", b"Version: 99"))
        assert (await ended(bad, 5)).startswith(b"HTTP/1.1 400 ")
        assert gateway.port.admission._of_address == {"127.0.0.2": 2}
        for raw in [*raws, refused, bad]:
            await raw.close()
    async with asyncio.timeout(5):
        while gateway.port.admission._of_address:
            await asyncio.sleep(0.01)


async def test_behind_a_proxy_the_address_that_it_adds_is_counted(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_per_address_max=2)  # 127.0.0.1 is a proxy, and has no limits itself
    async with contextlib.AsyncExitStack() as stack:
        theirs = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}
        for _ in range(2):
            await stack.enter_async_context(http.ws_connect(channel_url(gateway), headers=theirs))
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(channel_url(gateway), headers=theirs | {"X-Forwarded-For": "127.0.0.1, 203.0.113.7"})  # invented
        assert refused.value.status == 503
        async with http.post(gateway.url + "/v1/channels", headers=theirs) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "too-many-connections")
        raw = await Raw.connect(gateway)
        await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        await raw.read_head()
        await raw.send(UPGRADE.replace(b"Host: h\r\n", b"Host: h\r\nX-Forwarded-For: 203.0.113.7\r\n"))
        assert b" 503 " in await raw.read_head()
        await raw.close()
        assert gateway.metrics.limited_connections_of_address == 3
        other = {"X-Forwarded-For": "203.0.113.8"}
        socket = await stack.enter_async_context(http.ws_connect(channel_url(gateway), headers=other))
        assert await handshake(socket)
    async with asyncio.timeout(5):
        while gateway.port.admission._of_address:
            await asyncio.sleep(0.01)


async def test_polled_channels_of_one_address_are_bounded(
    start: Start, http: aiohttp.ClientSession, stranger: aiohttp.ClientSession
) -> None:
    gateway = await start(connections_per_address_max=4)
    async with served_meanwhile(gateway, http):
        opened = []
        for _ in range(8):
            async with stranger.post(gateway.url + "/v1/channels") as answer:
                if answer.status == 201:
                    opened.append((await answer.json())["id"])
                else:
                    assert (answer.status, (await answer.json())["error"]["code"]) == (503, "too-many-connections")
            await asyncio.sleep(0.02)
        assert 2 <= len(opened) <= 4
        assert gateway.metrics.limited_connections_of_address > 0
        for identity in opened:
            gateway.port.polls.named(identity).close("closed")
        async with asyncio.timeout(5):
            while gateway.port.admission._of_address:
                await asyncio.sleep(0.01)


async def test_more_connections_than_the_gateway_takes(start: Start) -> None:
    gateway = await start(connections_max=3)
    raws = [await Raw.connect(gateway) for _ in range(3)]
    async with asyncio.timeout(5):
        while not gateway.port.full():
            await asyncio.sleep(0.01)
    refused = await Raw.connect(gateway)
    answer = await ended(refused, 5)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"overloaded"' in answer
    assert gateway.metrics.limited_connections == 1
    for raw in [*raws, refused]:
        await raw.close()


async def test_a_websocket_that_never_says_anything_ends(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with served_meanwhile(gateway, http), http.ws_connect(channel_url(gateway)) as silent:
        await asyncio.sleep(0.1)
        for _ in range(3):
            await silent.ping()  # is no message
        gateway.port.sweep(time.monotonic() + server.SILENT_S + 1)
        assert await close_of(silent) == (1008, "silent")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity", "nonsense"])
async def test_packed_bodies_are_refused_before_anything_is_unpacked(
    gateway: Gateway, http: aiohttp.ClientSession, stranger: aiohttp.ClientSession, encoding: str
) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 60_000
    async with served_meanwhile(gateway, http):
        for path in ("/v1/publish", "/v1/invalidate", "/v1/channels"):
            async with stranger.post(gateway.url + path, data=bomb, headers={"Content-Encoding": encoding}) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (415, "encoding-refused")
    assert gateway.metrics.encodings_refused == 3
    assert gateway.metrics.publish_requests == 0
    body = json.dumps({"application": "demo", "object": "o", "version": 1})
    async with stranger.post(gateway.url + "/v1/publish", data=body, headers={"Content-Encoding": "identity"}) as answer:
        assert answer.status == 200


async def test_compression_is_never_agreed_on_and_compressed_frames_are_refused(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    offer = UPGRADE.replace(b"Host: h\r\n", b"Host: h\r\nSec-WebSocket-Extensions: permessage-deflate\r\n")
    async with served_meanwhile(gateway, http):
        for used_before in (False, True):
            raw = await connect_from(gateway)
            if used_before:
                await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                await raw.read_head()
                await raw.reader.readexactly(len(b'{"alive":true}'))
            await raw.send(offer)
            head = await raw.read_head()
            assert head.startswith(b"HTTP/1.1 101 ")
            assert b"extensions" not in head.lower()
            await raw.send(frame(1, b"\xaa\x56\x4a\x54\xb2\x52\x50\x4a\x02\x00", rsv1=True))
            async with asyncio.timeout(10):
                answer = await raw.reader.readexactly(4)
            assert (answer[0], int.from_bytes(answer[2:], "big")) == (0x88, 1002)
            await raw.close()


async def test_fragments_never_add_up_to_more_than_a_message_may_have(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(message_bytes_max=10_000)
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(UPGRADE)
        await raw.read_head()
        await raw.send(frame(1, b"x" * 4_000, fin=False) + frame(0, b"x" * 4_000, fin=False) + frame(0, b"x" * 4_000, fin=False))
        assert b"message-too-large" in await ended(raw, 10)
        await raw.close()


async def test_a_websocket_on_a_used_connection_counts_too(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_per_address_max=2)
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        await raw.read_head()
        await raw.reader.readexactly(len(b'{"alive":true}'))
        await raw.send(UPGRADE)
        assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
        assert any(type(connection) is HttpConnection for connection in gateway.router.connections.values())
        assert gateway.port.admission._of_address == {"127.0.0.2": 2}  # the connection, and its client
        await raw.close()
        async with asyncio.timeout(5):
            while gateway.port.admission._of_address:
                await asyncio.sleep(0.01)
