"""One service for the tests that leave it as they found it; those that kill or stop it start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("e2e") / "data").start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """A service of one test, which may break it."""
    service = Service(tmp_path / "data").start()
    try:
        yield service
    finally:
        service.stop()
