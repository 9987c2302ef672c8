"""Starts the streaming queries and runs them until they are told to stop.

    matching   updates and registrations of the feed -> Bridge -> Matcher's task -> nothing
    fan-out    what the Matcher handed over, as it has many registrations -> fan-out's task -> nothing

The only file that starts queries. The sink takes nothing: all effects are made in the tasks, which return when nothing is owed, and
only then does Spark count the batch as done. Progress is logged asynchronously, at most once a second and never while idle: a restart
repeats every batch since the last logged one, however long ago that was.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roskva.config import Settings
from roskva.parent import when_parent_is_gone
from roskva.pipeline import checkpoint, health, session
from roskva.pipeline.bridge import bridge
from roskva.pipeline.events import Origin
from roskva.pipeline.fanout import FanOutTask
from roskva.pipeline.matching import MatchTask
from roskva.pipeline.offsets import FAN_OUT, MATCHING, STREAMS, Stream
from roskva.pipeline.source import FEED_FIELDS, NAME, FeedSource, options
from roskva.pipeline.sweeps import jobs
from roskva.pipeline.sweeps.repairs import Repairs
from roskva.pipeline.sweeps.schedule import Schedule
from roskva.pipeline.telling import COUNTS, COUNTS_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_STOP_S: Final = 4.0  # what the JVM gets to end by itself
_LOOK_EVERY_S: Final = 0.2
_LOOK_LATER_S: Final = 1.0  # once it runs; every look is a call into the JVM


def match(rows: DataFrame, settings: Settings) -> DataFrame:
    """Rows of the feed -> one row of counts per task, with the Matcher's work done on the way."""
    return _observed(bridge(rows.drop("key"), settings.applications).mapInArrow(MatchTask(settings), COUNTS_SCHEMA))


def fan_out(rows: DataFrame, settings: Settings) -> DataFrame:
    """Rows of the feed "fan-outs" -> one row of counts per task, with their clients told on the way."""
    return _observed(rows.select(*Origin._fields).mapInArrow(FanOutTask(settings), COUNTS_SCHEMA))


def _observed(counts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return counts.observe(health.METRICS, *(F.sum(name).alias(name) for name in COUNTS))


_TRANSFORMS: Final = {MATCHING: match, FAN_OUT: fan_out}


def start(spark: SparkSession, settings: Settings, folder: Path | None = None, stream: Stream = MATCHING) -> StreamingQuery:
    """Start a query, from the newest checkpoint in a folder of its own if none is given."""
    settings = replace(settings, data=settings.data.resolve())  # workers have a working directory of their own
    folder = folder or checkpoint.prepare(settings.data, stream.name)
    spark.dataSource.register(FeedSource)
    rows = spark.readStream.format(NAME).options(**options(settings, stream)).load()
    return (
        _TRANSFORMS[stream](rows, settings)
        .writeStream.format("noop")
        .option("checkpointLocation", folder.as_uri())
        .option("asyncProgressTrackingEnabled", "true")  # log + commit 20 -> 1 ms a batch
        .option("asyncProgressTrackingCheckpointIntervalMs", "1000")
        .start()
    )


def warm_up(spark: SparkSession, settings: Settings) -> None:
    """Run the matching query's own plan once over no rows: what the first batch would spend on classes, imports and Python workers.

    Without it the first update after a start waits for 6 to 8 s.
    """
    from pyspark.sql import functions as F

    cores = settings.pipeline_cores
    nothing = spark.range(0, cores, numPartitions=cores).where("id < 0")
    rows = nothing.select(*(F.lit(None).cast(field.type).alias(field.name) for field in FEED_FIELDS))
    match(rows, settings).write.format("noop").mode("overwrite").save()


def run(settings: Settings) -> int:
    """Run the pipeline until SIGTERM or SIGINT; 0 if it was stopped, 1 if the query ended by itself."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return _Driver(replace(settings, data=settings.data.resolve()), stop).run()


class _Driver:
    """One life of the pipeline's process."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._spark: SparkSession | None = None
        self._health: health.HealthWriter | None = None
        self._sweeping: threading.Thread | None = None
        when_parent_is_gone(self._end_as_orphan)

    def run(self) -> int:
        from roskva.feed import open_feed
        from roskva.table import open_table

        state, error = health.FAILED, ""
        try:
            self._health = health.HealthWriter(open_table(self._settings), open_feed(self._settings))
            _say("starting Spark")
            self._spark = session.build(self._settings)
            _say("session started")
            warm_up(self._spark, self._settings)
            error = self._run_queries(self._spark, checkpoint.prepare)
            if error and not self._health.batches and not self._stop.is_set():
                # No batch was ever finished. If that was a checkpoint's fault, one without a past helps; if not, it costs repeats.
                log.warning("a query failed at its start; trying once more from the oldest record: %s", error)
                error = self._run_queries(self._spark, checkpoint.prepare_empty)
            state = health.FAILED if error else health.STOPPED
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            log.exception("the pipeline ends")
        finally:
            self._end(state, error)
        if error:
            print(f"pipeline: failed: {error.splitlines()[0]}", file=sys.stderr, flush=True)
        return 1 if error else 0

    def _run_queries(self, spark: SparkSession, prepare: Callable[[Path, str], Path]) -> str:
        """Run the queries until one ends or they are stopped; answers its error, or nothing."""
        assert self._health is not None
        watched: list[health.Watched] = []
        try:
            for stream in STREAMS:
                folder = prepare(self._settings.data, stream.name)
                progress = health.Progress(checkpoint.processed(folder))
                watched.append(health.Watched(start(spark, self._settings, folder, stream), progress))
        except Exception as caught:
            _stop_queries(watched)
            return f"{type(caught).__name__}: {caught}"
        self._health.watch(watched)
        self._start_sweeps(spark)
        queries = [query for query, _ in watched]
        main = queries[0]
        _say("queries started")
        milestones: list[tuple[str, Callable[[], bool]]] = [
            ("ready", lambda: bool(main.status["isTriggerActive"]) or main.lastProgress is not None),
            ("first batch done", lambda: main.lastProgress is not None),
        ]
        while all(query.isActive for query in queries) and not self._stop.wait(_LOOK_EVERY_S if milestones else _LOOK_LATER_S):
            while milestones and milestones[0][1]():
                _say(milestones.pop(0)[0])
        error = ""
        if self._stop.is_set():
            _say("stopping")
        else:
            stream, ended = next((stream, query) for stream, query in zip(STREAMS, queries, strict=True) if not query.isActive)
            error = f"{stream.name}: {ended.exception() or 'the query ended by itself'}"
        _stop_queries(watched)
        return error

    def _start_sweeps(self, spark: SparkSession) -> None:
        from roskva.table import open_manifest, open_table

        if self._sweeping is None:
            settings = self._settings
            repairs = Repairs(open_manifest(settings), open_table(settings), settings, partial(jobs.repair, spark, settings))
            schedule = Schedule(open_table(settings), settings, partial(jobs.sweep, spark, settings), repairs.step)
            self._sweeping = threading.Thread(target=schedule.run, args=(self._stop,), name="sweeps", daemon=True)
            self._sweeping.start()

    def _end(self, state: str, error: str) -> None:
        if self._health is not None:
            with suppress(Exception):
                self._health.finish(state, error)
        if self._spark is not None:
            end_session(self._spark)
        _say("stopped")

    def _end_as_orphan(self) -> None:
        """If whoever started us dies, we must not stay behind and process beside our successor."""
        _say("the parent process is gone")
        if self._spark is not None:
            _kill_jvm(self._spark)
        os._exit(1)


def _stop_queries(watched: Sequence[health.Watched]) -> None:
    """All at once: each waits for its source's wait, or for a task's worker to be ended in the middle of a call."""

    def stop(query: StreamingQuery) -> None:
        with suppress(Exception):
            query.stop()

    stoppers = [threading.Thread(target=stop, args=(query,), daemon=True) for query, _ in watched]
    for stopper in stoppers:
        stopper.start()
    for stopper in stoppers:
        stopper.join(_STOP_S)


def end_session(spark: SparkSession) -> None:
    """Stop the session and its JVM; Spark's Python daemons end with it."""
    jvm = _jvm_of(spark)
    stopper = threading.Thread(target=lambda: _stop_quietly(spark), daemon=True)
    stopper.start()
    stopper.join(_STOP_S)
    if jvm is not None:
        if jvm.stdin is not None:
            with suppress(OSError):
                jvm.stdin.close()  # the JVM ends when its standard input does
        try:
            jvm.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            jvm.kill()


def _stop_quietly(spark: SparkSession) -> None:
    from pyspark import SparkContext

    with suppress(Exception):
        spark.stop()
    with suppress(Exception):
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None


def _jvm_of(spark: SparkSession) -> subprocess.Popen[bytes] | None:
    """The process of the JVM, as pyspark started it."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def _kill_jvm(spark: SparkSession) -> None:
    jvm = _jvm_of(spark)
    if jvm is not None:
        with suppress(OSError):
            jvm.kill()


def _say(what: str) -> None:
    with suppress(OSError):  # whoever listened may be gone
        print(f"pipeline: {what}", flush=True)
