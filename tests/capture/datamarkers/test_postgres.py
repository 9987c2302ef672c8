"""Datamarkers in a PostgreSQL server keep the contract, and what postgres.py promises when a standby is promoted."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from roskva.capture.datamarkers import Claim, Datamarkers, Mark, postgres
from roskva.capture.datamarkers.opening import is_server
from roskva.capture.datamarkers.postgres import EPOCHS_OF_A_TIMELINE, PostgresDatamarkers, findings
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import BadRequest, CaptureRefused, InvalidSetting, Unavailable
from tests.capture.datamarkers.contract import FLOW, DatamarkersContract, Engine, taken
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres, running_replica

_fresh = itertools.count()


class DatabaseOfPostgres(Engine):
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.database = f"marks{next(_fresh)}"
        server.create_database(self.database)
        self.place = server.dsn(self.database)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def engine(server: PostgresServer) -> DatabaseOfPostgres:
    return DatabaseOfPostgres(server)


class TestPostgres(DatamarkersContract): ...


@pytest.mark.parametrize("place", ["host=db1,db2 dbname=roskva", "postgresql://db1,db2/roskva", "postgres://u@db/x", " service = marks"])
def test_a_server_is_told_from_a_file(place: str) -> None:
    assert is_server(place)


@pytest.mark.parametrize("place", ["/var/lib/roskva/datamarkers", "datamarkers.sqlite", "~/x=y", "a dir/a=b", "./host=db1"])
def test_a_file_is_told_from_a_server(place: str) -> None:
    assert not is_server(place)


def test_what_cannot_be_read_as_a_place_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="cannot be read"):
        PostgresDatamarkers("host=db1 hst=db2", "data")


def test_a_server_that_does_not_let_us_in_is_named_with_what_to_do(engine: DatabaseOfPostgres) -> None:
    with pytest.raises(CaptureRefused, match="CREATE DATABASE"):
        PostgresDatamarkers(engine.server.dsn("none_such"), "data")
    engine.server.execute("postgres", "CREATE ROLE stranger LOGIN")
    with pytest.raises(CaptureRefused, match="CREATE SCHEMA AUTHORIZATION stranger"):
        PostgresDatamarkers(engine.server.dsn(engine.database, "stranger"), "data")
    engine.server.execute(engine.database, "CREATE SCHEMA AUTHORIZATION stranger")
    with closing(PostgresDatamarkers(engine.server.dsn(engine.database, "stranger"), "data")) as store:
        taken(store)
    (found,) = engine.server.execute(engine.database, "SELECT count(*) FROM stranger.roskva_flows")
    assert found == (1,)


def test_another_dataset_has_room_in_another_schema(engine: DatabaseOfPostgres) -> None:
    engine.server.execute(engine.database, "CREATE SCHEMA second")
    with (
        closing(engine.open("first")) as first,
        closing(PostgresDatamarkers(f"{engine.place} options=-csearch_path=second", "second")) as second,
    ):
        taken(first)
        assert second.records() == {}
        with pytest.raises(BadRequest):
            PostgresDatamarkers(f"{engine.place} options=-csearch_path=second", "first")


def test_those_who_come_first_make_the_tables_together(engine: DatabaseOfPostgres) -> None:
    start = threading.Barrier(4)
    opened: list[PostgresDatamarkers] = []

    def open_one() -> None:
        start.wait(10)
        opened.append(PostgresDatamarkers(engine.place, "data"))

    threads = [threading.Thread(target=open_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(opened) == 4
    for store in opened:
        store.close()


def test_a_server_that_hangs_is_given_up(engine: DatabaseOfPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does while it waits for a synchronous standby that is gone: no timeout of its own ends that."""
    monkeypatch.setattr(postgres, "ANSWER_S_MAX", 0.5)
    server = engine.server
    with closing(engine.open()) as store:
        epoch = taken(store)
        server.execute(engine.database, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        try:
            time.sleep(0.2)
            began_s = time.monotonic()
            with pytest.raises(Unavailable):
                store.store([Mark(FLOW, Position(1, 5), epoch)])
            assert time.monotonic() - began_s < 3.0
        finally:
            server.execute("postgres", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        until_stored(store, Mark(FLOW, Position(1, 6), epoch))
        assert store.records()[FLOW].datamarker == Position(1, 6)


def test_whoever_sleeps_in_the_middle_of_a_write_holds_up_nobody(engine: DatabaseOfPostgres) -> None:
    """SIGSTOP of a publisher between two statements: the server ends its transaction."""
    with closing(PostgresDatamarkers(engine.place, "data")) as store, closing(PostgresDatamarkers(engine.place, "data")) as other:
        mark = Mark(FLOW, Position(1, 5), taken(store))

        def sleep_in_the_middle() -> None:
            with store._transaction() as cursor:
                cursor.execute("SELECT FROM roskva_flows FOR UPDATE")
                until_stored(other, mark)
                cursor.execute("SELECT 1")

        with pytest.raises(Unavailable):
            sleep_in_the_middle()
        assert other.records()[FLOW].datamarker == Position(1, 5)


def until_stored(store: Datamarkers, mark: Mark) -> None:
    deadline_s = time.monotonic() + 20
    while True:
        try:
            assert store.store([mark]) == []
            return
        except Unavailable:  # somebody else's turn is not over yet
            assert time.monotonic() < deadline_s


def both(primary: PostgresServer, standby: PostgresServer, database: str) -> str:
    return f"host=127.0.0.1,127.0.0.1 port={primary.port},{standby.port} user=postgres dbname={database}"


def replayed(primary: PostgresServer, standby: PostgresServer) -> None:
    """The standby has all that the primary has."""
    ((end,),) = primary.execute("postgres", "SELECT pg_current_wal_lsn()")
    deadline_s = time.monotonic() + 20
    while standby.execute("postgres", f"SELECT pg_last_wal_replay_lsn() >= '{end}'") != [(True,)]:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_promoted_standby_is_found_and_fences_every_owner_of_before(server: PostgresServer) -> None:
    """Asynchronous replication, and what was written last is lost: datamarkers go back, which repeats updates; epochs never do."""
    with running_postgres() as primary, running_replica(primary) as standby:
        primary.create_database("marks")
        dsn = both(primary, standby, "marks")
        other = FlowName("watch", 4)
        with closing(PostgresDatamarkers(dsn, "data")) as one, closing(PostgresDatamarkers(dsn, "data")) as two:
            first = taken(one, FLOW, other)
            assert first == EPOCHS_OF_A_TIMELINE + 1
            one.store([Mark(FLOW, Position(1, 5), first)])
            replayed(primary, standby)
            # What comes now is lost.
            standby.execute("postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
            while primary.execute("postgres", "SELECT 1 FROM pg_stat_replication"):
                time.sleep(0.02)
            lost = taken(two, by="p2")
            assert lost > first
            assert two.store([Mark(FLOW, Position(1, 9), lost)]) == []
            fresh = two.take([Claim(FlowName("new", 0), 0)], "p2")[FlowName("new", 0)]

            primary.kill()
            with pytest.raises(Unavailable):
                two.records()
            standby.execute("postgres", "SELECT pg_promote()")

            # Whoever held an epoch is refused: p1, whose epoch is written there, and p2, whose own was lost.
            with pytest.raises(Unavailable):
                one.records()  # on the connection of before
            assert one.store([Mark(other, Position(1, 9), first)]) == [other]
            assert two.store([Mark(FLOW, Position(1, 9), lost)]) == [FLOW]
            records = two.records()
            assert records[FLOW].datamarker == Position(1, 5)
            assert records[FLOW].epoch == records[other].epoch == 2 * EPOCHS_OF_A_TIMELINE > lost
            assert FlowName("new", 0) not in records
            # And goes on under epochs that nobody had.
            assert two.take([Claim(FLOW, records[FLOW].epoch)], "p2") == {FLOW: 2 * EPOCHS_OF_A_TIMELINE + 1}
            assert two.take([Claim(FlowName("new", 0), 0)], "p2")[FlowName("new", 0)] > fresh
            assert one.take([Claim(FLOW, first)], "p1") == {}


def test_a_standby_alone_cannot_be_written(server: PostgresServer) -> None:
    with running_replica(server) as standby:
        with pytest.raises(Unavailable, match="read-only"):
            PostgresDatamarkers(standby.dsn("postgres"), "data")
        with pytest.raises(Unavailable, match="is a standby"):
            PostgresDatamarkers(f"{standby.dsn('postgres')} target_session_attrs=any", "data")
        (finding, *_) = findings(f"{standby.dsn('postgres')} target_session_attrs=any", "data")
        assert not finding.ok


def test_check_says_what_there_is_and_changes_nothing(engine: DatabaseOfPostgres) -> None:
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'roskva%'"
    found = {finding.what: finding for finding in findings(engine.place, "data")}
    assert engine.server.execute(engine.database, tables) == [(0,)]
    (made,) = (finding for what, finding in found.items() if "no datamarkers are in" in what)
    assert made.do.startswith("roskva capture makes it")
    assert any("does not replicate synchronously" in what for what in found)
    assert any("fsync is off" in what and not finding.ok for what, finding in found.items())
    engine.open().close()
    assert next(findings(engine.place, "data")).ok
    wrong = next(findings(engine.place, "another"))
    assert not wrong.ok
    assert "of the dataset 'data'" in wrong.means
    away = next(findings("host=127.0.0.1 port=1 dbname=x connect_timeout=1", "data"))
    assert not away.ok
