"""`roskva simulate`: worlds that try to break the promise, from seeds (docs/correctness.md)."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roskva.errors import BadRequest

if TYPE_CHECKING:
    from roskva.simulation.runs import Summary


def simulate(arguments: argparse.Namespace) -> int:
    from roskva.simulation.runs import HASH_SEED, deterministic

    if arguments.seed is None and (arguments.trace or arguments.minimize):
        raise BadRequest("--trace and --minimize need --seed.")
    if arguments.seed is not None and arguments.json:
        raise BadRequest("--json is for many seeds; --seed N prints its knobs and its outcome.")
    if arguments.seed is not None:
        if not deterministic():
            # The order of sets must be that of the run which found the seed.
            os.execve(sys.executable, [sys.executable, "-m", "roskva", *sys.argv[1:]], {**os.environ, HASH_SEED: "0"})
        return _one(arguments)
    return _many(arguments)


def seeds_from(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
        raise BadRequest(f"{text!r} is not a range of seeds, such as 1-1000.")
    return int(first), int(last) if dash else int(first)


def _many(arguments: argparse.Namespace) -> int:
    from roskva.simulation.runs import run_many

    first, last = seeds_from(arguments.seeds)
    seeds: Iterable[int] = itertools.count(first) if arguments.minutes else range(first, last + 1)
    until_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    bar = _Progress(None if arguments.minutes else last - first + 1)
    total = run_many(seeds, arguments.processes or os.cpu_count() or 1, bar.show, until_s)
    bar.end()
    _report(total, arguments.json, bar.elapsed_s())
    for failure in total.failures:
        print(f"seed {failure.seed} failed: {failure.why}", file=sys.stderr)
        print(f"  {_knobs_in_a_line(failure.seed)}", file=sys.stderr)
        print(f"  look: roskva simulate --seed {failure.seed} --trace     shrink: --seed {failure.seed} --minimize", file=sys.stderr)
    return 1 if total.failures else 0


def _knobs_in_a_line(seed: int) -> str:
    from roskva.simulation.knobs import draw

    knobs = draw(seed).described()
    return ", ".join(f"{name}: {' + '.join(value) if isinstance(value, list) else value}" for name, value in knobs.items())


def _report(total: Summary, as_json: bool, elapsed_s: float) -> None:
    faults = {name.removeprefix("fault: "): count for name, count in total.counts.items() if name.startswith("fault: ")}
    if as_json:
        report = {
            "seeds": total.seeds,
            "failures": [vars(failure) for failure in total.failures],
            "virtual_hours": round(total.virtual_s / 3600, 2),
            "elapsed_s": round(elapsed_s, 1),
            "published": total.counts["published"],
            "faults": dict(sorted(faults.items())),
            "counts": dict(sorted(total.counts.items())),
            "probes": dict(sorted(total.probes.items())),
        }
        print(json.dumps(report))
        return
    print(
        f"{total.seeds:,} seeds, {len(total.failures)} failed; {total.virtual_s / 3600:.1f} hours of virtual time in {elapsed_s:.0f} s, "
        f"{total.counts['published']:,} versions published, {sum(faults.values()):,} faults of {len(faults)} kinds"
    )


def _one(arguments: argparse.Namespace) -> int:
    from roskva.simulation.knobs import draw
    from roskva.simulation.runs import shrink
    from roskva.simulation.world import simulate

    outcome = simulate(draw(arguments.seed))
    if outcome.failure is not None and arguments.minimize:
        outcome = shrink(outcome.knobs, lambda knobs, tried: print(".", end="", file=sys.stderr, flush=True))
        print(file=sys.stderr)
    if arguments.trace:
        print("\n".join(outcome.trace))
    for name, value in outcome.knobs.described().items():
        print(f"  {name:<28} {', '.join(value) if isinstance(value, list) else value}")
    print(f"seed {arguments.seed}: {outcome.failure or 'holds'}  ({outcome.virtual_s:.0f} s, {outcome.steps:,} steps, {outcome.digest})")
    return 1 if outcome.failure else 0


class _Progress:
    """One line on a terminal that moves; nothing where nobody looks."""

    def __init__(self, seeds: int | None) -> None:
        self._seeds = seeds
        self._started_s = time.monotonic()
        self._shows = sys.stderr.isatty()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def show(self, total: Summary) -> None:
        if self._shows:
            rate = total.seeds / max(0.001, self.elapsed_s())
            done = f"{total.seeds:,}" if self._seeds is None else f"{total.seeds:,} of {self._seeds:,}"
            bar = "" if self._seeds is None else "#" * int(20 * total.seeds / self._seeds)
            print(f"\r[{bar:<20}] {done} seeds, {rate:.1f} seeds/s, {len(total.failures)} failed ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shows:
            print(file=sys.stderr)
