"""The source in real Spark: rows, exactly once into a checkpointed sink, and nothing that shows the key."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.capture.stores.file_lines import Entry
from roskva.capture.updates import Operation
from tests.capture.spark.driver import into_files, session, updates
from tests.capture.spark.service import KEY, ROOT, Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(240)]

KILLS = 1  # of a whole driver; each costs a start of Spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from roskva.pipeline.query import end_session

    spark = session(tmp_path_factory.mktemp("s"))
    yield spark
    end_session(spark)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as service:
        yield service


def wait_until(condition: Callable[[], object], query: StreamingQuery | None = None, timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert query is None or query.isActive, query.exception()
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s"
        time.sleep(0.05)


class Sink:
    """Takes each batch once, by its number, as a sink that knows them does; a repeated one must be the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches: dict[int, list[tuple[int, int, int]]] = {}  # (shard, sequence, id)
        self.repeated: list[int] = []
        self.different: list[int] = []

    def start(self, rows: DataFrame, available_now: bool = False) -> StreamingQuery:
        writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _take(self, batch: DataFrame, number: int) -> None:
        rows = [(row.shard, row.sequence, int(row.key["id"])) for row in batch.collect()]
        if number in self.batches:
            self.repeated.append(number)
            if self.batches[number] != rows:
                self.different.append(number)
        self.batches[number] = rows

    def ids(self) -> dict[int, list[int]]:
        """Of each shard, in the order in which they came."""
        found: dict[int, list[int]] = {}
        for number in sorted(self.batches):
            for shard, _, one in self.batches[number]:
                found.setdefault(shard, []).append(one)
        return found

    def count(self) -> int:
        return sum(map(len, self.batches.values()))


def every(service: Service) -> dict[int, list[int]]:
    return {shard: list(range(shard, service.written, service.shards)) for shard in range(service.shards)}


@contextlib.contextmanager
def written_meanwhile(service: Service) -> Iterator[None]:
    """Some updates at a time, all the while; not more than Spark can follow on a busy machine."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.1):
            service.write(10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def commits(folder: Path) -> list[int]:
    found = folder / "checkpoint" / "commits"
    return sorted(int(file.name) for file in found.iterdir() if file.name.isdigit()) if found.is_dir() else []


def test_rows_have_the_columns_that_are_documented_and_plans_do_not_show_the_key(spark: SparkSession, service: Service) -> None:
    from pyspark.sql import functions as f

    service.write_entries(
        [
            Entry(Operation.INSERT, "photos", {"id": 4}, {"id": 4, "photo": b"\xff\x00", "size": 1.5, "public": True, "album": None}),
            Entry(Operation.UPDATE, "photos", {"id": 8}, {"id": 8}, {"id": 4}, ("photo",), {"who": "me"}),
            Entry(Operation.TRUNCATE, "albums"),
        ]
    )
    rows = updates(spark, service.options)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        rows.explain(True)
    columns = f.col("columns")
    typed = rows.where("shard = 0").select(
        "database", "table", "operation", "key", "old_key", "attached", "unchanged", "base64", "history", "index",
        f.unbase64(columns["photo"]).alias("photo"),
        columns["size"].cast("double").alias("size"),
        columns["public"].cast("boolean").alias("public"),
        columns["album"].alias("album"),
        (f.col("committed_at") > f.timestamp_seconds(f.lit(1_700_000_000))).alias("recent"),
    )  # fmt: skip
    query = typed.writeStream.format("memory").queryName("photos").start()
    try:
        wait_until(lambda: spark.table("photos").count() == 3, query)
        with contextlib.redirect_stdout(shown):
            query.explain(True)
    finally:
        query.stop()
    first, second, third = (row.asDict() for row in spark.table("photos").collect())
    assert first == {
        "database": "shop", "table": "photos", "operation": "insert", "key": {"id": "4"}, "old_key": None, "attached": None,
        "unchanged": [], "base64": ["columns.photo"], "history": 0, "index": 1, "photo": b"\xff\x00", "size": 1.5, "public": True,
        "album": None, "recent": True,
    }  # fmt: skip
    assert (second["key"], second["old_key"]) == ({"id": "8"}, {"id": "4"})
    assert (second["unchanged"], second["attached"]) == (["photo"], {"who": "me"})
    assert (third["operation"], third["table"], third["key"]) == ("truncate", "albums", {})
    assert "application=lake" in shown.getvalue()
    assert KEY not in shown.getvalue()


def test_a_deleted_commit_repeats_exactly_its_batch(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    rows = updates(spark, service.options)
    query = sink.start(rows)
    for _ in range(3):
        service.write(40)
        wait_until(lambda: sink.count() >= service.written, query)
    wait_until(lambda: commits(tmp_path)[-1:] == [max(sink.batches)], query)
    query.stop()
    newest = commits(tmp_path)[-1]
    (tmp_path / "checkpoint" / "commits" / str(newest)).unlink()
    service.kill()
    service.start()
    query = sink.start(rows)
    service.write(40)
    wait_until(lambda: sink.count() >= service.written, query)
    query.stop()
    assert sink.batches[newest]
    assert sink.repeated == [newest]
    assert sink.different == []
    assert sink.ids() == every(service)


def test_a_query_of_what_is_available_now_ends_and_the_next_goes_on(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    rows = updates(spark, {**service.options, "idleSeconds": "1", "maxUpdatesPerBatch": "25"})
    for _ in range(2):
        service.write(40)
        assert sink.start(rows, available_now=True).awaitTermination(60)
        assert sink.ids() == every(service)
    assert len(sink.batches) >= 4
    assert sink.repeated == []


def test_a_driver_that_was_killed_in_mid_stream_leaves_every_update_once(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    options = {**service.options, "maxUpdatesPerBatch": "1000"}
    with written_meanwhile(service):
        for kill in range(KILLS):
            done = len(commits(tmp_path))
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.capture.spark.driver", str(tmp_path), json.dumps(options)], cwd=ROOT, start_new_session=True
            )
            try:
                wait_until(lambda: len(commits(tmp_path)) > done + 1)  # noqa: B023
                if kill == 0:
                    service.kill()
                    service.start()
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(10)
    query = into_files(updates(spark, options), tmp_path)

    def came() -> int:
        """As the offsets say, which Spark shows with its progress."""
        progress = query.lastProgress
        end = progress and json.loads(progress.sources[0].endOffset or "null")
        return sum(reached["updates"] for reached in end["shards"].values()) if end else 0

    wait_until(lambda: came() >= service.written, query)
    query.stop()
    rows = spark.read.parquet(str(tmp_path / "sink")).select("shard", "history", "sequence", "index", "key.id").collect()
    ordered = sorted((row.shard, row.history, row.sequence, row.index, int(row.id)) for row in rows)
    found = {shard: [row[-1] for row in some] for shard, some in itertools.groupby(ordered, key=lambda row: row[0])}
    assert found == every(service)


def test_the_python_processes_of_spark_may_die_at_any_time(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    """The last of this file: whoever loads a source next need not meet what is left of them in the JVM."""
    sink = Sink(tmp_path)
    rows = updates(spark, service.options)
    with written_meanwhile(service):
        for _ in range(3):
            before = sink.count()
            query = sink.start(rows)
            wait_until(lambda: sink.count() > before, query)  # noqa: B023
            kill_python_of(spark)
            with contextlib.suppress(Exception):
                query.awaitTermination(30)
            query.stop()
    query = sink.start(rows)
    wait_until(lambda: sink.count() >= service.written, query)
    query.stop()
    assert sink.different == []
    assert sink.ids() == every(service)


def kill_python_of(spark: SparkSession) -> None:
    """The process that plans and all workers, with -9. Not Spark's own daemons, which fork the workers: a JVM whose daemon is gone now and
    then cannot discard that one's idle workers ("Stream closed"), and then fails whatever asked for a worker.
    """
    assert spark.sparkContext._gateway is not None
    jvm: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc
    killed = []
    for process in _descendants(jvm.pid):
        with contextlib.suppress(OSError):
            command = Path("/proc", str(process), "cmdline").read_bytes()
            plans = b"python_streaming_source_runner" in command
            forked = b"pyspark.daemon" in command and _parent(process) != jvm.pid
            if plans or forked:
                os.kill(process, signal.SIGKILL)
                killed.append(plans)
    assert any(killed), "no process plans"


def _parent(process: int) -> int:
    return int(Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[1])


def _descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            process_id = int(stat.parent.name)
            children.setdefault(_parent(process_id), []).append(process_id)
    found, waiting = [], [process]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
