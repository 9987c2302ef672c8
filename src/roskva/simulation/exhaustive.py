"""Exhaustive in the small: every interleaving of the cores, for a few clients, versions, crashes and lost messages (docs/correctness.md).

Breadth first over distinct states (`exhaustive_world` says what a state is): the first failure found is one of the shortest. In every
state: no client is shown a version after a later one, nor one that was never published. At rest, when nothing is left to happen: every
client has the latest version, or learned "unknown" after it; summaries agree; nothing is pending or unacknowledged in the table. A
client for which this does not hold yet waits for its next deadline; so many in a row are a failure.

What is reduced, and why that is sound. Clients are alike, so states that differ by their exchange are one. Of steps that commute with
all that may happen without them, only one order is looked at (`exhaustive_reduction`; `--unreduced` looks at all). A message's
`unsettled` is left out: nothing in the core acts by it. All else is explored; a run that was stopped by time or by states says so.

How one client speaks for several: `exhaustive_composition`. `--views` checks its premise for each step of a search with several.

What is not modelled: several Registrars, and rows that cannot be read or written. With `--ordered`, messages of a connection do not
overtake each other.

    python -m roskva.simulation.exhaustive --clients 1 --versions 3 --crashes 1 --losses 1 --ordered
    python -m roskva.simulation.exhaustive --clients 2 --versions 1 --crashes 1 --losses 1 --ordered --views
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from roskva.simulation.exhaustive_composition import Views
from roskva.simulation.exhaustive_part import VERSIONS_MAX
from roskva.simulation.exhaustive_state import CRASH_KINDS, Size
from roskva.simulation.exhaustive_trace import trace
from roskva.simulation.exhaustive_world import Model

_PROGRESS_S = 10.0


@dataclass(slots=True)
class Report:
    size: Size
    states: int = 0
    transitions: int = 0
    terminals: int = 0
    timeouts: int = 0  # states at rest that had to wait for a deadline
    depth: int = 0
    views: int = 0  # of one client among several, each step of which was checked to be one that it could take alone
    elapsed_s: float = 0.0
    complete: bool = False
    broken: str = ""
    trace: list[str] = field(default_factory=list)

    def text(self) -> str:
        figures = (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.terminals:,} terminal states, "
            f"{self.timeouts:,} states waited for a deadline, depth {self.depth}, {self.elapsed_s:.1f} s, "
            f"{self.states / max(self.elapsed_s, 1e-9):,.0f} states/s"
        )
        if self.views:
            figures += f", {self.views:,} views of one client"
        end = f"FAILED: {self.broken}" if self.broken else "complete" if self.complete else "not complete: out of time or states"
        return f"{self.size.text()}: {figures}: {end}"


@dataclass(frozen=True, slots=True)
class Limits:
    states: int | None = None
    seconds: float | None = None


def explore(
    size: Size,
    states_max: int | None = None,
    seconds_max: float | None = None,
    progress: Callable[[Report, int], None] | None = None,
    deep: bool = False,
    views: bool = False,
) -> Report:
    """Visit every state, or as many as allowed; stop at the first that breaks something.

    `deep`: depth first, for a size that will not be completed: it comes to rest again and again, instead of never; traces are not short.
    `views`: check each step against what each client could do alone (`exhaustive_composition`).
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing that is kept is ever garbage, and looking through all of it takes half of the time
    try:
        search = Search(Model(size), deep, views)
        return search.run(Limits(states_max, seconds_max), progress)
    finally:
        if collecting:
            gc.enable()


class Search:
    def __init__(self, model: Model, deep: bool = False, views: bool = False) -> None:
        self.model = model
        self.report = Report(model.size)
        self._deep = deep
        self._views = Views(model) if views else None
        self._waiting = deque(model.firsts())
        self._parents = {first: first for first in self._waiting}  # every state met, with the state from which it was met first
        self._began_s = self._shown_s = time.monotonic()

    def run(self, limits: Limits, progress: Callable[[Report, int], None] | None) -> Report:
        left_in_level = len(self._waiting)
        broken: int | None = None
        while self._waiting and broken is None:
            if left_in_level == 0:
                left_in_level, self.report.depth = len(self._waiting), self.report.depth + 1
            if (left_in_level % 1_000 == 0 or self._deep) and self._is_over(limits, progress):
                return self._ended()
            left_in_level -= not self._deep
            broken = self._visit(self._waiting.pop() if self._deep else self._waiting.popleft())
        self.report.complete = broken is None
        return self._ended(broken)

    def _visit(self, state: int) -> int | None:
        """Go on from a state. The state that is wrong, if one is: this one or one after it."""
        if self._views is None and (states := self.model.after_moves(state)) is not None:
            self.report.transitions += len(states)
            return self._go_on(state, states)
        report = self.report
        following = self.model.following(state)
        report.terminals += following.at_rest and not following.waits
        report.timeouts += following.waits
        report.transitions += len(following.steps)
        report.broken = following.broken or ("" if self._views is None else self._views.refuted(state, following))
        if report.broken:
            return state
        return self._go_on(state, [self.model.pack(step.shared, step.parts) for step in following.steps])

    def _go_on(self, state: int, states: list[int]) -> int | None:
        for after in states:
            if after not in self._parents:
                self._parents[after] = state
                self._waiting.append(after)
                if fault := self.model.fault(after):
                    self.report.broken = fault
                    return after
        return None

    def _is_over(self, limits: Limits, progress: Callable[[Report, int], None] | None) -> bool:
        now_s = time.monotonic()
        self.report.states, self.report.elapsed_s = len(self._parents), now_s - self._began_s
        if progress is not None and now_s - self._shown_s > _PROGRESS_S:
            self._shown_s = now_s
            progress(self.report, len(self._waiting))
        too_long = limits.seconds is not None and self.report.elapsed_s > limits.seconds
        return too_long or (limits.states is not None and self.report.states > limits.states)

    def _ended(self, broken: int | None = None) -> Report:
        report = self.report
        report.states, report.views = len(self._parents), 0 if self._views is None else len(self._views)
        report.elapsed_s = time.monotonic() - self._began_s
        if broken is not None:
            path = [broken]
            while self._parents[path[-1]] != path[-1]:
                path.append(self._parents[path[-1]])
            report.trace = trace(self.model, path[::-1])
        return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roskva.simulation.exhaustive", description="All interleavings of a small world.")
    counts = {"clients": 2, "versions": 3, "crashes": 1, "losses": 1, "repeats": 0, "delays": 0, "unregistrations": 0}
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    described = "; ".join(f"{name}: {what}" for name, what in CRASH_KINDS.items())
    parser.add_argument("--kinds", default=",".join(sorted(Size().kinds)), help=f"of crashes, joined by commas. {described}")
    parser.add_argument("--ordered", action="store_true", help="messages of a connection arrive in order, unless lost; else in any order")
    parser.add_argument("--states-versions", action="store_true", help="applications name the version they hold when they register")
    parser.add_argument("--unreduced", action="store_true", help="take steps that commute in every order")
    parser.add_argument("--views", action="store_true", help="check that each step of several clients is, for each, a step of one alone")
    parser.add_argument("--deep", action="store_true", help="depth first: for a size that will not be completed")
    parser.add_argument("--seconds", type=float, help="stop after so long; else it runs to the end")
    parser.add_argument("--states", type=int, help="stop after so many states; a million takes 1 GB with one client, 0.1 with two")
    given = parser.parse_args(arguments)
    kinds = frozenset(given.kinds.split(","))
    if unknown := kinds - CRASH_KINDS.keys():
        parser.error(f"no kind of crash: {', '.join(sorted(unknown))}")
    if not 0 <= given.versions <= VERSIONS_MAX:
        parser.error(f"at most {VERSIONS_MAX} versions")
    flags = {"ordered": given.ordered, "states_versions": given.states_versions, "reduced": not given.unreduced}
    size = Size(**{name: getattr(given, name) for name in counts}, kinds=kinds, **flags)
    report = explore(size, given.states, given.seconds, _show, given.deep, given.views)
    print(f"{report.text()}; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")
    for line in report.trace:
        print(line)
    return 1 if report.broken else 0


def _show(report: Report, waiting: int) -> None:
    rate = report.states / max(report.elapsed_s, 1e-9)
    line = f"{report.elapsed_s:7.0f} s  depth {report.depth:3}  {report.states:>13,} states  {report.transitions:>14,} transitions"
    print(f"{line}  {report.terminals:>9,} terminal  {rate:>9,.0f} states/s  {waiting:,} wait", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
