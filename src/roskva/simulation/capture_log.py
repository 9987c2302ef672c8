"""The simulated log of a database and its replicas: it grows by commits of many rows, is replicated whole commits at a time, and is cut."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

from roskva.capture.flows import Routed
from roskva.capture.positions import BEGINNING, Position
from roskva.errors import LogCut

ROW_BYTES_MAX = 40


class Log:
    """All that was ever committed, in order. `payload` of each is its index here."""

    def __init__(self, applications: list[str], shards: int) -> None:
        self.entries: list[Routed] = []
        self.positions: list[Position] = []
        self.commits: list[int] = []  # how many entries there were after each
        self._applications = applications
        self._shards = shards
        self._history = 1
        self._sequence = 0

    def commit(self, dice: Random, rows: int, today_us: int) -> list[Routed]:
        """Rows of any shards; each is wanted by some applications, and the last index of a commit may be of a row that nobody wants."""
        self._sequence += dice.choice((1, 1, 7, 40))
        added: list[Routed] = []
        for index in range(1, rows + 1):
            wanted = frozenset(name for name in self._applications if dice.random() < 0.8)
            position = Position(self._history, self._sequence, index)
            size = dice.randint(1, ROW_BYTES_MAX)
            added.append(Routed(position, dice.randrange(self._shards), wanted, size, today_us, len(self.entries) + len(added)))
        self.entries += added
        self.positions += [entry.position for entry in added]
        self.commits.append(len(self.entries))
        return added

    def promote(self) -> None:
        """From now on another replica is written to."""
        self._history += 1

    def index_after(self, position: Position) -> int:
        """Of the first entry that comes after it."""
        return bisect_right(self.positions, position)

    def end_of(self, commits: int) -> Position:
        """After so many commits."""
        return BEGINNING if commits == 0 else self.positions[self.commits[commits - 1] - 1]._replace(index=Position(0, 0).index)


class Replica:
    def __init__(self, log: Log) -> None:
        self._log = log
        self.commits = 0  # that have arrived here
        self.oldest = BEGINNING
        self.forced = BEGINNING  # the part of `oldest` that nobody confirmed

    @property
    def end(self) -> Position:
        return max(self._log.end_of(self.commits), self.oldest)

    def replicate(self, commits: int) -> None:
        self.commits = min(self.commits + commits, len(self._log.commits))

    def cut(self, position: Position, forced: bool) -> None:
        self.oldest = max(self.oldest, min(position, self.end))
        if forced:
            self.forced = max(self.forced, self.oldest)

    def read_after(self, position: Position, rows_max: int) -> tuple[list[Routed], Position]:
        """The next rows, perhaps only a part of a commit, and how far that is."""
        if position < self.oldest:
            raise LogCut(position, self.oldest)
        last = self._log.commits[self.commits - 1] if self.commits else 0
        first = self._log.index_after(position)
        found = self._log.entries[first : min(first + rows_max, last)]
        if first + len(found) >= last:
            return found, max(position, self.end)
        return found, found[-1].position
