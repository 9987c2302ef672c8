"""What the measurements of capture count, without a publisher: that nothing repeated or skipped is overlooked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.capture.appending import ROW_BYTES, Writer, fill, row
from bench.capture.publishers import written
from bench.capture.records import Records, Rows, Tally, ages_ms, checked
from bench.capture.scene import Scene, scene, typed
from bench.capture.subscribing import Recording
from bench.service import BenchFailed
from roskva.capture.positions import Position
from roskva.capture.settings import settings_of
from roskva.capture.stores.files import FileDatastore
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Change, Operation, Update


def rows(first: int, last: int, shards: int = 1, shard: int = 0) -> Rows:
    return Rows(0.0, "a", shard, first, last, (last - first) // shards + 1, 0.0)


def test_what_comes_again_is_repeated_and_what_is_left_out_is_skipped() -> None:
    tally = Tally()
    assert tally.take(rows(0, 9)) == 0
    assert tally.take(rows(5, 14)) == 5
    assert tally.take(rows(0, 3)) == 4
    assert (tally.delivered, tally.repeated, tally.skipped) == (24, 9, 0)
    assert tally.has(15)
    assert not tally.has(16)
    tally.take(rows(17, 20))
    assert tally.skipped == 2
    with pytest.raises(BenchFailed, match="skipped"):
        checked({"a": tally}, 0)
    with pytest.raises(BenchFailed, match="lost 1 times"):
        checked({}, 1)


@pytest.mark.parametrize("begins", [0, 1, 7])
def test_a_tally_of_shards_agrees_with_counting_every_number(begins: int) -> None:
    dice, shards = random.Random(begins), 3
    tally, seen = Tally(shards, begins), set(range(begins))
    at = {shard: begins + (shard - begins) % shards for shard in range(shards)}
    came = 0
    for _ in range(200):
        shard = dice.randrange(shards)
        first = max(begins + (shard - begins) % shards, at[shard] - shards * dice.choice([0, 0, 1, 4]))
        last = first + shards * dice.randrange(5)
        numbers = range(first, last + 1, shards)
        assert tally.take(rows(first, last, shards, shard)) == len(seen.intersection(numbers))
        seen.update(numbers)
        came += len(numbers)
        at[shard] = max(at[shard], last + shards)
        whole = next(number for number in range(10_000) if number not in seen)
        assert tally.least == whole
        assert tally.has(whole)
        assert not tally.has(whole + 1)
    assert (tally.delivered, tally.repeated, tally.skipped) == (came, came - len(seen) + begins, 0)


def update(number: int, committed_us: int) -> Update:
    change = Change(Position(0, number + 1, 1), committed_us, Operation.UPDATE, "files", "documents", {"id": number}, {})
    return Update(number % 2, change)


def test_what_a_subscriber_writes_down_is_read_with_its_holes_and_its_ages(tmp_path: Path) -> None:
    path = tmp_path / "records"
    with path.open("ab", buffering=0) as file:
        recording = Recording("a", 2, file.fileno())
        shard = Shard("d", 0)
        recording.on_shard_notice(shard)
        recording.on_updates(shard, [update(number, 1) for number in (0, 2, 4, 8, 10, 6)])
        recording.on_token(shard, Position(0, 11, 1))
        file.write(b"u 17")  # in the middle of a line
    records = Records(2)
    records.add(path)
    found = records.read_on()
    assert sorted((one.first, one.last, one.size) for one in found) == [(0, 4, 3), (6, 6, 1), (8, 10, 2)]
    assert all(one.age_s == pytest.approx(one.at_s, abs=0.01) for one in found)
    assert len(records.notices) == 1
    assert records.asked[0].bytes == 2 * (4 + 1 + 1 + 1 + 4) - 0  # two frames: length, array, tag, flow, position
    assert records.read_on() == []
    assert len(ages_ms(found, 0.0, 1e12, ["a"])) == 6
    assert ages_ms(found, 0.0, 1e12, ["b"]) == []


def test_a_filled_log_begins_each_part_where_it_says(tmp_path: Path) -> None:
    filled = fill(tmp_path, 1_000, 4, 10.0)
    store = FileDatastore(tmp_path)
    for first, position in filled.marks:
        change = store.read_after(position).read(1, 1.0).changes[0]
        assert change.key == {"id": first}
        assert change.committed_us / 1e6 == pytest.approx(filled.ended_s - 10.0 * (1 - (first + 1) / 1_000), abs=0.001)
    store.close()
    assert [first for first, _ in filled.marks] == [0, 250, 500, 750]
    assert filled.bytes == pytest.approx(1_000 * ROW_BYTES, rel=0.02)
    assert len(row(10**6, 10**15)) == ROW_BYTES


def test_copies_of_a_log_that_grows_are_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    writer = Writer(folders, 5_000.0)
    writer.start()
    while writer.rows < 100:
        writer.check()
    writer.stop()
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir() if path.name != "writer.lock"} for folder in folders)
    assert one == two
    assert sum(len(data) for name, data in one.items() if name.endswith(".jsonl")) == writer.bytes


def test_settings_are_written_so_that_capture_reads_them(tmp_path: Path) -> None:
    import tomllib

    tables = {
        "dataset": {"name": "bench", "shards": 4, "shard": "id % 4"},
        "datastore": {"kind": "files", "path": str(tmp_path)},
        "publisher": {"peers": ["a", "publisher"], "caravan_rate_max_bytes_per_s": 2 << 20, **typed({"datamarker_period_s": "0.5"})},
        "applications": {"search": {"start": "0/7", "balance": "weighted"}},
    }
    found = settings_of(tomllib.loads(written(tables)))
    assert (found.publisher.datamarker_period_s, found.publisher.caravan_rate_max_bytes_per_s) == (0.5, 2 << 20)
    assert found.applications["search"].start == Position(0, 7)
    assert typed({"a": "1", "b": "x"}) == {"a": 1, "b": "x"}


@pytest.mark.e2e
def test_a_scene_says_what_a_part_said_that_ended_and_leaves_nothing_behind() -> None:
    def broken(stage: Scene) -> None:
        stage.publisher(stage.folder / "nowhere", {"a": {"start": "0/7"}}, shards=0).start()

    with scene() as stage, pytest.raises(BenchFailed, match=r"ended with status 2(.|\n)*dataset\.shards"):
        broken(stage)
    assert not stage.folder.exists()
