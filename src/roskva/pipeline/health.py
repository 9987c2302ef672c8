"""The query's health, for everyone to see: a JSON document in the table, written by a thread of the driver.

Once a second it asks Spark what the query did since, and the feed how far it is behind; it writes when something changed, and every
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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from roskva.pipeline.offsets import SUBSCRIPTION, TOPICS_READ, Positions, from_json
from roskva.table.interface import Cell, Mutation, RowKey, Table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from roskva.feed.interface import Feed

log = logging.getLogger(__name__)

HEALTH_ROW: Final = RowKey("members", 0, b"pipeline")
HEALTH: Final = b"health"
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
    batch: int = -1  # the last one that was finished; -1: none since this start
    batch_finished_ms: int = 0
    durations_ms: dict[str, float] = {}  # of the last 50 batches, the median of each of Spark's phases
    records: int = 0  # processed since this start, repeats included
    lag: dict[str, int] = {}  # records not yet processed, by topic/partition
    counts: dict[str, int] = {}  # what tasks did since this start: dead_letters, blind_writes, retries, ...
    error: str = ""

    @property
    def lag_total(self) -> int:
        return sum(self.lag.values())

    def stalled(self, now_ms: int, stall_s: float) -> bool:
        """It has work and finished no batch for so long, or says nothing any more: whoever supervises it restarts it."""
        since_ms = max(self.batch_finished_ms, self.started_ms)
        silent = now_ms - self.written_ms > 1000 * stall_s
        return silent or (self.lag_total > 0 and now_ms - since_ms > 1000 * stall_s)


def read_health(table: Table) -> Health | None:
    """The last word of the pipeline; None if it never ran here. PartitionUnavailable if the table cannot tell."""
    cell = table.read([HEALTH_ROW], prefix=HEALTH)[HEALTH_ROW].get(HEALTH)
    if cell is None or cell.value is None:
        return None
    try:
        return msgspec.json.decode(cell.value, type=Health)
    except msgspec.DecodeError:
        return None  # of another version of the service


class Progress:
    """What the query did since this start, gathered from Spark's progress reports. Pure, so that it can be tested without Spark."""

    def __init__(self, processed: Positions | None = None) -> None:
        self.batch = -1
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


class HealthWriter:
    """Watches a query and writes its health. `finish` says the last word."""

    def __init__(self, table: Table, feed: Feed, boot: str | None = None) -> None:
        self._table = table
        self._feed = feed
        self._boot = boot or secrets.token_hex(8)
        self._started_ms = _now_ms()
        self._query: StreamingQuery | None = None
        # Until the first batch is done, what the feed knows of the predecessor is the best guess of where this query stands.
        self._progress = Progress({(t, p): at for t in TOPICS_READ for p, at in feed.committed(SUBSCRIPTION, t).items()})
        self._counter = 0
        self._written: Health | None = None
        self._written_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    @property
    def batch(self) -> int:
        return self._progress.batch

    def watch(self, query: StreamingQuery) -> None:
        self._query = query

    def finish(self, state: str, error: str = "") -> None:
        self._ended.set()
        self._thread.join(_LOOK_EVERY_S + 1)
        self._write(self._look(state, error))

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                query = self._query
                if query is not None:
                    self._take_reports(query)
                health = self._look(STARTING if query is None else RUNNING)
                old = self._written
                changed = old is None or msgspec.structs.replace(health, written_ms=old.written_ms) != old
                if changed or time.monotonic() - self._written_s >= _WRITE_EVERY_S:
                    self._write(health)
            except Exception as error:
                log.warning("the pipeline's health cannot be told now: %s", error)
            self._ended.wait(_LOOK_EVERY_S)

    def _take_reports(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or last.batchId <= self._progress.batch:
            return
        now_ms = _now_ms()
        for report in query.recentProgress:
            self._progress.take(msgspec.json.decode(report.json), now_ms)

    def _look(self, state: str, error: str = "") -> Health:
        progress = self._progress
        newest = {(topic, p): at for topic in TOPICS_READ for p, at in self._feed.newest(topic).items()}
        oldest = {(topic, p): at for topic in TOPICS_READ for p, at in self._feed.oldest(topic).items()}
        return Health(
            boot=self._boot,
            pid=os.getpid(),
            state=state,
            started_ms=self._started_ms,
            written_ms=_now_ms(),
            batch=progress.batch,
            batch_finished_ms=progress.finished_ms,
            durations_ms=progress.durations_ms(),
            records=progress.records,
            lag=progress.lag(oldest, newest),
            counts=dict(progress.counts),
            error=error,
        )

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
