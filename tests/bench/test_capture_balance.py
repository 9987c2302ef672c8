"""One small run of capture-balance with real processes: that it measures what it says. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.capture import balance
from bench.plots import draw
from bench.world import Options


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_flows_are_counted_after_every_change_and_none_is_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "ROUNDS", 1)
    monkeypatch.setattr(balance, "FLOWS_EACH", 8)
    document = json.loads(balance.measure(Options(seconds=0.4, clients=4)).write(tmp_path).read_text())
    figures = document["figures"]
    assert [one["processes"] for one in figures["changes"]] == [3, 3, 4, 4, 3, 3, 4, 4]
    assert all(one["mean"] * one["processes"] == pytest.approx(32, abs=0.3) for one in figures["changes"])
    coordinated = [one for one in figures["changes"] if one["strategy"] == "coordinated"]
    assert all(one["most"] - one["least"] <= 1 for one in coordinated)
    assert [one["moved_from_the_living"] for one in coordinated] == [0, 8, 0, 8], "those who come get their share of the others"
    spread = figures["over_all_changes"]
    assert spread["coordinated"]["deviation_percent"] < spread["weighted"]["deviation_percent"]
    assert len(figures["flows_to_the_mean"]["weighted"]) == 3 + 4 + 3 + 4
    assert figures["rows"] > 0
    assert draw(document, tmp_path).stat().st_size > 1_000
