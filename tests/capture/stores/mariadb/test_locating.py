"""Positions of the MariaDB datastore: on a server with many files, and on a replica with files and a server id of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.updates import Change, Columns, Operation
from roskva.errors import CaptureRefused, DatastoreUnavailable, WrongHistory
from tests.capture.stores.binlog.fixtures import primary_with_replica
from tests.capture.stores.binlog.locating import REPLICATED_S_MAX, LocatingOfBoth, purge
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer


class TestLocatingOfBoth(LocatingOfBoth): ...


@pytest.fixture
def primary_and_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MariadbServer, MariadbServer]]:
    with primary_with_replica(MariadbServer, tmp_path_factory, _follow) as both:
        yield both


def _follow(replica: MariadbServer, primary: MariadbServer) -> None:
    primary.run("CREATE USER IF NOT EXISTS copy@'%' IDENTIFIED BY 'copy'", "GRANT REPLICATION SLAVE ON *.* TO copy@'%'")
    primary.run("CREATE DATABASE IF NOT EXISTS d")
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
            purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
            server.run("FLUSH BINARY LOGS DELETE_DOMAIN_ID=(7)")
            purge(server, server.rows("SHOW BINARY LOGS")[-1][0])
            server.run("INSERT INTO d.t VALUES (3)")
            assert [change.columns for change in read_to(store, store.retained().oldest)] == [{"id": 3}]
    finally:
        server.kill()
