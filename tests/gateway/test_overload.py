"""A gateway at its limits answers "overloaded, retry after" before anything breaks, and loses nothing that it accepted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from roskva import Publisher
from roskva.feed import Entry, open_feed
from roskva.gateway.intake import REQUEST_BYTES
from roskva.gateway.memory import RELIEF_S, MemoryWatch, resident_bytes
from roskva.gateway.service import Gateway
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, handshake, hear_until, say
from tests.gateway.test_publish import records


def slow_feed(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """An fsync takes 20 ms."""
    feed = open_feed(gateway.settings)
    append_to = feed.append_to

    def slowly(topic: str, partition: int, entries: Sequence[Entry]) -> Any:
        time.sleep(0.02)
        return append_to(topic, partition, entries)

    monkeypatch.setattr(feed, "append_to", slowly)


async def test_a_burst_of_publishes_is_refused_above_the_limit_and_none_that_was_accepted_is_lost(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(publish_waiting_bytes_max=8 * REQUEST_BYTES)
    slow_feed(gateway, monkeypatch)

    async def publish(number: int) -> tuple[int, int, Any, dict[str, Any]]:
        body = json.dumps({"application": "demo", "object": f"o{number}", "version": number})
        async with http.post(gateway.url + "/v1/publish", data=body) as answer:
            return number, answer.status, answer.headers.get("Retry-After"), await answer.json()

    answers = await asyncio.gather(*(publish(number) for number in range(80)))
    accepted = {number for number, status, _, _ in answers if status == 200}
    refused = [(status, retry_after, answer["error"]) for _, status, retry_after, answer in answers if status != 200]
    assert accepted
    assert refused
    assert {(status, retry_after, error["code"], error["transient"]) for status, retry_after, error in refused} == {
        (503, "1", "overloaded", True)
    }
    assert all(error["retry_after_s"] > 0 for _, _, error in refused)
    assert {json.loads(record.value)["version"] for record in records(gateway.settings)} == accepted
    assert gateway.metrics.publishes_overloaded == len(refused)
    assert gateway.intake.bytes_waiting == 0


async def test_publishers_come_through_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start(publish_waiting_bytes_max=2 * REQUEST_BYTES)
    slow_feed(gateway, monkeypatch)

    async def publish(backend: int) -> None:
        async with Publisher(gateway.url, application="demo", retry_for_s=60.0) as publisher:
            for number in range(3):
                await publisher.publish(f"backend-{backend}", number)

    await asyncio.gather(*(publish(backend) for backend in range(8)))
    assert gateway.metrics.publishes_overloaded > 0
    assert len(records(gateway.settings)) == 24


async def test_a_large_request_is_served_when_no_other_is_under_way(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(publish_waiting_bytes_max=REQUEST_BYTES)
    updates = [{"object": f"o{number}", "version": 1} for number in range(1_000)]
    async with http.post(gateway.url + "/v1/publish", json={"application": "demo", "updates": updates}) as answer:
        assert answer.status == 200


async def test_under_memory_pressure_sessions_live_on_and_nothing_new_begins(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as old, http.ws_connect(channel_url(gateway)) as new:
        token = await handshake(old)
        await say(old, token=token)
        await hear_until(old, "summary")
        size = 11 << 30
        watch = MemoryWatch(10 << 30, gateway._press, gateway.registrar.relieve, size=lambda: size)
        watch.look()
        async with http.post(gateway.url + "/v1/publish", data=b'{"application":"demo","object":"o","version":1}') as answer:
            assert (answer.status, answer.headers["Retry-After"], (await answer.json())["error"]["code"]) == (503, "1", "overloaded")
        await say(new, init={"nonce": "n", "application": "demo", "device": "new"})
        assert (await hear_until(new, "error"))["error"]["code"] == "overloaded"
        await say(old, token=token, register=[{"op": 1, "object": "o"}])
        error = (await hear_until(old, "error"))["error"]
        assert (error["code"], error["transient"], error["retry_after_s"]) == ("overloaded", True, 10.0)
        await say(old, token=token)  # a heartbeat is answered
        await hear_until(old, "summary")
        size = 9 << 30
        watch.look()
        await handshake(new, "new")
        async with http.post(gateway.url + "/v1/publish", data=b'{"application":"demo","object":"o","version":1}') as answer:
            assert answer.status == 200
        async with http.get(gateway.url + "/metrics") as answer:
            told = await answer.text()
        assert f'roskva_registrar_total{{gateway="{gateway.name}",milestone="overloaded"}} 2.0' in told
        assert f'roskva_registrations_on_their_way{{gateway="{gateway.name}"}} 0.0' in told


def test_memory_is_relieved_now_and_then_and_work_resumes_a_tenth_below_the_limit() -> None:
    sizes, now_s, told, reliefs = [50], [0.0], list[str](), list[float]()
    watch = MemoryWatch(100 << 20, told.append, lambda: reliefs.append(now_s[0]), lambda: sizes[0] << 20, lambda: now_s[0])
    for now_s[0], sizes[0] in ((0.0, 100), (1.0, 101), (2.0, 150), (1.0 + RELIEF_S, 101), (13.0, 95), (14.0, 90), (15.0, 95)):
        watch.look()
    assert reliefs == [1.0, 1.0 + RELIEF_S]
    assert [reason[:18] for reason in told] == ["The gateway uses 1"] * 3 + [""]


def test_the_resident_size_of_this_process_is_read() -> None:
    assert 10 << 20 < resident_bytes() < 100 << 30
