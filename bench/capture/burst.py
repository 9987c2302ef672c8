"""capture-burst: a burst over the average rate (Wormhole, Figure 6), with rate and lag over time.

One Postgres flow at the log's end. Rows are committed at an average rate, then for a while many times as fast, then as before. Told are the
rows committed and delivered in each half second, how long ago rows were committed when they came, the highest rate that was sustained for
`SUSTAINED_S`, against the average, and how long after the burst nobody was behind any more.
"""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any, Final

from bench.capture.counting import Sample, counting, rates, sustained
from bench.capture.datastores import ACKNOWLEDGEMENT
from bench.capture.publishers import publishing
from bench.capture.stores import ROW, postgres
from bench.capture.usage import DATABASE, PUBLISHER, SUBSCRIBER, Meter
from bench.capture.writers import Writer, Written
from bench.plots import BLUE, GREY, RED
from bench.report import Aim, Result, percentiles
from bench.service import say
from bench.world import Options

AVERAGE_PER_S: Final = 2_000.0
TIMES: Final = 20.0  # the average, in the burst
PAPER_TIMES: Final = 10.0  # Wormhole 4.1.3: publishers sustain more than ten times their average
SECONDS: Final = 10.0  # of the burst; before and after it twice as long
SUSTAINED_S: Final = 5.0
COMMITS_PER_S: Final = 200.0
PERIOD_S: Final = 0.5
TIMEOUT_S: Final = 120.0
APPLICATION: Final = "counter"
APPROXIMATIONS: Final = [
    f"A rate counts as sustained after {SUSTAINED_S:g} s, where the paper asked for a minute, in 24 hours of 50 publishers.",
    "The burst is of the database's own writes: it takes the cores that the publisher needs. The paper's are of applications that return.",
    "How long ago a row was committed is told by the database's clock, which is that of the subscriber.",
]


def measure(options: Options) -> Result:
    average, seconds = options.rate or AVERAGE_PER_S, options.seconds or SECONDS
    with (
        postgres() as server,
        publishing(server.datastore(), {APPLICATION: {"start": "end"}}) as capture,
        counting(capture, [APPLICATION], timed=True) as counter,
    ):
        capture.riding(1)
        writer = Writer(server)
        watching = _Watching(writer)
        meter = Meter({PUBLISHER: [capture.process.pid], SUBSCRIBER: [counter.process.pid], DATABASE: [server.pid]})
        began_s = time.time()
        phases = [_phase(writer, *phase) for phase in _plan(average, seconds)]
        counter.wait(writer.rows, TIMEOUT_S)
        cpu = meter.used()
        written = watching.end()
        status = capture.status()
        times_ms = counter.end()
    figures = figures_of(counter.samples[APPLICATION], written, times_ms, phases, began_s, min(SUSTAINED_S, seconds / 2))
    figures["falls"] = sum(flow["falls"] for flow in status["flows"])
    say(f"the burst: {figures['burst_times_average']:.1f} times the average, nobody behind {figures['caught_up_after_s']:.1f} s after it")
    return result_of(figures, average, seconds, cpu, meter.seconds)


def _plan(average: float, seconds: float) -> list[tuple[str, float, float]]:
    return [("before", average, 2 * seconds), ("burst", TIMES * average, seconds), ("after", average, 2 * seconds)]


def _phase(writer: Writer, name: str, rate: float, seconds: float) -> tuple[str, float, float, Written]:
    began_s = time.time()
    say(f"{name}: {rate:,.0f} rows/s for {seconds:g} s")
    written = writer.write(rate, seconds, COMMITS_PER_S)
    return name, began_s, time.time(), written


class _Watching(threading.Thread):
    """How many rows were committed, over time."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(name="watching", daemon=True)
        self._writer = writer
        self._stopped = threading.Event()
        self.found: list[Sample] = []
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            self.found.append(Sample(time.time(), self._writer.rows, 0.0, 0, 0.0, 0, 0, 0))

    def end(self) -> list[Sample]:
        self._stopped.set()
        self.join()
        return self.found


def figures_of(
    delivered: list[Sample],
    written: list[Sample],
    times_ms: array[float],
    phases: list[tuple[str, float, float, Written]],
    began_s: float,
    sustained_s: float,
) -> dict[str, Any]:
    delivered = [sample for sample in delivered if sample.at_s >= began_s]
    _, _, burst_ended_s, _ = phases[1]
    average = phases[0][3].rows_per_s
    highest = sustained(delivered, sustained_s)
    total = sum(phase[3].rows for phase in phases)
    lag = _lag(delivered, times_ms, began_s)
    calm_ms = percentiles([ms for sample, ms in _each(delivered, times_ms) if sample.at_s < phases[1][1]])
    after = [point for point in lag if point[0] > burst_ended_s - began_s]
    # The first half second after the burst in which rows came as soon as they did before it, about: twice the p99 of before.
    calm = next((point[0] for point in after if point[1] <= max(100.0, 2 * calm_ms["p99"])), lag[-1][0])
    return {
        "average_per_s": average,
        "written_in_the_burst_per_s": phases[1][3].rows_per_s,
        "highest_sustained_per_s": highest,
        "burst_times_average": round(highest / average, 2),
        "caught_up_after_s": round(max(0.0, calm - (burst_ended_s - began_s)), 2),
        "largest_lag_ms": round(max(point[1] for point in lag), 1),
        "commit_to_callback_before_ms": calm_ms,
        "rows": total,
        "delivered": delivered[-1].rows,
        "repeated": delivered[-1].repeated,
        "written_over_time": rates(written, PERIOD_S),
        "delivered_over_time": rates(delivered, PERIOD_S),
        "lag_ms_over_time": lag,
        "burst_s": [round(phases[1][1] - began_s, 2), round(burst_ended_s - began_s, 2)],
    }


def _each(samples: list[Sample], times_ms: array[float]) -> list[tuple[Sample, float]]:
    """Every time with the sample that first counted it."""
    found: list[tuple[Sample, float]] = []
    done = 0
    for sample in samples:
        found += [(sample, ms) for ms in times_ms[done : sample.timed]]
        done = max(done, sample.timed)
    return found


def _lag(samples: list[Sample], times_ms: array[float], began_s: float) -> list[list[float]]:
    """For each period its end, and the mean time from commit to callback of what came in it."""
    found: list[list[float]] = []
    done, ended_s = 0, samples[0].at_s
    for sample in samples:
        if sample.at_s - ended_s >= PERIOD_S and sample.timed > done:
            came = times_ms[done : sample.timed]
            found.append([round(sample.at_s - began_s, 2), round(sum(came) / len(came), 1)])
            done, ended_s = sample.timed, sample.at_s
    return found


def result_of(figures: dict[str, Any], average: float, seconds: float, cpu: dict[str, float], window_s: float) -> Result:
    return Result(
        name="capture-burst",
        settings={
            "load": f"{average:,.0f} rows/s, {TIMES:g} times that for {seconds:g} s, then as before",
            "row": ROW,
            "commits": f"{COMMITS_PER_S:g} a second",
            "service": "roskva capture publisher; one Postgres flow to a subscriber of the library, on uvloop",
        },
        warm_up="none",
        figures=figures,
        aims=[Aim("sustained in a burst, times the average (the paper's 10)", "x", PAPER_TIMES, figures["burst_times_average"], True)],
        cpu_seconds=cpu,
        cpu_window_s=window_s,
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def draw(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    for name, colour, style in (("written", GREY, "-"), ("delivered", BLUE, "-")):
        points = figures[f"{name}_over_time"]
        axes.plot([point[0] for point in points], [point[1] for point in points], color=colour, linestyle=style, label=f"{name}, rows/s")
    axes.axvspan(*figures["burst_s"], color="black", alpha=0.07, linewidth=0)
    axes.set(xlabel="s", ylabel="rows per second", ylim=(0, None))
    beside = axes.twinx()
    lag = figures["lag_ms_over_time"]
    beside.plot([point[0] for point in lag], [point[1] for point in lag], color=RED, linestyle=":", label="commit to callback, mean ms")
    beside.set(ylabel="ms", yscale="log")
    lines = [*axes.get_legend_handles_labels()[0], *beside.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8)
    axes.set_title(f"capture-burst: {document['settings']['load']}", fontsize=9)
