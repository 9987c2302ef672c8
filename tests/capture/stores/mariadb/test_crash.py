"""A server that is killed at any point: nothing is skipped, and nothing is told that was never committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.binlog.reading import BinlogReader
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.updates import Change
from roskva.errors import DatastoreUnavailable
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer

KILLS = 3
BATCHES_MAX = 100_000


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    server = MariadbServer(tmp_path_factory.mktemp("mortal"))
    server.start()
    server.run("CREATE DATABASE d")
    yield server
    server.kill()


@pytest.fixture
def mortal(started: MariadbServer) -> MariadbServer:
    started.run("CREATE OR REPLACE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(60))")
    return started


class Writer(threading.Thread):
    """Commits transactions of three rows until the server goes away."""

    def __init__(self, server: MariadbServer) -> None:
        super().__init__()
        self._server = server
        self.committed: list[int] = []

    def run(self) -> None:
        try:
            with closing(self._server.connect("d", write_timeout=20, read_timeout=20)) as connection, connection.cursor() as cursor:
                while True:
                    cursor.execute("INSERT INTO t (v) VALUES ('first'), ('second'), ('third')")
                    self.committed.append(cursor.lastrowid)
        except (pymysql.err.MySQLError, OSError):
            return


def read_until_killed(server: MariadbServer, reader: BinlogReader, batches: int) -> list[Change]:
    found: list[Change] = []
    for number in range(BATCHES_MAX):
        if number == batches:
            server.kill()
        try:
            found += reader.read(2, 10.0).changes  # a commit has three rows: positions are often within one
        except DatastoreUnavailable:
            assert number >= batches
            return found
    raise AssertionError("a reader of a dead server found ever more")


def test_a_server_that_is_killed_loses_no_change_for_its_reader(mortal: MariadbServer) -> None:
    with closing(MariadbStore(mortal.settings())) as store:
        position = begin = store.retained().end
        committed: list[int] = []
        seen: list[tuple[Position, object]] = []
        for turn in range(KILLS):
            writer = Writer(mortal)
            writer.start()
            reader = store.read_after(position)
            found = read_until_killed(mortal, reader, 20 + 15 * turn)
            reader.close()
            seen += [(change.position, change.columns["id"]) for change in found]
            position = found[-1].position
            writer.join(30)
            assert writer.committed
            committed += writer.committed
            mortal.start()
        end = store.retained().end
        seen += [(change.position, change.columns["id"]) for change in read_to(store, position, end)]
        assert [place for place, _ in seen] == sorted({place for place, _ in seen}), "in order, and each once"
        present = [row[0] for row in mortal.rows("SELECT id FROM d.t ORDER BY id")]
        assert [identity for _, identity in seen] == present
        assert {first + offset for first in committed for offset in range(3)} <= set(present)
        assert [(change.position, change.columns["id"]) for change in read_to(store, begin, end)] == seen


@pytest.mark.parametrize("place", ["within an event", "between two events"])
def test_a_commit_that_a_crash_has_cut_off_in_the_log_is_not_told(mortal: MariadbServer, place: str) -> None:
    """Its number is given again after the restart: whoever had read a part of it would skip as many rows of the one that is real."""
    mortal.run("INSERT INTO d.t (v) VALUES ('kept')")
    with closing(MariadbStore(mortal.settings())) as store:
        begin = store.retained().end
        mortal.run("INSERT INTO t (v) SELECT repeat('x', 60) FROM seq_1_to_1000", database="d")
        file = mortal.data / mortal.rows("SHOW BINARY LOGS")[-1][0]
        mortal.kill()
        ends = event_ends(file.read_bytes())
        with file.open("r+b") as log:
            log.truncate(ends[-3] - (500 if place == "within an event" else 0))
        mortal.start()
        assert store.retained().end == begin
        assert read_to(store, begin) == []
        mortal.run("INSERT INTO d.t (v) VALUES ('real'), ('rows')")
        changes = read_to(store, begin)
        assert [(change.position, change.columns["v"]) for change in changes] == [
            (Position(0, begin.sequence + 1, 1), "real"),
            (Position(0, begin.sequence + 1, 2), "rows"),
        ]
        # From before, through the file that was cut.
        assert [change.columns["v"] for change in read_to(store, Position(0, begin.sequence - 1))] == ["kept", "real", "rows"]
        assert read_to(store, changes[0].position) == changes[1:]


def event_ends(log: bytes) -> list[int]:
    ends = [4]
    while ends[-1] + 19 <= len(log):
        ends.append(ends[-1] + int.from_bytes(log[ends[-1] + 9 : ends[-1] + 13], "little"))
    return ends
