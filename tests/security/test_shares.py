"""What one publisher may take from the others: room for requests, invalidations; and what anybody may ask for costs little."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from roskva.access.publish_keys import hash_of, new_key
from roskva.config import ApplicationSettings
from roskva.errors import DiskFull, RateLimited
from roskva.gateway.commands import Commands
from roskva.gateway.inspection import Inspection
from roskva.gateway.intake import REQUEST_BYTES, Intake
from roskva.gateway.service import Gateway
from roskva.telemetry.metrics import Metrics
from tests.gateway.conftest import Start
from tests.security.conftest import STRANGER, connect_from
from tests.security.test_strangers import until


def post(path: str, body: bytes, key: str = "", length: int = 0) -> bytes:
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{shown}Content-Length: {length or len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("with_keys", [True, False], ids=["by key", "by address"])
async def test_slow_publishes_of_one_leave_room_for_others(start: Start, with_keys: bool) -> None:
    slow_key, good_key = (new_key(), new_key()) if with_keys else ("", "")
    keys = {"slow": slow_key, "good": good_key}
    applications = {name: ApplicationSettings(publish_keys=(hash_of(key),) if key else ()) for name, key in keys.items()}
    gateway = await start(applications=applications)
    whole = gateway.settings.publish_waiting_bytes_max
    sizes = [8 << 20] * 7 + [1 << shift for shift in range(22, 9, -1)]  # together all of it
    raws = [await connect_from(gateway) for _ in sizes]
    for raw, size in zip(raws, sizes, strict=True):
        await raw.send(post("/v1/publish", b"{", slow_key, size))
    await until(lambda: gateway.metrics.publishes_overloaded > 5)
    assert 0 < gateway.intake.bytes_waiting <= whole // 4
    other = await connect_from(gateway, STRANGER if with_keys else "127.0.0.3")
    update = json.dumps({"application": "good", "object": "o", "version": 1}).encode()
    await other.send(post("/v1/publish", update, good_key))
    assert (await other.read_head()).startswith(b"HTTP/1.1 200 ")
    for raw in [*raws, other]:
        await raw.close()
    await until(lambda: gateway.intake.bytes_waiting == 0)
    assert not gateway.intake._of_publisher


def test_a_single_request_is_never_too_large_for_its_publisher() -> None:
    intake = Intake(8 * REQUEST_BYTES, Metrics())
    with intake.request(6 * REQUEST_BYTES, "one"):
        assert intake.bytes_waiting == 7 * REQUEST_BYTES


async def test_keys_that_nobody_knows_have_no_share_of_their_own(start: Start) -> None:
    applications = {"open": ApplicationSettings(), "closed": ApplicationSettings(publish_keys=(hash_of(new_key()),))}
    gateway = await start(applications=applications)
    raws = [await connect_from(gateway) for _ in range(8)]
    for raw in raws:
        await raw.send(post("/v1/publish", b"{", new_key(), 8 << 20))
    await until(lambda: gateway.metrics.publishes_overloaded)
    assert len(gateway.intake._of_publisher) == 1
    for raw in raws:
        await raw.close()


async def test_invalidations_of_an_application_have_a_rate(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    commands = gateway.routes.commands
    now_s = 1_000.0
    commands._clock = lambda: now_s
    for _ in range(100):
        await commands.invalidate(b'{"application":"demo","object":"o"}')
    async with http.post(gateway.url + "/v1/invalidate", data=b'{"application":"demo"}') as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], answer.headers["Retry-After"]) == (429, "rate-limited", "1")
    assert gateway.metrics.limited_publishes == 1
    with pytest.raises(RateLimited):
        await commands.invalidate(b'{"application":"demo"}')
    now_s += 0.1
    await commands.invalidate(b'{"application":"demo","object":"o"}')
    assert isinstance(commands, Commands)


@pytest.mark.parametrize("path", ["/v1/invalidate", "/v1/reset", "/v1/erase"])
async def test_commands_are_small(gateway: Gateway, http: aiohttp.ClientSession, path: str) -> None:
    async with http.post(gateway.url + path, data=b'{"application":"demo"' + b" " * (16 << 10) + b"}") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "message-too-large")


@pytest.mark.parametrize("path", ["/v1/invalidate", "/v1/reset"])
async def test_near_a_full_disk_nothing_is_invalidated(gateway: Gateway, http: aiohttp.ClientSession, path: str) -> None:
    gateway.disk.full = "full"
    async with http.post(gateway.url + path, data=b'{"application":"demo"}') as answer:
        assert (await answer.json())["error"]["code"] == DiskFull.code


async def test_readiness_is_looked_at_once_a_second(
    gateway: Gateway, anybody: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    unready = Inspection.unready

    async def counted(self: Inspection) -> list[str]:
        nonlocal looks
        looks += 1
        return await unready(self)

    monkeypatch.setattr(Inspection, "unready", counted)

    async def ask() -> dict[str, object]:
        async with anybody.get(gateway.url + "/readyz") as answer:
            found: dict[str, object] = await answer.json()
            return found

    answers = await asyncio.gather(*(ask() for _ in range(20)))
    assert looks <= 2
    assert all(answer == answers[0] for answer in answers)
    gateway.routes.inspection._looked_s -= 2
    before = looks
    await ask()
    assert looks == before + 1


async def test_the_openapi_document_is_encoded_once(
    gateway: Gateway, anybody: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roskva.gateway import http

    async with anybody.get(gateway.url + "/v1/openapi.json") as answer:
        first = await answer.read()
    monkeypatch.setattr(http, "document", None)
    async with anybody.get(gateway.url + "/v1/openapi.json") as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, "application/json", first)
