"""Exhaustive in the small: every interleaving of the cores, for a few clients, versions, crashes and lost messages (docs/correctness.md).

Breadth first over distinct states (`exhaustive_world` says what a state is): the first failure found is one of the shortest. In every
state: no client is shown a version after a later one, nor one that was never published. At rest, when nothing is left to happen: every
client has the latest version, or learned "unknown" after it; summaries agree; nothing is pending or unacknowledged in the table. A state at
rest in which this does not hold yet waits for the next deadline; so many in a row are a failure.

What is reduced, and why that is sound. Clients are alike, so states that differ by their exchange are one. When no crash is left, a step
that commutes with all others is taken alone (`_safe_step`). A message's `unsettled` is left out: nothing in the core acts by it. All else
is explored; a run that was stopped by time or by states says so.

How a size relates to larger ones. Two clients multiply the states, and share nothing but the Matcher's row, its batches, the budgets and
the moments at which time passes. Apart from those moments, what one can see with the other beside it, it can see alone: batches begin,
wait and are repeated at any moment anyhow. So one client, complete, says more than two, cut short; two are there to try the Matcher's
core on a row with two copies.

What is not modelled: a message that arrives twice, several Registrars, rows that cannot be read or written, unregistrations.

    python -m roskva.simulation.exhaustive --clients 2 --versions 3 --crashes 1 --losses 1
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from roskva.protocol.messages import decode_client, decode_server
from roskva.simulation.exhaustive_state import CRASH_KINDS, Shared, Size, Step, Tell
from roskva.simulation.exhaustive_world import TIMEOUTS_MAX, Model

_PROGRESS_S = 10.0


@dataclass(slots=True)
class Report:
    size: Size
    states: int = 0
    transitions: int = 0
    terminals: int = 0
    timeouts: int = 0  # states at rest that had to wait for a deadline
    depth: int = 0
    elapsed_s: float = 0.0
    complete: bool = False
    broken: str = ""
    trace: list[str] = field(default_factory=list)

    def text(self) -> str:
        size = self.size
        world = f"{size.clients} clients x 1 object x {size.versions} versions x {size.crashes} crashes x {size.losses} losses"
        if size.delays:
            world += f" x {size.delays} delays"
        if size.ordered:
            world += ", messages in order"
        figures = (
            f"{self.states:,} states, {self.transitions:,} transitions, {self.terminals:,} terminal states, "
            f"{self.timeouts:,} states waited for a deadline, depth {self.depth}, {self.elapsed_s:.1f} s, "
            f"{self.states / max(self.elapsed_s, 1e-9):,.0f} states/s"
        )
        end = f"FAILED: {self.broken}" if self.broken else "complete" if self.complete else "not complete: out of time or states"
        return f"{world}: {figures}: {end}"


def explore(
    size: Size,
    states_max: int | None = None,
    seconds_max: float | None = None,
    progress: Callable[[Report, int], None] | None = None,
    deep: bool = False,
) -> Report:
    """Visit every state, or as many as allowed; stop at the first that breaks something.

    `deep`: depth first, for a size that will not be completed: it comes to rest again and again, instead of never; traces are not short.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing that is kept is ever garbage, and looking through all of it takes half of the time
    try:
        return _explore(Model(size), states_max, seconds_max, progress, deep)
    finally:
        if collecting:
            gc.enable()


def _explore(
    model: Model, states_max: int | None, seconds_max: float | None, progress: Callable[[Report, int], None] | None, deep: bool
) -> Report:
    report = Report(model.size)
    first = model.first()
    parents: dict[int, int] = {first: first}  # every state met, with the state from which it was met first
    waiting = deque([first])
    left_in_level = 1
    began_s = shown_s = time.monotonic()
    while waiting:
        if left_in_level == 0:
            left_in_level, report.depth = len(waiting), report.depth + 1
        if left_in_level % 1_000 == 0 or deep:
            now_s = time.monotonic()
            if progress is not None and now_s - shown_s > _PROGRESS_S:
                shown_s, report.states, report.elapsed_s = now_s, len(parents), now_s - began_s
                progress(report, len(waiting))
            if (seconds_max is not None and now_s - began_s > seconds_max) or (states_max is not None and len(parents) > states_max):
                return _ended(report, model, parents, began_s)
        left_in_level -= not deep
        state = waiting.pop() if deep else waiting.popleft()
        steps, broken = _successors(model, state, report)
        if broken:
            report.broken = broken
            return _ended(report, model, parents, began_s, state)
        for step in steps:
            report.transitions += 1
            after = model.pack(step.shared, step.parts)
            if after in parents:
                continue
            parents[after] = state
            waiting.append(after)
            if fault := next((fault for part in step.parts if (fault := model.fault(part))), ""):
                report.broken = fault
                return _ended(report, model, parents, began_s, after)
    report.complete = True
    return _ended(report, model, parents, began_s)


def _successors(model: Model, state: int, report: Report) -> tuple[list[Step], str]:
    """The steps of a state, and what is wrong with it. One at rest in which all is well is terminal: there, only faults may happen."""
    steps, moving = model.steps(state)
    if moving:
        return steps, ""
    shared, parts = model.unpack(state)
    broken = next((why for part in parts if (why := model.broken_promise(part, shared.published, shared.now))), "")
    if not broken:
        report.terminals += 1
        return steps, ""
    if shared.timeouts >= TIMEOUTS_MAX:
        return [], f"{broken} (after {TIMEOUTS_MAX} deadlines)"
    report.timeouts += 1
    return [*steps, model.time_passes(shared, parts)], ""


def _ended(report: Report, model: Model, parents: dict[int, int], began_s: float, broken: int | None = None) -> Report:
    report.states = len(parents)
    report.elapsed_s = time.monotonic() - began_s
    if broken is not None:
        report.trace = _trace(model, parents, broken)
    return report


def _trace(model: Model, parents: dict[int, int], last: int) -> list[str]:
    """The way to a state, a line for each step. Parts change places as they are put in order; names follow them."""
    path = [last]
    while parents[path[-1]] != path[-1]:
        path.append(parents[path[-1]])
    path.reverse()
    names = [f"client {number}" for number in range(1, model.size.clients + 1)]
    lines = []
    for before, after in itertools.pairwise(path):
        shared, parts = model.unpack(before)
        steps = [*model.steps(before)[0], model.time_passes(shared, parts)]
        step = next(step for step in steps if model.pack(step.shared, step.parts) == after)
        lines.append(_line(step, names[step.part] if step.part >= 0 else "", shared))
        order = sorted(range(len(names)), key=lambda place: step.parts[place])
        names = [names[place] for place in order]
    idle = len(lines)
    while idle and (": heartbeat" in lines[idle - 1] or lines[idle - 1].startswith("time passes")):
        idle -= 1
    told = [f"{number:3} {line}" for number, line in enumerate(lines[:idle], start=1)]
    return [*told, "    and then nothing but heartbeats"] if idle < len(lines) else told


def _line(step: Step, who: str, before: Shared) -> str:
    kind, *rest = step.what
    what = rest[0] if rest else None
    died = f", and the Registrar dies after {rest[-1]} of its durable steps" if "dies after step" in rest else ""
    if isinstance(what, tuple) and str(kind).endswith(("to client", "to server")):
        return _packet_line(str(kind), what[1], who) + died
    if isinstance(what, Tell):
        words = {"tell": "asks the Registrar", "settle": "gets the Registrar's answer", "blind": "writes in the Registrar's stead"}
        told = what.told
        return f"task {what.task}: {words[str(kind)]}: {who}, seqno {told.seqno & 0xFFFFFFFF}, version {told.version}{died}"
    lines = {
        "acknowledge": f"{who}: the application acknowledges {'unknown' if what is None else f'version {what}'}",
        "flush": f"the Registrar writes the acknowledgements of {who}",
        "marks": f"the Registrar looks at the row of {who}, which is marked",
        "client dies": f"{who} dies and starts again; the Registrar {'is told' if what else 'does not notice'}",
        "registrar dies": f"the Registrar dies{' with its connections' if what else '; connections live on and are announced'}",
        "driver dies": "the pipeline's driver dies with its tasks",
        "driver dies, workers live on": "the pipeline's driver dies; its tasks live on as orphans",
        "publish": f"version {what} is published",
        "begin": f"a batch begins: tasks {', '.join(map(str, rest))}",
        "commit": "the batch is committed",
        "orphan ends": f"task {what} ends",
        "write": f"task {what} writes",
        "read": f"task {what} reads and matches",
        "time": f"time passes: {before.now:.1f} s to {what:.1f} s" if isinstance(what, float) else "",
    }
    return lines[str(kind)] + died


def _packet_line(kind: str, data: bytes, who: str) -> str:
    lost = "lost: " if kind.startswith("lose") else ""
    if kind.endswith("to client"):
        return f"{lost}Registrar to {who}: {_server_words(data)}"
    return f"{lost}{who} to Registrar: {_client_words(data)}"


def _server_words(data: bytes) -> str:
    message = decode_server(data)
    words = ["grant"] if message.grant else []
    words += [f"start anew ({message.start_anew.code})"] if message.start_anew else []
    words += [status.state for status in message.status]
    words += [f"notify {f'version {told.version}' if told.version else 'unknown'}" for told in message.notify]
    words += ["please sync"] if message.sync_request else []
    has = "" if message.summary is None else f" [has {message.summary.count}]"
    return (", ".join(words) or "heartbeat") + has


def _client_words(data: bytes) -> str:
    message = decode_client(data, 1 << 20)
    words = [f"init {'with its token' if message.init.prior else ''}".strip()] if message.init else []
    words += ["register"] * len(message.register)
    words += [f"ack {f'version {ack.version}' if ack.version else 'unknown'}" for ack in message.acks]
    words += ["sync"] if message.sync else []
    wishes = "" if message.summary is None else f" [wishes {message.summary.count}]"
    return (", ".join(words) or "heartbeat") + wishes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roskva.simulation.exhaustive", description="All interleavings of a small world.")
    for name, default in (("clients", 2), ("versions", 3), ("crashes", 1), ("losses", 1), ("delays", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    described = "; ".join(f"{name}: {what}" for name, what in CRASH_KINDS.items())
    parser.add_argument("--kinds", default=",".join(sorted(Size().kinds)), help=f"of crashes, joined by commas. {described}")
    parser.add_argument("--ordered", action="store_true", help="messages of a connection arrive in order, unless lost; else in any order")
    parser.add_argument("--states-versions", action="store_true", help="applications name the version they hold when they register")
    parser.add_argument("--deep", action="store_true", help="depth first: for a size that will not be completed")
    parser.add_argument("--seconds", type=float, help="stop after so long; else it runs to the end")
    parser.add_argument("--states", type=int, help="stop after so many states; one takes some 500 bytes")
    given = parser.parse_args(arguments)
    kinds = frozenset(given.kinds.split(","))
    if unknown := kinds - CRASH_KINDS.keys():
        parser.error(f"no kind of crash: {', '.join(sorted(unknown))}")
    size = Size(given.clients, given.versions, given.crashes, given.losses, given.delays, kinds, given.ordered, given.states_versions)
    report = explore(size, given.states, given.seconds, _show, given.deep)
    print(report.text())
    for line in report.trace:
        print(line)
    return 1 if report.broken else 0


def _show(report: Report, waiting: int) -> None:
    rate = report.states / max(report.elapsed_s, 1e-9)
    line = f"{report.elapsed_s:7.0f} s  depth {report.depth:3}  {report.states:>13,} states  {report.transitions:>14,} transitions"
    print(f"{line}  {report.terminals:>9,} terminal  {rate:>9,.0f} states/s  {waiting:,} wait", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
