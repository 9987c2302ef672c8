"""What a range of offsets means, whatever happened to the feed since Spark logged it. No Spark here."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from roskva.errors import PartitionUnavailable
from roskva.feed import open_feed
from roskva.feed.interface import Entry, Feed, Position
from roskva.pipeline.offsets import FAN_OUT, MATCHING, Place, Range, advance, from_json, plan, share_out, to_json
from roskva.pipeline.source import FeedReader, FeedSource, TaskRanges, options
from tests.pipeline.standin import name_in_partition, publish, register, settings_for

U0: Place = ("updates", 0)


def at(offset: int, incarnation: int = 1) -> dict[Place, Position]:
    return {U0: Position(incarnation, offset)}


def ranges(
    start: dict[Place, Position], end: dict[Place, Position], oldest: int, newest: int, incarnation: int = 1
) -> list[tuple[int, int]]:
    planned = plan(start, end, at(oldest, incarnation), at(newest, incarnation))
    return [(item.start, item.end) for item in planned.ranges]


def test_offsets_survive_spark_s_log_and_compare_as_text() -> None:
    positions = {("updates", 1): Position(2, 30), ("updates", 0): Position(1, 5), ("registrations", 0): Position(1, 0)}
    document = to_json(positions)
    assert document == {"registrations": {"0": [1, 0]}, "updates": {"0": [1, 5], "1": [2, 30]}}
    assert from_json(document) == positions
    assert str(to_json(from_json(document))) == str(document)


@pytest.mark.parametrize(
    ("start", "end", "oldest", "newest", "expected"),
    [
        (at(5), at(9), 0, 12, [(5, 9)]),
        (at(5), at(5), 0, 12, []),
        ({}, at(9), 2, 12, [(2, 9)]),  # a partition that the checkpoint does not know: from the oldest
        (at(5), at(9), 7, 12, [(7, 9)]),  # retention was faster
        (at(5), at(9), 12, 12, []),
        (at(9), at(5), 0, 12, []),  # start after end
        (at(50), at(9), 2, 12, [(2, 9)]),  # start past everything: the partition went back, so from the oldest
        (at(5000, 1), at(3, 2), 0, 3, []),  # the end is of an incarnation that is not there: nothing
    ],
)
def test_a_planned_range(
    start: dict[Place, Position], end: dict[Place, Position], oldest: int, newest: int, expected: list[tuple[int, int]]
) -> None:
    assert ranges(start, end, oldest, newest) == expected


def test_a_start_of_a_lost_incarnation_means_from_the_oldest() -> None:
    assert ranges(at(5000, 1), at(3, 2), 0, 3, incarnation=2) == [(0, 3)]


def test_an_end_of_a_lost_incarnation_reads_nothing_and_says_so() -> None:
    planned = plan(at(5, 1), at(9, 1), at(0, 2), at(4, 2))
    assert planned.ranges == []
    assert "incarnation 1" in planned.losses[0]


def test_records_that_retention_took_unread_are_named() -> None:
    assert plan(at(5), at(9), at(7), at(12)).losses
    assert not plan(at(5), at(9), at(5), at(12)).losses


def test_a_batch_is_bounded_per_partition() -> None:
    assert advance(at(5), at(0), at(1000), 100) == at(105)
    assert advance(at(5), at(0), at(50), 100) == at(50)
    assert advance(at(5), at(800), at(1000), 100) == at(900)
    assert advance(at(5000, 1), at(0, 2), at(10, 2), 4) == at(4, 2)
    assert advance({}, at(3), at(10), 4) == at(7)


def test_all_topics_of_a_partition_go_to_one_task_and_tasks_are_balanced() -> None:
    items = [Range(topic, p, 1, 0, size) for topic in ("updates", "registrations") for p, size in enumerate((1000, 100, 100, 100))]
    tasks = share_out(items, 2)
    assert len(tasks) == 2
    assert sorted({item.partition for item in task} for task in tasks) == [{0}, {1, 2, 3}]
    assert sum(len(task) for task in tasks) == 8
    assert share_out([], 2) == []
    few = [Range("updates", p, 1, 0, 10) for p in range(4)]
    assert share_out(few, 2) == [few], "a small batch is not worth a second task"
    assert len(share_out(items[:1], 2)) == 1


@pytest.fixture
def reader(tmp_path: Path) -> FeedReader:
    source = FeedSource(options(settings_for(tmp_path, records_per_batch_max=3, pipeline_cores=2), MATCHING))
    return source.streamReader(None)  # type: ignore[arg-type]


def read_all(reader: FeedReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[str, int, int]]:
    found = []
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            found += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
    return sorted(found)


def test_the_source_reads_each_record_once_in_bounded_batches(reader: FeedReader, tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    start = reader.initialOffset()
    name = name_in_partition(2)
    for version in range(5):
        publish(settings, name, version)
    register(settings, "c", name, 1)
    first = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert read_all(reader, start, first) == [("registrations", 2, 0), ("updates", 2, 0), ("updates", 2, 1), ("updates", 2, 2)]
    assert len(reader.partitions(start, first)) == 1, "partitions without new records are left out"
    second = reader.latestOffset(first, None)  # type: ignore[arg-type]
    assert read_all(reader, first, second) == [("updates", 2, 3), ("updates", 2, 4)]
    assert reader.latestOffset(second, None) == second, "nothing new: Spark starts no batch"  # type: ignore[arg-type]


def test_batches_that_may_wait_gather_what_comes_meanwhile(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, batch_delay_ms=900)
    reader = FeedSource(options(settings, MATCHING)).streamReader(None)  # type: ignore[arg-type]
    name = name_in_partition(2)
    publish(settings, name, 0)
    start = reader.initialOffset()
    first = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert read_all(reader, start, first) == [("updates", 2, 0)], "after a pause at once"
    publish(settings, name, 1)
    later = threading.Timer(0.05, publish, (settings, name, 2))
    later.start()
    second = reader.latestOffset(first, None)  # type: ignore[arg-type]
    later.join()
    assert read_all(reader, first, second) == [("updates", 2, 1), ("updates", 2, 2)]


def test_the_source_commits_what_spark_has_processed(reader: FeedReader, tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    name = name_in_partition(1)
    publish(settings, name, 1)
    end = reader.latestOffset(reader.initialOffset(), None)  # type: ignore[arg-type]
    reader.commit(end)
    committed = open_feed(settings).committed("pipeline", "updates")
    assert committed[1] == open_feed(settings).newest("updates")[1]


def test_the_source_follows_a_lost_partition(reader: FeedReader, tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    name = name_in_partition(3)
    for version in range(3):
        publish(settings, name, version)
    start = reader.initialOffset()
    logged = reader.latestOffset(start, None)  # type: ignore[arg-type]
    feed = open_feed(settings)
    for path in (tmp_path / "feed").glob("updates-3.*"):
        path.unlink()
    while True:
        try:
            publish(settings, name, 9)
            break
        except PartitionUnavailable:
            continue
    assert feed.newest("updates")[3].incarnation > logged["updates"]["3"][0]
    assert read_all(reader, start, logged) == [], "the batch that Spark logged is gone with its incarnation"
    later = reader.latestOffset(logged, None)  # type: ignore[arg-type]
    assert read_all(reader, logged, later) == [("updates", 3, 0)]


def test_a_failing_feed_is_waited_for_not_raised(reader: FeedReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed: Feed = open_feed(settings_for(tmp_path))
    failures = iter([True, True])
    original = feed.newest

    def flaky(topic: str) -> object:
        if next(failures, False):
            raise PartitionUnavailable("busy", "feed/updates-0")
        return original(topic)

    monkeypatch.setattr(feed, "newest", flaky)
    assert set(reader.initialOffset()) == {"updates", "registrations"}
    monkeypatch.setattr(feed, "commit", lambda *_: (_ for _ in ()).throw(PartitionUnavailable("busy", "x")))
    reader.commit(reader.initialOffset())


def test_a_task_is_pickled_without_connections(reader: FeedReader) -> None:
    import pickle

    reader.initialOffset()
    again = pickle.loads(pickle.dumps(reader))
    assert again._planning is None
    assert pickle.loads(pickle.dumps(TaskRanges([Range("updates", 0, 1, 0, 1)]))).ranges == [("updates", 0, 1, 0, 1)]


def test_the_fan_out_s_source_reads_its_topic_alone_in_one_task(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, pipeline_cores=2)
    reader = FeedSource(options(settings, FAN_OUT)).streamReader(None)  # type: ignore[arg-type]
    start = reader.initialOffset()
    keys = [publish(settings, name_in_partition(partition), 1) for partition in range(4)]
    open_feed(settings).append("fan-outs", [Entry(key, b"") for key in keys for _ in range(200)])
    end = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert len(reader.partitions(start, end)) == 1
    assert {(topic, partition) for topic, partition, _ in read_all(reader, start, end)} == {("fan-outs", p) for p in range(4)}
    reader.commit(end)
    assert open_feed(settings).committed("pipeline", "fan-outs") == open_feed(settings).newest("fan-outs")
