"""One small run of capture-datamarkers with real processes: that it measures what it says. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.capture import datamarkers
from bench.plots import draw
from bench.world import Options


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_longer_periods_cost_less_and_repeat_more(tmp_path: Path) -> None:
    document = json.loads(datamarkers.measure(Options(seconds=8.0, clients=4, rate=500.0)).write(tmp_path).read_text())
    costs, repeats = document["figures"]["costs"], document["figures"]["repeated_after_a_kill"]
    assert [one["period_s"] for one in costs] == [one["period_s"] for one in repeats] == [1.0, 10.0, 30.0, 120.0]
    assert [one["period_here_s"] for one in costs] == [0.08, 0.8, 0.24, 0.96]
    asked = {one["period_s"]: one["datamarkers"] for one in costs}
    assert asked[1.0] > asked[30.0] > asked[10.0] >= 4, "the third is called 30 s and is shorter here than the second"
    assert costs[0]["sent_bytes_per_s"] > costs[1]["sent_bytes_per_s"] > costs[2]["sent_bytes_per_s"] > costs[3]["sent_bytes_per_s"] > 0
    assert all(one["kills"] >= 2 for one in repeats)
    kills = document["figures"]["kills"]
    assert {what for found in kills.values() for what, _, _ in found} == {"subscriber", "publisher"}
    assert sum(repeated for found in kills.values() for _, repeated, _ in found) > 0, "or nothing was under way at any of them"
    assert draw(document, tmp_path).stat().st_size > 1_000
