"""One small run of the measurements that are built on `roskva load`: that they measure what they say. No times are asserted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import accounting, figure6, figure7, loss, objects
from bench.filling import Population, fill, tokens_of
from bench.many import Crowd, crowd, relative
from bench.plots import draw
from bench.report import Result
from bench.world import Options, World, run
from roskva.keys import load_keys
from roskva.load.plan import Plan
from roskva.model import client_partition

SMALL = Options(seconds=0.6, clients=60, rate=100.0)


@pytest.fixture(scope="module")
def there() -> Iterator[Crowd]:
    """One for all: to start it takes longer than to measure it."""
    with crowd(60, SMALL) as started:
        yield started
    assert accounting.processes(started.service.run) == {}
    assert not started.service.data.exists()


def checked(result: Result, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.write(folder).read_text())
    assert {accounting.GATEWAY, accounting.JVM, accounting.WORKERS, accounting.GENERATOR} <= document["cpu_seconds"].keys()
    assert draw(document, folder).stat().st_size > 1_000
    figures: dict[str, Any] = document["figures"]
    return figures


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_figures_6_and_7_measure_crowds_that_grow_and_that_stay(there: Crowd, tmp_path: Path) -> None:
    async def both() -> list[Result]:
        async with there.generator() as generator:
            return [await figure6.climb(there, generator, SMALL), await figure7.climb(there, generator, SMALL)]

    sixth, seventh = run(both())
    figures = checked(sixth, tmp_path)
    assert [step["clients"] for step in figures["steps"]] == [6, 12, 24, 42, 60]
    assert figures["users"] == 10.0
    assert figures["notified"] > figures["published"] > 0  # in all: the windows are short
    assert sixth.aims[0].kept_up == all(step["kept_up"] for step in figures["steps"])
    assert sum(step["cpu_percent"] for step in figures["steps"]) > 0  # counted in hundredths of a second: a window may have none
    assert all(step["gateway_mib"] > 20 for step in figures["steps"])
    assert set(figures["relative_to_the_first"]) >= {"cpu_percent", "kib_per_s", "messages_in_per_s", "service_mib", "p50_ms"}
    figures = checked(seventh, tmp_path)
    assert [step["offered_per_s"] for step in figures["steps"]] == [100.0, 200.0]
    assert figures["notified"] > figures["published"] > 0
    assert figures["all_told_in_the_end"]


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_loss_drops_messages_in_some_turns_only_and_everything_arrives(
    there: Crowd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "TURNS", (0.0, 0.2))
    figures = checked(loss.measure_on(there.service, SMALL), tmp_path)
    none, some = figures["losses"]
    assert none["dropped"] == 0 < some["dropped"]
    assert none["notified"] > 20 < some["notified"]


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_objects_registers_restarts_in_sync_and_repairs_only_what_differs(there: Crowd, tmp_path: Path) -> None:
    figures = checked(objects.measure_on(there.service, Options(clients=600)), tmp_path)
    registered, restarted, repaired = figures["steps"]
    assert registered["operations"] >= registered["told"] == 600  # what is not confirmed within a second is said again
    assert (restarted["operations"], restarted["told"]) == (0, 0)
    assert repaired["told"] == 3
    assert restarted["sent_kib"] < repaired["sent_kib"] < registered["sent_kib"]


def test_the_tokens_of_a_filled_table_are_those_that_its_service_would_have_granted(tmp_path: Path) -> None:
    world = World(40, 5, 5)
    population = Population(world)
    fill(tmp_path / "data", world, 1e9)
    keyring = load_keys(tmp_path / "data").keyring
    for number, token in enumerate(tokens_of(tmp_path / "data", 40)):
        claims = keyring.verify(token)
        assert (claims.client, claims.device, claims.session) == (population.ids[number], f"device-{number}", 1)
        assert claims.incarnation > 0
        assert client_partition(claims.client, 4) in range(4)


def test_a_crowd_registered_for_what_the_tables_say() -> None:
    world = World(40, 5, 5)
    plan = Plan(40, 5, 40, object_prefix=world.prefix)
    assert [plan.names_of(client) for client in range(40)] == [list(world.names_of()(client)) for client in range(40)]
    assert [plan.objects_of(7)] == [[number for number, _ in Population(world).registered_by(7)]]


def test_what_is_relative_is_so_to_the_first() -> None:
    assert relative([{"x": 4.0}, {"x": 6.0}], "x") == [1.0, 1.5]
    assert relative([{"x": 0.0}, {"x": 6.0}], "x") == [0.0, 6.0]


def test_fewer_arrive_while_the_crowd_is_small() -> None:
    assert figure6._arriving(figure6.WINDOW_S) * figure6._ARRIVING_PART < 100_000  # none of the measured steps is that small


def test_a_crowd_whose_updates_wait_or_come_late_is_not_kept_up_with() -> None:
    step = {"clients": 480_000, "published_per_s": 980.0, "p50_ms": 12.0, "refused": 0.0, "window_s": 15.0}
    assert figure6.kept_up(step, 480.0)
    for worse in ({"p50_ms": 5_694.0}, {"published_per_s": 1_200.0}, {"published_per_s": 900.0}, {"refused": 0.1}):
        assert not figure6.kept_up({**step, **worse}, 480.0), worse
    few = {**step, "clients": 2_400, "published_per_s": 6.2}  # 5/s are due, 75 in the window: some at either end fall into it or not
    assert figure6.kept_up(few, 480.0)


def test_the_windows_are_those_of_the_paper() -> None:
    assert [round(part * figure6.CLIENTS) for part in figure6.PARTS] == [100_000, 200_000, 400_000, 700_000, 1_000_000]
    assert figure6.FAN_OUT == 1  # "each registered for five distinct objects"
    assert figure7.RATES_PER_S[0] == 1_000
    assert figure7.RATES_PER_S[-1] == 13_000
