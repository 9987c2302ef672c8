"""Sweeps: how one runs and is recorded, and which runs when. Clocks are moved by hand; jobs are stand-ins, except for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.pipeline.sweeps import KINDS, Kind, Progress, Request, Swept
from roskva.pipeline.sweeps.frame import task_of, wanted
from roskva.pipeline.sweeps.record import (
    DONE,
    FAILED,
    PLANNED,
    RUNNING,
    STOPPED,
    SWEEPS_ROW,
    Record,
    read_record,
    read_records,
    write_records,
)
from roskva.pipeline.sweeps.run import run_sweep
from roskva.pipeline.sweeps.schedule import Schedule
from roskva.table import open_table
from roskva.table.interface import Cell, Mutation, Table
from tests.pipeline.standin import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Jobs:
    """In the place of Spark."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fails: Exception | None = None
        self.fails_in: dict[int, Exception] = {}
        self.during: Callable[[], None] = lambda: None

    def __call__(self, request: Request, record: Record, partition: int) -> Swept:
        self.during()
        if self.fails is not None or partition in self.fails_in:
            raise self.fails or self.fails_in[partition]
        self.ran.append((request.sweep, partition))
        return Swept(looked_at=10, counts={"x": 1})

    @property
    def names(self) -> list[str]:
        """Of the sweeps that began, in their order."""
        return [name for name, partition in self.ran if partition == 0]


class Wall:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


@pytest.fixture
def table(settings: Settings) -> Table:
    return open_table(settings)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def wall() -> Wall:
    return Wall()


def test_every_sweep_that_is_listed_is_there(settings: Settings, table: Table) -> None:
    for name, kind in KINDS.items():
        assert callable(task_of(name).run)
        assert not kind.every or getattr(settings, kind.every) > 0
        assert not kind.then or kind.then in KINDS
        assert wanted(kind, table, settings) in (True, False)


def test_progress_is_passed_on_at_most_once_a_second() -> None:
    told: list[int] = []
    times = iter([0.0, 0.5, 0.9, 1.0, 1.1, 2.5])
    progress = Progress(lambda swept: told.append(swept.looked_at), clock=lambda: next(times))
    for number in range(6):
        progress.so_far(Swept(looked_at=number))
    assert told == [0, 3, 5]
    Progress().so_far(Swept())


def test_a_sweep_passes_over_all_partitions_and_is_recorded(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    seen: list[Record | None] = []
    jobs.during = lambda: seen.append(read_record(table, "collect"))
    record = run_sweep(table, 4, Request("collect", wall()), jobs, now_ms=wall)
    assert jobs.ran == [("collect", partition) for partition in range(4)]
    assert (record.state, record.began_ms, record.ended_ms, record.partition, record.partitions) == (DONE, START_MS, START_MS, 4, 4)
    assert (record.swept.looked_at, record.swept.counts) == (40, {"x": 4})
    assert read_records(table) == {"collect": record}
    assert [(one.state, one.partition, one.swept.looked_at) for one in seen if one] == [(RUNNING, n, 10 * n) for n in range(4)]


def test_a_partition_that_fails_is_told_and_holds_up_no_other(table: Table, jobs: Jobs, wall: Wall) -> None:
    jobs.fails_in = {1: OSError("no room\nand more")}
    failed = run_sweep(table, 4, Request("collect", wall()), jobs, now_ms=wall)
    assert [partition for _, partition in jobs.ran] == [0, 2, 3]
    assert (failed.state, failed.partition, failed.error) == (FAILED, 4, "OSError: no room")
    assert (failed.swept.looked_at, failed.swept.left, failed.swept.counts["partitions_failed"]) == (30, 1, 1)
    assert read_record(table, "collect") == failed
    jobs.fails_in, jobs.ran = {}, []
    again = run_sweep(table, 4, Request("collect", wall()), jobs, before=failed, now_ms=wall)
    assert (again.state, again.error, len(jobs.ran)) == (DONE, "", 4), "the next one is a whole one"


def test_a_repair_that_fails_anywhere_is_begun_again(table: Table, jobs: Jobs, wall: Wall) -> None:
    jobs.fails_in = {1: OSError("no room")}
    with pytest.raises(OSError, match="no room"):
        run_sweep(table, 4, Request("repair", wall()), jobs, now_ms=wall)
    assert read_records(table)["repair"].state == FAILED


def test_a_job_that_fails_because_everything_ends_is_done_again(table: Table, jobs: Jobs, wall: Wall) -> None:
    jobs.fails_in = {1: OSError("Spark is gone")}
    asked = iter([False, True])
    with pytest.raises(OSError, match="gone"):
        run_sweep(table, 4, Request("collect", wall()), jobs, stopping=lambda: next(asked, True), now_ms=wall)
    assert (read_records(table)["collect"].state, read_records(table)["collect"].partition) == (STOPPED, 1)


def test_a_repair_never_goes_on_with_what_an_earlier_one_began(table: Table, jobs: Jobs, wall: Wall) -> None:
    """What was lost meanwhile must be seen by a whole pass."""
    before = Record("repair", STOPPED, START_MS, START_MS, partition=2, partitions=4)
    run_sweep(table, 4, Request("repair", wall()), jobs, before=before, now_ms=wall)
    assert jobs.ran == [("repair", partition) for partition in range(4)]


def test_a_sweep_ends_between_two_partitions_when_it_must(table: Table, jobs: Jobs, wall: Wall) -> None:
    record = run_sweep(table, 4, Request("collect", wall()), jobs, stopping=lambda: len(jobs.ran) == 1, now_ms=wall)
    assert (record.state, record.partition, len(jobs.ran)) == (STOPPED, 1, 1)
    assert read_records(table)["collect"].state == STOPPED


def test_a_person_who_interrupts_it_stops_it(table: Table, jobs: Jobs, wall: Wall) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    jobs.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_sweep(table, 4, Request("collect", wall()), jobs, now_ms=wall)
    assert read_records(table)["collect"].state == STOPPED


def test_a_dry_run_does_not_count_as_a_sweep(table: Table, jobs: Jobs, wall: Wall) -> None:
    run_sweep(table, 4, Request("collect", wall(), dry_run=True), jobs, now_ms=wall)
    assert read_records(table) == {}
    dry = read_record(table, "collect", dry_run=True)
    assert dry is not None
    assert dry.state == DONE


def test_a_sweep_is_worth_more_than_its_record(table: Table, jobs: Jobs, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(mutations: object) -> None:
        raise PartitionUnavailable("It is broken.", "members-0")

    monkeypatch.setattr(table, "write", fails)
    assert run_sweep(table, 4, Request("collect", wall()), jobs, now_ms=wall).state == DONE


def test_what_another_version_wrote_is_as_nothing(table: Table, wall: Wall) -> None:
    write_records(table, [Record("collect", DONE)], wall)
    table.write([Mutation(SWEEPS_ROW, [Cell(b"zombies", 1, b"{")])])
    assert set(read_records(table)) == {"collect"}


TWO = {kind.name: kind for kind in (KINDS["collect"], KINDS["zombies"])}


def schedule_of(table: Table, settings: Settings, jobs: Jobs, wall: Wall, **more: object) -> Schedule:
    return Schedule(table, settings, jobs, now_ms=wall, **{"kinds": TWO, **more})  # type: ignore[arg-type]


def test_a_new_service_sweeps_for_the_first_time_after_a_day(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    schedule_of(table, settings, jobs, wall).step()
    assert {record.state for record in read_records(table).values()} == {PLANNED}
    wall.now_ms += DAY_MS - 1
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.names == []
    wall.now_ms += 1
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.names == ["collect", "zombies"], "clients are collected before their rows are removed"


def test_restarts_neither_repeat_a_daily_sweep_nor_put_it_off(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    for _ in range(20 * 24):  # a restart every hour, for twenty days
        schedule_of(table, settings, jobs, wall).step()
        wall.now_ms += HOUR_MS
    assert jobs.names.count("collect") == jobs.names.count("zombies") == 19


def test_a_sweep_whose_process_died_goes_on_where_it_was(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    died = [Record(name, RUNNING, START_MS, partition=3, partitions=4, swept=Swept(looked_at=30)) for name in TWO]
    write_records(table, died, wall)
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.ran == [], "it may still run"
    wall.now_ms += 60_000
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.ran == [("collect", 3), ("zombies", 3)]
    assert read_records(table)["collect"].swept.looked_at == 40


def test_one_that_was_stopped_is_due_at_once(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    write_records(table, [Record(name, STOPPED, START_MS, START_MS, partition=1, partitions=4) for name in TWO], wall)
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.ran[0] == ("collect", 1)


def test_one_that_failed_waits_a_while_and_holds_up_no_other(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    schedule = schedule_of(table, settings, jobs, wall)
    schedule.step()
    wall.now_ms += DAY_MS
    jobs.fails = RuntimeError("Spark is tired")
    schedule.step()
    assert {record.state for record in read_records(table).values()} == {FAILED}
    jobs.fails = None
    wall.now_ms += 599_999
    schedule.step()
    assert jobs.names == []
    wall.now_ms += 1
    schedule.step()
    assert jobs.names == ["collect", "zombies"]


def test_an_interval_of_zero_means_by_hand_only(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    schedule = schedule_of(table, replace(settings, collect_every_s=0.0), jobs, wall)
    schedule.step()
    wall.now_ms += 100 * DAY_MS
    schedule.step()
    assert jobs.names == ["zombies"]


def test_a_clock_that_was_years_ahead_holds_up_nothing(settings: Settings, table: Table, jobs: Jobs, wall: Wall) -> None:
    write_records(table, [Record(name, DONE, 2 * START_MS, 2 * START_MS) for name in TWO], lambda: 2 * START_MS)
    schedule_of(table, settings, jobs, wall).step()
    assert jobs.names == ["collect", "zombies"]


URGENT: set[str] = set()


def something_waits(table: Table, settings: Settings) -> bool:
    return "it" in URGENT


@pytest.fixture
def urgent_kinds() -> dict[str, Kind]:
    URGENT.clear()
    urgent = Kind("urgent", "", "", every="mark_poll_s", only_if=f"{__name__}:something_waits")  # of any setting: every second
    return {**TWO, "urgent": urgent}


def test_a_sweep_that_is_asked_for_runs_only_when_something_waits(
    settings: Settings, table: Table, jobs: Jobs, wall: Wall, urgent_kinds: dict[str, Kind]
) -> None:
    schedule = schedule_of(table, settings, jobs, wall, kinds=urgent_kinds)
    schedule.step()
    URGENT.add("it")
    for _ in range(3):
        schedule.step()
    assert jobs.names == ["urgent"], "and not more often than it may"
    wall.now_ms += 1_000
    schedule.step()
    assert jobs.names == ["urgent", "urgent"]


def test_losses_and_what_is_urgent_go_before_the_rest_of_a_long_sweep(
    settings: Settings, table: Table, jobs: Jobs, wall: Wall, urgent_kinds: dict[str, Kind]
) -> None:
    repaired: list[int] = []
    schedule = schedule_of(table, settings, jobs, wall, kinds=urgent_kinds, repairs=lambda now_s: repaired.append(len(jobs.ran)))
    schedule.step()
    wall.now_ms += DAY_MS
    jobs.during = lambda: URGENT.add("it")
    schedule.step()
    assert jobs.ran[:6] == [("collect", 0), *(("urgent", partition) for partition in range(4)), ("collect", 1)]
    assert repaired[:2] == [1, 6], "between any two partitions"


def test_the_job_runs_in_spark_and_tells_how_far_it_has_come(settings: Settings, table: Table, spark: SparkSession) -> None:
    """A partition that holds nothing: only the way to the worker and back."""
    from roskva.pipeline.sweeps import jobs as spark_jobs

    record = run_sweep(table, settings.partitions, Request("collect", START_MS), lambda *asked: spark_jobs.sweep(spark, settings, *asked))
    assert (record.state, record.partition, record.swept) == (DONE, settings.partitions, Swept())
