"""Publishes on the short way past aiohttp: the same answers, in order, and everything else takes the long way (gateway/answering.py)."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from roskva.feed import UPDATES
from roskva.gateway import service
from roskva.gateway.answering import Answering
from roskva.gateway.http import Routes
from roskva.gateway.service import Gateway
from tests.gateway.conftest import Start

GOOD = b'{"application":"demo","object":"o","version":%d}'


def request(body: bytes, *headers: str, path: str = "/v1/publish", method: str = "POST") -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


class Line:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, gateway: Gateway) -> Line:
        """One that was used before: the first request comes before aiohttp waits for any, and takes the long way."""
        host, _, port = gateway.url.removeprefix("http://").rpartition(":")
        line = cls(*await asyncio.open_connection(host, int(port)))
        assert (await line.ask(request(b"", path="/healthz", method="GET")))[0] == 200
        return line

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        return int(head[0].split(" ")[1]), fields, await self._reader.readexactly(int(fields["content-length"]))

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()


@pytest.fixture
async def line(plain: list[bytes], gateway: Gateway) -> AsyncIterator[Line]:
    line = await Line.to(gateway)
    yield line
    line.writer.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that took the short way."""
    bodies: list[bytes] = []
    publish = Routes.publish_plainly

    async def noting(self: Routes, asked: object, body: bytes) -> bytes:
        bodies.append(body)
        return await publish(self, asked, body)  # type: ignore[arg-type]

    monkeypatch.setattr(Routes, "publish_plainly", noting)
    return bodies


def appended(gateway: Gateway) -> list[int]:
    feed = gateway.routes.publishing._feed.feed  # type: ignore[attr-defined]
    records = (record for p, end in feed.newest(UPDATES).items() for record in feed.read(UPDATES, p, 0, end.offset))
    return sorted(json.loads(record.value)["version"] for record in records)


async def test_both_ways_answer_alike(line: Line, plain: list[bytes], gateway: Gateway) -> None:
    bodies = [
        GOOD % 1,
        b'{"application":"demo","updates":[{"object":"a","version":1},{"object":"","version":1}]}',
        b'{"application":"nobody","object":"o","version":1}',
        b"no JSON",
        b"",
        b'{"application":"demo","object":"","version":1}',
    ]
    for body in bodies:
        short = await line.ask(request(body))
        assert plain == [body]
        plain.clear()
        long = await line.ask(request(body, "Content-Encoding: identity"))
        assert plain == []
        assert (short[0], short[2]) == (long[0], long[2]), body
        assert short[1].keys() == long[1].keys()
        assert {name: value for name, value in short[1].items() if name != "date"} == {
            name: value for name, value in long[1].items() if name != "date"
        }


async def test_pipelined_requests_are_answered_in_their_order(line: Line, plain: list[bytes], gateway: Gateway) -> None:
    line.writer.write(request(GOOD % 1))
    while not plain:
        await asyncio.sleep(0)
    line.writer.write(request(b"", path="/healthz", method="GET") + request(GOOD % 2) + request(GOOD % 3))
    answers = [json.loads((await line.answer())[2]) for _ in range(4)]
    assert ["alive" in answer for answer in answers] == [False, True, False, False]
    assert appended(gateway) == [1, 2, 3]
    await line.ask(request(GOOD % 4))
    assert plain[-1] == GOOD % 4, "afterwards the short way is open again"


async def test_a_body_that_comes_in_pieces_takes_the_long_way(line: Line, plain: list[bytes], gateway: Gateway) -> None:
    whole = request(GOOD % 1)
    line.writer.write(whole[:-5])
    await line.writer.drain()
    await asyncio.sleep(0.05)
    assert (await line.ask(whole[-5:]))[0] == 200
    assert plain == []
    assert (await line.ask(request(GOOD % 2)))[0] == 200
    assert plain == [GOOD % 2]


@pytest.mark.parametrize(
    "header", ["Origin: http://elsewhere.example", "Content-Encoding: gzip", "Connection: close", "Expect: 100-continue"]
)
async def test_what_is_not_plain_takes_the_long_way(line: Line, plain: list[bytes], gateway: Gateway, header: str) -> None:
    line.writer.write(request(GOOD % 1, header))
    await asyncio.wait_for(line._reader.read(100), 5)
    assert plain == []


async def test_whoever_hangs_up_before_the_answer_leaves_nothing_behind(plain: list[bytes], gateway: Gateway) -> None:
    tasks = len(asyncio.all_tasks())
    for _ in range(10):
        line = await Line.to(gateway)
        line.writer.write(request(GOOD % 1))
        await line.writer.drain()
        line.writer.transport.abort()
    deadline_s = asyncio.get_running_loop().time() + 5
    while len(asyncio.all_tasks()) > tasks and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) <= tasks
    assert gateway.intake.bytes_waiting == 0


async def test_a_gateway_that_stops_answers_what_it_was_asked(line: Line, plain: list[bytes], gateway: Gateway) -> None:
    await line.ask(request(GOOD % 1))
    line.writer.write(request(GOOD % 2))
    while len(plain) < 2:
        await asyncio.sleep(0)
    stopping = asyncio.create_task(gateway.stop())
    assert (await line.answer())[0] == 200
    await stopping


async def test_an_idle_connection_is_closed_though_it_published_plainly_when_the_time_came(
    start: Start, plain: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HTTP_IDLE_S", 0.3)
    gateway = await start()
    line = await Line.to(gateway)
    publish = gateway.routes.publishing.publish

    async def slowly(*arguments: Any) -> tuple[int, bytes]:
        await asyncio.sleep(0.6)
        return await publish(*arguments)

    monkeypatch.setattr(gateway.routes.publishing, "publish", slowly)
    assert (await line.ask(request(GOOD % 1)))[0] == 200
    assert plain
    assert await asyncio.wait_for(line._reader.read(), 5) == b""
    line.writer.close()


async def test_who_never_reads_its_answers_is_not_read_either(line: Line, plain: list[bytes], gateway: Gateway) -> None:
    """Refused or not, with a key or without: answers that nobody fetches must not pile up here."""
    many = json.dumps({"application": "demo", "updates": [{}] * 9_000}).encode()  # 27 KB, answered with more than a megabyte
    line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sending = asyncio.create_task(send(line, request(many), 40))
    await asyncio.sleep(0.1)
    answering = [one for one in gc.get_objects() if isinstance(one, Answering) and one.transport is not None]
    largest = 0
    for _ in range(100):
        await asyncio.sleep(0.02)
        largest = max(largest, *(one.transport.get_write_buffer_size() for one in answering if one.transport is not None))
    sending.cancel()
    line.writer.transport.abort()
    count = len(plain)
    assert 0 < count < 20
    assert largest < 8_000_000


async def send(line: Line, data: bytes, count: int) -> None:
    for _ in range(count):
        line.writer.write(data)
        await line.writer.drain()
        await asyncio.sleep(0.02)
