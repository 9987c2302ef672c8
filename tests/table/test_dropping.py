"""Partitions that are dropped on purpose: recorded as lost first, beside engines that are open, and without a file left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.errors import DataOutdated, InvalidSetting, PartitionLost
from roskva.table import manifest as manifest_module
from roskva.table.dropping import drop, drop_outdated, files_of
from roskva.table.interface import Cell, Mutation, RowKey
from roskva.table.manifest import LOST, RECOVERING, Address, Manifest
from roskva.table.sqlite import SqliteTable

MATCHER = Address("table", "matcher", 0)
ROW, OTHER = RowKey("matcher", 0, b"row"), RowKey("registrar", 0, b"row")
CELL = Cell(b"name", 1, b"value")


class Opened:
    """One process's engine over the data directory."""

    def __init__(self, data: Path) -> None:
        self.manifest = Manifest.open(data / "manifest.db", 2, "here")
        self.table = SqliteTable(data, self.manifest)

    def close(self) -> None:
        self.table.close()
        self.manifest.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Opened]:
    """Open all the time, with a row in each of two tables."""
    opened = Opened(tmp_path)
    opened.table.write([Mutation(ROW, [CELL]), Mutation(OTHER, [CELL])])
    yield opened
    opened.close()


def test_an_open_engine_notices_and_what_is_left_is_a_new_incarnation(service: Opened, tmp_path: Path) -> None:
    before = service.table.incarnation("matcher", 0)
    command = Opened(tmp_path)
    assert drop(command.manifest, tmp_path, [MATCHER]) == 1
    command.close()
    assert list(files_of(tmp_path, MATCHER)) == []
    assert service.manifest.record(*MATCHER).state == LOST
    with pytest.raises(PartitionLost):
        service.table.write([Mutation(ROW, [CELL])])
    assert service.table.read([ROW]) == {ROW: {}}
    assert service.table.incarnation("matcher", 0) > before
    assert service.manifest.record(*MATCHER).state == RECOVERING
    assert not service.table.complete("matcher", 0)
    assert service.table.read([OTHER])[OTHER] == {b"name": CELL}, "only what was named"


def test_a_write_under_way_does_not_count(service: Opened, tmp_path: Path) -> None:
    """The file goes between a writer's commit and its look at the manifest: it is told, and acknowledges nothing."""
    command = Opened(tmp_path)
    file = service.table._file("matcher", 0)

    def work(connection: object) -> None:
        connection.execute("UPDATE cells SET value = x'00'")  # type: ignore[attr-defined]
        drop(command.manifest, tmp_path, [MATCHER])

    with pytest.raises(PartitionLost):
        file.write(work)
    command.close()


def test_dropping_twice_and_dropping_nothing_do_no_harm(service: Opened, tmp_path: Path) -> None:
    assert drop(service.manifest, tmp_path, [MATCHER, Address("table", "nonsense", 0), Address("table", "matcher", 9)]) == 1
    incarnation = service.manifest.record(*MATCHER).incarnation
    assert drop(service.manifest, tmp_path, [MATCHER]) == 0, "nobody has made it again"
    assert service.manifest.record(*MATCHER).incarnation == incarnation


def test_files_that_were_put_aside_go_too(service: Opened, tmp_path: Path) -> None:
    service.table.path("matcher", 0).unlink()
    with pytest.raises(PartitionLost):
        service.table.write([Mutation(ROW, [CELL])])
    service.table.write([Mutation(ROW, [CELL])])
    assert [path for path in files_of(tmp_path, MATCHER) if path.parent.name == "lost"]
    drop(service.manifest, tmp_path, [MATCHER])
    assert list(files_of(tmp_path, MATCHER)) == []


def test_a_file_that_somebody_made_meanwhile_stays(service: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Manifest.record_lost

    def record_lost(manifest: Manifest, *named: object) -> bool:
        recorded = original(manifest, *named)  # type: ignore[arg-type]
        service.table.incarnation("matcher", 0)  # the service is quicker than the command's next step
        return recorded

    monkeypatch.setattr(Manifest, "record_lost", record_lost)
    command = Opened(tmp_path)
    drop(command.manifest, tmp_path, [MATCHER])
    command.close()
    service.table.write([Mutation(ROW, [CELL])])
    assert service.table.read([ROW])[ROW] == {b"name": CELL}


@pytest.fixture
def outdated(service: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "SCHEMA", manifest_module.SCHEMA + 1)


@pytest.mark.usefixtures("outdated")
def test_a_data_directory_of_an_earlier_schema_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    files = sorted(path for path in tmp_path.rglob("*.db"))
    with pytest.raises(DataOutdated, match="roskva drop all"):
        Opened(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*.db")) == files


@pytest.mark.usefixtures("outdated")
def test_what_an_earlier_schema_held_need_not_be_readable(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "manifest.db") as connection:
        connection.execute("DROP TABLE epochs")
        connection.execute("DELETE FROM facts WHERE name != 'schema'")
    with pytest.raises(DataOutdated):
        Opened(tmp_path)


def test_a_later_schema_stays_an_error(service: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "SCHEMA", manifest_module.SCHEMA - 1)
    with pytest.raises(InvalidSetting, match="later version"):
        Opened(tmp_path)
    Manifest.set_outdated_aside(tmp_path / "manifest.db")
    assert (tmp_path / "manifest.db").exists()


@pytest.mark.usefixtures("outdated")
def test_dropping_all_of_an_earlier_schema_begins_anew_and_nothing_counts_as_complete(service: Opened, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "matching" / "1").mkdir(parents=True)
    (tmp_path / "keys.json").write_text("{}")
    old = service.manifest.record(*MATCHER).incarnation
    service.close()
    drop_outdated(tmp_path, 2, "here").close()
    assert not list((tmp_path / "table").glob("*.db*"))
    assert not (tmp_path / "checkpoints").exists()
    assert (tmp_path / "keys.json").exists()
    anew = Opened(tmp_path)
    assert anew.table.incarnation("matcher", 0) > old
    assert anew.manifest.record(*MATCHER).state == RECOVERING
    drop_outdated(tmp_path, 2, "here").close()
    assert anew.table.read([ROW]) == {ROW: {}}, "a second time it changes nothing"
    assert anew.manifest.record(*MATCHER).created
    anew.close()
