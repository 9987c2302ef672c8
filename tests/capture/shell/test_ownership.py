"""Ownership: one owner at a time, the first in order that lives, and no flow without one for longer than it takes to notice."""

from __future__ import annotations

import random

import pytest

from roskva.capture.ownership import Duty, Liveness, Peer, Reach, Record, decide, fit_for, order_of
from roskva.capture.positions import Position

ORDER = ("p1", "p2", "p3")


def record(owner: str, epoch: int = 1, released: bool = False) -> Record:
    return Record(Position(0, 1), epoch, owner, released)


@pytest.mark.parametrize(
    ("me", "held", "written", "live", "steady", "duty"),
    [
        ("p1", 0, None, {"p1", "p2"}, {"p1", "p2"}, Duty.TAKE),
        ("p2", 0, None, {"p1", "p2"}, {"p1", "p2"}, Duty.NOTHING),
        ("p2", 0, None, {"p2"}, {"p2"}, Duty.TAKE),
        ("p1", 1, record("p1"), {"p1", "p2"}, {"p1", "p2"}, Duty.KEEP),
        ("p2", 0, record("p1"), {"p1", "p2"}, {"p1", "p2"}, Duty.NOTHING),
        ("p2", 0, record("p1"), {"p2", "p3"}, {"p2", "p3"}, Duty.TAKE),  # the owner is dead
        ("p3", 0, record("p1"), {"p2", "p3"}, {"p2", "p3"}, Duty.NOTHING),  # and p2 is before p3
        ("p2", 2, record("p2", 2), {"p1", "p2"}, {"p2"}, Duty.KEEP),  # the primary is back, and may die again
        ("p2", 2, record("p2", 2), {"p1", "p2"}, {"p1", "p2"}, Duty.HAND_OVER),
        ("p1", 0, record("p2", 2), {"p1", "p2"}, {"p1", "p2"}, Duty.NOTHING),  # it waits for the release
        ("p1", 0, record("p2", 2, True), {"p1", "p2"}, {"p1", "p2"}, Duty.TAKE),
        ("p2", 0, record("p2", 2, True), {"p1", "p2"}, {"p1", "p2"}, Duty.NOTHING),
        ("p2", 0, record("p2", 2, True), {"p2"}, {"p2"}, Duty.TAKE),  # the primary died before it took it
        ("p1", 1, record("p2", 2), {"p1", "p2"}, {"p1", "p2"}, Duty.STOP),  # fenced
        ("p1", 1, record("p1", 2), {"p1"}, {"p1"}, Duty.STOP),  # by another process of our own name
        ("p1", 1, None, {"p1"}, {"p1"}, Duty.STOP),  # removed
        ("p2", 0, record("p2", 2), {"p1", "p2"}, {"p1", "p2"}, Duty.TAKE),  # started anew: it takes it, to hand it over
        ("p4", 0, record("p1"), {"p4"}, {"p4"}, Duty.NOTHING),  # not one of the application's publishers
        ("p4", 1, record("p4"), {"p1", "p4"}, {"p1", "p4"}, Duty.HAND_OVER),  # not any more
        ("p4", 1, record("p4"), {"p4"}, {"p4"}, Duty.KEEP),  # but there is nobody else
    ],
)
def test_what_a_publisher_has_to_do(me: str, held: int, written: Record | None, live: set[str], steady: set[str], duty: Duty) -> None:
    assert decide(me, held, written, ORDER, live, live, steady) is duty


@pytest.mark.parametrize(
    ("me", "held", "written", "live", "fit", "steady", "duty"),
    [
        ("p2", 0, record("p1"), {"p2", "p3"}, {"p3"}, {"p2", "p3"}, Duty.NOTHING),  # p1 is dead, and my log does not reach back so far
        ("p3", 0, record("p1"), {"p2", "p3"}, {"p3"}, {"p2", "p3"}, Duty.TAKE),
        ("p2", 0, record("p1"), {"p1", "p2"}, {"p2"}, {"p2"}, Duty.NOTHING),  # p1 lives, and gives it away by itself
        ("p1", 1, record("p1"), {"p1", "p2"}, {"p2"}, {"p2"}, Duty.HAND_OVER),  # my datastore does not answer, and that of p2 does
        ("p1", 1, record("p1"), {"p1", "p2"}, {"p2"}, set(), Duty.KEEP),  # it has only just begun to
        ("p1", 1, record("p1"), {"p1", "p2"}, set(), set(), Duty.KEEP),  # nobody can do better
        ("p2", 2, record("p2", 2), {"p1", "p2"}, {"p2"}, {"p1", "p2"}, Duty.KEEP),  # the primary is back, and its log begins too late
        ("p2", 2, record("p2", 2), {"p1", "p2"}, {"p1", "p2"}, {"p1", "p2"}, Duty.HAND_OVER),
        ("p1", 0, None, {"p1"}, set(), set(), Duty.NOTHING),
        ("p1", 0, record("p1", 2), {"p1", "p2"}, {"p2"}, {"p2"}, Duty.RELEASE),  # started anew, and not fit
        ("p1", 0, record("p1", 2, True), {"p1", "p2"}, {"p2"}, {"p2"}, Duty.NOTHING),
        ("p2", 0, record("p1", 2, True), {"p1", "p2"}, {"p2"}, {"p2"}, Duty.TAKE),
        ("p4", 1, record("p4"), {"p1", "p4"}, {"p4"}, {"p1", "p4"}, Duty.KEEP),  # not one of the application's, but the others are not fit
    ],
)
def test_only_who_is_fit_goes_on_with_a_flow(
    me: str, held: int, written: Record | None, live: set[str], fit: set[str], steady: set[str], duty: Duty
) -> None:
    assert decide(me, held, written, ORDER, live, fit, steady) is duty


def test_fit_is_whose_log_has_all_after_the_datamarker() -> None:
    able = {
        "long": Reach(Position(1, 10), 2),
        "exact": Reach(Position(1, 50), 1),
        "late": Reach(Position(1, 51), 2),
        "later": Reach(Position(2, 5), 2),
    }
    assert fit_for(Record(Position(1, 50), 3, "p", False), able) == {"long", "exact"}
    assert fit_for(Record(Position(2, 5), 3, "p", False), able) == {"long", "late", "later"}, "exact is a primary of before"
    assert fit_for(Record(Position(1, 5), 3, "p", False), able) == able.keys(), "some is lost, wherever it goes on"
    assert fit_for(Record(None, 3, "p", False), able) == fit_for(None, able) == able.keys()
    assert fit_for(None, {}) == set()


def test_a_flow_prefers_the_publisher_of_its_region() -> None:
    peers = (Peer("p1", "north"), Peer("p2", "south"), Peer("p3", "south"))
    assert order_of(peers) == order_of(peers, "north") == order_of(peers, "nowhere") == ("p1", "p2", "p3")
    assert order_of(peers, "south") == ("p2", "p3", "p1")


def test_a_publisher_that_an_operator_has_named_comes_first_and_none_is_left_out() -> None:
    peers = (Peer("p1", "north"), Peer("p2", "south"), Peer("p3", "south"), Peer("p4", "south"))
    assert order_of(peers, "south", ("p3", "p1", "p2")) == ("p3", "p1", "p2", "p4"), "p4 came after the move"
    assert order_of(peers, "", ("p9", "p2")) == ("p9", "p2", "p1", "p3", "p4"), "p9 is gone since"


def test_a_member_lives_while_its_counter_moves_on_the_observers_clock() -> None:
    seen, both = Liveness("p2", takeover_s=10, steady_s=5), {"p1", "p2"}
    seen.observe({"p1": 1, "p2": 1}, both, 100.0)
    assert seen.live == {"p1", "p2"}, "whoever comes up waits for the others as long as everybody does"
    assert seen.steady == set()
    for second in range(101, 110):
        seen.observe({"p1": 1, "p2": 2}, both, float(second))
        assert seen.live == {"p1", "p2"}
    seen.observe({"p1": 1, "p2": 3}, both, 110.0)
    assert seen.live == {"p2"}
    seen.observe({"p1": 2, "p2": 4}, both, 200.0)
    assert seen.live == {"p1", "p2"}
    assert seen.steady == set()
    for second in range(201, 206):
        seen.observe({"p1": second, "p2": second}, both, float(second))
    assert seen.steady == {"p1", "p2"}
    seen.observe({}, both, 206.0)
    assert seen.live == {"p2"}, "it left"


def test_a_member_that_is_met_again_at_the_same_number_is_not_dead_before_it_was_seen_to_stand_still() -> None:
    """It left and began anew at 1, and we, who did not reach the place meanwhile, come back when it is as far as it was."""
    seen, both = Liveness("p2", takeover_s=8, steady_s=2), {"p1", "p2"}
    for second in range(1, 10):
        seen.observe({"p1": second, "p2": second}, both, float(second))
    assert seen.steady == {"p1", "p2"}
    seen.observe({"p1": 9, "p2": 10}, both, 100.0)
    assert seen.live == {"p1", "p2"}
    assert seen.steady == set(), "nothing goes to one that may be dead"
    for second in range(1, 4):
        seen.observe({"p1": 9 + second, "p2": 10 + second}, both, 100.0 + second)
    assert seen.steady == {"p1", "p2"}


def test_a_member_that_stands_still_is_found_dead_though_we_look_seldom() -> None:
    seen, both = Liveness("p2", takeover_s=8, steady_s=2), {"p1", "p2"}
    for second, live in (0, both), (100, both), (200, {"p2"}), (300, {"p2"}):
        seen.observe({"p1": 9, "p2": second}, both, float(second))
        assert seen.live == live, second


def test_a_member_that_cannot_read_lives_and_is_steady_only_a_while_after_it_can_again() -> None:
    seen = Liveness("p2", takeover_s=10, steady_s=5)
    for second in range(100, 110):
        seen.observe({"p1": second, "p2": second}, {"p1", "p2"}, float(second))
    assert seen.steady == seen.able == {"p1", "p2"}
    for second in range(110, 120):
        seen.observe({"p1": second, "p2": second}, {"p2"}, float(second))
        assert seen.live == {"p1", "p2"}
        assert seen.able == seen.steady == {"p2"}
    for second in range(120, 125):
        seen.observe({"p1": second, "p2": second}, {"p1", "p2"}, float(second))
        assert seen.able == {"p1", "p2"}
        assert seen.steady == {"p2"}
    seen.observe({"p1": 125, "p2": 125}, {"p1", "p2"}, 125.0)
    assert seen.steady == {"p1", "p2"}


class World:
    """Three publishers, and what is written of one flow."""

    def __init__(self) -> None:
        self.written: Record | None = None
        self.up = dict.fromkeys(ORDER, True)
        self.can = dict.fromkeys(ORDER, True)  # its datastore answers
        self.held = dict.fromkeys(ORDER, 0)

    def act(self, me: str, live: set[str]) -> None:
        fit = {peer for peer in live if self.can[peer]}
        duty = decide(me, self.held[me], self.written, ORDER, live, fit, fit)
        if duty is Duty.TAKE:
            self.held[me] = 1 if self.written is None else self.written.epoch + 1
            self.written = record(me, self.held[me])
        elif duty is Duty.HAND_OVER:
            assert self.written is not None
            self.held[me] = 0
            self.written = self.written._replace(released=True)
        elif duty is Duty.RELEASE:
            assert self.written is not None
            assert not self.held[me]
            self.written = self.written._replace(released=True)
        elif duty is Duty.STOP:
            self.held[me] = 0
        elif duty is Duty.KEEP:
            assert self.written is not None
            assert (self.written.owner, self.written.epoch) == (me, self.held[me])


def test_whoever_dies_fails_or_comes_back_when_the_first_that_can_read_owns_it_in_the_end_and_nobody_else() -> None:
    for seed in range(300):
        dice, world = random.Random(seed), World()
        for _ in range(60):
            one = dice.choice(ORDER)
            if dice.random() < 0.2:
                world.up[one] = not world.up[one]
                world.held[one] = 0
            elif dice.random() < 0.2:
                world.can[one] = not world.can[one]
            elif world.up[one]:
                # It may not know yet who died or came back.
                world.act(one, {peer for peer in ORDER if world.up[peer] != (dice.random() < 0.1)} | {one})
        world.up["p3"] = world.can["p3"] = True
        live = {peer for peer, lives in world.up.items() if lives}
        first = min(peer for peer in live if world.can[peer])
        for _ in range(6):
            for peer in sorted(live):
                world.act(peer, live)
        assert world.written is not None
        assert world.written.owner == first, f"seed {seed}"
        assert [peer for peer in live if world.held[peer] == world.written.epoch] == [first], f"seed {seed}"
