"""Positions of the MariaDB datastore: on a server with many files, and on a replica with files and a server id of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.status import lag_bytes
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.updates import Change, Columns, Operation
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer

REPLICATED_S_MAX = 30.0


def test_every_position_is_found_in_whichever_file_it_is(server: MariadbServer, store: MariadbStore, database: str) -> None:
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


def test_what_was_purged_is_cut_off_and_the_oldest_position_is_named(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "FLUSH BINARY LOGS", database=database)
    oldest = store.retained().end
    server.run("INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", database=database)
    _purge(server, server.rows("SHOW BINARY LOGS")[-2][0])
    for gone in (BEGINNING, Position(0, oldest.sequence - 1), Position(0, oldest.sequence, 1)):
        with pytest.raises(LogCut) as cut:
            store.read_after(gone)
        assert cut.value.oldest == oldest
    with pytest.raises(LogCut):
        store.at_time(time.time() - 86_400)
    retained = store.retained()
    assert (retained.oldest, retained.end.sequence) == (oldest, oldest.sequence + 1)
    assert [change.key["id"] for change in read_to(store, oldest)] == [3]


def _purge(server: MariadbServer, file: str) -> None:
    """A file that somebody reads is not dropped, and the server notices only after a while that a reader has gone."""
    for thread in [row[0] for row in server.rows("SHOW PROCESSLIST") if row[4] == "Binlog Dump"]:
        server.run(f"KILL {thread}")
    until_s = time.monotonic() + REPLICATED_S_MAX
    while server.rows("SHOW BINARY LOGS")[0][0] != file:
        assert time.monotonic() < until_s
        server.run(f"PURGE BINARY LOGS TO '{file}'")
        time.sleep(0.02)


def test_a_log_that_is_purged_under_a_reader_is_cut_for_it(server: MariadbServer, store: MariadbStore, database: str) -> None:
    """The place was there when it was looked for, and is not any more when the server is asked for it."""
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS", database=database)
    begin = store.retained().end
    server.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", database=database)
    looked = store._look

    def purged_in_between(ask):  # type: ignore[no-untyped-def]
        start = looked(ask)
        store._look = looked  # type: ignore[method-assign]
        _purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
        return start

    store._look = purged_in_between  # type: ignore[method-assign]
    reader = store.read_after(begin)
    with pytest.raises(LogCut) as cut:
        reader.read(10, 10.0)
    assert cut.value.oldest == store.retained().oldest > begin
    reader.close()


def test_a_position_that_the_server_never_had_is_of_another_history(store: MariadbStore) -> None:
    end = store.retained().end
    for position in (Position(0, end.sequence + 1, 1), Position(0, end.sequence + 1), Position(1, end.sequence)):
        with pytest.raises(WrongHistory):
            store.read_after(position)


def test_what_the_server_could_not_log_is_a_loss_for_whoever_stands_before_it(
    server: MariadbServer, store: MariadbStore, database: str
) -> None:
    """A table that cannot roll back, and a change of it that is larger than the server may log: the rows are there, the log lacks them."""
    server.run("CREATE TABLE t (v LONGTEXT) ENGINE=MyISAM", "CREATE TABLE u (id INT)", "INSERT INTO u VALUES (1)", database=database)
    before = store.retained().end
    waiting = store.read_after(before)
    waiting.read(1, 0.05)
    was = server.rows("SELECT @@global.max_binlog_stmt_cache_size")[0][0]
    try:
        server.run("SET GLOBAL max_binlog_stmt_cache_size = 4096")
        with pytest.raises(pymysql.err.MySQLError, match="max_binlog_stmt_cache_size"):
            server.run("INSERT INTO t SELECT repeat('x', 60000) FROM seq_1_to_9", database=database)
    finally:
        server.run(f"SET GLOBAL max_binlog_stmt_cache_size = {was}")
    for reader in (waiting, store.read_after(before)):  # one that follows the log, and one that is opened later
        with pytest.raises(LogCut) as cut:
            reader.read(10, 10.0)
        assert cut.value.oldest == Position(0, before.sequence + 1, 0)
        reader.close()
    after = store.read_after(Position(0, before.sequence + 1, 0))
    assert after.read(10, 0.1).changes == []
    server.run("INSERT INTO u VALUES (2)", database=database)
    assert [(str(change.position), change.columns) for change in after.read(10, 10.0).changes] == [
        (f"0/{before.sequence + 1}.1", {"id": 2})
    ]
    after.close()


def test_bytes_are_counted_from_what_was_confirmed(server: MariadbServer, store: MariadbStore, database: str) -> None:
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


def test_a_time_is_found_within_a_file(server: MariadbServer, database: str) -> None:
    """The server takes the time of a commit from the session, so a test need not wait."""
    with closing(MariadbStore(server.settings(statement_s_max=5.0))) as store:
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


def test_a_log_that_was_begun_anew_is_not_taken_for_the_old_one(server: MariadbServer, store: MariadbStore, database: str) -> None:
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


@pytest.fixture
def primary_and_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MariadbServer, MariadbServer]]:
    primary = MariadbServer(tmp_path_factory.mktemp("primary"), server_id=1)
    replica = MariadbServer(tmp_path_factory.mktemp("replica"), server_id=2, options=["--binlog-row-event-max-size=256"])
    try:
        primary.start()
        replica.start()
        primary.run("CREATE USER copy@'%' IDENTIFIED BY 'copy'", "GRANT REPLICATION SLAVE ON *.* TO copy@'%'", "CREATE DATABASE d")
        _follow(replica, primary)
        yield primary, replica
    finally:
        replica.kill()
        primary.kill()


def _follow(replica: MariadbServer, primary: MariadbServer) -> None:
    replica.run(
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'copy', MASTER_PASSWORD = 'copy',"
        " MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        "START SLAVE",
    )


def _replicated(replica: MariadbServer, position: Position) -> None:
    until_s = time.monotonic() + REPLICATED_S_MAX
    while int(str(replica.rows("SELECT @@gtid_binlog_pos")[0][0]).rpartition("-")[2] or 0) < position.sequence:
        assert time.monotonic() < until_s, replica.rows("SHOW SLAVE STATUS")
        time.sleep(0.02)


def test_a_position_means_the_same_on_a_replica_and_after_it_was_promoted(primary_and_replica: tuple[MariadbServer, MariadbServer]) -> None:
    primary, replica = primary_and_replica
    with closing(MariadbStore(primary.settings())) as first, closing(MariadbStore(replica.settings())) as second:
        primary.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))", database="d")
        begin = first.retained().end
        for number in range(4):
            primary.run(
                f"INSERT INTO t SELECT seq + {100 * number}, repeat('x', 90) FROM seq_1_to_9", f"UPDATE t SET v = '{number}'", database="d"
            )
        replica.run("FLUSH BINARY LOGS")
        primary.run(
            "BEGIN", "INSERT INTO t VALUES (1001, 'a'), (1002, 'b'), (1003, 'c')", "DELETE FROM t WHERE id = 1002", "COMMIT", database="d"
        )
        end = first.retained().end
        _replicated(replica, end)
        assert first.identity == second.identity
        assert primary.rows("SHOW BINARY LOGS") != replica.rows("SHOW BINARY LOGS")
        changes = _without_sizes(read_to(first, begin))
        assert len(changes) == 4 * 9 + (9 + 18 + 27 + 36) + 4
        assert _without_sizes(read_to(second, begin)) == changes
        for place in range(0, len(changes), 40):
            assert _without_sizes(read_to(second, changes[place][0])) == changes[place + 1 :]

        # A replica that is behind will catch up: it is unavailable for this position, and no more than that.
        replica.run("STOP SLAVE")
        primary.run("INSERT INTO t VALUES (2000, 'late')", database="d")
        with pytest.raises(DatastoreUnavailable, match=f"has not got to {first.retained().end} yet: it is at {end}"):
            second.read_after(first.retained().end)
        replica.run("START SLAVE")
        _replicated(replica, first.retained().end)

        # Promoted in the middle of a file: two server ids have written to it.
        replica.run("STOP SLAVE", "RESET SLAVE ALL", "INSERT INTO d.t VALUES (3000, 'new')", "INSERT INTO d.t VALUES (3001, 'newer')")
        assert len({gtid.split("-")[1] for gtid in replica.rows("SELECT @@gtid_binlog_state")[0][0].split(",")}) == 2
        after = _without_sizes(read_to(second, begin))
        assert [change[1]["id"] for change in after[len(changes) :]] == [2000, 3000, 3001]
        for place in range(len(changes) - 3, len(after)):
            assert _without_sizes(read_to(second, after[place][0])) == after[place + 1 :]
        with pytest.raises(WrongHistory, match="not a replica"):
            first.read_after(after[-1][0])
        _follow(primary, replica)  # the old primary comes back, as a replica
        _replicated(primary, second.retained().end)
        assert _without_sizes(read_to(first, begin)) == after


def _without_sizes(changes: list[Change]) -> list[tuple[Position, Columns, Operation, Columns, Columns | None, int]]:
    return [(change.position, change.key, change.operation, change.columns, change.old_key, change.committed_us) for change in changes]


def test_two_domains_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = MariadbServer(tmp_path_factory.mktemp("domains"))
    try:
        server.start()
        with closing(MariadbStore(server.settings())) as store:
            server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT)")
            begin = store.retained().end
            reader = store.read_after(begin)
            reader.read(1, 0.05)
            server.run("INSERT INTO d.t VALUES (1)", "SET gtid_domain_id = 7", "INSERT INTO d.t VALUES (2)")
            assert [change.columns for change in reader.read(1, 10.0).changes] == [{"id": 1}]
            with pytest.raises(CaptureRefused, match="GTID domain 7"):
                reader.read(1, 10.0)
            reader.close()
            with pytest.raises(CaptureRefused, match=r"GTID domain 7.*DELETE_DOMAIN_ID=\(7\)"):
                store.retained()
            server.run("FLUSH BINARY LOGS")
            _purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
            server.run("FLUSH BINARY LOGS DELETE_DOMAIN_ID=(7)")
            _purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
            server.run("INSERT INTO d.t VALUES (3)")
            assert [change.columns for change in read_to(store, store.retained().oldest)] == [{"id": 3}]
    finally:
        server.kill()
