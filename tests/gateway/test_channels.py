"""The Python client at a real gateway, over every channel, and from one to another in mid-stream."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import roskva
from roskva.client import choice
from roskva.client.channels import longpoll, websocket
from roskva.client.choice import LONG_POLL, WEBSOCKET
from roskva.client.shell import Client
from roskva.config import ApplicationSettings
from roskva.errors import InvalidSetting
from roskva.gateway.service import Gateway
from roskva.protocol.messages import Config
from tests.gateway.conftest import Start
from tests.gateway.matching import SmallMatcher

OBJECTS = [f"object-{number}" for number in range(12)]
QUICK = ApplicationSettings(retry_min_s=0.1, retry_max_s=0.5, resend_min_s=0.1, resend_max_s=0.5, connect_min_s=0.02, connect_max_s=0.2)
# A slow machine must not repeat a handshake, where a test counts them.
QUICK_CLIENT = Config(retry_min_s=5, retry_max_s=10, connect_min_s=0.02, connect_max_s=0.1, keepalive_s=15)
LOSSY_CLIENT = Config(retry_min_s=0.1, retry_max_s=0.5, connect_min_s=0.02, connect_max_s=0.1, keepalive_s=15)


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    return await start(applications={"demo": QUICK})


async def until(condition: Callable[[], object], limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class Learner:
    """A client's application: remembers every version that it was shown, by object."""

    def __init__(self, *url: str | list[str], **arguments: Any) -> None:
        self.shown: dict[str, list[int]] = {name: [] for name in OBJECTS}
        self.client = Client(*url, application="demo", on_notify=self._notified, on_unknown=lambda _: None, **arguments)

    def _notified(self, notification: roskva.Notification) -> None:
        assert notification.version is not None
        self.shown[notification.object].append(notification.version)

    async def register(self) -> None:
        for name in OBJECTS:
            await self.client.register(name)
        await self.client.synced(15)

    async def learns(self, version: int) -> None:
        """All have learned it, and nothing was shown out of order or twice."""
        await until(lambda: all(versions and versions[-1] == version for versions in self.shown.values()))
        assert all(versions == sorted(set(versions)) for versions in self.shown.values())


async def exchange_channel(client: Client, kind: str) -> None:
    client._connector._choice._kind = kind
    before = client._channel
    assert before is not None
    before.hang_up()
    await until(lambda: client._channel not in (None, before) and client.channel == kind)


async def test_a_session_changes_its_channel_in_mid_stream_and_loses_nothing(gateway: Gateway) -> None:
    async with SmallMatcher(gateway) as matcher:
        learner = Learner(gateway.url, channel=WEBSOCKET, config=QUICK_CLIENT)
        async with learner.client:
            await learner.register()

            async def change() -> None:
                for kind in [LONG_POLL, WEBSOCKET] * 4:
                    await asyncio.sleep(0.05)
                    await exchange_channel(learner.client, kind)

            changing = asyncio.create_task(change())
            version = 0
            while not changing.done():
                version += 1
                await asyncio.gather(*(matcher.publish(name, version) for name in OBJECTS))
            await changing
            await learner.learns(version)
    assert gateway.registrar.counters.handshakes == 1
    assert not gateway.port.polls._by_id


async def test_a_client_by_long_poll_and_its_leave_is_told(gateway: Gateway) -> None:
    async with SmallMatcher(gateway) as matcher:
        learner = Learner(gateway.url, channel="long-poll", config=QUICK_CLIENT)
        async with learner.client:
            assert learner.client.channel == LONG_POLL
            await learner.register()
            for version in (1, 2, 3):
                await asyncio.gather(*(matcher.publish(name, version) for name in OBJECTS))
            await learner.learns(3)
            assert len(gateway.registrar.sessions) == 1
        assert not gateway.registrar.sessions  # at once: closing said so
        assert not gateway.router.connections


async def test_a_closed_poll_is_opened_again_with_the_same_session(gateway: Gateway) -> None:
    learner = Learner(gateway.url, channel="long-poll", config=QUICK_CLIENT)
    async with learner.client:
        await learner.client.synced(10)
        (connection,) = gateway.router.connections.values()
        connection.close("going-away")
        await until(lambda: connection not in gateway.router.connections.values() and gateway.registrar.sessions)
        await learner.client.synced(10)
    assert gateway.registrar.counters.handshakes == 1


class Proxy:
    """Passes HTTP on, and WebSockets only if it is told to."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._http = http
        self.websockets = False
        self.answer_after_s = 1e9  # a poll that takes longer is cut off
        self.swallow = False  # take WebSockets, and pass nothing on
        self.paths: list[str] = []
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        if request.headers.get("Upgrade") and (self.websockets or self.swallow):
            return await self._bridge(request)
        body = await request.read()
        try:
            async with asyncio.timeout(self.answer_after_s):
                async with self._http.request(request.method, self._gateway.url + request.raw_path, data=body) as answer:
                    return web.Response(body=await answer.read(), status=answer.status)
        except TimeoutError:
            return web.Response(status=504)

    async def _bridge(self, request: web.Request) -> web.StreamResponse:
        near = web.WebSocketResponse(autoping=not self.swallow)
        await near.prepare(request)
        if self.swallow:
            async for _ in near:
                pass
            return near
        async with self._http.ws_connect(self._gateway.url + "/v1/channel") as far:

            async def back() -> None:
                async for message in far:
                    await near.send_str(message.data)

            returning = asyncio.create_task(back())
            async for message in near:
                await far.send_str(message.data)
            returning.cancel()
        return near


@pytest.fixture
async def proxy(gateway: Gateway) -> AsyncIterator[Proxy]:
    async with aiohttp.ClientSession() as http:
        proxy = Proxy(gateway, http)
        await proxy.start()
        yield proxy
        await proxy.stop()


async def test_a_proxy_that_does_not_upgrade_gets_long_polls_and_later_a_websocket_again(
    gateway: Gateway, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="roskva.client")
    monkeypatch.setattr(choice, "RETURN_REFUSED_S", 0.3)
    monkeypatch.setattr(choice, "RETURN_MAX_S", 0.3)
    async with SmallMatcher(gateway) as matcher:
        learner = Learner(proxy.url, config=QUICK_CLIENT)
        async with learner.client:
            await learner.register()
            assert learner.client.channel == LONG_POLL
            assert proxy.paths[:2] == ["GET /v1/channel", "POST /v1/channels"]  # one refusal is enough
            await asyncio.gather(*(matcher.publish(name, 1) for name in OBJECTS))
            await learner.learns(1)
            proxy.websockets = True
            await until(lambda: learner.client.channel == WEBSOCKET and learner.client.connected)
            await asyncio.gather(*(matcher.publish(name, 2) for name in OBJECTS))
            await learner.learns(2)
    assert gateway.registrar.counters.handshakes == 1
    said = [record for record in caplog.records if record.name.startswith("roskva.client")]
    assert any("The client tries long polls." in record.getMessage() for record in said)
    assert [record.getMessage() for record in said if record.levelno > logging.INFO] == [], "it works: nobody need be warned"


async def test_a_proxy_that_swallows_websockets_is_found_out(gateway: Gateway, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_S", 0.05)
    proxy.swallow = True
    learner = Learner(proxy.url, config=QUICK_CLIENT)
    async with learner.client:
        await learner.client.synced(10)
        assert learner.client.channel == LONG_POLL


async def test_behind_an_impatient_proxy_polls_become_shorter(gateway: Gateway, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "PAUSE_S", 0.05)
    monkeypatch.setattr(longpoll, "WAIT_MIN_S", 1.0)
    proxy.answer_after_s = 0.3
    learner = Learner(proxy.url, channel="long-poll", config=QUICK_CLIENT)
    async with learner.client:
        await learner.client.synced(10)
        polls = learner.client._channel
        assert isinstance(polls, longpoll.LongPollLink)
        await until(lambda: polls._wait_s < 50)
    assert gateway.registrar.counters.handshakes == 1


async def test_several_addresses_the_next_when_one_is_dead(gateway: Gateway) -> None:
    learner = Learner(["http://127.0.0.1:9", gateway.url + "/"], config=QUICK_CLIENT)
    async with learner.client:
        await learner.client.synced(10)
        assert learner.client.url == gateway.url
        assert learner.client.channel == WEBSOCKET


class Pipe(roskva.Channel):
    """One end of a bad line between two ends in this process: it loses, repeats and delays."""

    def __init__(self, dice: random.Random, bad: float) -> None:
        self.other: Pipe | None = None
        self._dice = dice
        self._bad = bad
        self.carried = 0

    def send(self, data: bytes) -> None:
        self.carried += 1
        assert self.other is not None
        for _ in range(2 if self._dice.random() < self._bad else 1):
            if self._dice.random() >= self._bad:
                asyncio.get_running_loop().call_later(self._dice.random() * 0.02, self.other.received, data)


def pipe(bad: float, seed: int = 1) -> tuple[Pipe, Pipe]:
    dice = random.Random(seed)
    near, far = Pipe(dice, bad), Pipe(dice, bad)
    near.other, far.other = far, near
    return near, far


async def test_a_client_over_a_channel_of_the_applications_own(gateway: Gateway) -> None:
    near, far = pipe(bad=0.0)
    attachment = gateway.port.attach(far)
    async with SmallMatcher(gateway) as matcher:
        learner = Learner(channel=near)
        async with learner.client:
            assert learner.client.channel == "carried"
            await learner.register()
            await asyncio.gather(*(matcher.publish(name, 1) for name in OBJECTS))
            await learner.learns(1)
            assert len(gateway.registrar.sessions) == 1
            attachment.closed()
            assert not gateway.registrar.sessions
            assert not gateway.router.connections
            gateway.port.attach(far)
            await matcher.publish(OBJECTS[0], 2)  # for a client that is offline
            await learner.client.unregister(OBJECTS[1])  # whatever it says next brings it back
            await until(lambda: learner.shown[OBJECTS[0]] == [1, 2])


async def test_over_a_channel_that_loses_repeats_and_reorders_all_is_learned(gateway: Gateway) -> None:
    near, far = pipe(bad=0.2)
    gateway.port.attach(far)
    async with SmallMatcher(gateway) as matcher:
        learner = Learner(channel=near, config=LOSSY_CLIENT)
        async with learner.client:
            await learner.register()
            for version in range(1, 11):
                await asyncio.gather(*(matcher.publish(name, version) for name in OBJECTS))
            await learner.learns(10)
    assert near.carried > 20


async def test_what_an_attached_channel_is_refused(start: Start) -> None:
    gateway = await start(connections_max=1, message_bytes_max=2_000)
    told: list[bytes] = []

    class Ear(roskva.Channel):
        def send(self, data: bytes) -> None:
            told.append(data)

    class Broken(roskva.Channel):
        def send(self, data: bytes) -> None:
            raise OSError("on purpose")

    one, two, broken = Ear(), Ear(), Broken()
    gateway.port.attach(one)
    gateway.port.attach(two)
    one.received(b"x" * 2_001)
    assert b"message-too-large" in told.pop()
    for _ in range(10):
        one.received(b"nonsense")
        assert b"malformed-message" in told.pop()
    assert not gateway.router.connections  # the tenth in a row: closed, like any other
    one.received(b"nonsense")
    assert b"malformed-message" in told.pop()
    two.received(b"{}")
    assert b"unavailable" in told.pop()
    for connection in list(gateway.router.connections.values()):
        connection.close("silent")
    gateway.port.attach(broken)
    broken.received(b"{}")
    assert gateway.metrics.messages_dropped == 1
    with pytest.raises(NotImplementedError):
        roskva.Channel().send(b"")
    roskva.Channel().received(b"nobody listens")


def test_bad_channels_are_refused_at_once() -> None:
    for arguments, what in (
        ({"url": "http://h", "channel": "carrier-pigeon"}, "not a channel"),
        ({"url": "http://h", "channel": roskva.Channel()}, "has no address"),
        ({"url": []}, "no address"),
        ({"url": ["http://h", "h"]}, "'h' is not the address"),
        ({}, "'' is not the address"),
    ):
        with pytest.raises(InvalidSetting, match=what):
            Client(application="demo", **arguments)
