"""Datamarkers in a file of SQLite keep the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from roskva.capture.datamarkers import SqliteDatamarkers, sqlite
from roskva.errors import Unavailable
from tests.capture.datamarkers.contract import DatamarkersContract, Engine


class FileOfSqlite(Engine):
    def __init__(self, path: Path) -> None:
        self.place = str(path)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Another process is in the middle of a write, and does not end it."""
        with closing(sqlite3.connect(self.place, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FileOfSqlite:
    if "away" in request.node.name:
        monkeypatch.setattr(sqlite, "BUSY_S", 0.1)
    return FileOfSqlite(tmp_path / "datamarkers")


class TestSqlite(DatamarkersContract): ...


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"no database" * 1000)
    with pytest.raises(Unavailable):
        SqliteDatamarkers(tmp_path / "broken", "data")
