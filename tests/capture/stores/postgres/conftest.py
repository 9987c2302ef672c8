"""One server for all tests of a file, and for each test a database of its own in it, with its own slot and publication."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.capture.stores.postgres.place import Place
from tests.capture.stores.servers_postgres import PostgresServer, running_postgres

_fresh = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def place(server: PostgresServer) -> Iterator[Place]:
    """With the table documents (id, title), prepared."""
    place = Place(server, f"d{next(_fresh)}")
    place.execute("CREATE TABLE documents (id int PRIMARY KEY, title text)")
    place.store.prepare()
    yield place
    place.close()
