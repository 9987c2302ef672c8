"""Timers of very many: each rings once, at its last deadline, however often that was moved."""

from __future__ import annotations

import random

import pytest

from roskva.load.wheel import TICK_S, Wheel


def rung(wheel: Wheel, until_s: float, step_s: float = TICK_S) -> list[tuple[int, float]]:
    found, now_s = [], 0.0
    while now_s < until_s:
        now_s += step_s
        found += [(number, now_s) for number in wheel.due(now_s)]
    return found


def test_a_deadline_rings_once_and_never_early() -> None:
    wheel = Wheel(3, 0.0)
    wheel.set(0, 1.0)
    wheel.set(2, 0.5)
    assert [number for number, _ in rung(wheel, 0.45)] == []
    found = dict(rung(wheel, 3.0))
    assert set(found) == {0, 2}
    assert 1.0 <= found[0] <= 1.0 + 2 * TICK_S
    assert 0.5 <= found[2] <= 0.5 + 2 * TICK_S


def test_a_deadline_that_is_put_off_or_brought_forward_rings_at_the_last_one_only() -> None:
    wheel = Wheel(2, 0.0)
    for at_s in (1.0, 5.0, 2.0, 8.0):
        wheel.set(0, at_s)
    for at_s in (9.0, 3.0, 6.0, 1.0):
        wheel.set(1, at_s)
    found = rung(wheel, 20.0)
    assert [number for number, _ in found] == [1, 0]
    assert found[0][1] == pytest.approx(1.0, abs=2 * TICK_S)
    assert found[1][1] == pytest.approx(8.0, abs=2 * TICK_S)


def test_a_deadline_beyond_the_wheel_comes_in_its_time() -> None:
    wheel = Wheel(1, 0.0)
    wheel.set(0, 1_200.0)
    ((number, at_s),) = rung(wheel, 1_300.0, step_s=1.0)
    assert number == 0
    assert at_s == pytest.approx(1_200.0, abs=1.1)


def test_whatever_is_set_by_chance_rings_at_its_last_deadline() -> None:
    dice = random.Random(7)
    wheel, wanted, found = Wheel(50, 0.0), dict[int, float](), dict[int, float]()
    for step in range(4_000):
        now_s = step * TICK_S
        for number in wheel.due(now_s):
            assert number in wanted
            assert wanted.pop(number) <= now_s + 1e-9
            found[number] = now_s
        if step < 2_000:
            number = dice.randrange(50)
            wanted[number] = now_s + dice.random() * 60.0
            wheel.set(number, wanted[number])
    assert not wanted
    assert len(found) == 50
