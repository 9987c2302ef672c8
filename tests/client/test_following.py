"""Up to when a client was told of every change of one object: with the real core, and a server that says what the test tells it to."""

from __future__ import annotations

from roskva.client.actions import Action
from roskva.client.following import CATCH_UP_S, Following
from tests.client.scripted import Bench, status


class Watched(Bench):
    """A bench that also feeds what is under test, as the shell does."""

    def __init__(self) -> None:
        super().__init__()
        self.following = Following()

    def say(self, **fields: object) -> list[Action]:
        done = super().say(**fields)
        self.following.heard(self.core, self.now)
        return done

    def told_until(self, name: bytes = b"a") -> float | None:
        return self.following.told_until(self.core, self.now, name)

    def in_sync_with(self, *names: bytes) -> Watched:
        self.live()
        self.registered(*names)
        return self

    def reconnect(self) -> None:
        self.do(self.core.disconnected(self.now))
        self.following.connected()
        self.do(self.core.connected(self.now))


def test_nothing_is_told_of_what_is_not_confirmed() -> None:
    bench = Watched()
    bench.live()
    assert bench.told_until() is None
    bench.register(b"a")
    assert bench.told_until() is None
    bench.has.add(b"a")
    bench.say(status=[status(b"a")])
    assert bench.told_until() == bench.now


def test_it_is_now_while_the_server_speaks_and_stands_still_when_it_is_silent() -> None:
    bench = Watched().in_sync_with(b"a")
    heard = bench.now
    bench.now += 99.0
    assert bench.told_until() == bench.now
    bench.now += 2.0
    assert bench.told_until() == heard, "two keepalives without a word"


def test_others_on_their_way_change_nothing() -> None:
    bench = Watched().in_sync_with(b"a")
    bench.register(b"b")
    bench.unsettled = 3
    bench.has.add(b"b")
    bench.say()
    assert not bench.core.in_sync(bench.now)
    assert (bench.told_until(b"a"), bench.told_until(b"b")) == (bench.now, None)


def test_over_a_new_connection_it_must_catch_up_first() -> None:
    bench = Watched().in_sync_with(b"a")
    before = bench.now
    bench.now += 5.0
    bench.reconnect()
    assert bench.told_until() == before
    bench.unsettled = 1  # something waited for the client, and is on its way
    bench.say()
    assert bench.told_until() == before
    bench.unsettled = 0
    bench.say()
    assert bench.told_until() == bench.now


def test_what_never_settles_does_not_hold_up_the_others_for_ever() -> None:
    bench = Watched().in_sync_with(b"a")
    before = bench.now
    bench.now += 5.0
    bench.reconnect()
    bench.unsettled = 1
    bench.say()
    bench.now += CATCH_UP_S - 0.1
    assert bench.told_until() == before
    bench.now += 0.2
    assert bench.told_until() == bench.now


def test_if_the_summaries_differ_without_an_operation_nothing_is_sure() -> None:
    bench = Watched().in_sync_with(b"a")
    before = bench.now
    bench.now += 5.0
    bench.has.clear()
    bench.say()
    assert bench.told_until() == before


def test_a_new_session_must_catch_up_too() -> None:
    bench = Watched().in_sync_with(b"a")
    before = bench.now
    bench.now += 5.0
    bench.anew(code="token-elsewhere", keep=True)
    assert bench.told_until() == before
    bench.unsettled = 1
    bench.grant("token-2")
    assert bench.told_until() == before
    bench.unsettled = 0
    bench.say()
    assert bench.told_until() == bench.now
