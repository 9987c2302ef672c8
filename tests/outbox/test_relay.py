"""The relay: at least once, in the order of commits, however many relays run and wherever they stop."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from roskva.outbox import sqlalchemy as outbox
from roskva.outbox.relay import Relay, coalesced
from roskva.outbox.rows import Database, Row, over_dbapi
from roskva.publisher import BlockingPublisher
from tests.outbox.conftest import APPLICATION, Recorder, Told

pytestmark = pytest.mark.timeout(120)


def write(engine: sa.Engine, *names: str, **options: Any) -> None:
    with engine.begin() as connection:
        for name in names:
            outbox.publish(connection, APPLICATION, name, **options)


def left(database: Database) -> int:
    return sum(waiting for waiting, _, _ in database.counts().values())


@pytest.fixture
def database(engine: sa.Engine) -> Iterator[Database]:
    with closing(outbox.database(engine)) as database:
        yield database


def test_committed_rows_are_told_once_and_deleted(
    engine: sa.Engine, database: Database, service: Recorder, publisher: BlockingPublisher
) -> None:
    before_us = time.time_ns() // 1_000
    write(engine, "doc:1", "doc:2", "doc:1")
    write(engine, "doc:3", version=5, source="phone")
    relay = Relay(database, {APPLICATION: publisher})
    assert relay.once() == 4
    assert relay.once() == 0
    ((first, v1, _), (second, v2, _), third) = service.told
    assert (first, second, third) == ("doc:1", "doc:2", ("doc:3", 5, "phone"))
    assert v1 == v2 >= before_us
    assert database.counts() == {}
    assert relay.relayed == 4


def test_versions_grow_from_batch_to_batch_even_if_the_clock_does_not(engine: sa.Engine, database: Database) -> None:
    database.prepare(APPLICATION)
    database.prepare(APPLICATION)
    assert [database.next_version(APPLICATION, now_us) for now_us in (50, 50, 20, 90, 90)] == [50, 51, 52, 90, 91]


def test_a_transaction_that_wrote_first_and_commits_last_is_not_lost(request: pytest.FixtureRequest, servers: Any, tmp_path: Any) -> None:
    """Ids are drawn before the commit: the row with the lower id becomes visible when the higher one was told already."""
    from tests.outbox.conftest import make_engine

    for kind in ("postgres", "mariadb"):
        engine = make_engine(kind, servers, tmp_path)
        told = Told()
        with closing(outbox.database(engine)) as database, engine.connect() as slow:
            relay = Relay(database, {APPLICATION: told})
            outbox.publish(slow, APPLICATION, "doc:1")
            write(engine, "doc:1")
            assert relay.once() == 1
            slow.commit()
            assert relay.once() == 1
        (_, first, _), (_, second, _) = told.told
        assert second > first
        engine.dispose()


def test_the_service_may_be_away(engine: sa.Engine, database: Database, service: Recorder, publisher: BlockingPublisher) -> None:
    write(engine, "doc:1")
    service.answers = [
        (503, {"error": {"code": "feed-full", "message": "Full.", "transient": True}}),
        (401, {"error": {"code": "publish-key-refused"}}),
    ]
    relay = Relay(database, {APPLICATION: publisher})
    for code in ("feed-full", "publish-key-refused"):
        assert relay.once() == 0
        assert relay.problems[APPLICATION].code == code
        assert left(database) == 1
    assert relay.once() == 1
    assert relay.problems == {}
    assert left(database) == 0


def test_a_row_that_is_refused_for_good_stays_with_the_reason_and_holds_up_nobody(
    engine: sa.Engine, database: Database, service: Recorder, publisher: BlockingPublisher
) -> None:
    write(engine, "doc:1", "doc:2")
    service.answers = [(200, {"results": [{"ok": False, "error": {"code": "invalid-name", "message": "No."}}, {"ok": True}]})]
    relay = Relay(database, {APPLICATION: publisher}, rows_max=2)
    assert relay.once() == 1
    assert (relay.refused, relay.once()) == (1, 0)
    ((waiting, refused, oldest_ms),) = database.counts().values()
    assert (waiting, refused) == (0, 1)
    assert abs(time.time() - oldest_ms / 1000) < 100
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT object, refused FROM roskva_outbox")).all() == [("doc:1", "invalid-name")]


def test_applications_without_a_relay_wait(sqlite: sa.Engine) -> None:
    told = Told()
    write(sqlite, "doc:1")
    with sqlite.begin() as connection:
        outbox.publish(connection, "other", "x")
    with closing(outbox.database(sqlite)) as database:
        assert Relay(database, {APPLICATION: told}).once() == 1
        assert list(database.counts()) == ["other"]


def test_many_rows_go_in_batches(sqlite: sa.Engine) -> None:
    told = Told()
    write(sqlite, *(f"doc:{number}" for number in range(2_500)))
    with closing(outbox.database(sqlite)) as database:
        relay = Relay(database, {APPLICATION: told})
        assert [relay.once() for _ in range(4)] == [1_000, 1_000, 500, 0]
    assert len({name for name, *_ in told.told}) == 2_500


def test_of_an_object_the_highest_version_is_told_and_a_source_if_it_is_the_only_one() -> None:
    rows = [Row(1, "a", 5, "x"), Row(2, "a", 3, "x"), Row(3, "b", None, "x"), Row(4, "b", None, "y"), Row(5, "c", None, None)]
    assert coalesced(rows, 9) == {"a": ("a", 5, "x"), "b": ("b", 9, None), "c": ("c", 9, None)}


def test_one_relay_works_and_another_takes_over(engine: sa.Engine) -> None:
    told = Told()
    with closing(outbox.database(engine)) as one, closing(outbox.database(engine)) as two:
        first = Relay(one, {APPLICATION: told}, lease_s=100.0)
        second = Relay(two, {APPLICATION: told}, lease_s=100.0)
        write(engine, "doc:1")
        assert first.once() == 1
        write(engine, "doc:2")
        assert second.once() == 0
        assert first.once() == 1
        first.close()  # as `run` does when it is told to stop
        write(engine, "doc:3")
        assert second.once() == 1
    assert [name for name, *_ in told.told] == ["doc:1", "doc:2", "doc:3"]


def test_a_table_of_relays_that_somebody_emptied_is_filled_again(sqlite: sa.Engine) -> None:
    told = Told()
    with closing(outbox.database(sqlite)) as database:
        relay = Relay(database, {APPLICATION: told})
        for name in ("doc:1", "doc:2"):
            write(sqlite, name)
            assert relay.once() + relay.once() == 1
            with sqlite.begin() as connection:
                connection.execute(sa.text("DELETE FROM roskva_outbox_relay"))
    (_, first, _), (_, second, _) = told.told
    assert second > first


def test_a_lease_ends_by_itself(sqlite: sa.Engine) -> None:
    with closing(outbox.database(sqlite)) as database:
        database.prepare(APPLICATION)
        assert database.lease(APPLICATION, "one", now_ms=1_000, until_ms=2_000)
        assert not database.lease(APPLICATION, "two", now_ms=2_000, until_ms=3_000)
        assert database.lease(APPLICATION, "two", now_ms=2_001, until_ms=3_000)
        assert not database.lease(APPLICATION, "one", now_ms=2_500, until_ms=9_000)


STEPS = ("read", "take", "publish", "delete")


class Walker:
    """A relay that goes its steps one by one, without a lease, and may stop after any."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows: list[Row] = []
        self._version = 0

    def step(self, step: str, commits: int, told: list[tuple[int, int]]) -> None:
        """`told`: (version, how many changes of the object were committed when it was told)."""
        match step:
            case "read":
                self._rows = self._database.waiting(APPLICATION, 10)
            case "take":
                self._version = self._database.next_version(APPLICATION, 1)
            case "publish":
                if self._rows:
                    told.append((self._version, commits))
            case "delete":
                self._database.delete([row.id for row in self._rows])


@pytest.mark.parametrize("goes", range(len(STEPS) + 1))
def test_whatever_the_order_of_steps_the_last_change_is_told_with_the_highest_version(sqlite: sa.Engine, goes: int) -> None:
    """Two relays, of which one is killed after so many steps, and a transaction that commits among their steps, in every order; then a
    relay's round. What was told last of the object was told when both of its changes were there."""
    raw = sqlite.raw_connection()
    try:
        cursor = raw.cursor()
        insert = "INSERT INTO roskva_outbox (application, object, created_ms) VALUES ('shop', 'x', 0)"
        # One connection and no waiting for the disk: what is tried here is the order alone.
        database = over_dbapi(lambda: _Shared(raw), "?")
        for order in _orders(goes):
            cursor.execute("DELETE FROM roskva_outbox")
            cursor.execute("DELETE FROM roskva_outbox_relay")
            database.prepare(APPLICATION)
            cursor.execute(insert)
            told: list[tuple[int, int]] = []
            commits, walkers, at = 1, {"A": Walker(database), "B": Walker(database)}, {"A": 0, "B": 0}
            for who in order:
                if who == "C":
                    cursor.execute(insert)
                    commits += 1
                else:
                    walkers[who].step(STEPS[at[who]], commits, told)
                    at[who] += 1
            last = Walker(database)
            for step in STEPS:
                last.step(step, commits, told)
            assert max(told)[1] == 2, order
            assert database.waiting(APPLICATION, 10) == []
    finally:
        raw.close()


def _orders(goes: int) -> list[str]:
    """Of A's so many steps, B's four and one commit: 630 if A goes all of its four."""
    size = goes + len(STEPS) + 1
    found = []
    for a_places in itertools.combinations(range(size), goes):
        rest = [place for place in range(size) if place not in a_places]
        found += ["".join("A" if place in a_places else "C" if place == commit else "B" for place in range(size)) for commit in rest]
    return found


class _Shared:
    """A connection that others use, too, and is never committed or closed by who was lent it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self) -> Any:
        return self._connection.cursor()

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def test_relays_beside_writers_lose_nothing(engine: sa.Engine, service: Recorder) -> None:
    """Three relays without leases, four writers of a few objects: who fetches when the highest version is told sees the last change."""
    stop = threading.Event()
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO documents VALUES (0, '0'), (1, '0'), (2, '0')"))

    def fetch(name: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(sa.text(f"SELECT title FROM documents WHERE id = {name[4:]}")).scalar_one())

    def relays() -> None:
        with closing(outbox.database(engine)) as database, BlockingPublisher(service.url, application=APPLICATION) as publisher:
            database.lease = lambda *_: True  # type: ignore[method-assign]
            Relay(database, {APPLICATION: publisher}, poll_s=0.01).run(stop)

    def writes(writer: int) -> None:
        for number in range(12):
            with engine.begin() as connection:
                one = (writer + number) % 3
                # The title is a number that counts the changes; the row stays locked until the commit.
                connection.execute(sa.text(f"UPDATE documents SET title = CAST(title AS {integer}) + 1 WHERE id = {one}"))
                outbox.publish(connection, APPLICATION, f"doc:{one}")

    integer = "signed" if engine.dialect.name == "mysql" else "integer"
    service.fetch = fetch
    threads = [threading.Thread(target=relays) for _ in range(3)]
    writers = [threading.Thread(target=writes, args=(writer,)) for writer in range(4)]
    for thread in (*threads, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    with closing(outbox.database(engine)) as database:
        while left(database):
            time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert {name: fetched for name, (_, fetched) in service.seen.items()} == {"doc:0": 16, "doc:1": 16, "doc:2": 16}


def test_it_runs_until_it_is_told_to_stop_while_the_database_comes_and_goes(sqlite: sa.Engine) -> None:
    told, stop, broken = Told(), threading.Event(), threading.Event()
    connects = 0

    def connect() -> Any:
        nonlocal connects
        connects += 1
        if broken.is_set():
            raise OSError("the database is away")
        return sqlite.raw_connection()

    broken.set()
    database = over_dbapi(connect, "?")
    relay = Relay(database, {APPLICATION: told}, poll_s=0.01)
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    while connects < 3:
        time.sleep(0.01)
    write(sqlite, "doc:1")
    broken.clear()
    while not told.told:
        time.sleep(0.01)
    stop.set()
    thread.join()
    assert [name for name, *_ in told.told] == ["doc:1"]
