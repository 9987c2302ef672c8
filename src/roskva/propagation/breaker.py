"""A circuit breaker for rows: what could not be written a moment ago gets quick tries, and no patience, so that nobody waits for it.

A worker keeps one from task to task. Where something was put aside, its partition is hurried for some seconds after the last failure:
what is there is tried once, and what fails is put aside at once. Rows that failed are tried apart from the others, so that they
take nobody along. Failing tries may take a tenth of the time, whether the table answers quickly or hangs. Imports no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from roskva.table.interface import RowKey

HURRIED_S: Final = 10.0  # after the last failure
_TRIES_SHARE: Final = 0.1  # of the time, for tries that fail
_TRY_EVERY_MAX_S: Final = 2.0  # but there is one so often
_ROWS_MAX: Final = 20_000  # known to fail; more are forgotten, the longest known first
_PIECES_MAX: Final = 32  # failing calls while the failing rows of one part are looked for
_PIECES_S: Final = 0.25

Place = tuple[str, int]  # table and partition
T = TypeVar("T")


class Breaker:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing: dict[RowKey, None] = {}  # in the order in which they were put aside
        self._hurried_until_s: dict[Place, float] = {}
        self._served_s: dict[Place, float] = {}
        self._next_try_s: dict[tuple[Place, bool], float] = {}  # of rows that fail, and of the others

    def hurried(self, row: RowKey) -> bool:
        """Whether something of its partition was put aside a moment ago."""
        until_s = self._hurried_until_s.get(row[:2])
        return until_s is not None and self._clock() < until_s

    @property
    def any_failing(self) -> bool:
        """Without any, nobody needs to look row by row."""
        return bool(self._failing)

    def failing(self, row: RowKey) -> bool:
        """Whether this row was put aside, and not served since."""
        return row in self._failing

    def may_try(self, row: RowKey) -> bool:
        return self._clock() >= self._next_try_s.get((row[:2], self.failing(row)), float("-inf"))

    def tried_in_vain(self, row: RowKey, began_s: float) -> None:
        """A quick try of it failed. It says nothing about those that did not fail themselves, if others of them were served in it."""
        known = self.failing(row)
        if known or self._served_s.get(row[:2], float("-inf")) < began_s:
            now_s = self._clock()
            self._next_try_s[row[:2], known] = now_s + min((now_s - began_s) / _TRIES_SHARE, _TRY_EVERY_MAX_S)

    def put_aside(self, rows: Iterable[RowKey]) -> None:
        until_s = self._clock() + HURRIED_S
        for row in rows:
            self._hurried_until_s[row[:2]] = until_s
            self._failing[row] = None
        while len(self._failing) > _ROWS_MAX:
            del self._failing[next(iter(self._failing))]

    def served(self, rows: Iterable[RowKey]) -> None:
        if not self._failing:
            return
        now_s = self._clock()
        for row in rows:
            self._served_s[row[:2]] = now_s
            self._next_try_s.pop((row[:2], False), None)
            self._failing.pop(row, None)


class Pieces:
    """Looks for the rows that fail: what fails as a whole is tried in halves, within limits of failing calls and of their time.

    Callers ask before each call whether the search is over, and try the larger pieces first: if it ends, most of what works was found.
    """

    def __init__(self, clock: Callable[[], float], calls_max: int = _PIECES_MAX, seconds: float = _PIECES_S) -> None:
        self._clock = clock
        self._failures = 0
        self._calls_max = calls_max
        self._seconds = seconds
        self._failing_s = 0.0
        self._asked_s = clock()

    def over(self) -> bool:
        """Whether what is left must wait, whole as it is."""
        self._asked_s = self._clock()
        return self._failures >= self._calls_max or self._failing_s >= self._seconds

    def halves(self, items: Sequence[T]) -> list[Sequence[T]]:
        """What to try after these failed together; nothing if it is a single one."""
        self._failures += 1
        self._failing_s += self._clock() - self._asked_s
        if len(items) < 2:
            return []
        middle = len(items) // 2
        return [items[:middle], items[middle:]]
