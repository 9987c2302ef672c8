"""The whole query on real Spark, over the embedded engines, with a Registrar stand-in on a real socket."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.config import Settings
from roskva.feed import open_feed
from roskva.feed.interface import DEAD_LETTERS, REGISTRATIONS, UPDATES, Entry
from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, OUTCOME_VERSION, SETTLED, ClientId, Propagation, object_key, partition_of
from roskva.pipeline import checkpoint
from roskva.pipeline.events import DeadLetter, decode_dead_letter
from roskva.pipeline.offsets import FAN_OUT, MATCHING
from roskva.pipeline.query import start
from roskva.registrar.cells import Created, Pending, client_row, created_cell, registration_cells
from roskva.registrar.row import ClientRow
from roskva.table import open_table
from roskva.table.interface import Mutation
from tests.pipeline.standin import RegistrarStandIn, marked, name_in_partition, publish, register, settings_for, wait_until

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
    wait_until(lambda: registrar.told, timeout_s=90, what="the registration's answer")
    assert registrar.told[0][1][2:] == (1 << 32 | 1, OUTCOME_UNKNOWN, 0)
    publish(settings, "first", 7)
    wait_until(lambda: registrar.versions(key, "c1")[1:], what="the update")
    assert registrar.told[-1][1] == ("c1", key, 1 << 32 | 1, OUTCOME_UPDATE, 7)
    register(settings, "c2", "first", 1 << 32 | 5)
    wait_until(lambda: registrar.versions(key, "c2"))
    assert registrar.told[-1][1] == ("c2", key, 1 << 32 | 5, OUTCOME_VERSION, 7)


def test_a_poison_record_becomes_a_dead_letter_and_the_query_lives_on(
    settings: Settings, query: StreamingQuery, registrar: RegistrarStandIn
) -> None:
    key = register(settings, "p", "poisoned", 1 << 32 | 1)
    rubbish = [Entry(key, value, b"demo") for value in (b"\xff\x00", b"{", b'{"object":"poisoned","version":true}')]
    open_feed(settings).append(UPDATES, [*rubbish, Entry(key, b'{"object":"x","version":1}', b"nobody"), Entry(key, b"{}", b"\xff")])
    open_feed(settings).append(REGISTRATIONS, [Entry(key, b"\x00nonsense")])
    publish(settings, "poisoned", 3)
    wait_until(lambda: 3 in registrar.versions(key, "p"), what="the good one")
    assert query.isActive
    wait_until(lambda: len(dead_letters(settings)) == 6, 10, "six dead letters")
    assert {letter.code for letter in dead_letters(settings)} == {"malformed-message", "invalid-version", "unknown-application"}


def test_an_unreachable_registrar_is_written_for_and_later_called_again(
    settings: Settings, query: StreamingQuery, registrar: RegistrarStandIn
) -> None:
    client = ClientId("held")
    row = client_row(client, settings.partitions)
    key = object_key("demo", 0, b"held")
    cells = [created_cell(Created("demo", "held")), *registration_cells(key, 1 << 32 | 1, True, Pending())]
    open_table(settings).write([Mutation(row, cells)])
    register(settings, "held", "held", 1 << 32 | 1)
    wait_until(lambda: registrar.versions(key, "held"), what="the registration")
    registrar.answering.clear()
    publish(settings, "held", 5)

    def stored() -> list[int | None]:
        return [w.version for w in ClientRow(client, open_table(settings).read([row])[row].values()).waiting()]

    wait_until(lambda: stored() == [5], 20, "the blind write")
    assert client in marked(settings)
    registrar.answering.set()
    wait_until(lambda: registrar.probes, 20, "a probe")
    calls = registrar.calls

    def called_again() -> bool:
        publish(settings, "held", 6)
        time.sleep(0.3)
        return registrar.calls > calls

    wait_until(called_again, 20, "a call after the probe")
    assert query.isActive


def test_a_restart_goes_on_from_the_checkpoint_and_a_deleted_commit_repeats_its_batch(
    spark: SparkSession, tmp_path: Path, registrar_of: Callable[[Settings], RegistrarStandIn]
) -> None:
    settings = settings_for(tmp_path)
    registrar = registrar_of(settings)
    key = register(settings, "c", "x", 1 << 32 | 1)
    folder = checkpoint.prepare(settings.data, MATCHING.name)
    running = start(spark, settings, folder)
    wait_until(lambda: registrar.versions(key, "c") == [0], 60, "the registration")
    time.sleep(1.2)  # a batch that follows the last logged one within a second is not logged: it would be repeated, rightly
    publish(settings, "x", 1)
    wait_until(lambda: registrar.versions(key)[-1] == 1, what="version 1")
    wait_until(lambda: newest(folder, "commits") == newest(folder, "offsets") >= 1, 10, "the asynchronous commit")
    running.stop()

    registrar.told.clear()
    publish(settings, "x", 2)
    running = start(spark, settings)
    wait_until(lambda: 2 in registrar.versions(key), what="what came while it was down")
    assert registrar.versions(key) == [2], "and nothing that was done before"
    mine = checkpoint.numbered(checkpoint.base_folder(settings.data, MATCHING.name))[-1]
    assert mine.name == "2"
    wait_until(lambda: newest(mine, "commits") == newest(mine, "offsets") >= 2, 10, "the asynchronous commit")
    running.stop()

    registrar.told.clear()
    (mine / "commits" / str(newest(mine, "commits"))).unlink()
    (folder / "commits" / "99").write_text('v1\n{"nextBatchWatermarkMs":0}')  # an orphan, late, in its own folder
    running = start(spark, settings)
    wait_until(lambda: registrar.told, what="the last batch again")
    running.stop()
    assert registrar.versions(key) == [2]

    registrar.told.clear()
    shutil.rmtree(checkpoint.base_folder(settings.data, MATCHING.name))
    running = start(spark, settings)
    wait_until(lambda: len(registrar.told) >= 2, what="everything, from the oldest record")
    running.stop()
    assert {told.outcome for _, told in registrar.told} == {OUTCOME_UPDATE, OUTCOME_VERSION}
    assert set(registrar.versions(key)) == {2}, "the row knows the latest: nothing old is told"


@pytest.fixture
def registrar_of() -> Iterator[Callable[[Settings], RegistrarStandIn]]:
    started: list[RegistrarStandIn] = []

    def begin(settings: Settings) -> RegistrarStandIn:
        started.append(RegistrarStandIn(settings))
        return started[-1]

    yield begin
    for registrar in started:
        registrar.die()


def test_nobody_waits_for_an_object_with_many_registrations(
    spark: SparkSession, tmp_path: Path, registrar_of: Callable[[Settings], RegistrarStandIn]
) -> None:
    settings = settings_for(tmp_path, fan_out_above=20, propagation_timeout_s=60.0)
    registrar = registrar_of(settings)
    name, beside = "large", name_in_partition(partition_of(object_key("demo", 0, b"large"), settings.partitions))
    large = object_key("demo", 0, name.encode())
    clients = [f"c{number}" for number in range(50)]
    for client in clients:
        register(settings, client, name, 1 << 32 | 1)
    small = register(settings, "c", beside, 1 << 32 | 1)
    matching, fan_out = start(spark, settings), start(spark, settings, stream=FAN_OUT)
    wait_until(lambda: len(registrar.told) == len(clients) + 1, 60, "the registrations")

    registrar.told.clear()
    go_on = threading.Event()

    def answer_later(told: Propagation) -> int:
        if told.object == large:
            go_on.wait(60)
        return SETTLED

    registrar.judge = answer_later
    publish(settings, name, 7)
    wait_until(lambda: len(registrar.versions(large)) == len(clients), what="the fan-out")
    for version in (1, 2, 3):
        publish(settings, beside, version)
        wait_until(lambda: version in registrar.versions(small), 20, "an update beside it, in the same partition")  # noqa: B023
    publish(settings, name, 8)
    assert 8 not in registrar.versions(large), "the walk with 7 is not over"
    go_on.set()
    wait_until(lambda: registrar.versions(large).count(8) == len(clients), what="the next walk")
    matching.stop()
    fan_out.stop()
    assert sorted(registrar.versions(large)) == [7] * len(clients) + [8] * len(clients)


def newest(folder: Path, log: str) -> int:
    return max((int(path.name) for path in (folder / log).glob("[0-9]*")), default=-1)


def dead_letters(settings: Settings) -> list[DeadLetter]:
    feed = open_feed(settings)
    return [decode_dead_letter(record.value) for p in range(feed.partitions) for record in feed.read(DEAD_LETTERS, p, 0, 1_000)]
