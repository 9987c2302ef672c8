"""One small run of capture-failover with real processes: that it measures what it says. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.capture import failover
from bench.plots import draw
from bench.world import Options
from roskva.capture.ownership import TAKEOVER_S


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_one_application_goes_on_at_the_secondary_and_the_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "ROUNDS", 1)
    document = json.loads(failover.measure(Options(seconds=1.0, clients=3, rate=300.0)).write(tmp_path).read_text())
    figures = document["figures"]
    (found,) = figures["rounds"]
    assert found["taken_over_after_s"] > TAKEOVER_S - 2.0, "it cannot be noticed sooner"
    assert found["first_flow_after_s"] <= found["taken_over_after_s"] < found["primary_back_after_s"] < found["flows_home_after_s"]
    assert found["single_again_after_s"] > found["taken_over_after_s"], "it waits for the primary"
    delivered = figures["delivered"]
    assert delivered["multiple"] == delivered["single"] > 300 * TAKEOVER_S
    assert sum(figures["sent_over_time"]["multiple by secondary"]) > 0
    assert "single by secondary" not in figures["sent_over_time"] or not any(figures["sent_over_time"]["single by secondary"])
    assert draw(document, tmp_path).stat().st_size > 1_000
