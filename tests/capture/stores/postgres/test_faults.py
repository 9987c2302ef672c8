"""What a real PostgreSQL may do to its readers: it is killed, stopped, promoted, gives up their log. Nothing is skipped in silence."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator

import pytest

from roskva.capture.interface import Reader
from roskva.capture.positions import WHOLE, Position
from roskva.capture.updates import Change
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, Unavailable, WrongHistory
from tests.capture.stores.postgres.place import WITHIN_S, Place, take
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres, running_replica

_fresh = itertools.count()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One to be killed."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def shaken(own_server: PostgresServer) -> Iterator[Place]:
    place = Place(own_server, f"s{next(_fresh)}")
    place.execute("CREATE TABLE documents (id int PRIMARY KEY, title text)")
    place.store.prepare()
    yield place
    place.close()


def until_cut_off(reader: Reader) -> list[Change]:
    found: list[Change] = []
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        try:
            found += reader.read(100, 0.2).changes
        except DatastoreUnavailable:
            return found
    raise AssertionError("the reader was not cut off")


def test_nothing_is_skipped_when_the_server_is_killed_in_the_middle(shaken: Place) -> None:
    """Three times: rows are read, somewhere in the middle everything is killed with -9, and reading goes on from the last datamarker."""
    chance = random.Random(9)
    position = shaken.store.retained().end
    found: list[Change] = []
    total = 0
    for _ in range(3):
        for size in (1, 2000, 3, 5000):
            shaken.execute(f"INSERT INTO documents SELECT n, repeat('x', 50) FROM generate_series({total}, {total + size - 1}) n")
            total += size
        reader = shaken.store.read_after(position)
        for _ in range(chance.randrange(1, 12)):
            batch = reader.read(500, 5.0)
            found += batch.changes
            position = batch.reached
        shaken.server.kill()
        for change in until_cut_off(reader):  # what was on its way: it has come, whether or not it was recorded
            assert change.position > position
        reader.close()
        with pytest.raises(DatastoreUnavailable):
            shaken.store.retained()
        shaken.server.start()
    reader = shaken.store.read_after(position)
    found += take(reader, total - len(found))
    reader.close()
    assert [change.key["id"] for change in found] == list(range(total))
    assert [change.position for change in found] == sorted({change.position for change in found})


def test_what_was_confirmed_before_a_kill_may_come_back_but_nothing_after_it_is_gone(shaken: Place) -> None:
    shaken.execute("INSERT INTO documents VALUES (1, 'a')", "INSERT INTO documents VALUES (2, 'b')")
    first, second = shaken.changes(2)
    shaken.store.confirm(first.position._replace(index=WHOLE))
    shaken.server.kill()
    shaken.server.start()
    assert shaken.store.retained().oldest <= first.position._replace(index=WHOLE)
    assert shaken.changes(1, first.position._replace(index=WHOLE)) == [second]


def test_a_server_that_is_stopped_waits_for_no_reader_and_goes_on_afterwards(shaken: Place) -> None:
    shaken.execute("INSERT INTO documents VALUES (1, 'a')")
    reader = shaken.store.read_after(shaken.store.retained().oldest)
    (change,) = take(reader, 1)
    stopping = threading.Thread(target=shaken.server.stop)
    stopping.start()
    assert until_cut_off(reader) == []
    stopping.join(WITHIN_S)
    assert not stopping.is_alive()
    with pytest.raises(Unavailable, match="closed"):
        reader.read(1, 0.1)
    shaken.server.start()
    shaken.execute("INSERT INTO documents VALUES (2, 'b')")
    (second,) = shaken.changes(1, change.position)
    assert second.key == {"id": 2}


def test_a_connection_that_is_cut_ends_the_reader_and_a_new_one_goes_on(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    (change,) = take(reader, 1)
    place.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '{place.name}' AND active",
        "INSERT INTO documents VALUES (2, 'b')",
    )
    until_cut_off(reader)
    place.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{place.name}' AND pid <> pg_backend_pid()")
    assert [found.key for found in place.changes(1, change.position)] == [{"id": 2}]


def test_closing_the_store_ends_readers_that_wait_in_other_threads(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            reader.read(10, 60.0)
        except DatastoreUnavailable as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    place.store.close()
    waiting.join(WITHIN_S)
    assert not waiting.is_alive()
    assert len(raised) == 1
    with pytest.raises(DatastoreUnavailable, match="closed"):
        place.store.read_after(Position(1, 1))


def test_a_closed_reader_leaves_nothing_behind(place: Place) -> None:
    readers = [place.store.read_after(place.store.retained().end) for _ in range(3)]
    assert place.execute(f"SELECT count(*) FROM pg_replication_slots WHERE database = '{place.name}' AND temporary") == [(3,)]
    for reader in readers:
        reader.close()
        reader.close()
    until_s = time.monotonic() + WITHIN_S
    left = 3
    while left and time.monotonic() < until_s:
        ((left,),) = place.execute(f"SELECT count(*) FROM pg_replication_slots WHERE database = '{place.name}' AND temporary")
    assert left == 0


def lose(place: Place) -> None:
    """Lets the server give up the anchor: more log than it may keep, and a checkpoint that cuts it off."""
    place.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()", "SELECT pg_sleep(0.1)")
    for _ in range(4):
        place.execute(
            "INSERT INTO documents SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n ON CONFLICT (id) DO UPDATE SET title = 'y'"
        )
        place.execute("SELECT pg_switch_wal()", "CHECKPOINT")
    place.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert place.execute(f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{place.settings.slot}'") == [("lost",)]


def test_a_log_that_was_given_up_is_data_loss_and_nothing_is_dropped_unasked(shaken: Place) -> None:
    shaken.execute("INSERT INTO documents VALUES (0, 'a')")
    reader = shaken.store.read_after(shaken.store.retained().oldest)
    (change,) = take(reader, 1)
    lose(shaken)
    # The server has ended the reader with its copy, or lets it end what it was sent.
    with pytest.raises((DatastoreUnavailable, LogCut)):
        take(reader, 100_000)
    reader.close()
    with pytest.raises(LogCut) as cut:
        shaken.store.read_after(change.position)
    assert isinstance(cut.value.oldest, Position)
    assert cut.value.oldest > change.position
    with pytest.raises(LogCut):
        shaken.store.confirm(change.position)
    retained = shaken.store.retained()
    assert retained.oldest == retained.end
    (lost,) = (finding for finding in shaken.store.check() if "is lost" in finding.what)
    assert lost.do.startswith(f"SELECT pg_drop_replication_slot('{shaken.settings.slot}')")
    with pytest.raises(CaptureRefused, match="pg_drop_replication_slot"):
        shaken.store.prepare()
    # Who is told to may replace it: what is gone stays gone, and is said to be.
    told = shaken.open(replace_lost_slot=True)
    told.prepare()
    with pytest.raises(LogCut) as cut:
        told.read_after(change.position)
    assert cut.value.oldest == told.retained().oldest
    shaken.execute("INSERT INTO documents VALUES (-1, 'again')")
    assert [found.key for found in shaken.changes(1)] == [{"id": -1}]


def test_a_promoted_standby_tells_its_own_past_from_what_it_never_had(server: PostgresServer) -> None:
    """PostgreSQL 15 gives a standby no logical slots: what lies between the last datamarker and its new slot is lost, and said to be."""
    place = Place(server, "replicated")
    place.execute("CREATE TABLE documents (id int PRIMARY KEY, title text)")
    place.store.prepare()
    place.execute("INSERT INTO documents VALUES (1, 'before')")
    (before,) = place.changes(1)
    with running_replica(server) as standby:
        replica = Place(standby, place.name, exists=True)
        assert replica.store.identity == place.store.identity
        (finding,) = (finding for finding in replica.store.check() if "standby" in finding.what)
        assert not finding.ok
        assert (place.store.retained().follows, replica.store.retained().follows) == (False, True)
        for refused in (replica.store.prepare, lambda: replica.store.read_after(before.position)):
            with pytest.raises(DatastoreUnavailable, match="is a standby"):
                refused()

        standby.execute("postgres", "SELECT pg_promote()")
        place.execute(
            "INSERT INTO documents VALUES (2, 'never replicated')", "SELECT pg_switch_wal()", "INSERT INTO documents VALUES (3, 'nor this')"
        )
        never = place.changes(3)[2]
        replica.execute("INSERT INTO documents VALUES (4, 'after')")
        with pytest.raises(LogCut):
            replica.store.read_after(before.position)  # of its past, and no slot has kept it
        with pytest.raises(LogCut) as undone:
            replica.store.read_after(never.position)
        assert isinstance(undone.value.oldest, Position)
        assert undone.value.oldest[::2] == (2, 0), "before the first commit of the next timeline"
        assert before.position < undone.value.oldest
        replica.store.prepare()
        with pytest.raises(LogCut) as cut:
            replica.store.read_after(before.position)
        oldest = replica.store.retained().oldest
        assert cut.value.oldest == oldest
        assert oldest.history == 2
        replica.execute("INSERT INTO documents VALUES (5, 'captured')")
        (change,) = replica.changes(1, oldest)
        assert (change.key, change.position.history) == ({"id": 5}, 2)
        assert change.position > never.position
        replica.store.confirm(change.position)
        with pytest.raises(WrongHistory, match="timeline 2, and this server is at 1"):
            place.store.read_after(change.position)
        replica.store.close()
    place.close()
