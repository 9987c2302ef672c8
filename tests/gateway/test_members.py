"""Membership over a real table: who lives, who left, who is forgotten (gateway/members.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.gateway.members import FORGET_S, Membership
from roskva.registrar.members import MEMBERS_ROW, Member, MemberView
from roskva.table import TableLanes, open_table
from tests.gateway.conftest import close_engines


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def lanes(settings: Settings) -> AsyncIterator[TableLanes]:
    lanes = TableLanes(open_table(settings), settings.partitions)
    yield lanes
    await lanes.close()
    close_engines(settings)


def member(lanes: TableLanes, name: str, clock: Clock) -> tuple[Membership, list[set[str]]]:
    changes: list[set[str]] = []
    membership = Membership(lanes, MemberView(5.0), Member(name, "127.0.0.1:1", "127.0.0.1:2"), 1.0, clock)
    membership.observers.append(lambda: changes.append(set(membership.view.live)))
    return membership, changes


async def test_members_see_each_other_come_leave_and_die(lanes: TableLanes) -> None:
    clock = Clock()
    (one, seen), (two, _), (three, _) = member(lanes, "one", clock), member(lanes, "two", clock), member(lanes, "three", clock)
    await one.beat()
    await two.beat()
    await three.beat()
    await one.beat()
    assert seen == [{"one"}, {"one", "two", "three"}]
    await two.stop()
    await one.beat()
    assert seen[-1] == {"one", "three"}  # it said that it left: at once
    clock.now_s += 4.0
    await one.beat()
    assert seen[-1] == {"one", "three"}
    clock.now_s += 2.0
    await one.beat()
    assert seen[-1] == {"one"}  # three said nothing: after the time-out
    await three.beat()
    await one.beat()
    assert seen[-1] == {"one", "three"}  # it only was slow
    assert len(seen) == 5  # an observer is called for changes only


async def test_suspect_is_left_out_until_its_counter_moves(lanes: TableLanes) -> None:
    clock = Clock()
    (one, seen), (two, _) = member(lanes, "one", clock), member(lanes, "two", clock)
    await two.beat()
    await one.beat()
    one.suspect("two")
    one.suspect("two")
    one.suspect("one")  # never oneself
    assert seen == [{"one", "two"}, {"one"}]
    await one.beat()
    assert seen[-1] == {"one"}
    await two.beat()
    await one.beat()
    assert seen[-1] == {"one", "two"}


async def test_cells_of_the_long_gone_are_deleted(lanes: TableLanes) -> None:
    clock = Clock()
    (one, _), (two, _) = member(lanes, "one", clock), member(lanes, "two", clock)
    await two.beat()
    await two.stop()
    await one.beat()
    clock.now_s += FORGET_S - 10
    await one.beat()
    assert len((await lanes.read([MEMBERS_ROW]))[MEMBERS_ROW]) == 2
    clock.now_s += 20
    await one.beat()
    assert [cell.name for cell in (await lanes.read([MEMBERS_ROW]))[MEMBERS_ROW].values()] == [b"member:one"]


async def test_failing_table_changes_nothing(lanes: TableLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    one, seen = member(lanes, "one", clock)
    await one.beat()

    async def fail(*_: object) -> None:
        raise PartitionUnavailable("It is busy.", "members-0")

    with monkeypatch.context() as patched:
        patched.setattr(lanes, "write", fail)
        clock.now_s += 60
        with pytest.raises(PartitionUnavailable):
            await one.beat()
    assert one.view.live.keys() == {"one"}
    assert seen == [{"one"}]


async def test_a_member_that_was_away_tells_its_observers_although_nothing_looks_different(lanes: TableLanes) -> None:
    """It hung; another took over, and stored for its clients; it wakes, and sees the same members as before."""
    clock, clock_of_two = Clock(), Clock()
    (one, seen), (two, seen_by_two) = member(lanes, "one", clock), member(lanes, "two", clock_of_two)
    for _ in range(3):
        await two.beat()
        await one.beat()
    assert seen == [{"one", "two"}]
    for _ in range(20):
        clock_of_two.now_s += 1.0
        await two.beat()
    assert seen_by_two[-1] == {"two"}
    clock.now_s += 20.0
    await one.beat()
    assert seen == [{"one", "two"}, {"one", "two"}]
