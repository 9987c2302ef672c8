"""The whole query on real Spark, over the embedded engines, with a Registrar stand-in on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, OUTCOME_VERSION
from roskva.pipeline.query import start
from tests.pipeline.standin import RegistrarStandIn, publish, register, settings_for, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_for(tmp_path_factory.mktemp("q"))


@pytest.fixture(scope="module")
def query(spark: SparkSession, settings: Settings) -> Iterator[StreamingQuery]:
    running = start(spark, settings)
    yield running
    running.stop()


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.leave()


def test_an_update_reaches_registered_clients(settings: Settings, query: StreamingQuery, registrar: RegistrarStandIn) -> None:
    key = register(settings, "c1", "first", 1 << 32 | 1)
    wait_until(lambda: registrar.told, what="the registration's answer")
    assert registrar.told[0][1][2:] == (1 << 32 | 1, OUTCOME_UNKNOWN, 0)
    publish(settings, "first", 7)
    wait_until(lambda: registrar.versions(key, "c1")[1:], what="the update")
    assert registrar.told[-1][1] == ("c1", key, 1 << 32 | 1, OUTCOME_UPDATE, 7)
    register(settings, "c2", "first", 1 << 32 | 5)
    wait_until(lambda: registrar.versions(key, "c2"))
    assert registrar.told[-1][1] == ("c2", key, 1 << 32 | 5, OUTCOME_VERSION, 7)
