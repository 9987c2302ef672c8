"""RocksDB: the contract of datastores, and its log read while the database is open."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from roskva.capture.interface import Datastore
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.status import lag_bytes
from roskva.capture.stores import rocksdb_wal
from roskva.capture.stores.rocksdb import RocksDBDatastore
from roskva.capture.stores.rocksdb_files import Logs, read_manifest
from roskva.capture.stores.rocksdb_library import RocksDB, library_path
from roskva.capture.updates import Change, Operation, Value
from roskva.capture.watching import share_of_kept
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores.contract import Contracted, DatastoreContract, Row

pytestmark = pytest.mark.skipif(library_path() is None, reason="librocksdb is not installed")

KEPT_S = 3600


class RocksDBContracted:
    values: Sequence[Value] = [b"", b"\x00", b"\xff" * 127, b"x" * 128, "Þjálfi".encode("latin-1"), bytes(range(256)) * 1000]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = RocksDB(directory, wal_ttl_s=KEPT_S)

    def open(self) -> Datastore:
        store = RocksDBDatastore(self.directory)
        store.prepare()
        return store

    def commit(self, rows: Sequence[Row]) -> None:
        with self.database.batch() as batch:
            for key, value in rows:
                batch.put(struct.pack(">Q", key), b"b" + value if isinstance(value, bytes) else b"s" + str(value).encode())
            self.database.write(batch)

    def row_of(self, change: Change) -> Row | None:
        key, value = change.key["key"], change.columns["value"]
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        return Row(struct.unpack(">Q", key)[0], value[1:] if value[:1] == b"b" else value[1:].decode())

    def restart(self) -> None:
        self.database.close()
        self.database = RocksDB(self.directory, wal_ttl_s=KEPT_S)

    def cut(self) -> None:
        self.database.flush()
        self.restart()
        for path in (self.directory / "archive").glob("*.log"):
            path.unlink()

    def never_had(self) -> Position:
        return Position(0, self.database.latest_sequence() + 1000)


class TestRocksDB(DatastoreContract):
    @pytest.fixture
    def contracted(self, tmp_path: Path) -> Iterator[Contracted]:
        rocksdb = RocksDBContracted(tmp_path)
        yield rocksdb
        rocksdb.database.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RocksDB]:
    with RocksDB(tmp_path / "source", ["other"], wal_ttl_s=KEPT_S, counters=True) as database:
        yield database


@pytest.fixture
def store(database: RocksDB, tmp_path: Path) -> Iterator[RocksDBDatastore]:
    store = RocksDBDatastore(tmp_path / "source")
    yield store
    store.close()


def read_all(store: RocksDBDatastore, after: Position = BEGINNING) -> list[Change]:
    reader, changes = store.read_after(after), list[Change]()
    while batch := reader.read(1000, 0.05).changes:
        changes += batch
    reader.close()
    return changes


def keys(changes: Sequence[Change]) -> list[Value]:
    return [change.key["key"] for change in changes]


def test_every_kind_of_operation_is_told(database: RocksDB, store: RocksDBDatastore) -> None:
    with database.batch() as batch:
        batch.log_data(b"who")
        batch.put(b"k", b"v")
        batch.put(b"o", b"w", "other")
        batch.delete(b"k")
        batch.single_delete(b"o", "other")
        batch.log_data(b"one")
        batch.log_data(b"two")
        batch.merge(b"m", struct.pack("<Q", 7))
        batch.delete_range(b"a", b"z", "other")
        batch.log_data(b"of nothing")
        database.write(batch)
    assert [
        (change.position.sequence, change.operation, change.table, change.key, change.columns, change.attached)
        for change in read_all(store)
    ] == [
        (1, Operation.INSERT, "default", {"key": b"k"}, {"value": b"v"}, {"log_data": b"who"}),
        (2, Operation.INSERT, "other", {"key": b"o"}, {"value": b"w"}, None),
        (3, Operation.DELETE, "default", {"key": b"k"}, {}, None),
        (4, Operation.DELETE, "other", {"key": b"o"}, {}, None),
        (5, Operation.UPDATE, "default", {"key": b"m"}, {"merge": struct.pack("<Q", 7)}, {"log_data": b"one", "log_data_2": b"two"}),
        (6, Operation.MESSAGE, "other", {}, {"delete_from": b"a", "delete_before": b"z"}, None),
    ]
    assert database.latest_sequence() == 6 == store.retained().end.sequence


def test_positions_are_of_operations_however_their_batches_were_joined(database: RocksDB, store: RocksDBDatastore) -> None:
    def produce(worker: int) -> None:
        for number in range(100):
            with database.batch() as batch:
                batch.put(b"%d-%d" % (worker, number), b"")
                batch.put(b"%d-%d" % (worker, number), b"again")
                database.write(batch)

    workers = [threading.Thread(target=produce, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    changes = read_all(store)
    assert [change.position for change in changes] == [Position(0, sequence, 1) for sequence in range(1, 801)]
    for first, second in zip(changes[::2], changes[1::2], strict=True):
        assert first.key == second.key
        assert (first.columns["value"], second.columns["value"]) == (b"", b"again")


def test_a_checkpoint_has_the_same_positions(database: RocksDB, store: RocksDBDatastore, tmp_path: Path) -> None:
    for number in range(5):
        database.put(b"%d" % number, b"")
    database.checkpoint(tmp_path / "copy")
    with RocksDB(tmp_path / "copy", wal_ttl_s=KEPT_S) as copy:
        copied = RocksDBDatastore(tmp_path / "copy", identity="same")
        assert copied.identity == RocksDBDatastore(tmp_path / "source", identity="same").identity
        for target in (database, copy):
            target.put(b"later", b"x")
        position = read_all(store)[4].position
        assert read_all(copied, position) == [
            change._replace(committed_us=copied_change.committed_us)
            for change, copied_change in zip(read_all(store, position), read_all(copied, position), strict=True)
        ]
        assert keys(read_all(copied, position)) == [b"later"]
        copied.close()


def test_large_records_go_over_many_blocks_and_every_place_is_found(database: RocksDB, store: RocksDBDatastore, tmp_path: Path) -> None:
    randomness = random.Random(7)
    sizes = [randomness.choice([0, 10, 1_000, 32_700, 32_761, 32_768, 100_000]) for _ in range(60)] + [3_000_000, 1]
    for number, size in enumerate(sizes):
        database.put(b"%d" % number, b"v" * size)
    assert [len(change.columns["value"]) for change in read_all(store)] == sizes  # type: ignore[arg-type]
    for after in range(len(sizes)):
        assert keys(store.read_after(Position(0, after)).read(1, 5.0).changes) == [b"%d" % after]
    logs = Logs(tmp_path / "source")
    number = logs.numbers()[-1]
    with logs.opened(number) as descriptor:
        offsets = [logs.offset_of(descriptor, number, sequence) for sequence in range(1, len(sizes) + 1)]
    assert offsets == sorted(offsets)
    assert offsets[-2] > 500_000, "what is late in the log is not looked for from its beginning"


def test_a_reader_goes_through_logs_that_are_flushed_archived_and_removed_under_it(
    database: RocksDB, store: RocksDBDatastore, tmp_path: Path
) -> None:
    reader = store.read_after(BEGINNING)
    for number in range(6):
        database.put(b"%d" % number, b"")
        assert keys(reader.read(10, 5.0).changes) == [b"%d" % number]
        database.flush()
    assert keys(read_all(store)) == [b"%d" % number for number in range(6)]
    assert len(list((tmp_path / "source" / "archive").glob("*.log"))) >= 5


def test_what_was_written_without_the_log_is_a_loss(database: RocksDB, store: RocksDBDatastore) -> None:
    database.put(b"1", b"")
    with database.batch() as batch:
        batch.put(b"unseen", b"")
        batch.put(b"unseen too", b"")
        database.write(batch, log=False)
    database.put(b"4", b"")
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(10, 5.0).changes) == [b"1"]
    for _ in range(2):
        with pytest.raises(LogCut) as cut:
            reader.read(10, 5.0)
    assert cut.value.oldest == Position(0, 3)
    assert keys(read_all(store, Position(0, 3))) == [b"4"]


def test_a_loss_at_the_end_is_told_before_anything_follows(tmp_path: Path) -> None:
    with RocksDB(tmp_path) as database:
        database.put(b"1", b"")
        with database.batch() as batch:
            batch.put(b"unseen", b"")
            database.write(batch, log=False)
        database.flush()
        store = RocksDBDatastore(tmp_path)
        with pytest.raises(LogCut) as cut:
            store.read_after(Position(0, 1))
        assert cut.value.oldest == Position(0, 2) == store.retained().end
        reader = store.read_after(Position(0, 2))
        database.put(b"3", b"")
        assert keys(reader.read(10, 5.0).changes) == [b"3"]
        store.close()


def test_a_reader_at_the_end_of_a_closed_database_goes_on_when_it_is_opened(tmp_path: Path) -> None:
    with RocksDB(tmp_path) as database:
        database.put(b"1", b"")
    store = RocksDBDatastore(tmp_path)
    reader = store.read_after(store.retained().end)
    assert reader.read(10, 0.05).changes == []
    with RocksDB(tmp_path) as database:
        database.put(b"2", b"")
        assert keys(reader.read(10, 5.0).changes) == [b"2"]
    store.close()


def test_a_torn_end_is_no_record_and_the_next_log_is_read(tmp_path: Path) -> None:
    with RocksDB(tmp_path, wal_ttl_s=KEPT_S) as database:
        database.put(b"1", b"")
        shutil.copytree(tmp_path, tmp_path / "crashed")
    crashed = tmp_path / "crashed"
    log = max(crashed.glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole + piece(1, batch_of(2, [(b"torn", b"")]))[:-3])
    store = RocksDBDatastore(crashed)
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(10, 5.0).changes) == [b"1"]
    assert reader.read(10, 0.05).changes == []
    with RocksDB(crashed, wal_ttl_s=KEPT_S) as database:
        database.put(b"2", b"")
        assert keys(reader.read(10, 5.0).changes) == [b"2"]
        assert keys(read_all(store)) == [b"1", b"2"]
    store.close()


def test_recycled_logs_are_read_up_to_what_they_held_before(tmp_path: Path) -> None:
    with RocksDB(tmp_path, recycled_logs=2) as database:
        store = RocksDBDatastore(tmp_path)
        reader = store.read_after(BEGINNING)
        number = 0
        for size in (5_000, 100, 3_000, 10, 40_000, 1):
            for _ in range(5):
                database.put(b"%d" % number, b"v" * size)
                assert keys(reader.read(10, 5.0).changes) == [b"%d" % number]
                number += 1
            database.flush()
        assert any(path.stat().st_size > 0 and path.read_bytes()[6] in range(5, 9) for path in tmp_path.glob("*.log"))
        store.close()


def test_whatever_room_a_record_leaves_in_its_block_the_next_one_is_found(tmp_path: Path) -> None:
    """A header takes 7 bytes, in recyclable logs 11: where there is less room, zeros fill the block."""
    for recycled_logs, header in ((0, 7), (1, 11)):
        directory = tmp_path / str(recycled_logs)
        with RocksDB(directory, recycled_logs=recycled_logs) as database:
            store = RocksDBDatastore(directory)
            reader, written, number = store.read_after(BEGINNING), 0, 0
            for room in range(14):
                overhead = header + 12 + 2 + 4 + 3  # of the batch, its one operation, the key of four bytes, the value's length
                size = 32768 - written % 32768 - overhead - room
                for value in (b"v" * (size if size > 20_000 else size + 32768 - header), b"w" * 20_000):
                    database.put(b"%04d" % number, value)
                    assert [change.columns["value"] for change in reader.read(10, 5.0).changes] == [value]
                    number += 1
                written = max(directory.glob("*.log")).stat().st_size
            kind = max(directory.glob("*.log")).read_bytes()[6]
            assert kind in ((1, 2) if header == 7 else (5, 6))
            assert len(read_all(store)) == number
            store.close()


def test_the_names_of_families_outlive_them_for_a_while(database: RocksDB, store: RocksDBDatastore, tmp_path: Path) -> None:
    database.put(b"k", b"", "other")
    database.drop_family("other")
    assert [change.table for change in read_all(store)] == ["other"]
    assert read_manifest(tmp_path / "source").families == {0: "default", 1: "other"}
    database.close()
    with RocksDB(tmp_path / "source", wal_ttl_s=KEPT_S):
        again = RocksDBDatastore(tmp_path / "source")
        assert [change.table for change in read_all(again)] == ["column-family-1"]
        again.close()


def test_another_database_in_its_place_is_another_history(database: RocksDB, store: RocksDBDatastore, tmp_path: Path) -> None:
    database.put(b"1", b"")
    reader = store.read_after(BEGINNING)
    position = reader.read(10, 5.0).reached
    database.close()
    shutil.rmtree(tmp_path / "source")
    with RocksDB(tmp_path / "source") as other:
        other.put(b"1", b"")
        other.put(b"2", b"")
        with pytest.raises(WrongHistory, match="another one"):
            reader.read(10, 5.0)
        with pytest.raises(WrongHistory, match="another one"):
            store.read_after(position)


def test_sequence_numbers_that_go_back_are_another_history(tmp_path: Path) -> None:
    store = handmade(tmp_path, {4: [batch_of(1, [(b"1", b""), (b"2", b"")])]})
    reader = store.read_after(BEGINNING)
    assert keys(reader.read(10, 5.0).changes) == [b"1", b"2"]
    (tmp_path / "000009.log").write_bytes(piece(1, batch_of(2, [(b"other", b"")])))
    with pytest.raises(WrongHistory, match="goes back to 2"):
        reader.read(10, 5.0)
    store.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: piece(9, b"\x07"), "compressed"),
        (lambda: piece(20, b"x"), "kind 20"),
        (lambda: piece(1, struct.pack("<QI", 1, 0) + b"\x0b\x01x"), "two-phase"),
        (lambda: piece(1, struct.pack("<QI", 1, 5) + b"\x01\x01k\x01v"), "should have 5"),
        (lambda: piece(1, struct.pack("<QI", 1, 2) + b"\x01\x01k\x01v\x01"), "in the middle"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, content: object, says: str) -> None:
    assert callable(content)
    store = handmade(tmp_path, {})
    reader = store.read_after(BEGINNING)
    (tmp_path / "000004.log").write_bytes(content())
    with pytest.raises(CaptureRefused, match=says):
        list(iter(lambda: reader.read(10, 5.0).changes, []))
    store.close()


def test_metadata_of_later_versions_is_passed_over(tmp_path: Path) -> None:
    store = handmade(tmp_path, {})
    log = piece(10, b"sizes") + piece(130, b"before us") + piece(1, batch_of(1, [(b"k", b"v")]))
    (tmp_path / "000004.log").write_bytes(log)
    assert keys(read_all(store)) == [b"k"]
    store.close()


def test_our_own_checksum_is_the_librarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rocksdb_wal.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    data = random.Random(3).randbytes(1_000)
    quick = rocksdb_wal.checksum_of(data)(6, 900)
    monkeypatch.setattr(rocksdb_wal, "_library_extend", lambda: None)
    assert rocksdb_wal.checksum_of(data)(6, 900) == quick
    store = handmade(tmp_path, {4: [batch_of(1, [(b"k", b"v")])]})
    assert keys(read_all(store)) == [b"k"]
    store.close()


def test_check_says_what_the_database_lacks(tmp_path: Path) -> None:
    store = RocksDBDatastore(tmp_path)
    assert [finding.ok for finding in store.check()] == [False]
    with pytest.raises(DatastoreUnavailable):
        store.retained()
    with RocksDB(tmp_path):
        findings = store.check()
        assert [finding.ok for finding in findings] == [True, True, False, True, True]
        assert "WAL_ttl_seconds" in findings[2].do
        (tmp_path / "elsewhere").mkdir()
        astray = RocksDBDatastore(tmp_path, wal_directory=tmp_path / "elsewhere")
        assert [finding.ok for finding in astray.check()] == [True, False, False, True, True]
    with RocksDB(tmp_path, wal_size_limit_mb=10):
        assert all(finding.ok for finding in store.check())
        assert store.retained().bytes_max == 10 << 20
    store.close()


def test_times_are_found_by_log_file(database: RocksDB, store: RocksDBDatastore, tmp_path: Path) -> None:
    for number in range(3):
        database.put(b"%d" % number, b"")
        database.flush()
    database.put(b"3", b"")
    logs = Logs(tmp_path / "source")
    for age, number in enumerate(logs.numbers()):
        with logs.opened(number) as descriptor:
            os.utime(descriptor, (1_000 + 100 * age, 1_000 + 100 * age))
    assert store.at_time(500) == Position(0, 0)
    assert store.at_time(1_050) == Position(0, 1)
    assert store.at_time(1_250) == Position(0, 3)
    assert store.at_time(9_000) == Position(0, 4)
    (tmp_path / "source" / "archive" / f"{logs.numbers()[0]:06d}.log").unlink()
    with pytest.raises(LogCut) as cut:
        store.at_time(1_050)
    assert cut.value.oldest == Position(0, 1)
    assert store.at_time(1_150) == Position(0, 2)


def test_how_much_is_behind_shrinks_as_it_is_confirmed(database: RocksDB, store: RocksDBDatastore) -> None:
    behind = []
    for number in range(50):
        database.put(b"%d" % number, b"v" * 10_000)
    for sequence in (1, 25, 50):
        store.confirm(Position(0, sequence))
        behind.append(store.retained().bytes_behind)
    assert behind[0] is not None
    assert behind[1] is not None
    assert behind[0] > behind[1] > 200_000
    assert behind[2] == 0


def test_a_log_that_is_dropped_by_age_is_all_that_is_kept_once_some_of_it_was(
    database: RocksDB, store: RocksDBDatastore, tmp_path: Path
) -> None:
    """So that a flow near its beginning is alarmed of, which no size of a disk would do."""
    for number in range(4):
        database.put(b"%d" % number, b"v" * 10_000)
        database.flush()
    store.confirm(Position(0, 2))
    assert store.retained().bytes_max is None, "it grows still"
    logs = Logs(tmp_path / "source")
    (tmp_path / "source" / "archive" / f"{logs.numbers()[0]:06d}.log").unlink()
    retained = store.retained()
    assert (retained.oldest, retained.confirmed) == (Position(0, 1), Position(0, 2))
    assert retained.bytes_max == retained.bytes_kept
    share = share_of_kept(lag_bytes(Position(0, 1), retained), retained.bytes_max, 1 << 40)
    assert share is not None
    assert share > 0.99
    assert lag_bytes(Position(0, 2), retained) == retained.bytes_behind


def piece(kind: int, content: bytes) -> bytes:
    """One piece of a log, as RocksDB writes it."""
    value = rocksdb_wal.crc32c(bytes([kind]) + content)
    masked = (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(content), kind) + content


def batch_of(sequence: int, puts: Sequence[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(b"\x01" + bytes([len(key)]) + key + bytes([len(value)]) + value for key, value in puts)
    return struct.pack("<QI", sequence, len(puts)) + body


def handmade(directory: Path, logs: dict[int, list[bytes]]) -> RocksDBDatastore:
    (directory / "IDENTITY").write_text("handmade")
    (directory / "CURRENT").write_text("MANIFEST-000001\n")
    (directory / "MANIFEST-000001").write_bytes(b"")
    for number, batches in logs.items():
        (directory / f"{number:06d}.log").write_bytes(b"".join(piece(1, batch) for batch in batches))
    return RocksDBDatastore(directory)
