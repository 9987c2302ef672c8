"""One small run of capture-caravans with real processes: that it measures what it says. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import accounting
from bench.capture import caravans
from bench.plots import draw
from bench.world import Options


@pytest.mark.e2e
def test_more_caravans_read_more_and_one_reads_the_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caravans, "CARAVANS", (4, 2, 1))
    document = json.loads(caravans.measure(Options(seconds=1.0, clients=3)).write(tmp_path).read_text())
    iterations = document["figures"]["iterations"]
    assert [(one["policy"], one["caravans_max"]) for one in iterations] == [
        (policy, most) for policy in ("cluster", "fewest") for most in (4, 2, 1)
    ]
    assert all(one["caravans_used"] <= one["caravans_max"] for one in iterations)
    assert all(one["repeated"] == 0 for one in iterations)
    many, *few = [one["amplification"] for one in iterations]
    assert many == pytest.approx(2.0, abs=0.2), "the whole, two thirds, and one third, each by a caravan of its own"
    assert few == pytest.approx([1.0] * 5, abs=0.3), "once, unless one is let go so late that it was passed already"
    assert all(one["amplification_of_the_files"] >= one["amplification"] - 0.01 for one in iterations)
    assert {"publishers", "subscribers", accounting.GENERATOR} <= document["cpu_seconds"].keys()
    assert draw(document, tmp_path).stat().st_size > 1_000
