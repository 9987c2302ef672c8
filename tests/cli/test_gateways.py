"""How many gateways `up` runs, and what it tells each (cli/gateways.py)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.cli import gateways
from roskva.cli.gateways import evenly_drawn, gateway_count, gateways_of, machine_memory_bytes, usable_cores
from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.model import rendezvous


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups in which nothing is limited, whatever those of this machine say."""
    monkeypatch.setattr(gateways, "_CGROUPS", tmp_path)
    monkeypatch.setattr(gateways, "_OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/units/roskva\n")
    (tmp_path / "units" / "roskva").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_one_for_every_two_cores_at_least_one(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert gateway_count(Settings()) == count
    assert gateway_count(Settings(gateways=7)) == 7


def test_never_more_than_partitions_unless_somebody_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert gateway_count(Settings(partitions=3)) == 3
    assert gateway_count(Settings(partitions=3, gateways=7)) == 7


@pytest.mark.parametrize("folder", ["", "units", "units/roskva"])
@pytest.mark.parametrize(("said", "cores"), [("max 100000", 8), ("250000 100000", 2), ("20000 100000", 1), ("1600000 100000", 8), ("", 8)])
def test_what_a_container_or_unit_may_use_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, groups: Path, folder: str, said: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (groups / folder / "cpu.max").write_text(said + "\n")
    assert usable_cores() == cores


def test_what_a_container_or_unit_may_use_of_the_memory(groups: Path) -> None:
    all_of_it = machine_memory_bytes()
    (groups / "units" / "roskva" / "memory.max").write_text("max\n")
    assert machine_memory_bytes() == all_of_it
    (groups / "memory.max").write_text(f"{64 << 20}\n")
    assert machine_memory_bytes() == 64 << 20
    (groups / "own").unlink()  # as on a system without control groups
    assert machine_memory_bytes() == 64 << 20


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
