"""capture-flows: 1 to 20 applications on one publisher (Wormhole, Figure 4), at the log's end, and with the same backlog.

At the log's end all applications ride on the lead, while rows are committed at a steady rate: what the datastore is asked for must not
depend on how many there are. Apart from that, each number of applications gets the same backlog: how long it takes, and how many rows and
bytes the publisher sends in all. A new publisher for each step; the subscribers count rows without making updates of them (counting.py).
"""

from __future__ import annotations

from typing import Any, Final

from bench.capture.counting import Counting, counting
from bench.capture.datastores import ACKNOWLEDGEMENT, PER_COMMIT
from bench.capture.publishers import UNPACED, Capture, publishing
from bench.capture.stores import ROW, BenchPostgres, postgres
from bench.capture.usage import DATABASE, PUBLISHER, SUBSCRIBER, Meter, bytes_read
from bench.capture.writers import Writer
from bench.plots import BLUE, RED
from bench.report import Aim, Result
from bench.service import BenchFailed, say
from bench.world import Options

APPLICATIONS: Final = (1, 2, 5, 10, 20)
COMPARED: Final = 10  # applications of the aim
READS_AIM: Final = 1.1
SECONDS: Final = 6.0
RATE_PER_S: Final = 5_000.0
COMMITS_PER_S: Final = 250.0
BACKLOG_S: Final = 40.0  # of the steady rate
TIMEOUT_S: Final = 120.0
APPROXIMATIONS: Final = [
    "All applications' subscribers are one process with a connection for each, which counts rows in their frames and makes no updates.",
    "Publisher, subscribers, writer and database share the cores of one machine: the paper's subscribers had machines of their own.",
    "What the database reads is what its processes for the readers asked the kernel for (rchar), sockets included.",
    "A backlog is read at up to 64 MiB/s, where the default pace is 16 MiB/s or twice the lead's.",
    "The backlog has 200,000 rows, where the paper's had 50 GBytes.",
]


def measure(options: Options) -> Result:
    counts = [count for count in APPLICATIONS if count <= (options.clients or max(APPLICATIONS))]
    seconds, rate = options.seconds or SECONDS, options.rate or RATE_PER_S
    backlog = round(rate * BACKLOG_S * seconds / SECONDS)
    at_end: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    with postgres(max_replication_slots="40") as server:
        cpu: dict[str, float] = {}
        window_s = 0.0
        for count in counts:
            step, cpu, window_s = _at_the_end(server, count, rate, seconds)
            at_end.append(step)
            say(f"{count} at the end: {step['rows_per_s']:,.0f} rows/s, {step['log_bytes_a_row']:,.1f} bytes of log read for a row")
        for count in counts:
            server.store(_slot(count)).prepare()
        server.fill(backlog, PER_COMMIT)
        for count in counts:
            behind.append(_with_backlog(server, count, backlog))
            say(f"{count} with a backlog: {behind[-1]['seconds']:,.1f} s, {behind[-1]['rows_per_s']:,.0f} rows/s in all")
    return result_of(at_end, behind, rate, backlog, cpu, window_s)


def _slot(count: int) -> str:
    return f"flows_{count}"


def _names(count: int) -> list[str]:
    return [f"app{number}" for number in range(1, count + 1)]


def _starting(names: list[str], start: str) -> dict[str, dict[str, object]]:
    return {name: {"start": start} for name in names}


def _roles(capture: Capture, counter: Counting, server: BenchPostgres) -> dict[str, list[int]]:
    return {PUBLISHER: [capture.process.pid], SUBSCRIBER: [counter.process.pid], DATABASE: [server.pid]}


def _at_the_end(server: BenchPostgres, count: int, rate: float, seconds: float) -> tuple[dict[str, Any], dict[str, float], float]:
    names = _names(count)
    with (
        publishing(server.datastore("at_end"), _starting(names, "end")) as capture,
        counting(capture, names, lean=True) as counter,
    ):
        capture.riding(count)
        writer = Writer(server)
        warm = writer.write(rate, min(1.0, seconds), COMMITS_PER_S)
        counter.wait(warm.rows, TIMEOUT_S)
        before, rows_before, senders = capture.status(), counter.rows, server.senders()
        read_before = bytes_read(senders)
        meter = Meter(_roles(capture, counter, server))
        written = writer.write(rate, seconds, COMMITS_PER_S)
        counter.wait(warm.rows + written.rows, TIMEOUT_S)
        cpu = meter.used()
        after = capture.status()
        read_by_database = bytes_read(senders) - read_before
        rows = counter.rows - rows_before
    server.drop_slot("at_end")
    if not written.kept_up:
        raise BenchFailed(f"The database did not take {rate:,.0f} rows/s.")
    step = {
        "applications": count,
        "rows_per_s": round(rows / written.seconds, 1),
        "rows_per_s_each": round(rows / written.seconds / count, 1),
        "log_bytes_a_row": round((after["bytes_read"] - before["bytes_read"]) / written.rows, 2),
        "database_read_bytes_a_row": round(read_by_database / written.rows, 1),
        "sent_bytes_a_row": round((after["bytes_sent"] - before["bytes_sent"]) / written.rows, 1),
        "publisher_cpu_percent": round(100 * cpu[PUBLISHER] / meter.seconds, 1),
        "database_cpu_percent": round(100 * cpu[DATABASE] / meter.seconds, 1),
        "caravans": len(after["caravans"]),
        "falls": sum(flow["falls"] for flow in after["flows"]),
    }
    return step, cpu, meter.seconds


def _with_backlog(server: BenchPostgres, count: int, rows: int) -> dict[str, Any]:
    names, slot = _names(count), _slot(count)
    with publishing(server.datastore(slot), _starting(names, "oldest"), limits=UNPACED) as capture:
        # All flows are there before anybody comes, so that they begin together.
        capture.until(lambda: len(capture.status()["flows"]) == count, "its flows are its own")
        with counting(capture, names, lean=True) as counter:
            capture.until(lambda: bool(counter.rows), "rows come")
            meter = Meter(_roles(capture, counter, server))
            counter.wait(rows, TIMEOUT_S)
            cpu = meter.used()
            status = capture.status()
            lasts = [counter.last(name) for name in names]
    server.drop_slot(slot)
    seconds = max(one.last_s for one in lasts) - min(one.first_s for one in lasts)
    return {
        "applications": count,
        "seconds": round(seconds, 2),
        "rows_per_s": round(sum(one.rows for one in lasts) / seconds, 1),
        "rows_per_s_each": round(rows / seconds, 1),
        "sent_mb_per_s": round(status["bytes_sent"] / seconds / 1e6, 2),
        "log_bytes_a_row": round(status["bytes_read"] / rows, 2),
        "publisher_cpu_s": cpu[PUBLISHER],
        "database_cpu_s": cpu[DATABASE],
        "subscriber_cpu_s": cpu[SUBSCRIBER],
        "falls": sum(flow["falls"] for flow in status["flows"]),
        "repeated": sum(one.repeated for one in lasts),
    }


def result_of(
    at_end: list[dict[str, Any]], behind: list[dict[str, Any]], rate: float, backlog: int, cpu: dict[str, float], window_s: float
) -> Result:
    one = at_end[0]
    many = next((step for step in at_end if step["applications"] == COMPARED), at_end[-1])
    ratios = [
        {
            "applications": step["applications"],
            "log_read": round(step["log_bytes_a_row"] / one["log_bytes_a_row"], 3),
            "database_read": round(step["database_read_bytes_a_row"] / max(1.0, one["database_read_bytes_a_row"]), 3),
            "publisher_cpu": round(step["publisher_cpu_percent"] / max(0.1, one["publisher_cpu_percent"]), 3),
            "backlog_seconds": round(late["seconds"] / behind[0]["seconds"], 3),
            "backlog_rows_per_s": round(late["rows_per_s"] / behind[0]["rows_per_s"], 3),
        }
        for step, late in zip(at_end, behind, strict=True)
    ]
    reads = many["log_bytes_a_row"] / one["log_bytes_a_row"]
    return Result(
        name="capture-flows",
        settings={
            "load": f"1 to {at_end[-1]['applications']} applications; {rate:,.0f} rows/s at the log's end; a backlog of {backlog:,} rows",
            "row": ROW,
            "commits": f"{COMMITS_PER_S:g} a second; of the backlog {PER_COMMIT} rows each",
            "service": "roskva capture publisher, a new one for each step",
            "changed": UNPACED,
        },
        warm_up="1 s of the same rate; for a backlog none",
        figures={"at_the_end": at_end, "with_a_backlog": behind, "by_one_application": ratios},
        aims=[Aim(f"log read for {many['applications']} applications at its end, by that for one", "x", READS_AIM, reads)],
        cpu_seconds=cpu,
        cpu_window_s=window_s,
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def draw(axes: Any, document: dict[str, Any]) -> None:
    at_end, behind = document["figures"]["at_the_end"], document["figures"]["with_a_backlog"]
    counts = [one["applications"] for one in behind]
    axes.plot(counts, [one["seconds"] for one in behind], marker="o", color=BLUE, label="s to deliver the backlog to all")
    axes.set(xlabel="applications on one publisher", ylabel="s", ylim=(0, None), xticks=counts)
    beside = axes.twinx()
    beside.plot(counts, [one["rows_per_s"] / 1000 for one in behind], marker="x", color=RED, label="1,000 rows/s delivered, of the backlog")
    beside.set(ylabel="1,000 rows/s", ylim=(0, None))
    lines = [*axes.get_legend_handles_labels()[0], *beside.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8)
    reads = at_end[-1]["log_bytes_a_row"] / at_end[0]["log_bytes_a_row"]
    words = f"at the log's end {counts[-1]} cost the datastore x {reads:.2f} the reads of {counts[0]}"
    axes.set_title(f"capture-flows: the same backlog for all; {words}", fontsize=9)
