"""What is due when (registrar/wheel.py)."""

from __future__ import annotations

from random import Random

from roskva.registrar.wheel import Wheel


def taken(wheel: Wheel[str], now_s: float) -> list[str]:
    return sorted(item for _, item in wheel.take(now_s))


def test_what_is_due_comes_once_and_not_before() -> None:
    wheel: Wheel[str] = Wheel(slot_s=0.5)
    for due_s, item in ((1.1, "a"), (1.3, "b"), (90.0, "c")):
        wheel.put(item, due_s)
    assert taken(wheel, 1.4) == []
    assert taken(wheel, 1.5) == ["a", "b"]
    assert taken(wheel, 80.0) == []
    assert taken(wheel, 1e6) == ["c"]
    assert len(wheel) == 0


def test_nothing_is_late_by_more_than_a_slot_and_nothing_is_lost() -> None:
    random = Random(1)
    wheel: Wheel[str] = Wheel(slot_s=0.25)
    due = {f"{number}": random.uniform(0.0, 50.0) for number in range(2_000)}
    for item, due_s in due.items():
        wheel.put(item, due_s)
    found: dict[str, float] = {}
    for tick in range(210):
        now_s = tick * 0.25
        found |= dict.fromkeys(taken(wheel, now_s), now_s)
    assert found.keys() == due.keys()
    assert all(0.0 <= found[item] - due_s <= 0.5 for item, due_s in due.items())


def test_who_stops_in_between_finds_the_others_the_next_time() -> None:
    wheel: Wheel[str] = Wheel()
    for item in "abc":
        wheel.put(item, 1.0)
    first = next(iter(wheel.take(2.0)))[1]
    assert taken(wheel, 2.0) == sorted({"a", "b", "c"} - {first})


def test_what_is_put_back_at_once_waits_for_the_next_time() -> None:
    wheel: Wheel[str] = Wheel()
    wheel.put("a", 1.0)
    rounds = 0
    for _, item in wheel.take(10.0):
        wheel.put(item, 0.0)
        rounds += 1
    assert rounds == 1
    assert taken(wheel, 10.0) == []
    assert taken(wheel, 10.25) == ["a"]


def test_all_of_one_slot_remember_it_as_one_object() -> None:
    wheel: Wheel[str] = Wheel()
    first, second = wheel.put("a", 100_000.0), wheel.put("b", 100_000.1)
    assert first is second
