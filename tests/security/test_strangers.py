"""Connections without a session: they end, whatever was said over them, count for no application, and take little memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
import pytest

from roskva.client.choice import LONG_POLL, WEBSOCKET
from roskva.client.shell import Client
from roskva.config import ApplicationSettings
from roskva.gateway import server
from roskva.gateway.service import Gateway
from roskva.gateway.unfinished import FREE_BYTES, Unfinished
from roskva.keys import bearer, load_keys
from tests.gateway.conftest import Start
from tests.gateway.talking import UPGRADE, Raw, channel_url, close_of, frame, handshake, hear_until, say
from tests.gateway.test_channels import QUICK_CLIENT
from tests.gateway.test_links import both, owner_of
from tests.security.conftest import connect_from

JUST_BELOW_S = server.SILENT_S - 5
ABOVE_S = server.SILENT_S + 1


async def until(fact: Callable[[], object], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not fact():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "said",
    [
        {"token": "x"},
        {"init": {"nonce": "n", "application": "nobody", "device": "d"}},
        {"init": {"nonce": "n", "application": "demo", "device": "d"}},  # granted, and never used
    ],
    ids=["a token of nobody", "a refused init", "a grant"],
)
async def test_whatever_it_says_a_connection_without_a_session_ends(gateway: Gateway, http: aiohttp.ClientSession, said: object) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        await socket.send_json(said)
        await hear_until(socket, "time_ms")
        gateway.port.sweep(time.monotonic() + JUST_BELOW_S)
        await socket.send_json(said)  # more of it does not help
        await hear_until(socket, "time_ms")
        gateway.port.sweep(time.monotonic() + ABOVE_S)
        assert await close_of(socket) == (1008, "silent")
        await until(lambda: not gateway.router.connections)


async def test_with_a_session_it_stays_and_it_ends_when_the_session_does(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        await say(socket, token=token)
        await hear_until(socket, "summary")
        assert gateway.port.admission.connections_of("demo") == 1
        gateway.port.sweep(time.monotonic() + 100 * ABOVE_S)
        await say(socket, token=token)
        await hear_until(socket, "summary")
        (session,) = gateway.registrar.sessions.values()
        gateway.registrar.dismiss(session, "superseded", keep=True)
        assert gateway.port.admission.connections_of("demo") == 0
        gateway.port.sweep(time.monotonic() + JUST_BELOW_S)
        assert gateway.router.connections
        gateway.port.sweep(time.monotonic() + ABOVE_S)
        assert await close_of(socket) == (1008, "silent")


@pytest.mark.parametrize("channel", [WEBSOCKET, LONG_POLL])
async def test_a_client_that_wants_nothing_is_no_stranger(gateway: Gateway, channel: str) -> None:
    async with Client(gateway.url, application="demo", channel=channel, config=QUICK_CLIENT):
        await until(lambda: gateway.registrar.sessions and not gateway.port.admission.strangers)
        assert len(gateway.router.connections) == 1


async def test_a_session_at_another_gateway_counts_and_its_end_too(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    async with http.ws_connect(channel_url(one)) as socket:
        token = await handshake(socket)
        assert owner_of(one, token) == one.member_id
        async with http.ws_connect(channel_url(two)) as elsewhere:
            await say(elsewhere, token="x")
            await hear_until(elsewhere, "start_anew")
            await say(elsewhere, init={"nonce": "n", "application": "nobody", "device": "d", "prior": token})
            await hear_until(elsewhere, "error")  # by the other gateway
            assert len(two.port.admission.strangers) == 1
            token = await handshake(elsewhere, prior=token)
            await say(elsewhere, token=token)
            await hear_until(elsewhere, "summary")
            await until(lambda: not two.port.admission.strangers)
            assert two.port.admission.connections_of("demo") == 1
            two.port.sweep(time.monotonic() + ABOVE_S)
            assert two.router.connections
            (session,) = one.registrar.sessions.values()
            one.registrar.dismiss(session, "superseded", keep=True)
            await until(lambda: two.port.admission.strangers)
            assert two.port.admission.connections_of("demo") == 0
            two.port.sweep(time.monotonic() + ABOVE_S)
            assert await close_of(elsewhere) == (1008, "silent")


async def test_clients_of_a_trusted_line_are_no_strangers(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(load_keys(gateway.settings.data).trusted)) as line:
        await line.send_str('1 {"init":{"nonce":"n","application":"demo","device":"d"}}')
        async with asyncio.timeout(5):
            assert '"grant"' in await line.receive_str()
        gateway.port.sweep(time.monotonic() + ABOVE_S)
        assert gateway.port.by_channel["attached"] == len(gateway.router.connections) == 1


async def test_strangers_do_not_fill_an_application(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"demo": ApplicationSettings(connections_max=1)})
    init = {"nonce": "n", "application": "demo", "device": "d"}
    strangers = [await http.ws_connect(channel_url(gateway)) for _ in range(3)]
    for socket in strangers:
        await say(socket, init=init)
        await hear_until(socket, "grant")
    async with http.ws_connect(channel_url(gateway)) as good, http.ws_connect(channel_url(gateway)) as late:
        await say(good, token=await handshake(good, "good"))
        await hear_until(good, "summary")
        await say(late, init=init)
        assert await close_of(late) == (1013, "too-many-connections")
    for socket in strangers:
        await socket.close()


async def hold(gateway: Gateway, count: int, size: int, start: bytes) -> list[Raw]:
    raws = []
    for _ in range(count):
        raw = await connect_from(gateway)
        await raw.send(UPGRADE)
        await raw.read_head()
        await raw.send(start + b"x" * size)
        raws.append(raw)
    return raws


@pytest.mark.parametrize(
    "start_of_message",
    [
        b"\x81\xff" + (1 << 20).to_bytes(8, "big") + b"\0\0\0\0",
        frame(1, b"x" * 100, fin=False) + b"\x80\xff" + (900_000).to_bytes(8, "big") + b"\0\0\0\0",
    ],
    ids=["a frame", "a fragment"],
)
async def test_unfinished_messages_share_a_room(gateway: Gateway, start_of_message: bytes) -> None:
    unfinished = gateway.port.admission.unfinished = Unfinished(gateway.metrics, bytes_max=4 << 20)
    raws = await hold(gateway, 10, 800_000, start_of_message)
    await until(lambda: gateway.metrics.limited_messages >= 6)
    await until(lambda: unfinished.bytes <= 4 << 20)
    assert b"overloaded" in await raws[0].read_to_end()
    for raw in raws:
        await raw.close()
    await until(lambda: not gateway.router.connections)
    assert (unfinished.bytes, len(unfinished)) == (0, 0)


async def test_large_messages_of_strangers_count_until_a_session_speaks(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    unfinished = gateway.port.admission.unfinished
    async with http.ws_connect(channel_url(gateway)) as socket:
        await socket.send_str('{"token":"x"' + " " * 500_000 + "}")
        await hear_until(socket, "start_anew")
        assert unfinished.bytes > FREE_BYTES  # picows keeps its buffer
        token = await handshake(socket)
        await say(socket, token=token)
        await hear_until(socket, "summary")
        assert unfinished.bytes == 0
        await socket.send_str('{"token":"' + token + '"' + " " * 500_000 + "}")
        await hear_until(socket, "summary")
        assert unfinished.bytes == 0


async def test_unfinished_messages_on_a_connection_that_was_used_before(gateway: Gateway) -> None:
    unfinished = gateway.port.admission.unfinished
    raw = await connect_from(gateway)
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    await raw.read_head()
    await raw.reader.readexactly(len(b'{"alive":true}'))
    await raw.send(UPGRADE)
    await raw.read_head()
    await raw.send(b"\x81\xff" + (1_000_000).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 600_000)
    await until(lambda: unfinished.bytes >= 1 << 19)
    await raw.close()
    await until(lambda: unfinished.bytes == 0)


async def test_unfinished_bodies_of_polled_connections_count(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    unfinished = gateway.port.admission.unfinished = Unfinished(gateway.metrics, bytes_max=1 << 20)
    raws = []
    for _ in range(3):
        async with http.post(gateway.url + "/v1/channels") as answer:
            path = "/v1/channels/" + (await answer.json())["id"]
        raw = await connect_from(gateway)
        await raw.send(f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n".encode() + b"x" * 500_000)
        raws.append(raw)
    await until(lambda: gateway.metrics.limited_messages >= 1)
    assert await raws[0].read_to_end() == b""
    for raw in raws:
        await raw.close()
    await until(lambda: unfinished.bytes == 0)
