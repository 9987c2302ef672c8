"""capture-datastores: rows of a backlog a second, decoded, and delivered by a real publisher to a real subscriber, for each datastore.

One flow. The rows are committed beforehand; then the reader reads them alone, in a process of its own; then a publisher reads them again
and sends them over its socket to a subscriber in another process, which makes updates of them and counts. Rates are from the first rows to
the last, by the clock of who counts. Once more, a publisher reads them at the pace that is the default for who lags.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bench.capture.counting import Sample, counting
from bench.capture.publishers import UNPACED, publishing
from bench.capture.reading import read_alone
from bench.capture.stores import ROW, Store, files_store, mariadb_store, mysql_store, postgres_store, rocksdb_store
from bench.capture.usage import DATABASE, PUBLISHER, SUBSCRIBER, Meter
from bench.plots import BLUE, GREY, RED
from bench.report import Aim, Result
from bench.service import say
from bench.world import Options

AIM_PER_S: Final = 100_000.0
PER_COMMIT: Final = 100
TIMEOUT_S: Final = 180.0
APPLICATION: Final = "counter"
STORES: Final[dict[str, tuple[Callable[[], AbstractContextManager[Store]], int]]] = {
    "postgres": (postgres_store, 1_000_000),
    "mariadb": (mariadb_store, 500_000),
    "mysql": (mysql_store, 500_000),
    "rocksdb": (rocksdb_store, 500_000),
    "files": (files_store, 500_000),
}
ACKNOWLEDGEMENT: Final = "the subscriber acknowledges when it is asked how far it is, every 30 s, and at its end"
APPROXIMATIONS: Final = [
    "A backlog is read by a caravan that lags, whose pace spares the database: 16 MiB/s, or twice the lead's. Here it may read 64 MiB/s.",
    "What the default pace gives is told apart.",
    "Publisher, subscriber and database share the cores of one machine.",
    "The log is in the memory of the machine when it is read, since it was written just before.",
    "MariaDB, MySQL and Postgres do not sync each commit while the backlog is written; that is before anything is measured.",
    "A row of RocksDB is a key and a value, and its columns are not told apart.",
    "MB/s are of the log as its reader counts it: of Postgres, what the server sends.",
]


def measure(options: Options) -> Result:
    found: list[dict[str, Any]] = []
    cpu: dict[str, dict[str, float]] = {}
    windows_s: dict[str, float] = {}
    for name, (start, rows) in STORES.items():
        with start() as store:
            one, cpu[name], windows_s[name] = measure_store(store, options.clients or rows)
        found.append(one)
        say(f"{name}: decoded {one['decoded_rows_per_s']:,.0f} rows/s, delivered {one['delivered_rows_per_s']:,.0f}")
    return result_of(found, cpu, windows_s)


class Delivered(NamedTuple):
    rows_per_s: float
    sample: Sample  # of the subscriber, when it had all
    sent_bytes: int
    cpu: dict[str, float]
    seconds: float


def measure_store(store: Store, rows: int) -> tuple[dict[str, Any], dict[str, float], float]:
    """The figures of one, who used the processor while rows were delivered, and for how long."""
    store.prepare()
    # A log that was delivered may be dropped, where a slot holds it: who reads it again needs a slot of its own.
    again = replace(store, settings={**store.settings, "slot": "again"}) if "dsn" in store.settings else store
    again.prepare()
    say(f"{store.name}: writing {rows:,} rows")
    store.fill(rows, PER_COMMIT)
    alone = read_alone(store, rows)
    found = _delivered(store, rows, UNPACED)
    paced = _delivered(again, rows, {})
    sample, cpu = found.sample, found.cpu
    figures = {
        "datastore": store.name,
        "rows": rows,
        "log_bytes_a_row": round(alone.bytes_a_row, 1),
        "decoded_rows_per_s": round(alone.rows / alone.seconds, 1),
        "decoded_mb_per_s": round(alone.bytes / alone.seconds / 1e6, 2),
        "delivered_rows_per_s": round(found.rows_per_s, 1),
        "delivered_mb_per_s": round(found.rows_per_s * alone.bytes_a_row / 1e6, 2),
        "sent_mb_per_s": round(found.rows_per_s * found.sent_bytes / sample.rows / 1e6, 2),
        "delivered_by_decoded": round(found.rows_per_s / (alone.rows / alone.seconds), 3),
        "at_the_default_pace_rows_per_s": round(paced.rows_per_s, 1),
        "reader_alone_cpu_s": round(alone.cpu_s, 2),
        "publisher_cpu_s": cpu[PUBLISHER],
        "subscriber_cpu_s": cpu[SUBSCRIBER],
        "database_cpu_s": cpu[DATABASE],
        "repeated": sample.repeated + paced.sample.repeated,
        "lost": sample.lost + paced.sample.lost,
        "rows_delivered": sample.rows,
    }
    return figures, cpu, found.seconds


def _delivered(store: Store, rows: int, limits: dict[str, float]) -> Delivered:
    """All of the backlog, to one subscriber."""
    with (
        publishing(store.settings, {APPLICATION: {"start": "oldest"}}, limits=limits) as capture,
        counting(capture, [APPLICATION]) as counter,
    ):
        counter.wait(1, TIMEOUT_S)
        meter = Meter({PUBLISHER: [capture.process.pid], SUBSCRIBER: [counter.process.pid], DATABASE: store.pids})
        counter.wait(rows, TIMEOUT_S)
        cpu = meter.used()
        sample = counter.last(APPLICATION)
        (sent,) = capture.status()["subscribers"]
    seconds = max(sample.last_s - sample.first_s, 1e-6)
    return Delivered((sample.rows - sample.first_rows) / seconds, sample, sent["bytes_sent"], cpu, meter.seconds)


def result_of(found: list[dict[str, Any]], cpu: dict[str, dict[str, float]], windows_s: dict[str, float]) -> Result:
    first = found[0]
    by_first = {
        one["datastore"]: {
            "decoded": round(one["decoded_rows_per_s"] / first["decoded_rows_per_s"], 3),
            "delivered": round(one["delivered_rows_per_s"] / first["delivered_rows_per_s"], 3),
        }
        for one in found
    }
    return Result(
        name="capture-datastores",
        settings={
            "load": f"one flow, a backlog of {first['rows']:,} rows in commits of {PER_COMMIT}",
            "row": ROW,
            "service": "roskva capture publisher; a subscriber of the library, on uvloop",
            "changed": UNPACED,
        },
        warm_up="none: rates begin with the first rows that came",
        figures={"datastores": found, f"by_{first['datastore']}": by_first, "cpu_seconds_by_datastore": cpu},
        aims=[Aim("rows of one Postgres flow delivered", "/s", AIM_PER_S, first["delivered_rows_per_s"], larger_is_better=True)],
        cpu_seconds=cpu[first["datastore"]],
        cpu_window_s=windows_s[first["datastore"]],
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def draw(axes: Any, document: dict[str, Any]) -> None:
    found = document["figures"]["datastores"]
    places = range(len(found))
    parts = {"decoded": ("by the reader alone", GREY), "delivered": ("to a subscriber", BLUE)}
    for number, (part, (words, colour)) in enumerate(parts.items()):
        per_s = [one[f"{part}_rows_per_s"] for one in found]
        bars = axes.bar([place + 0.4 * number for place in places], per_s, width=0.4, color=colour, label=f"{part} {words}")
        axes.bar_label(bars, [f"{one[f'{part}_mb_per_s']:,.1f} MB/s" for one in found], fontsize=7)
    axes.axhline(AIM_PER_S, color=RED, linestyle=":")
    axes.set_xticks([place + 0.2 for place in places], [one["datastore"] for one in found])
    most = max(max(one["decoded_rows_per_s"], one["delivered_rows_per_s"]) for one in found)
    axes.set(ylabel="rows per second (dotted: the aim of Postgres)", ylim=(0, 1.25 * max(most, AIM_PER_S)))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("capture-datastores: one flow, everything on the same cores", fontsize=10)
