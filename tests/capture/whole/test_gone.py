"""What reading needs of a real Postgres is taken away while a publisher runs: it is told, shown, and made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from roskva.capture.stores.postgres import PostgresSettings, PostgresStore
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from roskva.capture.watching import Level, log_share
from tests.capture.shell.numberlog import KEY
from tests.capture.shell.serving import LIMITS, command
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres

pytestmark = pytest.mark.timeout(120)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres(max_slot_wal_keep_size="2MB") as server:
        yield server


class Kept(Callbacks):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_update(self, update: Update) -> None:
        self.seen.append(update.change.key["id"])

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.seen.append("loss")


@contextlib.asynccontextmanager
async def publishing(server: PostgresServer, name: str, folder: Path) -> AsyncIterator[Publisher]:
    server.create_database(name)
    server.execute(name, "CREATE TABLE documents (id int PRIMARY KEY, title text)")
    store = PostgresStore(PostgresSettings(server.dsn(name), slot=name, tables=("documents",)))
    store.prepare()
    settings = PublisherSettings(
        "p1", f"unix:{folder / 'p1'}", folder / "p1.control", {"watch": ApplicationSettings(KEY, start="oldest")},
        limits=LIMITS, tick_s=0.01, look_s=0.05, prepare_s=0.2, beat_s=0.05,
    )  # fmt: skip
    marks = SqliteDatamarkers(folder / "datamarkers", store.identity)
    try:
        async with Publisher(settings, store, marks) as publisher:
            yield publisher
    finally:
        store.close()
        marks.close()


async def until(true: Callable[[], object], what: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not true():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(str(what()))


async def test_a_published_table_that_is_created_anew_is_told_as_lost_and_captured_again(server: PostgresServer, tmp_path: Path) -> None:
    kept = Kept()
    async with publishing(server, "anew", tmp_path) as publisher, Subscriber("watch", KEY, [publisher.address], kept, "m1"):
        server.execute("anew", "INSERT INTO documents VALUES (1, 'a')")
        await until(lambda: kept.seen == [1], publisher.status)
        server.execute(
            "anew",
            "DROP TABLE documents",
            "CREATE TABLE documents (id int PRIMARY KEY, title text)",
            "INSERT INTO documents VALUES (2, 'never seen')",
        )
        await until(lambda: kept.seen[1:] == ["loss"], publisher.status)
        server.execute("anew", "INSERT INTO documents VALUES (3, 'c')")
        await until(lambda: kept.seen[2:] == [3], publisher.status)
        assert publisher.status()["problems"] == []
        server.execute("anew", "DROP TABLE documents")
        await until(lambda: kept.seen[3:] == ["loss"], publisher.status)
        await until(lambda: "no table 'documents'" in str(publisher.status()["problems"]), publisher.status)


async def test_a_slot_that_is_lost_while_nothing_is_confirmed_is_named_and_stays_an_alarm(server: PostgresServer, tmp_path: Path) -> None:
    kept = Kept()
    async with publishing(server, "given_up", tmp_path) as publisher, Subscriber("watch", KEY, [publisher.address], kept, "m1"):
        server.execute("given_up", "INSERT INTO documents VALUES (1, 'a')")
        await until(lambda: kept.seen == [1], publisher.status)
        await command(tmp_path, command="pause", application="watch", why="a test")
        await asyncio.to_thread(
            server.execute,
            "given_up",
            "INSERT INTO documents SELECT n, repeat('x', 1000) FROM generate_series(2, 6000) n",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
            "DELETE FROM documents WHERE id > 1",
            "CHECKPOINT",
        )
        assert server.execute("given_up", "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'given_up'") == [("lost",)]
        await until(lambda: "pg_drop_replication_slot('given_up')" in str(publisher.statistics.datastore), publisher.status)
        await asyncio.sleep(0.2)  # it is looked again and again
        assert "pg_drop_replication_slot('given_up')" in str(publisher.status()["problems"])
        assert log_share(publisher.status()["log"]).level is Level.ALARM
        # It is dropped, as that said: the next one is made at once, and who needs what is gone is named, though it is paused.
        server.execute("given_up", "SELECT pg_drop_replication_slot('given_up')")
        await until(lambda: publisher.statistics.datastore is None, publisher.status)
        assert server.execute("given_up", "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'given_up'") == [("reserved",)]
        await until(lambda: "what watch/0 had not read is lost" in str(publisher.status()["problems"]), publisher.status)
        assert kept.seen == [1]
        await command(tmp_path, command="resume", application="watch")
        await until(lambda: kept.seen == [1, "loss"], publisher.status)
        server.execute("given_up", "INSERT INTO documents VALUES (7000, 'c')")
        await until(lambda: kept.seen[2:] == [7000], publisher.status)
        await until(lambda: publisher.status()["problems"] == [], publisher.status)
