"""The pipeline's health, for everyone to see: a JSON document in the table, written by a thread of the driver.

Once a second it asks Spark what the queries did since, and the feed how far they are behind; it writes when something changed, and every
five seconds anyway. It asks Spark instead of being told by a listener: that runs on the scheduler's thread and crosses to Python in
every batch. What tasks counted arrives as the query's observed metrics. Imports no Spark.
"""

from __future__ import annotations

import logging
import os
import secrets
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from roskva.pipeline.offsets import FAN_OUT, STREAMS, SUBSCRIPTION, Positions, from_json
from roskva.table.interface import Cell, Mutation, RowKey, Table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from roskva.feed.interface import Feed

log = logging.getLogger(__name__)

HEALTH_ROW: Final = RowKey("members", 0, b"pipeline")
HEALTH: Final = b"health"
ROUNDS: Final = b"rounds"  # its timestamp counts the pages that fan-outs have told, about one a second
METRICS: Final = "counts"  # the name of the observed metrics

STARTING: Final = "starting"
RUNNING: Final = "running"
FAILED: Final = "failed"
STOPPED: Final = "stopped"

_LOOK_EVERY_S: Final = 1.0
_WRITE_EVERY_S: Final = 5.0
_DURATIONS_KEPT: Final = 50


class Health(msgspec.Struct, frozen=True):
    """What the pipeline says about itself. Times are of its own clock."""

    boot: str
    pid: int
    state: str  # starting, running, failed or stopped
    started_ms: int
    written_ms: int
    batch: int = -1  # of the matching query, the last one that was finished; -1: none since this start
    batch_finished_ms: int = 0
    durations_ms: dict[str, float] = {}  # of the last 50 batches, the median of each of Spark's phases
    steps: dict[str, int] = {}  # by query: moves whenever it did something, a batch or a page of a fan-out
    records: int = 0  # processed since this start, repeats included
    lag: dict[str, int] = {}  # records not yet processed, by topic/partition
    counts: dict[str, int] = {}  # what tasks did since this start: dead_letters, blind_writes, retries, ...
    error: str = ""

    @property
    def lag_total(self) -> int:
        return sum(self.lag.values())


def read_health(table: Table) -> Health | None:
    """The last word of the pipeline; None if it never ran here. PartitionUnavailable if the table cannot tell."""
    cell = table.read([HEALTH_ROW], prefix=HEALTH)[HEALTH_ROW].get(HEALTH)
    if cell is None or cell.value is None:
        return None
    try:
        return msgspec.json.decode(cell.value, type=Health)
    except msgspec.DecodeError:
        return None  # of another version of the service


def count_round(table: Table) -> None:
    """Say from a task that a long fan-out moves. Lost counts do no harm: it is asked only whether it moved."""
    table.write([Mutation(HEALTH_ROW, [Cell(ROUNDS, _rounds(table) + 1, b"")])])


def _rounds(table: Table) -> int:
    cell = table.read([HEALTH_ROW], prefix=ROUNDS)[HEALTH_ROW].get(ROUNDS)
    return 0 if cell is None else cell.timestamp


class Progress:
    """What a query did since this start, gathered from Spark's progress reports. Pure, so that it can be tested without Spark."""

    def __init__(self, processed: Positions | None = None) -> None:
        self.batch = -1
        self.batches = 0
        self.finished_ms = 0
        self.records = 0
        self.counts: dict[str, int] = {}
        self.processed = dict(processed or {})
        self._durations: deque[Mapping[str, float]] = deque(maxlen=_DURATIONS_KEPT)

    def take(self, report: Mapping[str, Any], now_ms: int) -> bool:
        """Take one report, as Spark's JSON; answers whether it is of a batch not yet seen."""
        if report["batchId"] <= self.batch or "addBatch" not in report["durationMs"]:
            return False
        self.batch = report["batchId"]
        self.batches += 1
        self.finished_ms = now_ms
        self.records += report["numInputRows"]
        self._durations.append(report["durationMs"])
        for name, count in (report.get("observedMetrics", {}).get(METRICS) or {}).items():
            self.counts[name] = self.counts.get(name, 0) + (count or 0)
        for source in report["sources"]:
            self.processed.update(from_json(source["endOffset"]))
        return True

    def durations_ms(self) -> dict[str, float]:
        phases = sorted({phase for durations in self._durations for phase in durations})
        return {phase: statistics.median(d[phase] for d in self._durations if phase in d) for phase in phases}

    def lag(self, oldest: Positions, newest: Positions) -> dict[str, int]:
        behind = {}
        for place, last in newest.items():
            done = self.processed.get(place)
            begin = done.offset if done is not None and done.incarnation == last.incarnation else oldest[place].offset
            behind[f"{place[0]}/{place[1]}"] = max(0, last.offset - begin)
        return behind


class Watched(NamedTuple):
    """A query, and what is known of its progress."""

    query: StreamingQuery
    progress: Progress


class HealthWriter:
    """Watches the queries and writes their health. `finish` says the last word."""

    def __init__(self, table: Table, feed: Feed, boot: str | None = None) -> None:
        self._table = table
        self._feed = feed
        self._boot = boot or secrets.token_hex(8)
        self._started_ms = _now_ms()
        self._watched: Sequence[Watched] = ()
        self._counter = 0
        self._written: Health | None = None
        self._written_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    @property
    def batches(self) -> int:
        """How many were finished since this start."""
        return sum(watched.progress.batches for watched in self._watched)

    def watch(self, watched: Sequence[Watched]) -> None:
        """From now on, tell of these: the matching query first."""
        self._watched = tuple(watched)

    def finish(self, state: str, error: str = "") -> None:
        self._ended.set()
        self._thread.join(_LOOK_EVERY_S + 1)
        self._write(self._look(state, error))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for query, progress in self._watched:
                    _take_reports(query, progress)
                health = self._look(RUNNING if self._watched else STARTING)
                old = self._written
                changed = old is None or msgspec.structs.replace(health, written_ms=old.written_ms) != old
                if changed or time.monotonic() - self._written_s >= _WRITE_EVERY_S:
                    self._write(health)
            except Exception as error:
                log.warning("the pipeline's health cannot be told now: %s", error)
            self._ended.wait(_LOOK_EVERY_S)

    def _look(self, state: str, error: str = "") -> Health:
        of_queries = [progress for _, progress in self._watched]
        main = of_queries[0] if of_queries else Progress()
        return Health(
            boot=self._boot,
            pid=os.getpid(),
            state=state,
            started_ms=self._started_ms,
            written_ms=_now_ms(),
            batch=main.batch,
            batch_finished_ms=main.finished_ms,
            durations_ms=main.durations_ms(),
            steps=self._steps(of_queries),
            records=sum(progress.records for progress in of_queries),
            lag=self._lag(of_queries),
            counts={
                name: sum(p.counts.get(name, 0) for p in of_queries) for name in sorted({name for p in of_queries for name in p.counts})
            },
            error=error,
        )

    def _steps(self, of_queries: Sequence[Progress]) -> dict[str, int]:
        steps = {stream.name: progress.batches for stream, progress in zip(STREAMS, of_queries, strict=False)}
        if FAN_OUT.name in steps:
            steps[FAN_OUT.name] += _rounds(self._table)
        return steps

    def _lag(self, of_queries: Sequence[Progress]) -> dict[str, int]:
        behind: dict[str, int] = {}
        for index, stream in enumerate(STREAMS):
            newest = {(topic, p): at for topic in stream.topics for p, at in self._feed.newest(topic).items()}
            oldest = {(topic, p): at for topic in stream.topics for p, at in self._feed.oldest(topic).items()}
            if of_queries:
                progress = of_queries[index]
            else:  # what the feed heard from the predecessor is the best guess of where this one will begin
                progress = Progress({(t, p): at for t in stream.topics for p, at in self._feed.committed(SUBSCRIPTION, t).items()})
            behind |= progress.lag(oldest, newest)
        return behind

    def _write(self, health: Health) -> None:
        # Timestamps of cells are counters, not clocks: it begins above what the predecessor wrote, so that a clock set back cannot
        # make this one's words lose against older ones.
        if self._counter == 0:
            old = self._table.read([HEALTH_ROW], prefix=HEALTH)[HEALTH_ROW].get(HEALTH)
            self._counter = max(_now_ms(), 0 if old is None else old.timestamp)
        self._counter += 1
        self._table.write([Mutation(HEALTH_ROW, [Cell(HEALTH, self._counter, msgspec.json.encode(health))])])
        self._written = health
        self._written_s = time.monotonic()


def _take_reports(query: StreamingQuery, progress: Progress) -> None:
    last = query.lastProgress
    if last is None or last.batchId <= progress.batch:
        return
    now_ms = _now_ms()
    for report in query.recentProgress:
        progress.take(msgspec.json.decode(report.json), now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
