"""What a seed of the shell's world stands for. Every number is drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from roskva.simulation.capture_shell_subscribers import KINDS

FAULTS: Final = (
    "kill publisher",
    "restart publisher",
    "kill process",
    "restart process",
    "break link",
    "cut",
    "place away",
    "tempers",
    "full",
    "reassign",
    "give away",
    "rewind",
    "pause",
    "move",
    "configure",
    "without application",
)
# Whatever parts a process from its publisher, while a callback may run that nobody waits for.
PARTING: Final = {"break link", "cut", "kill publisher", "restart publisher", "place away", "without application"}


@dataclass(frozen=True)
class Knobs:
    seed: int
    steps: int
    shards: int
    publishers: int
    kinds: tuple[str, ...]  # of the applications
    members: int
    window_bytes: int
    rows_per_batch_max: int
    balance: str
    close_s_max: float
    delay_s: float  # of callbacks, at first
    faults: tuple[str, ...]


def knobs_of(seed: int) -> Knobs:
    dice = Random(f"capture shell {seed}")
    possible = [fault for fault in FAULTS if fault not in PARTING] if dice.random() < 0.3 else FAULTS
    return Knobs(
        seed=seed,
        steps=dice.randint(30, 90),
        shards=dice.randint(1, 3),
        publishers=dice.choice((1, 2, 2, 3)),
        kinds=tuple(dice.sample(KINDS, dice.randint(1, 2))),
        members=dice.randint(1, 3),
        window_bytes=dice.choice((100, 400, 2_000)),
        rows_per_batch_max=dice.choice((1, 5, 40)),
        balance=dice.choice(("coordinated", "weighted")),
        close_s_max=dice.choice((3.0, 15.0)),
        delay_s=dice.choice((0.0, 0.1, 0.7)),
        faults=tuple(fault for fault in possible if dice.random() < 0.35),
    )
