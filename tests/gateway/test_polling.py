"""Connections that are fetched: long polls and server-sent events (gateway/polled.py, gateway/polling.py)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from roskva.gateway import polled, polling, server, websocket
from roskva.gateway.polled import PolledConnection
from roskva.gateway.service import Gateway
from tests.gateway.conftest import Start
from tests.gateway.talking import WAIT_S, Raw, channel_url, handshake, hear, hear_until, say


class Poller:
    """A polled connection, by hand."""

    def __init__(self, http: aiohttp.ClientSession, gateway: Gateway, identity: str) -> None:
        self._http = http
        self._gateway = gateway
        self.id = identity
        self.url = f"{gateway.url}/v1/channels/{identity}"

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, gateway: Gateway) -> Poller:
        async with http.post(gateway.url + "/v1/channels") as answer:
            assert answer.status == 201
            assert answer.headers["Cache-Control"] == "no-store"
            told = await answer.json()
        assert (told["wait_s"], told["idle_s"]) == (polled.WAIT_S, polled.IDLE_S)
        return cls(http, gateway, told["id"])

    @property
    def connection(self) -> PolledConnection:
        return self._gateway.port.polls.named(self.id)

    async def say(self, *messages: dict[str, Any]) -> None:
        async with self._http.post(self.url, data="\n".join(json.dumps(message) for message in messages)) as answer:
            assert answer.status == 204

    async def poll(self) -> list[dict[str, Any]]:
        async with self._http.get(self.url) as answer:
            assert answer.status in (200, 204), await answer.text()
            assert answer.headers["Cache-Control"] == "no-store"
            return [json.loads(line) for line in (await answer.text()).splitlines()]

    async def until(self, field: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while True:
                for message in await self.poll():
                    if field in message:
                        return message

    async def handshake(self, device: str = "device", prior: str | None = None) -> str:
        init = {"nonce": "nonce-" + device, "application": "demo", "device": device}
        await self.say({"init": init if prior is None else init | {"prior": prior}})
        token: str = (await self.until("grant"))["grant"]["token"]
        return token

    async def waits(self) -> None:
        """Until a poll is waiting at the gateway."""
        async with asyncio.timeout(WAIT_S):
            while self.connection._reader is None:
                await asyncio.sleep(0.005)


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    return answer.status, (await answer.json())["error"]["code"]


@pytest.fixture
async def poller(http: aiohttp.ClientSession, gateway: Gateway) -> Poller:
    return await Poller.open(http, gateway)


async def test_a_client_talks_by_long_poll(poller: Poller, gateway: Gateway) -> None:
    token = await poller.handshake()
    await poller.say({"token": token}, {"token": token})
    assert (await poller.until("summary"))["token"] == token
    assert len(gateway.registrar.sessions) == 1
    assert gateway.metrics.connections == 1


async def test_a_poll_that_waits_is_answered_when_something_comes(poller: Poller) -> None:
    waiting = asyncio.create_task(poller.poll())
    await poller.waits()
    poller.connection.send(b'{"n":1}')
    assert await waiting == [{"n": 1}]
    poller.connection.send(b'{"n":2}')
    poller.connection.send(b'{"n":3}')
    assert await poller.poll() == [{"n": 2}, {"n": 3}]


async def test_a_poll_ends_with_nothing_after_its_wait(poller: Poller, gateway: Gateway) -> None:
    waiting = asyncio.create_task(poller.poll())
    await poller.waits()
    gateway.port.sweep(time.monotonic() + polled.WAIT_S - 1)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    gateway.port.sweep(time.monotonic() + polled.WAIT_S + 1)
    assert await waiting == []


async def test_a_client_may_ask_for_a_shorter_wait(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession) -> None:
    waiting = asyncio.create_task(http.get(poller.url + "?wait_s=5").__aenter__())
    await poller.waits()
    gateway.port.sweep(time.monotonic() + 5)
    answer = await waiting
    assert answer.status == 204
    answer.release()
    for nonsense in ("-1", "1.5", "soon", "9" * 30):
        async with http.get(poller.url, params={"wait_s": nonsense}) as answer:
            assert await error_of(answer) == (400, "malformed-message")


async def test_of_two_polls_the_older_is_answered_empty_at_once(poller: Poller) -> None:
    older = asyncio.create_task(poller.poll())
    await poller.waits()
    newer = asyncio.create_task(poller.poll())
    async with asyncio.timeout(WAIT_S):
        assert await older == []
    await poller.waits()
    poller.connection.send(b"{}")
    assert await newer == [{}]


async def test_what_comes_when_the_poll_hung_up_waits_for_the_next(poller: Poller, gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(f"GET /v1/channels/{poller.id} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    await poller.waits()
    await raw.close()
    async with asyncio.timeout(WAIT_S):
        while poller.connection._request is not None and poller.connection._request.transport is not None:
            await asyncio.sleep(0.005)
    poller.connection.send(b'{"n":1}')
    assert await poller.poll() == [{"n": 1}]


async def test_without_a_reader_it_is_closed_and_its_client_offline(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession) -> None:
    token = await poller.handshake()
    await poller.say({"token": token})
    await poller.until("summary")
    waiting = asyncio.create_task(poller.poll())
    await poller.waits()
    gateway.port.sweep(time.monotonic() + polled.IDLE_S + 1)
    assert gateway.registrar.sessions  # a poll waits: it is not idle
    poller.connection.send(b"{}")
    await waiting
    gateway.port.sweep(time.monotonic() + polled.IDLE_S - 1)
    assert gateway.registrar.sessions
    gateway.port.sweep(time.monotonic() + polled.IDLE_S + 1)
    assert not gateway.registrar.sessions
    assert not gateway.router.connections
    async with http.get(poller.url) as answer:
        assert await error_of(answer) == (410, "channel-closed")
    assert not gateway.port.polls._by_id


async def test_a_closed_one_is_forgotten_even_if_nobody_asks(poller: Poller, gateway: Gateway) -> None:
    gateway.port.sweep(time.monotonic() + polled.IDLE_S + 1)
    assert gateway.port.polls.closed
    gateway.port.sweep(time.monotonic() + polled.CLOSED_S + 1)
    assert not gateway.port.polls.closed
    assert not gateway.port.polls._by_id
    assert not gateway.port.polls._unattended
    assert not gateway.port.polls._attended


@pytest.mark.parametrize("way", ["delete", "beacon"])
async def test_closing_marks_the_client_offline_at_once(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession, way: str) -> None:
    token = await poller.handshake()
    await poller.say({"token": token})
    await poller.until("summary")
    waiting = asyncio.create_task(http.get(poller.url).__aenter__())
    await poller.waits()
    received = gateway.metrics.messages_received
    if way == "delete":
        async with http.delete(poller.url) as answer:
            assert answer.status == 204
    else:
        async with http.post(poller.url + "/close", data=json.dumps({"token": token}), headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 204
        assert gateway.metrics.messages_received == received + 1
    assert not gateway.registrar.sessions
    assert not gateway.router.connections
    answer = await waiting
    assert answer.status == (410 if way == "delete" else 200)  # the beacon's message was answered
    answer.release()
    for method in ("get", "post"):
        async with http.request(method, poller.url) as answer:
            assert await error_of(answer) == (410, "channel-closed")
    async with http.delete(poller.url) as answer:
        assert answer.status == 204


async def test_an_id_that_was_never_given_is_refused(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for method, path in (("get", ""), ("post", ""), ("get", "/events"), ("post", "/close")):
        async with http.request(method, gateway.url + "/v1/channels/guessed" + path) as answer:
            assert await error_of(answer) == (410, "channel-closed")


async def test_malformed_messages_are_answered_and_the_tenth_in_a_row_closes_it(poller: Poller, http: aiohttp.ClientSession) -> None:
    async with http.post(poller.url, data=b"nonsense\n\n{}\n") as answer:
        assert answer.status == 204
    assert [message["error"]["code"] for message in await poller.poll()] == ["malformed-message"] * 2
    assert await poller.handshake()
    async with http.post(poller.url, data=b"\n".join([b"nonsense"] * 50)) as answer:
        assert answer.status == 204
    assert [message["error"]["code"] for message in await poller.poll()] == ["malformed-message"] * 10
    async with http.get(poller.url) as answer:
        told = (await answer.json())["error"]
        assert (answer.status, told["code"]) == (410, "channel-closed")
        assert "malformed-message" in told["message"]


async def test_what_is_said_to_a_closed_one_is_refused_and_what_waits_in_it_can_still_be_fetched(
    poller: Poller, http: aiohttp.ClientSession
) -> None:
    poller.connection.send(b'{"last":1}')
    poller.connection.close("going-away")
    async with http.post(poller.url, data=b"{}") as answer:
        assert await error_of(answer) == (410, "channel-closed")
    assert await poller.poll() == [{"last": 1}]
    async with http.get(poller.url) as answer:
        assert await error_of(answer) == (410, "channel-closed")


async def test_bodies_are_limited(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(message_bytes_max=10_000)
    poller = await Poller.open(http, gateway)

    async def chunks() -> Any:
        for _ in range(11):
            yield b"x" * 1_000

    for body in (b"x" * 10_001, chunks()):
        async with http.post(poller.url, data=body) as answer:
            assert await error_of(answer) == (413, "message-too-large")
    async with http.post(poller.url, data=b"\n".join([b"{}"] * (polling.MESSAGES_PER_BODY_MAX + 1))) as answer:
        assert await error_of(answer) == (400, "malformed-message")
    assert await poller.handshake()


async def test_pages_of_another_origin_are_refused(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.post(gateway.url + "/v1/channels", headers={"Origin": "http://elsewhere.example"}) as answer:
        assert await error_of(answer) == (403, "origin-refused")
    async with http.post(gateway.url + "/v1/channels", headers={"Origin": gateway.url}) as answer:
        assert answer.status == 201


async def test_nobody_fetches_messages_are_dropped_above_the_limit_then_it_is_closed(poller: Poller, gateway: Gateway) -> None:
    connection = poller.connection
    for _ in range(2_000):
        connection.send(b'"' + b"x" * 9_998 + b'"')
    assert connection._queued_bytes <= gateway.settings.send_buffer_bytes_max + 10_000
    assert connection in gateway.port.paused
    assert gateway.metrics.messages_dropped > 1_900
    assert len(await poller.poll()) >= gateway.settings.send_buffer_bytes_max // 10_000  # it comes in time
    assert connection not in gateway.port.paused
    for _ in range(2_000):
        connection.send(b'"' + b"x" * 9_998 + b'"')
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    assert gateway.metrics.slow_consumers == 1
    assert not gateway.router.connections


async def test_polled_connections_count_and_are_refused_above_the_limit(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_max=3)
    one = await Poller.open(http, gateway)
    await Poller.open(http, gateway)
    await Poller.open(http, gateway)
    async with http.post(gateway.url + "/v1/channels") as answer:
        assert await error_of(answer) == (503, "overloaded")
    async with http.delete(one.url) as answer:
        assert answer.status == 204
    await Poller.open(http, gateway)


async def test_one_on_which_nothing_valid_is_said_is_closed(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.get(poller.url + "/events"):
        gateway.port.sweep(time.monotonic() + server.SILENT_S + 1)
        assert not gateway.router.connections


async def events(answer: aiohttp.ClientResponse, count: int) -> list[str]:
    """So many events or comments of a stream."""
    async with asyncio.timeout(WAIT_S):
        return [(await answer.content.readuntil(b"\n\n")).decode().rstrip("\n") for _ in range(count)]


async def test_a_client_talks_by_server_sent_events(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.get(poller.url + "/events") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-store"
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert await events(stream, 1) == [":"]
        await poller.say({"init": {"nonce": "n", "application": "demo", "device": "d"}})
        (event,) = await events(stream, 1)
        token = json.loads(event.removeprefix("data: "))["grant"]["token"]
        await poller.say({"token": token})
        (event,) = await events(stream, 1)
        assert "summary" in json.loads(event.removeprefix("data: "))
        await poller.waits()
        gateway.port.sweep(time.monotonic() + polling.BEAT_S + 1)
        assert await events(stream, 1) == [":"]
        poller.connection.send(b'{"last":1}')
        poller.connection.close("going-away")
        last, closed = await events(stream, 2)
        assert last == 'data: {"last":1}'
        kind, told = closed.split("\n")
        assert kind == "event: closed"
        assert "going-away" in json.loads(told.removeprefix("data: "))["error"]["message"]
        assert await stream.content.read() == b""


async def test_a_newer_stream_or_poll_ends_the_older_stream(poller: Poller, http: aiohttp.ClientSession) -> None:
    async with http.get(poller.url + "/events") as older, http.get(poller.url + "/events") as newer:
        assert await older.content.read() == b":\n\n"
        poller.connection.send(b"{}")
        assert await events(newer, 2) == [":", "data: {}"]
        polled_now = asyncio.create_task(poller.poll())
        assert await newer.content.read() == b""
        await poller.waits()
        poller.connection.send(b"{}")
        assert await polled_now == [{}]


async def test_a_stream_that_hung_up_starts_the_idle_time(poller: Poller, gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(f"GET /v1/channels/{poller.id}/events HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    await raw.read_head()
    await poller.waits()
    await raw.close()
    async with asyncio.timeout(WAIT_S):
        while poller.connection not in gateway.port.polls._unattended:
            await asyncio.sleep(0.005)
            gateway.port.sweep(time.monotonic())
    gateway.port.sweep(time.monotonic() + polled.IDLE_S + 1)
    assert not gateway.router.connections


async def test_a_stream_that_is_not_read_is_cut_off(poller: Poller, gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(f"GET /v1/channels/{poller.id}/events HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    await poller.waits()
    connection = poller.connection
    async with asyncio.timeout(WAIT_S):
        while connection not in gateway.port.paused:
            connection.send(b'"' + b"x" * 99_998 + b'"')
            await asyncio.sleep(0)
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    assert gateway.metrics.slow_consumers == 1
    assert not gateway.router.connections
    async with asyncio.timeout(WAIT_S):
        while connection._request is not None:
            await asyncio.sleep(0.005)
    await raw.close()


async def test_stop_tells_the_waiting_how_slowly_to_come_back_and_opens_no_more(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(reconnects_per_s=0.1)
    poller = await Poller.open(http, gateway)
    waiting = asyncio.create_task(poller.poll())
    await poller.waits()
    async with http.get(gateway.url + "/healthz"):
        pass  # a connection that is kept open
    gateway.port.stop_accepting()
    async with http.post(gateway.url + "/v1/channels") as answer:
        assert await error_of(answer) == (503, "unavailable")
    async with asyncio.timeout(WAIT_S):
        await gateway.stop()
    (farewell,) = await waiting
    assert (farewell["error"]["code"], farewell["error"]["retry_after_s"]) == ("going-away", 10.0)


async def test_a_session_moves_between_channels_by_speaking(poller: Poller, gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        await say(socket, token=token)
        await hear_until(socket, "summary")
        await poller.say({"token": token})
        assert (await poller.until("summary"))["token"] == token
        async with asyncio.timeout(WAIT_S):
            while [session.channel for session in gateway.registrar.sessions.values()] != [poller.connection]:
                await asyncio.sleep(0.005)
        await socket.close()  # the channel that was left: it is no hint any more
        await asyncio.sleep(0.05)
        assert len(gateway.registrar.sessions) == 1
    async with http.ws_connect(channel_url(gateway)) as socket:
        await say(socket, token=token)
        assert (await hear(socket))["token"] == token
        async with http.delete(poller.url):
            pass
        assert len(gateway.registrar.sessions) == 1


async def test_an_idle_poll_holds_no_task_beyond_the_two_of_its_request(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    pollers = [await Poller.open(http, gateway) for _ in range(20)]
    raws = [await Raw.connect(gateway) for _ in pollers]
    before = len(asyncio.all_tasks())
    for poller, raw in zip(pollers, raws, strict=True):
        await raw.send(f"GET /v1/channels/{poller.id} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        await poller.waits()
    assert len(asyncio.all_tasks()) <= before + 2 * len(pollers) + 1
    assert all(not hasattr(connection, "__dict__") for connection in gateway.router.connections.values())
    for raw in raws:
        await raw.close()
