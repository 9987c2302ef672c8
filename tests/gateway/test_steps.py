"""A coroutine in steps begins at once, and goes on within the turn that brings the answer of a lane."""

from __future__ import annotations

import asyncio
import logging

import pytest

from roskva.gateway.steps import Steps
from roskva.table.lanes import Lane


def lane(batches: list[list[int]]) -> Lane[int, int]:
    def work(items: list[int]) -> list[int | Exception]:
        batches.append(items)
        return [ValueError(f"not {item}") if item < 0 else 10 * item for item in items]

    return Lane("a test", work, 100, 100)


async def test_it_begins_before_begin_returns_and_goes_on_before_the_next_turn() -> None:
    batches: list[list[int]] = []
    one = lane(batches)
    seen: list[object] = []

    async def work() -> None:
        seen.append("begun")
        seen.append(await one.submit(1, 1))
        seen.append(await one.submit(2, 1))

    Steps(work(), asyncio.get_running_loop()).begin()
    assert seen == ["begun"]
    answered = one.submit(3, 1)
    answered.add_done_callback(lambda _: seen.append("the turn after"))
    while len(seen) < 4:
        await asyncio.sleep(0.001)
    assert seen == ["begun", 10, "the turn after", 20]
    await one.close()
    assert batches == [[1, 3], [2]]


async def test_what_a_lane_raises_is_raised_where_it_is_awaited() -> None:
    one = lane([])
    seen: list[str] = []

    async def work() -> None:
        try:
            await one.submit(-1, 1)
        except ValueError as error:
            seen.append(str(error))

    Steps(work(), asyncio.get_running_loop()).begin()
    await one.close()
    assert seen == ["not -1"]


async def test_locks_and_turns_of_the_loop_can_be_awaited_too() -> None:
    lock = asyncio.Lock()
    seen: list[int] = []

    async def work(number: int) -> None:
        async with lock:
            seen.append(number)
            await asyncio.sleep(0)
            seen.append(number)

    for number in (1, 2):
        Steps(work(number), asyncio.get_running_loop()).begin()
    assert seen == [1]
    async with asyncio.timeout(5):
        while len(seen) < 4:
            await asyncio.sleep(0)
    assert seen == [1, 1, 2, 2]


async def test_a_mistake_in_one_is_logged_and_harms_none_of_those_answered_with_it(caplog: pytest.LogCaptureFixture) -> None:
    one = lane([])
    seen: list[int] = []

    async def wrong() -> None:
        await one.submit(1, 1)
        raise RuntimeError("a mistake")

    async def right() -> None:
        seen.append(await one.submit(2, 1))

    with caplog.at_level(logging.ERROR):
        Steps(wrong(), asyncio.get_running_loop()).begin()
        Steps(right(), asyncio.get_running_loop()).begin()
        await one.close()
    assert seen == [20]
    assert "a mistake" in caplog.text


async def test_after_is_called_when_everybody_has_the_answer() -> None:
    seen: list[object] = []

    def work(items: list[int]) -> list[int | Exception]:
        return list(items)

    one: Lane[int, int] = Lane("a test", work, 100, 100, after=lambda: seen.append("after"))

    async def asks(number: int) -> None:
        seen.append(await one.submit(number, 1))

    for number in (1, 2):
        Steps(asks(number), asyncio.get_running_loop()).begin()
    await one.close()
    assert seen == [1, 2, "after"]
