"""Files that are there and wrong: whatever SQLite can see of it is a loss, recorded, told, and put aside (table/files.py, damage.py)."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from roskva.errors import PartitionLost, PartitionUnavailable
from roskva.table import SqliteTable
from roskva.table.damage import damage_of_log, release, watch
from roskva.table.interface import Cell, Mutation, RowKey
from roskva.table.manifest import COMPLETE, LOST, RECOVERING, Manifest

ROW = RowKey("registrar", 0, b"row")
PAGE = 4_096


def open_at(data: Path) -> SqliteTable:
    return SqliteTable(data, Manifest.open(data / "manifest.db", 2, "test"))


def fill(table: SqliteTable, rows: int = 200) -> None:
    cells = [Cell(b"%02d" % number, 1, b"v" * 60) for number in range(20)]
    table.write([Mutation(RowKey("registrar", 0, b"%06d" % number), cells) for number in range(rows)])


def checkpoint(path: Path) -> None:
    """Bring all pages from the log into the file, as SQLite does every 1,000 pages."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0] == 0
    connection.close()


def scan(table: SqliteTable) -> int:
    return sum(1 for _ in table.scan("registrar", 0, limit=1_000_000))


def noise(length: int) -> bytes:
    return random.Random(7).randbytes(length)


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


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
def checkpointed(table: SqliteTable) -> SqliteTable:
    """Filled, with all pages in the file and none in the log, and nobody has it open."""
    fill(table)
    table.close()
    assert table.path("registrar", 0).stat().st_size > 50 * PAGE
    assert not Path(f"{table.path('registrar', 0)}-wal").exists()
    return table


def lost_once(table: SqliteTable, data: Path, use: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """The next use finds the damage; it is recorded and told once; the file is aside; and the service goes on with an empty one."""
    path = table.path("registrar", 0)
    before = table.manifest.record("table", "registrar", 0).incarnation
    with caplog.at_level(logging.ERROR), pytest.raises(PartitionLost):
        use()
    assert table.manifest.record("table", "registrar", 0).state == LOST
    [told] = [record.getMessage() for record in caplog.records if "is recorded as lost" in record.getMessage()]
    assert "table/registrar-0" in told
    assert "its clients start anew" in told
    assert str(data / "table" / "lost") in told
    assert scan(table) == 0
    assert table.incarnation("registrar", 0) > before
    assert table.manifest.record("table", "registrar", 0).state == RECOVERING
    assert (data / "table" / "lost" / path.name).exists()
    assert not path.exists()
    table.write([Mutation(ROW, [Cell(b"after", 1, b"")])])
    assert scan(table) == 1


class TestAtStart:
    @pytest.mark.parametrize("page", [0, 1, 2, 5, 20, -1])
    def test_a_page_of_random_bytes(self, checkpointed: SqliteTable, data: Path, page: int, caplog: pytest.LogCaptureFixture) -> None:
        path = checkpointed.path("registrar", 0)
        pages = path.stat().st_size // PAGE
        overwrite(path, page % pages * PAGE, noise(PAGE))
        lost_once(checkpointed, data, lambda: scan(checkpointed), caplog)

    def test_pages_of_zeros_behind_an_intact_head(self, checkpointed: SqliteTable, data: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = checkpointed.path("registrar", 0)
        overwrite(path, 2 * PAGE, bytes(path.stat().st_size - 2 * PAGE))
        lost_once(checkpointed, data, lambda: scan(checkpointed), caplog)

    @pytest.mark.parametrize("keep", [0, 50, 100, PAGE, 3 * PAGE, 10 * PAGE + 100, -PAGE])
    def test_a_truncated_file(self, checkpointed: SqliteTable, data: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
        path = checkpointed.path("registrar", 0)
        os.truncate(path, keep % path.stat().st_size)
        # It is found at once, whatever row is asked for.
        lost_once(checkpointed, data, lambda: checkpointed.read([ROW]), caplog)

    @pytest.mark.parametrize("other", [("registrar", 1), ("matcher", 0)])
    def test_the_file_of_another_partition(
        self, checkpointed: SqliteTable, data: Path, other: tuple[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpointed.write([Mutation(RowKey(*other, b"row"), [Cell(b"x", 1, b"")])])
        checkpointed.close()
        assert checkpointed.path(*other).name.partition(".")[2] == checkpointed.path("registrar", 0).name.partition(".")[2]
        shutil.copy(checkpointed.path(*other), checkpointed.path("registrar", 0))
        lost_once(checkpointed, data, lambda: checkpointed.read([ROW]), caplog)

    def test_a_file_of_an_earlier_schema(self, checkpointed: SqliteTable, data: Path, caplog: pytest.LogCaptureFixture) -> None:
        connection = sqlite3.connect(checkpointed.path("registrar", 0))
        connection.execute("ALTER TABLE meta DROP COLUMN address")
        connection.commit()
        connection.close()
        lost_once(checkpointed, data, lambda: checkpointed.read([ROW]), caplog)

    def test_a_text_that_is_none(self, checkpointed: SqliteTable, data: Path, caplog: pytest.LogCaptureFixture) -> None:
        connection = sqlite3.connect(checkpointed.path("registrar", 0))
        connection.execute("UPDATE meta SET deployment = CAST(x'ff' AS TEXT)")
        connection.commit()
        connection.close()
        lost_once(checkpointed, data, lambda: checkpointed.read([ROW]), caplog)


class TestWhileOpen:
    def test_pages_of_random_bytes_in_the_middle(self, table: SqliteTable, data: Path, caplog: pytest.LogCaptureFixture) -> None:
        fill(table, 1_500)  # more pages than a connection keeps
        path = table.path("registrar", 0)
        checkpoint(path)
        pages = path.stat().st_size // PAGE
        assert pages > 100
        overwrite(path, pages // 4 * PAGE, noise(pages // 2 * PAGE))
        lost_once(table, data, lambda: scan(table), caplog)

    def test_a_write_finds_it_too(self, table: SqliteTable, data: Path, caplog: pytest.LogCaptureFixture) -> None:
        fill(table, 1_500)
        path = table.path("registrar", 0)
        checkpoint(path)
        pages = path.stat().st_size // PAGE
        overwrite(path, pages // 4 * PAGE, noise(pages // 2 * PAGE))
        lost_once(table, data, lambda: fill(table, 1_500), caplog)

    @pytest.mark.parametrize("keep", [0, PAGE, 30 * PAGE])
    def test_a_truncated_file(self, table: SqliteTable, data: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
        fill(table, 1_500)
        checkpoint(table.path("registrar", 0))
        os.truncate(table.path("registrar", 0), keep)
        lost_once(table, data, lambda: scan(table), caplog)

    def test_a_log_that_somebody_overwrote_is_seen_by_who_opens_next(self, table: SqliteTable, data: Path) -> None:
        fill(table, 20)
        path = table.path("registrar", 0)
        overwrite(Path(f"{path}-wal"), 32 + 3 * (PAGE + 24), noise(2 * (PAGE + 24)))
        other = open_at(data)
        with pytest.raises(PartitionLost, match="pages of its log were overwritten"):
            other.read([ROW])
        assert scan(other) == 0
        with pytest.raises(PartitionLost):
            table.write([Mutation(ROW, [Cell(b"x", 1, b"")])])
        other.close()


KILLED = textwrap.dedent("""
    import os, pathlib, signal, sys
    from roskva.table import SqliteTable
    from roskva.table.interface import Cell, Mutation, RowKey
    from roskva.table.manifest import Manifest
    data = pathlib.Path(sys.argv[1])
    table = SqliteTable(data, Manifest.open(data / "manifest.db", 2, "test"))
    for number in range(30):
        table.write([Mutation(RowKey("registrar", 0, b"%06d" % number), [Cell(b"name", 1, b"v" * 500)])])
    os.kill(os.getpid(), signal.SIGKILL)
""")


class TestAfterAKill:
    """What was acknowledged lies in the log; SQLite would take as much of it as it can read, and say nothing."""

    @pytest.fixture
    def killed(self, data: Path) -> SqliteTable:
        done = subprocess.run([sys.executable, "-c", KILLED, str(data)], check=False)
        assert done.returncode == -signal.SIGKILL
        return open_at(data)

    def test_nothing_is_wrong(self, killed: SqliteTable) -> None:
        assert scan(killed) == 30
        assert killed.manifest.record("table", "registrar", 0).state == COMPLETE

    @pytest.mark.parametrize("where", ["head", "first page", "middle", "last page", "a byte", "all"])
    def test_an_overwritten_log(self, killed: SqliteTable, data: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
        path = Path(f"{killed.path('registrar', 0)}-wal")
        size = path.stat().st_size
        frame = PAGE + 24
        start, length = {
            "head": (0, 32),
            "first page": (32, frame),
            "middle": (32 + 10 * frame, 5 * frame),
            "last page": (size - frame, frame),
            "a byte": (32 + 10 * frame + 2_000, 1),
            "all": (0, size),
        }[where]
        content = bytes(byte ^ 0x55 for byte in path.read_bytes()[start : start + length])
        overwrite(path, start, content)
        lost_once(killed, data, lambda: killed.read([ROW]), caplog)

    @pytest.mark.parametrize("keep", [0, 20, 32, 32 + 7 * (PAGE + 24), -1])
    def test_a_truncated_log(self, killed: SqliteTable, data: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
        path = Path(f"{killed.path('registrar', 0)}-wal")
        os.truncate(path, keep % path.stat().st_size)
        lost_once(killed, data, lambda: killed.read([ROW]), caplog)

    def test_a_transaction_that_was_not_finished_is_no_damage(self, killed: SqliteTable) -> None:
        """The power failed while somebody wrote: a torn end of the log was acknowledged to nobody."""
        path = Path(f"{killed.path('registrar', 0)}-wal")
        with path.open("ab") as file:
            file.write(noise(PAGE + 500))
        assert scan(killed) == 30
        assert killed.manifest.record("table", "registrar", 0).state == COMPLETE

    def test_a_damaged_index_is_made_anew(self, killed: SqliteTable) -> None:
        path = Path(f"{killed.path('registrar', 0)}-shm")
        overwrite(path, 0, noise(path.stat().st_size))
        assert scan(killed) == 30


def test_the_number_of_files_aside_is_bounded(table: SqliteTable, data: Path) -> None:
    for _ in range(4):
        fill(table, 20)
        table.close()
        overwrite(table.path("registrar", 0), 0, noise(PAGE))
        with pytest.raises(PartitionLost):
            scan(table)
        assert scan(table) == 0
    assert len(list((data / "table" / "lost").glob("registrar-0.*.db"))) == 1


def test_the_index_is_held_while_a_connection_is_open(tmp_path: Path) -> None:
    """A descriptor that is closed beside an open connection takes SQLite's locks with it: another process would then corrupt the file."""
    path = str(tmp_path / "a.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    watch(path)
    writer.execute("BEGIN IMMEDIATE")
    watch(path)
    assert damage_of_log(path, None) == ""
    release(path)
    taken = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None); c.execute('BEGIN IMMEDIATE')"
    done = subprocess.run([sys.executable, "-c", taken, path], capture_output=True, text=True, check=False)
    assert "database is locked" in done.stderr
    writer.close()
    release(path)


class TestManifest:
    @pytest.fixture
    def path(self, data: Path) -> Path:
        table = open_at(data)
        fill(table, 3)
        table.close()
        table.manifest.close()
        return data / "manifest.db"

    def started_anew(self, data: Path, deployment: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR):
            table = open_at(data)
        assert table.manifest.snapshot().deployment != deployment
        assert "cannot be read: everything begins anew" in caplog.text
        assert table.manifest.record("table", "registrar", 0).state == RECOVERING
        assert scan(table) == 0
        table.close()
        table.manifest.close()
        assert len(list(data.glob("manifest.db.unreadable*"))) == 1

    def deployment(self, path: Path) -> str:
        manifest = Manifest.open(path, 2, "test")
        try:
            return manifest.snapshot().deployment
        finally:
            manifest.close()

    def test_every_page_of_random_bytes(self, data: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        whole = path.read_bytes()
        for page in range(len(whole) // PAGE):
            deployment = self.deployment(path)
            overwrite(path, page * PAGE, noise(PAGE))
            self.started_anew(data, deployment, caplog)

    @pytest.mark.parametrize("keep", [0, 10, PAGE, 2 * PAGE, -PAGE])
    def test_truncated(self, data: Path, path: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
        deployment = self.deployment(path)
        os.truncate(path, keep % path.stat().st_size)
        self.started_anew(data, deployment, caplog)

    @pytest.mark.parametrize(
        "harm",
        [
            "DELETE FROM facts WHERE name = 'schema'",
            "UPDATE facts SET value = 'x' WHERE name = 'partitions'",
            "UPDATE facts SET value = CAST(x'ff' AS TEXT)",
            "UPDATE partitions SET state = 'broken'",
            "UPDATE partitions SET incarnation = 'x'",
            "UPDATE facts SET value = '' WHERE name = 'deployment'",
            "DROP TABLE epochs",
        ],
    )
    def test_it_says_what_cannot_be(self, data: Path, path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
        deployment = self.deployment(path)
        connection = sqlite3.connect(path)
        connection.execute(harm)
        connection.commit()
        connection.close()
        self.started_anew(data, deployment, caplog)

    def test_one_of_another_deployment(self, data: Path, path: Path, tmp_path: Path) -> None:
        """All files are then of a deployment that it does not know: they are lost, and put aside."""
        stranger = open_at(tmp_path / "stranger")
        fill(stranger, 3)
        stranger.close()
        stranger.manifest.close()
        shutil.copy(tmp_path / "stranger" / "manifest.db", path)
        table = open_at(data)
        for _ in range(2):
            with suppress(PartitionUnavailable):
                assert scan(table) == 0
        assert scan(table) == 0
        assert not table.complete("registrar", 0)
        assert list((data / "table" / "lost").glob("registrar-0.*.db"))
        table.close()
        table.manifest.close()


def test_frames_are_counted_as_sqlite_writes_them(tmp_path: Path) -> None:
    """The index is read by its documented layout: a page of another size, and a log begun anew."""
    path = str(tmp_path / "a.db")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size=1024")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (x)")
    first = watch(path)
    assert first is not None
    assert first.counted.page_bytes == 1_024
    assert first.counted.frames == (Path(path + "-wal").stat().st_size - 32) // (1_024 + 24)
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO t VALUES (1)")
    second = watch(path)
    assert second is not None
    assert second.counted.salts != first.counted.salts
    assert second.counted.salts == struct.unpack_from("8s", Path(path + "-wal").read_bytes(), 16)[0]
    assert damage_of_log(path, first) == ""
    connection.close()
    release(path)
    release(path)
