"""Histograms whose buckets grow with the value (telemetry/histogram.py)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.telemetry.histogram import BUCKETS_MAX, VALUE_MAX, LogHistogram, bound_of, bucket_of

VALUES = st.integers(0, 1 << 44) | st.integers(0, 200)
LISTS = st.lists(VALUES, max_size=50)


def of(values: list[int]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.observe(value)
    return histogram


@given(st.integers(0, VALUE_MAX))
def test_a_value_is_in_its_bucket_and_known_to_a_sixteenth(value: int) -> None:
    bucket = bucket_of(value)
    assert 0 <= bucket < BUCKETS_MAX
    assert value <= bound_of(bucket) <= value + value // 16
    assert bucket_of(bound_of(bucket)) == bucket
    assert bucket_of(bound_of(bucket) + 1) == bucket + 1


def test_what_is_longer_than_twelve_days_counts_as_that() -> None:
    histogram = of([VALUE_MAX + 1, 1 << 60])
    assert histogram.largest == VALUE_MAX
    assert list(histogram.counts) == [BUCKETS_MAX - 1]


@given(LISTS, LISTS)
def test_two_add_up_to_what_one_would_have_been(left: list[int], right: list[int]) -> None:
    whole, one = of(left + right), of(left)
    one.add(of(right))
    assert one.document() == whole.document()
    later = whole.since(of(left))
    assert (later.counts, later.total) == (of(right).counts, of(right).total)


@given(LISTS)
def test_it_reads_back_from_json(values: list[int]) -> None:
    histogram = of(values)
    again = LogHistogram.of(json.loads(json.dumps(histogram.document())))
    assert again.document() == histogram.document()
    assert again.counts == histogram.counts


@given(st.lists(st.integers(0, VALUE_MAX), min_size=1, max_size=50), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_not_below_the_true_one_nor_a_sixteenth_above(values: list[int], part: float) -> None:
    ordered = sorted(values)
    true = next(value for place, value in enumerate(ordered, 1) if place >= part * len(ordered))
    assert true <= of(values).quantile(part) <= true + true // 16


@given(st.lists(st.integers(0, VALUE_MAX), min_size=1, max_size=50))
def test_the_distribution_ends_with_all_at_the_largest(values: list[int]) -> None:
    points = of(values).distribution()
    assert points[-1] == (max(values), 1.0)
    assert points == sorted(points)
    assert of(values).share_up_to(max(values)) == 1.0
    bounds = [1 << power for power in range(41)]
    assert of(values).below(bounds) == [sum(value < bound for value in values) for bound in bounds]


def test_nothing_has_no_times() -> None:
    nothing = LogHistogram()
    assert (nothing.count, nothing.mean, nothing.quantile(0.5), nothing.share_up_to(9), nothing.distribution()) == (0, 0.0, 0, 0.0, [])


@pytest.mark.parametrize("document", [{}, {"buckets": [[1]], "sum_us": 1, "max_us": 1}, {"buckets": [["x", 1]], "sum_us": 1, "max_us": 1}])
def test_what_is_no_histogram_is_refused(document: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        LogHistogram.of(document)
