"""One server for all tests of a folder, a database for each, and a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from roskva.capture.stores.binlog.store import BinlogStore
from tests.capture.stores.servers_binlog import BinlogServer


def fixtures_of(made: type[BinlogServer], opened: Callable[[Any], BinlogStore[Any, Any]]) -> tuple[Any, Any, Any]:
    """`server`, `database` and `store`, for a conftest."""
    numbers = count(1)

    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
        server = made(tmp_path_factory.mktemp("server"))
        server.start()
        yield server
        server.kill()

    @pytest.fixture
    def database(server: BinlogServer) -> str:
        name = f"d{next(numbers)}"
        server.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    @pytest.fixture
    def store(server: BinlogServer) -> Iterator[BinlogStore[Any, Any]]:
        store = opened(server.settings())
        yield store
        store.close()

    return server, database, store


@contextmanager
def primary_with_replica(
    made: type[BinlogServer], folders: pytest.TempPathFactory, follow: Callable[[Any, Any], None]
) -> Iterator[tuple[Any, Any]]:
    """The replica has other files than its primary, since its events are smaller."""
    primary = made(folders.mktemp("primary"), server_id=1)
    replica = made(folders.mktemp("replica"), server_id=2, options=["--binlog-row-event-max-size=256"])
    try:
        primary.start()
        replica.start()
        follow(replica, primary)
        yield primary, replica
    finally:
        replica.kill()
        primary.kill()
