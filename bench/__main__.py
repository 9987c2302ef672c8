"""`python -m bench NAME`: runs one measurement or all, prints a table or JSON, keeps results and plots in bench/results."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.plots import draw
from bench.report import RESULTS, Result
from bench.service import BenchFailed, say
from bench.world import Options

NAMES: Final = (
    *("latency", "throughput", "publish", "missed", "idle", "failover", "reconnect", "channels", "contacts", "security"),
    *("sweeping", "figure11", "recovery", "batching"),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    changed = dict(pair.partition("=")[::2] for pair in arguments.set)
    options = Options(arguments.seconds, arguments.clients, arguments.rate, changed)
    status = 0
    for name in NAMES if arguments.name == "all" else (arguments.name,):
        try:
            result = measure(name, options)
        except KeyboardInterrupt:
            print("interrupted; the service is stopped", file=sys.stderr)
            return 130
        except (BenchFailed, OSError, ExceptionGroup) as error:
            print(f"bench {name}: {_reason(error)}", file=sys.stderr)
            status = 1
            continue
        result.write(arguments.results)
        draw(result.document(), arguments.results)
        print(result.json() if arguments.json else result.table(), flush=True)
    return status


def measure(name: str, options: Options) -> Result:
    began_s = time.monotonic()
    print(f"{name}:", file=sys.stderr, flush=True)
    result: Result = importlib.import_module(f"bench.{name}").measure(options)
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
        epilog="Without options the figures are those that docs/performance.md quotes. Others change what is measured, so choose"
        " --results elsewhere for them.",
    )
    parser.add_argument("name", choices=(*NAMES, "all"), metavar="NAME", help=f"one of {', '.join(NAMES)}, or all")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--seconds", type=float, metavar="N", help="length of the measured window, or of each step")
    parser.add_argument("--clients", type=int, metavar="N", help="connected clients")
    parser.add_argument("--rate", type=float, metavar="N", help="latency, channels: publishes/s; contacts: changes/s; throughput: one step")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting of the service; may be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where JSON and plots go (default: bench/results)")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # the same clean way out as Ctrl-C
    sys.exit(main())
