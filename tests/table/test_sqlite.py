"""The embedded table: the contract, and what only files can do: be deleted, replaced, damaged, locked, killed, forked."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionLost, PartitionUnavailable
from roskva.table import SqliteTable, open_manifest, open_table
from roskva.table.files import PartitionFile, _Handle
from roskva.table.interface import Cell, Mutation, RowKey
from roskva.table.manifest import COMPLETE, RECOVERING, Manifest, PartitionRecord
from tests.table.contract import TableContract

ROW = RowKey("registrar", 0, b"row")
PARTITIONS = 2


def open_at(data: Path) -> SqliteTable:
    return SqliteTable(data, Manifest.open(data / "manifest.db", PARTITIONS, "test"))


def put(table: SqliteTable, number: int, row: RowKey = ROW) -> None:
    table.write([Mutation(row, [Cell(b"%06d" % number, number, b"value")])])


def names(table: SqliteTable, row: RowKey = ROW) -> list[bytes]:
    return list(table.read([row])[row])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def table(data: Path) -> Iterator[SqliteTable]:
    table = open_at(data)
    yield table
    table.close()
    table.manifest.close()


@pytest.fixture
def checks_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.table.files.CHECK_S", 0.0)


class TestContract(TableContract):
    @pytest.fixture
    def engine(self, table: SqliteTable) -> SqliteTable:
        return table

    @pytest.fixture
    def second(self, data: Path) -> Iterator[Callable[[], SqliteTable]]:
        opened: list[SqliteTable] = []

        def open_again() -> SqliteTable:
            opened.append(open_at(data))
            return opened[-1]

        yield open_again
        for table in opened:
            table.close()


def delete(path: Path) -> None:
    path.unlink()


def replace_by_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    os.replace(copy, path)


class TestLoss:
    @pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
    @pytest.mark.parametrize("harm", [delete, replace_by_copy])
    def test_nothing_is_acknowledged_after_a_file_went(self, table: SqliteTable, suffix: str, harm: Callable[[Path], None]) -> None:
        """Trap 36: a write into a file that is no longer at its path is in no table."""
        put(table, 1)
        put(table, 1, RowKey("registrar", 1, b"row"))
        before = table.incarnation("registrar", 0)
        harm(Path(f"{table.path('registrar', 0)}{suffix}"))
        with pytest.raises(PartitionLost):
            put(table, 2)
        assert not table.complete("registrar", 0)
        assert table.manifest.record("table", "registrar", 0).state == RECOVERING
        assert table.incarnation("registrar", 0) > before
        assert names(table) == []
        put(table, 3)
        assert names(table) == [b"000003"]
        # the others were not touched
        assert table.complete("registrar", 1)
        assert names(table, RowKey("registrar", 1, b"row")) == [b"000001"]

    @pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
    @pytest.mark.usefixtures("checks_every_read")
    def test_a_read_notices_too(self, table: SqliteTable, suffix: str) -> None:
        put(table, 1)
        Path(f"{table.path('registrar', 0)}{suffix}").unlink()
        with pytest.raises(PartitionLost):
            names(table)
        assert names(table) == []

    def test_a_read_notices_within_a_second(self, table: SqliteTable) -> None:
        put(table, 1)
        table.path("registrar", 0).unlink()
        time.sleep(1.05)
        with pytest.raises(PartitionLost):
            names(table)

    def test_a_poll_of_the_incarnation_notices(self, table: SqliteTable) -> None:
        put(table, 1)
        before = table.incarnation("registrar", 0)
        Path(f"{table.path('registrar', 0)}-wal").unlink()
        assert table.incarnation("registrar", 0) > before
        assert not table.complete("registrar", 0)

    def test_whoever_notices_second_does_not_lose_the_successor(self, table: SqliteTable, data: Path) -> None:
        """Trap 39."""
        other = open_at(data)
        put(table, 1)
        put(other, 2)
        table.path("registrar", 0).unlink()
        with pytest.raises(PartitionLost):
            put(table, 3)
        put(table, 4)
        successor = table.incarnation("registrar", 0)
        with pytest.raises(PartitionLost):
            put(other, 5)
        put(other, 6)
        assert names(table) == names(other) == [b"000004", b"000006"]
        assert table.incarnation("registrar", 0) == other.incarnation("registrar", 0) == successor
        other.close()
        put(table, 7)  # closing the loser's connections does not touch the successor's files
        assert table.incarnation("registrar", 0) == successor

    def test_a_missing_file_is_not_created_on_open_before_its_loss_is_recorded(self, table: SqliteTable, data: Path) -> None:
        """Trap 8."""
        put(table, 1)
        before = table.incarnation("registrar", 0)
        table.close()
        table.path("registrar", 0).unlink()
        other = open_at(data)
        with pytest.raises(PartitionLost):
            names(other)
        assert other.manifest.record("table", "registrar", 0).state == "lost"
        assert names(other) == []
        assert other.manifest.record("table", "registrar", 0).state == RECOVERING
        assert other.incarnation("registrar", 0) > before
        other.close()

    def test_a_log_deleted_under_another_process_is_seen_by_who_opens(self, table: SqliteTable, data: Path) -> None:
        put(table, 1)
        Path(f"{table.path('registrar', 0)}-wal").unlink()
        other = open_at(data)
        with pytest.raises(PartitionLost):
            names(other)
        with pytest.raises(PartitionLost):
            put(table, 2)
        other.close()

    @pytest.mark.parametrize("damage", ["head", "pages", "empty", "text"])
    def test_a_damaged_file_is_lost(self, table: SqliteTable, data: Path, damage: str) -> None:
        for start in range(0, 3_000, 500):
            table.write([Mutation(ROW, [Cell(b"%06d" % n, 1, b"v" * 50) for n in range(start, start + 500)])])
        path = table.path("registrar", 0)
        table.close()
        content = path.read_bytes()
        path.write_bytes(
            {
                "head": b"\x00" * 100 + content[100:],
                "pages": content[:4096] + b"\xaa" * (len(content) - 4096),
                "empty": b"",
                "text": b"this is no database" * 1000,
            }[damage]
        )
        other = open_at(data)
        with pytest.raises(PartitionLost):
            names(other)
        assert names(other) == []
        assert (data / "table" / "lost" / path.name).exists()
        other.close()

    @pytest.mark.usefixtures("checks_every_read")
    def test_a_file_truncated_in_place_is_lost(self, table: SqliteTable) -> None:
        put(table, 1)
        os.truncate(table.path("registrar", 0), 0)
        with pytest.raises(PartitionLost):
            names(table)

    def test_a_file_of_another_deployment_is_lost(self, data: Path, tmp_path: Path) -> None:
        stranger = open_at(tmp_path / "stranger")
        put(stranger, 9)
        table = open_at(data)
        put(table, 1)
        path = table.path("registrar", 0)
        stranger.close()
        table.close()
        shutil.copy(stranger.path("registrar", 0), path)
        with pytest.raises(PartitionLost):
            names(table)
        assert names(table) == []
        table.close()

    def test_everything_deleted_while_it_runs(self, table: SqliteTable, data: Path) -> None:
        put(table, 1)
        before = table.incarnation("registrar", 0)
        shutil.rmtree(data)
        with pytest.raises(PartitionLost):
            put(table, 2)
        put(table, 3)
        assert names(table) == [b"000003"]
        assert table.incarnation("registrar", 0) > before
        assert not table.complete("registrar", 0)

    def test_the_manifest_deleted_while_it_runs(self, table: SqliteTable, data: Path) -> None:
        put(table, 1)
        before = table.incarnation("registrar", 0)
        (data / "manifest.db").unlink()
        with pytest.raises(PartitionLost):
            put(table, 2)
        assert names(table) == []
        assert table.incarnation("registrar", 0) > before
        assert not table.complete("registrar", 0)
        other = open_at(data)
        assert names(other) == []
        other.close()

    def test_only_the_last_lost_file_of_a_partition_is_kept(self, table: SqliteTable, data: Path) -> None:
        for number in range(3):
            put(table, number)
            Path(f"{table.path('registrar', 0)}-shm").unlink()
            with pytest.raises(PartitionLost):
                put(table, number)
        put(table, 9)
        assert len(list((data / "table" / "lost").glob("registrar-0.*.db"))) == 1
        assert len(list((data / "table").glob("registrar-0.*.db"))) == 1


class TestBusy:
    def test_a_locked_partition_is_unavailable_after_a_moment_and_the_others_are_served(self, table: SqliteTable) -> None:
        put(table, 1)
        before = table.incarnation("registrar", 0)
        blocker = sqlite3.connect(table.path("registrar", 0), isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        started_s = time.monotonic()
        with pytest.raises(PartitionUnavailable) as raised:
            put(table, 2)
        assert not isinstance(raised.value, PartitionLost)
        assert raised.value.partition == "table/registrar-0"
        assert 0.15 < time.monotonic() - started_s < 1.0
        assert names(table) == [b"000001"]
        put(table, 1, RowKey("registrar", 1, b"row"))
        blocker.execute("ROLLBACK")
        blocker.close()
        put(table, 3)
        assert names(table) == [b"000001", b"000003"]
        assert table.incarnation("registrar", 0) == before

    def test_a_partition_that_others_write_without_a_pause_is_waited_for(self, table: SqliteTable, data: Path) -> None:
        """Busy is not stuck: whoever sees others commit waits longer than for one that was stopped."""
        put(table, 1)
        holder = sqlite3.connect(table.path("registrar", 0), isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")

        def commit_again_and_again() -> None:
            for number in range(4):
                time.sleep(0.12)
                holder.execute("INSERT INTO cells VALUES (x'00', ?, 1, x'00')", (b"%d" % number,))
                holder.execute("COMMIT")
                if number < 3:
                    holder.execute("BEGIN IMMEDIATE")

        thread = threading.Thread(target=commit_again_and_again)
        thread.start()
        put(table, 2)
        thread.join()
        holder.close()
        assert names(table) == [b"000001", b"000002"]

    def test_a_full_disk_is_unavailable_not_lost(self, table: SqliteTable, monkeypatch: pytest.MonkeyPatch) -> None:
        put(table, 1)
        before = table.incarnation("registrar", 0)
        opened = PartitionFile._open_created

        def small(file: PartitionFile, deployment: str, record: PartitionRecord) -> _Handle:
            handle = opened(file, deployment, record)
            handle.connection.execute("PRAGMA max_page_count=20")
            return handle

        monkeypatch.setattr(PartitionFile, "_open_created", small)
        table.close()
        with pytest.raises(PartitionUnavailable) as raised:
            table.write([Mutation(ROW, [Cell(b"%d" % n, 1, b"v" * 500) for n in range(900)])])
        assert not isinstance(raised.value, PartitionLost)
        assert b"000001" in names(table)
        assert table.incarnation("registrar", 0) == before


WRITER = textwrap.dedent("""
    import sys, pathlib
    from roskva.table import SqliteTable
    from roskva.table.interface import Cell, Mutation, RowKey
    from roskva.table.manifest import Manifest
    data, name, count = pathlib.Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
    table = SqliteTable(data, Manifest.open(data / "manifest.db", 2, "test"))
    for number in range(count):
        row = RowKey("registrar", number % 2, b"row")
        table.write([Mutation(row, [Cell(name + b"-%06d-%d" % (number, part), number, b"v") for part in range(3)])])
        print(number, flush=True)
""")


def start_writer(data: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(data), name, str(count)], stdout=subprocess.PIPE, text=True)


class TestProcesses:
    def test_kill_loses_nothing_acknowledged(self, data: Path) -> None:
        table = open_at(data)
        for attempt in range(3):
            name = f"run{attempt}"
            with start_writer(data, name, 1_000_000) as process:
                assert process.stdout is not None
                acknowledged = [int(line) for line in itertools.islice(process.stdout, 40 + 30 * attempt)]
                process.send_signal(signal.SIGKILL)
                acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
            found = table.read([RowKey("registrar", 0, b"row"), RowKey("registrar", 1, b"row")], name.encode())
            landed = {cell for cells in found.values() for cell in cells}
            assert {b"%s-%06d-%d" % (name.encode(), n, part) for n in acknowledged for part in range(3)} <= landed
            assert len(landed) % 3 == 0  # a row's cells land together or not at all
        table.close()

    def test_two_processes_write_at_once(self, data: Path) -> None:
        open_at(data).close()
        writers = [start_writer(data, f"writer{number}", 150) for number in range(2)]
        for writer in writers:
            output, _ = writer.communicate(timeout=60)
            assert writer.returncode == 0
            assert len(output.splitlines()) == 150
        table = open_at(data)
        assert sum(len(names(table, RowKey("registrar", partition, b"row"))) for partition in range(2)) == 2 * 150 * 3
        table.close()

    def test_a_steady_writer_does_not_starve_another(self, table: SqliteTable, data: Path) -> None:
        with start_writer(data, "steady", 1_000_000) as process:
            assert process.stdout is not None
            threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
            try:
                time.sleep(0.5)
                for number in range(100):
                    put(table, number)
            finally:
                process.kill()

    def test_a_forked_process_opens_its_own(self, table: SqliteTable) -> None:
        put(table, 1)

        def use() -> None:
            assert names(table) == [b"000001"]
            put(table, 2)
            assert not {id(handle) for handle in table._files["registrar", 0]._idle} & parents

        parents = {id(handle) for handle in table._files["registrar", 0]._idle}
        assert parents
        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        put(table, 3)
        assert names(table) == [b"000001", b"000002", b"000003"]
        assert table.complete("registrar", 0)

    def test_many_processes_begin_one_deployment(self, data: Path) -> None:
        writers = [start_writer(data, f"writer{number}", 4) for number in range(4)]
        for writer in writers:
            writer.communicate(timeout=60)
        assert [writer.returncode for writer in writers] == [0] * 4
        table = open_at(data)
        assert sum(len(names(table, RowKey("registrar", partition, b"row"))) for partition in range(2)) == 4 * 4 * 3
        assert {record.state for record in table.manifest.snapshot().records.values()} == {COMPLETE}
        table.close()


def test_a_process_opens_a_data_directory_once(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", partitions=2)
    assert open_table(settings) is open_table(settings)
    assert open_table(settings).manifest is open_manifest(settings)
    assert open_table(Settings(data=tmp_path / "other", partitions=2)) is not open_table(settings)


STRESSED = textwrap.dedent("""
    import sys, pathlib
    from roskva.errors import PartitionUnavailable
    from roskva.table import SqliteTable
    from roskva.table.interface import Cell, Mutation, RowKey
    from roskva.table.manifest import Manifest
    data, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    table = SqliteTable(data, Manifest.open(data / "manifest.db", 2, "test"))
    for number in range(1_000_000):
        cell = f"{name}-{number}"
        try:
            before = table.incarnation("registrar", 0)
            table.write([Mutation(RowKey("registrar", 0, b"row"), [Cell(cell.encode(), 1, b"v")])])
            after = table.incarnation("registrar", 0)
        except PartitionUnavailable:
            continue
        if before == after:
            print(cell, after, flush=True)
""")


def test_what_was_acknowledged_in_the_present_incarnation_is_there(data: Path) -> None:
    """Traps 8, 36 and 39: three writers, while somebody deletes the files under them again and again."""
    table = open_at(data)
    put(table, 0)
    command = [sys.executable, "-c", STRESSED, str(data)]
    writers = [subprocess.Popen([*command, f"w{number}"], stdout=subprocess.PIPE, text=True) for number in range(3)]
    incarnations = set()
    try:
        for number in range(12):
            time.sleep(0.2)
            incarnations.add(table.incarnation("registrar", 0))
            Path(f"{table.path('registrar', 0)}{('', '-wal', '-shm')[number % 3]}").unlink(missing_ok=True)
        time.sleep(0.4)
    finally:
        for writer in writers:
            writer.kill()
    lines = [line.split() for writer in writers for line in writer.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
    present = table.incarnation("registrar", 0)
    acknowledged = {cell.encode() for cell, incarnation in lines if int(incarnation) == present}
    assert acknowledged
    assert len(incarnations) >= 8
    assert len({incarnation for _, incarnation in lines}) >= 3
    assert acknowledged <= set(names(table))
    table.close()
