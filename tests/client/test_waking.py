"""Sleep: noticed by either clock, and the connection is then checked at once, in this process and in one that was really stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from roskva.client import shell, shell_waking, waking
from roskva.client.shell import Client
from roskva.client.waking import LOOK_EVERY_S, SLEPT_S, Waking
from roskva.protocol.messages import ClientMessage, Config
from tests.client.gateway import CONFIG, FakeGateway, with_config

pytestmark = pytest.mark.timeout(60)

HOUR_S = 3_600.0
SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("what", "monotonic_s", "wall_s", "slept"),
    [
        ("on time", LOOK_EVERY_S, LOOK_EVERY_S, False),
        ("a little late: busy", LOOK_EVERY_S + SLEPT_S - 1, LOOK_EVERY_S + SLEPT_S - 1, False),
        ("stopped: both clocks went on", HOUR_S, HOUR_S, True),
        ("the machine slept: one stood still", LOOK_EVERY_S, HOUR_S, True),
        ("the clock on the wall was set back", LOOK_EVERY_S, -HOUR_S, False),
        ("set back, and stopped", HOUR_S, -HOUR_S, True),
    ],
)
def test_either_clock_tells_of_a_sleep(what: str, monotonic_s: float, wall_s: float, slept: bool) -> None:
    clocks = Waking(100.0, 1e9)
    assert clocks.slept(100.0 + monotonic_s, 1e9 + wall_s) is slept, what
    assert not clocks.slept(100.0 + monotonic_s + LOOK_EVERY_S, 1e9 + wall_s + LOOK_EVERY_S), "once for each sleep"


async def until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class Wall:
    """Stands for the module `time` of shell_waking."""

    now_s = 1e9

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(shell_waking, "time", wall)
    monkeypatch.setattr(waking, "LOOK_EVERY_S", 0.02)
    return wall


async def test_after_a_sleep_the_client_speaks_and_trusts_nothing_until_it_is_answered(wall: Wall) -> None:
    async with FakeGateway() as gateway, Client(gateway.url, application="demo", config=CONFIG, on_notify=lambda _: None) as client:
        with_config(gateway, keepalive_s=600)  # nothing else would make it speak
        gateway.versions["a"] = 1
        await client.register("a")
        await until(lambda: gateway.acks)
        await gateway.say(gateway.clients[0])
        await until(lambda: client.in_sync)
        said, gateway.silent = len(gateway.received), True
        wall.now_s += HOUR_S
        await until(lambda: len(gateway.received) > said)
        assert not client.in_sync
        assert client.connected
        gateway.silent = False
        wall.now_s += HOUR_S
        await until(lambda: client.in_sync)
        assert {message.token for message in gateway.received[said:]} == {"c1.s1"}, "the same session"


async def test_a_client_that_waits_to_connect_again_does_not_wait_after_a_sleep(wall: Wall) -> None:
    gateway = FakeGateway()
    async with gateway:
        pass  # its port is free again: nobody answers there
    config = Config(connect_min_s=600, connect_max_s=600)
    async with Client(gateway.url, application="demo", config=config) as client:
        await until(lambda: client._unreachable)
        async with gateway:
            wall.now_s += HOUR_S
            await until(lambda: client.connected)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the shell sleeps, which it does after it woke and at no other time."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0.005)

    class Asyncio:
        def __getattr__(self, name: str) -> object:
            return noted if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr(shell, "asyncio", Asyncio())
    return pauses


async def test_those_who_wake_together_do_not_connect_together(wall: Wall, pauses: list[float]) -> None:
    client = Client("http://127.0.0.1:9", application="demo", config=Config(connect_min_s=600, connect_max_s=600))
    client._random = lambda: 0.25
    async with client:
        await until(lambda: client._unreachable)
        wall.now_s += HOUR_S
        await until(lambda: pauses)
    assert pauses[0] == waking.SMEAR_S * 0.25


async def test_nor_do_those_whose_pauses_ended_while_they_slept(wall: Wall, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "SLEPT_S", 0.2)
    async with Client("http://127.0.0.1:9", application="demo", config=Config(connect_min_s=0.2, connect_max_s=0.2)) as client:
        await until(lambda: client._unreachable)
        for _ in range(20):  # once is enough, unless it was just connecting
            time.sleep(0.4)  # noqa: ASYNC251 - the whole process stands still
            await asyncio.sleep(0.02)
            if pauses:
                break
    assert pauses


async def test_one_looks_for_all_clients_of_an_event_loop(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "LOOK_EVERY_S", 600.0)
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def noted(delay_s: float, callback: Callable[..., object], *more: object) -> asyncio.TimerHandle:
        timers.append(delay_s)
        return later(delay_s, callback, *more)

    monkeypatch.setattr(loop, "call_later", noted)
    clients = [Client("http://127.0.0.1:9", application="demo") for _ in range(20)]
    for client in clients:
        await client.start()
    assert timers.count(600.0) == 1
    assert len(shell_waking._WATCHES[loop].sleepers) == 20
    for client in clients:
        await client.close()
    assert not shell_waking._WATCHES[loop].sleepers


async def test_when_there_is_no_client_left_nobody_looks(wall: Wall) -> None:
    async with Client("http://127.0.0.1:9", application="demo"):
        assert asyncio.get_running_loop() in shell_waking._WATCHES
    await until(lambda: asyncio.get_running_loop() not in shell_waking._WATCHES)


async def test_one_client_that_fails_keeps_nobody_from_being_told(wall: Wall) -> None:
    class Thing:
        def __init__(self, fails: bool) -> None:
            self.fails, self.told = fails, 0

        def woke(self) -> None:
            self.told += 1
            if self.fails:
                raise ValueError("a defect")

    things = [Thing(False), Thing(True), Thing(False)]
    for thing in things:
        shell_waking.watch(thing, Thing.woke)
    wall.now_s += HOUR_S
    await until(lambda: [thing.told for thing in things] == [1, 1, 1])
    wall.now_s += HOUR_S
    await until(lambda: [thing.told for thing in things] == [2, 2, 2])
    for thing in things:
        shell_waking.leave(thing)


def test_neither_a_client_nor_an_event_loop_is_held() -> None:
    """Somebody's program ends its event loop, and closes no client."""

    class Thing:
        pass

    async def start() -> list[weakref.ref[object]]:
        thing = Thing()
        shell_waking.watch(thing, lambda _: None)
        return [weakref.ref(thing), weakref.ref(asyncio.get_running_loop())]

    held = asyncio.run(start())
    gc.collect()
    assert [one() for one in held] == [None, None]


SLEEPER = """
import asyncio, sys
from roskva.client import waking
from roskva.client.shell import Client

waking.LOOK_EVERY_S, waking.SLEPT_S, waking.ANSWER_S = 0.2, 1.0, 1.0

async def main():
    async def show(told):
        print(told.version, flush=True)

    async with Client(sys.argv[1], application="demo", on_notify=show, on_unknown=lambda _: None) as client:
        await client.register("a")
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_process_that_was_stopped_finds_its_connection_dead_and_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is stopped its connection dies without a word: a NAT has forgotten it, say. No keepalive is due for a long time."""
    async with FakeGateway() as gateway:
        with_config(gateway, keepalive_s=600)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SLEEPER, gateway.url),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        try:
            assert process.stdout is not None
            await until(lambda: gateway.acks)
            (client,) = gateway.clients
            dead, answer = client.socket, gateway._heard

            async def answer_the_living(socket: web.WebSocketResponse, message: ClientMessage) -> None:
                if socket is not dead:
                    await answer(socket, message)

            os.kill(process.pid, signal.SIGSTOP)
            await gateway.say(client)  # it lies in the buffers of the connection that dies, and is no sign of life
            monkeypatch.setattr(gateway, "_heard", answer_the_living)
            await asyncio.sleep(2.0)
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: client.socket is not dead)
            await gateway.publish("a", 8)
            assert await asyncio.wait_for(process.stdout.readline(), 20) == b"8\n"
            assert len(gateway.clients) == 1, "the same client"
        finally:
            process.kill()
            await process.wait()
