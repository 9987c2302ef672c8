"""Members: who lives, by each observer's own clock, and who owns a partition."""

from __future__ import annotations

from roskva.registrar.members import MEMBERS_ROW, Member, MemberView, member_cell
from roskva.table.interface import Cell

A = Member("a", "127.0.0.1:1", "127.0.0.1:2")
B = Member("b", "127.0.0.1:3", "127.0.0.1:4")


def view() -> MemberView:
    return MemberView(timeout_s=5.0)


def test_a_member_lives_from_its_first_cell_and_the_change_is_told_once() -> None:
    seen = view()
    assert seen.observe([member_cell(A, 1)], now_s=0.0)
    assert seen.live == {"a": A}
    assert not seen.observe([member_cell(A, 1)], now_s=1.0)
    assert seen.observe([member_cell(A, 2), member_cell(B, 1)], now_s=1.0)
    assert seen.live == {"a": A, "b": B}


def test_a_counter_that_stands_still_for_the_timeout_is_dead() -> None:
    seen = view()
    seen.observe([member_cell(A, 1)], now_s=0.0)
    assert not seen.observe([member_cell(A, 1)], now_s=4.9)
    assert seen.observe([member_cell(A, 1)], now_s=5.0)
    assert seen.live == {}


def test_a_counter_that_moves_keeps_it_alive_and_brings_it_back() -> None:
    seen = view()
    for counter in range(1, 5):
        seen.observe([member_cell(A, counter)], now_s=4.0 * counter)
        assert "a" in seen.live
    seen.observe([member_cell(A, 4)], now_s=100.0)
    assert seen.live == {}
    assert seen.observe([member_cell(A, 5)], now_s=101.0)
    assert "a" in seen.live


def test_only_the_counter_counts_never_a_clock_of_the_member() -> None:
    """Trap 28: with clock times, a clock set back would make a member lose against its own older heartbeat."""
    seen = view()
    seen.observe([member_cell(A, 10)], now_s=0.0)
    seen.observe([member_cell(A, 3)], now_s=4.0)  # an old cell, read late
    assert seen.observe([], now_s=5.0)
    assert seen.live == {}


def test_a_new_boot_is_a_new_member() -> None:
    """Trap 41: an owner that restarts within the time-out is told apart from its former self, so sessions are announced anew."""
    seen = view()
    seen.observe([member_cell(A, 9)], now_s=0.0)
    again = Member("a2", A.internal, A.public)
    assert seen.observe([member_cell(A, 9), member_cell(again, 1)], now_s=1.0)
    assert set(seen.live) == {"a", "a2"}


def test_a_member_that_left_is_gone_at_once() -> None:
    seen = view()
    seen.observe([member_cell(A, 1), member_cell(B, 1)], now_s=0.0)
    assert seen.observe([member_cell(Member("a", A.internal, A.public, left=True), 2)], now_s=0.1)
    assert set(seen.live) == {"b"}


def test_a_suspect_is_left_out_until_its_counter_moves() -> None:
    seen = view()
    seen.observe([member_cell(A, 1), member_cell(B, 1)], now_s=0.0)
    seen.suspect("a")
    assert set(seen.live) == {"b"}
    assert not seen.observe([member_cell(A, 1)], now_s=1.0)
    assert set(seen.live) == {"b"}
    assert seen.observe([member_cell(A, 2)], now_s=2.0)
    assert set(seen.live) == {"a", "b"}
    seen.suspect("nobody")
    assert set(seen.live) == {"a", "b"}


def test_two_observers_with_the_same_members_agree_on_every_owner() -> None:
    one, other = view(), view()
    one.observe([member_cell(A, 1), member_cell(B, 1)], now_s=0.0)
    other.observe([member_cell(B, 7)], now_s=500.0)
    other.observe([member_cell(A, 9)], now_s=501.0)
    assert [one.owner(p) for p in range(16)] == [other.owner(p) for p in range(16)]
    assert {one.owner(p) for p in range(16)} == {A, B}


def test_nobody_owns_a_partition_while_nobody_lives() -> None:
    assert view().owner(0) is None


def test_what_is_no_member_is_ignored() -> None:
    seen = view()
    assert not seen.observe([Cell(b"other", 1, b"x"), Cell(b"member:x", 1, None)], now_s=0.0)
    assert MEMBERS_ROW.table == "members"
