"""Ownership: one owner at a time, the first in order that lives, and no flow without one for longer than it takes to notice."""

from __future__ import annotations

import random

import pytest

from roskva.capture.ownership import Duty, Liveness, Peer, Record, decide, order_of
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
    assert decide(me, held, written, ORDER, live, steady) is duty


def test_a_flow_prefers_the_publisher_of_its_region() -> None:
    peers = (Peer("p1", "north"), Peer("p2", "south"), Peer("p3", "south"))
    assert order_of(peers) == order_of(peers, "north") == order_of(peers, "nowhere") == ("p1", "p2", "p3")
    assert order_of(peers, "south") == ("p2", "p3", "p1")


def test_a_member_lives_while_its_counter_moves_on_the_observers_clock() -> None:
    seen = Liveness("p2", takeover_s=10, steady_s=5)
    seen.observe({"p1": 1, "p2": 1}, 100.0)
    assert seen.live == {"p1", "p2"}, "whoever comes up waits for the others as long as everybody does"
    assert seen.steady == {"p2"}
    seen.observe({"p1": 1, "p2": 2}, 109.0)
    assert seen.live == {"p1", "p2"}
    seen.observe({"p1": 1, "p2": 3}, 110.0)
    assert seen.live == {"p2"}
    seen.observe({"p1": 2}, 200.0)
    assert seen.live == {"p1", "p2"}
    assert seen.steady == {"p2"}
    for second in range(201, 206):
        seen.observe({"p1": second}, float(second))
    assert seen.steady == {"p1", "p2"}
    seen.observe({}, 206.0)
    assert seen.live == {"p2"}, "it left"


class World:
    """Three publishers, and what is written of one flow."""

    def __init__(self) -> None:
        self.written: Record | None = None
        self.up = dict.fromkeys(ORDER, True)
        self.held = dict.fromkeys(ORDER, 0)

    def act(self, me: str, live: set[str]) -> None:
        duty = decide(me, self.held[me], self.written, ORDER, live, live)
        if duty is Duty.TAKE:
            self.held[me] = 1 if self.written is None else self.written.epoch + 1
            self.written = record(me, self.held[me])
        elif duty is Duty.HAND_OVER:
            assert self.written is not None
            self.held[me] = 0
            self.written = self.written._replace(released=True)
        elif duty is Duty.STOP:
            self.held[me] = 0
        elif duty is Duty.KEEP:
            assert self.written is not None
            assert (self.written.owner, self.written.epoch) == (me, self.held[me])


def test_whoever_dies_or_comes_back_when_the_first_that_lives_owns_it_in_the_end_and_nobody_else() -> None:
    for seed in range(300):
        dice, world = random.Random(seed), World()
        for _ in range(60):
            one = dice.choice(ORDER)
            if dice.random() < 0.2:
                world.up[one] = not world.up[one]
                world.held[one] = 0
            elif world.up[one]:
                # It may not know yet who died or came back.
                world.act(one, {peer for peer in ORDER if world.up[peer] != (dice.random() < 0.1)} | {one})
        world.up["p3"] = True
        live = {peer for peer, lives in world.up.items() if lives}
        for _ in range(6):
            for peer in sorted(live):
                world.act(peer, live)
        assert world.written is not None
        assert world.written.owner == min(live), f"seed {seed}"
        assert [peer for peer in live if world.held[peer] == world.written.epoch] == [min(live)], f"seed {seed}"
