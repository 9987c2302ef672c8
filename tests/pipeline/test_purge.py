"""The sweep `purge`: which cells are closed, when they go, and that nothing which still matters goes with them. Real tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.matcher.cells import object_row, registration_cell, stamp_of, stamped_copy, version_cell
from roskva.matcher.core import collapse, tell_registered
from roskva.model import (
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    ClientId,
    ObjectKey,
    Propagation,
    Update,
    object_key,
    seqno_of,
)
from roskva.pipeline.sweeps.ages import Ages
from roskva.pipeline.sweeps.purge import purge_client, purge_object
from roskva.protocol.messages import Register
from roskva.registrar import core
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    CREATED,
    PENDING,
    REG,
    SEQNO,
    UNREGISTERED,
    WAITING,
    Created,
    Pending,
    closed_on,
    created_cell,
    done_cell,
    is_closed,
    log_cell,
    read_pending,
    registration_cells,
    seen_cell,
    seqno_cell,
    unknown_cell,
)
from roskva.registrar.cells import stamp_of as stamp_of_cell
from roskva.registrar.row import ClientRow
from roskva.table import open_manifest, open_table
from roskva.table.interface import Cell, Row, RowKey, wins
from tests.pipeline.standin import settings_for
from tests.pipeline.swept import CLIENT, KEY, TODAY, a_client, an_object, cells_of, interrupted, sweep, write
from tests.pipeline.swept import SEQNO as S

LATER = TODAY + 9  # more than a day of retention and 7 of outage
OTHER = object_key("demo", 0, b"other")
NOW = Ages(TODAY, 8, None)
REGISTERED = registration_cells(KEY, S, True, Pending())[0]
GONE = registration_cells(KEY, S + 1, False, Pending())[0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, partitions=1)  # each costs a second to create


def row_of(*cells: Cell) -> Row:
    all_cells = [created_cell(Created("demo", "device")), seqno_cell(S + 9), seen_cell(1), *cells]
    return {cell.name: cell for cell in all_cells}


def stamped(*cells: Cell, epoch: int = 0) -> list[Cell]:
    return list(purge_client(row_of(*cells), lambda application: epoch, NOW).stamps)


@pytest.mark.parametrize(
    "cell",
    [
        GONE,
        done_cell(KEY, S),
        log_cell(KEY, S, 7, ACKNOWLEDGED),
        log_cell(OTHER, S, 7, WAITING),  # of what does not stand
        unknown_cell(KEY, S, ACKNOWLEDGED),
    ],
)
def test_what_is_closed_is_stamped_and_means_the_same(cell: Cell) -> None:
    (stamp,) = stamped(cell) if cell is GONE else stamped(REGISTERED, cell)
    assert stamp == closed_on(cell, TODAY)
    assert stamp_of_cell(stamp) == TODAY
    assert is_closed(stamp)
    assert wins(stamp, cell), "over the plain value"
    assert wins(stamp, Cell(cell.name, cell.timestamp, WAITING))
    assert wins(closed_on(cell, TODAY + 1), stamp), "of two sweeps, the later day counts"
    assert wins(Cell(cell.name, cell.timestamp + 1, b"1"), stamp), "whatever comes later wins"


@pytest.mark.parametrize(
    "cells",
    [
        [REGISTERED],
        [REGISTERED, log_cell(KEY, S, 7, WAITING), unknown_cell(KEY, S, WAITING)],
        registration_cells(KEY, S, True, Pending()),
        registration_cells(KEY, S, False, Pending()),  # unregistered, and the Matcher has not heard of it
        [REGISTERED, log_cell(KEY, S + 1, 7, WAITING)],  # of a registration that this row does not have yet
    ],
)
def test_what_still_matters_is_left_alone(cells: list[Cell]) -> None:
    assert stamped(*cells) == []
    assert not purge_client(row_of(*cells), lambda application: 0, Ages(TODAY + 10_000, 8, None)).forgets


def test_what_is_of_an_epoch_before_a_reset_is_closed(settings: Settings) -> None:
    new = object_key("demo", 1, b"an object")
    old = [*registration_cells(KEY, S, True, Pending()), log_cell(KEY, S, 7, WAITING), unknown_cell(KEY, S, WAITING)]
    kept = registration_cells(new, S + 1, True, Pending())
    assert sorted(stamped(*old, *kept, epoch=1)) == sorted(closed_on(cell, TODAY) for cell in old)
    row = a_client(settings, *old, *kept)
    open_manifest(settings).raise_epoch("demo", 0)
    sweep(settings, "purge")
    assert ClientRow(CLIENT, cells_of(settings, row).values(), epoch=1).digest.count == 1
    sweep(settings, "purge", LATER)
    assert set(cells_of(settings, row)) == {CREATED, SEQNO, *(cell.name for cell in kept)}


def test_a_row_without_created_is_not_ours(settings: Settings) -> None:
    assert not purge_client({GONE.name: GONE}, lambda application: 0, NOW).stamps
    row = RowKey("registrar", 0, b"zombie")
    write(settings, row, GONE)
    sweep(settings, "purge")
    assert cells_of(settings, row) == {GONE.name: GONE}


CLOSED = (
    registration_cells(OTHER, S + 1, False, Pending())[0],
    done_cell(OTHER, S + 1),
    done_cell(KEY, S),
    log_cell(KEY, S, 7, ACKNOWLEDGED),
    unknown_cell(KEY, S, ACKNOWLEDGED),
    log_cell(OTHER, S, 3, WAITING),
)


def test_closed_cells_go_when_nothing_older_can_follow(settings: Settings) -> None:
    """Trap 30: not a day before."""
    row = a_client(settings, REGISTERED, *CLOSED)
    copy = registration_cell(CLIENT, S + 1, "device", registered=False)
    there = registration_cell(ClientId("other"), S, "device", registered=True)
    other = an_object(settings, copy, there, key=OTHER)
    swept = sweep(settings, "purge")
    assert (swept.counts["stamped"], swept.done) == (7, 0)
    for day in (TODAY, TODAY + 1, LATER - 1):
        assert sweep(settings, "purge", day).proposed == 0
    assert {cell.name for cell in CLOSED} <= set(cells_of(settings, row))
    assert cells_of(settings, other)[copy.name] == stamped_copy(copy, TODAY)
    assert sweep(settings, "purge", LATER).done == 7
    assert set(cells_of(settings, row)) == {CREATED, SEQNO, REGISTERED.name}
    assert cells_of(settings, other) == {there.name: there}
    assert sweep(settings, "purge", LATER + 100).proposed == 0


def test_a_dry_run_writes_nothing(settings: Settings) -> None:
    row = a_client(settings, REGISTERED, *CLOSED)
    before = cells_of(settings, row)
    assert sweep(settings, "purge", dry_run=True).counts["stamped"] == len(CLOSED)
    assert cells_of(settings, row) == before
    sweep(settings, "purge")
    before = cells_of(settings, row)
    swept = sweep(settings, "purge", LATER, dry_run=True)
    assert (swept.proposed, swept.done) == (len(CLOSED), 0)
    assert cells_of(settings, row) == before


def test_cut_short_it_goes_on_the_next_time(settings: Settings) -> None:
    row = a_client(settings, REGISTERED, *CLOSED)
    other = an_object(settings, registration_cell(CLIENT, S + 1, "device", registered=False), key=OTHER)

    def fail() -> None:
        raise PartitionUnavailable("as the test says", "registrar-0")

    for kind, day in (("write", TODAY), ("forget", LATER)):
        assert sweep(settings, "purge", day, connected=interrupted(settings, before={kind: fail})).left == 1
        sweep(settings, "purge", day)
    assert set(cells_of(settings, row)) == {CREATED, SEQNO, REGISTERED.name}
    assert cells_of(settings, other) == {}


@pytest.mark.parametrize("place", ["between read and stamp", "between read and forgetting"])
def test_what_lands_while_a_sweep_decides_stays(settings: Settings, place: str) -> None:
    """The client registers again, is told, and the Matcher has its copy."""
    closed = [GONE, done_cell(KEY, S + 1), log_cell(KEY, S, 7, ACKNOWLEDGED), unknown_cell(KEY, S, ACKNOWLEDGED)]
    row = a_client(settings, *closed)
    other = an_object(settings, registration_cell(CLIENT, S + 1, "device", registered=False))
    again = [*registration_cells(KEY, S + 2, True, Pending()), unknown_cell(KEY, S + 2, WAITING), log_cell(KEY, S + 2, 8, WAITING)]
    copy = registration_cell(CLIENT, S + 2, "device", registered=True)

    def register() -> None:
        write(settings, row, *again)
        write(settings, other, copy)

    if place == "between read and stamp":
        sweep(settings, "purge", connected=interrupted(settings, after={"scan": register}))
    else:
        sweep(settings, "purge")
        sweep(settings, "purge", LATER, connected=interrupted(settings, before={"forget": register}))
    kept = cells_of(settings, row)
    assert [kept[cell.name] for cell in again] == again
    assert cells_of(settings, other) == {copy.name: copy}


def test_a_registrar_that_repeats_a_closed_value_takes_no_stamp_away(settings: Settings) -> None:
    """Its cached row does not know of stamps: the days count from the first all the same, and both rows read alike."""
    row = a_client(settings, REGISTERED, *CLOSED)
    cached = ClientRow(CLIENT, cells_of(settings, row).values())
    sweep(settings, "purge")
    fresh = ClientRow(CLIENT, cells_of(settings, row).values())
    write(settings, row, *CLOSED)
    assert all(stamp_of_cell(cells_of(settings, row)[cell.name]) == TODAY for cell in CLOSED)
    for outcome in (OUTCOME_UPDATE, OUTCOME_VERSION, OUTCOME_UNKNOWN, OUTCOME_UNREGISTERED, OUTCOME_LOST):
        for key in (KEY, OTHER):
            for seqno in (S - 1, S, S + 1, S + 2):
                told = Propagation(CLIENT, key, seqno, outcome, 7)
                assert core.blind(cached, told) == core.blind(fresh, told)
    assert cached.digest.summary() == fresh.digest.summary()
    assert (cached.pending(), list(cached.waiting())) == (fresh.pending(), list(fresh.waiting())) == ([], [])


def test_after_the_purge_nothing_is_told_wrongly() -> None:
    """What the Matcher could still say of what was forgotten is void, or leads to what the client has registered."""
    row = ClientRow(CLIENT, row_of(REGISTERED).values())

    def verdict(key: ObjectKey, seqno: int, outcome: int) -> core.Judgement:
        return core.judge(row, Propagation(CLIENT, key, seqno, outcome, 7))

    assert verdict(OTHER, S, OUTCOME_UPDATE) == core.Judgement(verdict=1), "the Matcher drops a copy that it should not have"
    assert verdict(OTHER, S + 1, OUTCOME_UNREGISTERED) == core.Judgement(verdict=0)
    assert core.notification_of(row, Propagation(CLIENT, KEY, S, OUTCOME_UNKNOWN, 0)) == (False, None), "acknowledged, and forgotten"


def test_a_stamped_copy_is_no_registration() -> None:
    for plain in (registration_cell(CLIENT, S, "", False), registration_cell(CLIENT, S, "zzz", False)):
        stamp = stamped_copy(plain, TODAY)
        assert wins(stamp, plain)
        assert stamp_of(stamp) == TODAY
        assert stamp_of(plain) is None
        row = {version_cell(7, "", 1).name: version_cell(7, "", 1), stamp.name: stamp}
        change = collapse([Update(KEY, 7, "")], ()).changes[KEY]
        assert list(tell_registered(KEY, change, row)) == []
        assert not purge_object(row, NOW).stamps
        assert list(purge_object(row, Ages(LATER, 8, None)).forgets) == [stamp]


def test_a_row_that_nobody_can_read_holds_up_nobody(settings: Settings) -> None:
    fine = a_client(settings, GONE, client=ClientId("fine"))
    broken = RowKey("registrar", 0, b"broken")
    write(settings, broken, Cell(CREATED, 0, b"\xc1"), GONE)
    sweep(settings, "purge")
    assert cells_of(settings, fine)[GONE.name] == closed_on(GONE, TODAY)
    assert cells_of(settings, broken)[GONE.name] == GONE


def test_a_large_row_is_stamped_and_forgotten_in_several_writes(settings: Settings) -> None:
    gone = [registration_cells(object_key("demo", 0, b"%d" % number), S, False, Pending())[0] for number in range(2_500)]
    row = a_client(settings, *gone[:900])
    write(settings, row, *gone[900:1_800])
    write(settings, row, *gone[1_800:])
    assert sweep(settings, "purge").counts["stamped"] == 2_500
    assert sweep(settings, "purge", LATER).done == 2_500
    assert set(cells_of(settings, row)) == {CREATED, SEQNO}
    assert sum(1 for _ in open_table(settings).scan("registrar", 0)) == 1


def test_seqnos_are_not_used_again_after_the_cells_that_told_them_are_purged() -> None:
    """A session goes on beside a later grant that nobody uses. Its seqnos were in cells of what it unregistered, all purged since."""
    first, second = seqno_of(4, 0), seqno_of(5, 0)
    before = ClientRow(CLIENT, [created_cell(Created("demo", "device")), seqno_cell(first + 9)])
    operations = core.Operations(used=before.seqno)
    after = ClientRow(CLIENT, [created_cell(Created("demo", "device")), seqno_cell(second)])
    decision = core.operate(after, 4, operations, [Register(op=1, object="other")], [], 100)
    assert [event.seqno for event in decision.events] == [first + 10]
    forgetful = core.operate(after, 4, core.Operations(), [Register(op=1, object="other")], [], 100)
    assert [event.seqno for event in forgetful.events] == [first + 1], "without the memory, a number comes twice"


def test_stamps_are_read_back() -> None:
    assert stamp_of_cell(Cell(REG + KEY, S, UNREGISTERED)) is None
    assert stamp_of_cell(Cell(PENDING + KEY, S, b"1" + bytes(4))) is None, "what is open has none"
    assert read_pending(closed_on(done_cell(KEY, S), TODAY)) is None
    assert object_row(KEY, 1).partition == 0
