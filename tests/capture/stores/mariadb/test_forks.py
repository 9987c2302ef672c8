"""Which log is a fork of what was read, and which history a position is of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.mariadb import forks as rules
from roskva.capture.stores.mariadb.forks import (
    Fork,
    Known,
    Range,
    Written,
    declared,
    history_of,
    kept_of,
    known_from,
    undone,
    with_read,
)
from roskva.capture.stores.mariadb.witness import Witness
from roskva.errors import CaptureRefused

A, B, C = 1, 2, 3
READ = Known(read=(Range(A, 1, 105),))
FORKED = declared(READ, Fork(1, 103, A, B))


def forked(known: Known, last: Mapping[int, int]) -> Fork | None:
    return rules.forked(known, lambda _: last)


def forks_of(known: Known, last: Mapping[int, int]) -> tuple[Fork, ...]:
    return rules.forks_of(known, lambda _: last)


@pytest.mark.parametrize(
    ("last", "fork"),
    [
        ({A: 103, B: 104}, Fork(1, 103, A, B)),  # it has not come to 105 yet
        ({A: 103, B: 110}, Fork(1, 103, A, B)),
        ({A: 103, B: 110, C: 120}, Fork(1, 103, A, B)),
        ({A: 103}, None),  # behind, or not written to yet
        ({A: 105}, None),
        ({A: 105, B: 106}, None),  # the primary has changed in good order
        ({A: 120}, None),
        ({B: 200}, None),  # of a log that began later nobody can tell
        ({}, None),
    ],
)
def test_a_log_that_lacks_what_was_read_and_went_on_is_a_fork(last: Mapping[int, int], fork: Fork | None) -> None:
    assert forked(READ, last) == fork


def test_also_if_all_of_a_server_is_lost() -> None:
    assert forked(Known(read=(Range(C, 1, 103), Range(A, 104, 105, Written(C, 103)))), {C: 103, B: 104}) == Fork(1, 103, A, B)
    assert forked(Known(read=(Range(A, 105, 105),)), {A: 103, B: 105}) == Fork(1, 103, A, B), "reading began further on"


def test_what_others_read_is_not_taken_for_what_a_lost_server_had() -> None:
    """The new primary's 5 and 6 were read before its log was looked at; the lost one's 5 to 11 never were."""
    read = (Range(B, 5, 6), Range(A, 12, 19))
    assert forked(Known(read=read), {A: 4, B: 13}) == Fork(1, 4, A, B)
    assert forked(Known(read=(Range(C, 1, 103), Range(A, 104, 105))), {C: 103, B: 104}) == Fork(1, 0, A, B), "perhaps C wrote 103 later"


def test_the_commits_before_those_that_are_lost_are_followed_back() -> None:
    read = (Range(C, 1, 103), Range(B, 104, 110, Written(C, 103)), Range(A, 111, 112, Written(B, 110)))
    assert forked(Known(read=read), {C: 103, B: 110, 4: 115}) == Fork(1, 110, A, 4)
    assert forked(Known(read=read[::2], beside=read[1:2]), {C: 103, 4: 115}) == Fork(1, 103, A, 4)


def test_a_server_that_wrote_all_before_is_the_new_primary() -> None:
    known = Known(read=(Range(A, 1, 3), Range(B, 4, 5, Written(A, 3))), beside=(Range(A, 4, 6),))
    assert forked(known, {A: 10}) == Fork(1, 3, B, A)


def test_a_log_that_has_a_commit_before_those_that_it_lacks_did_not_begin_later() -> None:
    known = Known(read=(Range(A, 3, 3), Range(B, 4, 4, Written(A, 3)), Range(A, 5, 17, Written(B, 4))))
    assert rules.forked(known, lambda sequence: {A: min(sequence, 20)}) == Fork(1, 3, B, A)


def test_of_a_log_where_nobody_read_beyond_a_fork_the_side_is_known() -> None:
    known = Known(forks=(Fork(1, 3, A, B),), read=(Range(A, 3, 3),))
    assert rules.forks_of(known, lambda sequence: {A: min(sequence, 5)}) == ()


def test_a_replica_that_ends_before_all_that_was_read_is_behind() -> None:
    assert forked(Known(read=(Range(A, 105, 105),)), {A: 103, B: 104}) is None
    assert forked(Known(read=(Range(A, 1000, 1005),)), {A: 900, B: 950}) is None, "they took turns in good order"


@pytest.mark.parametrize("seed", range(300))
def test_where_nothing_is_lost_no_log_is_a_fork_wherever_reading_began(seed: int) -> None:
    """Primaries take turns in good order. What was read is any part of it, and a log any beginning of it, in files of any length."""
    dice = Random(seed)
    commits: list[tuple[int, int]] = []
    number, server = dice.choice([0, 5]), A
    for _ in range(dice.randint(5, 40)):
        server = dice.choice([A, B, C]) if dice.random() < 0.2 else server
        number += dice.choice([1] * 9 + [2])
        commits.append((server, number))
    witness = Witness()
    first = dice.randrange(len(commits))
    for server, number in commits[first : dice.randint(first, len(commits))]:
        witness.saw(number, server)
    witness.keep()
    known = known_from(witness.memory.recall())
    for _ in range(20):
        log = commits[: dice.randint(0, len(commits))]
        lists = [dict(log[:end]) for end in sorted({len(log), *(dice.randint(0, len(log)) for _ in range(4))})]

        def lasts(sequence: int, lists: list[dict[int, int]] = lists) -> Mapping[int, int]:
            return next((one for one in lists if max(one.values(), default=0) > sequence), lists[-1])

        assert rules.forked(known, lasts) is None


def test_changes_of_the_primary_in_good_order_are_none() -> None:
    known = Known(read=(Range(A, 1, 103), Range(B, 104, 120), Range(A, 121, 130)))
    for last in ({A: 130, B: 120}, {A: 103, B: 110}, {A: 50}, {A: 121, B: 120}, {A: 130, B: 120, C: 140}):
        assert forked(known, last) is None
    assert forked(known, {A: 103, B: 110, C: 111}) == Fork(1, 110, B, C)


def test_what_cannot_be_of_one_log_is_settled_by_the_next_look() -> None:
    known = with_read(Known(read=(Range(A, 1, 103), Range(B, 104, 110))), [Range(A, 90, 105)])
    assert known.beside == (Range(A, 90, 105),)
    assert with_read(known, [Range(A, 90, 106)]).beside == (Range(A, 90, 106),)
    found = forked(known, {A: 103, B: 110})
    assert found == Fork(1, 103, A, B)
    after = declared(known, found)
    assert after == Known((found,), (Range(A, 1, 103),))
    assert forked(after, {A: 103, B: 110}) is None, "it is told once"


def test_a_server_that_was_lost_and_is_lost_again_is_not_overlooked() -> None:
    known = with_read(FORKED, [Range(B, 104, 120), Range(A, 121, 130), Range(C, 131, 140)])
    assert with_read(known, [Range(A, 104, 105)]).beside == (), "the first time is known"
    known = with_read(known, [Range(A, 121, 135)])
    assert known.beside == (Range(A, 121, 135),)
    assert forked(known, {A: 130, B: 120, C: 140}) == Fork(2, 130, A, C)


def test_the_log_of_the_lost_primary_is_of_the_history_before() -> None:
    assert forks_of(FORKED, {A: 105}) == ()
    assert forked(with_read(FORKED, [Range(B, 104, 120)]), {A: 106}) is None
    for last in ({A: 103, B: 104}, {A: 103}, {A: 121, B: 120}):
        assert forks_of(FORKED, last) == FORKED.forks
    again = with_read(FORKED, [Range(B, 104, 120), Range(A, 121, 130)])
    assert forks_of(again, {A: 140}) == again.forks, "built anew, it is the primary again"


def test_a_log_that_has_some_of_what_was_read_after_a_fork_is_not_the_undone_one() -> None:
    """It is another primary's by now, and that lacks what was read last: so another fork may be found."""
    known = Known((Fork(1, 2, A, B), Fork(2, 0, B, C)), (Range(C, 5, 5), Range(C, 8, 10), Range(B, 11, 11, Written(C, 10))))
    assert forks_of(known, {A: 21, C: 8}) == known.forks


def test_a_lost_server_that_is_the_primary_again_hides_nothing() -> None:
    lists = {105: {A: 103, B: 120}}
    assert rules.forked(READ, lambda sequence: lists.get(sequence, {A: 140, B: 120})) == Fork(1, 103, A, B)


def test_where_another_history_begins() -> None:
    forks = FORKED.forks
    assert [history_of(forks, sequence) for sequence in (1, 103, 104, 500)] == [0, 0, 1, 1]
    begins = Position(1, 104, 0)
    for position in (Position(0, 103), Position(0, 104, 0), Position(0, 105, 3), Position(0, 500)):
        assert undone(forks, position) == begins
    for position in (Position(0, 102), Position(0, 103, 7), begins, Position(1, 104)):
        assert undone(forks, position) is None


def test_a_later_fork_may_lie_before_an_earlier_one() -> None:
    forks = (*FORKED.forks, Fork(2, 90, A, C))
    assert [history_of(forks, sequence) for sequence in (90, 91, 104)] == [0, 2, 2]
    for position in (Position(0, 90), Position(0, 100), Position(1, 104)):
        assert undone(forks, position) == Position(2, 91, 0)
    later = (*FORKED.forks, Fork(2, 120, B, C))
    assert [undone(later, position) for position in (Position(0, 105), Position(1, 119), Position(1, 121))] == [
        Position(1, 104, 0), None, Position(2, 121, 0)
    ]  # fmt: skip


def test_what_is_kept_is_read_again() -> None:
    known = Known((Fork(1, 103, A, B),), (Range(A, 1, 103),), (Range(A, 104, 105),))
    assert known_from(kept_of(known)) == known
    assert known_from(b"") == Known()
    with pytest.raises(CaptureRefused, match="another version"):
        known_from(b'{"forks": 7}')
