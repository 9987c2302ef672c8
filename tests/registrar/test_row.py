"""A client's row in memory equals the table, whatever the order in which its cells came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roskva.model import ClientId, ObjectKey, name_of, object_key
from roskva.protocol.summaries import SetDigest, bucket_of
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    DONE,
    WAITING,
    Created,
    Pending,
    created_cell,
    done_cell,
    log_cell,
    registration_cells,
    seen_cell,
    seqno_cell,
    unknown_cell,
)
from roskva.registrar.row import ClientRow, Standing, Waiting
from roskva.table.interface import Cell, wins

CLIENT = ClientId("client-1")
HELLO = object_key("demo", 0, b"hello")
NAMES = [b"a", b"b", b"c"]

keys = st.builds(object_key, st.just("demo"), st.integers(0, 1), st.sampled_from(NAMES))
small = st.integers(0, 4)
pendings = st.builds(Pending, st.none() | small, st.booleans())
states = st.sampled_from([WAITING, ACKNOWLEDGED])


@st.composite
def cells_of_a_row(draw: st.DrawFn) -> Cell:
    key, seqno, version = draw(keys), draw(small), draw(small)
    choices = [
        *registration_cells(key, seqno, draw(st.booleans()), draw(pendings)),
        done_cell(key, seqno),
        log_cell(key, seqno, version, draw(states)),
        unknown_cell(key, seqno, draw(states)),
        seqno_cell(seqno),
        seen_cell(version),
        created_cell(Created("demo", "phone")),
    ]
    cell = draw(st.sampled_from(choices))
    return cell if draw(st.integers(0, 9)) else cell._replace(value=None)


def observed(row: ClientRow) -> dict[str, object]:
    """Everything that a row can be asked."""
    return {
        "created": row.created,
        "seqno": row.seqno,
        "seen": row.seen_day,
        "empty": row.empty,
        "summary": row.digest.summary(),
        "registered": sorted(row.registered()),
        "objects": sorted(row.objects()),
        "pending": sorted(row.pending(), key=repr),
        "pending_count": row.pending_count,
        "waiting": sorted(row.waiting(), key=repr),
        "each": [
            (row.standing(key), row.unknown(key), [(row.is_pending(key, s), row.logged(key, s)) for s in range(5)])
            for key in (object_key("demo", epoch, name) for epoch in (0, 1) for name in NAMES)
        ],
    }


@given(st.lists(cells_of_a_row(), max_size=30), st.randoms(), st.integers(0, 1))
def test_any_order_of_cells_gives_the_same_row(cells: list[Cell], shuffled: object, epoch: int) -> None:
    other = [*cells, *cells[:5]]
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert observed(ClientRow(CLIENT, cells, epoch)) == observed(ClientRow(CLIENT, other, epoch))


@given(st.lists(cells_of_a_row(), max_size=30), st.integers(0, 1))
def test_a_cache_that_took_every_write_equals_a_fresh_read_of_the_table(cells: list[Cell], epoch: int) -> None:
    """A table answers live cells only, the winners; a cache saw all of them, one by one."""
    table: dict[bytes, Cell] = {}
    cache = ClientRow(CLIENT, epoch=epoch)
    for cell in cells:
        cache.apply([cell])
        if cell.name not in table or wins(cell, table[cell.name]):
            table[cell.name] = cell
    live = [cell for cell in table.values() if cell.value is not None]
    assert observed(cache) == observed(ClientRow(CLIENT, live, epoch))


@given(st.lists(cells_of_a_row(), max_size=30), st.integers(0, 1))
def test_the_digest_is_that_of_the_registrations_of_the_present_epoch(cells: list[Cell], epoch: int) -> None:
    row = ClientRow(CLIENT, cells, epoch)
    names = [key[-1:] for key in row.registered()]
    assert row.digest.summary() == SetDigest(names).summary()
    assert len(names) == len(set(names))


def test_a_row_starts_with_nothing() -> None:
    row = ClientRow(CLIENT)
    assert (row.created, row.seqno, row.seen_day, row.empty, row.pending_count) == (None, 0, 0, True, 0)
    assert row.standing(HELLO) is None
    assert list(row.waiting()) == []


def registered(*more: Cell, seqno: int = 5, key: ObjectKey = HELLO) -> ClientRow:
    return ClientRow(CLIENT, [*registration_cells(key, seqno, registered=True, pending=Pending()), *more])


def test_a_registration_counts_from_its_write() -> None:
    row = registered()
    assert row.standing(HELLO) == Standing(5, registered=True)
    assert row.digest.count == 1
    assert row.pending() == [(HELLO, 5, Pending())]


def test_an_unregistration_counts_from_its_write() -> None:
    row = registered()
    row.apply(registration_cells(HELLO, 6, registered=False, pending=Pending()))
    assert row.standing(HELLO) == Standing(6, registered=False)
    assert row.digest.summary() == SetDigest().summary()
    assert row.pending() == [(HELLO, 6, Pending())]


def test_done_closes_only_the_pending_marker_of_its_seqno() -> None:
    row = registered(done_cell(HELLO, 4))
    assert row.is_pending(HELLO, 5)
    row.apply([done_cell(HELLO, 5)])
    assert not row.is_pending(HELLO, 5)
    assert row.pending_count == 0
    assert row.pending() == []


def test_only_what_belongs_to_the_standing_registration_waits() -> None:
    """Traps 2 and 35: what an earlier registration left behind is neither sent nor able to hide what the new one yields."""
    row = registered(log_cell(HELLO, 4, 7, WAITING), unknown_cell(HELLO, 4, WAITING), seqno=5)
    assert list(row.waiting()) == []
    row.apply([log_cell(HELLO, 4, 7, ACKNOWLEDGED), log_cell(HELLO, 5, 7, WAITING)])
    assert list(row.waiting()) == [Waiting(HELLO, 5, 7)]


def test_nothing_waits_for_an_object_that_was_unregistered() -> None:
    row = registered(log_cell(HELLO, 5, 7, WAITING), unknown_cell(HELLO, 5, WAITING))
    assert set(row.waiting()) == {Waiting(HELLO, 5, 7), Waiting(HELLO, 5, None)}
    row.apply(registration_cells(HELLO, 6, registered=False, pending=Pending()))
    assert list(row.waiting()) == []


def test_at_most_one_version_waits_per_registration() -> None:
    row = registered(*(log_cell(HELLO, 5, version, WAITING) for version in (7, 9, 8)))
    assert list(row.waiting()) == [Waiting(HELLO, 5, 9)]
    row.apply([log_cell(HELLO, 5, 8, ACKNOWLEDGED)])
    assert list(row.waiting()) == [Waiting(HELLO, 5, 9)]
    row.apply([log_cell(HELLO, 5, 9, ACKNOWLEDGED)])
    assert list(row.waiting()) == []


def test_registrations_of_an_old_epoch_no_longer_count() -> None:
    """After a reset the summaries differ without any scan, so clients sync and are told unknown."""
    row = ClientRow(CLIENT, registration_cells(HELLO, 5, registered=True, pending=Pending()), epoch=1)
    assert row.digest.count == 0
    assert list(row.registered()) == []
    assert list(row.objects()) == [HELLO]


def test_done_is_a_value_of_its_own() -> None:
    assert done_cell(HELLO, 5).value == DONE


def test_the_registrations_of_some_buckets_stay_known_as_a_large_row_changes() -> None:
    names = [b"object-%d" % number for number in range(1_200)]
    row = ClientRow(CLIENT, (cell for name in names for cell in registration_cells(object_key("demo", 0, name), 1, True, Pending())))
    wanted = {3, 77, 200}

    def walked() -> set[ObjectKey]:
        return {key for key in row.registered() if bucket_of(name_of(key)) in wanted}

    assert row.large
    assert set(row.registered_in(wanted)) == walked() != set()
    gone = next(iter(walked()))
    row.apply(registration_cells(gone, 2, False, Pending()))
    new = next(name for number in range(10_000) if bucket_of(name := b"new-%d" % number) == 77)
    row.apply(registration_cells(object_key("demo", 0, new), 2, True, Pending()))
    assert gone not in row.registered_in(wanted)
    assert object_key("demo", 0, new) in row.registered_in(wanted)
    assert set(row.registered_in(wanted)) == walked()
    assert row.registered_in({300}) == []
