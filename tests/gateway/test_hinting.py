"""Updates are told together, and the more there is to tell, the longer they are gathered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from roskva.gateway.hinting import REST_S_MAX, RESTS, TOLD_PER_TURN, Hinting
from roskva.model import ObjectKey, Stamps, Update


def update(version: int) -> Update:
    return Update(ObjectKey(b"demo\x000\x00hello"), version, "")


class Told:
    def __init__(self, takes_s: float = 0.0) -> None:
        self.calls: list[tuple[float, list[int]]] = []
        self._takes_s = takes_s

    def __call__(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        self.calls.append((time.perf_counter(), [one.version for one in updates]))
        until_s = time.perf_counter() + self._takes_s
        while time.perf_counter() < until_s:
            pass

    @property
    def versions(self) -> list[list[int]]:
        return [versions for _, versions in self.calls]


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


async def test_after_telling_much_it_gathers_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only telling moves: however busy the machine is, it took as long as it says."""
    clock_s = [100.0]
    monkeypatch.setattr("roskva.gateway.hinting.time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    told = Told()

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        told(updates, stamps)
        clock_s[0] += 0.03

    hinting = Hinting(tell)
    hinting.hint([update(1)], [])
    await asyncio.sleep(0)
    for version in range(2, 6):
        hinting.hint([update(version)], [])
        await asyncio.sleep(0)
    assert told.versions == [[1]]
    while len(told.calls) < 2:
        await asyncio.sleep(0.01)
    assert told.versions == [[1], [2, 3, 4, 5]]
    assert told.calls[1][0] - told.calls[0][0] >= 0.03 * RESTS - 0.002  # the timer's resolution is a millisecond


async def test_many_updates_are_told_in_turns_and_without_a_rest() -> None:
    told = Told(takes_s=0.01)
    hinting = Hinting(told)
    hinting.hint([update(0)], [])
    await asyncio.sleep(0)  # and now it would rest for 30 ms
    hinting.hint([update(1)], [])
    hinting.hint([update(version) for version in range(2, 2 * TOLD_PER_TURN + 2)], [])
    sizes = []
    for _ in range(3):
        await asyncio.sleep(0)
        sizes.append(len(told.calls[-1][1]))
    assert sizes == [TOLD_PER_TURN, TOLD_PER_TURN, 1]
    assert [version for versions in told.versions for version in versions] == list(range(2 * TOLD_PER_TURN + 2))


async def test_a_rest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr("roskva.gateway.hinting.time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    told = Told()

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        told(updates, stamps)
        clock_s[0] += 1_000.0

    hinting = Hinting(tell)
    hinting.hint([update(1)], [])
    await asyncio.sleep(0)
    hinting.hint([update(2)], [])
    async with asyncio.timeout(100 * REST_S_MAX):
        while len(told.calls) < 2:
            await asyncio.sleep(0.01)
    hinting.stop()


async def test_stamps_go_with_their_updates() -> None:
    found: list[tuple[int, list[int]]] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps]) -> None:
        found.append((len(updates), [one.version for one in stamps]))

    hinting = Hinting(tell)
    last = TOLD_PER_TURN + 10
    stamps = [Stamps(update(version).object, version, 0, 1) for version in (3, last)]
    hinting.hint([update(version) for version in range(last + 1)], stamps)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert found == [(TOLD_PER_TURN, [3]), (11, [last])]


async def test_nothing_is_told_after_the_stop() -> None:
    told = Told()
    hinting = Hinting(told)
    hinting.hint([update(1)], [])
    hinting.stop()
    hinting.hint([update(version) for version in range(2 * TOLD_PER_TURN)], [])
    await asyncio.sleep(0.01)
    assert told.versions == []
