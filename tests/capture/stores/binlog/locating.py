"""Positions of a server with a binary log that has many files, as MariaDB and MySQL have them alike."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pymysql
import pytest

from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.status import lag_bytes
from roskva.capture.stores.binlog.store import BinlogStore
from roskva.errors import LogCut, WrongHistory
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_binlog import BinlogServer

REPLICATED_S_MAX = 30.0


def purge(server: BinlogServer, file: str) -> None:
    """A file that somebody reads is not dropped, and the server notices only after a while that a reader has gone."""
    for thread in [row[0] for row in server.rows("SHOW PROCESSLIST") if row[4] == "Binlog Dump"]:
        server.run(f"KILL {thread}")
    until_s = time.monotonic() + REPLICATED_S_MAX
    while server.rows("SHOW BINARY LOGS")[0][0] != file:
        assert time.monotonic() < until_s
        server.run(f"PURGE BINARY LOGS TO '{file}'")
        time.sleep(0.02)


class LocatingOfBoth:
    incident_has_a_number = False  # of its own: what the server says that it could not log

    def test_every_position_is_found_in_whichever_file_it_is(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
        begin = store.retained().end
        for number in range(1, 4):
            server.run(
                f"INSERT INTO t VALUES ({2 * number}), ({2 * number + 1})",
                f"ALTER TABLE t COMMENT '{number}'",
                "FLUSH BINARY LOGS",
                database=database,
            )
        changes = read_to(store, begin)
        assert [change.key["id"] for change in changes] == list(range(2, 8))
        for place, change in enumerate(changes):
            assert read_to(store, change.position) == changes[place + 1 :]
        for sequence in range(begin.sequence, store.retained().end.sequence + 1):
            assert read_to(store, Position(0, sequence)) == [change for change in changes if change.position.sequence > sequence]

    def test_what_was_purged_is_cut_off_and_the_oldest_position_is_named(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        server.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "FLUSH BINARY LOGS", database=database)
        oldest = store.retained().end
        server.run("INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", database=database)
        purge(server, server.rows("SHOW BINARY LOGS")[-2][0])
        for gone in (BEGINNING, Position(0, oldest.sequence - 1), Position(0, oldest.sequence, 1)):
            with pytest.raises(LogCut) as cut:
                store.read_after(gone)
            assert cut.value.oldest == oldest
        with pytest.raises(LogCut):
            store.at_time(time.time() - 86_400)
        retained = store.retained()
        assert (retained.oldest, retained.end.sequence) == (oldest, oldest.sequence + 1)
        assert [change.key["id"] for change in read_to(store, oldest)] == [3]

    def test_a_log_that_is_purged_under_a_reader_is_cut_for_it(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        """The place was there when it was looked for, and is not any more when the server is asked for it."""
        server.run("CREATE TABLE t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS", database=database)
        begin = store.retained().end
        server.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", database=database)
        looked = store._look

        def purged_in_between(ask):  # type: ignore[no-untyped-def]
            start = looked(ask)
            store._look = looked  # type: ignore[method-assign]
            purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
            return start

        store._look = purged_in_between  # type: ignore[method-assign]
        reader = store.read_after(begin)
        with pytest.raises(LogCut) as cut:
            reader.read(10, 10.0)
        assert cut.value.oldest == store.retained().oldest > begin
        reader.close()

    def test_a_position_that_the_server_never_had_is_of_another_history(self, store: BinlogStore[Any, Any]) -> None:
        end = store.retained().end
        for position in (Position(0, end.sequence + 1, 1), Position(0, end.sequence + 1), Position(1, end.sequence)):
            with pytest.raises(WrongHistory):
                store.read_after(position)

    def test_what_the_server_could_not_log_is_a_loss_for_whoever_stands_before_it(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        """A table that cannot roll back, and a change of it that is larger than the server may log: the rows are there, the log
        lacks them."""
        server.run("CREATE TABLE t (v LONGTEXT) ENGINE=MyISAM", "CREATE TABLE u (id INT)", "INSERT INTO u VALUES (1)", database=database)
        before = store.retained().end
        waiting = store.read_after(before)
        waiting.read(1, 0.05)
        was = server.rows("SELECT @@global.max_binlog_stmt_cache_size")[0][0]
        try:
            server.run("SET GLOBAL max_binlog_stmt_cache_size = 4096")
            with pytest.raises(pymysql.err.MySQLError, match="max_binlog_stmt_cache_size"):
                server.run("INSERT INTO t SELECT repeat('x', 60000)", database=database)
        finally:
            server.run(f"SET GLOBAL max_binlog_stmt_cache_size = {was}")
        for reader in (waiting, store.read_after(before)):  # one that follows the log, and one that is opened later
            with pytest.raises(LogCut) as cut:
                reader.read(10, 10.0)
            begins = Position(0, before.sequence + 1 + self.incident_has_a_number, 0)
            assert cut.value.oldest == begins
            reader.close()
        after = store.read_after(begins)
        assert after.read(10, 0.1).changes == []
        server.run("INSERT INTO u VALUES (2)", database=database)
        assert [(str(change.position), change.columns) for change in after.read(10, 10.0).changes] == [
            (f"0/{begins.sequence}.1", {"id": 2})
        ]
        after.close()

    def test_bytes_are_counted_from_what_was_confirmed(self, server: BinlogServer, store: BinlogStore[Any, Any], database: str) -> None:
        server.run("CREATE TABLE t (v TEXT)", "FLUSH BINARY LOGS", database=database)
        assert store.retained().bytes_behind is None
        begin = store.retained().end
        for _ in range(4):
            server.run("INSERT INTO t VALUES (repeat('x', 50000))", "FLUSH BINARY LOGS", database=database)
        store.confirm(begin)
        behind = store.retained().bytes_behind
        assert behind is not None
        assert 200_000 < behind < 220_000
        store.confirm(Position(0, begin.sequence + 2))
        behind = store.retained().bytes_behind
        assert behind is not None
        assert 100_000 < behind < 120_000
        retained = store.retained()
        assert lag_bytes(Position(0, begin.sequence + 2), retained) == behind, "all of it, however much log there is before"
        assert lag_bytes(retained.oldest, retained) == retained.bytes_kept
        store.confirm(store.retained().end)
        behind = store.retained().bytes_behind
        assert behind is not None
        assert behind < 1000

    def test_a_time_is_found_within_a_file(self, server: BinlogServer, store: BinlogStore[Any, Any], database: str) -> None:
        """The server takes the time of a commit from the session, so a test need not wait."""
        with closing(type(store)(server.settings(statement_s_max=5.0))) as store:
            now_s = int(time.time()) + 100_000
            server.run(f"SET timestamp = {now_s}", "CREATE TABLE t (id INT)", "FLUSH BINARY LOGS", database=database)
            begin = store.retained().end
            for number in range(5):
                server.run(f"SET timestamp = {now_s + 100 + 10 * number}", f"INSERT INTO t VALUES ({number})", database=database)
            # 5 s earlier than asked for: a statement may have taken that long.
            assert store.at_time(now_s + 105.5) == begin
            assert store.at_time(now_s + 106) == Position(0, begin.sequence + 1)
            assert store.at_time(now_s + 120) == Position(0, begin.sequence + 2)
            assert store.at_time(now_s + 10_000) == Position(0, begin.sequence + 5)
            server.run("FLUSH BINARY LOGS")

    def test_a_log_that_was_begun_anew_is_not_taken_for_the_old_one(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        server.run("CREATE TABLE t (id INT)", database=database)
        for number in range(3):
            server.run(f"INSERT INTO t VALUES ({number})", "FLUSH BINARY LOGS", database=database)
        old = store.retained().end
        assert len(read_to(store, Position(0, old.sequence - 3))) == 3
        for thread in [row[0] for row in server.rows("SHOW PROCESSLIST") if row[4] == "Binlog Dump"]:
            server.run(f"KILL {thread}")
        server.run("RESET MASTER")
        for number in range(3):
            server.run(f"INSERT INTO t VALUES ({10 + number})", "FLUSH BINARY LOGS", database=database)
        assert store.retained()[:2] == (Position(0, 0), Position(0, 3))
        assert [change.columns["id"] for change in read_to(store, Position(0, 1))] == [11, 12]
        with pytest.raises(WrongHistory):
            store.read_after(old)
