"""How many gateways `up` runs, and what it tells each (cli/gateways.py)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from roskva.cli import gateways
from roskva.cli.gateways import evenly_drawn, gateway_count, gateways_of
from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.model import rendezvous


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_one_for_every_two_cores_at_least_one(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert gateway_count(Settings()) == count
    assert gateway_count(Settings(gateways=7)) == 7


def test_one_alone_is_told_nothing_and_has_the_plain_name() -> None:
    assert gateways_of(Settings(gateways=1)) == {"gateway": []}


def test_each_of_several_has_a_port_for_internal_calls() -> None:
    told = gateways_of(Settings(gateways=2, internal_listen="127.0.0.1:9000", gateway_memory_bytes_max=5))
    assert told == {
        "gateway-1": ["--set", "internal_listen=127.0.0.1:9000"],
        "gateway-2": ["--set", "internal_listen=127.0.0.1:9001"],
    }
    with pytest.raises(InvalidSetting):
        gateways_of(Settings(gateways=2, internal_listen="127.0.0.1:65535"))


def test_they_share_the_machine_s_memory_unless_somebody_said_how_much_each_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "machine_memory_bytes", lambda: 4 << 30)
    settings = Settings(gateways=4)
    assert gateways_of(settings)["gateway-3"] == ["--set", f"gateway_memory_bytes_max={512 << 20}"]
    assert gateways_of(replace(settings, gateway_memory_bytes_max=3 << 30))["gateway-3"] == []
    monkeypatch.setattr(gateways, "machine_memory_bytes", lambda: 64 << 30)
    assert gateways_of(settings)["gateway-3"] == []


@pytest.mark.parametrize(("count", "partitions"), [(2, 4), (3, 4), (4, 4), (4, 16)])
def test_they_share_partitions_evenly_and_still_do_after_one_is_started_again(count: int, partitions: int) -> None:
    ids: list[str] = []
    for _ in range(count):
        ids.append(evenly_drawn(ids, partitions))
    for again in range(count):
        del ids[0]
        ids.append(evenly_drawn(ids, partitions))
        owned = Counter(rendezvous(partition, ids) for partition in range(partitions))
        assert max(owned[one] for one in ids) - min(owned[one] for one in ids) <= 1, (again, owned)


def test_what_cannot_be_even_is_drawn_a_bounded_number_of_times() -> None:
    greedy = next(
        f"m{number}" for number in range(1_000) if {rendezvous(part, ["a", f"m{number}"]) for part in range(4)} != {"a", f"m{number}"}
    )
    drawn: list[str] = []

    def draw() -> str:
        drawn.append(greedy)
        return greedy

    assert evenly_drawn(["a"], 4, draw) == greedy
    assert len(drawn) == 1_000
