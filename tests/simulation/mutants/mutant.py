"""A mutant: a bug that somebody might have written, as data. Names in plain words, in the order in which data walks through the rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

SWEEPS: Final = "sweeps"
INTERVALS: Final = "intervals"


class Edit(NamedTuple):
    module: str  # below roskva
    old: str  # occurs in it exactly once
    new: str


@dataclass(frozen=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]
    traps: tuple[int, ...] = ()  # the numbers of the traps that it falls into (docs/correctness.md)
    needs: tuple[str, ...] = ()  # faults, sweeps or intervals, without which it does no harm: other worlds are not searched
    breaks: str = ""  # the checker that is to catch it, where another might be quicker


def mutant(name: str, module: str, old: str, new: str, *traps: int, needs: tuple[str, ...] = (), breaks: str = "") -> Mutant:
    return Mutant(name, (Edit(module, old, new),), traps, needs, breaks)
