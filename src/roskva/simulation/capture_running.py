"""What the worlds of capture have in common at their end: what broke is said with its seed, and what seeds have gone through is counted."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from roskva.simulation.capture_checkers import Broken, Checkers


class World(Protocol):
    knobs: Any  # each world has its own
    trace: deque[str]
    counts: Counter[str]
    checkers: Checkers


@contextmanager
def told(seed: int, world: World) -> Iterator[None]:
    """If it breaks inside: by which seed, with which knobs, and what happened last."""
    try:
        yield
    except Broken as broken:
        broken.add_note(f"seed {seed}: {asdict(world.knobs)}\n" + "\n".join(world.trace))
        raise


def main(run: Callable[[int], World], first: int, last: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, last + 1):
        world = run(seed)
        counts += world.counts + Counter(repeats=world.checkers.repeats, losses=world.checkers.losses)
    sys.stdout.write(f"{last - first + 1} worlds hold: {dict(sorted(counts.items()))}\n")
