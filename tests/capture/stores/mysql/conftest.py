"""One server for all tests of this folder, a database for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from roskva.capture.stores.mysql import MysqlStore
from tests.capture.stores.servers_mysql import MysqlServer

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    server = MysqlServer(tmp_path_factory.mktemp("mysql"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def database(server: MysqlServer) -> str:
    name = f"d{next(_NUMBERS)}"
    server.run(f"CREATE DATABASE {name}")
    return name


@pytest.fixture
def store(server: MysqlServer) -> Iterator[MysqlStore]:
    store = MysqlStore(server.settings())
    yield store
    store.close()
