"""Which server wrote which commit, as far as this process has seen it: so that a number that was given twice is noticed.

Pure. A position has the sequence number of a GTID and not the server that gave it. If a primary is lost with commits that no replica had,
the promoted one gives their numbers again: a datamarker at 105, of the lost server's 105, would skip the new server's 104 and 105 without
a word. Two things are remembered:

- who wrote what was read. What another server is then found to have written is a fork: the numbers after the last that both have, up to
  the last that was read. Whoever stands in it is told of a loss, up to its end (`LogCut`), and reads on after it, with numbers above all
  that were told before. That waits until the new log has come so far;
- positions that were asked for before a log had them. Of a replica that is behind it is expected that the server which wrote its end will
  write them, too; of a server that follows nobody, that it will not itself, since somebody has read there what it lacks. If it comes
  otherwise, whoever asks for that position again is told of a loss.

Known only to this process, while it lives. And a loss may be told where there is none: of a flow that has read the new server's part of a
fork and is opened again within it, or at a replica that lags while the primary changes in good order. Too much then, never too little.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final, NamedTuple

RANGES_MAX: Final = 64  # that are remembered, and as many forks; the oldest are forgotten
EXPECTED_MAX: Final = 4096  # positions, of as many flows


class Range(NamedTuple):
    """Commits of one server."""

    server: int
    first: int
    last: int


class Fork(NamedTuple):
    """Two servers have given the numbers after the first of these, up to the second."""

    after: int
    upto: int


class Expected(NamedTuple):
    server: int
    any_other: bool  # than this server


class Witness:
    """Of one datastore, for all its readers. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: list[Range] = []  # in the order of their numbers, which do not overlap
        self._forks: list[Fork] = []
        self._expected: dict[int, Expected] = {}

    def saw(self, sequence: int, server: int) -> bool:
        """A commit was read. False: another server had written it when it was read before; from now on this one has."""
        with self._lock:
            ranges = self._ranges
            if not ranges or sequence > ranges[-1].last:
                self._add(server, sequence)
                return True
            found = self._range_of(sequence)
            if found is None or found.server == server:
                return True
            self._fork(sequence - 1)
            self._add(server, sequence)
            return False

    def expect(self, sequence: int, server: int, any_other: bool = False) -> None:
        """Somebody has read up to this number, which the log of a server does not have yet. What was expected first stays."""
        with self._lock:
            if len(self._expected) >= EXPECTED_MAX:
                del self._expected[next(iter(self._expected))]
            self._expected.setdefault(sequence, Expected(server, any_other))

    def fork_at(self, sequence: int, writers: Collection[int], common: int) -> Fork | None:
        """If what was read up to this number is not what a log has there, which only these servers can have written; `common`: the last
        number before it that others wrote."""
        with self._lock:
            fork = self._known_fork(sequence)
            if fork is not None or not writers:
                return fork
            found = self._range_of(sequence)
            if found is not None and found.server not in writers:
                self._fork(common)
                return self._known_fork(sequence)
            expected = self._expected.get(sequence)
            if expected is None:
                return None
            if any((server == expected.server) is not expected.any_other for server in writers):
                del self._expected[sequence]
                return None
            return Fork(common, sequence)

    def _known_fork(self, sequence: int) -> Fork | None:
        return next((fork for fork in self._forks if fork.after < sequence <= fork.upto), None)

    def _range_of(self, sequence: int) -> Range | None:
        return next((one for one in reversed(self._ranges) if one.first <= sequence <= one.last), None)

    def _fork(self, after: int) -> None:
        self._forks = [*self._forks, Fork(after, self._ranges[-1].last)][-RANGES_MAX:]
        self._ranges = [one._replace(last=min(one.last, after)) for one in self._ranges if one.first <= after]

    def _add(self, server: int, sequence: int) -> None:
        """Only what follows without a gap is one range: in a gap others may have written."""
        last = self._ranges[-1] if self._ranges else None
        if last is not None and (last.server, last.last + 1) == (server, sequence):
            self._ranges[-1] = last._replace(last=sequence)
        else:
            self._ranges = [*self._ranges, Range(server, sequence, sequence)][-RANGES_MAX:]
