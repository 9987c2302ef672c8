"""One small run of each measurement against a real service: that it measures what it says. No times are asserted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import accounting, batching, burst, channels, contacts, figure8, figure9, idle, latency, missed, stamped, throughput
from bench.__main__ import main
from bench.plots import draw
from bench.report import Result
from bench.service import BenchFailed, Service, running
from bench.world import Options

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


CHANGED = {"batch_rest_ms": "100"}  # so that every short window has batches


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One for all: to start it takes longer than to measure it."""
    with running(CHANGED, prepare=partial(burst.prepare, registered=40)) as started:
        yield started
    assert accounting.processes(started.run) == {}
    assert not started.data.exists()


def checked(result: Result, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.write(folder).read_text())
    assert {accounting.GATEWAY, accounting.JVM, accounting.WORKERS, accounting.GENERATOR} <= document["cpu_seconds"].keys()
    assert document["settings"]["changed"] == {"settling_s": "15", **CHANGED}
    assert draw(document, folder).stat().st_size > 1_000
    figures: dict[str, Any] = document["figures"]
    return figures


@pytest.mark.spark
def test_latency_follows_every_notification_through_its_hops(service: Service, tmp_path: Path) -> None:
    figures = checked(latency.measure_on(service, Options(seconds=2.0, clients=40, rate=50.0)), tmp_path)
    assert figures["delivered"] + figures["collapsed"] == 2 * 50 * latency.FAN_OUT
    assert figures["delivered"] > 100
    assert sum(hop["share_of_mean"] for hop in figures["hops"]) == pytest.approx(1.0, abs=0.01)
    assert figures["spark_phases_ms"]["addBatch"] > 0
    assert figures["registrar"]["acknowledged"] >= figures["delivered"]


@pytest.mark.spark
def test_batching_shows_latency_beside_cpu_for_each_delay(service: Service) -> None:
    """On the one service, whose delay is none: that more of them gather is shown by tests/pipeline/test_offsets.py."""
    step, measured = batching.measure_on(service, 0, Options(seconds=2.0, clients=40, rate=50.0))
    assert step["delivered"] + step["collapsed"] == 2 * 50 * latency.FAN_OUT
    assert 0 < step["p50_ms"] <= step["p99_ms"]
    assert step["pipeline_cpu_cores"] > 0
    assert step["batches_per_s"] > 0
    shown = replace(measured, name="batching", figures={"delays": [step, {**step, "delay_ms": 500}]})
    assert draw(shown.document(), service.data.parent).stat().st_size > 1_000


@pytest.mark.spark
def test_throughput_counts_what_arrived_and_what_collapsed(service: Service, tmp_path: Path) -> None:
    figures = checked(throughput.measure_on(service, Options(seconds=2.0, clients=40, rate=500.0)), tmp_path)
    for found in figures["fan_outs"].values():
        (step,) = found["steps"]
        assert step["delivered"] + step["collapsed"] == pytest.approx(1_000, abs=5 * throughput.BATCH)
    assert [way.name for way in throughput.WAYS] == list(figures["fan_outs"])
    for cost in figures["cpu_s_per_10_000_deliveries_at_10_000_per_s"].values():
        assert cost["service"] >= cost["gateway"] > 0 < cost["Spark"]
    for (step,) in (found["steps"] for found in figures["fan_outs"].values()):
        assert step["delivered"] > 0
        assert step["refused"] == 0
        assert step["cpu_s"][accounting.JVM] > 0


@pytest.mark.spark
def test_burst_is_worked_off_beside_a_steady_load(service: Service, tmp_path: Path) -> None:
    figures = checked(burst.measure_on(service, Options(seconds=0.5, clients=20, rate=3_000.0), registered=40), tmp_path)
    assert (figures["burst"]["updates"], figures["burst"]["refused"]) == (3_000, 0)
    assert figures["burst"]["largest_backlog"] > 0
    assert all(latency["notifications"] > 0 for latency in figures["latency_ms"].values())
    for crowd in (figures["crowd_offline"], figures["crowd_online"]):
        assert crowd["registered"] == 40
        assert len(crowd["seconds_per_publish"]) == burst.HOT_PUBLISHES
    assert figures["crowd_online"]["latency_ms"]["max"] > 0
    assert set(figures["latency_ms"]) == {"before", "beside the burst", "beside the crowd offline", "beside the crowd online"}


@pytest.mark.spark
def test_missed_brings_at_most_one_notification_per_object(service: Service, tmp_path: Path) -> None:
    figures = checked(missed.measure_on(service, Options(seconds=0.2)), tmp_path)
    assert [one["notifications"] for one in figures["rounds"]] == [missed.REGISTRATIONS] * 2


@pytest.mark.spark
def test_idle_reads_memory_with_and_without_clients(service: Service, tmp_path: Path) -> None:
    figures = checked(idle.measure_on(service, Options(seconds=0.5, clients=200)), tmp_path)
    assert [sample["clients"] for sample in figures["memory_samples"]] == [0, 50, 100, 150, 200, 200]
    assert figures["memory_samples"][0]["gateway_mib"] > 20
    assert set(figures["cpu_percent_of_a_core_with_clients"]) == {*accounting.SERVICE, "whole service"}


@pytest.mark.spark
def test_channels_brings_the_same_to_clients_of_both(service: Service, tmp_path: Path) -> None:
    order = (channels.WEBSOCKET, channels.LONG_POLL)
    figures = checked(channels.measure_on(service, Options(seconds=0.5, clients=20, rate=100.0), order), tmp_path)
    for found in figures["channels"]:
        assert found["delivered"] + found["collapsed"] == 50 * channels.FAN_OUT
        assert found["delivered"] > 100
    assert set(figures["long_poll_to_websocket"]) >= {"p50_ms", "gateway_cpu_ms_per_1000"}


@pytest.mark.spark
def test_contacts_are_shown_by_who_polls_and_by_who_is_told(service: Service, tmp_path: Path) -> None:
    options = Options(seconds=1.0, clients=4, rate=10.0)
    figures = checked(contacts.measure_on(service, options, polls_s=(0.2, 0.4)), tmp_path)
    assert figures["changes"] == 10
    assert [one["changes_shown"] for one in figures["ways"]] == [10 * contacts.CLIENTS_PER_LIST] * 3
    assert all(one["backend_reads_per_s"] > 0 for one in figures["ways"])


def test_publish_runs_from_the_command_line_on_a_gateway_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "--seconds", "0.5", "--json", "--results", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    runs = document["figures"]["runs"]
    assert [(run["publishers"], run["batch"]) for run in runs] == [(1, 1), (1, 100), (32, 1), (32, 100)]
    assert all(run["publishes_per_s"] > 0 for run in runs)
    assert accounting.JVM not in document["cpu_seconds"]
    assert json.loads((tmp_path / "publish.json").read_text()) == document
    assert (tmp_path / "publish.svg").exists()


def test_several_gateways_are_counted_by_what_they_say_and_their_stamps_are_added_up() -> None:
    with running({"gateways": "2"}, pipeline=False) as two:
        assert two.parts == "2 gateways only"
        for _ in range(50):  # either may not have heard of the other yet
            with contextlib.suppress(BenchFailed):
                if stamped._read(two).gateways == 2:
                    break
            time.sleep(0.2)
        else:
            pytest.fail("only one of the two was asked")


@pytest.mark.spark
def test_figures_8_and_9_are_of_the_services_own_stamps(service: Service, tmp_path: Path) -> None:
    options = Options(seconds=2.0, clients=40, rate=50.0)
    seen = stamped.measure_on(service, options)
    both = stamped.both(options, seen, seen)  # as if the second were without the fast path: of the pipeline's sends there is nothing then
    ways = checked(figure8.result_of(both), tmp_path)["ways"]
    assert ways[0]["samples"] == ways[1]["samples"] > 0
    assert ways[0]["distribution_ms"][-1][1] == 1.0
    assert ways[2]["samples"] == 0
    assert ways[4]["samples"] > 0, "the pipeline came for all of them"
    hops = checked(figure9.result_of(both), tmp_path)
    for way in ("fast_path", "pipeline_alone"):
        assert sum(hop["share"] for hop in hops[way]) == pytest.approx(1.0, abs=0.01)
    assert [hop["hop"] for hop in hops["fast_path"]] == ["received to durable", "durable to sent", "sent to acknowledged"]


@pytest.mark.spark
def test_latency_goes_on_where_a_busy_service_does_not_keep_up(service: Service, tmp_path: Path) -> None:
    result = latency.measure_on(service, Options(seconds=1.0, clients=20, rate=100.0), latency.BUSY)
    assert result.settings["publishes"] == "paced, in requests of 10"
    figures = checked(result, tmp_path)
    assert figures["kept_up"] is True
    assert figures["delivered"] + figures["collapsed"] == 100 * latency.FAN_OUT
