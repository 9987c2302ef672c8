"""Lanes over the table: many waiters, one transaction; errors reach those whom they concern; reads do not wait for writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from roskva.errors import Overloaded, PartitionUnavailable, Unavailable
from roskva.table import SqliteTable
from roskva.table.interface import Cell, Mutation, Row, RowKey
from roskva.table.lanes import MANY_CALLS, QUEUED_CELLS_MAX, Lane, Rounds, TableLanes
from roskva.table.manifest import Manifest


class Observed(SqliteTable):
    """The real table, with its writes counted, held up, or made to fail."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, Manifest.open(data / "manifest.db", 2, "test"))
        self.batches: list[int] = []
        self.reads: list[int] = []
        self.failing: set[tuple[str, int]] = set()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, mutations: Sequence[Mutation]) -> None:
        assert self.gate.wait(10)
        self.batches.append(len(mutations))
        for mutation in mutations:
            if mutation.row[:2] in self.failing:
                raise PartitionUnavailable("It fails.", "test")
        super().write(mutations)

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        self.reads.append(len(rows))
        for row in rows:
            if row[:2] in self.failing:
                raise PartitionUnavailable("It fails.", "test")
        return super().read(rows, prefix, limit, after)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Observed]:
    table = Observed(tmp_path / "data")
    yield table
    table.close()
    table.manifest.close()


def row_of(number: int, partition: int = 0) -> RowKey:
    return RowKey("registrar", partition, b"row-%05d" % number)


def one(number: int, partition: int = 0, value: bytes = b"v") -> Mutation:
    return Mutation(row_of(number, partition), [Cell(b"x", 1, value)])


async def test_many_waiters_share_few_transactions(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    await asyncio.gather(*(lanes.write([one(number)]) for number in range(500)))
    assert len(table.batches) <= 3
    found = await lanes.read([row_of(number) for number in range(500)])
    assert all(found[row_of(number)][b"x"].value == b"v" for number in range(500))
    await lanes.close()


async def test_what_comes_while_it_writes_goes_together_next(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    table.gate.clear()
    first = asyncio.create_task(lanes.write([one(0)]))
    await asyncio.sleep(0.05)
    later = [asyncio.create_task(lanes.write([one(number)])) for number in range(1, 100)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in [first, *later])
    table.gate.set()
    await asyncio.gather(first, *later)
    assert table.batches == [1, 99]
    await lanes.close()


async def test_partitions_do_not_wait_for_each_other_but_a_call_for_all_of_its_own(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    await lanes.write([one(1, 0), one(1, 1), one(2, 0)])
    found = await lanes.read([row_of(1, 0), row_of(1, 1), row_of(2, 0)])
    assert all(found.values())
    assert sorted(table.batches) == [1, 2]
    await lanes.close()


async def test_an_error_reaches_exactly_those_whom_it_concerns(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    table.failing = {("registrar", 1)}
    outcomes = await asyncio.gather(
        lanes.write([one(1, 0)]),
        lanes.write([one(2, 1)]),
        lanes.write([one(3, 0), one(3, 1)]),
        lanes.write([one(4, 0)]),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), PartitionUnavailable, PartitionUnavailable, type(None)]
    table.failing = set()
    await lanes.write([one(2, 1)])
    await lanes.close()


async def test_a_wrong_write_harms_nobody_else(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    strange = Mutation(row_of(7), [Cell(b"x", 1, object())])  # type: ignore[arg-type]
    outcomes = await asyncio.gather(
        lanes.write([one(1)]),
        lanes.write([Mutation(row_of(2), [Cell(b"x", -1, b"")])]),
        lanes.write([strange]),
        lanes.write([one(3)]),
        return_exceptions=True,
    )
    assert outcomes[0] is outcomes[3] is None
    assert isinstance(outcomes[1], ValueError)
    assert isinstance(outcomes[2], ValueError)
    found = await lanes.read([row_of(1), row_of(2), row_of(3), row_of(7)])
    assert [bool(found[row_of(number)]) for number in (1, 2, 3, 7)] == [True, False, True, False]
    await lanes.close()


async def test_reads_asked_for_together_are_done_together_and_do_not_wait_for_writes(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    await lanes.write([one(number) for number in range(100)])
    table.gate.clear()
    writing = asyncio.create_task(lanes.write([one(500)]))
    await asyncio.sleep(0)
    started_s = time.monotonic()
    found = await asyncio.gather(*(lanes.read([row_of(number)], b"x" if number % 2 else b"") for number in range(100)))
    assert time.monotonic() - started_s < 2.0
    assert not writing.done()
    assert all(found[number] == {row_of(number): {b"x": Cell(b"x", 1, b"v")}} for number in range(100))
    assert table.reads == [50, 50]
    table.gate.set()
    await writing
    assert await lanes.read([]) == {}
    await lanes.write([])
    await lanes.close()


async def test_a_failing_partition_fails_only_the_reads_of_it(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    await lanes.write([one(1, 0)])
    table.failing = {("registrar", 1)}
    good, bad = await asyncio.gather(lanes.read([row_of(1, 0)]), lanes.read([row_of(1, 1)]), return_exceptions=True)
    assert isinstance(good, dict)
    assert isinstance(bad, PartitionUnavailable)
    await lanes.close()


async def test_at_the_limit_calls_are_refused(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    table.gate.clear()
    big = Mutation(row_of(0), [Cell(b"%d" % number, 1, b"") for number in range(1_000)])
    waiting = [asyncio.create_task(lanes.write([big])) for _ in range(QUEUED_CELLS_MAX // 1_000)]
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded):
        await lanes.write([one(1)])
    with pytest.raises(Overloaded):
        await lanes.write([one(1), one(1, 1)])
    table.gate.set()
    await asyncio.gather(*waiting)
    await lanes.write([one(1)])
    await lanes.close()


async def test_close_finishes_what_was_asked_for(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    writes = [asyncio.create_task(lanes.write([one(number)])) for number in range(50)]
    await asyncio.sleep(0)
    await lanes.close()
    await asyncio.gather(*writes)
    with pytest.raises(Unavailable):
        await lanes.write([one(1)])
    assert len(table.read([row_of(number) for number in range(50)])) == 50


async def test_a_cancelled_caller_disturbs_nobody(table: Observed) -> None:
    lanes = TableLanes(table, 2)
    table.gate.clear()
    first = asyncio.create_task(lanes.write([one(1), one(1, 1)]))
    second = asyncio.create_task(lanes.write([one(2), one(2, 1)]))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.sleep(0)
    table.gate.set()
    await second
    assert first.cancelled()
    await lanes.close()


async def test_incarnations_are_looked_up_off_the_loop_once_for_all_who_ask(table: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = TableLanes(table, 2)
    real = table.incarnation
    asked: list[tuple[str, int]] = []

    def incarnation(name: str, partition: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        asked.append((name, partition))
        if partition == 1:
            raise PartitionUnavailable("It fails.", "test")
        return real(name, partition)

    monkeypatch.setattr(table, "incarnation", incarnation)
    looks = [lanes.incarnation_of("registrar", number % 2) for number in range(20)]
    outcomes = await asyncio.gather(*looks, return_exceptions=True)
    assert outcomes[::2] == [real("registrar", 0)] * 10
    assert all(isinstance(outcome, PartitionUnavailable) for outcome in outcomes[1::2])
    assert len(asked) == 2
    await lanes.close()


async def test_what_comes_while_a_lane_rests_goes_together_and_what_comes_after_it_at_once() -> None:
    batches: list[list[int]] = []

    def work(items: list[int]) -> list[int | Exception]:
        batches.append(items)
        return list(items)

    lane: Lane[int, int] = Lane("resting", work, 100, 100, rounds=Rounds(0.3))
    assert await lane.submit(1, 1) == 1
    waiting = []
    for item in (2, 3, 4):
        waiting.append(lane.submit(item, 1))
        await asyncio.sleep(0.001)
    assert await asyncio.gather(*waiting) == [2, 3, 4]
    last = lane.submit(5, 1)
    await lane.close()
    assert await last == 5, "to close waits for what was asked for"
    assert batches == [[1], [2, 3, 4], [5]]


async def test_a_lane_rests_by_how_many_calls_came_together() -> None:
    began_s: list[float] = []

    def work(items: list[int]) -> list[int | Exception]:
        began_s.append(time.monotonic())
        return list(items)

    rest_s = 0.4
    lane: Lane[int, int] = Lane("resting", work, 100, 100, rounds=Rounds(rest_s))
    for count in (1, 2, MANY_CALLS, 1):
        await asyncio.gather(*(lane.submit(item, 1) for item in range(count)))
    await lane.close()
    alone_s, few_s, many_s = (after_s - before_s for before_s, after_s in pairwise(began_s))
    assert 0.4 * rest_s < alone_s < few_s < many_s  # the first alone
    assert few_s >= 0.9 * rest_s
    assert many_s >= 1.9 * rest_s


async def test_commits_of_one_partition_may_begin_apart(table: Observed) -> None:
    lanes = TableLanes(table, 2, rest_s=1.0)
    began_s = time.monotonic()
    await lanes.write([one(0)])  # waits for nobody
    writes = []
    for number in range(1, 6):
        writes.append(asyncio.create_task(lanes.write([one(number)])))
        await asyncio.sleep(0.005)
    await lanes.write([one(0, partition=1)])
    await asyncio.gather(*writes)
    assert time.monotonic() - began_s >= 0.5  # half of it, after a call that came alone
    assert sorted(table.batches) == [1, 1, 5]  # one of them another partition's, which does not wait
    await lanes.close()


async def test_calls_that_come_one_by_one_but_fast_rest_as_if_they_came_together() -> None:
    began_s: list[float] = []

    def work(items: list[int]) -> list[int | Exception]:
        began_s.append(time.monotonic())
        return list(items)

    rest_s = 0.4
    lane: Lane[int, int] = Lane("resting", work, 100, 100, rounds=Rounds(rest_s))
    for item in range(3):
        await lane.submit(item, 1)  # each as soon as the one before is done: the second has to wait, and the third for as long as after two
    await lane.close()
    first_s, second_s = (after_s - before_s for before_s, after_s in pairwise(began_s))
    assert 0.4 * rest_s < first_s < 0.9 * rest_s <= second_s


async def test_lanes_that_share_their_rounds_begin_together() -> None:
    """What has parts in several waits for one rest; one that is busy meanwhile is in the next round."""
    began: list[tuple[str, list[int]]] = []
    go_on = threading.Event()

    def work_of(name: str) -> Callable[[list[int]], list[int | Exception]]:
        def work(items: list[int]) -> list[int | Exception]:
            began.append((name, items))
            if items == [1]:
                go_on.wait(10.0)
            return list(items)

        return work

    rounds = Rounds(0.2)
    left: Lane[int, int] = Lane("left", work_of("left"), 100, 100, rounds=rounds)
    right: Lane[int, int] = Lane("right", work_of("right"), 100, 100, rounds=rounds)
    first = left.submit(1, 1)  # and keeps its lane busy
    await asyncio.sleep(0.01)
    began_s = time.monotonic()
    second = left.submit(2, 1)
    third = right.submit(3, 1)
    assert await third == 3
    assert time.monotonic() - began_s >= 0.05, "its own lane has not begun before, but the round was"
    assert not second.done()
    fourth = right.submit(4, 1)
    go_on.set()
    assert list(await asyncio.gather(first, second, fourth)) == [1, 2, 4]
    assert [sorted(began[:1]), sorted(began[1:2]), sorted(began[2:])] == [
        [("left", [1])],
        [("right", [3])],
        [("left", [2]), ("right", [4])],
    ]
    await left.close()
    await right.close()
