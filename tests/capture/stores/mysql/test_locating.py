"""Positions of the MySQL datastore: what the numbers of its GTIDs make of them, on a server and on its replica."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from roskva.capture.positions import BEGINNING, Position
from roskva.capture.stores.mariadb import MariadbSettings, MariadbStore
from roskva.capture.stores.mysql import MysqlStore
from roskva.capture.stores.mysql.marks import Marks
from roskva.capture.updates import Change
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut
from tests.capture.stores.binlog.fixtures import primary_with_replica
from tests.capture.stores.binlog.locating import REPLICATED_S_MAX, LocatingOfBoth
from tests.capture.stores.binlog.reading import batches_to, read_to
from tests.capture.stores.servers_mysql import MysqlServer


class TestLocatingOfBoth(LocatingOfBoth):
    incident_has_a_number = True


@pytest.fixture
def primary_and_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    with primary_with_replica(MysqlServer, tmp_path_factory, _follow) as both:
        yield both


def _follow(replica: MysqlServer, primary: MysqlServer) -> None:
    replica.run(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {primary.port}, SOURCE_USER = 'root',"
        " SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )


def _replicated(replica: MysqlServer, source: str, position: Position) -> None:
    until_s = time.monotonic() + REPLICATED_S_MAX
    while not replica.rows(f"SELECT GTID_SUBSET('{source}:{position.sequence}', @@gtid_executed)")[0][0]:
        assert time.monotonic() < until_s, replica.rows("SHOW REPLICA STATUS")
        time.sleep(0.02)


def _told(changes: list[Change]) -> list[object]:
    """What is the same at every replica."""
    return [(change.position, change.operation, change.columns, change.old_key, change.committed_us) for change in changes]


def test_a_position_means_the_same_on_a_replica_and_its_own_commits_stop_whoever_comes_to_them(
    primary_and_replica: tuple[MysqlServer, MysqlServer],
) -> None:
    primary, replica = primary_and_replica
    with closing(MysqlStore(primary.settings())) as first, closing(MysqlStore(replica.settings())) as second:
        assert first.retained().end.sequence == 0, "nothing was committed yet"
        with pytest.raises(DatastoreUnavailable, match="has not got anything from its primary yet"):
            assert second.identity
        primary.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(100))")
        begin = first.retained().end
        for number in range(3):
            rows = ", ".join(f"({100 * number + row}, repeat('x', 90))" for row in range(9))
            primary.run(f"INSERT INTO t VALUES {rows}", f"UPDATE t SET v = '{number}'", "FLUSH BINARY LOGS", database="d")
        end = first.retained().end
        _replicated(replica, primary.uuid, end)
        assert first.identity == second.identity == f"mysql/test/{primary.uuid}"
        assert (first.retained().follows, second.retained().follows) == (False, True)
        changes = _told(read_to(first, begin))
        assert len(changes) == 3 * 9 + 9 + 18 + 27
        assert _told(read_to(second, begin)) == changes
        for place in range(0, len(changes), 20):
            assert _told(read_to(second, changes[place][0])) == changes[place + 1 :]  # type: ignore[index]

        # A replica that is behind will catch up: it is unavailable for this position, and no more than that.
        replica.run("STOP REPLICA SQL_THREAD")
        primary.run("INSERT INTO d.t VALUES (2000, 'late')")
        with pytest.raises(DatastoreUnavailable, match=f"has not got to {first.retained().end} yet: it is at {end}"):
            second.read_after(first.retained().end)

        # A write to the replica, by mistake.
        replica.run("INSERT INTO d.t VALUES (-1, 'errant')", "START REPLICA SQL_THREAD")
        end = first.retained().end
        _replicated(replica, primary.uuid, end)
        reader = second.read_after(Position(0, end.sequence - 1))
        with pytest.raises(CaptureRefused, match=rf"another server, {replica.uuid}:1 after 0/{end.sequence - 1},.*0/{end.sequence}\.0"):
            reader.read(10, 10.0)
        reader.close()
        assert [change.columns["id"] for change in read_to(second, Position(0, end.sequence, 0))] == [2000], "behind it"
        (wrong,) = [finding for finding in second.check() if not finding.ok]
        assert replica.uuid in wrong.means
        with closing(MysqlStore(replica.settings())) as another, pytest.raises(CaptureRefused, match="commits of several servers"):
            assert another.identity

        # It is promoted: begun anew with its numbers, which are others.
        replica.run("STOP REPLICA", "RESET REPLICA ALL", "INSERT INTO d.t VALUES (3000, 'new')")
        with closing(MysqlStore(replica.settings(source=replica.uuid))) as promoted:
            assert promoted.identity == f"mysql/test/{replica.uuid}"
            assert [change.columns["id"] for change in read_to(promoted, Position(0, 2, 0))] == [3000]
            replica.run("INSERT INTO d.t VALUES (3001, 'newer')")
            assert [change.columns["id"] for change in read_to(promoted, Position(0, 2))] == [3001]
        with pytest.raises(CaptureRefused, match=f"{replica.uuid}:2 after"):
            read_to(second, end, Position(0, end.sequence + 1))


def test_a_number_that_comes_too_late_is_refused_for_every_position(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = MysqlServer(tmp_path_factory.mktemp("order"))
    try:
        server.start()
        with closing(MysqlStore(server.settings())) as store:
            server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT)")
            server.run(f"SET gtid_next = '{server.uuid}:10'", "INSERT INTO d.t VALUES (10)", "SET gtid_next = AUTOMATIC")
            assert [change.columns["id"] for change in read_to(store, Position(0, 2))] == [10]
            server.run("INSERT INTO d.t VALUES (3)")
            for after in (Position(0, 2), Position(0, 10)):
                reader = store.read_after(after)
                with pytest.raises(CaptureRefused, match=r"the commit (10 before 3|3 after 10) of"):
                    reader.read(10, 10.0)
                reader.close()

            # Numbers that the server was told it has, and that are in no file of its log.
            server.run("RESET MASTER", "INSERT INTO d.t VALUES (1)")
            before = store.read_after(Position(0, 1))
            before.read(10, 0.05)
            server.run(f"SET GLOBAL gtid_purged = '+{server.uuid}:2-7'", "INSERT INTO d.t VALUES (8)")
            with pytest.raises(LogCut) as cut:
                before.read(10, 10.0)
            assert cut.value.oldest == Position(0, 7) == store.retained().oldest
            before.close()
            with pytest.raises(LogCut):
                store.read_after(Position(0, 1))
            assert [change.columns["id"] for change in read_to(store, Position(0, 7))] == [8]
    finally:
        server.kill()


def test_a_server_of_the_other_kind_is_named(server: MysqlServer) -> None:
    with closing(MariadbStore(MariadbSettings(dataset="d", port=server.port, user="root"))) as store:
        with pytest.raises(CaptureRefused, match=r'is 8\.0\.\d+, not MariaDB: .*kind = "mysql"'):
            store.retained()
        (finding,) = [finding for finding in store.check() if 'kind = "mysql"' in finding.means]
        assert not finding.ok


def test_a_server_without_gtids_is_refused_with_the_setting(server: MysqlServer, store: MysqlStore) -> None:
    server.run("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        with pytest.raises(CaptureRefused, match="gtid_mode = ON_PERMISSIVE"):
            store.retained()
    finally:
        server.run("SET GLOBAL gtid_mode = ON")
    assert store.retained().oldest <= store.retained().end


def test_a_position_within_a_large_file_is_found_again_without_reading_the_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also when the log has been begun anew since, and files of the same names have something else."""
    server = MysqlServer(tmp_path_factory.mktemp("large"))
    try:
        server.start()
        with closing(MysqlStore(server.settings())) as store:
            store._marks = Marks(step_bytes=50_000)
            server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT)")
            for number in range(20):
                server.run(f"INSERT INTO d.t VALUES ({number}, repeat('x', 20000))")
            changes = read_to(store, BEGINNING)
            assert [change.columns["id"] for change in changes] == list(range(20))
            batches = batches_to(store, changes[17].position)
            assert [change for batch in batches for change in batch.changes] == changes[18:]
            assert sum(batch.bytes_read for batch in batches) < 200_000 < sum(size for _, size in store._look(lambda log: log.files))

            server.run("RESET MASTER", "TRUNCATE d.t")
            for number in range(25):
                server.run(f"INSERT INTO d.t VALUES ({number}, repeat('y', {10000 + number}))")
            reader = store.read_after(Position(0, 18))
            with pytest.raises(DatastoreUnavailable):
                reader.read(10, 10.0)
            reader.close()
            assert [change.columns["id"] for change in read_to(store, Position(0, 18))] == list(range(17, 25))
    finally:
        server.kill()
