"""`Publisher` and `BlockingPublisher` over real HTTP, against a small service."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from roskva import publisher as module
from roskva.errors import (
    ClientStopped,
    FeedFull,
    InvalidApplication,
    InvalidDevice,
    InvalidName,
    InvalidSetting,
    InvalidVersion,
    PublishKeyRefused,
    RateLimited,
    RoskvaError,
    ServiceUnreachable,
    TooManyOperations,
    UnknownApplication,
)
from roskva.publisher import BlockingPublisher, Publisher
from tests.client.gateway import FakeGateway, GatewayThread

pytestmark = pytest.mark.timeout(30)

OK: dict[str, Any] = {"ok": True}


def error(code: str, transient: bool = False, **fields: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"{code} happened.", "transient": transient, **fields}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_MIN_S", 0.01)


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as running:
        yield running


@pytest.fixture
def elsewhere() -> Iterator[FakeGateway]:
    with GatewayThread() as running:
        yield running


def publisher_of(gateway: FakeGateway, **arguments: Any) -> Publisher:
    return Publisher(gateway.url, application="demo", **arguments)


async def test_a_publish_carries_object_version_and_source(gateway: FakeGateway) -> None:
    async with publisher_of(gateway) as publisher:
        await publisher.publish("hello", 7, source="phone")
        await publisher.publish(b"\xff\x00", str(2**63 - 1))
    assert gateway.publishes == [
        {"application": "demo", "updates": [{"object": "hello", "version": "7", "source": "phone"}]},
        {"application": "demo", "updates": [{"object": "base64:_wA", "version": str(2**63 - 1)}]},
    ]


async def test_concurrent_publishes_travel_together(gateway: FakeGateway) -> None:
    async with publisher_of(gateway, requests_max=1) as publisher:
        await asyncio.gather(*(publisher.publish(f"object-{number}", number) for number in range(2500)))
    sizes = [len(body["updates"]) for body in gateway.publishes]
    assert sizes == [1000, 1000, 500]


async def test_at_most_so_many_wait(gateway: FakeGateway) -> None:
    async with publisher_of(gateway, waiting_max=10) as publisher:
        await asyncio.gather(*(publisher.publish("a", number) for number in range(100)))
    assert max(len(body["updates"]) for body in gateway.publishes) <= 10


async def test_each_gets_its_own_result(gateway: FakeGateway) -> None:
    gateway.answers = [(200, {"results": [OK, error("too-many-operations"), OK]})]
    async with publisher_of(gateway) as publisher:
        results = await asyncio.gather(*(publisher.publish("a", n) for n in range(3)), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], TooManyOperations)
    assert results[1].what == "too-many-operations happened."
    assert results[2] is None


async def test_transient_failures_are_tried_again(gateway: FakeGateway) -> None:
    gateway.answers = [
        (503, error("feed-full", transient=True, retry_after_s=0.05)),
        (200, {"results": [OK, error("partition-unavailable", transient=True)]}),
        (502, "not the service"),
        (0, None),  # the connection breaks
    ]
    async with publisher_of(gateway) as publisher:
        began = time.monotonic()
        assert await publisher.publish_many([("a", 1), ("b", 2)]) == [None, None]
    assert time.monotonic() - began >= 0.05
    assert [[u["object"] for u in body["updates"]] for body in gateway.publishes] == [["a", "b"], ["a", "b"], ["b"], ["b"], ["b"]]


async def test_results_count_with_any_status(gateway: FakeGateway) -> None:
    gateway.answers = [
        (400, {"results": [error("invalid-name"), error("invalid-version")]}),
        (503, {"results": [error("feed-full", True)]}),
    ]
    async with publisher_of(gateway) as publisher:
        one, two = await publisher.publish_many([("a", 1), ("b", 2)])
        assert isinstance(one, InvalidName)
        assert isinstance(two, InvalidVersion)
        await publisher.publish("c", 3)
    assert len(gateway.publishes) == 3


async def test_patience_ends(gateway: FakeGateway) -> None:
    gateway.answers = [(503, error("feed-full", transient=True))] * 1000
    async with publisher_of(gateway, retry_for_s=0.2) as publisher:
        with pytest.raises(FeedFull):
            await publisher.publish("a", 1)
    assert 2 < len(gateway.publishes) < 100


async def test_permanent_errors_raise_at_once(gateway: FakeGateway) -> None:
    gateway.answers = [(404, error("unknown-application")), (400, error("of-a-later-version"))]
    async with publisher_of(gateway) as publisher:
        with pytest.raises(UnknownApplication):
            await publisher.publish("a", 1)
        with pytest.raises(RoskvaError) as caught:
            await publisher.publish("a", 1)
    assert not caught.value.transient
    assert len(gateway.publishes) == 2


async def test_nobody_listens() -> None:
    async with Publisher("http://127.0.0.1:9", application="demo", retry_for_s=0.1) as publisher:
        with pytest.raises(ServiceUnreachable):
            await publisher.publish("a", 1)


async def test_bad_input_raises_before_anything_is_sent(gateway: FakeGateway) -> None:
    with pytest.raises(InvalidApplication):
        Publisher(gateway.url, application="")
    with pytest.raises(InvalidSetting):
        Publisher("nowhere", application="demo")
    async with publisher_of(gateway) as publisher:
        for name in ("", b"x" * 129, None):
            with pytest.raises(InvalidName):
                await publisher.publish(name, 1)  # type: ignore[arg-type]
        for version in (-1, 2**63, 1.0, True, "1e3", "", "٣"):
            with pytest.raises(InvalidVersion):
                await publisher.publish("a", version)  # type: ignore[arg-type]
        with pytest.raises(InvalidDevice):
            await publisher.publish("a", 1, source="")
        with pytest.raises(InvalidVersion):
            await publisher.publish_many([("a", 1), ("b", -1)])
    assert gateway.publishes == []
    with pytest.raises(ClientStopped):
        await publisher.publish("a", 1)


async def test_a_caller_that_gives_up_leaves_nothing_behind(gateway: FakeGateway) -> None:
    gateway.answers = [(503, error("overloaded", transient=True, retry_after_s=0.2))]
    async with publisher_of(gateway) as publisher:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.publish("a", 1), 0.05)
    assert len(gateway.publishes) == 1


def test_blocking_publish_keeps_its_connection_and_retries(elsewhere: FakeGateway) -> None:
    elsewhere.answers = [
        (503, error("overloaded", transient=True)),
        (0, None),
        (200, {"results": [OK, error("invalid-name"), error("partition-unavailable", transient=True)]}),
    ]
    with BlockingPublisher(elsewhere.url, application="demo") as publisher:
        results = publisher.publish_many([("a", 1), ("b", 2, "phone"), ("c", 3)])
        assert results[0] is None
        assert isinstance(results[1], InvalidName)
        assert results[2] is None
        publisher.publish("d", 4)
    assert elsewhere.versions == {"c": 3, "d": 4}  # the scripted answers accepted nothing by themselves
    with pytest.raises(ClientStopped):
        publisher.publish("d", 5)


def test_blocking_publish_from_many_threads(elsewhere: FakeGateway) -> None:
    with BlockingPublisher(elsewhere.url, application="demo", idle_max=3) as publisher:

        def work(number: int) -> None:
            for version in range(20):
                publisher.publish(f"object-{number}", version)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(publisher._idle) <= 3
    assert elsewhere.versions == {f"object-{number}": 19 for number in range(8)}


def test_blocking_errors(elsewhere: FakeGateway) -> None:
    elsewhere.answers = [(404, error("unknown-application"))]
    with BlockingPublisher(elsewhere.url, application="demo", retry_for_s=0.1) as publisher:
        with pytest.raises(UnknownApplication):
            publisher.publish("a", 1)
        elsewhere.answers = [(503, error("feed-full", transient=True))] * 100
        with pytest.raises(FeedFull):
            publisher.publish("a", 1)
    with BlockingPublisher("http://127.0.0.1:9", application="demo", retry_for_s=0.1) as nobody, pytest.raises(ServiceUnreachable):
        nobody.publish("a", 1)
    with pytest.raises(InvalidVersion):
        publisher.publish("a", -1)


async def test_a_key_goes_with_every_request_and_without_one_nothing_does(gateway: FakeGateway) -> None:
    async with publisher_of(gateway, key="rk_secret") as publisher:
        await publisher.publish("a", 1)
    async with publisher_of(gateway) as publisher:
        await publisher.publish("a", 2)
    assert [headers.get("Authorization") for headers in gateway.publish_headers] == ["Bearer rk_secret", None]


async def test_a_key_that_is_refused_is_raised_at_once(gateway: FakeGateway) -> None:
    gateway.answers = [(401, error("publish-key-refused"))]
    async with publisher_of(gateway, key="rk_wrong") as publisher:
        with pytest.raises(PublishKeyRefused) as refused:
            await publisher.publish("a", 1)
    assert len(gateway.publishes) == 1
    assert "rk_wrong" not in str(refused.value)


@pytest.mark.parametrize("by_header", [False, True])
async def test_who_comes_too_fast_comes_again_when_told(gateway: FakeGateway, by_header: bool) -> None:
    gateway.retry_after = "1" if by_header else ""
    gateway.answers = [(429, error("rate-limited", transient=True, retry_after_s=0.0 if by_header else 1.0))]
    began = time.monotonic()
    async with publisher_of(gateway, retry_for_s=10.0) as publisher:
        await publisher.publish("a", 1)
    assert time.monotonic() - began >= 1.0
    assert len(gateway.publishes) == 2


async def test_but_not_beyond_its_patience(gateway: FakeGateway) -> None:
    gateway.answers = [(429, error("rate-limited", transient=True, retry_after_s=60.0))]
    async with publisher_of(gateway, retry_for_s=2.0) as publisher:
        with pytest.raises(RateLimited):
            await publisher.publish("a", 1)


@pytest.mark.parametrize("key", ["", "two words", "a\r\nX-Header: b", "schlüssel"])
@pytest.mark.parametrize("kind", [Publisher, BlockingPublisher])
async def test_what_cannot_be_a_key_is_not_shown(kind: Any, key: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        kind("http://127.0.0.1:1", application="demo", key=key)
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(("header", "seconds"), [(None, 0.0), ("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("-1", 0.0), ("²", 0.0)])
def test_what_a_proxy_says_of_later(header: str | None, seconds: float) -> None:
    (outcome,) = module.outcomes_of(503, b"<html>", 1, header)
    assert (outcome.again, outcome.retry_after_s) == (True, seconds)


def test_blocking_with_a_key(elsewhere: FakeGateway) -> None:
    elsewhere.answers = [(429, error("rate-limited", transient=True, retry_after_s=0.3)), (401, error("publish-key-refused"))]
    began = time.monotonic()
    with BlockingPublisher(elsewhere.url, application="demo", key="rk_secret") as publisher, pytest.raises(PublishKeyRefused):
        publisher.publish("a", 1)
    assert time.monotonic() - began >= 0.3
    assert [headers.get("Authorization") for headers in elsewhere.publish_headers] == ["Bearer rk_secret"] * 2


async def test_the_first_stamp_is_when_the_application_called(gateway: FakeGateway) -> None:
    before_us = time.time_ns() // 1_000
    gateway.answers = [(503, error("overloaded", transient=True))]
    async with publisher_of(gateway) as publisher:
        await publisher.publish("a", 1)
    with_stamps = [int(headers["Roskva-Published"]) for headers in gateway.publish_headers]
    assert len(with_stamps) == 2
    assert with_stamps[0] == with_stamps[1] >= before_us, "a retry is part of what the application waited for"


def test_blocking_publishers_stamp_too(elsewhere: FakeGateway) -> None:
    before_us = time.time_ns() // 1_000
    with BlockingPublisher(elsewhere.url, application="demo") as publisher:
        publisher.publish("a", 1)
    assert [int(headers["Roskva-Published"]) >= before_us for headers in elsewhere.publish_headers] == [True]
