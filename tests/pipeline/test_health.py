"""What the pipeline says about itself, without Spark: the reports are as Spark writes them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from roskva.feed import open_feed
from roskva.feed.interface import FAN_OUTS, Entry, Position
from roskva.model import object_key
from roskva.pipeline.health import FAILED, HEALTH, HEALTH_ROW, STARTING, HealthWriter, Progress, Watched, count_round, read_health
from roskva.table import open_table
from roskva.table.interface import Cell, Mutation
from tests.pipeline.standin import name_in_partition, publish, settings_for, wait_until


def report(batch: int, rows: int = 3, trigger: int = 50, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 40, "triggerExecution": trigger},
        "sources": [{"endOffset": {"updates": {"0": [1, 10 + batch]}}}],
        "observedMetrics": {"counts": {"updates": rows, "dead_letters": None}},
        **more,
    }


def test_reports_are_counted_once() -> None:
    progress = Progress()
    assert progress.take(report(0, trigger=10), 1000)
    assert progress.take(report(1, trigger=30), 2000)
    assert not progress.take(report(1), 3000)
    assert not progress.take(report(2, durationMs={"latestOffset": 1}), 3000), "an idle report is not a batch"
    assert (progress.batch, progress.finished_ms, progress.records, progress.counts) == (1, 2000, 6, {"updates": 6, "dead_letters": 0})
    assert progress.durations_ms() == {"addBatch": 40, "triggerExecution": 20}


def test_lag_is_what_is_newer_than_the_last_batch_of_this_incarnation() -> None:
    progress = Progress()
    progress.take(report(0), 0)
    oldest = {("updates", 0): Position(1, 2), ("updates", 1): Position(1, 2)}
    newest = {("updates", 0): Position(1, 15), ("updates", 1): Position(1, 5)}
    assert progress.lag(oldest, newest) == {"updates/0": 5, "updates/1": 3}
    assert progress.lag({("updates", 0): Position(2, 0)}, {("updates", 0): Position(2, 4)}) == {"updates/0": 4}


def test_lag_counts_from_where_the_query_will_begin() -> None:
    """The feed may not have heard of the last batches before a restart; the checkpoint has, and Spark goes on from there."""
    progress = Progress({("updates", 0): Position(1, 15)})
    assert progress.lag({("updates", 0): Position(1, 2)}, {("updates", 0): Position(1, 15)}) == {"updates/0": 0}


class Query:
    """As much of Spark's query as the health asks for."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.recentProgress = [SimpleNamespace(json=msgspec.json.encode(one), batchId=one["batchId"]) for one in reports]

    @property
    def lastProgress(self) -> Any:
        return self.recentProgress[-1] if self.recentProgress else None


def test_every_query_tells_its_steps_and_its_lag(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    table, feed = open_table(settings), open_feed(settings)
    key = object_key("demo", 0, b"x")
    feed.append(FAN_OUTS, [Entry(key, b""), Entry(key, b"")])
    count_round(table)
    count_round(table)
    main: Any = Query(report(4, rows=5))
    beside: Any = Query()
    writer = HealthWriter(table, feed)
    writer.watch([Watched(main, Progress()), Watched(beside, Progress())])
    wait_until(lambda: (found := read_health(table)) is not None and found.batch == 4, 5)
    writer.finish("stopped")
    health = read_health(table)
    assert health is not None
    assert health.steps == {"matching": 1, "fan-out": 2}
    assert (health.records, health.counts, health.lag_total) == (5, {"dead_letters": 0, "updates": 5}, 2)


def test_the_health_is_in_the_table_and_outranks_a_predecessor_s(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    table, feed = open_table(settings), open_feed(settings)
    assert read_health(table) is None
    ahead = time.time_ns() // 1_000_000 + 86_400_000  # the clock was set back by a day
    table.write([Mutation(HEALTH_ROW, [Cell(HEALTH, ahead, b"[]")])])
    assert read_health(table) is None, "of another version"
    publish(settings, name_in_partition(1), 1)
    writer = HealthWriter(table, feed, boot="mine")
    wait_until(lambda: read_health(table) is not None, 5)
    health = read_health(table)
    assert health is not None
    assert (health.boot, health.state, health.batch, health.lag_total) == ("mine", STARTING, -1, 1)
    writer.finish(FAILED, "it broke")
    health = read_health(table)
    assert health is not None
    assert (health.state, health.error) == (FAILED, "it broke")


def test_unchanged_health_is_not_written_each_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(tmp_path)
    table = open_table(settings)
    writes: list[Sequence[Mutation]] = []
    write = table.write

    def counting(mutations: Sequence[Mutation]) -> None:
        writes.append(mutations)
        write(mutations)

    monkeypatch.setattr(table, "write", counting)
    monkeypatch.setattr("roskva.pipeline.health._LOOK_EVERY_S", 0.05)
    writer = HealthWriter(table, open_feed(settings))
    time.sleep(0.5)
    publish(settings, "x", 1)
    wait_until(lambda: len(writes) == 2, 3, "the lag changed")
    writer.finish("stopped")
    assert len(writes) == 3
