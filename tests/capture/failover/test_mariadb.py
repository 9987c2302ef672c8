"""Failover between publishers of a MariaDB primary and its replica, by GTID (Wormhole 3.3.2): nothing that was committed is skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.capture.failover.stage import (
    SHARDS,
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
from tests.capture.stores.servers_mariadb import MariadbServer

pytestmark = pytest.mark.timeout(100)

PEERS: Final = ("p1", "p2")
# A commit is answered only when the replica has it: so nothing that was committed is lost with the primary.
WAITS: Final = ("--rpl-semi-sync-master-enabled=ON", "--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-timeout=60000")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[MariadbServer, MariadbServer]]:
    """A primary, and a replica that has all that it has."""
    primary = MariadbServer(_made(tmp_path / "primary"), 1, WAITS)
    replica = MariadbServer(_made(tmp_path / "replica"), 2, ("--rpl-semi-sync-slave-enabled=ON", "--read-only=ON"))
    try:
        primary.start()
        replica.start()
        primary.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF")  # until there is a replica
        primary.run("CREATE USER copy IDENTIFIED BY 'copy'", "GRANT REPLICATION SLAVE ON *.* TO copy", "CREATE DATABASE shop")
        primary.run("CREATE TABLE documents (id INT PRIMARY KEY, title VARCHAR(100))", database="shop")
        replica.run(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'copy', MASTER_PASSWORD = 'copy',"
            " MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
            "START SLAVE",
        )
        deadline_s = time.monotonic() + 30
        while primary.rows("SELECT @@gtid_binlog_pos") != replica.rows("SELECT @@gtid_binlog_pos"):
            assert time.monotonic() < deadline_s, replica.rows("SHOW SLAVE STATUS")
            time.sleep(0.05)
        primary.run("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        yield primary, replica
    finally:
        for server in (replica, primary):
            if server.process is not None:
                server.kill()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def publishers(folder: Path, servers: tuple[MariadbServer, MariadbServer], datamarkers: str) -> tuple[PublisherProcess, PublisherProcess]:
    first, second = (
        PublisherProcess(folder, name, f'kind = "mariadb"\nport = {server.port}\nuser = "root"', datamarkers, PEERS)
        for name, server in zip(PEERS, servers, strict=True)
    )
    return first, second


def at(server: MariadbServer) -> Any:
    return server.connect("shop", connect_timeout=2, read_timeout=20)


async def test_the_replicas_publisher_goes_on_when_that_of_the_primary_is_killed(
    folder: Path, servers: tuple[MariadbServer, MariadbServer], datamarkers: str, owners: Owners
) -> None:
    both = first, second = publishers(folder, servers, datamarkers)
    rows = Rows()
    async with running(*both), subscriber(rows, both):
        with Writer(lambda: at(servers[0])) as writer:
            silent_s = await killed_and_back(first, second, writer, rows, owners)
        await until(lambda: rows.has_all_of(writer), "all that was committed")
    rows.check(writer)
    assert rows.losses == []
    assert silent_s < 5 * TAKEOVER_S


async def test_the_replica_is_promoted_when_the_primarys_server_is_killed(
    folder: Path, servers: tuple[MariadbServer, MariadbServer], datamarkers: str, owners: Owners
) -> None:
    """The publisher of the primary lives on, and has nothing to read: it hands its flows over."""
    primary, replica = servers
    both = first, _ = publishers(folder, servers, datamarkers)
    rows = Rows()
    async with running(*both), subscriber(rows, both):
        with Writer(lambda: at(primary)) as writer:
            await serves(first, writer, rows, owners)
            writer.connect = lambda: at(replica)
            primary.kill()
            replica.run("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
            committed = writer.committed[-1]
            await until(lambda: owners.are("p2"), "the flows are handed over")
            await until(lambda: rows.has(committed + 100), "rows of the new primary come")
        await until(lambda: rows.has_all_of(writer), "all that was committed")
        assert first.ready, "it was not killed"
    rows.check(writer)
    assert rows.losses == []


@pytest.mark.parametrize("restarted", [False, True], ids=["publishers live on", "all publishers are restarted"])
async def test_a_primary_is_lost_with_commits_that_no_replica_had(
    folder: Path, servers: tuple[MariadbServer, MariadbServer], datamarkers: str, owners: Owners, restarted: bool
) -> None:
    """They were published and acknowledged, and the promoted replica gives their numbers again: subscribers are told of it, once, and get
    all that the new primary writes, as soon as it does, though its numbers are below those of the datamarkers."""
    primary, replica = servers
    both = first, second = publishers(folder, servers, datamarkers)
    rows = Rows()

    def insert(server: MariadbServer, numbers: range) -> None:
        server.run(*(f"INSERT INTO documents VALUES ({number}, 'x')" for number in numbers), database="shop")

    async with running(*both), subscriber(rows, both):
        await until(lambda: owners.are("p1"), "the first owns all flows")
        insert(primary, range(1, 21))
        await until(lambda: primary.rows("SELECT @@gtid_binlog_pos") == replica.rows("SELECT @@gtid_binlog_pos"), "the replica has it")
        replica.run("STOP SLAVE")
        primary.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        insert(primary, range(21, 31))
        await until(lambda: all(map(rows.has, range(1, 31))), "all of it is read")
        await until(lambda: min(owners.datamarkers()) >= min(rows.positions[29], rows.positions[30]), "and acknowledged")
        if restarted:
            first.kill()
            second.kill()
        primary.kill()
        replica.run("RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
        insert(replica, range(101, 104))
        if restarted:
            second.start()
        await until(lambda: all(map(rows.has, range(101, 104))), "what the new primary wrote, before it has come as far as the lost one")
        assert {shard for shard, _, _ in rows.losses} == set(range(SHARDS))
        assert all(after.history == 0 and upto == rows.positions[101]._replace(index=0) for _, after, upto in rows.losses)
        insert(replica, range(104, 131))
        await until(lambda: all(map(rows.has, range(101, 131))), "and all after it")
        assert rows.histories(range(101, 131)) == {1}
        await until(lambda: min(owners.datamarkers()) >= min(rows.positions[129], rows.positions[130]), "acknowledged, too")
        told = len(rows.losses)
        second.kill()
        second.start()
        await until(lambda: second.ready, "it is started once more")
        insert(replica, range(131, 135))
        await until(lambda: all(map(rows.has, range(131, 135))), "it goes on")
        assert len(rows.losses) == told, "it is told once"
