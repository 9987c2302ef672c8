"""One small run of capture-lag with real processes: that it measures what it says. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.capture import lag
from bench.plots import draw
from bench.world import Options


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_who_falls_behind_is_read_for_again_and_all_is_counted(tmp_path: Path) -> None:
    document = json.loads(lag.measure(Options(seconds=2.0, clients=3, rate=8_000.0)).write(tmp_path).read_text())
    figures = document["figures"]
    assert [one["when"] for one in figures["others"]] == ["before", "while_the_last_stands", "while_it_catches_up"]
    before = figures["others"][0]
    assert before["rows"] == pytest.approx(2 * 2.0 * 8_000, rel=0.4), "two others, for two seconds"
    assert figures["falls"] > 0
    alone, together, stands, catches_up, _ = figures["reads"]
    assert alone["read_per_byte_of_log"] == pytest.approx(1.0, abs=0.3)
    assert together["read_per_byte_of_log"] == pytest.approx(1.0, abs=0.3)
    assert together["caravans_max"] == 1
    assert stands["behind_mib_max"] > 4
    assert catches_up["read_per_byte_of_log"] > 1.2
    assert max(figures["over_time"]["caravans"]) > 1
    assert [one["what"] for one in figures["events"]][:3] == ["the others come", "a2 stands still", "a2 goes on"]
    assert draw(document, tmp_path).stat().st_size > 1_000
