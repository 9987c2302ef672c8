"""The cells of an object's row: what is written is read back, and which of two wins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roskva.matcher.cells import (
    Copy,
    KnownVersion,
    object_row,
    read_copies,
    read_version,
    registration_cell,
    version_cell,
)
from roskva.model import ClientId, object_key, partition_of
from roskva.table.interface import Cell, wins

versions = st.integers(0, 2**63 - 1)
devices = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


def row(*cells: Cell) -> dict[bytes, Cell]:
    return {cell.name: cell for cell in cells}


@given(versions, devices | st.just(""), st.integers(0, 2**62))
def test_a_version_is_read_back(version: int, source: str, incarnation: int) -> None:
    assert read_version(row(version_cell(version, source, incarnation))) == KnownVersion(version, source, incarnation)


@given(st.dictionaries(devices.map(ClientId), st.tuples(versions, devices, st.booleans()), max_size=5))
def test_live_copies_are_read_back_and_others_are_not(copies: dict[ClientId, tuple[int, str, bool]]) -> None:
    cells = [registration_cell(client, seqno, device, live) for client, (seqno, device, live) in copies.items()]
    expected = {Copy(client, seqno, device) for client, (seqno, device, live) in copies.items() if live}
    assert set(read_copies(row(version_cell(1, "x", 1), *cells))) == expected


def test_a_row_without_a_version_knows_none() -> None:
    assert read_version({}) is None
    assert read_version({b"version": Cell(b"version", 7, None)}) is None
    assert read_copies({b"reg:c": Cell(b"reg:c", 7, None)}) == []


def test_a_version_published_again_after_the_feed_was_lost_wins_over_its_old_self() -> None:
    """Else the row would keep the incarnation of the lost feed, and read as unknown for ever."""
    assert wins(version_cell(7, "a", 2), version_cell(7, "z", 1))
    assert wins(version_cell(8, "a", 1), version_cell(7, "a", 2))


def test_at_one_seqno_dropping_a_copy_wins_over_it() -> None:
    client = ClientId("c")
    assert wins(registration_cell(client, 5, "", registered=False), registration_cell(client, 5, "zzz", registered=True))
    assert wins(registration_cell(client, 6, "a", registered=True), registration_cell(client, 5, "", registered=False))


def test_the_row_of_an_object_lies_in_the_partition_of_its_key() -> None:
    key = object_key("demo", 0, b"hello")
    assert object_row(key, 4) == ("matcher", partition_of(key, 4), key)
