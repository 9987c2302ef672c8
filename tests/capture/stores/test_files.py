"""Logs in files: the contract of datastores, and what only files do to a reader: tear, vanish, shrink, change, come from strangers."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from roskva.capture.interface import Datastore
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.stores.file_lines import Entry, change_of, line_of
from roskva.capture.stores.file_log import FileLog, segment_path, segments_of
from roskva.capture.stores.files import FileDatastore
from roskva.capture.updates import MALFORMED, Change, Operation, Value
from roskva.errors import BadRequest, DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores.contract import Contracted, DatastoreContract, Row, drain


def entry(key: int, value: Value = "x") -> Entry:
    return Entry(Operation.INSERT, "rows", {"key": key}, {"value": value})


class FilesContracted:
    values: Sequence[Value] = [
        None, True, False, 0, 2**63 - 1, -(2**63), 0.1, -1e300, "", "Þjálfi\n\x00\u2028", "x" * 100_000, b"", b"\x00\xff\n" * 1000,
    ]  # fmt: skip

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = FileLog(directory, segment_bytes=500)

    def open(self) -> Datastore:
        store = FileDatastore(self.directory)
        store.prepare()
        return store

    def commit(self, rows: Sequence[Row]) -> None:
        self.log.append([entry(row.key, row.value) for row in rows])

    def row_of(self, change: Change) -> Row | None:
        key = change.key["key"]
        assert isinstance(key, int)
        return Row(key, change.columns["value"])

    def restart(self) -> None:
        self.log.close()
        self.log = FileLog(self.directory, segment_bytes=500)

    def cut(self) -> None:
        self.log.rotate()
        segments = segments_of(self.directory)
        self.log.drop_before(Position(0, segments[-1].base))

    def never_had(self) -> Position:
        return Position(0, segments_of(self.directory)[-1].base + 10_000_000)


class TestFiles(DatastoreContract):
    @pytest.fixture
    def contracted(self, tmp_path: Path) -> Iterator[Contracted]:
        files = FilesContracted(tmp_path)
        yield files
        files.log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    with FileLog(tmp_path / "log") as log:
        yield log


@pytest.fixture
def store(log: FileLog) -> Iterator[FileDatastore]:
    store = FileDatastore(log.directory)
    yield store
    store.close()


def keys(changes: Sequence[Change]) -> list[Value]:
    return [change.key["key"] for change in changes]


def test_a_position_is_the_same_in_a_copy_from_which_old_segments_are_gone(log: FileLog, store: FileDatastore, tmp_path: Path) -> None:
    ends = []
    for key in range(6):
        ends.append(log.append([entry(key)]))
        log.rotate()
    copied = tmp_path / "copy"
    shutil.copytree(log.directory, copied)
    for segment in segments_of(copied)[:2]:
        segment.path.unlink()
    copy = FileDatastore(copied)
    assert copy.identity == store.identity
    assert keys(copy.read_after(ends[2]).read(10, 5.0).changes) == [3]
    with pytest.raises(LogCut) as cut:
        copy.read_after(ends[0])
    assert cut.value.oldest == ends[1]
    assert copy.retained().oldest == ends[1]
    assert copy.retained().same_log
    (copied / "identity").unlink()
    assert not copy.retained().same_log, "whatever is in this directory now"
    copy.close()


def test_a_line_without_its_newline_is_not_committed_yet(log: FileLog, store: FileDatastore) -> None:
    log.append([entry(1)])
    path = segments_of(log.directory)[0].path
    reader = store.read_after(BEGINNING)
    line = line_of(entry(2), 0)
    with path.open("ab", buffering=0) as file:
        file.write(line[:10])
        batch = reader.read(10, 0.05)
        assert keys(batch.changes) == [1]
        assert reader.read(10, 0.05).changes == []
        assert store.retained().end == batch.reached
        file.write(line[10:-1])
        assert reader.read(10, 0.05).changes == []
        file.write(b"\n")
        assert keys(reader.read(10, 5.0).changes) == [2]


def test_what_a_killed_producer_left_is_replaced_by_the_next_one(log: FileLog, store: FileDatastore) -> None:
    end = log.append([entry(1)])
    log.close()
    path = segments_of(log.directory)[0].path
    reader = store.read_after(end)
    torn = line_of(entry(2, "torn"), 0)[:-1]
    with path.open("ab") as file:
        file.write(torn)
    assert reader.read(10, 0.05).changes == []
    with FileLog(log.directory) as after:
        assert path.stat().st_size == end.sequence
        after.append([entry(3), entry(4)])
        assert keys(reader.read(10, 5.0).changes) == [3, 4]


def test_there_is_one_writer(log: FileLog) -> None:
    with pytest.raises(DatastoreUnavailable, match="another process"):
        FileLog(log.directory)


def test_appends_of_many_threads_are_whole_and_readable_from_each_position(log: FileLog, store: FileDatastore) -> None:
    rotating = FileLog(log.directory.parent / "rotating", segment_bytes=2_000)
    ends: dict[int, Position] = {}

    def produce(worker: int) -> None:
        for number in range(25):
            key = worker * 100 + number
            ends[key] = rotating.append([entry(key), entry(-key - 1)])

    workers = [threading.Thread(target=produce, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rotating.close()
    assert len(segments_of(rotating.directory)) > 3
    own = FileDatastore(rotating.directory)
    reader, changes = own.read_after(BEGINNING), list[Change]()
    while batch := reader.read(1000, 0.05).changes:
        changes += batch
    assert sorted(keys(changes)) == sorted([*ends, *(-key - 1 for key in ends)])  # type: ignore[type-var]
    assert all(second.key["key"] == -first.key["key"] - 1 for first, second in zip(changes[::2], changes[1::2], strict=True))  # type: ignore[operator]
    assert {change.key["key"]: change.position._replace(index=0) for change in changes[1::2]} == {
        -key - 1: end._replace(index=0) for key, end in ends.items()
    }
    own.close()


def test_a_line_that_is_too_long_is_refused_to_its_producer(tmp_path: Path) -> None:
    with FileLog(tmp_path, line_bytes_max=1_000) as log:
        with pytest.raises(BadRequest, match="limit is 1,000"):
            log.append([entry(1), entry(2, "x" * 2_000)])
        with pytest.raises(BadRequest, match="newline"):
            log.append_lines(b"{}")
        assert segments_of(tmp_path)[0].path.stat().st_size == 0


def test_a_full_disk_is_said_and_another_writer_goes_on(log: FileLog, store: FileDatastore, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([entry(1)])
    real = os.write

    def full(descriptor: int, data: bytes | memoryview) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DatastoreUnavailable, match="No space"):
        log.append([entry(2)])
    monkeypatch.undo()
    with pytest.raises(DatastoreUnavailable, match="open another one"):
        log.append([entry(2)])
    log.close()
    with FileLog(log.directory) as after:
        after.append([entry(3)])
    assert keys(store.read_after(BEGINNING).read(10, 5.0).changes) == [1, 3]


MALFORMED_LINES = [
    b"not json",
    b"[1, 2]",
    b'{"operation": "insert"}',
    b'{"operation": "upsert", "table": "rows"}',
    b'{"operation": "insert", "table": "rows", "colums": {"value": 1}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": "\xff"}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": "\\ud800"}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": {"base64": "%"}}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": {"a": "\xff"}}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": NaN}}',
    b'{"operation": "insert", "table": "rows", "columns": {"value": [1,]}}',
    b'{"operation": "insert", "table": "rows", "columns": [1]}',
    b'{"operation": "insert", "table": "rows", "committed_us": -1}',
    b"[" * 10_000,
]


def test_a_malformed_line_is_reported_and_counted_and_the_flow_goes_on(log: FileLog, store: FileDatastore) -> None:
    for line in MALFORMED_LINES:
        log.append_lines(line + b"\n")
    log.append([entry(1)])
    changes = store.read_after(BEGINNING).read(100, 5.0).changes
    assert [change.operation for change in changes[:-1]] == [Operation.MESSAGE] * len(MALFORMED_LINES)
    assert [change.columns["line"] for change in changes[:-1]] == [line[:4096] for line in MALFORMED_LINES]
    assert all(change.table == MALFORMED and change.columns["reason"] for change in changes[:-1])
    assert [change.size for change in changes[:-1]] == [len(line) + 1 for line in MALFORMED_LINES]
    assert keys(changes[-1:]) == [1]
    store.read_after(BEGINNING).read(100, 5.0)  # another reader finds the same
    lines, last = store.malformed()
    (segment,) = segments_of(log.directory)
    assert lines == len(MALFORMED_LINES)
    assert last.startswith(f"{segment.path}, byte {sum(len(line) + 1 for line in MALFORMED_LINES[:-1])}: ")
    assert last.endswith(str(changes[-2].columns["reason"]))


def test_a_line_too_long_to_be_held_is_reported_when_it_ends(log: FileLog) -> None:
    store = FileDatastore(log.directory, line_bytes_max=1_000)
    log.append([entry(1)])
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(10, 5.0).changes) == [1]
    path = segments_of(log.directory)[0].path
    with path.open("ab", buffering=0) as file:
        for _ in range(3):
            file.write(b"x" * 1_500_000)
            assert reader.read(10, 0.02).changes == []
        file.write(b"\n" + line_of(entry(2), 0))
    changes = [*reader.read(1, 5.0).changes, *reader.read(1, 5.0).changes]
    assert changes[0].size == 4_500_001
    assert changes[0].columns == {"line": b"x" * 1000, "reason": "longer than 1000 bytes"}
    assert keys(changes[1:]) == [2]
    assert keys(store.read_after(changes[0].position).read(10, 5.0).changes) == [2]
    assert store.malformed() == (1, f"{path}, byte {changes[0].position.sequence - changes[0].size}: longer than 1000 bytes")
    store.close()


def test_values_that_have_no_kind_of_their_own_become_text() -> None:
    line = (
        b'{"operation": "insert", "table": "t", "columns": {"object": {"a": [1, "\xc3\xbe"]}, "array": [], "large": 123456789012345678901, '
        b'"larger": -9223372036854775809, "double": 1e999, "bytes": {"base64": "/wA="}, '
        b'"plain": 7, "two": {"base64": "x", "b": 1}}}'
    )
    change = change_of(line, BEGINNING, "files", 5)
    assert change.columns == {
        "object": '{"a": [1, "þ"]}',
        "array": "[]",
        "large": "123456789012345678901",
        "larger": "-9223372036854775809",
        "double": "1e999",
        "bytes": b"\xff\x00",
        "plain": 7,
        "two": '{"base64": "x", "b": 1}',
    }
    assert change.committed_us == 5
    assert change.size == len(line) + 1


def test_all_that_a_producer_says_arrives() -> None:
    said = Entry(Operation.UPDATE, "t", {"id": b"\xff"}, {"a": None}, {"id": 1}, ("b", "c"), {"trace": "7"}, 42)
    change = change_of(line_of(said, 1)[:-1], Position(0, 9, 1), "files", 5)
    assert change[1:10] == (42, Operation.UPDATE, "files", "t", {"id": b"\xff"}, {"a": None}, {"id": 1}, ("b", "c"), {"trace": "7"})
    assert json.loads(line_of(Entry(Operation.TRUNCATE, "t"), 1)) == {"operation": "truncate", "table": "t", "committed_us": 1}
    odd = Entry(Operation.INSERT, "t", {}, {"inf": float("inf"), "large": 2**64})
    assert change_of(line_of(odd, 1)[:-1], BEGINNING, "files", 5).columns == {"inf": "inf", "large": str(2**64)}


def test_blank_lines_are_no_changes_but_are_passed(log: FileLog, store: FileDatastore) -> None:
    end = log.append_lines(b"\n\n")
    reader = store.read_after(BEGINNING)
    batch = reader.read(10, 0.05)
    assert batch.changes == []
    assert batch.reached == end
    log.append([entry(1)])
    assert keys(reader.read(10, 5.0).changes) == [1]


def test_lines_without_a_time_get_that_of_the_last_write(log: FileLog, store: FileDatastore) -> None:
    log.append_lines(b'{"operation": "delete", "table": "rows", "key": {"key": 1}}\n')
    os.utime(segments_of(log.directory)[0].path, (1_700_000_000, 1_700_000_000))
    change = store.read_after(BEGINNING).read(1, 5.0).changes[0]
    assert change.committed_us == 1_700_000_000_000_000


def test_the_last_line_of_a_finished_segment_may_lack_its_newline(tmp_path: Path) -> None:
    """Of a producer that writes newlines between its lines."""
    (tmp_path / "identity").write_text("strange\n")
    line = line_of(entry(1), 0)[:-1]
    segment_path(tmp_path, 0).write_bytes(line)
    store = FileDatastore(tmp_path)
    reader = store.read_after(BEGINNING)
    assert reader.read(10, 0.05).changes == []
    segment_path(tmp_path, len(line)).write_bytes(line_of(entry(2), 0))
    changes = [*reader.read(1, 5.0).changes, *reader.read(1, 5.0).changes]
    assert keys(changes) == [1, 2]
    assert keys(store.read_after(changes[0].position).read(10, 5.0).changes) == [2]
    store.close()


def test_a_reader_of_an_empty_directory_waits_for_the_first_segment(tmp_path: Path) -> None:
    store = FileDatastore(tmp_path)
    store.prepare()
    reader = store.read_after(store.retained().end)
    assert reader.read(10, 0.05).changes == []
    with pytest.raises(WrongHistory, match="empty"):
        store.read_after(Position(0, 5))
    with FileLog(tmp_path) as log:
        log.append([entry(1)])
    assert keys(reader.read(10, 5.0).changes) == [1]
    store.close()


def test_an_open_segment_that_is_removed_is_read_to_its_end(log: FileLog, store: FileDatastore) -> None:
    log.append([entry(1), entry(2)])
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(1, 5.0).changes) == [1]
    log.rotate()
    end = log.append([entry(3)])
    log.drop_before(end)
    log.drop_before(Position(0, 10**9))
    assert len(segments_of(log.directory)) == 1
    assert keys(reader.read(1, 5.0).changes) == [2]
    assert keys(reader.read(1, 5.0).changes) == [3]


def test_a_hole_in_the_log_is_a_loss_to_whoever_comes_to_it(log: FileLog, store: FileDatastore) -> None:
    ends = []
    for key in range(5):
        ends.append(log.append([entry(key)]))
        log.rotate()
    segments = segments_of(log.directory)
    segments[2].path.unlink()
    reader = store.read_after(BEGINNING)
    assert [keys(reader.read(1, 5.0).changes) for _ in range(2)] == [[0], [1]]
    with pytest.raises(LogCut) as cut:
        reader.read(1, 5.0)
    assert cut.value.oldest == ends[2] == store.retained().oldest
    assert keys(store.read_after(ends[2]).read(1, 5.0).changes) == [3]
    with pytest.raises(LogCut):
        store.read_after(Position(0, segments[2].base + 3))
    assert [finding.ok for finding in store.check()] == [True, True, True, False]


def test_readers_notice_that_the_log_became_another_one(log: FileLog, store: FileDatastore) -> None:
    log.append([entry(1), entry(2)])
    path = segments_of(log.directory)[0].path
    original = path.read_bytes()

    def standing_at_the_end() -> Position:
        return store.read_after(BEGINNING).read(10, 5.0).reached

    end = standing_at_the_end()
    for damage in (
        lambda: path.write_bytes(original[: len(original) // 2]),  # shortened
        lambda: path.write_bytes(original.replace(b'"key":2', b'"key":7') + b"\n"),  # rewritten in place
        lambda: path.with_suffix(".new").write_bytes(original[:-9] + b"        \n") and path.with_suffix(".new").rename(path),  # replaced
    ):
        path.write_bytes(original)
        reader = store.read_after(end)
        assert reader.read(10, 0.0).changes == []
        following = store.read_after(BEGINNING)
        assert len(following.read(10, 5.0).changes) == 2
        damage()
        with pytest.raises(WrongHistory):
            following.read(10, 5.0)
    path.write_bytes(original[:-5])
    with pytest.raises(WrongHistory, match="ends at"):
        store.read_after(end)
    path.write_bytes(original)
    with pytest.raises(WrongHistory, match="no line"):
        store.read_after(Position(0, end.sequence - 3))
    with pytest.raises(WrongHistory, match="history"):
        store.read_after(Position(1, end.sequence))
    (log.directory / "identity").write_text("other\n")
    with pytest.raises(WrongHistory, match="no longer"):
        store.read_after(end)


def test_a_copy_that_takes_the_place_of_an_open_segment_is_read_on(log: FileLog, store: FileDatastore) -> None:
    log.append([entry(1)])
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(10, 5.0).changes) == [1]
    path = segments_of(log.directory)[0].path
    copy = path.with_suffix(".part")
    copy.write_bytes(path.read_bytes() + line_of(entry(2), 0))
    copy.rename(path)
    assert keys(reader.read(10, 5.0).changes) == [2]


def test_a_directory_that_is_gone_is_unavailable(log: FileLog, store: FileDatastore) -> None:
    log.append([entry(1)])
    reader = store.read_after(BEGINNING)
    reader.read(10, 5.0)
    shutil.rmtree(log.directory)
    with pytest.raises(DatastoreUnavailable):
        reader.read(10, 5.0)
    with pytest.raises(DatastoreUnavailable):
        store.retained()
    assert [finding.ok for finding in store.check()] == [False]


def test_times_are_found_by_segment_and_a_cut_log_says_what_it_cannot_know(log: FileLog, store: FileDatastore) -> None:
    ends = [BEGINNING]
    for key in range(3):
        ends.append(log.append([entry(key)._replace(committed_us=(100 + 10 * key) * 1_000_000)]))
        os.utime(segments_of(log.directory)[-1].path, (100 + 10 * key, 100 + 10 * key))
        log.rotate()
    os.utime(segments_of(log.directory)[-1].path, (130, 130))
    assert store.at_time(50) == Position(0, 0)
    assert store.at_time(110) == ends[1]
    assert store.at_time(125) == ends[3]
    assert store.at_time(1000) == ends[3]
    log.drop_before(ends[1])
    assert store.at_time(115) == ends[2]
    assert store.at_time(110) == ends[1], "its first line was committed then"
    with pytest.raises(LogCut) as cut:
        store.at_time(105)
    assert cut.value.oldest == ends[1]


def test_check_names_what_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "today.jsonl").write_text("")
    store = FileDatastore(tmp_path)
    assert [finding.ok for finding in store.check()] == [True, False, False, True]
    with pytest.raises(DatastoreUnavailable, match="identity"):
        _ = store.identity
    store.prepare()
    (tmp_path / "today.jsonl").unlink()
    assert all(finding.ok for finding in store.check())
    store.close()


def test_a_reader_follows_a_writer_across_many_segments(tmp_path: Path) -> None:
    with FileLog(tmp_path, segment_bytes=3_000) as log:
        files = FilesContracted.__new__(FilesContracted)
        store = FileDatastore(tmp_path, poll_interval_s=0.001)

        def produce() -> None:
            for key in range(0, 600, 3):
                log.append([entry(key), entry(key + 1), entry(key + 2)])

        producer = threading.Thread(target=produce)
        producer.start()
        found = drain(files, store.read_after(BEGINNING), 600, BEGINNING, changes_max=50)
        producer.join()
        assert [row.key for row in found.rows] == list(range(600))
        assert sum(batch.bytes_read for batch in found.batches) == found.batches[-1].reached.sequence == store.retained().end.sequence
        store.close()


def test_time_is_not_asked_of_a_segment_set_to_the_future(log: FileLog, store: FileDatastore) -> None:
    log.append_lines(b'{"operation": "truncate", "table": "rows"}\n')
    os.utime(segments_of(log.directory)[0].path, (4_000_000_000, 4_000_000_000))
    change = store.read_after(BEGINNING).read(1, 5.0).changes[0]
    assert change.committed_us <= time.time_ns() // 1000
