"""Failover between two publishers of one PostgreSQL, and of a primary and its physical standby (Wormhole 3.3.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psycopg2
import pytest

from roskva.capture.datamarkers.postgres import EPOCHS_OF_A_TIMELINE
from roskva.capture.mapping import Mapper, parse_mapping
from roskva.capture.notifying import HistoryFile, Notifier, Orders
from roskva.capture.ownership import STEADY_S
from roskva.capture.positions import Position
from roskva.capture.subscriber import Shard
from roskva.config import Settings
from roskva.feed import open_feed
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from roskva.publisher import Publisher
from roskva.table import open_manifest, open_table
from tests.capture.failover.servers_postgres18 import PostgresServer18, primary_and_standby
from tests.capture.failover.stage import (
    TAKEOVER_S,
    Owners,
    PublisherProcess,
    Rows,
    Writer,
    killed_and_back,
    running,
    serves,
    subscriber,
    until,
)
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres, running_replica

pytestmark = pytest.mark.timeout(100)

PEERS: Final = ("p1", "p2")


def publisher(folder: Path, name: str, server: PostgresServer, datamarkers: str, **applications: str) -> PublisherProcess:
    datastore = f'kind = "postgres"\ndsn = "{server.dsn("shop")}"\nslot = "slot_{name}"\ntables = ["documents"]'
    return PublisherProcess(folder, name, datastore, datamarkers, PEERS, **applications)


def at(server: PostgresServer) -> Any:
    connection = psycopg2.connect(server.dsn("shop"), connect_timeout=2)
    connection.autocommit = True
    return connection


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        server.create_database("shop")
        server.execute("shop", "CREATE TABLE documents (id int PRIMARY KEY, title text)")
        yield server


@asynccontextmanager
async def snapshots_of(primary: PostgresServer) -> AsyncIterator[None]:
    """A slot of a standby is made when its primary logs the transactions that run, which it else does every 15 s."""

    async def log_for_ever() -> None:
        while True:
            await asyncio.to_thread(primary.execute, "postgres", "SELECT pg_log_standby_snapshot()")
            await asyncio.sleep(0.2)

    task = asyncio.create_task(log_for_ever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def both_running(primary: PostgresServer, *publishers: PublisherProcess) -> AsyncIterator[None]:
    async with snapshots_of(primary):
        starting = running(*publishers)
        await starting.__aenter__()
    try:
        yield
    finally:
        await starting.__aexit__(None, None, None)


@asynccontextmanager
async def serving(
    folder: Path, servers: tuple[PostgresServer, PostgresServer], datamarkers: str, rows: Rows, **applications: str
) -> AsyncIterator[tuple[PublisherProcess, PublisherProcess]]:
    """A publisher at the primary and one at its standby, or both at one server, and who subscribes."""
    primary, standby = servers
    first = publisher(folder, "p1", primary, datamarkers, **applications)
    second = publisher(folder, "p2", standby, datamarkers, **applications)
    both = running(first, second) if primary is standby else both_running(primary, first, second)
    async with both, subscriber(rows, (first, second)):
        yield first, second


async def test_of_two_publishers_on_the_same_server_either_goes_on(
    folder: Path, server: PostgresServer, datamarkers: str, owners: Owners
) -> None:
    rows = Rows()
    async with serving(folder, (server, server), datamarkers, rows) as (first, second):
        with Writer(lambda: at(server)) as writer:
            silent_s = await killed_and_back(first, second, writer, rows, owners)
        await until(lambda: rows.has_all_of(writer), "all that was committed")
    rows.check(writer)
    assert rows.losses == []
    assert silent_s < 5 * TAKEOVER_S


async def test_an_owner_that_stood_still_is_fenced_when_it_wakes_up(
    folder: Path, server: PostgresServer, datamarkers: str, owners: Owners
) -> None:
    """It has rows in its buffers, and believes that the flows are its own."""
    rows = Rows()
    async with serving(folder, (server, server), datamarkers, rows) as (first, _):
        with Writer(lambda: at(server)) as writer:
            await serves(first, writer, rows, owners)
            first.pause(True)
            await until(lambda: owners.are("p2"), "the second one takes over")
            number = writer.committed[-1]
            await until(lambda: rows.has(number + 50), "the second one goes on")
            first.pause(False)
            await until(lambda: owners.are("p1"), "flows go back")
            number = writer.committed[-1]
            await until(lambda: rows.has(number + 50), "the first one goes on")
        await until(lambda: rows.has_all_of(writer), "all that was committed")
    rows.check(writer)
    assert rows.losses == []


async def test_the_place_of_the_datamarkers_fails_over_too(folder: Path, server: PostgresServer) -> None:
    """Both publishers find the promoted standby by themselves, and own flows under epochs that the lost one never gave."""
    with running_postgres() as lost, running_replica(lost) as promoted:
        lost.create_database("marks")
        lost.execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        place = f"host=127.0.0.1,127.0.0.1 port={lost.port},{promoted.port} user=postgres dbname=marks"
        rows, owners = Rows(), Owners(place)
        async with serving(folder, (server, server), place, rows) as (first, _):
            with Writer(lambda: at(server)) as writer:
                await serves(first, writer, rows, owners)
                before = owners.epochs()
                owners.close()
                lost.kill()
                await asyncio.sleep(TAKEOVER_S)  # nobody knows any more who owns what
                promoted.execute("postgres", "SELECT pg_promote()")
                owners = Owners(place)
                await until(lambda: owners.are("p1") and min(owners.epochs().values()) % EPOCHS_OF_A_TIMELINE > 0, "flows are taken anew")
                number = writer.committed[-1]
                await until(lambda: rows.has(number + 50), "rows come")
            await until(lambda: rows.has_all_of(writer), "all that was committed")
        for shard, epoch in owners.epochs().items():
            assert before[shard] // EPOCHS_OF_A_TIMELINE == 1
            assert epoch // EPOCHS_OF_A_TIMELINE == 2
        owners.close()
    rows.check(writer)
    assert rows.losses == []


@pytest.fixture
def synchronous() -> Iterator[tuple[PostgresServer18, PostgresServer18]]:
    with primary_and_standby(synchronous=True) as servers:
        yield servers


async def test_the_standbys_publisher_goes_on_when_that_of_the_primary_is_killed(
    folder: Path, synchronous: tuple[PostgresServer18, PostgresServer18], datamarkers: str, owners: Owners
) -> None:
    rows = Rows()
    async with serving(folder, synchronous, datamarkers, rows) as (first, second):
        with Writer(lambda: at(synchronous[0])) as writer:
            silent_s = await killed_and_back(first, second, writer, rows, owners)
        await until(lambda: rows.has_all_of(writer), "all that was committed")
    rows.check(writer)
    assert rows.losses == []
    assert silent_s < 5 * TAKEOVER_S


@asynccontextmanager
async def notifying(folder: Path, publishers: tuple[PublisherProcess, ...]) -> AsyncIterator[tuple[Notifier, Settings]]:
    """Roskva's own subscriber, before a real gateway."""
    settings = Settings(data=folder / "service", listen="127.0.0.1:0")
    gateway = Gateway(settings)
    await gateway.start()
    try:
        orders = Orders(gateway.url, application="demo", admin_key=load_keys(settings.data).admin)
        async with Publisher(gateway.url, application="demo") as backend:
            notifier = Notifier(Mapper([parse_mapping(["documents"], ["doc:{id}"])]), backend, orders, HistoryFile(folder / "history"))
            async with subscriber(notifier, publishers, "roskva"):
                yield notifier, settings
        await orders.close()
    finally:
        await gateway.stop()
        for engine in (open_table(settings), open_feed(settings), open_manifest(settings)):
            engine.close()


async def test_the_standby_is_promoted_when_the_primarys_server_is_killed(
    folder: Path, synchronous: tuple[PostgresServer18, PostgresServer18], datamarkers: str, owners: Owners
) -> None:
    """The history changes, no commit that was answered is skipped, and the application of Roskva's own flow has another epoch."""
    primary, standby = synchronous
    rows = Rows()
    async with (
        serving(folder, synchronous, datamarkers, rows, roskva='start = "oldest"') as (first, second),
        notifying(folder, (first, second)) as (notifier, settings),
    ):
        with Writer(lambda: at(primary)) as writer:
            await serves(first, writer, rows, owners)
            await until(lambda: notifier.published > 0, "versions are published")
            writer.connect = lambda: at(standby)
            primary.kill()
            standby.execute("postgres", "SELECT pg_promote()")
            committed = writer.committed[-1]
            await until(lambda: owners.are("p2"), "the flows are handed over")
            await until(lambda: rows.has(committed + 100), "rows of the new primary come")
            await until(lambda: notifier.resets == 1, "the application was reset")
        await until(lambda: rows.has_all_of(writer), "all that was committed")
        published = notifier.published
        await until(lambda: notifier.published == published and notifier.problem is None, "it is quiet")
        assert open_manifest(settings).epoch("demo") == 1
        assert first.ready, "it was not killed"
        assert second.ready
    rows.check(writer)
    assert rows.histories(writer.committed) == {1, 2}


class Reluctant(Rows):
    """Does not acknowledge what came, if it is told not to."""

    acknowledges = True

    def on_token(self, shard: Shard, datamarker: Position) -> bool:
        return self.acknowledges


async def test_a_lost_primary_that_returns_as_a_standby_owns_flows_again_when_its_log_has_what_they_need(
    folder: Path, synchronous: tuple[PostgresServer18, PostgresServer18], datamarkers: str, owners: Owners
) -> None:
    """Its slots are gone, and its publisher makes a new one: what comes before that cannot be read there."""
    primary, standby = synchronous
    rows = Reluctant()
    async with serving(folder, synchronous, datamarkers, rows) as (first, _):
        with Writer(lambda: at(primary)) as writer:
            await serves(first, writer, rows, owners)
            writer.connect = lambda: at(standby)
            primary.kill()
            standby.execute("postgres", "SELECT pg_promote()")
            await until(lambda: owners.are("p2"), "the flows are handed over")
            await until(lambda: min(owners.datamarkers()).history == 2, "the second one goes on")
            losses = list(rows.losses)
            rows.acknowledges = False
            await asyncio.to_thread(lambda: primary.rebuilt_from(standby).start())
            async with snapshots_of(standby):
                await until(lambda: _begins_too_late(owners, "p1"), "the first one can read, and not what the flows need")
            epochs = owners.epochs()
            await asyncio.sleep(STEADY_S + 1.5)  # after which flows go back to whoever is fit
            assert _begins_too_late(owners, "p1")
            assert owners.epochs() == epochs
            rows.acknowledges = True
            await until(lambda: owners.are("p1"), "it is fit, and the flows go back")
            number = writer.committed[-1]
            await until(lambda: rows.has(number + 50), "the first one goes on")
        await until(lambda: rows.has_all_of(writer), "all that was committed")
        assert first.ready, "it was not killed"
    rows.check(writer)
    assert rows.losses == losses


def _begins_too_late(owners: Owners, publisher: str) -> bool:
    reach = owners.reach(publisher)
    return reach is not None and reach.history == 2 and reach.oldest > max(owners.datamarkers())


async def test_what_only_the_lost_primary_had_is_told_as_a_loss_and_nothing_after_it_is_skipped(
    folder: Path, datamarkers: str, owners: Owners
) -> None:
    """Asynchronous replication: the primary's publisher had sent rows, and their datamarkers were stored, that the standby never got."""
    rows = Rows()
    with primary_and_standby(synchronous=False) as (primary, standby):
        async with serving(folder, (primary, standby), datamarkers, rows):
            for number in range(1, 11):
                primary.execute("shop", f"INSERT INTO documents VALUES ({number}, 'x')")
            await until(lambda: owners.are("p1") and rows.has(9) and rows.has(10), "the first one serves")
            standby.execute("postgres", "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
            await until(
                lambda: not primary.execute("postgres", "SELECT 1 FROM pg_stat_replication WHERE application_name = 'standby'"), "cut"
            )
            ((switch,),) = standby.execute("postgres", "SELECT pg_last_wal_receive_lsn() - '0/0'")
            for number in range(11, 21):
                primary.execute("shop", f"INSERT INTO documents VALUES ({number}, 'never replicated')")
            await until(
                lambda: all(rows.has(number) for number in range(11, 21)) and min(owners.datamarkers()).sequence > switch,
                "the undone rows are dealt with",
            )
            primary.kill()
            standby.execute("postgres", "SELECT pg_promote()")
            for number in range(21, 31):
                standby.execute("shop", f"INSERT INTO documents VALUES ({number}, 'after')")
            await until(lambda: all(rows.has(number) for number in range(21, 31)), "all that the new primary has")
    assert {shard for shard, _, _ in rows.losses} == {0, 1}
    assert all(after.history == 1 and upto.history == 2 for _, after, upto in rows.losses)
    assert rows.histories(range(1, 21)) == {1}
    assert rows.histories(range(21, 31)) == {2}
