"""Calls of an application's own service: a real server on 127.0.0.1; the pauses of the circuit breaker on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from roskva.access import webhooks as module
from roskva.access.webhooks import CALLS_MAX, Webhooks, shown_url, webhook_key
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, InvalidSetting
from tests.access.service import Answer, Clock, Service, answering, serving

SETTINGS = ApplicationSettings(webhook_timeout_s=0.5)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving(answering({"fine": True})) as service:
        yield service


@pytest.fixture
async def webhooks(clock: Clock) -> AsyncIterator[Webhooks]:
    webhooks = Webhooks(clock)
    yield webhooks
    await webhooks.close()


async def fails(webhooks: Webhooks, url: str, settings: ApplicationSettings = SETTINGS, application: str = "") -> AuthorizationUnavailable:
    with pytest.raises(AuthorizationUnavailable) as caught:
        await webhooks.post(url, {}, settings, application)
    assert "127.0.0.1" not in str(caught.value), "clients hear this"
    return caught.value


async def test_json_to_json(service: Service, webhooks: Webhooks) -> None:
    assert await webhooks.post(service.url, {"object": "Þ", "n": [1, None]}, SETTINGS) == {"fine": True}
    assert service.asked == [{"object": "Þ", "n": [1, None]}]
    assert service.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in service.headers[0]


async def test_the_key_of_a_file_is_shown_and_read_again(service: Service, webhooks: Webhooks, tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "key"
    file.write_text("  s3cret\n")
    settings = ApplicationSettings(webhook_key_file=str(file))
    await webhooks.post(service.url, {}, settings)
    file.write_text("another")
    clock.now_s += 2
    await webhooks.post(service.url, {}, settings)
    assert [headers["Authorization"] for headers in service.headers] == ["Bearer s3cret", "Bearer another"]


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"a\r\nX-Evil: 1", "schlüssel".encode()])
async def test_without_its_key_nobody_is_called(content: bytes | None, service: Service, webhooks: Webhooks, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(InvalidSetting):
            webhook_key(content)
    await fails(webhooks, service.url, ApplicationSettings(webhook_key_file=str(tmp_path / "key")))
    assert service.asked == []


@pytest.mark.parametrize("status", [201, 204, 400, 401, 403, 404, 429, 500, 503])
async def test_the_caller_sees_the_status(status: int, service: Service, webhooks: Webhooks) -> None:
    service.answer = answering({"fine": True}, status)
    assert (await fails(webhooks, service.url)).answered == status


async def redirecting(request: web.Request, _body: Any) -> web.Response:
    raise web.HTTPTemporaryRedirect(str(request.url.with_path("/elsewhere")))


async def large(_request: web.Request, _body: Any) -> web.Response:
    return web.json_response("x" * 70_000)


async def endless(request: web.Request, _body: Any) -> web.Response:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 10_000)


async def packed(_request: web.Request, _body: Any) -> web.Response:
    return web.Response(body=gzip.compress(b'"' + b"x" * 50_000_000 + b'"'), headers={"Content-Encoding": "gzip"})


async def hanging(_request: web.Request, _body: Any) -> web.Response:
    await asyncio.sleep(5)
    return web.json_response({})


async def trickling(request: web.Request, _body: Any) -> web.Response:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    raise AssertionError("the caller is still there")


async def no_json(_request: web.Request, _body: Any) -> web.Response:
    return web.Response(text="{fine}")


async def nested(_request: web.Request, _body: Any) -> web.Response:
    return web.Response(text="[" * 50_000)


@pytest.mark.parametrize("answer", [redirecting, large, endless, packed, hanging, trickling, no_json, nested])
async def test_answers_that_are_none(answer: Answer, service: Service, webhooks: Webhooks) -> None:
    service.answer = answer
    async with asyncio.timeout(5):
        await fails(webhooks, service.url)
    assert len(service.asked) == 1


async def test_nobody_there(webhooks: Webhooks) -> None:
    for url in ("http://127.0.0.1:1/", "http://127.0.0.1:99999/", "nonsense"):
        await fails(webhooks, url)


async def test_a_kept_connection_that_was_closed_is_no_failure(webhooks: Webhooks) -> None:
    """A server closes idle connections at the very moment at which they are used again."""
    lines = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lines
        await reader.readuntil(b"{}")
        lines += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n")  # the next request, which is not answered
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert await webhooks.post(url, {}, SETTINGS) == {}
        assert await webhooks.post(url, {}, SETTINGS) == {}
    assert lines == 2


async def test_no_cookies_are_kept(service: Service, webhooks: Webhooks) -> None:
    async def baking(_request: web.Request, _body: Any) -> web.Response:
        response = web.json_response({})
        response.set_cookie("session", "1")
        return response

    service.answer = baking
    await webhooks.post(service.url, {}, SETTINGS)
    await webhooks.post(service.url, {}, SETTINGS)
    assert all("Cookie" not in headers for headers in service.headers)


# How many.


class Gate:
    """Answers when it is opened, and counts who is inside."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.inside = 0
        self.most = 0

    async def __call__(self, _request: web.Request, _body: Any) -> web.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.opened.wait()
        self.inside -= 1
        return web.json_response({})

    async def full(self, count: int = CALLS_MAX) -> None:
        async with asyncio.timeout(10):
            while self.inside < count:
                await asyncio.sleep(0.005)


async def test_at_most_64_calls_of_an_application_are_under_way(service: Service, webhooks: Webhooks) -> None:
    service.answer = gate = Gate()
    patient = ApplicationSettings(webhook_timeout_s=20.0)
    calls = [asyncio.create_task(webhooks.post(service.url, {}, patient, "shop")) for _ in range(200)]
    await gate.full()
    await asyncio.sleep(0.1)
    assert gate.inside == 64
    other = asyncio.create_task(webhooks.post(service.url, {}, patient, "news"))
    await gate.full(65)  # another application does not wait for it
    gate.opened.set()
    assert await asyncio.gather(other, *calls) == [{}] * 201
    assert gate.most == 65
    assert webhooks._places == {}


async def test_whoever_finds_no_place_in_time_is_told_so_and_it_counts_for_nothing(service: Service, webhooks: Webhooks) -> None:
    service.answer = gate = Gate()
    patient = ApplicationSettings(webhook_timeout_s=20.0)
    calls = [asyncio.create_task(webhooks.post(service.url, {}, patient, "shop")) for _ in range(CALLS_MAX)]
    await gate.full()
    hurried = ApplicationSettings(webhook_timeout_s=0.05)
    errors = await asyncio.gather(*(fails(webhooks, service.url, hurried, "shop") for _ in range(20)))
    assert all("busy" in error.what for error in errors)
    gate.opened.set()
    await asyncio.gather(*calls)
    assert await webhooks.post(service.url, {}, hurried, "shop") == {}


async def test_not_everybody_may_wait(service: Service, webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    service.answer = gate = Gate()
    patient = ApplicationSettings(webhook_timeout_s=20.0)
    calls = [asyncio.create_task(webhooks.post(service.url, {}, patient, "shop")) for _ in range(CALLS_MAX + 3)]
    await gate.full()
    assert "Too many wait" in (await fails(webhooks, service.url, patient, "shop")).what
    gate.opened.set()
    assert await asyncio.gather(*calls) == [{}] * (CALLS_MAX + 3)


async def test_calls_that_are_given_up_leave_their_places(service: Service, webhooks: Webhooks) -> None:
    service.answer = gate = Gate()
    patient = ApplicationSettings(webhook_timeout_s=20.0)
    calls = [asyncio.create_task(webhooks.post(service.url, {}, patient, "shop")) for _ in range(CALLS_MAX + 50)]
    await gate.full()
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert webhooks._places == {}
    gate.opened.set()
    assert await webhooks.post(service.url, {}, SETTINGS, "shop") == {}


# The circuit breaker.


async def test_after_five_failures_it_is_left_alone_for_pauses_that_double(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    service.answer = answering({}, 500)
    for _ in range(5):
        assert (await fails(webhooks, service.url)).answered == 500
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        count = len(service.asked)
        clock.now_s += pause_s - 0.01
        error = await fails(webhooks, service.url)
        assert error.answered == 0
        assert "left alone" in error.what
        assert error.retry_after_s >= 1
        assert len(service.asked) == count
        clock.now_s += 0.02
        assert (await fails(webhooks, service.url)).answered == 500
        assert len(service.asked) == count + 1


async def test_one_success_makes_it_good_again(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    service.answer = answering({}, 500)
    for _ in range(5):
        await fails(webhooks, service.url)
    clock.now_s += 1.1
    service.answer = answering("good")
    assert await webhooks.post(service.url, {}, SETTINGS) == "good"
    service.answer = answering({}, 500)
    for _ in range(5):  # five more until the next pause, which begins small
        assert (await fails(webhooks, service.url)).answered == 500
    clock.now_s += 1.1
    assert (await fails(webhooks, service.url)).answered == 500


async def test_failures_that_are_not_in_a_row_do_not_count(service: Service, webhooks: Webhooks) -> None:
    for number in range(30):
        service.answer = answering({}, 200 if number % 5 == 4 else 500)
        if number % 5 == 4:
            await webhooks.post(service.url, {}, SETTINGS)
        else:
            assert (await fails(webhooks, service.url)).answered == 500
    assert len(service.asked) == 30


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_is_an_answer(status: int, service: Service, webhooks: Webhooks) -> None:
    """Or whoever tries wrong credentials would shut out everybody."""
    service.answer = answering({}, status)
    for _ in range(20):
        assert (await fails(webhooks, service.url)).answered == status
    assert len(service.asked) == 20


@pytest.mark.parametrize("status", [201, 204, 302, 400, 404, 405, 413, 415, 422])
async def test_what_a_stranger_can_make_it_answer_counts_for_nothing(status: int, service: Service, webhooks: Webhooks) -> None:
    """Neither as a failure, or he would shut out everybody, nor as a sign that it is well."""
    service.answer = answering({}, status)
    for _ in range(20):
        assert (await fails(webhooks, service.url)).answered == status
    assert len(service.asked) == 20
    for number in range(5):
        service.answer = answering({}, 500)
        assert (await fails(webhooks, service.url)).answered == 500
        if number < 4:
            service.answer = answering({}, status)
            assert (await fails(webhooks, service.url)).answered == status
    assert "left alone" in (await fails(webhooks, service.url)).what


@pytest.mark.parametrize("answer", [no_json, nested, large])
async def test_nor_does_an_answer_that_cannot_be_used(answer: Answer, service: Service, webhooks: Webhooks) -> None:
    service.answer = answer
    for _ in range(10):
        assert (await fails(webhooks, service.url)).answered == 200
    assert len(service.asked) == 10


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_statuses_that_speak_of_the_service_are_failures(status: int, service: Service, webhooks: Webhooks) -> None:
    service.answer = answering({}, status)
    for _ in range(5):
        assert (await fails(webhooks, service.url)).answered == status
    assert "left alone" in (await fails(webhooks, service.url)).what
    assert len(service.asked) == 5


async def test_time_outs_are_failures(service: Service, webhooks: Webhooks) -> None:
    service.answer = hanging
    hurried = ApplicationSettings(webhook_timeout_s=0.05)
    for _ in range(5):
        assert "did not answer" in (await fails(webhooks, service.url, hurried)).what
    assert "left alone" in (await fails(webhooks, service.url)).what


async def test_after_a_pause_any_answer_shows_that_it_is_there(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    """Or whoever sends nonsense would use up the tries of the others."""
    service.answer = answering({}, 500)
    for _ in range(5):
        await fails(webhooks, service.url)
    clock.now_s += 1.1
    service.answer = answering({}, 400)
    assert (await fails(webhooks, service.url)).answered == 400
    service.answer = gate = Gate()
    calls = [asyncio.create_task(webhooks.post(service.url, {}, SETTINGS)) for _ in range(5)]
    await gate.full(5)
    gate.opened.set()
    assert await asyncio.gather(*calls) == [{}] * 5


async def test_after_a_pause_one_call_goes_ahead(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    service.answer = answering({}, 500)
    for _ in range(5):
        await fails(webhooks, service.url)
    clock.now_s += 1.1
    service.answer = gate = Gate()
    first = asyncio.create_task(webhooks.post(service.url, {}, SETTINGS))
    await gate.full(1)
    assert "left alone" in (await fails(webhooks, service.url)).what
    gate.opened.set()
    assert await first == {}
    assert await webhooks.post(service.url, {}, SETTINGS) == {}


async def test_a_try_that_is_given_up_is_followed_by_another(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    service.answer = answering({}, 500)
    for _ in range(5):
        await fails(webhooks, service.url)
    clock.now_s += 1.1
    service.answer = gate = Gate()
    first = asyncio.create_task(webhooks.post(service.url, {}, SETTINGS))
    await gate.full(1)
    first.cancel()
    await asyncio.wait([first])
    gate.opened.set()
    assert await webhooks.post(service.url, {}, SETTINGS) == {}


async def test_calls_that_were_under_way_do_not_make_the_pause_longer(service: Service, webhooks: Webhooks, clock: Clock) -> None:
    service.answer = answering({}, 500)
    await asyncio.gather(*(fails(webhooks, service.url) for _ in range(30)))
    assert len(service.asked) >= 5
    count = len(service.asked)
    clock.now_s += 1.01
    assert (await fails(webhooks, service.url)).answered == 500
    assert len(service.asked) == count + 1


async def test_one_that_is_broken_takes_no_other_along(service: Service, webhooks: Webhooks) -> None:
    for _ in range(6):
        await fails(webhooks, "http://127.0.0.1:1/")
    assert await webhooks.post(service.url, {}, SETTINGS) == {"fine": True}


async def test_what_is_remembered_is_bounded(webhooks: Webhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_MAX", 5)
    for number in range(20):
        await fails(webhooks, f"http://127.0.0.1:1/{number}")
    assert list(webhooks._breakers) == [f"http://127.0.0.1:1/{number}" for number in range(15, 20)]


async def test_after_closing_nobody_is_called(service: Service, webhooks: Webhooks) -> None:
    await webhooks.post(service.url, {}, SETTINGS)
    await webhooks.close()
    await fails(webhooks, service.url)
    assert len(service.asked) == 1


def test_no_secret_of_a_url_is_logged() -> None:
    assert shown_url("https://user:secret@shop.example/may?key=secret") == "shop.example/may"
