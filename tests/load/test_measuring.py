"""Counts add up, and percentiles are right to a percent."""

from __future__ import annotations

import pickle
import random

import pytest

from roskva.load.measuring import Counts, Latencies, Report, merged


def test_percentiles_are_within_two_percent_and_never_beyond_the_largest() -> None:
    dice = random.Random(1)
    values = [int(dice.expovariate(1 / 20_000)) + 1 for _ in range(20_000)]
    seen = Latencies()
    for value in values:
        seen.note(value)
    values.sort()
    for part in (0.5, 0.95, 0.99):
        assert seen.percentile_ms(part) == pytest.approx(values[int(part * len(values)) - 1] / 1000, rel=0.02)
    assert seen.percentile_ms(1.0) <= values[-1] / 1000 == pytest.approx(seen.summary()["max"], abs=0.01)
    assert Latencies().summary() == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}


def test_what_processes_tell_is_added() -> None:
    reports = []
    for value in (1_000, 3_000):
        counts = Counts(in_sync=value, published=2, said="no")
        counts.errors["overloaded"] += 1
        report = Report(counts, Latencies(), Latencies(), "" if value == 1_000 else "broke")
        report.latencies.note(value)
        reports.append(pickle.loads(pickle.dumps(report)))  # as it goes through a pipe
    whole = merged(reports)
    assert (whole.counts.in_sync, whole.counts.published, whole.counts.errors["overloaded"]) == (4_000, 4, 2)
    assert (whole.latencies.count, whole.latencies.max_us, whole.line_down, whole.counts.said) == (2, 3_000, "broke", "no")
