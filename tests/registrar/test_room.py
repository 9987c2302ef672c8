"""What may wait at once (registrar/room.py), and where a scan of marks begins, goes on and ends (registrar/scanning.py)."""

from __future__ import annotations

import pytest

from roskva.errors import Overloaded
from roskva.registrar.counters import Counters
from roskva.registrar.room import AGAIN_MAX_S, AGAIN_MIN_S, PRESSED_AGAIN_S, Room
from roskva.registrar.scanning import BUCKETS_AT_A_TIME, UNKNOWN_AGE_S, Scan
from roskva.table.interface import Cell, Row, RowKey
from roskva.table.marks import bucket_of


def test_the_room_is_full_at_its_limit_and_has_room_again_when_somebody_leaves() -> None:
    counters = Counters()
    room = Room(20, counters)
    for who in range(5):
        room.enter(who, 4, 0.0)
    with pytest.raises(Overloaded, match="20 operations of clients are waiting; 20 may"):
        room.enter("late", 1, 0.0)
    room.leave(3, 4, 0.0)
    room.enter("late", 4, 0.0)
    assert (room.waiting, counters.overloaded) == (20, 1)


def test_one_client_fills_a_quarter_of_the_room_and_no_more() -> None:
    room = Room(20, Counters())
    room.enter("flood", 5, 0.0)
    with pytest.raises(Overloaded, match="5 operations of this client are waiting; 5 may"):
        room.enter("flood", 1, 0.0)
    room.enter("other", 5, 0.0)
    room.leave("flood", 5, 0.0)
    room.enter("flood", 2, 0.0)
    room.enter("flood", 3, 0.0)


def test_a_message_larger_than_the_room_is_served_alone() -> None:
    room = Room(20, Counters())
    room.enter("large", 1_000, 0.0)
    with pytest.raises(Overloaded):
        room.enter("other", 1, 0.0)
    room.leave("large", 1_000, 0.0)
    assert room.waiting == 0
    room.enter("other", 1, 0.0)


def test_under_pressure_nothing_enters() -> None:
    room = Room(20, Counters())
    room.pressed = "Memory is short."
    with pytest.raises(Overloaded, match="Memory is short"):
        room.enter("anybody", 1, 0.0)


def again_s(room: Room, operations: int, now_s: float, who: object = "refused") -> float:
    with pytest.raises(Overloaded) as refused:
        room.enter(who, operations, now_s)
    return refused.value.retry_after_s


def full(waiting_max: int = 1_000) -> Room:
    room = Room(waiting_max, Counters())
    for who in range(10):
        room.enter(who, waiting_max // 10, 0.0)
    return room


def at_work(room: Room, per_s: int, seconds: int) -> None:
    """So many operations a second are done, in steps of a tenth of a second, and as many come."""
    for step in range(1, seconds * 10 + 1):
        room.leave(step % 10, per_s // 10, step / 10)
        room.enter(step % 10, per_s // 10, step / 10)


def test_those_who_are_refused_come_again_one_after_the_other_at_the_pace_of_the_room() -> None:
    room = full()
    at_work(room, per_s=200, seconds=20)
    assert room.pace.per_s == pytest.approx(200, rel=0.05)
    told_s = [again_s(room, 10, 20.0) for _ in range(1_000)]
    assert told_s == sorted(told_s)
    assert told_s[0] == pytest.approx((1_000 + 10) / 200 / 1.5, rel=0.05)  # a client adds half as much again, on average
    assert told_s[1] - told_s[0] == pytest.approx(10 / 200 / 1.5, rel=0.05)
    assert told_s[-1] == AGAIN_MAX_S


def test_little_work_says_nothing_of_the_pace() -> None:
    room = Room(1_000, Counters())
    for second in range(60):
        room.enter(second, 20, float(second))
        room.leave(second, 20, second + 0.9)
    assert room.pace.per_s == Room(1_000, Counters()).pace.per_s


def test_what_fails_at_once_says_nothing_of_the_pace() -> None:
    room = full()
    for step in range(1, 50):
        room.leave(step % 10, 100, step / 10, done=False)
        room.enter(step % 10, 100, step / 10)
    assert room.pace.per_s == full().pace.per_s


def test_a_pace_that_was_wrong_is_made_good_at_once() -> None:
    room = full()
    at_work(room, per_s=20, seconds=60)  # a disk that hung
    slow_s = [again_s(room, 10, 60.0) for _ in range(100)][-1]
    assert slow_s == AGAIN_MAX_S
    room.pace.per_s = 1_000.0
    assert again_s(room, 10, 60.1) < 3.0


def test_what_was_promised_a_while_ago_delays_nobody() -> None:
    room = full()
    assert [again_s(room, 100, 0.0) for _ in range(10_000)][-1] == AGAIN_MAX_S
    assert again_s(room, 100, 1.5 * AGAIN_MAX_S) == AGAIN_MIN_S


def test_who_floods_is_told_its_own_time_and_moves_nobody_elses() -> None:
    room = Room(40_000, Counters())
    room.enter("flood", 10_000, 0.0)
    for _ in range(1_000):
        assert again_s(room, 1_000, 0.0, "flood") == 10.0
    room.enter("others", 10_000, 0.0)
    room.enter("more", 10_000, 0.0)
    room.enter("yet more", 10_000, 0.0)
    assert again_s(room, 10, 0.0) < 27.0


def test_under_pressure_all_are_told_a_longer_time() -> None:
    room = Room(20, Counters())
    room.pressed = "Memory is short."
    assert {again_s(room, 1, 0.0, who) for who in range(1_000)} == {PRESSED_AGAIN_S}


def marks(*names: bytes) -> Row:
    return {name: Cell(name, 0, b"client-" + name) for name in names}


def scan() -> Scan:
    return Scan(bucket_s=60.0, retention_s=3_600.0, pause_s=60.0)


def buckets(rows: list[RowKey]) -> list[int]:
    return [bucket_of(row) for row in rows]


@pytest.mark.parametrize(("age_s", "first"), [(0.0, 97), (59.0, 96), (61.0, 95), (7_200.0, 40), (UNKNOWN_AGE_S, 40)])
def test_a_pass_begins_where_the_mark_of_what_was_dropped_may_lie(age_s: float, first: int) -> None:
    one = scan()
    one.dropped(0, 100, age_s)
    assert one.needs(0) == first
    assert buckets(one.plan(0, 100, 0.0))[0] == first


def test_a_pass_goes_on_where_room_ended_it_and_ends_behind_the_head() -> None:
    one = scan()
    one.dropped(0, 100, 0.0)
    rows = one.plan(0, 100, 0.0)
    assert buckets(rows) == [97, 98, 99, 100, 101]
    read = {rows[0]: marks(b"a", b"b", b"c"), rows[3]: marks(b"a", b"d")}
    assert one.take(rows, read, 100, 2) == ["client-a", "client-b"]
    assert buckets(one.plan(0, 100, 1.0)) == [97, 98, 99, 100, 101]
    assert one.take(rows, read, 100, 2) == ["client-c", "client-a"]
    rows = one.plan(0, 100, 2.0)
    assert buckets(rows) == [100, 101]
    assert one.take(rows, read, 100, 2) == ["client-d"]
    assert not one


def test_a_long_pass_reads_some_buckets_at_a_time() -> None:
    one = scan()
    one.dropped(0, 100, UNKNOWN_AGE_S)
    seen: list[int] = []
    while rows := one.plan(0, 100, 0.0):
        assert len(rows) <= BUCKETS_AT_A_TIME
        seen += buckets(rows)
        one.take(rows, {}, 100, 500)
    assert seen == list(range(40, 102))


def test_what_is_dropped_during_a_pass_waits_for_the_next_which_begins_after_a_pause() -> None:
    one = scan()
    one.dropped(0, 100, 0.0)
    rows = one.plan(0, 100, 1_000.0)
    one.dropped(0, 100, UNKNOWN_AGE_S)
    one.take(rows, {}, 100, 500)
    assert one.needs(0) == 40
    assert one.plan(0, 100, 1_059.0) == []
    assert buckets(one.plan(0, 100, 1_060.0))[0] == 40


def test_partitions_have_passes_of_their_own() -> None:
    one = scan()
    one.dropped(1, 100, 0.0)
    assert one.plan(0, 100, 0.0) == []
    assert one.needs(0) is None
    assert one.plan(1, 100, 0.0)


def test_a_partition_that_was_lost_counts_from_nothing_and_its_pass_ends() -> None:
    one = scan()
    one.dropped(0, 100, 0.0)
    assert one.plan(0, 100, 0.0)
    assert one.plan(0, 3, 1.0) == []
    assert not one


def test_the_head_is_held_before_a_needed_bucket_leaves_and_registrations_long_before() -> None:
    one = scan()
    one.dropped(0, 100, 0.0)
    assert not one.is_behind(0, 127)
    assert one.is_behind(0, 128)
    assert not one.holds_head(0, 156)
    assert one.holds_head(0, 157)
    assert not one.is_behind(1, 1_000)
    one.forget()
    assert not one.is_behind(0, 128)
    assert not one.holds_head(0, 157)
