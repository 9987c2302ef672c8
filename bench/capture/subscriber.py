"""capture-subscriber: throughput against latency of one subscriber as shards are added (Wormhole, Figure 5).

A dataset of 52 shards, one application, one subscriber process that has all their flows over one connection. Each shard that is written to
brings 5,000 rows a second; step by step more are, until a step is not followed any more, and for one step beyond that: looked for is the
limit, and how the latency grows behind it. Told are, for each step, the rows delivered a second and how long after their commit they came;
and the same for every second, as the paper plots it for every minute.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Final, NamedTuple

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

SHARDS: Final = 52
STEPS: Final = (1, 4, 8, 16, 24, 32, 36, 40, 44, 48, 52)
RATE_PER_S: Final = 5_000.0  # of one shard
SECONDS: Final = 5.0  # of a step: all of them take about a minute
COMMITS_PER_S: Final = 200.0
FOLLOWED: Final = 0.95  # of what was written in a step, that is delivered at its end
BEYOND: Final = 1  # so many steps are taken after the first that is not followed
TIMEOUT_S: Final = 120.0
APPLICATION: Final = "counter"
APPROXIMATIONS: Final = [
    "One publisher and its database bring all shards, on the same cores as the subscriber; the paper's came from many, on other machines.",
    "So the limit is of the machine: who used the processor in the last step is told.",
    f"Shards are added by writing rows of more owners; all {SHARDS} flows are there from the beginning.",
    "Steps last seconds, the paper's minutes: beyond the limit the latency would grow for as long as the step goes on.",
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


class Step(NamedTuple):
    shards: int
    began_s: float
    ended_s: float
    written: Written
    delivered: int  # rows, while it lasted
    behind: int  # rows that were written, and not delivered when it ended

    @property
    def followed(self) -> bool:
        return self.behind <= (1 - FOLLOWED) * self.written.rows and self.written.kept_up

    @property
    def delivered_per_s(self) -> float:
        """Who follows got nothing in the moment after the last commit; who is behind did."""
        return round(self.delivered / (self.written.seconds if self.followed else self.ended_s - self.began_s), 1)


def _climb(
    server: BenchPostgres, counter: Counting, roles: dict[str, list[int]], steps: list[int], rate: float, seconds: float
) -> tuple[list[Step], dict[str, float], float]:
    """Steps until one is not followed, and BEYOND more; then waits until nothing is behind. Of the last one, who used the processor."""
    writer = Writer(server)
    found: list[Step] = []
    cpu, window_s = {}, 0.0
    for shards in steps:
        rows_before, began_s = counter.rows, time.time()
        meter = Meter(roles)
        written = writer.write(shards * rate, seconds, COMMITS_PER_S, owners=shards)
        time.sleep(0.3)  # for what is on its way, and for the next sample
        cpu, window_s = meter.used(), meter.seconds
        rows = counter.rows
        found.append(Step(shards, began_s, time.time(), written, rows - rows_before, writer.rows - rows))
        say(f"{shards} shards: written {written.rows_per_s:,.0f} rows/s, delivered {found[-1].delivered_per_s:,.0f}")
        if sum(not one.followed for one in found) > BEYOND:
            break
    counter.wait(writer.rows, TIMEOUT_S)
    return found, cpu, window_s


def step_of(step: Step, samples: list[Sample], times_ms: array[float], rate: float) -> dict[str, Any]:
    before = next((one for one in reversed(samples) if one.at_s <= step.began_s), samples[0])
    after = next((one for one in reversed(samples) if one.at_s <= step.ended_s), samples[-1])
    came = times_ms[before.timed : after.timed]
    parts = percentiles(came)
    return {
        "shards": step.shards,
        "offered_per_s": step.shards * rate,
        "written_per_s": step.written.rows_per_s,
        "delivered_per_s": step.delivered_per_s,
        "mean_ms": round(sum(came) / max(1, len(came)), 2),
        "p50_ms": parts["p50"],
        "p99_ms": parts["p99"],
        "followed": step.followed,
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
    figures |= limit_of(steps)
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


def limit_of(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The last step before the first that was not followed, against the first of all; and what came after it, against that one."""
    reached = next((number for number, step in enumerate(steps) if not step["followed"]), len(steps))
    beyond = steps[reached:]
    first, best = steps[0], steps[max(0, reached - 1)]
    return {
        "limit": f"below {beyond[0]['shards']} shards" if beyond else "not reached",
        "highest_followed_per_s": best["delivered_per_s"],
        "mean_ms_there_by_the_first": round(best["mean_ms"] / max(0.01, first["mean_ms"]), 2),
        "throughput_there_by_the_first": round(best["delivered_per_s"] / max(1.0, first["delivered_per_s"]), 2),
        "throughput_beyond_by_there": [round(step["delivered_per_s"] / max(1.0, best["delivered_per_s"]), 2) for step in beyond],
        "mean_ms_beyond_by_there": [round(step["mean_ms"] / max(0.01, best["mean_ms"]), 1) for step in beyond],
    }


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
    if figures["limit"] != "not reached":
        axes.axvline(figures["highest_followed_per_s"], color=GREY, linestyle=":")
        axes.annotate("followed up to here", (figures["highest_followed_per_s"], steps[0]["mean_ms"]), ha="right", xytext=(-4, -8),
                      textcoords="offset points", fontsize=8, color=GREY)  # fmt: skip
    axes.set(xlabel="rows delivered per second (beside the points: shards)", ylabel="commit to callback, ms", yscale="log")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("capture-subscriber: shards are added; everything on the same cores", fontsize=10)
