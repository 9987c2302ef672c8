"""`python -m bench NAME...`: runs some measurements or all, prints a table or JSON, keeps results and plots in bench/results.

What was measured in another form than its own, by `all` or by options, is kept apart from that (bench/results/smaller).
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import document
from bench.plots import draw
from bench.report import RESULTS, SMALLER, Aim, Result, module_of
from bench.service import BenchFailed, say
from bench.world import Options

NAMES: Final = (
    *("latency", "throughput", "burst", "publish", "missed", "idle", "failover", "reconnect", "channels", "contacts", "security"),
    *("sweeping", "objects", "loss", "figure6", "figure7", "figure8", "figure9", "figure11", "recovery", "batching"),
)
# Those of bench/capture. They need database servers, and are not among `all`.
CAPTURE: Final = (
    *("capture-datastores", "capture-flows", "capture-burst", "capture-subscriber", "capture-latency", "capture-slowdown"),
    *("capture-caravans", "capture-lag", "capture-datamarkers", "capture-failover", "capture-balance"),
)
GROUPS: Final = {"all": NAMES, "capture": CAPTURE}

MINUTES_AIM: Final = 40.0  # for `all`
# What `all` makes smaller than the measurement by itself, to take no longer than that; `all --full` does not.
SHORTER: Final[dict[str, dict[str, Any]]] = {
    "batching": {"seconds": 5.0},
    "channels": {"seconds": 5.0},
    "contacts": {"seconds": 10.0},
    "failover": {"clients": 4_000, "settings": {"settling_s": "20"}},  # by default each of its two losses is two minutes after a start
    "figure6": {"clients": 30_000},
    "figure7": {"clients": 30_000},
    "figure11": {"seconds": 50.0},
    "idle": {"clients": 500, "seconds": 6.0},  # of the whole service; the crowds of a gateway alone are smaller in proportion
    "latency": {"seconds": 12.0},
    "loss": {"seconds": 8.0},
    "reconnect": {"clients": 5_000},
    "recovery": {"clients": 10_000},
    "sweeping": {"clients": 40_000, "seconds": 8.0},
}


def shortened(name: str, options: Options) -> Options:
    """As `all` has it, but for what was asked for."""
    shorter = SHORTER.get(name, {})
    unasked = {field: value for field, value in shorter.items() if field != "settings" and getattr(options, field) is None}
    return replace(options, **unasked, settings={**shorter.get("settings", {}), **options.settings})


def form_of(options: Options) -> str:
    """In words, what is not as the measurement has it by itself; empty: nothing."""
    numbers = ((options.clients, "clients"), (options.seconds, "s"), (options.rate, "/s"))
    chosen = [f"{value:,.10g} {unit}" for value, unit in numbers if value is not None]
    return ", ".join([*chosen, *(f"{name} = {value}" for name, value in sorted(options.settings.items()))])


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    changed = dict(pair.partition("=")[::2] for pair in arguments.set)
    if arguments.gateways:
        changed["gateways"] = str(arguments.gateways)
    options = Options(arguments.seconds, arguments.clients, arguments.rate, changed)
    shorter = "all" in arguments.names and not arguments.full
    status, took_s = 0, dict[str, float]()
    for name in chosen(arguments.names):
        began_s = time.monotonic()
        try:
            asked = shortened(name, options) if shorter else options
            result = replace(measure(name, asked), form=form_of(asked))
        except KeyboardInterrupt:
            print("interrupted; the service is stopped", file=sys.stderr)
            return 130
        except (BenchFailed, OSError, ExceptionGroup) as error:
            print(f"bench {name}: {_reason(error)}", file=sys.stderr)
            status = 1
            continue
        folder = arguments.results or (SMALLER if result.form else RESULTS)
        result.write(folder)
        draw(result.document(), folder)
        print(result.json() if arguments.json else result.table(), flush=True)
        if arguments.results is None:
            document.write()
        took_s[name] = round(time.monotonic() - began_s, 1)
    if len(took_s) == len(NAMES) and shorter and arguments.results is None and not form_of(options):
        whole_run(took_s).write(SMALLER)
        document.write()
    return status


def whole_run(took_s: dict[str, float]) -> Result:
    """How long all of them took, one after the other: nobody runs what takes an hour."""
    minutes = sum(took_s.values()) / 60
    return Result(
        name="all",
        settings={"load": "each in the form that `make bench` has"},
        warm_up="none",
        figures={"took_s": took_s},
        aims=[Aim("time for all of `make bench`", "min", MINUTES_AIM, round(minutes, 1))],
        cpu_seconds={},
        cpu_window_s=0.0,
        form="all, one after the other",
    )


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order in which they were asked for."""
    return tuple(dict.fromkeys(name for given in names for name in GROUPS.get(given, (given,))))


def measure(name: str, options: Options) -> Result:
    began_s = time.monotonic()
    print(f"{name}:", file=sys.stderr, flush=True)
    result: Result = importlib.import_module(module_of(name)).measure(options)
    say(f"done in {time.monotonic() - began_s:.0f} s")
    return result


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}" if isinstance(error, BenchFailed) else f"{type(error).__name__}: {error}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures a real service that it starts on this machine, in a temporary directory, on a free port.",
        epilog="Results go to bench/results, and into the tables of docs/performance.md and docs/peers.md. Options change what is"
        " measured: such results go to bench/results/smaller, and into a table of their own.",
    )
    names = f"some of {', '.join(NAMES)}, or all; figure8 and figure9 together are of one run; {', '.join(CAPTURE)}, or capture for these"
    parser.add_argument("names", choices=(*NAMES, *CAPTURE, *GROUPS), metavar="NAME", nargs="+", help=names)
    parser.add_argument("--full", action="store_true", help="all: every one in full size, which takes more than an hour")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--seconds", type=float, metavar="N", help="length of the measured window, or of each step; capture: of each part")
    parser.add_argument("--clients", type=int, metavar="N", help="connected clients; capture: rows, applications or writers")
    parser.add_argument("--rate", type=float, metavar="N", help="latency, channels: publishes/s; contacts: changes/s; throughput: one step")
    parser.add_argument("--gateways", type=int, metavar="N", help="gateways on the one port (default: as `roskva up` chooses)")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting of the service; may be repeated")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where JSON and plots go, and no table then (default: bench/results)")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # the same clean way out as Ctrl-C
    sys.exit(main())
