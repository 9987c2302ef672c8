"""Where a client connects next, and over which channel (client/choice.py)."""

from __future__ import annotations

from roskva.client.choice import (
    LONG_POLL,
    RETURN_MAX_S,
    RETURN_REFUSED_S,
    RETURN_S,
    STAY_S,
    WEBSOCKET,
    YOUNG_S,
    Attempt,
    Choice,
    Failure,
)


class World:
    """Tries what the choice says, at an hour that grows by one second with each attempt."""

    def __init__(self, urls: int = 1, kind: str = "auto") -> None:
        self.choice = Choice(urls, kind, lambda: 0.5)
        self.now = 1_000.0

    def next(self) -> Attempt:
        self.now += 1.0
        return self.choice.attempt(self.now)

    def fail(self, why: Failure = Failure.BROKEN) -> Attempt:
        attempt = self.next()
        self.choice.failed(self.now, attempt, why)
        return attempt

    def live(self, lived_s: float, heard: bool = True, cut: bool = True) -> Attempt:
        attempt = self.next()
        self.now += lived_s
        self.choice.ended(self.now, attempt, lived_s, heard, cut)
        return attempt

    def return_in(self) -> float:
        at = self.choice.return_at()
        assert at is not None
        return at - self.now


def kinds(attempts: list[Attempt]) -> list[str]:
    return [attempt.kind for attempt in attempts]


def test_a_websocket_comes_first_and_stays_as_long_as_it_works() -> None:
    world = World()
    assert kinds([world.live(YOUNG_S) for _ in range(10)]) == [WEBSOCKET] * 10


def test_after_two_failures_of_the_websocket_long_polls() -> None:
    world = World()
    assert kinds([world.fail(), world.fail(), world.live(1), world.live(1)]) == [WEBSOCKET, WEBSOCKET, LONG_POLL, LONG_POLL]


def test_one_refusal_is_enough() -> None:
    world = World()
    assert kinds([world.fail(Failure.REFUSED), world.next()]) == [WEBSOCKET, LONG_POLL]


def test_a_websocket_that_dies_young_again_and_again_is_left() -> None:
    world = World()
    young = YOUNG_S - 1
    assert kinds([world.live(young), world.live(YOUNG_S), world.live(young), world.live(young), world.next()]) == [WEBSOCKET] * 4 + [
        LONG_POLL
    ]


def test_one_on_which_nothing_is_heard_failed_however_long_it_lived() -> None:
    world = World()
    assert kinds([world.live(1_000, heard=False), world.live(1_000, heard=False), world.next()]) == [WEBSOCKET, WEBSOCKET, LONG_POLL]


def test_a_service_that_is_down_is_tried_both_ways_in_turn() -> None:
    world = World()
    tried = kinds([world.fail() for _ in range(7)])
    assert tried == [WEBSOCKET, WEBSOCKET, LONG_POLL, WEBSOCKET, LONG_POLL, WEBSOCKET, LONG_POLL]
    assert world.live(YOUNG_S).kind == WEBSOCKET


def test_nothing_is_learned_from_a_service_that_is_down() -> None:
    world = World()
    for _ in range(100):
        world.fail()
    while world.fail().kind == WEBSOCKET:
        pass
    assert world.fail(Failure.REFUSED).kind == WEBSOCKET
    assert world.return_in() == RETURN_REFUSED_S


def test_the_websocket_is_tried_again_beside_long_polls_with_pauses_that_double() -> None:
    world = World()
    world.fail(Failure.REFUSED)
    pauses = []
    for _ in range(6):
        pauses.append(world.return_in())
        world.now += world.return_in()
        world.choice.return_failed(world.now, Failure.REFUSED)
    assert pauses == [RETURN_REFUSED_S, 600, 1_200, 2_400, RETURN_MAX_S, RETURN_MAX_S]
    assert world.next().kind == LONG_POLL


def test_a_websocket_that_came_back_must_last() -> None:
    world = World()
    world.fail(Failure.REFUSED)
    world.live(YOUNG_S)
    returned = world.choice.returned()
    assert returned == Attempt(0, WEBSOCKET)
    assert world.next().kind == WEBSOCKET
    world.choice.ended(world.now, returned, 1.0, heard=True, cut=True)  # died young: one more is enough
    assert world.next().kind == LONG_POLL
    assert round(world.return_in()) == 2 * RETURN_REFUSED_S - 1
    returned = world.choice.returned()
    world.choice.ended(world.now, returned, YOUNG_S, heard=True, cut=True)  # this one lasted: all is forgotten
    world.fail(Failure.REFUSED)
    assert world.return_in() == RETURN_REFUSED_S


def test_long_polls_that_die_young_stay_long_polls() -> None:
    world = World()
    world.fail(Failure.REFUSED)
    assert kinds([world.live(1), world.live(1), world.live(1)]) == [LONG_POLL] * 3


def test_a_channel_that_was_asked_for_is_the_only_one() -> None:
    for kind in (WEBSOCKET, LONG_POLL):
        world = World(kind=kind)
        assert kinds([world.fail(Failure.REFUSED), world.fail(), world.live(1), world.live(YOUNG_S)]) == [kind] * 4
        assert world.choice.return_at() is None


def test_three_failures_in_a_row_and_the_next_address_has_its_turn() -> None:
    world = World(urls=3)
    assert [world.fail().url for _ in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0]


def test_at_each_address_both_channels_are_tried() -> None:
    world = World(urls=2)
    assert kinds([world.fail() for _ in range(6)]) == [WEBSOCKET, WEBSOCKET, LONG_POLL] * 2


def test_it_stays_where_it_is_when_connections_end_now_and_then() -> None:
    world = World(urls=2)
    for _ in range(20):
        assert world.fail().url == 0
        assert world.fail().url == 0
        assert world.live(YOUNG_S).url == 0


def test_after_a_move_it_stays_for_minutes_where_it_was_answered() -> None:
    world = World(urls=2, kind=WEBSOCKET)
    for _ in range(3):
        world.fail()
    moved_at = world.now
    assert world.live(1).url == 1
    while world.now < moved_at + STAY_S - 1:
        assert world.fail().url == 1
    assert [world.fail().url, world.fail().url] == [1, 0]


def test_a_silent_address_is_left_like_one_that_cannot_be_reached() -> None:
    world = World(urls=2, kind=LONG_POLL)
    assert [world.live(20, heard=False).url for _ in range(4)] == [0, 0, 0, 1]


def test_it_does_not_go_back_by_itself() -> None:
    world = World(urls=2)
    for _ in range(3):
        world.fail()
    assert {world.live(10_000).url for _ in range(20)} == {1}


def test_that_nobody_listens_says_nothing_about_websockets() -> None:
    world = World()
    assert {world.fail(Failure.UNREACHABLE).kind for _ in range(20)} == {WEBSOCKET}
    assert World(urls=2).fail(Failure.UNREACHABLE).url == 0
    several = World(urls=2)
    assert [several.fail(Failure.UNREACHABLE).url for _ in range(4)] == [0, 0, 0, 1]


def test_a_goodbye_is_no_failure_however_young() -> None:
    world = World(urls=2)
    assert [world.live(1, cut=False) for _ in range(20)] == [Attempt(0, WEBSOCKET)] * 20


def test_without_a_refusal_the_websocket_is_tried_again_soon() -> None:
    world = World()
    world.fail()
    world.fail()
    assert world.return_in() == RETURN_S


def test_long_polls_have_their_turn_however_long_the_pauses_between_attempts() -> None:
    world = World()
    tried = []
    for _ in range(4):
        tried.append(world.fail().kind)
        world.now += 2 * RETURN_S
    assert tried == [WEBSOCKET, WEBSOCKET, LONG_POLL, WEBSOCKET]


def test_once_long_polls_work_the_websocket_comes_first_again_after_the_pause() -> None:
    world = World()
    world.fail()
    world.fail()
    assert world.live(RETURN_S).kind == LONG_POLL
    assert [world.fail().kind, world.next().kind] == [WEBSOCKET, LONG_POLL]
    assert world.return_in() == 2 * RETURN_S - 1


def test_pauses_are_smeared() -> None:
    pauses = []
    for dice in (0.0, 0.5, 1.0):
        choice = Choice(1, "auto", lambda dice=dice: dice)  # type: ignore[misc]
        choice.failed(0.0, choice.attempt(0.0), Failure.REFUSED)
        pauses.append(choice.return_at())
    assert pauses == [225.0, 300.0, 375.0]
