"""Whoever asks for more than its share: it is told, counted and in the end closed, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from roskva.config import ApplicationSettings
from roskva.gateway.routing import Connection
from roskva.gateway.service import Gateway
from roskva.gateway.websocket import WebSocketConnection
from tests.gateway.conftest import Start
from tests.gateway.talking import UPGRADE, Raw, channel_url, close_of, frame, handshake, hear, hear_until, say
from tests.security.conftest import connect_from
from tests.security.test_connections import served_meanwhile

INIT: dict[str, Any] = {"nonce": "n", "application": "demo", "device": "d"}
# A message that is answered, and costs nothing.
NOTHING = b'{"token":""}'
ROOT = Path(__file__).parents[2]
MILLION = 1_000_000
FLOOD = 200_000


def demo(**changes: Any) -> dict[str, ApplicationSettings]:
    return {"demo": dataclasses.replace(ApplicationSettings(), **changes)}


async def test_handshakes_of_one_address(start: Start, http: aiohttp.ClientSession, stranger: aiohttp.ClientSession) -> None:
    gateway = await start(handshakes_per_address_per_s=0.1)  # two at once
    async with served_meanwhile(gateway, http), stranger.ws_connect(channel_url(gateway)) as socket:
        for number in range(2):
            await handshake(socket, f"device-{number}")
        await say(socket, init=INIT)
        error = (await hear_until(socket, "error"))["error"]
        assert (error["code"], error["transient"]) == ("rate-limited", True)
        assert 5 < error["retry_after_s"] <= 10
        async with stranger.ws_connect(channel_url(gateway)) as another:  # the address is meant, not the connection
            await say(another, init=INIT)
            assert (await hear(another))["error"]["code"] == "rate-limited"
        assert gateway.metrics.limited_handshakes == 2
        assert gateway.registrar.counters.handshakes == 3  # of the other client, and the two: nothing was done for the rest


@pytest.mark.timeout(240)
async def test_a_million_handshakes_of_one_address(start: Start, http: aiohttp.ClientSession) -> None:
    """By a process of its own, which waits for each answer: all are refused one by one, and nothing is kept of them."""
    # Twenty at once. As many messages as a fast machine sends: what is beyond their limit is not answered, and not what is looked at here.
    gateway = await start(handshakes_per_address_per_s=1.0, applications=demo(messages_per_s_max=1_000_000.0))
    place = gateway.url.removeprefix("http://")
    command = (sys.executable, "-m", "bench.hostile", "handshakes", place, "180", "--count", str(MILLION), "--nice")
    before_bytes = resident_bytes()
    async with served_meanwhile(gateway, http):
        attacker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            told, _ = await attacker.communicate()
        finally:
            if attacker.returncode is None:
                attacker.kill()
        did = json.loads(told)["did"]
        assert did["handshakes: granted"] + did["handshakes: rate-limited"] == MILLION
        assert did["handshakes: granted"] < 500
        assert gateway.metrics.limited_handshakes == did["handshakes: rate-limited"]
        assert gateway.registrar.counters.handshakes == did["handshakes: granted"] + 1  # of the client that is served meanwhile
    assert resident_bytes() - before_bytes < 50_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_messages_of_one_connection(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=60.0))
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(UPGRADE + frame(1, json.dumps({"init": INIT}).encode()))
        await raw.read_head()
        before = gateway.metrics.messages_malformed
        await raw.send(frame(1, json.dumps({"init": INIT}).encode()) * 5_000)
        async with asyncio.timeout(10):
            while gateway.metrics.limited_messages < 1_000:
                await asyncio.sleep(0.01)
        assert gateway.metrics.messages_malformed == before
        (connection,) = (one for one in gateway.router.connections.values() if one.address)
        assert isinstance(connection, WebSocketConnection)
        assert connection._transport is not None
        transport = connection._transport.underlying_transport
        assert transport.is_reading()
        await raw.send(frame(1, NOTHING) * 8_000)
        async with asyncio.timeout(10):
            while transport.is_reading():  # once it is closed, nothing more is read, if only to drop it
                await asyncio.sleep(0.01)
        rest = await raw.read_to_end()
        assert rest.endswith(b"rate-limited")  # the reason of the close frame
        assert 1 <= rest.count(b'"code":"rate-limited"') <= 10  # told, but not every time
        assert connection not in gateway.router.connections.values()
        await raw.close()


async def test_one_who_says_much_is_read_in_turns_with_all_others_and_fills_no_larger_buffer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """picows doubles a buffer that was filled: small messages made it megabytes, all of them read before anybody else was."""
    gateway = await start(applications=demo(messages_per_s_max=1e6))
    raw = await connect_from(gateway)
    await raw.send(UPGRADE)
    await raw.read_head()
    (connection,) = gateway.router.connections.values()
    assert isinstance(connection, WebSocketConnection)
    assert connection._transport is not None
    protocol = cast(asyncio.BufferedProtocol, connection._transport.underlying_transport.get_protocol())
    heard = most = largest = 0
    spoke = gateway.port.admission.spoke

    def counted(who: Connection) -> bool:
        nonlocal heard
        heard += 1
        return spoke(who)

    monkeypatch.setattr(gateway.port.admission, "spoke", counted)
    pong = frame(10, b"")  # nobody answers that
    flooding = asyncio.create_task(raw.send(pong * FLOOD))
    async with asyncio.timeout(30):
        while heard < FLOOD:
            before = heard
            await asyncio.sleep(0)
            most = max(most, heard - before)
            largest = max(largest, memoryview(protocol.get_buffer(-1)).nbytes)
    await flooding
    assert largest < 32_000
    assert most * len(pong) < 64_000
    await raw.send(frame(1, b'{"token":"' + b"x" * 900_000 + b'"}'))  # one that is large has room all the same
    async with asyncio.timeout(10):
        await raw.reader.readuntil(b"malformed-message")
    await raw.close()


async def test_a_flood_of_pings_is_counted_as_messages(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=60.0))
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(UPGRADE)
        await raw.read_head()
        await raw.send(frame(9, b"ping") * 2_000)
        async with asyncio.timeout(10):
            while gateway.metrics.limited_messages < 1_000:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            answer = await raw.reader.readexactly(600 * 6)
        assert answer == b"\x8a\x04ping" * 600  # a burst is answered
        await raw.send(frame(10, b"") * 10_000)  # pongs that nobody asked for
        rest = await raw.read_to_end()
        assert rest.endswith(b"rate-limited")
        await raw.close()


async def test_a_flood_of_pings_on_a_used_connection(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=60.0))
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        await raw.read_head()
        await raw.reader.readexactly(len(b'{"alive":true}'))
        await raw.send(UPGRADE)
        await raw.read_head()
        await raw.send(frame(9, b"ping") * 10_000)
        async with asyncio.timeout(20):
            rest = await raw.reader.read()
        assert rest.endswith(b"rate-limited")
        assert 600 <= rest.count(b"\x8a\x04ping") < 800
        await raw.close()


async def test_pings_of_somebody_who_reads_nothing_collect_no_answers(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with served_meanwhile(gateway, http):
        raw = await Raw.connect(gateway)
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(UPGRADE)
        async with asyncio.timeout(5):
            while len(gateway.router.connections) < 2:
                await asyncio.sleep(0.01)
        connection = list(gateway.router.connections.values())[-1]
        while connection not in gateway.port.paused:
            connection.send(b"x" * 8_000)
        assert isinstance(connection, WebSocketConnection)
        assert connection._transport is not None
        transport = connection._transport.underlying_transport
        waiting = transport.get_write_buffer_size()
        await raw.send(frame(9, b"p" * 125) * 500)
        await asyncio.sleep(0.2)
        assert transport.get_write_buffer_size() <= waiting
        await raw.close()


async def test_a_flood_of_fragments_is_counted_as_messages(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=60.0))
    async with served_meanwhile(gateway, http):
        raw = await connect_from(gateway)
        await raw.send(UPGRADE)
        await raw.read_head()
        await raw.send(frame(1, b"{", fin=False) + frame(0, b"", fin=False) * 2_000)  # never any larger, and never complete
        rest = await raw.read_to_end()
        assert rest.endswith(b"rate-limited")
        assert gateway.metrics.limited_messages > 0
        await raw.close()


async def test_messages_of_a_polled_channel(start: Start, http: aiohttp.ClientSession, stranger: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=5.0))
    async with stranger.post(gateway.url + "/v1/channels") as answer:
        url = gateway.url + "/v1/channels/" + (await answer.json())["id"]
    body = b"\n".join([json.dumps({"init": INIT}).encode()] * 99)
    async with stranger.post(url, data=body) as answer:
        assert answer.status == 204
    assert gateway.metrics.limited_messages == 49
    async with stranger.get(url) as answer:
        assert (await answer.text()).count("rate-limited") == 1
    for _ in range(6):
        async with stranger.post(url, data=body) as answer:
            status = answer.status
    assert status == 410  # more than ten bursts were refused: it is closed
    async with http.get(gateway.url + "/healthz") as answer:
        assert answer.status == 200


async def test_clients_of_a_trusted_line_have_no_address_but_a_rate(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(messages_per_s_max=5.0), connections_per_address_max=1, handshakes_per_address_per_s=0.05)
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    headers = {"Authorization": f"Bearer {gateway.routes.trusted_key}"}
    async with (
        aiohttp.ClientSession(connector=connector) as server,
        server.ws_connect(gateway.url.replace("http", "ws") + "/v1/trusted", headers=headers) as line,
    ):
        for number in range(1, 21):
            await line.send_str(f"{number} " + json.dumps({"init": {**INIT, "device": f"d{number}"}}))
        granted = 0
        async with asyncio.timeout(10):
            while granted < 20:
                granted += '"grant"' in (await line.receive_str())
        assert gateway.metrics.limited_handshakes == gateway.metrics.limited_connections_of_address == 0
        for _ in range(80):
            await line.send_str('1 {"token":"nonsense"}')
        async with asyncio.timeout(10):
            while "rate-limited" not in (told := await line.receive_str()):
                pass
        assert told.startswith("1 ")
        await line.send_str("2 " + json.dumps({"init": INIT}))  # the others are not meant
        async with asyncio.timeout(10):
            while not (told := await line.receive_str()).startswith("2 ") or '"grant"' not in told:
                pass
    assert gateway.metrics.limited_messages > 0


async def test_connections_of_one_application(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(applications=demo(connections_max=2) | {"other": ApplicationSettings()})
    async with http.ws_connect(channel_url(gateway)) as one, http.ws_connect(channel_url(gateway)) as two:
        token = await handshake(one, "one")
        for socket, shown in ((one, token), (two, await handshake(two, "two"))):
            await say(socket, token=shown)
            await hear_until(socket, "summary")
        async with http.ws_connect(channel_url(gateway)) as third:
            await say(third, init=INIT)
            error = (await hear(third))["error"]
            assert (error["code"], error["transient"], error["retry_after_s"]) == ("too-many-connections", True, 10.0)
            assert await close_of(third) == (1013, "too-many-connections")
        async with http.ws_connect(channel_url(gateway)) as fourth:  # by a token it is the same
            await say(fourth, token=token)
            assert (await hear(fourth))["error"]["code"] == "too-many-connections"
        assert gateway.metrics.limited_connections_of_application == 2
        async with http.ws_connect(channel_url(gateway)) as other:
            await say(other, init={**INIT, "application": "other"})
            assert "grant" in await hear_until(other, "grant")
        await two.close()
        async with asyncio.timeout(5):
            while gateway.port.admission.connections_of("demo") > 1:
                await asyncio.sleep(0.01)
        async with http.ws_connect(channel_url(gateway)) as fifth:
            assert await handshake(fifth, "five")


@pytest.mark.parametrize("batch", [1, 4])
async def test_publishes_of_one_application(start: Start, anybody: aiohttp.ClientSession, batch: int) -> None:
    gateway = await start(applications=demo(publishes_per_s_max=4.0) | {"other": ApplicationSettings()})

    async def publish(application: str) -> tuple[int, Any, str | None]:
        updates = [{"object": f"o{number}", "version": 1} for number in range(batch)]
        body = json.dumps({"application": application, "updates": updates})
        async with anybody.post(gateway.url + "/v1/publish", data=body) as answer:
            return answer.status, await answer.json(), answer.headers.get("Retry-After")

    allowed = 0
    while (told := await publish("demo"))[0] == 200:
        allowed += batch
        assert allowed < 50
    assert 8 <= allowed <= 16  # a burst of two seconds
    status, answer, retry_after = told
    assert (status, answer["error"]["code"], answer["error"]["transient"], retry_after) == (429, "rate-limited", True, "1")
    assert 0 < answer["error"]["retry_after_s"] <= 1
    assert gateway.metrics.limited_publishes == batch  # counted in updates
    assert gateway.metrics.updates_appended == allowed
    assert (await publish("other"))[0] == 200
    await asyncio.sleep(answer["error"]["retry_after_s"] + 0.05)
    assert (await publish("demo"))[0] == 200
