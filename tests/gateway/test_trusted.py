"""Many clients over one connection of a trusted server (gateway/trusted.py, client/channels/trusted.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import AsyncExitStack

import aiohttp
import pytest

from roskva.client.channels.trusted import TrustedLine
from roskva.client.shell import Client
from roskva.gateway import trusted
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from tests.gateway.conftest import Start
from tests.gateway.matching import SmallMatcher
from tests.gateway.talking import WAIT_S, Raw, close_of
from tests.gateway.test_channels import QUICK, QUICK_CLIENT, Learner, until

CLIENTS = 25


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    return await start(applications={"demo": QUICK})


def key_of(gateway: Gateway) -> str:
    return load_keys(gateway.settings.data).trusted


def bearer(gateway: Gateway) -> dict[str, str]:
    return {"Authorization": f"Bearer {key_of(gateway)}"}


async def test_many_clients_over_one_line_learn_everything_also_after_it_was_cut(gateway: Gateway) -> None:
    async with SmallMatcher(gateway) as matcher, TrustedLine(gateway.url, key_of(gateway)) as line, AsyncExitStack() as stack:
        learners = [Learner(channel=line.channel(), config=QUICK_CLIENT) for _ in range(CLIENTS)]
        for learner in learners:
            await stack.enter_async_context(learner.client)
        for learner in learners:
            await learner.client.register("object-0")
        for learner in learners:
            await learner.client.synced(15)
        assert len(gateway.registrar.sessions) == CLIENTS
        assert len(gateway.router.connections) == CLIENTS
        await matcher.publish("object-0", 1)
        (held,) = gateway.port.lines
        assert held._transport is not None
        held._transport.abort()
        await until(lambda: not gateway.registrar.sessions)  # all of them are offline at once
        await matcher.publish("object-0", 2)
        await until(lambda: all(learner.shown["object-0"][-1:] == [2] for learner in learners))
        assert all(learner.shown["object-0"] == sorted(set(learner.shown["object-0"])) for learner in learners)
        assert gateway.registrar.counters.handshakes == CLIENTS
        await learners[0].client.close()
        await until(lambda: len(gateway.registrar.sessions) == CLIENTS - 1)  # told by its number alone
    assert not gateway.router.connections


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer wrong", "Basic {key}", "Bearer {key}x"])
async def test_without_the_key_nobody_is_trusted(gateway: Gateway, http: aiohttp.ClientSession, shown: str) -> None:
    headers = {"Authorization": shown.format(key=key_of(gateway))} if shown else {}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await http.ws_connect(gateway.url + "/v1/trusted", headers=headers)
    assert refused.value.status == 401
    async with http.get(gateway.url + "/v1/trusted", headers=headers) as answer:
        assert (await answer.json())["error"]["code"] == "trust-refused"


async def test_where_there_is_no_key_nobody_is_trusted(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start()
    path = gateway.settings.data / "keys.json"
    stored = json.loads(path.read_text())
    del stored["trusted"]  # a file of an earlier version
    path.write_text(json.dumps(stored))
    gateway = await start()
    for shown in ("Bearer ", "Bearer x"):
        async with http.get(gateway.url + "/v1/trusted", headers={"Authorization": shown}) as answer:
            assert answer.status == 401


async def test_it_is_a_websocket(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.get(gateway.url + "/v1/trusted", headers=bearer(gateway)) as answer:
        assert answer.status == 426


@pytest.mark.parametrize("frame", ["", "nonsense", "-1 {}", "x1 {}", "9" * 16 + " {}", b"1 {}"])
async def test_a_frame_without_a_number_closes_the_line(gateway: Gateway, http: aiohttp.ClientSession, frame: str | bytes) -> None:
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(gateway)) as socket:
        await (socket.send_str(frame) if isinstance(frame, str) else socket.send_bytes(frame))
        assert await close_of(socket) == (1002, "protocol-error")
    assert not gateway.router.connections


async def test_clients_count_as_connections_and_their_errors_are_their_own(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_max=2)
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(gateway)) as socket:

        async def answer(frame: str) -> tuple[str, str]:
            await socket.send_str(frame)
            async with asyncio.timeout(WAIT_S):
                number, _, message = (await socket.receive_str()).partition(" ")
            told = json.loads(message)
            return number, told["error"]["code"] if "error" in told else next(iter(told))

        assert await answer("7 nonsense") == ("7", "malformed-message")
        assert await answer("8 {}") == ("8", "malformed-message")
        for _ in range(3):
            assert await answer("9 {}") == ("9", "unavailable")
        (line,) = gateway.port.lines
        assert sorted(one.name for one in line.clients.values()) == [7, 8]
        await socket.send_str("7")
        await socket.send_str("7")  # not known any more: nothing happens
        assert await answer('9 {"init":{"nonce":"n","application":"nobody","device":"d"}}') == ("9", "unknown-application")
        for _ in range(9):
            await answer("8 nonsense")
        assert [one.name for one in line.clients.values()] == [9]  # the tenth in a row
    await until(lambda: not gateway.router.connections)


async def test_a_line_that_is_not_read_is_cut(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "BUFFER_BYTES_MAX", 100_000)
    monkeypatch.setattr(trusted, "SLOW_S", 0.05)
    raw = await Raw.connect(gateway)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(
        f"GET /v1/trusted HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nAuthorization: Bearer {key_of(gateway)}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    await until(lambda: gateway.port.lines)
    (line,) = gateway.port.lines
    async with asyncio.timeout(WAIT_S):
        while gateway.port.lines:
            line.put(b"1 " + b"x" * 50_000)
            await asyncio.sleep(0.001)
    assert gateway.metrics.slow_consumers == 1
    assert line._queued_bytes < 300_000
    await raw.close()


async def test_stop_says_goodbye_to_lines(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start()
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(gateway)) as socket:
        await socket.send_str("1 {}")
        await socket.receive_str()
        stopping = asyncio.create_task(gateway.stop())
        assert await close_of(socket) == (1001, "going-away")
        async with asyncio.timeout(WAIT_S):
            await stopping


async def test_what_a_line_says_at_once_leaves_turns_of_the_loop_to_others(
    gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, turn, received = 0, 0, [0]
    of_line = trusted.TrustedLine._received

    def counting(line: trusted.TrustedLine, frame: bytes) -> bool:
        nonlocal turn
        if turn != turns:
            turn = turns
            received.append(0)
        received[-1] += 1
        return of_line(line, frame)

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(trusted.TrustedLine, "_received", counting)
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(gateway)) as line:
        others = asyncio.create_task(turning())
        try:
            await asyncio.gather(*(line.send_str(f"{number}") for number in range(1_000)))
            await until(lambda: sum(received) == 1_000)
        finally:
            others.cancel()
    assert max(received) <= 32


async def test_a_line_to_nowhere_keeps_trying_and_ends_at_once() -> None:
    async with TrustedLine("http://127.0.0.1:9", "key") as line:
        async with Client(application="demo", channel=line.channel(), config=QUICK_CLIENT) as client:
            await asyncio.sleep(0.05)
            assert client.connected  # as far as it knows: nobody answers
            assert not client.in_sync
        assert not line.connected


async def test_who_asks_for_it_hears_one_keepalive_for_the_whole_line(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"demo": dataclasses.replace(QUICK, keepalive_s=0.4)})
    heard: dict[str, list[str]] = {}
    for query in ("", "?keepalive=line"):
        async with http.ws_connect(gateway.url + "/v1/trusted" + query, headers=bearer(gateway)) as socket:

            async def frame(socket: aiohttp.ClientWebSocketResponse = socket) -> str:
                async with asyncio.timeout(WAIT_S):
                    return await socket.receive_str()

            for number in (3, 70):
                await socket.send_str(f'{number} {{"init":{{"nonce":"n","application":"demo","device":"d{number}"}}}}')
                token = json.loads((await frame()).partition(" ")[2])["token"]
                await socket.send_str(f'{number} {{"token":"{token}"}}')
                while not (await frame()).startswith(f"{number} "):
                    pass
            heard[query] = [(await frame()).partition(" ")[0] for _ in range(4)]
            if query:
                (line,) = gateway.port.lines
                await socket.send_str("3")  # gone
                while len(line.clients) > 1:
                    await asyncio.sleep(0.005)
                gateway.registrar.dismiss(next(iter(gateway.registrar.sessions.values())), "gone", keep=False)
                while (left := await frame()) in ("+", "-3"):
                    pass
                assert left == "-70"
                assert "start_anew" in await frame()
    assert set(heard[""]) == {"3", "70"}
    assert set(heard["?keepalive=line"]) == {"+"}


async def test_what_a_full_line_drops_is_noted_and_said_before_its_keepalive(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    line = trusted.TrustedLine(gateway.port)
    line.keeps = True
    client = trusted.TrustedClient(line, 5)
    line.clients[5] = client
    monkeypatch.setattr(trusted, "BUFFER_BYTES_MAX", 10)
    client.send(b"x" * 20)
    client.send(b"dropped")
    line.tell_settled([client])
    line.put(b"-9", 9)  # of one that is gone meanwhile: dropped as well
    line.keep_alive()
    assert list(line._queue) == [b"5 " + b"x" * 20]
    line._queue.clear()
    line._queued_bytes = 0
    assert line.take_missed() == [client]
    line.keep_alive()
    line.tell_settled([client, trusted.TrustedClient(line, 6)])  # who is not there any more is left out
    assert list(line._queue) == [b"-9", b"+", b"= 5"]


async def test_frames_of_every_length_that_wait_together_are_written_together(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(gateway.url + "/v1/trusted", headers=bearer(gateway)) as socket:
        await until(lambda: gateway.port.lines)
        (line,) = gateway.port.lines
        sent = [b"7 " + b"x" * length for length in (0, 100, 123, 124, 1_000, 65_533, 65_534, 200_000)] * 2
        for frame in sent:
            line.put(frame)
        async with asyncio.timeout(WAIT_S):
            assert [(await socket.receive_str()).encode() for _ in sent] == sent
        assert line._queued_bytes == 0


async def test_what_waits_on_a_line_is_one_write(gateway: Gateway) -> None:
    line = trusted.TrustedLine(gateway.port)
    for frame in (b"1 a", b"2 b", b"+"):
        line.put(frame)
    assert line._taken() == b"\x81\x031 a\x81\x032 b\x81\x01+"
    assert not line._queue
