"""One server for all tests of this folder, a database for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from roskva.capture.stores.mariadb import MariadbStore
from tests.capture.stores.servers_mariadb import MariadbServer

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    server = MariadbServer(tmp_path_factory.mktemp("mariadb"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def database(server: MariadbServer) -> str:
    name = f"d{next(_NUMBERS)}"
    server.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return name


@pytest.fixture
def store(server: MariadbServer) -> Iterator[MariadbStore]:
    store = MariadbStore(server.settings())
    yield store
    store.close()
