"""Lanes over the feed: group commit, answers in the order of the entries, refusals that reach only their callers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from roskva.errors import FeedFull, Overloaded, PartitionBusy, PartitionUnavailable
from roskva.feed import SqliteFeed
from roskva.feed.interface import UPDATES, Entry
from roskva.feed.lanes import QUEUED_ENTRIES_MAX, FeedLanes
from roskva.model import partition_of
from roskva.table.manifest import Manifest

KEYS = [next(b"k%d" % n for n in range(100) if partition_of(b"k%d" % n, 2) == partition) for partition in range(2)]


class Observed(SqliteFeed):
    """The real feed, with its appends counted, held up, or made to fail."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, Manifest.open(data / "manifest.db", 2, "test"), 3_600.0, 1 << 20)
        self.batches: list[int] = []
        self.failing: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        assert self.gate.wait(10)
        self.batches.append(len(entries))
        if partition in self.failing:
            raise PartitionUnavailable("It fails.", "test")
        return super().append_to(topic, partition, entries)


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Observed]:
    feed = Observed(tmp_path / "data")
    yield feed
    feed.close()
    feed.manifest.close()


async def test_many_waiters_share_few_transactions(feed: Observed) -> None:
    lanes = FeedLanes(feed)
    answers = await asyncio.gather(*(lanes.append(UPDATES, [Entry(b"%d" % n, b"value-%d" % n)]) for n in range(400)))
    assert len(feed.batches) <= 6
    for number, [(partition, offset)] in enumerate(answers):
        [record] = feed.read(UPDATES, partition, offset, offset + 1)
        assert (record.key, record.value) == (b"%d" % number, b"value-%d" % number)
    await lanes.close()


async def test_one_that_another_process_writes_to_for_long_is_waited_for(feed: Observed) -> None:
    """Of several gateways that append at full speed, none refuses what the others were in the middle of."""
    lanes = FeedLanes(feed)
    await lanes.append(UPDATES, [Entry(KEYS[0], b"first")])
    other = sqlite3.connect(feed.path(UPDATES, 0), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waiting = lanes.append_to(UPDATES, 0, [Entry(KEYS[0], b"second")])
    while len(feed.batches) < 3:  # the engine has called it busy, and was asked again
        assert not waiting.done()
        await asyncio.sleep(0.01)
    other.execute("COMMIT")
    assert (await waiting).offsets == [1]
    other.close()
    await lanes.close()


async def test_a_loss_that_another_process_recorded_refuses_nobody(feed: Observed) -> None:
    """Each of several gateways has the lost file open, and each meets the loss at its next append."""
    lanes = FeedLanes(feed)
    await lanes.append(UPDATES, [Entry(KEYS[0], b"first")])
    feed.manifest.record_lost("feed", UPDATES, 0, feed.manifest.record("feed", UPDATES, 0).incarnation)
    assert await lanes.append(UPDATES, [Entry(KEYS[0], b"second")]) == [(0, 0)]
    assert len(feed.batches) == 3
    assert [record.value for record in feed.read(UPDATES, 0, 0, 9)] == [b"second"]
    await lanes.close()


async def test_one_that_stands_still_is_waited_for_only_so_long(feed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.feed.lanes.PATIENCE_S", 0.3)
    lanes = FeedLanes(feed)
    await lanes.append(UPDATES, [Entry(KEYS[0], b"first")])
    other = sqlite3.connect(feed.path(UPDATES, 0), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(PartitionBusy):
        await lanes.append(UPDATES, [Entry(KEYS[0], b"second")])
    other.close()
    assert (await lanes.append(UPDATES, [Entry(KEYS[0], b"third")])) == [(0, 1)]
    await lanes.close()


async def test_answers_come_in_the_order_of_the_entries(feed: Observed) -> None:
    lanes = FeedLanes(feed)
    given = [Entry(b"%d" % n, b"value-%d" % n) for n in range(50)]
    first, second = await asyncio.gather(lanes.append(UPDATES, given), lanes.append(UPDATES, given[::-1]))
    for entries, answers in ((given, first), (given[::-1], second)):
        for entry, (partition, offset) in zip(entries, answers, strict=True):
            assert feed.read(UPDATES, partition, offset, offset + 1)[0].key == entry.key
    assert await lanes.append(UPDATES, []) == []
    await lanes.close()


async def test_an_error_reaches_exactly_those_whom_it_concerns(feed: Observed) -> None:
    lanes = FeedLanes(feed)
    feed.failing = {1}
    outcomes = await asyncio.gather(
        lanes.append(UPDATES, [Entry(KEYS[0], b"")]),
        lanes.append(UPDATES, [Entry(KEYS[1], b"")]),
        lanes.append(UPDATES, [Entry(KEYS[0], b""), Entry(KEYS[1], b"")]),
        lanes.append(UPDATES, [Entry(KEYS[0], None)]),  # type: ignore[arg-type]
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], list)
    assert isinstance(outcomes[1], PartitionUnavailable)
    assert isinstance(outcomes[2], PartitionUnavailable)
    assert isinstance(outcomes[3], TypeError)
    await lanes.close()


async def test_a_full_partition_refuses_and_the_other_serves(feed: Observed) -> None:
    lanes = FeedLanes(feed)
    await lanes.append(UPDATES, [Entry(KEYS[0], b"x" * 900_000)])
    full, served = await asyncio.gather(
        lanes.append(UPDATES, [Entry(KEYS[0], b"x" * 900_000)]),
        lanes.append(UPDATES, [Entry(KEYS[1], b"")]),
        return_exceptions=True,
    )
    assert isinstance(full, FeedFull)
    assert served == [(1, 0)]
    await lanes.close()


async def test_at_the_limit_calls_are_refused(feed: Observed) -> None:
    lanes = FeedLanes(feed)
    feed.gate.clear()
    waiting = [asyncio.create_task(lanes.append(UPDATES, [Entry(KEYS[0], b"")] * 1_000)) for _ in range(QUEUED_ENTRIES_MAX // 1_000)]
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded):
        await lanes.append(UPDATES, [Entry(KEYS[0], b"")])
    with pytest.raises(Overloaded):
        await lanes.append(UPDATES, [Entry(KEYS[0], b""), Entry(KEYS[1], b"")])
    feed.gate.set()
    answers = await asyncio.gather(*waiting)
    assert len({offset for answer in answers for _, offset in answer}) == QUEUED_ENTRIES_MAX
    await lanes.close()


async def test_the_look_after_an_append_is_shared_and_sees_what_is_durable(feed: Observed) -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(feed.newest(UPDATES)[0].offset)
        return looks[-1]

    lanes = FeedLanes(feed, look)
    futures = [lanes.append_to(UPDATES, 0, [Entry(KEYS[0], b"%d" % number)] * 2) for number in range(50)]
    for number, appended in enumerate(await asyncio.gather(*futures)):
        records = [feed.read(UPDATES, 0, offset, offset + 1)[0].value for offset in appended.offsets]
        assert records == [b"%d" % number] * 2
        assert appended.looked > max(appended.offsets)
    assert len(looks) == len(feed.batches) < 50
    await lanes.close()


async def test_what_was_appended_is_not_appended_again_when_the_look_fails(feed: Observed) -> None:
    def look() -> None:
        raise RuntimeError("It cannot look.")

    lanes = FeedLanes(feed, look)
    futures = [lanes.append_to(UPDATES, 0, [Entry(KEYS[0], b"")]) for _ in range(3)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(outcome, RuntimeError) for outcome in outcomes)
    assert feed.newest(UPDATES)[0].offset == 3
    await lanes.close()
