"""capture-latency: from the commit of a row to the subscriber's callback (Wormhole, Figure 9), and to a client of the service.

Postgres, one flow at the log's end, 5,000 rows a second for 30 s; each row's time is from its commit, by the database's clock, to the call
of the callback in another process, by that process' clock: both are of this machine. Then the whole way: informed.py.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from bench.capture.counting import counting
from bench.capture.datastores import ACKNOWLEDGEMENT
from bench.capture.informed import measure_informed
from bench.capture.publishers import publishing
from bench.capture.stores import ROW, BenchPostgres, postgres
from bench.capture.usage import DATABASE, PUBLISHER, SUBSCRIBER, Meter
from bench.capture.writers import CONNECTIONS, Writer
from bench.plots import BLUE, GREY, RED
from bench.report import Aim, Result, percentiles
from bench.service import say
from bench.world import Options

RATE_PER_S: Final = 5_000.0
COMMITS_PER_S: Final = 500.0
SECONDS: Final = 30.0
WARM_UP_S: Final = 5.0
WITHIN_MS: Final = 100.0
SHARE_AIM: Final = 99.5  # percent; Wormhole 4.3
BEYOND_AIM_MS: Final = 20.0
TIMEOUT_S: Final = 60.0
APPLICATION: Final = "counter"
APPROXIMATIONS: Final = [
    "The commit's time is that of the database, taken before the commit is synced to the disk: what the sync takes is part of the time.",
    "Writer, database, publisher and subscriber share the cores of one machine; the paper's were several, less than 1 ms apart.",
    "To a client: rows are changed and plain objects published at the same time, on one service, and each is told to five clients.",
    "To a client: versions are a column that the writer counts up, so that a notification says which commit it is of.",
    "To a client: both times begin with a call, of the statement that commits or of the publish, and have one sync to the disk in them.",
]


def measure(options: Options) -> Result:
    with postgres() as server:
        figures, cpu, window_s = commit_to_callback(server, options)
        say(f"{figures['within_100_ms_percent']:.2f} % within {WITHIN_MS:g} ms; p50 {figures['commit_to_callback_ms']['p50']:.2f} ms")
        informed = measure_informed(server, options)
    rate = options.rate or RATE_PER_S
    beyond_ms = informed["row_beyond_publish_p50_ms"]
    return Result(
        name="capture-latency",
        settings={
            "load": f"{rate:,.0f} rows/s in {figures['commits_per_s']:g} commits, by {CONNECTIONS} connections",
            "row": ROW,
            "service": "roskva capture publisher; one Postgres flow to a subscriber of the library, on uvloop",
            "informed": informed["load"],
        },
        warm_up=f"{min(WARM_UP_S, options.seconds or SECONDS):g} s of the same load",
        figures={**figures, "informed": informed},
        aims=[
            Aim(
                f"rows that came within {WITHIN_MS:g} ms of their commit (the paper's 99.5 %)",
                "%",
                SHARE_AIM,
                figures["within_100_ms_percent"],
                larger_is_better=True,
                kept_up=figures["kept_up"],
            ),
            Aim("a row committed to a client informed, beyond a plain publish, p50", "ms", BEYOND_AIM_MS, max(0.0, beyond_ms)),
        ],
        cpu_seconds=cpu,
        cpu_window_s=window_s,
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def commit_to_callback(server: BenchPostgres, options: Options) -> tuple[dict[str, Any], dict[str, float], float]:
    rate, seconds = options.rate or RATE_PER_S, options.seconds or SECONDS
    commits_per_s = min(COMMITS_PER_S, rate)
    with (
        publishing(server.datastore(), {APPLICATION: {"start": "end"}}) as capture,
        counting(capture, [APPLICATION], timed=True) as counter,
    ):
        capture.riding(1)
        writer = Writer(server)
        say(f"{rate:,.0f} rows/s for {seconds:g} s")
        warm = writer.write(rate, min(WARM_UP_S, seconds), commits_per_s)
        counter.wait(warm.rows, TIMEOUT_S)
        meter = Meter({PUBLISHER: [capture.process.pid], SUBSCRIBER: [counter.process.pid], DATABASE: [server.pid]})
        written = writer.write(rate, seconds, commits_per_s)
        counter.wait(writer.rows, TIMEOUT_S)
        cpu = meter.used()
        falls = sum(flow["falls"] for flow in capture.status()["flows"])
        times_ms = counter.end()[warm.rows :]
    last = counter.last(APPLICATION)
    server.drop_slot("roskva")
    figures: dict[str, Any] = {
        "commit_to_callback_ms": percentiles(times_ms) | {"p99.5": at(times_ms, 99.5), "p99.9": at(times_ms, 99.9)},
        "within_100_ms_percent": round(100 * sum(ms < WITHIN_MS for ms in times_ms) / max(1, len(times_ms)), 3),
        "rows": written.rows,
        "delivered": len(times_ms),
        "repeated": last.repeated,
        "falls": falls,
        "rows_per_s": written.rows_per_s,
        "commits_per_s": commits_per_s,
        "kept_up": written.kept_up,
        "distribution_ms": distribution(times_ms),
    }
    return figures, cpu, meter.seconds


def at(times_ms: array[float], percent: float) -> float:
    ordered = sorted(times_ms)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))], 2) if ordered else 0.0


def distribution(times_ms: array[float]) -> list[list[float]]:
    """Points of the cumulative distribution, closer together at its end: milliseconds, and the share that took no longer."""
    ordered = sorted(times_ms)
    shares = [part / 100 for part in range(101)] + [1.0 - 0.01 * 0.8**step for step in range(1, 30)]
    if not ordered:
        return []
    last = len(ordered) - 1
    return [[round(ordered[min(last, int(len(ordered) * share))], 3), round(share, 5)] for share in sorted(shares)]


def draw(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    lines = [(figures["distribution_ms"], BLUE, "-", "commit to callback")]
    for name, words in (("row", "commit to a client informed"), ("publish", "a plain publish to a client informed")):
        lines.append((figures["informed"][f"{name}_distribution_ms"], RED if name == "row" else GREY, ":", words))
    for points, colour, style, label in lines:
        axes.plot([point[0] for point in points], [100 * point[1] for point in points], color=colour, linestyle=style, label=label)
    axes.plot([WITHIN_MS], [SHARE_AIM], marker="x", color="black")
    axes.annotate(
        "the paper: 99.5 % in 100 ms", (WITHIN_MS, SHARE_AIM), textcoords="offset points", xytext=(-4, -14), ha="right", fontsize=8
    )
    axes.set(xlabel="ms", ylabel="% of rows, of notifications", xscale="log", ylim=(0, 101))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title(f"capture-latency: {document['settings']['load']}", fontsize=9)
