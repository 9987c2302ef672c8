"""Updates are told together, and the more there is to tell, the longer they are gathered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from roskva.gateway.hinting import REST_S_MAX, RESTS, TOLD_PER_TURN, Hinting
from roskva.model import ObjectKey, Stamps, Update


def update(version: int) -> Update:
    return Update(ObjectKey(b"demo\x000\x00hello"), version, "")


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[float, list[int]]] = []

    def __call__(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        self.calls.append((time.perf_counter(), [one.version for one in updates]))

    @property
    def versions(self) -> list[list[int]]:
        return [versions for _, versions in self.calls]


class Clock:
    """Stands still, but for what telling takes: however busy the machine is, it took as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("roskva.gateway.hinting.time", SimpleNamespace(monotonic=lambda: self.now_s))

    def telling(self, told: Told, takes_s: float) -> Callable[[Sequence[Update], Sequence[Stamps]], None]:
        def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
            told(updates, stamps)
            self.now_s += takes_s

        return tell


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_accepted_in_one_turn_is_told_in_the_next_together() -> None:
    told = Told()
    hinting = Hinting(told)
    hinting.hint([update(1)], [])
    hinting.hint([update(2)], [])
    assert told.versions == []
    await asyncio.sleep(0)
    assert told.versions == [[1, 2]]
    await asyncio.sleep(0.002)
    hinting.hint([update(3)], [])
    await asyncio.sleep(0)
    assert told.versions == [[1, 2], [3]]


async def test_what_a_commit_brought_is_told_without_another_turn_of_the_loop() -> None:
    told = Told()
    hinting = Hinting(told)
    hinting.hint([update(1)], [])
    hinting.flush()
    assert told.versions == [[1]]
    hinting.flush()
    await turns(3)
    assert told.versions == [[1]]  # once


async def test_a_flush_cuts_neither_a_turn_nor_a_rest_short(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    hinting = Hinting(Clock(monkeypatch).telling(told, 0.1))
    hinting.hint([update(1)], [])
    hinting.flush()
    hinting.hint([update(2)], [])
    hinting.flush()
    assert told.versions == [[1]]  # the loop has not come round
    await turns(2)
    hinting.flush()
    assert told.versions == [[1]]  # it rests
    hinting.stop()
    hinting.flush()
    assert told.versions == [[1]]


async def test_after_telling_much_it_gathers_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = 0.15
    told = Told()
    hinting = Hinting(Clock(monkeypatch).telling(told, took_s))
    hinting.hint([update(1)], [])
    await asyncio.sleep(0)
    for version in range(2, 6):
        hinting.hint([update(version)], [])
        await asyncio.sleep(0)
    assert told.versions == [[1]]
    while len(told.calls) < 2:
        await asyncio.sleep(0.01)
    assert told.versions == [[1], [2, 3, 4, 5]]
    assert told.calls[1][0] - told.calls[0][0] >= took_s * RESTS - 0.002  # the timer's resolution is a millisecond


async def test_what_the_loop_does_after_the_telling_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Told()
    hinting = Hinting(told)
    hinting.hint([update(1)], [])
    hinting.flush()
    clock.now_s += 0.2  # it reads what clients have sent
    await asyncio.sleep(0)
    hinting.hint([update(2)], [])
    await turns(3)
    assert told.versions == [[1]]
    while len(told.calls) < 2:
        await asyncio.sleep(0.01)
    assert told.calls[1][0] - told.calls[0][0] >= 0.2 * RESTS - 0.002


async def test_a_loop_with_time_to_spare_hardly_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Told()
    hinting = Hinting(clock.telling(told, 0.001))
    for version in range(5):
        hinting.hint([update(version)], [])
        hinting.flush()
        await asyncio.sleep(0)
        clock.now_s += 0.001 * RESTS + 1e-6
    assert told.versions == [[0], [1], [2], [3], [4]]


class Loop:
    """Something waits for it, or nothing does."""

    def __init__(self) -> None:
        self.waits = False

    def __call__(self) -> bool:
        return self.waits


async def test_while_the_loop_is_behind_it_gathers_until_that_has_a_moment_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, loop = Clock(monkeypatch), Told(), Loop()
    hinting = Hinting(clock.telling(told, 0.001), loop)
    hinting.hint([update(1)], [])
    loop.waits = True
    hinting.flush()
    assert told.versions == [[1]]  # nothing had waited before
    await turns(2)
    clock.now_s += 0.01  # any rest is over
    for version in (2, 3, 4):
        hinting.hint([update(version)], [])
        hinting.flush()
        await turns(3)
    assert told.versions == [[1]]
    loop.waits = False
    await turns(2)
    assert told.versions == [[1], [2, 3, 4]]


async def test_one_moment_to_spare_since_the_last_telling_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, loop = Clock(monkeypatch), Told(), Loop()
    hinting = Hinting(clock.telling(told, 0.001), loop)
    hinting.hint([update(1)], [])
    hinting.flush()
    await turns(2)
    clock.now_s += 0.01
    hinting.hint([update(2)], [])  # now it had one
    loop.waits = True
    hinting.flush()
    assert told.versions == [[1], [2]]


async def test_a_loop_that_never_has_a_moment_tells_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, loop = Clock(monkeypatch), Told(), Loop()
    loop.waits = True
    hinting = Hinting(clock.telling(told, 0.001), loop)
    hinting.hint([update(1)], [])
    await turns(3)
    for _ in range(5):
        clock.now_s += REST_S_MAX / 5 - 1e-6
        hinting.hint([update(2)], [])
        await turns(2)
    assert told.versions == [[1]]
    clock.now_s += 1e-4
    await turns(2)
    assert told.versions == [[1], [2] * 5]


async def test_many_updates_wait_for_no_moment_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, loop = Clock(monkeypatch), Told(), Loop()
    loop.waits = True
    hinting = Hinting(clock.telling(told, 0.0), loop)
    hinting.hint([update(1)], [])
    await turns(3)
    clock.now_s += 0.01
    hinting.hint([update(2)], [])
    hinting.hint([update(version) for version in range(3, TOLD_PER_TURN + 10)], [])
    await turns(2)
    assert [len(versions) for versions in told.versions] == [1, TOLD_PER_TURN]


async def test_many_updates_are_told_in_turns_and_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    hinting = Hinting(Clock(monkeypatch).telling(told, 0.1))
    hinting.hint([update(0)], [])
    await turns(2)  # and now it would rest for 20 ms
    hinting.hint([update(1)], [])
    hinting.hint([update(version) for version in range(2, 2 * TOLD_PER_TURN + 2)], [])
    await turns(3)
    assert [len(versions) for versions in told.versions] == [1, TOLD_PER_TURN, TOLD_PER_TURN]
    while len(told.calls) < 4:
        await asyncio.sleep(0.01)
    assert [version for versions in told.versions for version in versions] == list(range(2 * TOLD_PER_TURN + 2))


async def test_a_rest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    hinting = Hinting(Clock(monkeypatch).telling(told, 1_000.0))
    hinting.hint([update(1)], [])
    await turns(2)
    hinting.hint([update(2)], [])
    async with asyncio.timeout(100 * REST_S_MAX):
        while len(told.calls) < 2:
            await asyncio.sleep(0.01)
    hinting.stop()


async def test_a_telling_that_fails_is_not_the_last() -> None:
    calls: list[int] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        calls.append(len(updates))
        if len(calls) == 1:
            raise RuntimeError("a mistake")

    hinting = Hinting(tell)
    hinting.hint([update(1)], [])
    with pytest.raises(RuntimeError, match="a mistake"):
        hinting.flush()
    await turns(2)
    hinting.hint([update(2)], [])
    await asyncio.sleep(0.01)
    assert calls == [1, 1]


async def test_stamps_go_with_their_updates() -> None:
    found: list[tuple[int, list[int]]] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        found.append((len(updates), [one.version for one in stamps]))

    hinting = Hinting(tell)
    last = TOLD_PER_TURN + 10
    stamps = [Stamps(update(version).object, version, 0, 1) for version in (3, last)]
    hinting.hint([update(version) for version in range(last + 1)], stamps)
    await asyncio.sleep(0.05)
    assert found == [(TOLD_PER_TURN, [3]), (11, [last])]


async def test_nothing_is_told_after_the_stop() -> None:
    told = Told()
    hinting = Hinting(told)
    hinting.hint([update(1)], [])
    hinting.stop()
    hinting.hint([update(version) for version in range(2 * TOLD_PER_TURN)], [])
    await asyncio.sleep(0.01)
    assert told.versions == []
