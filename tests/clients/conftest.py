"""What the tests of the other languages' clients share: one process of Node for all cores of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.stdio import Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    process = Node()
    yield process
    process.close()
