"""The cells of a client's row: what is written is read back, and values that close something win at their own timestamp."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roskva.model import ClientId, ObjectKey, client_partition, object_key
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    DONE,
    REGISTERED,
    UNREGISTERED,
    WAITING,
    Created,
    LogName,
    Pending,
    client_row,
    closed_on,
    created_cell,
    done_cell,
    is_waiting,
    log_cell,
    read_created,
    read_log_name,
    read_pending,
    registration_cells,
    seen_cell,
    seqno_cell,
    stamped_waiting,
    unknown_cell,
    waiting_since_s,
)
from roskva.table.interface import Cell, wins

HELLO = object_key("demo", 0, b"hello")
keys = st.builds(object_key, st.just("demo"), st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=128))
seqnos = st.integers(0, 2**63 - 1)
pendings = st.builds(Pending, st.none() | seqnos, st.booleans())


@given(keys, seqnos, seqnos)
def test_a_log_name_is_read_back_whatever_bytes_the_object_holds(key: ObjectKey, seqno: int, version: int) -> None:
    assert read_log_name(log_cell(key, seqno, version, WAITING)) == LogName(key, seqno, unknown=False)
    assert read_log_name(unknown_cell(key, seqno, WAITING)) == LogName(key, seqno, unknown=True)


@given(keys, keys, seqnos, seqnos)
def test_notifications_of_different_registrations_have_cells_of_their_own(one: ObjectKey, other: ObjectKey, seqno: int, later: int) -> None:
    """Trap 2: named by the object alone, an old acknowledgement would kill what a new registration yields."""
    same = log_cell(one, seqno, 7, WAITING).name == log_cell(other, later, 7, WAITING).name
    assert same == ((one, seqno) == (other, later))


@given(pendings, seqnos)
def test_a_pending_marker_is_read_back_until_it_is_done(pending: Pending, seqno: int) -> None:
    _, marker = registration_cells(HELLO, seqno, registered=True, pending=pending)
    assert read_pending(marker) == pending
    assert read_pending(done_cell(HELLO, seqno)) is None
    assert read_pending(Cell(marker.name, seqno, None)) is None


@given(pendings)
def test_what_closes_something_wins_over_it_at_the_same_timestamp(pending: Pending) -> None:
    opened, marker = registration_cells(HELLO, 5, registered=True, pending=pending)
    closed, _ = registration_cells(HELLO, 5, registered=False, pending=pending)
    assert wins(closed, opened)
    assert wins(done_cell(HELLO, 5), marker)
    assert wins(log_cell(HELLO, 5, 7, ACKNOWLEDGED), log_cell(HELLO, 5, 7, WAITING))
    assert wins(unknown_cell(HELLO, 5, ACKNOWLEDGED), unknown_cell(HELLO, 5, WAITING))
    assert REGISTERED < UNREGISTERED
    assert WAITING < ACKNOWLEDGED < DONE + b"\x00"


def test_a_later_seqno_or_version_opens_again_what_was_closed() -> None:
    _, marker = registration_cells(HELLO, 6, registered=True, pending=Pending())
    assert wins(marker, done_cell(HELLO, 5))
    assert wins(log_cell(HELLO, 5, 8, WAITING), log_cell(HELLO, 5, 7, ACKNOWLEDGED))
    assert wins(unknown_cell(HELLO, 6, WAITING), unknown_cell(HELLO, 5, ACKNOWLEDGED))


def test_nothing_is_closed_by_a_delete() -> None:
    """A delete reads as absent: whatever must be seen later is a value."""
    cells = [
        *registration_cells(HELLO, 5, registered=False, pending=Pending()),
        done_cell(HELLO, 5),
        log_cell(HELLO, 5, 7, ACKNOWLEDGED),
        unknown_cell(HELLO, 5, ACKNOWLEDGED),
        seqno_cell(5),
        seen_cell(20_000),
        created_cell(Created("demo", "phone")),
    ]
    assert all(cell.value is not None for cell in cells)


@given(st.text(max_size=20), st.text(max_size=20))
def test_created_is_read_back(application: str, device: str) -> None:
    assert read_created(created_cell(Created(application, device))) == Created(application, device)
    assert read_created(None) is None
    assert read_created(Cell(b"created", 0, None)) is None


def test_the_row_of_a_client_lies_in_the_partition_of_its_id() -> None:
    client = ClientId("client-1")
    assert client_row(client, 4) == ("registrar", client_partition(client, 4), b"client-1")


@given(key=keys, seqno=seqnos, version=seqnos, time_s=st.floats(allow_nan=False, allow_infinity=False))
def test_what_waits_says_since_when_and_an_acknowledgement_still_wins(key: ObjectKey, seqno: int, version: int, time_s: float) -> None:
    plain = [log_cell(key, seqno, version, WAITING), unknown_cell(key, seqno, WAITING)]
    closed = [log_cell(key, seqno, version, ACKNOWLEDGED), unknown_cell(key, seqno, ACKNOWLEDGED)]
    stamped = stamped_waiting(plain, time_s)
    for one, before, after in zip(stamped, plain, closed, strict=True):
        assert (one.name, one.timestamp) == (before.name, before.timestamp)
        assert is_waiting(one)
        assert is_waiting(before)
        assert not is_waiting(after)
        assert waiting_since_s(one) == min(max(int(time_s), 0), 2**32 - 1)
        assert waiting_since_s(before) is waiting_since_s(after) is None
        assert wins(after, one)
        assert not wins(one, after)
        assert wins(closed_on(one, 20_000), one)


def test_only_notifications_that_wait_are_stamped() -> None:
    others = [
        *registration_cells(HELLO, 5, True, Pending()),
        done_cell(HELLO, 5),
        seqno_cell(5, WAITING),
        log_cell(HELLO, 5, 7, ACKNOWLEDGED),
    ]
    assert stamped_waiting(others, 1_000.0) == others
