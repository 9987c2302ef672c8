"""A promoted replica that lacked commits gives their numbers again: that is noticed, and told as a loss."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.stores.mariadb.witness import EXPECTED_MAX, RANGES_MAX, Fork, Witness
from roskva.errors import DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores.mariadb.reading import READ_S_MAX, read_to
from tests.capture.stores.servers_mariadb import MariadbServer


def having_seen(*commits: tuple[int, range]) -> Witness:
    witness = Witness()
    for server, sequences in commits:
        assert all(witness.saw(sequence, server) for sequence in sequences)
    return witness


def test_what_another_server_wrote_is_a_fork_for_whoever_stands_in_it() -> None:
    witness = having_seen((1, range(100, 106)))
    assert witness.fork_at(105, [1], 0) is None
    assert witness.fork_at(103, [1, 2], 0) is None
    assert witness.fork_at(105, [2], 103) == Fork(103, 105)
    assert witness.fork_at(104, [2], 103) == Fork(103, 105)  # also for those who come later
    assert witness.fork_at(103, [1, 2], 0) is None
    assert witness.fork_at(106, [2], 103) is None
    assert all(witness.saw(sequence, 2) for sequence in range(104, 120))
    assert witness.fork_at(119, [2], 103) is None


def test_a_reader_that_comes_to_the_fork_is_told_once() -> None:
    witness = having_seen((1, range(100, 106)))
    assert witness.saw(103, 1)
    assert not witness.saw(104, 2)
    assert witness.saw(104, 2)
    assert witness.saw(105, 2)
    assert witness.fork_at(105, [2], 103) == Fork(103, 105)


def test_servers_that_take_turns_in_good_order_are_no_fork() -> None:
    witness = having_seen((1, range(1, 50)), (2, range(50, 80)), (1, range(80, 90)))
    for sequence, writers in ((49, [1, 2]), (60, [1, 2]), (85, [1])):
        assert witness.fork_at(sequence, writers, 0) is None
    assert [witness.saw(sequence, server) for sequence, server in ((1, 1), (49, 1), (50, 2), (80, 1))] == [True] * 4
    assert witness.fork_at(60, [1], 49) == Fork(49, 89)  # of which nobody would know that it is none


def test_what_was_never_read_is_nobodys() -> None:
    witness = having_seen((1, range(1, 10)), (1, range(100, 110)))
    assert witness.saw(50, 2)  # a reader further back
    assert witness.fork_at(60, [2], 50) is None


def test_a_position_that_a_replica_did_not_have_yet_is_expected_of_the_same_primary() -> None:
    witness = Witness()
    witness.expect(105, 1)
    witness.expect(105, 2)  # the first counts: by the second time the replica may have been promoted
    assert witness.fork_at(104, [2], 103) is None
    assert witness.fork_at(105, [2], 103) == Fork(103, 105)
    assert witness.fork_at(105, [1], 0) is None
    assert witness.fork_at(105, [2], 103) is None  # it was as expected, and is settled


def test_a_position_that_a_primary_does_not_have_is_not_expected_of_itself() -> None:
    witness = Witness()
    witness.expect(105, 1, any_other=True)
    assert witness.fork_at(105, [1], 0) == Fork(0, 105)
    assert witness.fork_at(105, [2], 103) is None


def test_what_is_remembered_is_bounded() -> None:
    witness = Witness()
    for sequence in range(10_000):
        witness.saw(2 * sequence, sequence % 2)
        witness.expect(sequence, 1)
    for sequence in range(1_000):
        witness.saw(2 * (9_999 - sequence), 7)
    assert max(len(witness._ranges), len(witness._forks)) <= RANGES_MAX
    assert len(witness._expected) <= EXPECTED_MAX


def _follow(replica: MariadbServer, primary: MariadbServer) -> None:
    replica.run(
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'copy', MASTER_PASSWORD = 'copy',"
        " MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        "START SLAVE",
    )


def test_a_promoted_replica_that_lacked_commits_is_noticed_by_whoever_has_read_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    primary = MariadbServer(tmp_path_factory.mktemp("primary"), server_id=1)
    replica = MariadbServer(tmp_path_factory.mktemp("replica"), server_id=2)
    try:
        primary.start()
        replica.start()
        primary.run("CREATE USER copy@'%' IDENTIFIED BY 'copy'", "GRANT REPLICATION SLAVE ON *.* TO copy@'%'", "CREATE DATABASE d")
        _follow(replica, primary)
        primary.run("CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)")
        with closing(MariadbStore(primary.settings())) as moved, closing(MariadbStore(replica.settings())) as second:
            begin = moved.retained().end
            until_s = time.monotonic() + READ_S_MAX
            while second.retained().end < begin:
                assert time.monotonic() < until_s
                time.sleep(0.05)
            replica.run("STOP SLAVE")
            primary.run("INSERT INTO d.t VALUES (2)", "INSERT INTO d.t VALUES (3)")
            assert [change.columns["id"] for change in read_to(moved, begin)] == [2, 3]
            told = moved.retained().end
            with pytest.raises(DatastoreUnavailable, match="has not got to"):
                second.read_after(told)
            primary.kill()

            # Its numbers come again, for other commits.
            replica.run("RESET SLAVE ALL", "INSERT INTO d.t VALUES (20)")
            with pytest.raises(WrongHistory):
                second.read_after(told)
            replica.run("INSERT INTO d.t VALUES (30)")
            assert second.retained().end == told
            _is_told_as_lost(second, told)

            # The same for a publisher that follows the address of the primary, which is the other server's now.
            replica.kill()
            replica.port = primary.port
            replica.start()
            _is_told_as_lost(moved, told)
            _is_told_as_lost(moved, Position(0, told.sequence - 1), told)
            replica.run("INSERT INTO d.t VALUES (40)")
            assert [change.columns["id"] for change in read_to(moved, Position(0, told.sequence + 1, 0))] == [40]
            assert [change.columns["id"] for change in read_to(moved, begin)] == [20, 30, 40]  # who was further back misses nothing
            read_to(moved, moved.retained().end)
    finally:
        replica.kill()
        primary.kill()


def _is_told_as_lost(store: MariadbStore, after: Position, upto: Position | None = None) -> None:
    with pytest.raises(LogCut) as cut:
        store.read_after(after)
    assert cut.value.oldest == Position(0, (upto or after).sequence + 1, 0)
    store.read_after(Position(0, (upto or after).sequence + 1, 0)).close()
