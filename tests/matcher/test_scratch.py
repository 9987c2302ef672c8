"""Where what was put aside lies, and what its cells say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.matcher.events import Invalidation
from roskva.matcher.scratch import ATTEMPTS, Homeless, Unwalked, homeless_cell, place, read_cell, untold_cell, unwalked_cell
from roskva.model import OUTCOME_LOST, OUTCOME_UPDATE, VERSION_MAX, ClientId, ObjectKey, Propagation, object_key
from roskva.table.interface import Cell, wins

X = object_key("demo", 0, b"x")
versions = st.integers(0, VERSION_MAX)
objects = st.builds(object_key, st.just("demo"), st.integers(0, 3), st.binary(min_size=1, max_size=20))
clients = st.text("abc-9", min_size=1, max_size=8).map(ClientId)


@given(objects, versions, st.integers(0, 2**63), st.integers(0, 1000))
def test_a_version_is_read_back(key: ObjectKey, version: int, incarnation: int, rounds: int) -> None:
    homeless = Homeless(key, version, incarnation, rounds)
    assert read_cell(homeless_cell(homeless)) == homeless


@given(clients, objects, st.integers(0, 2**63 - 1))
def test_a_client_whose_registration_is_to_be_made_anew_is_read_back(client: ClientId, key: ObjectKey, seqno: int) -> None:
    lost, update = (Propagation(client, key, seqno, outcome, 0) for outcome in (OUTCOME_LOST, OUTCOME_UPDATE))
    assert read_cell(untold_cell(lost)) == lost
    assert untold_cell(lost).name != untold_cell(update).name, "neither hides the other"


@given(objects, st.booleans(), st.binary(max_size=20), st.integers(0, 255))
def test_an_invalidation_is_read_back(key: ObjectKey, prefix: bool, after: bytes, partition: int) -> None:
    unwalked = Unwalked(Invalidation(key, prefix, after), partition)
    assert read_cell(unwalked_cell(unwalked)) == unwalked


@given(clients, objects, st.integers(0, 2**63 - 1), versions)
def test_a_client_that_was_not_told_is_read_back(client: ClientId, key: ObjectKey, seqno: int, version: int) -> None:
    told = Propagation(client, key, seqno, OUTCOME_UPDATE, version)
    assert read_cell(untold_cell(told)) == told


@pytest.mark.parametrize(
    "name",
    [
        *(b"", b"v:", b"v:noepoch", b"v:\xff\xfe\x00\x00\x00\x00\x00x", b"v:demo\x00xy", b"z:", b"i:", b"i:\x00\x01{}", b"i:\x00\x01[1]"),
        *(b"t:", b"t:client", b"t:client\x00x", b"t:\xff\x00a\x00bcdefghij12345678", b"l:client\x00x"),
    ],
)
def test_what_nobody_wrote_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match=r"^no |utf-8"):
        read_cell(Cell(name, 1, b"0123456789abcdef"))


def test_4_2_6_each_attempt_has_a_place_of_its_own_which_all_versions_share() -> None:
    """Retry locations are a salted hash of the object, the attempt is the salt; so successive versions overwrite each other."""
    cells = [homeless_cell(Homeless(X, version, 1)) for version in (4, 9)]
    places = [[place(cell, attempt, 4) for attempt in range(ATTEMPTS)] for cell in cells]
    assert places[0] == places[1]
    assert len(set(places[0])) == ATTEMPTS
    assert all(row.table == "scratch" and 0 <= row.partition < 4 and len(row.key) == 16 for row in places[0])
    assert wins(cells[1], cells[0])


def test_places_spread_over_the_partitions() -> None:
    cells = [homeless_cell(Homeless(object_key("demo", 0, b"%d" % number), 1, 1)) for number in range(400)]
    for attempt in range(ATTEMPTS):
        found = [place(cell, attempt, 4).partition for cell in cells]
        assert all(found.count(partition) > 50 for partition in range(4))
    first_fails = [place(cell, 1, 4).partition for cell in cells if place(cell, 0, 4).partition == 0]
    assert set(first_fails) == {0, 1, 2, 3}, "where the next place lies does not depend on the first"


def test_versions_of_two_epochs_do_not_meet() -> None:
    """After a reset versions count anew: what was put aside before it must not hide a lower one."""
    old, new = (homeless_cell(Homeless(object_key("demo", epoch, b"x"), version, 1)) for epoch, version in ((0, 100), (1, 5)))
    assert old.name != new.name
    assert place(old, 0, 4) != place(new, 0, 4)


def test_what_is_put_aside_again_wins_over_what_was_brought_home() -> None:
    first, second = (homeless_cell(Homeless(X, 7, 3, rounds)) for rounds in (0, 1))
    assert wins(second, first)
    assert wins(homeless_cell(Homeless(X, 7, 4, 0)), second), "published again after the feed was lost: known again"


def test_each_registration_of_a_client_has_its_own_cell() -> None:
    """The later version of an earlier registration is void: it must not hide what the new one is owed."""
    old, new = (untold_cell(Propagation(ClientId("c"), X, seqno, OUTCOME_UPDATE, version)) for seqno, version in ((1, 9), (2, 8)))
    assert old.name != new.name
