"""The client's end of long polls, against a server that answers as the test says (client/channels/longpoll.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from roskva.client.channels import longpoll
from roskva.client.channels.link import NotConnected
from roskva.client.channels.longpoll import LongPollLink
from roskva.client.choice import Failure
from roskva.protocol.messages import ServerMessage

pytestmark = pytest.mark.timeout(20)


class Server:
    """Answers each request with the next status of its script, and then for ever with 204; polls wait when theirs is over."""

    def __init__(self) -> None:
        self.opening: tuple[int, bytes] = (201, b'{"id":"one","wait_s":50}')
        self.posts: list[int] = []
        self.polls: list[tuple[int, bytes]] = []
        self.bodies: list[bytes] = []
        self.asked: list[str] = []
        self.deleted = 0
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/channels", self._open)
        app.router.add_post("/v1/channels/one", self._post)
        app.router.add_get("/v1/channels/one", self._poll)
        app.router.add_delete("/v1/channels/one", self._delete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        return runner

    async def _open(self, request: web.Request) -> web.Response:
        return web.Response(status=self.opening[0], body=self.opening[1])

    async def _post(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response(status=self.posts.pop(0) if self.posts else 204)

    async def _poll(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["wait_s"])
        if not self.polls:
            await asyncio.sleep(3600)
        status, body = self.polls.pop(0)
        return web.Response(status=status, body=body or None)

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted += 1
        return web.Response(status=204)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(longpoll, "PAUSE_S", 0.01)
    server = Server()
    runner = await server.start()
    yield server
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def run_to_its_end(link: LongPollLink) -> tuple[str, list[ServerMessage]]:
    received: list[ServerMessage] = []
    async with asyncio.timeout(10):
        return await link.run(received.append), received


async def test_messages_come_one_to_a_line_and_the_end_is_told(server: Server, http: aiohttp.ClientSession) -> None:
    server.polls = [(200, b'{"time_ms":1}\n{"time_ms":2}'), (204, b""), (200, b'{"time_ms":3}'), (410, b"")]
    link = await LongPollLink.connect(http, server.url)
    reason, received = await run_to_its_end(link)
    assert reason == "closed by the service"
    assert [message.time_ms for message in received] == [1, 2, 3]
    assert link.heard
    assert not link.cut
    assert server.deleted == 1


async def test_polls_are_repeated_and_given_up_after_three_failures_in_a_row(server: Server, http: aiohttp.ClientSession) -> None:
    server.polls = [(503, b""), (502, b""), (200, b'{"time_ms":1}'), (503, b""), (503, b""), (504, b"")]
    link = await LongPollLink.connect(http, server.url)
    reason, received = await run_to_its_end(link)
    assert "3 polls in a row failed, the last with 504" in reason
    assert len(received) == 1
    assert link.cut


async def test_a_poll_that_failed_after_a_while_is_shortened_and_one_that_failed_at_once_is_not(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.polls = [(504, b""), (410, b"")]
    await run_to_its_end(await LongPollLink.connect(http, server.url))
    monkeypatch.setattr(longpoll, "PAUSE_S", 0.0)
    server.polls = [(504, b""), (204, b""), (504, b""), (204, b""), (410, b"")]
    await run_to_its_end(await LongPollLink.connect(http, server.url))
    assert server.asked == ["50", "50", "50", "25", "25", "12", "12"]


async def test_requests_are_repeated_until_they_are_taken(server: Server, http: aiohttp.ClientSession) -> None:
    server.posts = [500, 503, 204]
    link = await LongPollLink.connect(http, server.url)
    running = asyncio.create_task(run_to_its_end(link))
    link.send(b"one")
    link.send(b"two")
    await link.drained()
    assert server.bodies == [b"one\ntwo"] * 3
    link.hang_up()
    assert (await running)[0] == "closed by this client"
    assert not link.cut


async def test_what_is_too_much_together_is_sent_one_by_one(server: Server, http: aiohttp.ClientSession) -> None:
    server.posts = [413, 413]
    link = await LongPollLink.connect(http, server.url)
    running = asyncio.create_task(run_to_its_end(link))
    link.send(b"one")
    link.send(b"two")
    await link.drained()
    assert server.bodies == [b"one\ntwo", b"one", b"two"]  # the first alone was refused again: dropped
    link.hang_up()
    await running


@pytest.mark.parametrize(("posts", "told"), [([500, 500, 500], "500"), ([410], "410")])
async def test_requests_that_are_never_taken_end_the_connection(
    server: Server, http: aiohttp.ClientSession, posts: list[int], told: str
) -> None:
    server.posts = posts
    link = await LongPollLink.connect(http, server.url)
    link.send(b"one")
    reason, _ = await run_to_its_end(link)
    assert reason == f"broken: a request was answered with {told}"


async def test_work_that_must_be_done_first_comes_before_what_is_sent_later(server: Server, http: aiohttp.ClientSession) -> None:
    link = await LongPollLink.connect(http, server.url)
    seen: list[list[bytes]] = []

    async def work() -> None:
        seen.append(list(server.bodies))

    link.send(b"before")
    link.first(work)
    link.send(b"after")
    running = asyncio.create_task(run_to_its_end(link))
    await asyncio.sleep(0)
    await link.drained()
    assert seen == [[b"before"]]
    assert server.bodies == [b"before", b"after"]
    link.hang_up()
    await running
    link.first(work)
    await link.close()
    assert len(seen) == 2  # done in any case


async def test_why_there_is_no_connection(server: Server, http: aiohttp.ClientSession) -> None:
    for opening, why in (
        ((404, b""), Failure.REFUSED),
        ((503, b""), Failure.BROKEN),
        ((201, b"<html>"), Failure.REFUSED),
        ((201, b"{}"), Failure.REFUSED),
    ):
        server.opening = opening
        with pytest.raises(NotConnected) as refused:
            await LongPollLink.connect(http, server.url)
        assert refused.value.why is why
    with pytest.raises(NotConnected) as refused:
        await LongPollLink.connect(http, "http://127.0.0.1:9")
    assert refused.value.why is Failure.UNREACHABLE
