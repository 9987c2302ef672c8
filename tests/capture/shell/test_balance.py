"""Balance: every flow has a process, light ones get more, and little moves."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roskva.capture.balance import STRATEGIES, Strategy, Subscriber, coordinated, strategy, weighted
from roskva.errors import InvalidSetting

members = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 200), max_size=80), members, members, st.integers(0, 2**32))
@pytest.mark.parametrize("place", STRATEGIES.values())
def test_every_flow_has_a_process_that_is_there(place: Strategy, shards: set[int], before: list[str], now: list[str], seed: int) -> None:
    dice = random.Random(seed)
    first = place(shards, {}, [Subscriber(member) for member in before], dice.random)
    second = place(shards, first, [Subscriber(member, load=dice.random() * 2) for member in now], dice.random)
    assert second.keys() == (shards if now else set())
    assert set(second.values()) <= set(now)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 200), max_size=80), members, members)
def test_coordinated_spreads_by_one_at_most_and_moves_no_more_than_it_must(shards: set[int], before: list[str], now: list[str]) -> None:
    first = coordinated(shards, {}, [Subscriber(member) for member in before], lambda: 0.5)
    second = coordinated(shards, first, [Subscriber(member) for member in now], lambda: 0.5)
    if not now:
        return
    counts = Counter(second.values())
    assert max(counts.values(), default=0) - min((counts[member] for member in now), default=0) <= 1
    # A flow moves only if its process is gone, or had more than its share.
    had = Counter(first.values())
    share = -(-len(shards) // len(now))
    must = sum(count if member not in now else max(0, count - share) for member, count in had.items())
    moved = sum(first.get(shard) != member for shard, member in second.items()) if first else 0
    # Those with the larger share are chosen among those that have most, so that one more per process is the worst there is.
    assert moved <= must + len(set(now) - had.keys()) * (share + 1) or not first
    assert coordinated(shards, second, [Subscriber(member) for member in now], lambda: 0.5) == second, "nothing moves twice"


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 200), max_size=80), members, st.data())
def test_coordinated_evens_out_the_rest_around_what_is_fixed(shards: set[int], now: list[str], data: st.DataObject) -> None:
    there = [Subscriber(member) for member in now]
    wishes = st.dictionaries(st.integers(0, 200), st.sampled_from("abcdefgh"))
    fixed, placed = data.draw(wishes), data.draw(wishes)
    after = coordinated(shards, placed, there, lambda: 0.5, fixed)
    assert after.keys() == (shards if now else set())
    kept = {shard: member for shard, member in fixed.items() if shard in shards and member in now}
    assert {shard: after[shard] for shard in kept} == kept
    counts, least = Counter(after.values()), Counter(kept.values())
    for member in now:  # whoever has more than others by two has no more than was wished
        assert counts[member] <= max(least[member], 1 + min(counts[other] for other in now))
    assert coordinated(shards, after, there, lambda: 0.5, fixed) == after, "nothing moves twice"


def test_coordinated_follows_weights() -> None:
    placed = coordinated(range(100), {}, [Subscriber("a", 3.0), Subscriber("b", 1.0), Subscriber("c", 0.0)], lambda: 0.5)
    assert Counter(placed.values()) == {"a": 75, "b": 25}


def test_one_process_more_or_less_moves_its_share_and_no_more() -> None:
    three = [Subscriber(member) for member in "abc"]
    first = coordinated(range(90), {}, three, lambda: 0.5)
    second = coordinated(range(90), first, [*three, Subscriber("d")], lambda: 0.5)
    assert sum(first[shard] != second[shard] for shard in first) == 22
    third = coordinated(range(90), second, three, lambda: 0.5)
    assert sum(second[shard] != third[shard] for shard in first) == 22


def test_weighted_gives_more_to_light_ones() -> None:
    dice = random.Random(1)
    placed = weighted(
        range(1000), {}, [Subscriber("light", load=0.0), Subscriber("busy", load=0.8), Subscriber("full", load=1.5)], dice.random
    )
    counts = Counter(placed.values())
    assert counts["light"] > 1.5 * counts["busy"] > 0
    assert counts["full"] < 10


def test_weighted_hands_flows_of_overloaded_processes_to_light_ones_a_few_at_a_time() -> None:
    placed = dict.fromkeys(range(20), "heavy")
    after = weighted(range(20), placed, [Subscriber("heavy", load=1.4), Subscriber("light", load=0.1)], lambda: 0.5)
    assert Counter(after.values()) == {"heavy": 19, "light": 1}
    assert weighted(range(1), {0: "heavy"}, [Subscriber("heavy", load=2.0), Subscriber("light")], lambda: 0.5) == {0: "heavy"}
    assert weighted(range(20), placed, [Subscriber("heavy", load=1.4), Subscriber("also", load=0.9)], lambda: 0.5) == placed


def test_a_strategy_may_be_the_users_own_and_an_unknown_name_is_refused() -> None:
    assert strategy(weighted) is weighted
    assert strategy("coordinated") is coordinated
    with pytest.raises(InvalidSetting, match="coordinated"):
        strategy("best")
