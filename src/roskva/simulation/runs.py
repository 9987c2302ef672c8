"""Many seeds, on all cores, and the smallest world that still fails.

Worlds are deterministic only if sets are: every process that runs them has PYTHONHASHSEED=0.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

from roskva import probes
from roskva.simulation.knobs import Knobs, draw
from roskva.simulation.world import Outcome, simulate

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

HASH_SEED: Final = "PYTHONHASHSEED"
_CHUNK: Final = 10  # seeds that a process takes at once
_GARBAGE_LOOK: Final = 100_000  # new objects between two looks for garbage
_TRIES_MAX: Final = 200  # worlds that the shrinker tries


@dataclass(frozen=True)
class Failure:
    seed: int
    why: str
    checker: str
    steps: int


@dataclass
class Summary:
    """What many runs came to."""

    seeds: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    failures: list[Failure] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.steps += other.steps
        self.failures += other.failures
        self.counts += other.counts
        self.probes += other.probes


def deterministic() -> bool:
    return os.environ.get(HASH_SEED) == "0"


def run_seeds(seeds: Iterable[int]) -> Summary:
    """In this process."""
    summary = Summary()
    hits = probes.count()
    for seed in seeds:
        outcome = simulate(draw(seed), trace=False)
        summary.seeds += 1
        summary.virtual_s += outcome.virtual_s
        summary.steps += outcome.steps
        summary.counts.update(outcome.counts)
        if outcome.failure is not None:
            summary.failures.append(Failure(seed, outcome.failure, outcome.checker, outcome.steps))
    summary.probes.update(hits)
    return summary


def run_many(
    seeds: Iterable[int], processes: int, progress: Callable[[Summary], None], until_s: float | None = None, failures_max: int = 10
) -> Summary:
    """In several processes, until the seeds or the time are used up, or enough of them have failed."""
    total = Summary()
    chunks = _chunks(iter(seeds))
    before = os.environ.get(HASH_SEED)
    os.environ[HASH_SEED] = "0"
    try:
        context = get_context("spawn")
        with ProcessPoolExecutor(processes, context, _prepare, (context.Value("i", 0),)) as pool:
            running: set[Future[Summary]] = {pool.submit(run_seeds, chunk) for chunk in itertools.islice(chunks, processes * 2)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    total.add(one.result())
                progress(total)
                if len(total.failures) < failures_max and (until_s is None or time.monotonic() < until_s):
                    running |= {pool.submit(run_seeds, chunk) for chunk in itertools.islice(chunks, len(done))}
    finally:
        if before is None:
            del os.environ[HASH_SEED]
        else:
            os.environ[HASH_SEED] = before
    total.failures.sort(key=lambda failure: failure.seed)
    return total


def _prepare(started: Synchronized[int]) -> None:
    """In each process of the pool. A world's fibers take turns (fibers.py): on one core, the next one is at hand without a wake-up from
    the other. And worlds leave little garbage before their end: looking for it at the usual pace took a twelfth of the time."""
    with started:
        number, started.value = started.value, started.value + 1
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    gc.set_threshold(_GARBAGE_LOOK)


def _chunks(seeds: Iterator[int]) -> Iterator[list[int]]:
    while chunk := list(itertools.islice(seeds, _CHUNK)):
        yield chunk


def shrink(knobs: Knobs, tried: Callable[[Knobs, Outcome], None] = lambda knobs, outcome: None) -> Outcome:
    """The smallest world found that breaks the same checker: fewer faults, clients, objects, gateways, seconds."""
    worst = simulate(knobs)
    assert worst.failure is not None, "a world that holds cannot be shrunk"
    tries = itertools.count(1)
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(worst.knobs):
            if next(tries) > _TRIES_MAX:
                return worst
            outcome = simulate(smaller)
            tried(smaller, outcome)
            if outcome.failure is not None and outcome.checker == worst.checker:
                worst, shrunk = outcome, True
                break
    return worst


def _smaller(knobs: Knobs) -> Iterator[Knobs]:
    for fault in sorted(knobs.faults):
        yield replace(knobs, faults=knobs.faults - {fault})
    if knobs.busy_s > 2:
        yield replace(knobs, busy_s=knobs.busy_s / 2)
        yield replace(knobs, busy_s=knobs.busy_s * 0.8)
    for name, least in (("applications", 1), ("objects", 1), ("registrations", 1), ("gateways", 1), ("partitions", 1), ("burst", 1)):
        value = getattr(knobs, name)
        for candidate in dict.fromkeys((least, value // 2, value - 1)):
            if least <= candidate < value:
                yield replace(knobs, **{name: candidate})
    for name in ("again", "flapping", "fetch", "slow_applications", "sources", "hot", "skew_s"):
        if getattr(knobs, name):
            yield replace(knobs, **{name: 0.0})  # type: ignore[arg-type]
