"""The circuit breaker for rows, and the search for the rows that fail: pure but for a clock that the test moves."""

from __future__ import annotations

from collections import deque

import pytest

from roskva.propagation import breaker as module
from roskva.propagation.breaker import HURRIED_S, Breaker, Pieces
from roskva.table.interface import RowKey

HERE, BESIDE, ELSEWHERE = (RowKey("matcher", partition, key) for partition, key in ((1, b"a"), (1, b"b"), (2, b"a")))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_partition_is_hurried_for_a_while_after_its_last_failure(clock: Clock) -> None:
    breaker = Breaker(clock)
    assert not breaker.hurried(HERE)
    breaker.put_aside([HERE])
    assert breaker.hurried(HERE)
    assert breaker.hurried(BESIDE)
    assert not breaker.hurried(ELSEWHERE)
    clock.now_s += HURRIED_S - 1
    breaker.put_aside([BESIDE])
    clock.now_s += 2
    assert breaker.hurried(HERE)
    clock.now_s += HURRIED_S
    assert not breaker.hurried(HERE)


def test_a_row_fails_until_it_is_served(clock: Clock) -> None:
    breaker = Breaker(clock)
    breaker.put_aside([HERE])
    assert (breaker.failing(HERE), breaker.failing(BESIDE)) == (True, False)
    clock.now_s += 10 * HURRIED_S
    assert breaker.failing(HERE)
    breaker.served([HERE, BESIDE])
    assert not breaker.failing(HERE)


def test_tries_in_vain_take_a_tenth_of_the_time(clock: Clock) -> None:
    breaker = Breaker(clock)
    breaker.put_aside([HERE])
    assert breaker.may_try(HERE)
    clock.now_s += 0.05
    breaker.tried_in_vain(HERE, clock.now_s - 0.05)
    clock.now_s += 0.4
    assert not breaker.may_try(HERE)
    assert breaker.may_try(BESIDE), "those that did not fail themselves have a time of their own"
    clock.now_s += 0.2
    assert breaker.may_try(HERE)
    breaker.tried_in_vain(HERE, clock.now_s - 60.0)
    clock.now_s += 2.1
    assert breaker.may_try(HERE), "one that hangs is tried every two seconds all the same"


def test_a_failure_says_nothing_of_others_if_others_were_served_meanwhile(clock: Clock) -> None:
    breaker = Breaker(clock)
    breaker.put_aside([HERE])
    began_s = clock.now_s
    clock.now_s += 0.1
    breaker.served([RowKey("matcher", 1, b"c")])
    breaker.tried_in_vain(BESIDE, began_s)
    assert breaker.may_try(RowKey("matcher", 1, b"c"))
    clock.now_s += 1
    breaker.tried_in_vain(BESIDE, clock.now_s - 0.1)
    assert not breaker.may_try(RowKey("matcher", 1, b"c"))


def test_what_is_remembered_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", 10)
    breaker = Breaker(clock)
    rows = [RowKey("matcher", 0, b"%d" % number) for number in range(25)]
    breaker.put_aside(rows)
    assert [breaker.failing(row) for row in rows] == [False] * 15 + [True] * 10


def search(items: list[int], failing: set[int], clock: Clock, took_s: float = 0.0) -> tuple[list[int], int]:
    """Which were found to work, and how many calls failed."""
    pieces, work, done, failures = Pieces(clock), deque([items]), list[int](), 0
    while work and not pieces.over():
        piece = work.popleft()
        if failing & set(piece):
            clock.now_s += took_s
            failures += 1
            work += pieces.halves(piece)  # type: ignore[arg-type]
        else:
            done += piece
    return done, failures


def test_the_few_that_fail_are_found_among_many(clock: Clock) -> None:
    items = list(range(1_000))
    done, failures = search(items, {17, 500}, clock)
    assert sorted(done) == [item for item in items if item not in (17, 500)]
    assert failures <= 22


def test_where_all_fail_the_search_ends_soon(clock: Clock) -> None:
    assert search(list(range(10_000)), set(range(10_000)), clock) == ([], 32)
    done, failures = search(list(range(10_000)), set(range(5_000)), clock, took_s=0.2)
    assert failures == 2
    assert done == [], "it hangs: time counts, not calls"
