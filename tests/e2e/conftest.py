"""One service for the tests that leave it as they found it; another for those that break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .load import Backend
from .service import Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    # One gateway, on a machine with any number of cores.
    service = Service(tmp_path_factory.mktemp("e2e") / "data", "--gateways", "1", by_make=True).start()
    try:
        yield service
    finally:
        took_s = service.stop()
    assert took_s < 10.0, "Ctrl-C stops it within ten seconds"


@pytest.fixture(scope="package")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for those that kill its parts and delete its files. They begin when it is whole, and leave it whole; the last one kills it.

    It has two gateways on its port: what holds for them holds for one.
    """
    service = Service(tmp_path_factory.mktemp("breakable") / "data", "--gateways", "2").start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="package")
def backend(breakable: Service) -> Backend:
    """The application behind that service: what it published once, it never publishes again."""
    return Backend()
