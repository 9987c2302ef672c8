"""capture-subscriber: throughput against latency of one subscriber as shards are added (Wormhole, Figure 5).

A dataset of 16 shards, one application, one subscriber process that has all their flows over one connection. Each shard that is written to
brings 5,000 rows a second; step by step more are. Told are, for each step, the rows delivered a second and how long after their commit they
came, until a step is not followed any more; and the same for every second, as the paper plots it for every minute.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Final

from bench.capture.counting import Counting, Sample, counting
from bench.capture.datastores import ACKNOWLEDGEMENT
from bench.capture.publishers import publishing
from bench.capture.stores import ROW, BenchPostgres, postgres
from bench.capture.usage import DATABASE, PUBLISHER, SUBSCRIBER, Meter
from bench.capture.writers import Writer, Written
from bench.plots import BLUE, GREY, RED
from bench.report import Result, percentiles
from bench.service import say
from bench.world import Options

SHARDS: Final = 16
STEPS: Final = (1, 2, 4, 6, 8, 10, 12, 14, 16)
RATE_PER_S: Final = 5_000.0  # of one shard
SECONDS: Final = 8.0  # of a step
COMMITS_PER_S: Final = 200.0
FOLLOWED: Final = 0.95  # of what was written in a step, that is delivered in it
TIMEOUT_S: Final = 120.0
APPLICATION: Final = "counter"
APPROXIMATIONS: Final = [
    "One publisher and its database bring all shards, on the same cores as the subscriber; the paper's came from many, on other machines.",
    "So the limit is of the machine: who used the processor in the last step is told.",
    "Shards are added by writing rows of more owners; all 16 flows are there from the beginning.",
    "A commit has rows of all shards that are written to.",
]


def measure(options: Options) -> Result:
    seconds, rate = options.seconds or SECONDS, options.rate or RATE_PER_S
    steps = [step for step in STEPS if step <= (options.clients or SHARDS)]
    dataset = {"shards": SHARDS, "shard": f"owner % {SHARDS}"}
    with (
        postgres() as server,
        publishing(server.datastore(), {APPLICATION: {"start": "end"}}, dataset=dataset) as capture,
        counting(capture, [APPLICATION], timed=True) as counter,
    ):
        capture.riding(SHARDS)
        roles = {PUBLISHER: [capture.process.pid], SUBSCRIBER: [counter.process.pid], DATABASE: [server.pid]}
        found, cpu, window_s = _climb(server, counter, roles, steps, rate, seconds)
        status = capture.status()
        times_ms = counter.end()
    samples = counter.samples[APPLICATION]
    figures = {
        "steps": [step_of(one, samples, times_ms, rate) for one in found],
        "seconds": by_second(samples, times_ms),
        "repeated": samples[-1].repeated,
        "falls": sum(flow["falls"] for flow in status["flows"]),
        "rows": samples[-1].rows,
    }
    return result_of(figures, rate, seconds, cpu, window_s)


Step = tuple[int, float, float, Written]


def _climb(
    server: BenchPostgres, counter: Counting, roles: dict[str, list[int]], steps: list[int], rate: float, seconds: float
) -> tuple[list[Step], dict[str, float], float]:
    """Steps until one is not followed; then waits until nothing is behind. Of the last one, who used the processor."""
    writer = Writer(server)
    found: list[Step] = []
    cpu, window_s = {}, 0.0
    for shards in steps:
        rows_before, began_s = counter.rows, time.time()
        meter = Meter(roles)
        written = writer.write(shards * rate, seconds, COMMITS_PER_S, owners=shards)
        time.sleep(0.3)  # for what is on its way, and for the next sample
        delivered = counter.rows - rows_before
        cpu, window_s = meter.used(), meter.seconds
        found.append((shards, began_s, time.time(), written))
        say(f"{shards} shards: written {written.rows_per_s:,.0f} rows/s, delivered {delivered / written.seconds:,.0f}")
        if delivered < FOLLOWED * written.rows or not written.kept_up:
            break
    counter.wait(writer.rows, TIMEOUT_S)
    return found, cpu, window_s


def step_of(step: Step, samples: list[Sample], times_ms: array[float], rate: float) -> dict[str, Any]:
    shards, began_s, ended_s, written = step
    before = next((one for one in reversed(samples) if one.at_s <= began_s), samples[0])
    after = next((one for one in reversed(samples) if one.at_s <= ended_s), samples[-1])
    came = times_ms[before.timed : after.timed]
    parts = percentiles(came)
    delivered = after.rows - before.rows
    return {
        "shards": shards,
        "offered_per_s": shards * rate,
        "written_per_s": written.rows_per_s,
        "delivered_per_s": round(delivered / written.seconds, 1),
        "mean_ms": round(sum(came) / max(1, len(came)), 2),
        "p50_ms": parts["p50"],
        "p99_ms": parts["p99"],
        "followed": delivered >= FOLLOWED * written.rows and written.kept_up,
    }


def by_second(samples: list[Sample], times_ms: array[float]) -> list[list[float]]:
    """Of every second: rows delivered in it, and the mean time from their commit."""
    found: list[list[float]] = []
    before = samples[0]
    for sample in samples[1:]:
        if sample.at_s - before.at_s >= 1.0:
            came = times_ms[before.timed : sample.timed]
            if came:
                rate = (sample.rows - before.rows) / (sample.at_s - before.at_s)
                found.append([round(rate, 1), round(sum(came) / len(came), 2)])
            before = sample
    return found


def result_of(figures: dict[str, Any], rate: float, seconds: float, cpu: dict[str, float], window_s: float) -> Result:
    steps = figures["steps"]
    followed = [step for step in steps if step["followed"]] or steps[:1]
    first, best = steps[0], max(followed, key=lambda step: float(step["delivered_per_s"]))
    figures["highest_followed_per_s"] = best["delivered_per_s"]
    figures["mean_ms_there_by_the_first"] = round(best["mean_ms"] / max(0.01, first["mean_ms"]), 2)
    figures["throughput_there_by_the_first"] = round(best["delivered_per_s"] / max(1.0, first["delivered_per_s"]), 2)
    return Result(
        name="capture-subscriber",
        settings={
            "load": f"one subscriber of {SHARDS} shards, {rate:,.0f} rows/s for each that is written to, steps of {seconds:g} s",
            "row": ROW,
            "commits": f"{COMMITS_PER_S:g} a second",
            "service": "roskva capture publisher over Postgres; a subscriber of the library, on uvloop",
        },
        warm_up="none",
        figures=figures,
        aims=[],
        cpu_seconds=cpu,
        cpu_window_s=window_s,
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def draw(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    axes.plot([one[0] for one in figures["seconds"]], [one[1] for one in figures["seconds"]], ".", color=GREY, label="each second")
    steps = figures["steps"]
    delivered = [one["delivered_per_s"] for one in steps]
    axes.plot(delivered, [one["mean_ms"] for one in steps], marker="o", color=BLUE, label="mean of each step")
    axes.plot(delivered, [one["p99_ms"] for one in steps], marker="x", color=RED, label="p99 of each step")
    for one in steps:
        place = (one["delivered_per_s"], one["mean_ms"])
        axes.annotate(f"{one['shards']}", place, textcoords="offset points", xytext=(4, -10), fontsize=7, color=BLUE)
    axes.set(xlabel="rows delivered per second (beside the points: shards)", ylabel="commit to callback, ms", yscale="log")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("capture-subscriber: shards are added; everything on the same cores", fontsize=10)
