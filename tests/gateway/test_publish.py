"""Publishing over HTTP: every item gets its own outcome, and what is acknowledged is in the feed (gateway/publish.py)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from roskva.config import ApplicationSettings, Settings
from roskva.errors import FeedFull, MalformedMessage
from roskva.feed import UPDATES, Entry, Record, open_feed
from roskva.feed.lanes import Appended
from roskva.gateway.publish import LARGE_BYTES, PIECE, PIECES_AT_ONCE, Publishing
from roskva.gateway.service import Gateway
from roskva.matcher.forms import Form, Malformed, Stamp, check, extract
from roskva.model import PUBLISHED_HEADER, ObjectKey, Stamps, Update, name_of, object_key, partition_of
from roskva.registrar.trails import Trails
from roskva.table.files import PartitionFile
from roskva.table.manifest import Manifest
from roskva.telemetry.metrics import Metrics
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, say


async def post(http: aiohttp.ClientSession, gateway: Gateway, body: Any) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(gateway.url + "/v1/publish", data=data) as answer:
        return answer.status, await answer.json()


def records(settings: Settings) -> list[Record]:
    feed = open_feed(settings)
    return [record for partition, end in sorted(feed.newest(UPDATES).items()) for record in feed.read(UPDATES, partition, 0, end.offset)]


async def test_one_update_is_in_the_feed_when_it_is_acknowledged(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, answer = await post(http, gateway, {"application": "demo", "object": "hello", "version": 7, "source": "me"})
    assert (status, answer) == (200, {"results": [{"ok": True}]})
    (record,) = records(gateway.settings)
    assert json.loads(record.value) == {"object": "hello", "version": 7, "source": "me"}
    assert Stamp.decode(record.headers)._replace(at=None) == Stamp("demo", 0, form=Form())
    assert record.key == object_key("demo", 0, b"hello")
    assert record.partition == partition_of(record.key, gateway.settings.partitions)


async def test_batch_with_bad_items_lets_the_rest_through(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    updates: list[Any] = [
        {"object": "a", "version": 1},
        {"object": "", "version": 1},
        {"object": "x" * 129, "version": 1},
        {"object": "ä" * 64, "version": "9223372036854775807"},
        {"object": "b", "version": -1},
        {"object": "b", "version": 2**63},
        {"object": "b", "version": "seven"},
        {"object": "b", "version": 1.5},
        {"object": "b", "version": True},
        {"object": "b", "version": None},
        {"object": "b", "version": 1, "colour": "red"},
        {"object": "b"},
        {"version": 1},
        {"object": 7, "version": 1},
        {"object": "b", "version": 1, "source": "s" * 129},
        {"object": "b", "version": 1, "source": 7},
        {"object": "base64:!!", "version": 1},
        "b",
        None,
        {"object": "b", "version": 10**40},
        {"object": "base64:_w", "version": 3, "source": None},
        {"object": "z", "version": "0"},
    ]
    status, answer = await post(http, gateway, {"application": "demo", "updates": updates})
    assert status == 200
    codes = [result.get("error", {}).get("code", "ok") for result in answer["results"]]
    assert codes == [
        "ok",
        "invalid-name",
        "invalid-name",
        "ok",
        "invalid-version",
        "invalid-version",
        "invalid-version",
        "invalid-version",
        "invalid-version",
        "invalid-version",
        "malformed-message",
        "malformed-message",
        "malformed-message",
        "malformed-message",
        "invalid-device",
        "malformed-message",
        "invalid-name",
        "malformed-message",
        "malformed-message",
        "invalid-version",
        "ok",
        "ok",
    ]
    assert all(result["error"]["transient"] is False for result in answer["results"] if "error" in result)
    stored = {name_of(record.key): json.loads(record.value)["version"] for record in records(gateway.settings)}  # type: ignore[arg-type]
    assert stored == {b"a": 1, "ä".encode() * 64: 2**63 - 1, b"\xff": 3, b"z": 0}


async def test_half_of_a_surrogate_pair_is_malformed(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, answer = await post(http, gateway, b'{"application":"demo","updates":[{"object":"\\ud800","version":1}]}')
    assert status == 400
    assert answer["error"]["code"] in ("malformed-message", "invalid-name")


BAD_REQUESTS: list[tuple[bytes, int, str]] = [
    (b"", 400, "malformed-message"),
    (b"{", 400, "malformed-message"),
    (b'"x"', 400, "malformed-message"),
    (b"\xff\xfe", 400, "malformed-message"),
    (b'{"application":"demo"}', 400, "malformed-message"),
    (b'{"updates":[]}', 400, "malformed-message"),
    (b'{"application":7,"updates":[]}', 400, "malformed-message"),
    (b'{"application":"demo","updates":{}}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[],"extra":1}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[],"raw":[]}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[],"version":1}', 400, "malformed-message"),
    (b'{"application":"demo","object":"a","version":1,"updates":[]}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[{"object":"a","version":1}]', 400, "malformed-message"),
    (b'{"application":"demo","updates":[{"object":"a",version:1}]}', 400, "malformed-message"),
    (b'{"application":"nobody","updates":[]}', 404, "unknown-application"),
    (b'{"application":"","object":"a","version":1}', 404, "unknown-application"),
    (b'{"application":"demo","object":"a"}', 400, "malformed-message"),
    (b'{"application":"demo","object":"","version":1}', 400, "invalid-name"),
    (b'{"application":"demo","object":"a","version":-1}', 400, "invalid-version"),
    (b'{"application":"demo","object":"a","version":"1e3"}', 400, "invalid-version"),
    (b'{"application":"demo","raw":7}', 400, "malformed-message"),
    (b'{"application":"demo","object":1e999,"version":1}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[{"object":"a","version":1e999}]}', 400, "malformed-message"),
    (b'{"application":"demo","updates":[{"object":{"\xff":1},"version":1}]}', 400, "malformed-message"),
    (b'{"application":"demo","updates":' + b"[" * 5_000, 400, "malformed-message"),
    (b'{"application":"demo","raw":' + b"[" * 5_000, 400, "malformed-message"),
]


async def test_bad_requests_are_named(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for body, status, code in BAD_REQUESTS:
        got, answer = await post(http, gateway, body)
        assert (got, answer["error"]["code"]) == (status, code), body
        assert "Traceback" not in answer["error"]["message"]
    assert records(gateway.settings) == []


async def test_empty_batch_is_fine(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    assert await post(http, gateway, {"application": "demo", "updates": []}) == (200, {"results": []})


async def test_too_large_requests(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(publish_bytes_max=2_000, publish_batch_max=3)
    body = {"application": "demo", "updates": [{"object": "a", "version": 1}] * 4}
    status, answer = await post(http, gateway, body)
    assert (status, answer["error"]["code"]) == (413, "too-many-operations")
    status, answer = await post(http, gateway, b" " * 3_000)
    assert (status, answer["error"]["code"]) == (413, "message-too-large")

    async def chunks() -> Any:
        for _ in range(10):
            yield b" " * 500

    async with http.post(gateway.url + "/v1/publish", data=chunks()) as chunked:
        assert chunked.status == 413
        assert (await chunked.json())["error"]["code"] == "message-too-large"
    assert records(gateway.settings) == []


async def test_raw_updates_are_appended_as_they_are(start: Start, http: aiohttp.ClientSession) -> None:
    own = ApplicationSettings(object_path="doc.id", version_path="doc.rev", source_path="by")
    gateway = await start(applications={"wiki": own})
    body = b'{"application":"wiki","raw":[{"doc": {"id": "page", "rev": 4}, "by": "me"}, {"other": 1}, "text", 7]}'
    assert await post(http, gateway, body) == (200, {"results": [{"ok": True}] * 4})
    await post(http, gateway, {"application": "wiki", "object": "page", "version": 5, "source": "you"})
    stored = records(gateway.settings)
    assert b'{"doc": {"id": "page", "rev": 4}, "by": "me"}' in [record.value for record in stored]
    pages = [record for record in stored if record.key == object_key("wiki", 0, b"page")]
    assert len(pages) == 2  # one partition, in order
    form = Form(own.object_path, own.version_path, own.source_path)
    fields = [extract(record.value, form) for record in pages]
    updates = [check("wiki", 0, one) for one in fields if not isinstance(one, Malformed)]
    assert [(update.version, update.source) for update in updates if not isinstance(update, Malformed)] == [(4, "me"), (5, "you")]


class FullPartition:
    """A feed of which one partition is full."""

    def __init__(self, partitions: int, full: set[int], epochs: Sequence[int] = (0,)) -> None:
        self.partitions, self.full = partitions, full
        self.appended: list[Entry] = []
        self.epochs = list(epochs)  # as looks after appends find them; the last one stays

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]:
        assert {partition_of(entry.key, self.partitions) for entry in entries} == {partition}
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if partition in self.full:
            future.set_exception(FeedFull("The feed is full."))
        else:
            self.appended += entries
            epoch = self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]
            future.set_result(Appended(list(range(len(entries))), {"demo": epoch}))
        return future


async def test_full_partition_refuses_only_its_own_items(settings: Settings) -> None:
    feed = FullPartition(4, {2})
    publishing = Publishing(settings, feed, lambda application: 0, Metrics())
    names = [f"object{number}" for number in range(40)]
    body = {"application": "demo", "updates": [{"object": name, "version": 1} for name in names]}
    status, answer = await publishing.publish(json.dumps(body).encode())
    assert status == 200
    for name, result in zip(names, json.loads(answer)["results"], strict=True):
        if partition_of(object_key("demo", 0, name.encode()), 4) == 2:
            assert result["error"]["code"] == "feed-full"
            assert result["error"]["transient"] is True
            assert result["error"]["retry_after_s"] > 0
        else:
            assert result == {"ok": True}
    assert len(feed.appended) == sum("ok" in result for result in json.loads(answer)["results"]) > 0


async def test_full_feed_answers_503(settings: Settings) -> None:
    publishing = Publishing(settings, FullPartition(4, {0, 1, 2, 3}), lambda application: 0, Metrics())
    status, answer = await publishing.publish(b'{"application":"demo","updates":[{"object":"a","version":1},{"object":"","version":1}]}')
    assert status == 503
    assert json.loads(answer)["error"]["code"] == "feed-full"
    assert [result["error"]["code"] for result in json.loads(answer)["results"]] == ["feed-full", "invalid-name"]


async def test_large_requests_are_read_one_in_a_turn_of_the_loop_and_small_ones_pass_them(settings: Settings) -> None:
    feed = FullPartition(4, set())
    publishing = Publishing(settings, feed, lambda application: 0, Metrics())
    updates = [{"object": f"large-{number}", "version": 1} for number in range(1_000)]
    large = json.dumps({"application": "demo", "updates": updates}).encode()
    assert len(large) > LARGE_BYTES
    under_way = [asyncio.create_task(publishing.publish(large)) for _ in range(10)]
    read_in_turn: list[int] = []
    for turn in range(60):
        before = len(feed.appended)
        if turn == 1:
            under_way.append(asyncio.create_task(publishing.publish(b'{"application":"demo","object":"small","version":1}')))
        await asyncio.sleep(0)
        read_in_turn.append((len(feed.appended) - before) // PIECE)
    assert max(read_in_turn) <= PIECES_AT_ONCE
    assert sum(read_in_turn) == 20
    place = next(number for number, entry in enumerate(feed.appended) if entry.key.endswith(b"small"))
    assert place <= 2_000
    assert [status for status, _ in await asyncio.gather(*under_way)] == [200] * 11


class SlowFeed(FullPartition):
    """One that is at it until it is told to be done."""

    def __init__(self) -> None:
        super().__init__(4, set())
        self.waiting: list[tuple[asyncio.Future[Appended], Appended]] = []

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]:
        answer = super().append_to(topic, partition, entries)
        later: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.waiting.append((later, answer.result()))
        return later

    def done(self) -> None:
        waiting, self.waiting = self.waiting, []
        for later, appended in waiting:
            later.set_result(appended)


async def test_large_requests_take_turns_piece_by_piece_and_small_ones_wait_for_none_of_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roskva.gateway.publish.PIECE_S_MAX", 60.0)
    feed = SlowFeed()
    publishing = Publishing(settings, feed, lambda application: 0, Metrics())

    def body(of: str) -> bytes:
        updates = [{"object": f"{of}-{number}", "version": 1} for number in range(4 * PIECE)]
        updates[PIECE + 7]["object"] = ""  # of the second piece
        return json.dumps({"application": "demo", "updates": updates}).encode()

    under_way = [asyncio.create_task(publishing.publish(body(of))) for of in ("a", "b", "c")]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(feed.appended) == PIECES_AT_ONCE * PIECE
    small = asyncio.create_task(publishing.publish(b'{"application":"demo","object":"small","version":1}'))
    await asyncio.sleep(0)
    assert feed.appended[-1].key.endswith(b"small")
    while feed.waiting:
        feed.done()
        for _ in range(20):
            await asyncio.sleep(0)
    assert (await small)[0] == 200
    for status, answer in [await one for one in under_way]:
        results = json.loads(answer)["results"]
        assert status == 200
        assert [place for place, result in enumerate(results) if result != {"ok": True}] == [PIECE + 7]
        assert len(results) == 4 * PIECE
    # A request's own order is kept, and each of the three has had a piece before any has its second.
    order = [entry.key.split(b"\x00")[-1].decode().split("-") for entry in feed.appended if not entry.key.endswith(b"small")]
    pieces = [(of, int(number) // PIECE) for of, number in order]
    assert [piece for place, piece in enumerate(pieces) if piece not in pieces[:place]] == [(of, at) for at in range(4) for of in "abc"]


async def test_a_piece_that_waits_for_a_busy_partition_holds_up_no_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.gateway.publish.PIECE_S_MAX", 0.001)
    feed = SlowFeed()
    publishing = Publishing(settings, feed, lambda application: 0, Metrics())
    updates = [{"object": f"o{number}", "version": 1} for number in range(5 * PIECE)]
    large = asyncio.create_task(publishing.publish(json.dumps({"application": "demo", "updates": updates}).encode()))
    async with asyncio.timeout(10):
        while len(feed.appended) < 5 * PIECE:
            await asyncio.sleep(0.001)
    assert not large.done(), "none of it is durable"
    feed.done()
    status, answer = await large
    assert (status, json.loads(answer)["results"]) == (200, [{"ok": True}] * (5 * PIECE))


async def test_of_a_request_in_pieces_one_update_is_sampled(settings: Settings) -> None:
    feed, trails = FullPartition(4, set()), Trails(lambda: 2.0)
    now_s = iter(range(1_000))
    publishing = Publishing(settings, feed, lambda application: 0, Metrics(), lambda: next(now_s), trails=trails)
    updates = [{"object": f"o{number}", "version": 1} for number in range(3 * PIECE)]
    await publishing.publish(json.dumps({"application": "demo", "updates": updates}).encode())
    assert trails.latency.sampled == 1
    assert sum(b" at " in entry.headers for entry in feed.appended) == 1


async def test_a_reset_between_two_pieces_appends_the_later_one_in_the_new_epoch(settings: Settings) -> None:
    feed = FullPartition(4, set(), epochs=[3, 3, 3, 3, 4])
    publishing = Publishing(settings, feed, lambda application: 3, Metrics())
    updates = [{"object": f"o{number}", "version": 1} for number in range(2 * PIECE)]
    status, answer = await publishing.publish(json.dumps({"application": "demo", "updates": updates}).encode())
    assert (status, json.loads(answer)["results"]) == (200, [{"ok": True}] * (2 * PIECE))
    appended = {entry.key for entry in feed.appended}
    for number in range(2 * PIECE):
        name = f"o{number}".encode()
        assert object_key("demo", 3, name) in appended
        assert (object_key("demo", 4, name) in appended) == (number >= PIECE)


async def test_reset_during_the_append_appends_again_in_the_new_epoch(settings: Settings) -> None:
    feed = FullPartition(4, set(), epochs=[4])
    publishing = Publishing(settings, feed, lambda application: 3, Metrics())
    status, _ = await publishing.publish(b'{"application":"demo","object":"a","version":1}')
    assert status == 200
    assert [entry.headers for entry in feed.appended] == [b"demo 3 standard", b"demo 4 standard"]
    assert [entry.key for entry in feed.appended] == [object_key("demo", 3, b"a"), object_key("demo", 4, b"a")]


async def test_one_update_of_a_sampled_request_carries_its_times_and_the_next_requests_do_not(settings: Settings) -> None:
    feed = FullPartition(4, set())
    hinted: list[tuple[int, Sequence[Stamps]]] = []
    trails = Trails(lambda: 2.0)

    def hint(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        hinted.append((len(updates), stamps))

    publishing = Publishing(settings, feed, lambda application: 0, Metrics(), lambda: 1.0, hint, trails)
    body = b'{"application":"demo","updates":[{"object":"a","version":1},{"object":"b","version":2},{"object":"","version":1}]}'
    for _ in range(3):
        assert (await publishing.publish(body, published_us=1_999_000))[0] == 200
    sampled = [entry for entry in feed.appended if entry.headers == b"demo 0 standard at 2000000 1999000"]
    assert len(sampled) == 1, "at most so many a second"
    assert [entry.headers for entry in feed.appended if entry not in sampled] == [b"demo 0 standard"] * 5
    assert [count for count, _ in hinted] == [2, 2, 2]
    (stamps,) = [one for _, some in hinted for one in some]
    assert stamps == Stamps(ObjectKey(sampled[0].key), stamps.version, 1_999_000, 2_000_000, 2_000_000)
    assert trails.latency.sampled == 1


async def test_what_is_refused_does_not_use_up_the_turn_of_what_can_be_measured(settings: Settings) -> None:
    trails = Trails(lambda: 2.0)
    publishing = Publishing(settings, FullPartition(4, set()), lambda application: 0, Metrics(), lambda: 1.0, trails=trails)
    with pytest.raises(MalformedMessage):
        await publishing.publish(b"{")
    await publishing.publish(b'{"application":"demo","updates":[{"object":"","version":1}]}')
    assert (await publishing.publish(b'{"application":"demo","object":"a","version":1}'))[0] == 200
    assert trails.latency.sampled == 1


async def test_a_sampled_update_that_is_refused_is_not_measured(settings: Settings) -> None:
    trails = Trails(lambda: 2.0)
    publishing = Publishing(settings, FullPartition(4, {0, 1, 2, 3}), lambda application: 0, Metrics(), trails=trails)
    assert (await publishing.publish(b'{"application":"demo","object":"a","version":1}'))[0] == 503
    assert trails.latency.sampled == 0


async def test_the_first_stamp_is_the_publishers_and_nonsense_is_none(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for said in ("7", "-7", "x", "9" * 40, ""):
        body = b'{"application":"demo","object":"a","version":1}'
        async with http.post(gateway.url + "/v1/publish", data=body, headers={PUBLISHED_HEADER: said}) as answer:
            assert answer.status == 200
    first, *later = [Stamp.decode(record.headers).at for record in records(gateway.settings)]
    assert first is not None, "the first request is sampled"
    assert first.published_us == 7
    assert first.received_us > 1e15
    assert all(at is None or at.published_us == 0 for at in later)


async def test_concurrent_publishes_share_their_commits(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    body = {"application": "demo", "updates": [{"object": f"o{number}", "version": number} for number in range(20)]}
    answers = await asyncio.gather(*(post(http, gateway, body) for _ in range(30)))
    assert all(answer == (200, {"results": [{"ok": True}] * 20}) for answer in answers)
    assert len(records(gateway.settings)) == 600
    assert gateway.metrics.updates_appended == 600


async def test_reset_by_another_process_after_the_fsync_appends_again(
    gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 34: the epoch that was last seen is too old, and what was appended under it would never count."""
    settings = gateway.settings
    elsewhere = Manifest.open(settings.data / "manifest.db", settings.partitions, settings.data_center)
    real = PartitionFile._confirm

    def reset_first(file: PartitionFile, handle: Any) -> None:
        if file.address.name == UPDATES and elsewhere.epoch("demo") == 0:
            elsewhere.raise_epoch("demo", 0)
        real(file, handle)

    monkeypatch.setattr(PartitionFile, "_confirm", reset_first)
    status, _ = await post(http, gateway, {"application": "demo", "object": "a", "version": 1})
    elsewhere.close()
    assert status == 200
    assert sorted(Stamp.decode(record.headers).epoch or 0 for record in records(settings)) == [0, 1]
    assert {record.key for record in records(settings)} == {object_key("demo", epoch, b"a") for epoch in (0, 1)}


async def test_the_loop_is_not_held_up_while_the_manifest_is_written(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    await post(http, gateway, {"application": "demo", "object": "a", "version": 1})
    gaps_s: list[float] = []

    async def tick() -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.01)
            gaps_s.append(time.monotonic() - began_s)

    writer = sqlite3.connect(gateway.settings.data / "manifest.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    ticking = asyncio.create_task(tick())
    socket = await http.ws_connect(channel_url(gateway))
    try:
        publishing = asyncio.create_task(post(http, gateway, {"application": "demo", "object": "a", "version": 2}))
        await say(socket, init={"nonce": "n", "application": "demo", "device": "d"})
        await asyncio.sleep(1.3)
        writer.execute("ROLLBACK")
        await publishing  # whether it was refused or not
    finally:
        ticking.cancel()
        writer.close()
        await socket.close()
    assert max(gaps_s) < 0.3, "the event loop waited for the manifest"
