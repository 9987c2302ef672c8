"""Token buckets, against a model that counts what flows in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.access.limits import Bucket, Buckets

RATES = st.floats(0.01, 10_000)
BURSTS = st.floats(1, 1_000)
STEPS = st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=60)
SINCE_1970 = 1_800_000_000.0


def test_a_burst_at_once_then_the_rate() -> None:
    bucket = Bucket(rate_per_s=2, burst=3)
    assert [bucket.take(10.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(10.0) == pytest.approx(0.5)
    assert bucket.take(10.25) == pytest.approx(0.25)
    assert bucket.take(10.5) == 0.0
    assert bucket.take(10.5) > 0


def test_what_is_refused_takes_nothing() -> None:
    bucket = Bucket(rate_per_s=1, burst=1)
    assert bucket.take(0.0) == 0.0
    for _ in range(100):
        assert bucket.take(0.5) == pytest.approx(0.5)
    assert bucket.take(1.0) == 0.0


def test_more_than_a_burst_is_allowed_when_full_and_leaves_a_debt() -> None:
    bucket = Bucket(rate_per_s=10, burst=5)
    assert bucket.take(0.0, 25) == 0.0
    assert bucket.take(0.0, 1) == pytest.approx(2.1)  # 20 of debt, and one more
    assert bucket.take(2.1, 1) == 0.0
    assert bucket.take(2.1, 25) == pytest.approx(0.5)  # only from a full one


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(rate_per_s=1, burst=1)
    assert bucket.take(100.0) == 0.0
    assert bucket.take(50.0) > 0


@given(RATES, BURSTS, STEPS)
def test_never_more_than_burst_and_rate_allow(rate: float, burst: float, steps: list[tuple[float, float]]) -> None:
    bucket = Bucket(rate, burst)
    now_s, level = SINCE_1970, burst
    for pause_s, count in steps:
        now_s += pause_s
        level = min(burst, level + pause_s * rate)
        wait_s = bucket.take(now_s, count)
        needed = min(count, burst)
        slack = 1e-6 * (burst + rate * 1.0) + 1e-6 * len(steps) * rate
        if wait_s == 0.0:
            assert level >= needed - slack
            level -= count
        else:
            assert level < needed + slack
            assert wait_s == pytest.approx((needed - level) / rate, rel=1e-3, abs=1e-4)


@given(RATES, BURSTS, STEPS)
def test_whoever_waits_as_long_as_told_is_allowed(rate: float, burst: float, steps: list[tuple[float, float]]) -> None:
    bucket = Bucket(rate, burst)
    now_s = SINCE_1970
    for pause_s, count in steps:
        now_s += pause_s
        wait_s = bucket.take(now_s, count)
        if wait_s:
            now_s += wait_s
            assert bucket.take(now_s, count) == 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 2)), max_size=200))
def test_each_key_has_a_bucket_of_its_own(steps: list[tuple[int, float]]) -> None:
    """Forgetting full ones changes nothing, as long as there is room for those that are not."""
    buckets = Buckets(rate_per_s=1, burst=3, keys_max=10)
    alone = {key: Bucket(rate_per_s=1, burst=3) for key in range(10)}
    now_s = 0.0
    for key, pause_s in steps:
        now_s += pause_s
        assert buckets.take(key, now_s) == alone[key].take(now_s)


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1)), max_size=200))
def test_no_more_keys_than_allowed_and_no_more_than_their_buckets_hold(keys_max: int, steps: list[tuple[int, float]]) -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=keys_max)
    now_s = 0.0
    allowed: dict[int, int] = {}
    for key, pause_s in steps:
        now_s += pause_s
        if buckets.take(key, now_s) == 0.0:
            allowed[key] = allowed.get(key, 0) + 1
        assert len(buckets) <= keys_max
    # Its own and the shared one, if it had both.
    assert all(count <= 2 * (2 + now_s) + 1e-3 for count in allowed.values())


def test_a_million_addresses_wipe_nobodys_debt() -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=1_000)
    assert buckets.take("debtor", 0.0, 500) == 0.0
    for address in range(1_000_000 // 20):
        buckets.take(address, address / 25_000)  # two seconds, 25 times as many as there is room for
        assert len(buckets) <= 1_000
    assert buckets.take("debtor", 2.0) == pytest.approx(497)


def test_while_all_are_in_debt_new_keys_share_one_bucket() -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=100)
    for key in range(100):
        assert buckets.take(key, 0.0, 50) == 0.0
    allowed = sum(buckets.take(f"new {number}", 0.0) == 0.0 for number in range(10_000))
    assert allowed == 2
    assert buckets.take("yet another", 1.0) == 0.0
    assert buckets.take("yet another", 1.0) > 0
    assert all(buckets.take(key, 1.0) > 0 for key in range(100))


def test_there_is_room_again_when_debts_are_paid() -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=100)
    for key in range(100):
        buckets.take(key, 0.0, 2)
    assert all(buckets.take(f"late {number}", 10.0) == 0.0 for number in range(100))
    assert len(buckets) <= 100


def test_full_ones_are_found_behind_a_few_in_debt() -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=50)
    for key in range(50):
        buckets.take(key, 0.0, 1_000 if key < 40 else 1)
    for number in range(20):  # four are looked at for each, and those in debt have gone to the end
        buckets.take(f"new {number}", 5.0)
    assert sum(isinstance(key, str) for key in buckets._full_at_s) >= 10
    assert sum(isinstance(key, int) for key in buckets._full_at_s) == 40


def test_a_call_looks_at_a_few_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = Buckets(rate_per_s=1, burst=2, keys_max=10_000)
    for key in range(10_000):
        buckets.take(key, 0.0, 1_000)
    looked = 0
    kept = buckets._full_at_s

    class Counting(type(kept)):  # type: ignore[misc]
        def popitem(self, last: bool = True) -> tuple[object, float]:
            nonlocal looked
            looked += 1
            item: tuple[object, float] = super().popitem(last)
            return item

    buckets._full_at_s = Counting(kept)
    buckets.take("new", 1.0)
    assert 1 <= looked <= 8
