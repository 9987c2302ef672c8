"""A place for the datamarkers that is on none of the servers that are captured."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.failover.stage import Owners, folder_for_sockets
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres

_fresh = itertools.count()


@pytest.fixture(scope="module")
def server_of_datamarkers() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def datamarkers(server_of_datamarkers: PostgresServer) -> str:
    name = f"marks{next(_fresh)}"
    server_of_datamarkers.create_database(name)
    return server_of_datamarkers.dsn(name)


@pytest.fixture
def owners(datamarkers: str) -> Iterator[Owners]:
    owners = Owners(datamarkers)
    yield owners
    owners.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_sockets() as folder:
        yield folder
