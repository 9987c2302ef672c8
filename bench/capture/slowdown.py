"""capture-slowdown: the database's own transaction rate with capture on and off, in turns.

pgbench, the load that comes with Postgres (three updates, an insert and a select for each transaction), as fast as its connections can, and
then at half of that. In turns capture is off (no slot, no process), and on: a publisher and a subscriber that gets all rows. The database
logs for logical decoding in both. Ratios are of medians.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.capture.counting import Counting, counting
from bench.capture.datastores import ACKNOWLEDGEMENT
from bench.capture.publishers import Capture, publishing
from bench.capture.stores import DATABASE, BenchPostgres, postgres
from bench.capture.usage import DATABASE as OF_DATABASE
from bench.capture.usage import PUBLISHER, SUBSCRIBER, Meter
from bench.plots import BLUE, GREY, RED
from bench.report import Result
from bench.service import BenchFailed, say
from bench.world import Options
from tests.capture.stores.servers_postgres import binaries

TURNS: Final = (False, True, True, False, False, True)  # whether capture is on
PACED_TURNS: Final = (False, True, True, False)
SECONDS: Final = 8.0  # of a turn
SCALE: Final = 10  # of pgbench: a million accounts
CONNECTIONS: Final = 4
TABLES: Final = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers")  # of its history, which has no key, nothing is captured
SLOT: Final = "slowdown"
ON: Final = "on"
OFF: Final = "off"
APPLICATION: Final = "counter"
TIMEOUT_S: Final = 120.0
APPROXIMATIONS: Final = [
    "pgbench, the database, the publisher and the subscriber share two cores: what capture takes of them, the database lacks.",
    "wal_level is logical with capture off, too: what that costs by itself is in both.",
    "Three of the four rows that a transaction changes are captured: pgbench's history has no key.",
    "Autovacuum is off; before each turn the database makes a checkpoint.",
]


class Turn(NamedTuple):
    transactions: int
    per_s: float
    latency_ms: float


def measure(options: Options, turns_on: Sequence[bool] = TURNS, paced_on: Sequence[bool] = PACED_TURNS) -> Result:
    seconds, connections = max(1, round(options.seconds or SECONDS)), options.clients or CONNECTIONS
    scale = SCALE if options.seconds is None else 1
    with postgres() as server:
        _pgbench(server, "-i", "-q", "-s", str(scale))
        turns = [_turn(server, on, seconds, connections, None) for on in turns_on]
        rate = options.rate or statistics.median(turn["transactions_per_s"] for turn in turns if turn["capture"] == OFF) / 2
        paced = [_turn(server, on, seconds, connections, rate) for on in paced_on]
    return result_of(turns, paced, seconds, connections, scale)


def _turn(server: BenchPostgres, on: bool, seconds: int, connections: int, rate: float | None) -> dict[str, Any]:
    arguments = ["-c", str(connections), "-j", "1", "-T", str(seconds), *(["-R", f"{rate:.0f}"] if rate else [])]
    server.execute(DATABASE, "CHECKPOINT")
    with _capture(server) if on else contextlib.nullcontext() as running:
        roles = {OF_DATABASE: [server.pid]}
        if running is not None:
            roles |= {PUBLISHER: [running[0].process.pid], SUBSCRIBER: [running[1].process.pid]}
        meter = Meter(roles)
        turn = parsed(_pgbench(server, *arguments))
        cpu = meter.used()
        delivered = 0
        if running is not None:
            _, counter = running
            late = counter.last(APPLICATION).rows
            counter.wait(len(TABLES) * turn.transactions, TIMEOUT_S)
            delivered = counter.last(APPLICATION).rows
            say(f"{late:,} of {delivered:,} rows had come when pgbench ended")
    say(f"capture {ON if on else OFF}: {turn.per_s:,.0f} transactions/s, {turn.latency_ms:.2f} ms each")
    return {
        "capture": ON if on else OFF,
        "transactions_per_s": turn.per_s,
        "latency_ms": turn.latency_ms,
        "transactions": turn.transactions,
        "rows_delivered": delivered,
        "database_cpu_ms_a_transaction": round(1000 * cpu[OF_DATABASE] / turn.transactions, 3),
        "publisher_cpu_percent": round(100 * cpu.get(PUBLISHER, 0.0) / meter.seconds, 1),
        "cpu_seconds": cpu,
        "seconds": meter.seconds,
    }


@contextlib.contextmanager
def _capture(server: BenchPostgres) -> Iterator[tuple[Capture, Counting]]:
    datastore = {**server.datastore(SLOT), "publication": SLOT, "tables": list(TABLES)}
    with publishing(datastore, {APPLICATION: {"start": "end"}}) as capture, counting(capture, [APPLICATION]) as counter:
        capture.riding(1)
        yield capture, counter
    server.drop_slot(SLOT)


def _pgbench(server: BenchPostgres, *arguments: str) -> str:
    program = binaries() / "pgbench"
    reach = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
    done = subprocess.run([program, *reach, *arguments, DATABASE], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BenchFailed(f"pgbench failed: {done.stderr[-1000:]}")
    return done.stdout


def parsed(text: str) -> Turn:
    """What pgbench prints at its end."""
    found = [
        re.search(pattern, text)
        for pattern in (r"actually processed: (\d+)", r"tps = ([\d.]+) \(without initial", r"latency average = ([\d.]+) ms")
    ]
    transactions, per_s, latency_ms = (float(one[1]) if one else 0.0 for one in found)
    if not transactions or not per_s:
        raise BenchFailed(f"pgbench said something unexpected: {text[-1000:]}")
    return Turn(int(transactions), round(per_s, 1), round(latency_ms, 3))


def _median(turns: list[dict[str, Any]], capture: str, name: str) -> float:
    return float(statistics.median(turn[name] for turn in turns if turn["capture"] == capture))


def result_of(turns: list[dict[str, Any]], paced: list[dict[str, Any]], seconds: int, connections: int, scale: int) -> Result:
    def ratio(of: list[dict[str, Any]], name: str) -> float:
        return round(_median(of, ON, name) / max(1e-9, _median(of, OFF, name)), 3)

    last = next(turn for turn in reversed(turns) if turn["capture"] == ON)
    figures = {
        "transactions_per_s_on_by_off": ratio(turns, "transactions_per_s"),
        "latency_on_by_off": ratio(turns, "latency_ms"),
        "database_cpu_on_by_off": ratio(turns, "database_cpu_ms_a_transaction"),
        "at_half_the_rate": {
            "latency_on_by_off": ratio(paced, "latency_ms"),
            "database_cpu_on_by_off": ratio(paced, "database_cpu_ms_a_transaction"),
        },
        "turns": [_told(turn) for turn in turns],
        "turns_at_half_the_rate": [_told(turn) for turn in paced],
    }
    return Result(
        name="capture-slowdown",
        settings={
            "load": f"pgbench, scale {scale}, {connections} connections, turns of {seconds} s with capture on and off",
            "service": "roskva capture publisher, and a subscriber of the library, on uvloop",
        },
        warm_up="none",
        figures=figures,
        aims=[],
        cpu_seconds=last["cpu_seconds"],
        cpu_window_s=last["seconds"],
        acknowledgement=ACKNOWLEDGEMENT,
        approximations=APPROXIMATIONS,
    )


def _told(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in turn.items() if name not in ("cpu_seconds", "seconds")}


def draw(axes: Any, document: dict[str, Any]) -> None:
    figures = document["figures"]
    turns = figures["turns"]
    colours = [BLUE if turn["capture"] == ON else GREY for turn in turns]
    names = [f"{number}: {turn['capture']}" for number, turn in enumerate(turns, 1)]
    bars = axes.bar(names, [turn["transactions_per_s"] for turn in turns], color=colours)
    axes.bar_label(bars, [f"{turn['latency_ms']:.1f} ms" for turn in turns], fontsize=8)
    for capture, style in ((OFF, ":"), (ON, "--")):
        axes.axhline(_median(turns, capture, "transactions_per_s"), color=RED, linestyle=style, linewidth=0.8)
    axes.set(xlabel="turns, capture on and off (lines: medians)", ylabel="transactions per second")
    half = figures["at_half_the_rate"]["latency_on_by_off"]
    on_by_off = figures["transactions_per_s_on_by_off"]
    axes.set_title(f"capture-slowdown: on / off x {on_by_off:.2f}; at half the rate each transaction takes x {half:.2f}", fontsize=9)
