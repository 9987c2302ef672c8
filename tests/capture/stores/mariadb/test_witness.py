"""A promoted replica that lacked commits gives their numbers again: that is noticed, kept for all publishers, and told as a loss."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.stores.mariadb.forks import RANGES_MAX, Fork, Known, Range, known_from
from roskva.capture.stores.mariadb.witness import OwnMemory, Witness
from roskva.errors import DatastoreUnavailable, LogCut, Unavailable, WrongHistory
from tests.capture.stores.binlog.reading import READ_S_MAX, read_to
from tests.capture.stores.servers_mariadb import MariadbServer

A, B = 1, 2


def having_seen(memory: OwnMemory, *commits: tuple[int, range]) -> Witness:
    witness = Witness()
    witness.memory = memory
    for server, sequences in commits:
        assert all(witness.saw(sequence, server) for sequence in sequences)
    return witness


def looked(witness: Witness, last: Mapping[int, int], server: int = B, follows: bool = False) -> tuple[Fork, ...]:
    return witness.look(witness.recall(), lambda _: last, server, lambda: follows)


def test_what_was_read_is_known_to_whoever_comes_later() -> None:
    memory = OwnMemory()
    having_seen(memory, (A, range(100, 106))).keep()
    later = having_seen(memory)
    assert later.recall().known == Known((), (Range(A, 100, 105),))
    assert looked(later, {A: 103, B: 104}) == (Fork(1, 103, A, B),)
    assert looked(having_seen(memory), {A: 103, B: 120}) == (Fork(1, 103, A, B),), "once for all"


def test_what_was_read_of_the_undone_part_is_not_kept_again() -> None:
    memory = OwnMemory()
    lived_on, other = having_seen(memory, (A, range(100, 106))), having_seen(memory)
    lived_on.keep()
    looked(other, {A: 103, B: 104})
    lived_on.saw(107, A)
    lived_on.keep()
    assert known_from(memory.recall()) == Known((Fork(1, 103, A, B),), (Range(A, 100, 103),))


def test_a_reader_that_comes_to_the_fork_is_told_once() -> None:
    memory = OwnMemory()
    witness = having_seen(memory, (A, range(100, 106)))
    assert witness.saw(103, A)
    assert not witness.saw(104, B)
    assert witness.saw(104, B)
    assert witness.saw(105, B)
    witness.keep()
    assert known_from(memory.recall()) == Known((), (Range(A, 100, 103), Range(B, 104, 105)), (Range(A, 104, 105),))
    assert looked(witness, {A: 103, B: 105}) == (Fork(1, 103, A, B),)


def test_who_owns_no_flow_changes_nothing() -> None:
    class Foreign(OwnMemory):
        def swap(self, before: bytes, after: bytes) -> bool:
            return False

    memory = Foreign()
    having_seen(memory, (A, range(100, 106))).keep()
    assert memory.recall() == b""
    memory._kept = b"[[],[[1,100,105]],[]]"
    assert looked(having_seen(memory), {A: 103, B: 104}) == ()


def test_a_replica_with_commits_of_its_own_begins_no_history() -> None:
    memory = OwnMemory()
    having_seen(memory, (A, range(100, 106))).keep()
    assert looked(having_seen(memory), {A: 103, B: 104}, follows=True) == ()
    assert looked(having_seen(memory), {A: 107}, server=3, follows=True) == (), "nor one with the last commits of a lost primary"
    assert looked(having_seen(memory), {A: 103, B: 104}, server=3, follows=True) == (Fork(1, 103, A, B),), "its primary is one that forked"


def test_a_replica_that_lacks_what_itself_wrote_was_built_anew_and_is_not_ahead() -> None:
    memory = OwnMemory()
    having_seen(memory, (A, range(100, 104)), (B, range(104, 105))).keep()
    witness = having_seen(memory)
    assert witness.look(witness.recall(), lambda sequence: {A: min(sequence, 107)}, B, lambda: True) == (Fork(1, 103, B, A),)


def test_a_server_that_follows_nobody_and_lacks_what_was_read_gives_its_own_numbers_again() -> None:
    witness = having_seen(OwnMemory(), (A, range(100, 106)))
    witness.lacks(A, 103, 105)
    assert looked(witness, {A: 103}, server=A) == ()
    assert looked(witness, {A: 104}, server=A) == (Fork(1, 103, A, A),)


def test_unless_it_comes_to_follow_somebody() -> None:
    witness = having_seen(OwnMemory(), (A, range(100, 106)))
    witness.lacks(A, 103, 105)
    assert looked(witness, {A: 104}, server=A, follows=True) == ()
    assert looked(witness, {A: 106}, server=A) == ()


def test_to_ask_for_what_nobody_has_read_begins_no_history() -> None:
    witness = having_seen(OwnMemory(), (A, range(100, 104)))
    witness.lacks(A, 103, 99_999_999)
    assert looked(witness, {A: 104}, server=A) == ()


def test_what_a_lost_primary_writes_after_the_fork_was_declared_elsewhere_is_not_kept() -> None:
    memory = OwnMemory()
    lost, other = having_seen(memory, (A, range(100, 106))), having_seen(memory)
    lost.keep()
    looked(other, {A: 103, B: 104})
    lost.keep()  # it hears of the fork, and has not looked at its log since then
    lost.saw(107, A)
    lost.keep()
    assert looked(other, {A: 103, B: 105}) == (Fork(1, 103, A, B),)


def test_who_could_never_ask_the_others_knows_nothing() -> None:
    class Away(OwnMemory):
        def recall(self) -> bytes:
            raise Unavailable("It is away.")

    with pytest.raises(Unavailable, match="away"):
        having_seen(Away()).recall()


def test_a_memory_that_does_not_answer_is_asked_again() -> None:
    class Away(OwnMemory):
        away = False

        def recall(self) -> bytes:
            if self.away:
                raise Unavailable("It is away.")
            return super().recall()

    memory = Away()
    witness = having_seen(memory, (A, range(100, 106)))
    witness.keep()
    assert witness.recall().known.read
    memory.away = True
    assert witness.recall().known.read, "what was known last"
    witness.saw(106, A)
    with pytest.raises(Unavailable):
        witness.keep()
    memory.away = False
    witness.keep()
    assert known_from(memory.recall()).read == (Range(A, 100, 106),)


def test_what_is_remembered_is_bounded() -> None:
    memory = OwnMemory()
    witness = having_seen(memory)
    for sequence in range(5_000):
        witness.saw(2 * sequence, sequence % 2)
        if sequence % 500 == 0:
            witness.keep()
    for sequence in range(5_000):
        witness.saw(2 * (9_999 - sequence), 7)
    witness.keep()
    assert max(len(witness._ranges), len(witness._beside), *map(len, known_from(memory.recall()))) <= RANGES_MAX


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
            memory = OwnMemory()
            moved.remember_in(memory)
            second.remember_in(memory)
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

            moved.keep()

            # Its numbers come again, for other commits. Nothing can be said of it before it has written any.
            replica.run("RESET SLAVE ALL")
            with pytest.raises(WrongHistory):
                second.read_after(told)
            replica.run("INSERT INTO d.t VALUES (20)")
            with closing(MariadbStore(replica.settings())) as fresh:  # the same after a restart
                fresh.remember_in(memory)
                begins = Position(1, begin.sequence + 1, 0)
                for store in (fresh, second):
                    assert store.retained().end == Position(1, begin.sequence + 1)
                    for position in (told, Position(0, begin.sequence + 1), begin):
                        with pytest.raises(LogCut) as cut:
                            store.read_after(position)
                        assert cut.value.oldest == begins
            replica.run("INSERT INTO d.t VALUES (30)")
            assert [change.columns["id"] for change in read_to(second, begins)] == [20, 30]
            with closing(second.read_after(Position(0, begin.sequence - 1))) as behind:
                found = behind.read(10, 5.0)
                assert ([change.columns["id"] for change in found.changes], found.reached) == ([1], begin)
                with pytest.raises(LogCut):
                    behind.read(10, 5.0)

            # The same for a publisher that follows the address of the primary, which is the other server's now.
            replica.kill()
            replica.port = primary.port
            replica.start()
            with pytest.raises(LogCut):
                moved.read_after(told)
            replica.run("INSERT INTO d.t VALUES (40)")
            assert [change.columns["id"] for change in read_to(moved, begins)] == [20, 30, 40]
            moved.keep()
            assert len(known_from(memory.recall()).forks) == 1

            # What the primary of before still has is of the history before.
            replica.kill()
            primary.start()
            assert moved.retained().end == told
            with pytest.raises(WrongHistory):
                moved.read_after(begins)
    finally:
        replica.kill()
        primary.kill()
