"""Clients that only are there (bench/idling.py, bench/crowd.py), a few of them."""

from __future__ import annotations

import pytest

from bench import idle
from bench.idling import Size, measured


@pytest.mark.parametrize(("lines", "gateways"), [(0, 2), (2, 1)])
def test_a_crowd_comes_back_with_its_tokens_and_is_measured(lines: int, gateways: int) -> None:
    crowd = measured(Size(40, lines, gateways), 0.5, {})
    assert (crowd["clients"], crowd["gateways"]) == (40, gateways)
    assert crowd["channel"] == ("trusted line" if lines else "WebSocket")
    assert crowd["gateway_mib"] > 0 < crowd["came_s"]
    assert idle.aim_of(crowd).measured == crowd["bytes_per_client"]


def test_sizes_follow_the_clients_that_are_asked_for_and_the_open_files_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1_024, 100_000))
    assert idle.crowds_of(None) == [Size(10_000, 0), Size(50_000, 0), Size(1_000_000, 4)]
    assert [size.clients for size in idle.crowds_of(20)] == [20, 100, 2_000]
    monkeypatch.setattr("resource.getrlimit", lambda which: (1_024, 20_000))
    assert idle.crowds_of(None) == [Size(10_000, 0), Size(50_000, 0, gateways=3), Size(1_000_000, 4)]
