"""Reset and invalidate over HTTP: durable before they are answered, refused by name, and right beside a reset (gateway/commands.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from roskva.config import Settings
from roskva.errors import FeedFull, Unavailable
from roskva.feed import FAN_OUTS, UPDATES, open_feed
from roskva.feed.interface import Entry
from roskva.feed.lanes import Appended
from roskva.gateway.commands import Commands
from roskva.gateway.service import Gateway
from roskva.matcher.events import Invalidation, decode_fan_out
from roskva.matcher.forms import Stamp
from roskva.model import EPOCH_MAX, object_key, partition_of
from roskva.table import open_manifest


async def post(http: aiohttp.ClientSession, gateway: Gateway, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else None
    async with http.post(f"{gateway.url}{path}", data=data, json=None if data is not None else body) as answer:
        return answer.status, await answer.json()


def ordered(settings: Settings) -> list[tuple[int, Invalidation]]:
    """What lies in the topic, by partition."""
    feed = open_feed(settings)
    records = [(p, decode_fan_out(record.value)) for p in range(feed.partitions) for record in feed.read(FAN_OUTS, p, 0, 100)]
    return [(partition, record) for partition, record in records if isinstance(record, Invalidation)]


async def test_a_reset_raises_the_epoch_and_publishes_count_in_it(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for epoch in (1, 2):
        assert await post(http, gateway, "/v1/reset", {"application": "demo"}) == (200, {"application": "demo", "epoch": epoch})
        status, _ = await post(http, gateway, "/v1/publish", {"application": "demo", "object": "x", "version": 5})
        assert status == 200
    feed = open_feed(gateway.settings)
    stamps = [Stamp.decode(record.headers).epoch for p in range(feed.partitions) for record in feed.read(UPDATES, p, 0, 10)]
    assert max(epoch for epoch in stamps if epoch is not None) == 2, (
        "whatever it was stamped with at first, after the fsync it is the new one"
    )
    assert open_manifest(gateway.settings).epoch("demo") == 2


async def test_resets_at_the_same_time_are_counted_or_collapse(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    answers = await asyncio.gather(*(post(http, gateway, "/v1/reset", {"application": "demo"}) for _ in range(5)))
    epochs = [answer["epoch"] for status, answer in answers if status == 200]
    assert len(epochs) == 5
    assert max(epochs) == open_manifest(gateway.settings).epoch("demo")


async def test_an_object_is_one_record_in_its_own_partition(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, answer = await post(http, gateway, "/v1/invalidate", {"application": "demo", "object": "a*"})
    assert answer.pop("time_ms") > 0
    assert (status, answer) == (200, {"application": "demo", "accepted": True, "epoch": 0})
    key = object_key("demo", 0, b"a*")
    assert ordered(gateway.settings) == [(partition_of(key, gateway.settings.partitions), Invalidation(key))]


STARTS: list[tuple[dict[str, str], bytes]] = [
    ({"prefix": "user/"}, b"user/"),
    ({"prefix": "base64:_wA"}, b"\xff\x00"),
    ({"prefix": ""}, b""),
    ({}, b""),
]


async def test_a_prefix_is_one_record_in_every_partition(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    await post(http, gateway, "/v1/reset", {"application": "demo"})
    for named, start in STARTS:
        before = len(ordered(gateway.settings))
        status, answer = await post(http, gateway, "/v1/invalidate", {"application": "demo", **named})
        assert (status, answer["epoch"]) == (200, 1)
        order = Invalidation(object_key("demo", 1, start), prefix=True)
        assert {partition for partition, record in ordered(gateway.settings) if record == order} == set(range(gateway.settings.partitions))
        assert len(ordered(gateway.settings)) >= before + gateway.settings.partitions


BAD: list[tuple[str, Any, int, str]] = [
    ("reset", {"application": "nobody"}, 404, "unknown-application"),
    ("reset", {"application": "demo", "epoch": 7}, 400, "malformed-message"),
    ("reset", {}, 400, "malformed-message"),
    ("reset", b"{", 400, "malformed-message"),
    ("reset", b"\xff", 400, "malformed-message"),
    ("invalidate", {"application": "nobody"}, 404, "unknown-application"),
    ("invalidate", {"application": "demo", "object": "x" * 129}, 400, "invalid-name"),
    ("invalidate", {"application": "demo", "object": ""}, 400, "invalid-name"),
    ("invalidate", {"application": "demo", "prefix": "base64:*"}, 400, "invalid-name"),
    ("invalidate", {"application": "demo", "object": "a", "prefix": "a"}, 400, "malformed-message"),
    ("invalidate", {"application": "demo", "objects": ["a"]}, 400, "malformed-message"),
    ("invalidate", ["demo"], 400, "malformed-message"),
]


async def test_bad_requests_are_named_and_change_nothing(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for path, body, status, code in BAD:
        got, answer = await post(http, gateway, f"/v1/{path}", body)
        assert (got, answer["error"]["code"]) == (status, code), body
    assert ordered(gateway.settings) == []
    assert open_manifest(gateway.settings).epoch("demo") == 0


class Feed:
    """Appends in memory. The epoch rises while it does, as often as it is told to."""

    def __init__(self, rises: int, full: int | None = None) -> None:
        self.epoch = 0
        self.appended: list[tuple[int, Invalidation]] = []
        self._rises = rises
        self._full = full

    def append_to(self, topic: str, partition: int, entries: Any) -> asyncio.Future[Appended]:
        if partition == self._full:
            raise FeedFull("The feed is full.")
        entry: Entry
        (entry,) = entries
        record = decode_fan_out(entry.value)
        assert isinstance(record, Invalidation)
        self.appended.append((partition, record))
        if self._rises:
            self._rises -= 1
            self.epoch += 1
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_result(Appended([0], {"demo": self.epoch}))
        return future

    def commands(self, settings: Settings) -> Commands:
        return Commands(settings, self, lambda _: self.epoch, lambda _, seen: seen + 1, lambda _: EPOCH_MAX)


async def test_an_epoch_that_rose_before_the_record_was_durable_is_invalidated_too(settings: Settings) -> None:
    feed = Feed(rises=1)
    answer = await feed.commands(settings).invalidate(b'{"application": "demo", "object": "x"}')
    keys = [object_key("demo", epoch, b"x") for epoch in (0, 1)]
    assert feed.appended == [(partition_of(key, settings.partitions), Invalidation(key)) for key in keys]
    assert answer["epoch"] == 1


async def test_endless_resets_end_in_a_named_error(settings: Settings) -> None:
    with pytest.raises(Unavailable, match="over and over"):
        await Feed(rises=1_000).commands(settings).invalidate(b'{"application": "demo", "object": "x"}')
    with pytest.raises(Unavailable, match="as often as can be counted"):
        await Feed(0).commands(settings).reset(b'{"application": "demo"}')


async def test_a_full_partition_refuses_the_whole_and_a_repeat_does_no_harm(settings: Settings) -> None:
    feed = Feed(0, full=2)
    with pytest.raises(FeedFull):
        await feed.commands(settings).invalidate(b'{"application": "demo"}')
    assert [partition for partition, _ in feed.appended] == [0, 1]
