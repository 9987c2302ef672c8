"""Failover between publishers of a MariaDB primary and its replica, by GTID (Wormhole 3.3.2): nothing that was committed is skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

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
