"""Updates are told together, and the more there is to tell, the longer they are gathered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from roskva.gateway.hinting import (
    LOOKS_APART_S,
    PAUSE_S_MIN,
    REST_S_JUDGED,
    REST_S_MAX,
    REST_S_MIN,
    REST_S_TRIED,
    TELLS_MUCH,
    TOLD_PER_TURN,
    WAITING_MAX,
    ByBusiness,
    Hinting,
    Look,
    Told,
    rest_after,
    wanted_s,
)
from roskva.model import ObjectKey, Stamps, Update


def update(version: int) -> Update:
    """Each of an object of its own."""
    return Update(ObjectKey(b"demo\x000\x00%d" % version), version, "")


def change(version: int, source: str = "") -> Update:
    return Update(ObjectKey(b"demo\x000\x00hello"), version, source)


class Teller:
    """Tells everybody of everything; every other notification needs no message of its own."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[int]]] = []

    def __call__(self, updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        self.calls.append((time.perf_counter(), [one.version for one in updates]))
        return len(updates)

    @property
    def versions(self) -> list[list[int]]:
        return [versions for _, versions in self.calls]

    def told(self) -> Told:
        notifications = sum(map(len, self.versions))
        return Told(notifications, notifications // 2)


class Alone:
    """A pace without rests."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def rest_s(self, now_s: float) -> float:
        return 0.0


class Clock:
    """Stands still, but for what telling takes: however busy the machine is, the process was at work for as long as it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.worked_s = 7.0
        shown = SimpleNamespace(monotonic=lambda: self.now_s, process_time=lambda: self.worked_s, thread_time=lambda: self.worked_s)
        monkeypatch.setattr("roskva.gateway.hinting.time", shown)
        monkeypatch.setattr("roskva.gateway.hinting._SCHEDSTAT", Path("does not exist"))

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.worked_s += seconds

    def telling(self, told: Teller, takes_s: float) -> Callable[[Sequence[Update], Sequence[Stamps], bool], int]:
        def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
            self.work(takes_s)
            return told(updates, stamps, more)

        return tell


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_accepted_in_one_turn_is_told_in_the_next_together() -> None:
    told = Teller()
    hinting = Hinting(told, Alone())
    hinting.hint([update(1)], [])
    hinting.hint([update(2)], [])
    assert told.versions == []
    await asyncio.sleep(0)
    assert told.versions == [[1, 2]]
    await asyncio.sleep(0.002)
    hinting.hint([update(3)], [])
    await asyncio.sleep(0)
    assert told.versions == [[1, 2], [3]]


async def test_what_a_commit_brought_is_told_without_another_turn_of_the_loop() -> None:
    told = Teller()
    hinting = Hinting(told, Alone())
    hinting.hint([update(1)], [])
    hinting.flush()
    assert told.versions == [[1]]
    hinting.flush()
    await turns(3)
    assert told.versions == [[1]]  # once


async def test_a_flush_cuts_neither_a_turn_nor_a_rest_short(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Teller()
    hinting = Hinting(Clock(monkeypatch).telling(told, 1.01 * LOOKS_APART_S), ByBusiness(told.told))
    hinting.hint([update(1)], [])
    hinting.flush()
    hinting.hint([update(2)], [])
    hinting.flush()
    assert told.versions == [[1]]  # the loop has not come round
    await asyncio.sleep(0)
    hinting.flush()
    assert told.versions == [[1]]  # it rests
    hinting.stop()
    hinting.flush()
    assert told.versions == [[1]]


async def test_a_process_without_time_to_spare_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Teller()
    hinting = Hinting(clock.telling(told, 1.01 * LOOKS_APART_S), ByBusiness(told.told))
    hinting.hint([update(1)], [])
    hinting.flush()
    await asyncio.sleep(0)
    for version in (2, 3, 4):
        hinting.hint([update(version)], [])
        hinting.flush()
    assert told.versions == [[1]]
    clock.work(REST_S_TRIED)
    hinting.flush()
    assert told.versions == [[1], [2, 3, 4]]


async def test_what_other_threads_do_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Teller()
    hinting = Hinting(clock.telling(told, 0.51 * LOOKS_APART_S), ByBusiness(told.told))
    clock.work(LOOKS_APART_S / 2)  # before it was told anything
    hinting.hint([update(1)], [])
    hinting.flush()
    await asyncio.sleep(0)
    hinting.hint([update(2)], [])
    hinting.flush()
    assert told.versions == [[1]]
    hinting.stop()


async def test_what_the_loop_waited_for_a_core_counts_as_if_it_had_worked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside others on the same cores a gateway without time to spare is at work for much less than all of it."""
    counted = tmp_path / "schedstat"
    counted.write_text("7000000000 1000000000 30\n")
    clock, told = Clock(monkeypatch), Teller()
    monkeypatch.setattr("roskva.gateway.hinting._SCHEDSTAT", counted)
    hinting = Hinting(clock.telling(told, 0.6 * LOOKS_APART_S), ByBusiness(told.told))
    counted.write_text(f"7000000000 {1_000_000_000 + int(0.41e9 * LOOKS_APART_S)} 40\n")
    clock.now_s += 0.41 * LOOKS_APART_S
    hinting.hint([update(1)], [])
    hinting.flush()
    await asyncio.sleep(0)
    hinting.hint([update(2)], [])
    hinting.flush()
    assert told.versions == [[1]], "it rests"
    hinting.stop()


def test_where_the_system_does_not_say_how_long_a_thread_waited_only_work_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    for text in (None, "", "0 0"):
        counted = tmp_path / f"schedstat {text}"
        if text is not None:
            counted.write_text(text)
        monkeypatch.setattr("roskva.gateway.hinting._SCHEDSTAT", counted)
        assert wanted_s() == clock.worked_s


async def test_what_is_gathered_is_told_though_nothing_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Teller()
    hinting = Hinting(Clock(monkeypatch).telling(told, 1.01 * LOOKS_APART_S), ByBusiness(told.told))
    hinting.hint([update(1)], [])
    await turns(2)
    hinting.hint([update(2)], [])
    async with asyncio.timeout(100 * REST_S_MAX):
        while len(told.calls) < 2:
            await asyncio.sleep(0.01)
    assert told.versions == [[1], [2]]


async def test_a_process_with_time_to_spare_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Teller()
    hinting = Hinting(clock.telling(told, 0.3 * LOOKS_APART_S), ByBusiness(told.told))
    for version in range(0, 10, 2):
        clock.now_s += LOOKS_APART_S
        for one in (version, version + 1):  # the second at the very moment at which the first was told
            hinting.hint([update(one)], [])
            hinting.flush()
            await asyncio.sleep(0)
    assert told.versions == [[version] for version in range(10)]


def look(part: float, spared: float = 0.1, may_try: bool = True) -> Look:
    """Such a part of the time was worked, half of it telling."""
    return Look(LOOKS_APART_S, part * LOOKS_APART_S, part / 2 * LOOKS_APART_S, spared, may_try)


def rests(looks: Sequence[Look], rest_s: float = 0.0) -> list[float]:
    found = []
    for one in looks:
        rest_s = rest_after(rest_s, one)
        found.append(rest_s)
    return found


def test_rests_grow_from_none_to_the_limit_while_there_is_no_time() -> None:
    found = rests([look(1.0)] * 20)
    assert found[0] == REST_S_TRIED
    assert found == sorted(found)
    assert found[-1] == found[-2] == REST_S_MAX


def test_rests_shrink_to_none_as_soon_as_there_is_time_again() -> None:
    found = rests([look(0.8)] * 20, REST_S_MAX)
    assert found == sorted(found, reverse=True)
    assert found[0] < REST_S_MAX
    assert found[-1] == 0.0
    assert all(rest_s == 0.0 or rest_s >= REST_S_MIN for rest_s in found)


def test_a_rest_that_leaves_just_enough_time_stays() -> None:
    assert rests([look(0.89)] * 5, 0.02) == [0.02] * 5


@pytest.mark.parametrize("part", [1.0, 0.89])
def test_a_rest_that_spares_hardly_a_message_ends(part: float) -> None:
    assert rests([look(part, spared=0.02)], REST_S_MAX) == [0.0]
    assert rests([look(part, spared=0.02)], REST_S_JUDGED) == [0.0]


def test_a_short_rest_is_not_judged() -> None:
    """Of ten thousand clients hardly one is told of two things within 5 ms, and many are within 300."""
    assert rests([look(1.0, spared=0.0)] * 4) == [REST_S_TRIED, 0.015, REST_S_JUDGED, 0.0]
    assert rests([look(1.0, spared=0.0, may_try=False)] * 2) == [0.0, 0.0]


def test_after_a_pause_nothing_is_left_of_a_rest() -> None:
    assert rest_after(REST_S_MAX, Look(elapsed_s=2.0, busy_s=0.05, telling_s=0.02)) == 0.0


def test_a_process_that_is_busy_with_something_else_than_telling_does_not_rest() -> None:
    elsewhere = look(1.0)._replace(telling_s=0.9 * TELLS_MUCH * LOOKS_APART_S)
    assert rest_after(0.0, elsewhere) == 0.0
    assert rest_after(REST_S_MAX, elsewhere) < REST_S_MAX


class Busy:
    """A process without time to spare; `messages_each` is what a notification takes, by the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages_each: Callable[[float], float]) -> None:
        self.clock = Clock(monkeypatch)
        self._messages_each = messages_each
        self._told = Told()
        self._pace = ByBusiness(lambda: self._told)
        self._rest_s = 0.0

    def looks(self, count: int, works: bool = True) -> list[float]:
        rests = []
        for _ in range(count):
            self._pace.begin()
            self.clock.work(LOOKS_APART_S * works)
            self._pace.end()
            self.clock.now_s += LOOKS_APART_S * (not works)
            before = self._told
            self._told = Told(before.notifications + 1_000, before.messages + round(1_000 * self._messages_each(self._rest_s)))
            self._rest_s = self._pace.rest_s(self.clock.now_s)
            rests.append(self._rest_s)
        return rests


def test_a_rest_that_spared_nothing_is_tried_again_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a million clients, who are told of something each at a time of their own."""
    found = Busy(monkeypatch, lambda rest_s: 1.0).looks(round(30 / LOOKS_APART_S))
    began = [LOOKS_APART_S * at for at, rest_s in enumerate(found) if rest_s == REST_S_TRIED]
    apart = [later - earlier for earlier, later in pairwise(began)]
    assert len(apart) >= 3
    assert apart[0] > PAUSE_S_MIN
    assert all(later > 1.5 * earlier for earlier, later in pairwise(apart))
    assert max(found) == REST_S_JUDGED


def test_what_shares_a_message_without_a_rest_was_not_spared_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As five objects of one client in one request."""
    assert max(Busy(monkeypatch, lambda rest_s: 0.2).looks(40)) == REST_S_JUDGED
    assert max(Busy(monkeypatch, lambda rest_s: 0.2 - 0.1 * rest_s).looks(40)) == REST_S_JUDGED
    assert max(Busy(monkeypatch, lambda rest_s: 0.2 - 0.3 * rest_s).looks(40)) == REST_S_MAX


def test_a_rest_that_ended_since_there_was_time_is_not_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(monkeypatch, lambda rest_s: 1.0 - rest_s)
    assert busy.looks(20)[-1] == REST_S_MAX
    assert busy.looks(20, works=False)[-1] == 0.0
    assert busy.looks(1) == [REST_S_TRIED]


async def test_beside_other_work_what_comes_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), Teller()
    hinting = Hinting(clock.telling(told, 0.9 * TELLS_MUCH * LOOKS_APART_S), ByBusiness(told.told))
    for version in range(5):
        clock.work(LOOKS_APART_S)
        hinting.hint([update(version)], [])
        hinting.flush()
        await asyncio.sleep(0)
    assert told.versions == [[version] for version in range(5)]


async def test_many_updates_are_told_in_turns_and_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Teller()
    hinting = Hinting(Clock(monkeypatch).telling(told, 1.01 * LOOKS_APART_S), ByBusiness(told.told))
    hinting.hint([update(0)], [])
    await turns(2)  # and now it would rest
    hinting.hint([update(1)], [])
    hinting.hint([update(version) for version in range(2, 2 * TOLD_PER_TURN + 2)], [])
    await turns(3)
    assert [len(versions) for versions in told.versions] == [1, TOLD_PER_TURN, TOLD_PER_TURN, 1]
    assert [version for versions in told.versions for version in versions] == list(range(2 * TOLD_PER_TURN + 2))


async def test_a_telling_that_fails_is_not_the_last() -> None:
    calls: list[int] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        calls.append(len(updates))
        if len(calls) == 1:
            raise RuntimeError("a mistake")
        return len(updates)

    hinting = Hinting(tell, Alone())
    hinting.hint([update(1)], [])
    with pytest.raises(RuntimeError, match="a mistake"):
        hinting.flush()
    await turns(2)
    hinting.hint([update(2)], [])
    await asyncio.sleep(0.01)
    assert calls == [1, 1]


async def test_stamps_go_with_their_updates_and_who_tells_knows_whether_more_come() -> None:
    found: list[tuple[int, list[int], bool]] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        found.append((len(updates), [one.version for one in stamps], more))
        return len(updates)

    hinting = Hinting(tell, Alone())
    last = TOLD_PER_TURN + 10
    stamps = [Stamps(update(version).object, version, 0, 1) for version in (3, last)]
    hinting.hint([update(version) for version in range(last + 1)], stamps)
    await asyncio.sleep(0.05)
    assert found == [(TOLD_PER_TURN, [3], True), (11, [last], False)]


async def test_nothing_is_told_after_the_stop() -> None:
    told = Teller()
    hinting = Hinting(told, Alone())
    hinting.hint([update(1)], [])
    hinting.stop()
    hinting.hint([update(version) for version in range(2 * TOLD_PER_TURN)], [])
    await asyncio.sleep(0.01)
    assert told.versions == []


async def test_of_an_object_that_changes_again_before_it_was_told_only_the_newest_is() -> None:
    found: list[tuple[list[Update], list[Stamps]]] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        found.append((list(updates), list(stamps)))
        return len(updates)

    hinting = Hinting(tell, Alone())
    sampled = [Stamps(change(version).object, version, 0, 1) for version in (7, 9)]
    hinting.hint([change(7), update(1)], sampled[:1])
    hinting.hint([change(9)], sampled[1:])
    hinting.hint([change(8)], [])
    hinting.flush()
    assert found == [([change(9), update(1)], sampled[1:])]
    assert not hinting._stamps


@pytest.mark.parametrize(("first", "second", "left_out"), [("a", "a", "a"), ("a", "b", ""), ("", "a", ""), ("a", "", "")])
async def test_who_made_one_of_two_changes_hears_of_both(first: str, second: str, left_out: str) -> None:
    """Trap 11."""
    found: list[Update] = []

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        found.extend(updates)
        return len(updates)

    hinting = Hinting(tell, Alone())
    hinting.hint([change(7, first), change(8, second)], [])
    hinting.flush()
    assert found == [change(8, left_out)]


async def test_what_one_turn_cannot_tell_the_next_one_does() -> None:
    told = Teller()

    def tell(updates: Sequence[Update], stamps: Sequence[Stamps], more: bool) -> int:
        return told(updates[:2], stamps, more)

    hinting = Hinting(tell, Alone())
    hinting.hint([update(version) for version in range(5)], [])
    hinting.flush()
    assert told.versions == [[0, 1]]
    await turns(2)
    assert told.versions == [[0, 1], [2, 3], [4]]


async def test_at_the_limit_those_that_wait_longest_are_left_to_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Teller()
    hinting = Hinting(Clock(monkeypatch).telling(told, 1.01 * LOOKS_APART_S), ByBusiness(told.told))
    hinting.hint([update(0)], [])
    hinting.flush()  # and until the loop has come round nothing is told
    stamps = [Stamps(update(version).object, version, 0, 1) for version in (1, 50)]
    hinting.hint([update(version) for version in range(1, 101)], stamps)
    hinting.hint([update(version) for version in range(101, WAITING_MAX + 11)], [])
    assert hinting.left_out == 10
    assert [version for _, version in hinting._stamps] == [50]
    async with asyncio.timeout(10):
        while sum(map(len, told.versions)) < WAITING_MAX + 1:
            await asyncio.sleep(0)
    assert [version for versions in told.versions for version in versions] == [0, *range(11, WAITING_MAX + 11)]
