"""Clients that come back with the tokens that they have, and then only are there: tens of thousands of WebSockets, or a million over lines.

They exist already: bench/filling.py put their rows into the table, as if they had registered through the service, and any process can sign
their tokens. So one message makes a session, and nothing else is asked of the service. Each process of a crowd says how many have come, and
ends with its input:

    python -m bench.crowd DATA URL FIRST COUNT LINES CLIENTS   # LINES trusted lines; 0: a WebSocket for each. CLIENTS: of the world
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.accounting import RUN_VARIABLE
from bench.filling import TAG, client_id
from bench.load import until
from bench.service import APPLICATION, BenchFailed, Service, say
from bench.world import SPREAD, World, run
from roskva.config import Settings
from roskva.keys import load_keys
from roskva.model import client_partition
from roskva.protocol.messages import ClientMessage, encode
from roskva.protocol.summaries import SetDigest
from roskva.protocol.tokens import Claims
from roskva.table import SqliteTable, open_manifest

REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
_ASKED_MAX: Final = 1_000  # clients of one process that wait for their first answer
_OF_A_PROCESS: Final = 17_000  # WebSockets: files are limited
_COME_S: Final = 900.0
_TEXT: Final = WSMsgType.TEXT


def world_of(clients: int) -> World:
    return World(clients, REGISTRATIONS, FAN_OUT)


class Tokens:
    """What the clients say first. `objects`: of the whole world."""

    def __init__(self, data: Path, world: World) -> None:
        settings = Settings(data=data)
        self._settings = settings
        self._world = world
        self._objects = world.clients * world.registrations // world.fan_out
        self._keyring = load_keys(data).keyring
        manifest = open_manifest(settings)
        table = SqliteTable(data, manifest)
        self._incarnations = [table.incarnation("registrar", partition) for partition in range(settings.partitions)]
        table.close()
        manifest.close()

    def first_message(self, number: int) -> bytes:
        client = client_id(number)
        incarnation = self._incarnations[client_partition(client, self._settings.partitions)]
        claims = Claims(client, APPLICATION, f"device-{number}", 1, self._settings.data_center, incarnation, TAG)
        first = number * self._world.registrations
        slots = range(first, first + self._world.registrations)
        digest = SetDigest(f"{self._world.prefix}{slot * SPREAD % self._objects}".encode() for slot in slots)
        return encode(ClientMessage(token=self._keyring.sign(claims), summary=digest.summary()))


class _Coming:
    """Who has come, and who may ask next."""

    def __init__(self, tokens: Tokens, first: int, count: int) -> None:
        self.tokens = tokens
        self.next = first
        self.end = first + count
        self.came = 0
        self.failure = ""
        self._first = first
        self._answered = bytearray(count)

    def answered(self, number: int, data: bytes) -> bool:
        """Whether it is this client's first answer."""
        if b'"error"' in data or b'"start_anew"' in data:
            self.failure = self.failure or data.decode()
        if self._answered[number - self._first]:
            return False
        self._answered[number - self._first] = 1
        self.came += 1
        return True


class _Line(WSListener):
    """A trusted line: each answer lets the next client ask."""

    def __init__(self, coming: _Coming) -> None:
        self._coming = coming
        self._transport: WSTransport | None = None
        self._carried: list[int] = []  # clients, by what the line calls them: numbers that follow each other

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._coming.failure = self._coming.failure or "a line was cut"

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == _TEXT:
            digits, _, data = frame.get_payload_as_bytes().partition(b" ")
            if digits.isdigit() and self._coming.answered(self._carried[int(digits)], data):
                self.ask()

    def ask(self) -> None:
        coming = self._coming
        if coming.next < coming.end and self._transport is not None:
            number, coming.next = coming.next, coming.next + 1
            self._transport.send(_TEXT, b"%d %b" % (len(self._carried), coming.tokens.first_message(number)))
            self._carried.append(number)


class _Alone(WSListener):
    """A client with a WebSocket of its own."""

    def __init__(self, coming: _Coming, number: int, answered: asyncio.Future[None]) -> None:
        self._coming = coming
        self._number = number
        self._answered: asyncio.Future[None] | None = answered

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(_TEXT, self._coming.tokens.first_message(self._number))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._coming.failure = self._coming.failure or "a connection was closed"

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == _TEXT and self._coming.answered(self._number, frame.get_payload_as_bytes()) and self._answered:
            self._answered.set_result(None)
            self._answered = None


async def _over_lines(coming: _Coming, url: str, key: str, lines: int) -> None:
    for _ in range(lines):
        headers = {"Authorization": f"Bearer {key}"}
        _, line = await ws_connect(lambda: _Line(coming), url + "/v1/trusted?keepalive=line", extra_headers=headers)
        for _ in range(_ASKED_MAX // lines):
            line.ask()  # type: ignore[attr-defined]


async def _alone(coming: _Coming, url: str, address: str) -> None:
    """Some at a time: each opens its connection, and is answered. From an address of this process, since one has some 28,000 ports."""

    async def one_after_the_other() -> None:
        while coming.next < coming.end and not coming.failure:
            number, coming.next = coming.next, coming.next + 1
            answered = asyncio.get_running_loop().create_future()
            alone = _Alone(coming, number, answered)
            await ws_connect(lambda: alone, url + "/v1/channel", read_buffer_init_size=1024, local_addr=(address, 0))  # noqa: B023
            await answered

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(one_after_the_other())


async def _come(data: Path, url: str, address: str, first: int, count: int, lines: int, clients: int) -> None:
    coming = _Coming(Tokens(data, world_of(clients)), first, count)
    channel_url = url.replace("http", "ws", 1)
    if lines:
        await _over_lines(coming, channel_url, load_keys(data).trusted, lines)
    else:
        await _alone(coming, channel_url, address)
    await until(lambda: coming.came == count or bool(coming.failure), _COME_S)
    print(coming.failure or "all are here", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    if coming.failure:
        print(coming.failure, flush=True)


class Crowd:
    """The processes of one crowd: `with Crowd(...)`, until which all have come, and to the end of which all stay."""

    def __init__(self, service: Service, clients: int, lines: int = 0, coming: int | None = None) -> None:
        """`coming`: only so many of the clients that there are."""
        world, clients = clients, coming or clients
        share = clients if lines else min(_OF_A_PROCESS, clients)
        self._commands = [
            [sys.executable, "-m", "bench.crowd", str(service.data), service.url, f"127.0.0.{number + 1}"]
            + [str(argument) for argument in (first, min(share, clients - first), lines, world)]
            for number, first in enumerate(range(0, clients, share))
        ]
        self._clients = clients
        self._environment = {**os.environ, RUN_VARIABLE: service.run}
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        began_s = time.monotonic()
        try:
            for command in self._commands:
                pipe = subprocess.PIPE
                self._processes.append(subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, text=True))
            for process in self._processes:
                assert process.stdout is not None
                said = process.stdout.readline().strip()
                if said != "all are here":
                    raise BenchFailed(f"Not all of {self._clients:,} clients came: {said or 'their process ended'}")
        except BaseException:
            self._end()
            raise
        self.came_s = time.monotonic() - began_s
        say(f"{self._clients:,} clients came in {self.came_s:.0f} s")
        return self

    def __exit__(self, *_: object) -> None:
        if any(self._end()):
            raise BenchFailed("Some of the clients lost their connection.")

    def _end(self) -> list[str]:
        """What they had to complain of."""
        said = []
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                said.append(process.stdout.read())
                process.stdout.close()
        return said


if __name__ == "__main__":
    data, url, address, *numbers = sys.argv[1:]
    run(_come(Path(data), url, address, *map(int, numbers)))
