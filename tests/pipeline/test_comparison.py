"""The sweep `compare`: each way in which the two views can differ, and that what moves while it looks is left alone. Real tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.matcher.cells import REG as COPY
from roskva.matcher.cells import object_row, read_copies, registration_cell, stamped_copy, version_cell
from roskva.model import OUTCOME_LOST, ClientId, Propagation, object_key, partition_of
from roskva.pipeline.sweeps.comparison import MISSING, NEWER, OLDER, difference, is_dead, standing_registrations
from roskva.registrar.cells import REG, Created, Pending, closed_on, created_cell, done_cell, registration_cells
from roskva.registrar.row import ClientRow
from roskva.table import open_manifest, open_table
from roskva.table.interface import Cell, RowKey
from roskva.table.manifest import Address
from tests.pipeline.standin import RegistrarStandIn, settings_for
from tests.pipeline.swept import CLIENT, KEY, TODAY, a_client, an_object, cells_of, interrupted, sweep, write
from tests.pipeline.swept import SEQNO as S

CREATED = created_cell(Created("demo", "device"))
REGISTERED = [registration_cells(KEY, S, True, Pending())[0], done_cell(KEY, S)]
UNREGISTERED = [registration_cells(KEY, S, False, Pending())[0], done_cell(KEY, S)]
LIVE = registration_cell(CLIENT, S, "device", registered=True)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, partitions=2)  # each costs a second to create


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.die()


def told(registrar: RegistrarStandIn) -> list[Propagation]:
    return [one for _, one in registrar.told]


def test_of_a_row_what_is_registered_and_done_is_expected_at_the_matcher() -> None:
    """Of the present epoch. What is on its way is not there yet."""
    new, pending = object_key("demo", 1, b"new"), object_key("demo", 1, b"pending")
    cells = [*REGISTERED, registration_cells(new, S + 1, True, Pending())[0], *registration_cells(pending, S + 2, True, Pending())]
    row = {cell.name: cell for cell in cells}
    assert standing_registrations(row, 0) == {KEY: S}
    assert standing_registrations(row, 1) == {new: S + 1}, "`done` may have been purged"


@pytest.mark.parametrize(
    ("copy", "what", "above"),
    [
        (None, MISSING, S),
        (registration_cell(CLIENT, S - 1, "device", registered=True), OLDER, S),
        (registration_cell(CLIENT, S + 4, "device", registered=True), NEWER, S + 4),
        (registration_cell(CLIENT, S, "", registered=False), MISSING, S),
        (registration_cell(CLIENT, S + 4, "", registered=False), MISSING, S + 4),
        (stamped_copy(LIVE, TODAY), MISSING, S),
    ],
)
def test_what_differs_is_made_anew_above_whatever_the_matcher_has(copy: Cell | None, what: str, above: int) -> None:
    found = difference(CLIENT, KEY, S, copy)
    assert found == (CLIENT, KEY, S, above, what)
    assert difference(CLIENT, KEY, S, LIVE) is None


def test_views_that_agree_are_left_alone(settings: Settings, registrar: RegistrarStandIn) -> None:
    row, other = a_client(settings, *REGISTERED), an_object(settings, LIVE, version_cell(7, "", 1))
    before = cells_of(settings, row), cells_of(settings, other)
    swept = sweep(settings, "compare")
    assert (swept.proposed, swept.done, swept.left) == (0, 0, 0)
    assert (swept.counts["compared"], swept.counts["copies"]) == (1, 1)
    assert (cells_of(settings, row), cells_of(settings, other)) == before
    assert told(registrar) == []


def test_what_the_matcher_lacks_is_proposed_to_the_owner(settings: Settings, registrar: RegistrarStandIn) -> None:
    older, extended = object_key("demo", 0, b"older"), ClientId(CLIENT + "-b")
    a_client(settings, *REGISTERED, registration_cells(older, S + 1, True, Pending())[0])
    an_object(settings, registration_cell(extended, S, "d", registered=True))  # another client, whose id begins like this one's
    a_client(settings, *REGISTERED, client=extended)
    an_object(settings, LIVE, key=older)
    swept = sweep(settings, "compare", dry_run=True)
    assert (swept.proposed, swept.done, told(registrar)) == (2, 0, [])
    swept = sweep(settings, "compare")
    assert sorted(told(registrar)) == sorted(
        [Propagation(CLIENT, KEY, S, OUTCOME_LOST, 0), Propagation(CLIENT, older, S + 1, OUTCOME_LOST, 0)]
    )
    assert (swept.proposed, swept.done, swept.counts[MISSING], swept.counts[OLDER]) == (2, 2, 1, 1)


def test_without_an_owner_the_task_registers_anew_and_the_next_sweep_waits_for_it(settings: Settings) -> None:
    row = a_client(settings, *REGISTERED)
    dropped = an_object(settings, registration_cell(CLIENT, S + 70, "", registered=False))
    assert sweep(settings, "compare").done == 1
    client = ClientRow(CLIENT, cells_of(settings, row).values())
    standing = client.standing(KEY)
    assert standing == (S + 71, True), "above what the Matcher has, or its copy would lose there"
    assert client.pending() == [(KEY, S + 71, Pending(repair=True))]
    assert sweep(settings, "compare").proposed == 0, "it is on its way"
    write(settings, dropped, registration_cell(CLIENT, S + 71, "device", registered=True))
    write(settings, row, done_cell(KEY, S + 71))
    assert sweep(settings, "compare").proposed == 0


@pytest.mark.parametrize(
    ("cells", "dead"),
    [
        ([], True),
        ([CREATED], True),
        ([CREATED, *UNREGISTERED], True),
        ([CREATED, closed_on(UNREGISTERED[0], TODAY)], True),
        ([CREATED, *registration_cells(KEY, S + 1, False, Pending())], False),
        ([CREATED, *REGISTERED], False),
        ([CREATED, *registration_cells(KEY, S + 1, True, Pending())], False),
        (REGISTERED, True),
    ],
)
def test_copies_of_what_no_longer_lives_are_dropped(settings: Settings, cells: list[Cell], dead: bool) -> None:
    row = {cell.name: cell for cell in cells}
    assert is_dead(row.get(b"created"), row.get(REG + KEY), row.get(b"pending:" + KEY)) == dead
    client = RowKey("registrar", partition_of(CLIENT.encode(), settings.partitions), CLIENT.encode())
    if cells:
        write(settings, client, *cells)
    other = an_object(settings, LIVE, version_cell(7, "", 1))
    before = cells_of(settings, client)
    assert sweep(settings, "compare", dry_run=True).counts.get("dropped", 0) == 0
    swept = sweep(settings, "compare")
    assert swept.counts.get("dropped", 0) == dead
    assert read_copies(cells_of(settings, other)) == ([] if dead else [(CLIENT, S, "device")])
    assert cells_of(settings, other)[COPY + CLIENT.encode()].timestamp == S
    assert cells_of(settings, client) == before
    assert sweep(settings, "compare").counts.get("dropped", 0) == 0


def test_what_moves_between_two_reads_is_left_alone(settings: Settings, registrar: RegistrarStandIn) -> None:
    """The client unregisters, and registers anew, after its row was read and before the copies are."""
    row = a_client(settings, *REGISTERED)
    other = an_object(settings, LIVE)

    def unregister() -> None:
        write(settings, row, *registration_cells(KEY, S + 1, False, Pending()), done_cell(KEY, S + 1))
        write(settings, other, registration_cell(CLIENT, S + 1, "device", registered=False))

    def register() -> None:
        write(settings, row, *registration_cells(KEY, S + 2, True, Pending()))
        write(settings, other, registration_cell(CLIENT, S + 2, "device", registered=True))

    for move in (unregister, register):
        swept = sweep(settings, "compare", connected=interrupted(settings, after={"scan": move}))
        assert (swept.proposed, told(registrar)) == (0, [])
    assert [copy.seqno for copy in read_copies(cells_of(settings, other))] == [S + 2]


def test_a_registration_that_lands_while_its_dead_copy_is_dropped_stays(settings: Settings) -> None:
    row = a_client(settings, *UNREGISTERED)
    other = an_object(settings, LIVE)

    def register() -> None:
        write(settings, row, *registration_cells(KEY, S + 2, True, Pending()))
        write(settings, other, registration_cell(CLIENT, S + 2, "device", registered=True))

    sweep(settings, "compare", connected=interrupted(settings, before={"write": register}))
    assert [copy.seqno for copy in read_copies(cells_of(settings, other))] == [S + 2]


def test_partitions_under_repair_and_old_epochs_are_skipped(settings: Settings, registrar: RegistrarStandIn) -> None:
    a_client(settings, *REGISTERED)
    manifest = open_manifest(settings)
    other = an_object(settings, registration_cell(ClientId("gone"), S, "d", registered=True))
    address = Address("table", "matcher", other.partition)
    manifest.record_lost(*address, manifest.record(*address).incarnation)
    sweep(settings, "compare")
    assert told(registrar) == []
    assert open_table(settings).incarnation("matcher", other.partition) > 1
    assert cells_of(settings, other) == {}, "begun anew"
    an_object(settings, registration_cell(ClientId("gone"), S, "d", registered=True))
    assert sweep(settings, "compare").proposed == 0
    manifest.mark_complete(*address, manifest.record(*address).incarnation)
    manifest.raise_epoch("demo", 0)
    assert sweep(settings, "compare").proposed == 0
    assert told(registrar) == []


def test_what_cannot_be_read_or_written_is_left_for_the_next_time(settings: Settings, registrar: RegistrarStandIn) -> None:
    a_client(settings, *REGISTERED)
    other = an_object(settings, registration_cell(ClientId("gone"), S, "d", registered=True))

    def fail() -> None:
        raise PartitionUnavailable("as the test says", "matcher-0")

    swept = sweep(settings, "compare", connected=interrupted(settings, before={"write": fail}))
    assert (swept.left, swept.done, len(told(registrar))) == (1, 1, 1)
    assert len(read_copies(cells_of(settings, other))) == 1
    swept = sweep(settings, "compare", connected=interrupted(settings, before={"read": fail}))
    assert (swept.left, swept.done, len(told(registrar))) == (1, 1, 1)
    assert read_copies(cells_of(settings, other)) == []


def test_rows_that_nobody_can_read_hold_up_nobody(settings: Settings, registrar: RegistrarStandIn) -> None:
    write(settings, RowKey("registrar", 0, b"\xff"), *REGISTERED)
    write(settings, RowKey("registrar", 0, b"broken"), Cell(b"created", 0, b"\xc1"), *REGISTERED)
    write(settings, RowKey("matcher", 0, b"\xff"), LIVE)
    a_client(settings, *REGISTERED)
    sweep(settings, "compare")
    assert told(registrar) == [Propagation(CLIENT, KEY, S, OUTCOME_LOST, 0)]


def test_many_copies_are_asked_in_pages(settings: Settings) -> None:
    clients = [ClientId(f"client-{number:04}") for number in range(1_200)]
    for client in clients[:3]:
        a_client(settings, *REGISTERED, client=client)
    an_object(settings, *(registration_cell(client, S, "d", registered=True) for client in clients[:1_000]))
    an_object(settings, *(registration_cell(client, S, "d", registered=True) for client in clients[1_000:]))
    swept = sweep(settings, "compare")
    assert (swept.counts["copies"], swept.counts["dropped"], swept.done) == (1_200, 1_197, 1_197)
    row = object_row(KEY, settings.partitions)
    assert {copy.client for copy in read_copies(open_table(settings).read([row])[row])} == set(clients[:3])


def test_of_a_large_clients_row_only_what_counts_is_read(settings: Settings) -> None:
    keys = [object_key("demo", 0, b"%04d" % number) for number in range(300)]
    standing = [cell for key in keys[:-2] for cell in (registration_cells(key, S, True, Pending())[0], done_cell(key, S))]
    row = a_client(settings, *standing, registration_cells(keys[-2], S, False, Pending())[0])
    write(settings, row, *registration_cells(keys[-1], S, False, Pending()))  # on its way
    for key in keys:
        an_object(settings, LIVE, key=key)
    swept = sweep(settings, "compare")
    assert (swept.counts["compared"], swept.counts["copies"], swept.counts["dropped"]) == (298, 300, 1)
    assert read_copies(cells_of(settings, object_row(keys[-2], settings.partitions))) == []
