"""The sweep `objects`: whose version is forgotten and when, and every interleaving with a registration or an update. Real tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.feed import open_feed
from roskva.feed.interface import UPDATES, Entry
from roskva.matcher.cells import IDLE, VERSION, idle_cell, read_copies, registration_cell, version_cell
from roskva.matcher.core import accept, collapse, match
from roskva.matcher.scratch import ATTEMPTS, Homeless, homeless_cell, place
from roskva.model import (
    OUTCOME_UNKNOWN,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    ClientId,
    Propagation,
    Registration,
    Update,
    object_key,
)
from roskva.pipeline.sweeps.ages import Ages, Plan, oldest_record_day
from roskva.pipeline.sweeps.frame import DAY_MS
from roskva.pipeline.sweeps.objects import collect_object
from roskva.table import open_manifest, open_table
from roskva.table.interface import Cell, Mutation, RowKey
from tests.pipeline.standin import settings_for
from tests.pipeline.swept import CLIENT, KEY, SEQNO, TODAY, an_object, cells_of, interrupted, sweep, write

V10 = version_cell(10, "source", 1)
LATER = TODAY + 31  # more than 30 days


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, partitions=1)  # each costs a second to create


class Matcher:
    """A task of the Matcher that can be stopped between its write and its read."""

    def __init__(self, settings: Settings, *events: Update | Registration) -> None:
        self._table, self._partitions = open_table(settings), settings.partitions
        self._batch = collapse((e for e in events if isinstance(e, Update)), (e for e in events if isinstance(e, Registration)))
        self._accepted = accept(self._batch, self._partitions, lambda key: 1)
        self.told: list[Propagation] = []

    def write(self) -> None:
        self._table.write(self._accepted.writes)

    def read(self) -> None:
        rows = self._table.read(self._accepted.read_whole) | self._table.read(self._accepted.read_version, prefix=VERSION)
        self.told = match(self._batch, rows, self._partitions, lambda key: 1)

    def run(self) -> None:
        self.write()
        self.read()


def registration(seqno: int = SEQNO + 5) -> Registration:
    return Registration(CLIENT, KEY, seqno, True, "device")


def idle_object(settings: Settings) -> RowKey:
    row = an_object(settings, V10, registration_cell(CLIENT, SEQNO, "device", registered=False))
    sweep(settings, "objects")
    return row


def test_a_version_that_nobody_wants_is_stamped_and_later_forgotten(settings: Settings) -> None:
    row = idle_object(settings)
    assert cells_of(settings, row)[IDLE] == idle_cell(10, TODAY)
    for day in (TODAY, TODAY + 1, TODAY + 30):
        assert sweep(settings, "objects", day).done == 0
        assert cells_of(settings, row)[IDLE] == idle_cell(10, TODAY), "the first day counts"
    swept = sweep(settings, "objects", LATER)
    assert (swept.done, swept.counts["objects"]) == (2, 1)
    assert read_copies(cells_of(settings, row)) == []
    assert {IDLE, VERSION}.isdisjoint(cells_of(settings, row)), "the unregistered copy is for the sweep purge"
    assert sweep(settings, "objects", LATER).done == 0


def test_a_row_that_is_empty_is_gone_from_the_engine(settings: Settings) -> None:
    row = an_object(settings, V10)
    sweep(settings, "objects")
    sweep(settings, "objects", LATER)
    assert list(open_table(settings).scan("matcher", row.partition)) == []


def test_a_dry_run_writes_nothing(settings: Settings) -> None:
    row = an_object(settings, V10)
    assert sweep(settings, "objects", dry_run=True).counts["stamped"] == 1
    assert cells_of(settings, row) == {VERSION: V10}
    sweep(settings, "objects")
    before = cells_of(settings, row)
    swept = sweep(settings, "objects", LATER, dry_run=True)
    assert (swept.proposed, swept.done) == (2, 0)
    assert cells_of(settings, row) == before


def test_who_is_registered_keeps_the_version_and_the_days_begin_again(settings: Settings) -> None:
    row = idle_object(settings)
    Matcher(settings, registration()).run()
    sweep(settings, "objects", LATER)
    assert set(cells_of(settings, row)) >= {VERSION}
    assert IDLE not in cells_of(settings, row)
    Matcher(settings, registration(SEQNO + 6)._replace(registered=False)).run()
    sweep(settings, "objects", LATER + 1)
    sweep(settings, "objects", LATER + 30)
    assert cells_of(settings, row)[IDLE] == idle_cell(10, LATER + 1)


def test_an_update_before_the_row_is_read_begins_the_days_again(settings: Settings) -> None:
    row = idle_object(settings)
    Matcher(settings, Update(KEY, 11, "")).run()
    sweep(settings, "objects", LATER)
    assert cells_of(settings, row)[IDLE] == idle_cell(11, LATER)
    assert cells_of(settings, row)[VERSION].timestamp == 11


@pytest.mark.parametrize(
    ("when", "outcome"),
    [
        ("read, then both, then forgotten", OUTCOME_VERSION),
        ("written, forgotten, then read", OUTCOME_UNKNOWN),
        ("forgotten, then both", OUTCOME_UNKNOWN),
    ],
)
def test_a_registration_in_flight_is_kept_and_answered(settings: Settings, when: str, outcome: int) -> None:
    row, task = idle_object(settings), Matcher(settings, registration())
    hooks: dict[str, tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]] = {
        "read, then both, then forgotten": ({}, {"scan": task.run}),
        "written, forgotten, then read": ({"forget": task.write}, {"forget": task.read}),
        "forgotten, then both": ({}, {"forget": task.run}),
    }
    sweep(settings, "objects", LATER, connected=interrupted(settings, *hooks[when]))
    assert [one.outcome for one in task.told] == [outcome]
    assert VERSION not in cells_of(settings, row)
    assert [copy.seqno for copy in read_copies(cells_of(settings, row))] == [SEQNO + 5]
    update = Matcher(settings, Update(KEY, 11, ""))
    update.run()
    assert update.told == [Propagation(CLIENT, KEY, SEQNO + 5, OUTCOME_UPDATE, 11)], "whoever is registered hears of the next one"


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_update_in_flight_is_not_forgotten_and_told_to_whoever_registers(settings: Settings, version: int, when: str) -> None:
    """A registration lands in the middle of it all: it hears of the version, or of unknown after it."""
    row, update, newcomer = idle_object(settings), Matcher(settings, Update(KEY, version, "")), Matcher(settings, registration())

    def both() -> None:
        update.write()
        newcomer.run()

    hooks: dict[str, tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]] = {
        "before": ({"forget": update.write}, {"forget": update.read}),
        "between": ({"forget": both}, {"forget": update.read}),
        "after": ({}, {"forget": update.run}),
    }
    sweep(settings, "objects", LATER, connected=interrupted(settings, *hooks[when]))
    if when != "between":
        newcomer.run()
    told = [(one.outcome, one.version) for one in (*newcomer.told, *update.told)]
    assert (OUTCOME_VERSION, version) in told or (OUTCOME_UNKNOWN, 0) in told
    if version == 11:
        assert cells_of(settings, row)[VERSION].timestamp == 11


def test_a_repeat_of_the_version_under_another_source_stays(settings: Settings) -> None:
    row = idle_object(settings)
    again = version_cell(10, "zebra", 1)
    sweep(settings, "objects", LATER, connected=interrupted(settings, before={"forget": lambda: write(settings, row, again)}))
    assert cells_of(settings, row)[VERSION] == again
    sweep(settings, "objects", LATER)
    assert cells_of(settings, row)[IDLE] == idle_cell(10, LATER), "and the days begin again"


def test_a_sweep_that_fails_or_dies_half_way_is_harmless(settings: Settings) -> None:
    row = idle_object(settings)

    def fail() -> None:
        raise PartitionUnavailable("as the test says", "matcher-0")

    swept = sweep(settings, "objects", LATER, connected=interrupted(settings, before={"forget": fail}))
    assert (swept.left, swept.done) == (1, 0)
    assert set(cells_of(settings, row)) >= {VERSION, IDLE}
    open_table(settings).forget([Mutation(row, [V10])])
    sweep(settings, "objects", LATER)
    assert IDLE not in cells_of(settings, row), "what is left of a row that was half forgotten goes too"


def test_a_row_of_an_epoch_before_a_reset_goes_as_a_whole(settings: Settings) -> None:
    row = an_object(settings, V10, registration_cell(CLIENT, SEQNO, "device", registered=True))
    other = an_object(settings, registration_cell(CLIENT, SEQNO, "device", registered=True), key=object_key("demo", 0, b"unversioned"))
    sweep(settings, "objects")
    assert IDLE not in cells_of(settings, row)
    open_manifest(settings).raise_epoch("demo", 0)
    sweep(settings, "objects")
    late = registration_cell(ClientId("late"), SEQNO, "device", registered=True)
    for day in (TODAY, TODAY + 8):
        sweep(settings, "objects", day)
        assert cells_of(settings, row)[IDLE] == idle_cell(10, TODAY)
    sweep(settings, "objects", TODAY + 9, connected=interrupted(settings, before={"forget": lambda: write(settings, row, late)}))
    sweep(settings, "objects", TODAY + 9)
    assert list(cells_of(settings, row).values()) == [late, idle_cell(0, TODAY + 9)][::-1], "only what was read"
    sweep(settings, "objects", TODAY + 18)
    assert cells_of(settings, row) == cells_of(settings, other) == {}


def test_nothing_is_forgotten_that_a_record_in_the_feed_could_follow(settings: Settings) -> None:
    """Trap 30: whatever the clock says. Here it jumps by a year, and a pipeline that lost its checkpoint would read the record again."""
    feed = open_feed(settings)
    assert oldest_record_day(feed) is None
    row = an_object(settings, V10)
    today = int(time.time() * 1000) // DAY_MS
    sweep(settings, "objects", today)
    feed.append(UPDATES, [Entry(KEY, b"{}")])
    assert oldest_record_day(feed) in (today, today + 1)
    assert sweep(settings, "objects", today + 365).done == 0
    assert VERSION in cells_of(settings, row)


def test_a_record_that_is_trimmed_while_it_is_looked_at_counts_as_old(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = open_feed(settings)
    feed.append(UPDATES, [Entry(KEY, b"{}")])
    monkeypatch.setattr(feed, "read", lambda *place: [])
    assert oldest_record_day(feed) == 0


def test_while_the_feed_does_not_tell_nothing_is_forgotten(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    row = idle_object(settings)

    def fail(topic: str) -> None:
        raise PartitionUnavailable("as the test says", topic)

    monkeypatch.setattr(open_feed(settings), "oldest", fail)
    assert sweep(settings, "objects", LATER).counts["feed_not_read"] == settings.partitions
    assert VERSION in cells_of(settings, row)


@pytest.mark.parametrize("attempt", range(ATTEMPTS))
def test_nothing_is_forgotten_of_an_object_while_a_version_of_it_waits_in_scratch(settings: Settings, attempt: int) -> None:
    """Else an older version than the forgotten one would come home, however late, and count as the latest."""
    row = idle_object(settings)
    other = an_object(settings, V10, key=object_key("demo", 0, b"another object"))
    sweep(settings, "objects")
    waits = homeless_cell(Homeless(KEY, 9, 1))
    write(settings, place(waits, attempt, settings.partitions), waits)
    swept = sweep(settings, "objects", LATER)
    assert (swept.done, swept.counts["objects"], swept.counts["in_scratch"]) == (2, 1, 1)
    assert set(cells_of(settings, row)) >= {VERSION, IDLE}
    assert cells_of(settings, other) == {}
    open_table(settings).forget([Mutation(place(waits, attempt, settings.partitions), [waits])])
    assert sweep(settings, "objects", LATER).done == 2


def test_while_scratch_does_not_tell_nothing_is_forgotten(settings: Settings) -> None:
    row = idle_object(settings)

    def fail() -> None:
        raise PartitionUnavailable("as the test says", "scratch-0")

    swept = sweep(settings, "objects", LATER, connected=interrupted(settings, before={"read": fail}))
    assert (swept.left, swept.done, swept.counts["objects"]) == (1, 0, 0)
    assert set(cells_of(settings, row)) >= {VERSION, IDLE}


def test_a_row_that_is_no_objects_holds_up_nobody(settings: Settings) -> None:
    write(settings, RowKey("matcher", 0, b"\xff"), Cell(b"x", 1, b"y"))
    row = an_object(settings, V10)
    sweep(settings, "objects")
    assert IDLE in cells_of(settings, row)


@pytest.mark.parametrize("day", [TODAY - 1, TODAY, TODAY + 400])
def test_a_day_counts_when_it_is_over_for_long_enough(day: int) -> None:
    ages = Ages(today=TODAY, replay_days=8, oldest_record_day=None)
    assert not ages.over(day)
    assert Ages(day + 9, 8, None).over(day)
    assert not Ages(day + 8, 8, None).over(day)
    assert Ages(day + 100, 8, day + 1).over(day)
    assert not Ages(day + 100, 8, day).over(day)
    assert not Ages(day + 30, 8, None).over(day, 30)


def test_a_stamp_of_the_future_waits() -> None:
    """A clock that was ahead: what it stamped is kept for longer, not forgotten sooner."""
    row = {VERSION: V10, IDLE: idle_cell(10, TODAY + 1_000)}
    assert collect_object(KEY, row, lambda application: 0, 30, Ages(TODAY, 8, None)) == Plan()
