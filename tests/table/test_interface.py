"""The order of cells that engines, caches and models share: the larger timestamp, then a delete, then the larger value."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.table.interface import CELLS_PER_WRITE_MAX, TIMESTAMP_MAX, Cell, Mutation, RowKey, check_mutation, wins

ROW = RowKey("registrar", 0, b"row")
cells = st.builds(
    Cell,
    name=st.just(b"x"),
    timestamp=st.integers(0, 3) | st.integers(0, TIMESTAMP_MAX),
    value=st.none() | st.sampled_from([b"", b"1", b"2", b"10"]) | st.binary(max_size=3),
)


def merge(one: Cell, other: Cell) -> Cell:
    return other if wins(other, one) else one


@given(cells, cells)
def test_of_two_different_cells_exactly_one_wins(one: Cell, other: Cell) -> None:
    """Trap 29: with two values at one timestamp, engines would otherwise keep different ones."""
    assert (wins(one, other), wins(other, one)) in ([(False, False)] if one == other else [(True, False), (False, True)])


@given(cells, cells, cells)
def test_winning_is_transitive(one: Cell, two: Cell, three: Cell) -> None:
    if wins(one, two) and wins(two, three):
        assert wins(one, three)


@given(cells, cells, cells)
def test_merging_is_commutative_associative_and_idempotent(one: Cell, two: Cell, three: Cell) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one


@given(st.lists(cells, min_size=1, max_size=8), st.randoms())
def test_any_order_of_writes_leaves_the_same_cell(written: list[Cell], shuffled: object) -> None:
    other = list(written)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert reduce(merge, written) == reduce(merge, other + written)


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (Cell(b"x", 2, b"a"), Cell(b"x", 1, b"z")),
        (Cell(b"x", 2, b"a"), Cell(b"x", 1, None)),
        (Cell(b"x", 1, None), Cell(b"x", 1, b"z")),
        (Cell(b"x", 1, b"2"), Cell(b"x", 1, b"1")),
        (Cell(b"x", 1, b"1a"), Cell(b"x", 1, b"1")),
        (Cell(b"x", 1, b"a"), Cell(b"x", 1, b"")),
    ],
)
def test_the_order_is_the_documented_one(winner: Cell, loser: Cell) -> None:
    assert wins(winner, loser)
    assert not wins(loser, winner)
    assert not wins(winner, winner)


def test_what_no_engine_takes_is_refused() -> None:
    check_mutation(Mutation(ROW, [Cell(b"x", TIMESTAMP_MAX, b"")] * CELLS_PER_WRITE_MAX))
    with pytest.raises(ValueError, match="1,001 cells"):
        check_mutation(Mutation(ROW, [Cell(b"x", 0, b"")] * (CELLS_PER_WRITE_MAX + 1)))
    for timestamp in (-1, TIMESTAMP_MAX + 1):
        with pytest.raises(ValueError, match="timestamp"):
            check_mutation(Mutation(ROW, [Cell(b"x", timestamp, b"")]))
