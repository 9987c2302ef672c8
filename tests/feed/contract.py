"""What every engine of the feed must do. A later engine subclasses FeedContract and gives the three fixtures; nothing else.

No engine is named here, and nothing is asked that the weakest of them could not give.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from roskva.errors import FeedFull
from roskva.feed.interface import DEAD_LETTERS, REGISTRATIONS, UPDATES, Entry, Feed, Position, Record
from roskva.model import partition_of

MakeFeed = Callable[..., Feed]


def entries(count: int, prefix: bytes = b"object-", size: int = 10) -> list[Entry]:
    return [Entry(prefix + b"%d" % number, b"%d" % number + b"." * size, b"demo") for number in range(count)]


def everything(feed: Feed, topic: str) -> list[Record]:
    oldest, newest = feed.oldest(topic), feed.newest(topic)
    return [
        record
        for partition in range(feed.partitions)
        for record in feed.read(topic, partition, oldest[partition].offset, newest[partition].offset)
    ]


def seen_of(feed: Feed, *topics: str) -> dict[tuple[str, int], Position]:
    return {(topic, partition): position for topic in topics for partition, position in feed.newest(topic).items()}


class FeedContract:
    @pytest.fixture
    def engine(self) -> Feed:
        """An empty feed of at least two partitions that keeps records for an hour, up to 100,000 bytes a partition."""
        raise NotImplementedError

    @pytest.fixture
    def second(self) -> MakeFeed:
        """Opens the same feed once more, as another process would; `retention_s` and `bytes_max` may be given anew."""
        raise NotImplementedError

    def test_appended_records_are_read_in_order(self, engine: Feed) -> None:
        given = entries(20)
        before_ms = time.time_ns() // 1_000_000
        answers = engine.append(UPDATES, given)
        after_ms = time.time_ns() // 1_000_000
        assert [partition for partition, _ in answers] == [partition_of(entry.key, engine.partitions) for entry in given]
        records = {(record.partition, record.offset): record for record in everything(engine, UPDATES)}
        assert len(records) == 20
        for entry, answer in zip(given, answers, strict=True):
            record = records[answer]
            assert (record.key, record.value, record.headers) == entry[:3]
            assert before_ms <= record.time_ms <= after_ms
        for partition in range(engine.partitions):
            offsets = [offset for place, offset in answers if place == partition]
            assert offsets == sorted(offsets)
            assert engine.newest(UPDATES)[partition].offset == max(offsets) + 1

    def test_topics_are_apart(self, engine: Feed) -> None:
        engine.append(UPDATES, entries(5))
        assert everything(engine, REGISTRATIONS) == []
        assert all(position.offset == engine.oldest(REGISTRATIONS)[p].offset for p, position in engine.newest(REGISTRATIONS).items())

    def test_an_empty_append_does_nothing(self, engine: Feed) -> None:
        assert engine.append(UPDATES, []) == []
        assert everything(engine, UPDATES) == []

    def test_append_to_one_partition(self, engine: Feed) -> None:
        given = [entry for entry in entries(40) if partition_of(entry.key, engine.partitions) == 1]
        first = engine.append_to(UPDATES, 1, given[:2])
        second = engine.append_to(UPDATES, 1, given[2:])
        assert [record.offset for record in engine.read(UPDATES, 1, 0, 10**9)] == first + second
        assert [record.key for record in everything(engine, UPDATES)] == [entry.key for entry in given]

    def test_reading_beyond_either_end_gives_what_there_is(self, engine: Feed) -> None:
        offsets = [offset for _, offset in engine.append(UPDATES, [Entry(b"k", b"%d" % number) for number in range(5)])]
        partition = partition_of(b"k", engine.partitions)
        newest = engine.newest(UPDATES)[partition].offset
        assert engine.read(UPDATES, partition, newest, newest + 1_000) == []
        assert engine.read(UPDATES, partition, newest + 5_000, newest + 6_000) == []
        assert [record.offset for record in engine.read(UPDATES, partition, 0, newest + 1_000)] == offsets
        assert [record.offset for record in engine.read(UPDATES, partition, offsets[1], offsets[3])] == offsets[1:3]
        assert engine.read(UPDATES, partition, offsets[3], offsets[1]) == []

    def test_a_large_batch(self, engine: Feed) -> None:
        given = [Entry(b"k", b"%d" % number) for number in range(700)]
        answers = engine.append(UPDATES, given)
        assert len({offset for _, offset in answers}) == 700
        assert [record.value for record in everything(engine, UPDATES)] == [entry.value for entry in given]

    def test_once_means_once(self, engine: Feed, second: MakeFeed) -> None:
        engine.append_once(DEAD_LETTERS, [Entry(b"origin-1", b"first"), Entry(b"origin-2", b""), Entry(b"origin-1", b"again")])
        second().append_once(DEAD_LETTERS, [Entry(b"origin-1", b"repeat"), Entry(b"origin-3", b"")])
        engine.append_once(DEAD_LETTERS, [Entry(b"origin-1", b"repeat")])
        found = {record.key: record.value for record in everything(engine, DEAD_LETTERS)}
        assert found == {b"origin-1": b"first", b"origin-2": b"", b"origin-3": b""}
        assert len(everything(engine, DEAD_LETTERS)) == 3

    def test_unknown_topics_and_partitions_are_named(self, engine: Feed) -> None:
        with pytest.raises(ValueError, match="topic"):
            engine.append("no-such-topic", entries(1))
        with pytest.raises(ValueError, match="partition"):
            engine.read(UPDATES, 99, 0, 1)

    def test_others_see_what_was_appended(self, engine: Feed, second: MakeFeed) -> None:
        other = second()
        for number in range(10):
            [(partition, offset)] = engine.append(UPDATES, [Entry(b"k", b"%d" % number)])
            assert [record.value for record in other.read(UPDATES, partition, offset, offset + 1)] == [b"%d" % number]
            assert other.newest(UPDATES) == engine.newest(UPDATES)

    def test_several_threads_append_at_once(self, engine: Feed, second: MakeFeed) -> None:
        answers: list[tuple[int, int]] = []
        feeds = [engine, second()]

        def append(thread: int) -> None:
            for number in range(25):
                answers.extend(feeds[thread % 2].append(UPDATES, [Entry(b"k", b"%d-%d" % (thread, number))]))

        threads = [threading.Thread(target=append, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(answers)) == 100
        values = [record.value for record in everything(engine, UPDATES)]
        assert len(values) == 100
        for number in range(4):
            mine = [int(value.split(b"-")[1]) for value in values if value.startswith(b"%d-" % number)]
            assert mine == list(range(25))

    def test_commits_move_forward_only_and_not_past_the_end(self, engine: Feed, second: MakeFeed) -> None:
        engine.append(UPDATES, [Entry(b"k", b"") for _ in range(10)])
        partition = partition_of(b"k", engine.partitions)
        newest = engine.newest(UPDATES)[partition]
        engine.subscribe("pipeline", [UPDATES])
        assert engine.committed("pipeline", UPDATES) == {}
        engine.commit("pipeline", UPDATES, {partition: newest._replace(offset=newest.offset - 3)})
        engine.commit("pipeline", UPDATES, {partition: newest._replace(offset=newest.offset - 5)})
        assert second().committed("pipeline", UPDATES) == {partition: newest._replace(offset=newest.offset - 3)}
        engine.commit("pipeline", UPDATES, {partition: newest._replace(offset=newest.offset + 100)})
        assert engine.committed("pipeline", UPDATES) == {partition: newest}
        assert engine.committed("pipeline", REGISTRATIONS) == {}
        assert engine.committed("other", UPDATES) == {}

    def test_a_position_of_another_incarnation_commits_nothing(self, engine: Feed) -> None:
        engine.append(UPDATES, entries(10))
        newest = engine.newest(UPDATES)
        engine.commit("pipeline", UPDATES, {0: newest[0]._replace(incarnation=newest[0].incarnation - 1)})
        engine.commit("pipeline", UPDATES, {1: newest[1]._replace(incarnation=newest[1].incarnation + 1)})
        assert engine.committed("pipeline", UPDATES) == {}

    def test_without_subscriptions_everything_is_kept(self, engine: Feed, second: MakeFeed) -> None:
        engine.append(UPDATES, entries(10))
        assert second(retention_s=0.0).trim() == 0
        assert len(everything(engine, UPDATES)) == 10

    def test_only_what_every_subscription_has_consumed_goes(self, engine: Feed, second: MakeFeed) -> None:
        engine.append(UPDATES, [Entry(b"k", b"%d" % number) for number in range(10)])
        partition = partition_of(b"k", engine.partitions)
        newest = engine.newest(UPDATES)[partition]
        engine.subscribe("slow", [UPDATES])
        engine.subscribe("elsewhere", [REGISTRATIONS])
        engine.commit("fast", UPDATES, {partition: newest})
        time.sleep(0.01)
        impatient = second(retention_s=0.0)
        assert impatient.trim() == 0
        engine.commit("slow", UPDATES, {partition: newest._replace(offset=newest.offset - 4)})
        assert engine.trim() == 0  # an hour is not over
        assert impatient.trim() == 6
        assert [record.value for record in everything(engine, UPDATES)] == [b"6", b"7", b"8", b"9"]
        assert engine.oldest(UPDATES)[partition] == newest._replace(offset=newest.offset - 4)

    def test_offsets_go_on_when_a_partition_was_emptied(self, engine: Feed, second: MakeFeed) -> None:
        """Trap 13: numbered by what is left, new records would lie below where their reader stands."""
        engine.append(UPDATES, [Entry(b"k", b"") for _ in range(10)])
        partition = partition_of(b"k", engine.partitions)
        newest = engine.newest(UPDATES)[partition]
        engine.commit("pipeline", UPDATES, {partition: newest})
        time.sleep(0.01)
        impatient = second(retention_s=0.0)
        assert impatient.trim() == 10
        assert engine.newest(UPDATES)[partition] == newest == engine.oldest(UPDATES)[partition]
        impatient.close()
        engine.close()
        third = second()
        assert third.newest(UPDATES)[partition] == newest
        assert third.append(UPDATES, [Entry(b"k", b"")]) == [(partition, newest.offset)]

    def test_full_means_refused_until_something_was_consumed(self, engine: Feed) -> None:
        engine.subscribe("pipeline", [UPDATES])
        big = [Entry(b"k", b"x" * 10_000)]
        accepted = 0
        with suppress(FeedFull):
            while accepted < 20:
                engine.append(UPDATES, big)
                accepted += 1
        assert 5 <= accepted <= 10
        with pytest.raises(FeedFull):
            engine.append(UPDATES, big)
        partition = partition_of(b"k", engine.partitions)
        assert len(engine.read(UPDATES, partition, 0, 10**9)) == accepted  # nothing accepted is dropped
        elsewhere = next(entry for entry in entries(20) if partition_of(entry.key, engine.partitions) != partition)
        engine.append(UPDATES, [elsewhere])
        newest = engine.newest(UPDATES)[partition]
        engine.commit("pipeline", UPDATES, {partition: newest})
        [(_, offset)] = engine.append(UPDATES, big)
        assert offset == newest.offset

    def test_a_wait_ends_when_its_time_is_over(self, engine: Feed) -> None:
        engine.append(UPDATES, entries(3))
        started_s = time.monotonic()
        assert not engine.wait([UPDATES, REGISTRATIONS], seen_of(engine, UPDATES, REGISTRATIONS), 0.2)
        assert 0.15 <= time.monotonic() - started_s < 1.0

    def test_a_wait_does_not_block_when_something_is_there(self, engine: Feed) -> None:
        seen = seen_of(engine, UPDATES, REGISTRATIONS)
        engine.append(REGISTRATIONS, entries(1))
        started_s = time.monotonic()
        assert engine.wait([UPDATES, REGISTRATIONS], seen, 5.0)
        assert engine.wait([REGISTRATIONS], {}, 5.0)
        assert time.monotonic() - started_s < 1.0

    def test_a_wait_wakes_at_once(self, engine: Feed, second: MakeFeed) -> None:
        other = second()
        other.append(UPDATES, entries(1))
        delays_s = []
        for _ in range(10):
            seen = seen_of(engine, UPDATES)
            appended_s: list[float] = []

            def append(appended_s: list[float] = appended_s) -> None:
                time.sleep(0.03)
                other.append(UPDATES, entries(1))
                appended_s.append(time.monotonic())

            thread = threading.Thread(target=append)
            thread.start()
            assert engine.wait([UPDATES], seen, 5.0)
            woken_s = time.monotonic()
            thread.join()
            delays_s.append(woken_s - appended_s[0])
        assert sorted(delays_s)[5] < 0.2

    def test_records_outlive_the_engine(self, engine: Feed, second: MakeFeed) -> None:
        engine.append(UPDATES, entries(10))
        newest = engine.newest(UPDATES)
        engine.close()
        assert len(everything(second(), UPDATES)) == 10
        assert second().newest(UPDATES) == newest
