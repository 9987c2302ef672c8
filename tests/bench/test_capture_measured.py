"""One small run of each measurement of capture, with real databases, publishers and subscribers: that it counts what it says. No times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.capture import burst, datastores, flows, latency, slowdown, subscriber
from bench.capture.counting import Count, LeanDecoding, Sample, rates, sustained
from bench.capture.publishers import written
from bench.capture.usage import Meter, with_children
from bench.capture.writers import Written
from bench.plots import draw
from bench.report import Result
from bench.service import BenchFailed
from bench.world import Options
from roskva.capture.positions import Position
from roskva.capture.rows import Schemas
from roskva.capture.settings import settings_of
from roskva.capture.stores.rocksdb_library import library_path
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Change, Operation, Update
from tests.capture.stores.servers_mysql import PROGRAMS as MYSQL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MISSING = {
    "mariadb": not Path("/usr/sbin/mariadbd").exists(),
    "mysql": not (MYSQL / "bin" / "mysqld").exists(),
    "rocksdb": library_path() is None,
}


def checked(result: Result, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.write(folder).read_text())
    assert document["name"].startswith("capture-")
    assert document["cpu_window_s"] > 0
    assert {"publisher", "subscriber", "database", "load generator", "others on this machine"} <= document["cpu_seconds"].keys()
    assert document["approximations"]
    assert draw(document, folder).stat().st_size > 1_000
    assert result.table()
    figures: dict[str, Any] = document["figures"]
    return figures


@pytest.mark.parametrize("name", datastores.STORES)
def test_every_row_of_a_backlog_is_decoded_and_delivered_once(name: str, tmp_path: Path) -> None:
    if MISSING.get(name):
        pytest.skip(f"{name} is not installed")
    start, _ = datastores.STORES[name]
    with start() as store:
        found, cpu, window_s = datastores.measure_store(store, 5_000)
    assert (found["rows_delivered"], found["repeated"], found["lost"]) == (5_000, 0, 0)
    assert found["decoded_rows_per_s"] > 0 < found["delivered_rows_per_s"]
    assert 20 < found["log_bytes_a_row"] < 300
    figures = checked(datastores.result_of([found], {name: cpu}, {name: window_s}), tmp_path)
    assert figures[f"by_{name}"] == {name: {"decoded": 1.0, "delivered": 1.0}}


def test_applications_share_what_is_read_of_the_log(tmp_path: Path) -> None:
    figures = checked(flows.measure(Options(seconds=1.0, clients=2, rate=400.0)), tmp_path)
    one, two = figures["at_the_end"]
    assert (one["applications"], two["applications"]) == (1, 2)
    assert two["rows_per_s"] == pytest.approx(2 * one["rows_per_s"], rel=0.3)
    assert two["sent_bytes_a_row"] == pytest.approx(2 * one["sent_bytes_a_row"], rel=0.1)
    assert two["log_bytes_a_row"] == pytest.approx(one["log_bytes_a_row"], rel=0.05)
    assert one["database_read_bytes_a_row"] > 0
    assert [step["repeated"] for step in figures["with_a_backlog"]] == [0, 0]
    assert all(step["log_bytes_a_row"] > 50 for step in figures["with_a_backlog"])


def test_a_burst_is_delivered_whole_and_its_lag_is_told_over_time(tmp_path: Path) -> None:
    figures = checked(burst.measure(Options(seconds=1.0, rate=100.0)), tmp_path)
    assert figures["delivered"] == figures["rows"] == pytest.approx(100 * 2 + 2_000 + 100 * 2, rel=0.1)
    assert figures["repeated"] == 0
    assert figures["burst_times_average"] > 2
    assert sum(point[1] > 0 for point in figures["lag_ms_over_time"]) > 3
    assert 1.5 < figures["burst_s"][0] < figures["burst_s"][1]


def test_shards_are_added_until_they_are_not_followed(tmp_path: Path) -> None:
    figures = checked(subscriber.measure(Options(seconds=1.0, clients=2, rate=400.0)), tmp_path)
    assert [step["shards"] for step in figures["steps"]][:1] == [1]
    assert figures["rows"] == pytest.approx(sum(step["written_per_s"] for step in figures["steps"]), rel=0.3)
    assert figures["repeated"] == 0
    assert all(0 < step["p50_ms"] <= step["p99_ms"] for step in figures["steps"])
    assert figures["limit"] in ("not reached", "below 1 shards", "below 2 shards"), "where it is, is the machine's to say"


def test_the_limit_of_a_subscriber_is_the_last_step_before_the_first_that_is_not_followed(tmp_path: Path) -> None:
    steps = [
        {"shards": shards, "delivered_per_s": rate, "mean_ms": mean_ms, "p99_ms": 2 * mean_ms, "followed": shards < 4}
        for shards, rate, mean_ms in ((1, 100.0, 2.0), (2, 200.0, 3.0), (4, 250.0, 60.0), (6, 240.0, 90.0))
    ]
    figures = {"steps": steps, "seconds": [[100.0, 2.0]]}
    result = subscriber.result_of(dict(figures), 100.0, 1.0, {}, 0.0)
    assert result.figures["limit"] == "below 4 shards"
    assert (result.figures["highest_followed_per_s"], result.figures["throughput_there_by_the_first"]) == (200.0, 2.0)
    assert result.figures["throughput_beyond_by_there"] == [1.25, 1.2]
    assert result.figures["mean_ms_beyond_by_there"] == [20.0, 30.0]
    assert draw(result.document(), tmp_path).read_text().count("followed up to here") == 1
    unlimited = subscriber.result_of({"steps": steps[:2], "seconds": []}, 100.0, 1.0, {}, 0.0)
    assert (unlimited.figures["limit"], unlimited.figures["highest_followed_per_s"]) == ("not reached", 200.0)
    assert "followed up to here" not in draw(unlimited.document(), tmp_path).read_text()


@pytest.mark.parametrize(("behind", "late_s", "followed"), [(50, 0.0, True), (51, 0.0, False), (0, 1.1, False)])
def test_a_step_is_followed_if_next_to_nothing_is_behind_at_its_end(behind: int, late_s: float, followed: bool) -> None:
    """Also if it delivered more than was written in it: what the step before it left."""
    step = subscriber.Step(1, 0.0, 10.0, Written(1_000, 8.0, late_s), 1_200, behind)
    assert step.followed is followed
    assert step.delivered_per_s == (150.0 if followed else 120.0)


def test_the_databases_own_transactions_are_counted_with_capture_on_and_off(tmp_path: Path) -> None:
    turns = (False, True)
    figures = checked(slowdown.measure(Options(seconds=1.0, clients=2, rate=50.0), turns, turns), tmp_path)
    for off, on in (figures["turns"], figures["turns_at_half_the_rate"]):
        assert (off["capture"], off["rows_delivered"]) == ("off", 0)
        assert (on["capture"], on["rows_delivered"]) == ("on", 3 * on["transactions"])
    assert figures["transactions_per_s_on_by_off"] > 0


@pytest.mark.spark
def test_latency_is_of_every_row_and_of_every_client(tmp_path: Path) -> None:
    figures = checked(latency.measure(Options(seconds=1.0, clients=10, rate=200.0)), tmp_path)
    assert figures["delivered"] == figures["rows"] == pytest.approx(200, abs=10)
    assert figures["distribution_ms"][-1][0] == pytest.approx(figures["commit_to_callback_ms"]["max"], abs=0.1)
    assert 0 <= figures["within_100_ms_percent"] <= 100
    informed = figures["informed"]
    assert 0 < informed["told_of_rows"] <= 50 * 5
    assert 0 < informed["told_of_publishes"] <= 50 * 5
    # A row's way begins before its commit returned.
    assert informed["row_committed_to_client_informed_ms"]["p50"] > informed["after_the_commit_returned_ms"]["p50"]
    assert informed["row_committed_to_client_informed_ms"]["p50"] > informed["call_that_commits_ms"]["p50"]


def _changes(count: int) -> list[Change]:
    return [
        Change(Position(1, number), 1_000_000, Operation.INSERT, "d", "t", {"id": number}, {"id": number, "v": "x"})
        for number in range(1, count + 1)
    ]


def test_a_lean_subscriber_counts_every_row_of_a_frame() -> None:
    schemas, count = Schemas(), Count(timed=False)
    rows = [schemas.encoded(change).data for change in _changes(300)]
    lean = LeanDecoding(count)
    lean.learn(schemas.numbered(1))
    updates = lean.updates(0, 1, msgspec.msgpack.encode([msgspec.Raw(row) for row in rows]))
    count.on_updates(Shard("d", 0), updates)
    assert (count.rows, count.first_rows, count.repeated) == (300, 300, 0)
    assert updates[-1].change == _changes(300)[-1]


def test_what_comes_twice_is_counted_as_repeated_and_its_time_is_from_its_commit() -> None:
    count, shard = Count(timed=True), Shard("d", 0)
    updates = [Update(0, change) for change in _changes(4)]
    count.on_updates(shard, updates[:3])
    count.on_updates(shard, updates[1:])
    assert (count.rows, count.repeated) == (6, 2)
    assert count.times_ms[0] == pytest.approx((time.time() - 1.0) * 1000, abs=60_000)


def _samples(*rows: int) -> list[Sample]:
    return [Sample(float(number), count, 0.0, 0, 0.0, 0, 0, count) for number, count in enumerate(rows)]


def test_a_rate_is_sustained_only_over_its_whole_time() -> None:
    samples = _samples(0, 10, 1_010, 1_020, 1_030)
    assert sustained(samples, 1.0) == 1_000.0
    assert sustained(samples, 2.0) == 505.0
    assert sustained(samples, 10.0) == 0.0
    assert rates(samples, 2.0) == [[2.0, 505.0], [4.0, 10.0]]


def test_lag_over_time_is_of_what_came_in_each_period() -> None:
    points = burst._lag(_samples(0, 2, 3), array("d", [10.0, 30.0, 50.0]), 0.0)
    assert points == [[1.0, 20.0], [2.0, 50.0]]


def test_the_settings_file_of_a_measurement_says_what_was_asked_for() -> None:
    import tomllib

    tables = {
        "dataset": {"name": "bench", "shards": 4, "shard": "owner % 4"},
        "datastore": {"kind": "postgres", "dsn": "host=127.0.0.1 dbname='a b'", "tables": ["t"]},
        "applications": {"a1": {"start": "oldest"}, "a2": {"start": "end"}},
        "roskva": {"application": "demo", "mapping": [{"table": "t", "object": "doc:{id}"}, {"table": "u", "object": "u:{id}"}]},
    }
    text = written(tables)
    assert tomllib.loads(text) == tables
    settings = settings_of(tomllib.loads(text))
    assert [settings.applications[name].start for name in ("a1", "a2")] == ["oldest", "end"]


def test_what_pgbench_says_is_read_and_nothing_else_is_taken_for_it() -> None:
    text = "number of transactions actually processed: 2925\nlatency average = 1.367 ms\ntps = 1463.2 (without initial connection time)\n"
    assert slowdown.parsed(text) == (2925, 1463.2, 1.367)
    with pytest.raises(BenchFailed, match="unexpected"):
        slowdown.parsed("pgbench: no such table")


def test_cpu_is_counted_with_children_that_have_ended() -> None:
    busy = "import time; end = time.time() + 0.5\nwhile time.time() < end: pass"
    program = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {busy!r}]); print('done', flush=True); time.sleep(30)"
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        meter = Meter({"child": [started.pid]})
        assert started.stdout is not None
        started.stdout.readline()
        used = meter.used()
        assert used["child"] >= 0.1
        assert meter.seconds >= 0.4
        assert with_children([os.getpid()]) >= {os.getpid(), started.pid}
    finally:
        started.kill()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()
