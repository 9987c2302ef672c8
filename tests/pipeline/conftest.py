"""One Spark session for all tests of the pipeline in this process: it takes eight seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.pipeline.standin import settings_for


@pytest.fixture(scope="package", autouse=True)
def engines_closed() -> Iterator[None]:
    """Engines stay open per process and data directory; the tests' directories are gone at the end."""
    from roskva.feed import opening

    yield
    for opened in opening._feeds.values():
        opened.close()
    opening._feeds.clear()


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from roskva.pipeline.query import end_session
    from roskva.pipeline.session import build

    session = build(settings_for(tmp_path_factory.mktemp("s")))
    yield session
    end_session(session)
