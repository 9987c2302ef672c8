"""Which positions are of a server's own past, and which it has never had."""

from __future__ import annotations

import pytest

from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.stores.postgres.timelines import Timelines, first_needed, lsn_from_text, lsn_to_text, timelines_from_history
from roskva.errors import LogCut, WrongHistory

HISTORY = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01 00:00:00+00\n"
THIRD = Timelines(3, ((1, 0x3000148), (2, 0x1000000A0)))


@pytest.mark.parametrize(
    ("text", "lsn"), [("0/0", 0), ("0/A248B0", 0xA248B0), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1)]
)
def test_an_lsn_is_two_halves_in_hexadecimal_digits(text: str, lsn: int) -> None:
    assert lsn_from_text(text) == lsn
    assert lsn_to_text(lsn) == text


@pytest.mark.parametrize("text", ["", "0", "0/", "/1", "0/G", "0/123456789", "0/1 "])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a log sequence number"):
        lsn_from_text(text)


def test_the_history_file_says_where_each_timeline_was_left() -> None:
    assert timelines_from_history(3, HISTORY) == THIRD
    assert timelines_from_history(1, "") == Timelines(1)


def test_an_lsn_is_of_the_timeline_that_wrote_it() -> None:
    lsns = (0, 0x3000147, 0x3000148, 0x10000009F, 0x1000000A0, 2**62)
    assert [THIRD.history_of(lsn) for lsn in lsns] == [1, 1, 2, 2, 3, 3]
    assert THIRD.before(0x3000148) == Position(1, 0x3000147)
    assert THIRD.before(0x3000149) == Position(2, 0x3000148)
    assert Timelines(1).before(0) == BEGINNING


def test_a_part_of_a_commit_needs_it_again_and_a_whole_one_does_not() -> None:
    assert first_needed(Position(1, 100)) == 101
    assert first_needed(Position(1, 100, WHOLE - 1)) == first_needed(Position(1, 100, 0)) == 100


def test_positions_before_each_switch_are_of_this_log() -> None:
    for position in (Position(1, 0x3000147), Position(1, 0x3000148, 0), Position(2, 0x3000148), Position(3, 0x2000000000, 7), BEGINNING):
        THIRD.check(position, 0x2000000000)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (Position(4, 0x100), "timeline 4, and this server is at 3"),
        (Position(3, 0x2000000000), "ends at 20/0"),
    ],
)
def test_positions_that_this_server_never_had_are_refused(position: Position, reason: str) -> None:
    with pytest.raises(WrongHistory, match=reason):
        THIRD.check(position, 0x2000000000)


@pytest.mark.parametrize(
    ("position", "goes_on"),
    [
        (Position(1, 0x3000148), Position(2, 0x3000148, 0)),
        (Position(1, 0x9000000), Position(2, 0x3000148, 0)),
        (Position(2, 0x1000000A1, 5), Position(3, 0x1000000A0, 0)),
    ],
)
def test_after_what_a_promotion_undid_comes_the_first_commit_of_the_next_timeline(position: Position, goes_on: Position) -> None:
    with pytest.raises(LogCut) as told:
        THIRD.check(position, 0x2000000000)
    assert told.value.oldest == goes_on > position
    assert first_needed(goes_on) == THIRD.needed(position)
    THIRD.check(goes_on, 0x2000000000)


def test_a_commit_that_would_begin_exactly_where_the_next_timeline_does_was_never_written() -> None:
    THIRD.check(Position(2, 0x1000000A0, 5), 0x2000000000)
    assert THIRD.needed(Position(2, 0x1000000A0, 5)) == 0x1000000A0
    assert THIRD.needed(Position(2, 0x50000)) == 0x50001


def test_a_timeline_that_is_no_ancestor_is_refused() -> None:
    with pytest.raises(WrongHistory, match="none that this server, at 5, came from"):
        Timelines(5, ((1, 0x100), (3, 0x200))).check(Position(2, 0x50), 0x1000)
