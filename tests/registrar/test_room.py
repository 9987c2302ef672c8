"""What may wait at once (registrar/room.py), and where a scan of marks begins, goes on and ends (registrar/scanning.py)."""

from __future__ import annotations

import pytest

from roskva.errors import Overloaded
from roskva.registrar.room import AGAIN_MAX_S, AGAIN_MIN_S, Room
from roskva.registrar.scanning import BUCKETS_AT_A_TIME, UNKNOWN_AGE_S, Scan
from roskva.registrar.sessions import Counters
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


def test_those_who_are_refused_come_again_one_after_the_other_as_fast_as_the_room_empties() -> None:
    room = Room(1_000, Counters())
    for who in range(100):
        room.enter(who, 10, 0.0)
    for who in range(20):
        room.leave(who, 10, who / 10)  # 100 operations a second
    for who in range(20):
        room.enter(who, 10, 2.0)
    told_s = [room.again_s(10, 2.0) for _ in range(10_000)]
    assert told_s == sorted(told_s)
    assert told_s[0] < told_s[50] < told_s[100]
    pace = 10 / (1.5 * (told_s[1] - told_s[0]))  # a client waits up to twice as long as it is told: half as long again on average
    assert 100 < pace < 600, "between what was measured and what was supposed before"
    assert told_s[-1] == AGAIN_MAX_S


def test_the_pace_is_that_of_the_time_in_which_there_was_work() -> None:
    room = Room(1_000, Counters())
    for day in range(3):
        room.enter("one", 100, day * 86_400.0)
        room.leave("one", 100, day * 86_400.0 + 0.01)
    room.enter("one", 100, 4 * 86_400.0)
    assert room.again_s(1, 4 * 86_400.0) == AGAIN_MIN_S


def test_what_was_promised_long_ago_delays_nobody() -> None:
    room = Room(10, Counters())
    for _ in range(1_000):
        room.again_s(1_000, 0.0)
    assert room.again_s(1, 3_600.0) == AGAIN_MIN_S


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
