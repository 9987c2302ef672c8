"""What reached the subscribers: reads the files that their processes write (subscribing.py), and counts.

A shard's rows come in order, and after an interruption from its datamarker on: whatever is not above the highest row so far came again,
and whatever lies between that and the next one was skipped, which must not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.service import BenchFailed


class Rows(NamedTuple):
    """Rows of one shard that came together: `first`, and every `shards`-th number up to `last`."""

    at_s: float
    application: str
    shard: int
    first: int
    last: int
    size: int
    age_s: float  # from their commits until they were here, on average


class Notice(NamedTuple):
    at_s: float
    application: str
    shard: int


class Asked(NamedTuple):
    """A datamarker was asked for."""

    at_s: float
    application: str
    shard: int
    bytes: int


class Records:
    """All that was written so far; `read_on` reads what is new."""

    def __init__(self, shards: int = 1) -> None:
        self.rows: list[Rows] = []
        self.notices: list[Notice] = []
        self.asked: list[Asked] = []
        self.losses = 0
        self._shards = shards
        self._read: dict[Path, int] = {}

    def add(self, path: Path) -> None:
        self._read.setdefault(path, 0)

    def read_on(self) -> list[Rows]:
        """The rows that are new, in the order of their arrival."""
        found: list[Rows] = []
        for path, begin in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read()
            whole = data.rfind(b"\n") + 1  # a process may be in the middle of a line
            self._read[path] = begin + whole
            found += filter(None, map(self._take, data[:whole].decode().splitlines()))
        found.sort()
        self.rows += found
        return found

    def _take(self, line: str) -> Rows | None:
        kind, at_us, application, shard, *numbers = line.split(" ")
        at_s = int(at_us) / 1e6
        if kind == "u":
            first, last, waited_us = map(int, numbers)
            count = (last - first) // self._shards + 1
            return Rows(at_s, application, int(shard), first, last, count, waited_us / 1e6 / count)
        if kind == "n":
            self.notices.append(Notice(at_s, application, int(shard)))
        elif kind == "t":
            self.asked.append(Asked(at_s, application, int(shard), int(numbers[0])))
        else:
            self.losses += 1
        return None


class Tally:
    """How much came, came again, and did not come, of one application."""

    def __init__(self, shards: int = 1, begins: int = 0) -> None:
        self.delivered = 0
        self.repeated = 0
        self.skipped = 0
        self._shards = shards
        self._highest = {shard: begins + (shard - begins) % shards - shards for shard in range(shards)}

    def take(self, rows: Rows) -> int:
        """How many of these had come before."""
        highest = self._highest[rows.shard]
        self.skipped += max(0, (rows.first - highest) // self._shards - 1)
        repeated = min(rows.size, max(0, (highest - rows.first) // self._shards + 1))
        self._highest[rows.shard] = max(highest, rows.last)
        self.delivered += rows.size
        self.repeated += repeated
        return repeated

    def has(self, count: int) -> bool:
        """Whether all rows below this number have come."""
        return all(highest > count - 1 - self._shards for highest in self._highest.values())

    @property
    def least(self) -> int:
        """All rows below this number have come."""
        return min(highest + self._shards for highest in self._highest.values())


def checked(tallies: Mapping[str, Tally], losses: int) -> None:
    """A measurement in which anything was lost is none."""
    skipped = {name: tally.skipped for name, tally in tallies.items() if tally.skipped}
    if skipped or losses:
        raise BenchFailed(f"Rows were skipped ({skipped or 'none'}), or told as lost {losses} times: that must not be.")


def ages_ms(rows: Iterable[Rows], from_s: float, until_s: float, applications: Sequence[str]) -> list[float]:
    """Of every row that arrived in this time, its age then; rows that came together have the mean of theirs."""
    wanted = frozenset(applications)
    return [1000 * one.age_s for one in rows if from_s <= one.at_s < until_s and one.application in wanted for _ in range(one.size)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
