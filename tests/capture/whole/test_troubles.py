"""A publisher of a real Postgres while its disk is full, its network cut, its right taken away: nothing is skipped, and it says why."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from roskva.capture.positions import Position
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from tests.capture.stores.servers_postgres import PostgresServer, free_port, running_postgres
from tests.capture.whole.part import WAIT_S, Part, publishing
from tests.capture.whole.wire_cut import Line

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


class Shop:
    """A database of the server, with one table; numbers are written to it, each in a transaction of its own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        server.create_database(name)
        server.execute(name, "CREATE TABLE documents (id int PRIMARY KEY)", "CREATE PUBLICATION roskva FOR TABLE documents")
        self._written = 0

    def settings(self, port: int = 0, user: str = "postgres", tables: tuple[str, ...] = ()) -> str:
        dsn = f"host=127.0.0.1 port={port or self.server.port} user={user} dbname={self.name}"
        named = f"\ntables = {list(tables)}" if tables else ""
        return f"kind = 'postgres'\ndsn = '{dsn}'\nslot = '{self.name}'{named}"

    def write(self, count: int) -> list[int]:
        """All numbers so far."""
        values = range(self._written, self._written + count)
        self._written += count
        self.server.execute(self.name, *(f"INSERT INTO documents VALUES ({number})" for number in values))
        return list(range(self._written))


class Kept(Callbacks):
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.losses = 0

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.losses += 1

    def on_update(self, update: Update) -> None:
        number = update.change.key["id"]
        assert isinstance(number, int)
        self.numbers.append(number)

    def in_order(self) -> list[int]:
        """Without what came again."""
        return list(dict.fromkeys(self.numbers))


@contextlib.asynccontextmanager
async def kept_from(part: Part, address: str = "") -> AsyncIterator[Kept]:
    kept = Kept()
    await asyncio.to_thread(part.reads)
    async with Subscriber("watch", part.key(), [address or part.address], kept, "tests", reconnect_s_max=0.2, beat_s=1.0):
        yield kept


async def until(true: Callable[[], object], what: Callable[[], object], wait_s: float = WAIT_S) -> None:
    try:
        async with asyncio.timeout(wait_s):
            while not await asyncio.to_thread(true):
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(str(what()))


def datamarker(part: Part) -> str:
    status = part.status()
    return "" if status is None or not status["flows"] else str(status["flows"][0]["stored"])


async def test_while_the_disk_is_full_updates_go_on_and_status_says_that_no_datamarker_is_stored(server: PostgresServer) -> None:
    """The kernel refuses every write of the process beyond a size that its files have already: as a full disk does, for it alone."""
    shop = Shop(server, "full")
    with publishing(shop.settings()) as part:
        async with kept_from(part) as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
            before = resource.prlimit(part.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(part.pid, resource.RLIMIT_FSIZE, (1, before[1]))
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
            await until(lambda: "datamarkers" in part.problems(), part.status)
            stuck = datamarker(part)
            numbers = shop.write(300)
            await until(lambda: kept.in_order() == numbers, part.said)
            assert datamarker(part) == stuck
            resource.prlimit(part.pid, resource.RLIMIT_FSIZE, before)
            await until(lambda: not part.problems() and datamarker(part) > stuck, part.status)
        assert part.stop() == 0


async def test_after_a_network_cut_to_the_database_reading_goes_on_where_it_was(server: PostgresServer) -> None:
    shop = Shop(server, "cut")
    with Line(server.port) as line, publishing(shop.settings(line.port)) as part:
        async with kept_from(part) as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
            for _ in range(2):
                line.cut()
                numbers = shop.write(5)
                await until(lambda: "cut at 127.0.0.1" in part.problems(), part.status)
                assert kept.in_order() == numbers[:-5]
                line.mend()
                await until(lambda: kept.in_order() == numbers, part.said)  # noqa: B023 - it is awaited here
        assert part.stop() == 0


async def test_a_line_to_the_publisher_that_carries_nothing_more_is_given_up_and_another_made(server: PostgresServer) -> None:
    """Half open: neither side hears that the other is gone."""
    shop = Shop(server, "silent")
    port = free_port()
    with Line(port) as line, publishing(shop.settings(), f"127.0.0.1:{port}") as part:
        async with kept_from(part, f"127.0.0.1:{line.port}") as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
            line.silence()
            numbers = shop.write(5)
            await asyncio.sleep(1.0)
            assert kept.in_order() == numbers[:-5]
            await until(lambda: kept.in_order() == numbers, part.status)
        assert part.stop() == 0


async def test_a_right_that_is_taken_away_is_named_with_its_remedy_and_nothing_is_skipped_until_it_is_back(server: PostgresServer) -> None:
    shop = Shop(server, "barred")
    server.execute(shop.name, "CREATE ROLE reader LOGIN REPLICATION")
    with publishing(shop.settings(user="reader")) as part:
        async with kept_from(part) as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
            server.execute(
                shop.name,
                "ALTER ROLE reader NOREPLICATION",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'",
            )
            numbers = shop.write(5)
            await until(lambda: 'ALTER ROLE "reader" REPLICATION' in part.problems(), part.status)
            assert kept.in_order() == numbers[:-5]
            server.execute(shop.name, "ALTER ROLE reader REPLICATION")
            await until(lambda: kept.in_order() == numbers, part.said)
            await until(lambda: not part.problems(), part.status)
        assert part.stop() == 0


async def test_a_table_that_is_dropped_while_no_publisher_runs_stops_no_other_table(server: PostgresServer) -> None:
    """A migration that swaps it, and a publisher that is killed in the middle of that."""
    shop = Shop(server, "swapped")
    server.execute(shop.name, "CREATE TABLE users (id int PRIMARY KEY)", "ALTER PUBLICATION roskva ADD TABLE users")
    with publishing(shop.settings(tables=("documents", "users"))) as part:
        async with kept_from(part) as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
        part.kill()
        server.execute(shop.name, "DROP TABLE users", "CREATE TABLE users_new (id int PRIMARY KEY)")
        numbers = shop.write(3)
        part.start()
        async with kept_from(part) as again:
            await until(lambda: again.in_order()[-3:] == numbers[-3:], part.said)
            await until(lambda: "no table 'users'" in part.problems(), part.status)
            assert again.losses == 0
            server.execute(shop.name, "INSERT INTO users_new VALUES (100)", "ALTER TABLE users_new RENAME TO users")
            await until(lambda: again.losses == 1, part.status)
            server.execute(shop.name, "INSERT INTO users VALUES (101)")
            numbers = shop.write(3)
            await until(lambda: again.in_order()[-4:] == [101, *numbers[-3:]], part.said)
            await until(lambda: not part.problems(), part.status)
        assert part.stop() == 0


async def test_a_first_start_without_a_table_is_refused_and_leaves_no_slot(server: PostgresServer) -> None:
    shop = Shop(server, "mistaken")
    with publishing(shop.settings(tables=("documents", "user"))) as part:
        assert await asyncio.to_thread(part.ended) == 2
        assert "no table 'user'" in part.said()
    assert server.execute(shop.name, "SELECT FROM pg_replication_slots WHERE slot_name = 'mistaken'") == []


async def test_a_start_without_the_right_to_connect_waits_until_it_is_back(server: PostgresServer) -> None:
    shop = Shop(server, "locked")
    server.execute(shop.name, "CREATE ROLE keeper LOGIN REPLICATION")
    with publishing(shop.settings(user="keeper")) as part:
        async with kept_from(part) as kept:
            numbers = shop.write(3)
            await until(lambda: kept.in_order() == numbers, part.said)
        part.kill()
        server.execute(shop.name, "ALTER ROLE keeper NOLOGIN")
        numbers = shop.write(3)
        part.start()
        await until(lambda: 'ALTER ROLE "keeper" LOGIN' in part.said(), part.said)
        server.execute(shop.name, "ALTER ROLE keeper LOGIN")
        async with kept_from(part) as again:
            await until(lambda: again.in_order()[-3:] == numbers[-3:], part.said)
        assert part.stop() == 0
