"""What the application is shown, and what is acknowledged (Thialfi 3.3, 4.1.4): the client's core without I/O."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from roskva.client.actions import Notification
from roskva.protocol.messages import Ack, ClientMessage, Grant
from tests.client.scripted import CONFIG, Bench, notification


def acks(said: list[ClientMessage]) -> list[tuple[str, str, str | None, int]]:
    return [(ack.object, ack.seqno, ack.version, ack.epoch) for message in said for ack in message.acks]


def bench_with(*names: bytes) -> Bench:
    bench = Bench().live()
    bench.registered(*names)
    return bench


def keys(bench: Bench) -> list[tuple[int, int | None]]:
    return [(one.epoch, one.version) for one in bench.shown()]


def test_a_notification_is_shown_and_acknowledged_exactly_as_it_came() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7, seqno=5, epoch=2)
    (shown,) = bench.shown()
    assert (shown.object, shown.name, shown.version, shown.epoch, shown.seqno) == ("a", b"a", 7, 2, 5)
    assert bench.said == []  # acknowledgements are the application's
    bench.do(bench.core.acknowledge(bench.now, shown))
    assert acks(bench.said) == [("a", "5", "7", 2)]


def test_a_redelivery_while_the_application_works_does_nothing() -> None:
    bench = bench_with(b"a")
    for _ in range(3):
        bench.notify(b"a", 7)
    assert keys(bench) == [(0, 7)]
    assert bench.said == []


def test_a_redelivery_of_an_acknowledged_version_is_acknowledged_again_silently() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    bench.said.clear()
    bench.notify(b"a", 7)
    bench.notify(b"a", 6)  # older than what was acknowledged: late
    assert keys(bench) == [(0, 7)]
    assert acks(bench.said) == [("a", "1", "7", 0), ("a", "1", "6", 0)]


def test_no_version_goes_back_unless_the_epoch_is_larger() -> None:
    """Trap 34: after a reset, 5 is newer than the 100 of before."""
    bench = bench_with(b"a")
    bench.notify(b"a", 100)
    bench.notify(b"a", 5)
    bench.notify(b"a", 5, epoch=1)
    bench.notify(b"a", 101)
    assert keys(bench) == [(0, 100), (1, 5)]


def test_a_redelivery_under_a_newer_seqno_is_what_gets_acknowledged() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7, seqno=1)
    bench.notify(b"a", 7, seqno=9)
    assert keys(bench) == [(0, 7)]
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    assert ("a", "9", "7", 0) in acks(bench.said)


def test_the_acknowledgement_of_an_earlier_version_names_that_version() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.notify(b"a", 8)
    first, second = bench.shown()
    bench.do(bench.core.acknowledge(bench.now, first))
    assert acks(bench.take_said()) == [("a", "1", "7", 0)]
    bench.do(bench.core.acknowledge(bench.now, second))
    assert acks(bench.take_said()) == [("a", "1", "8", 0)]


def test_nobody_acknowledges_what_was_never_delivered() -> None:
    """Trap 16: a client acknowledges 2^63-1."""
    bench = bench_with(b"a")
    bench.do(bench.core.acknowledge(bench.now, Notification(b"a", 2**63 - 1), Notification(b"a"), Notification(b"never", 1)))
    assert bench.said == []
    bench.notify(b"a", 7)
    bench.do(bench.core.acknowledge(bench.now, Notification(b"a", 2**63 - 1, seqno=1)))
    assert bench.said == []


def test_unknown_is_shown_once_per_seqno_and_acknowledged_as_unknown() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", None, seqno=3)
    bench.notify(b"a", None, seqno=3)
    (shown,) = bench.shown()
    assert shown.unknown
    bench.do(bench.core.acknowledge(bench.now, shown))
    bench.notify(b"a", None, seqno=3)
    assert acks(bench.take_said()) == [("a", "3", None, 0)] * 2
    bench.notify(b"a", None, seqno=4)
    assert len(bench.shown()) == 2


def test_an_acknowledged_version_says_nothing_about_an_unknown() -> None:
    """Trap 31: the unknown may stand for a lost, later version."""
    bench = bench_with(b"a")
    bench.notify(b"a", None, seqno=3)
    bench.notify(b"a", 8, seqno=3)
    unknown, version = bench.shown()
    bench.do(bench.core.acknowledge(bench.now, version))
    assert acks(bench.take_said()) == [("a", "3", "8", 0)]
    bench.notify(b"a", None, seqno=3)
    assert bench.said == []  # still the application's
    bench.do(bench.core.acknowledge(bench.now, unknown))
    assert acks(bench.take_said()) == [("a", "3", None, 0)]


def test_an_unknown_of_a_new_epoch_hides_versions_of_the_old_one() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 100)
    bench.notify(b"a", None, seqno=2, epoch=1)
    bench.notify(b"a", 101)
    bench.notify(b"a", 0, epoch=1, seqno=2)
    assert keys(bench) == [(0, 100), (1, None), (1, 0)]


def test_what_is_not_wished_for_is_neither_shown_nor_acknowledged() -> None:
    bench = bench_with(b"a")
    bench.notify(b"other", 1)
    bench.notify(b"a", 7)
    (shown,) = bench.shown()
    bench.do(bench.core.unregister(bench.now, b"a"))
    bench.said.clear()
    bench.notify(b"a", 8)
    bench.do(bench.core.acknowledge(bench.now, shown))
    assert len(bench.shown()) == 1
    assert acks(bench.said) == []


def test_registering_again_in_the_same_run_shows_no_version_twice() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    bench.do(bench.core.unregister(bench.now, b"a"))
    bench.register(b"a")
    bench.said.clear()
    bench.notify(b"a", 7, seqno=9)
    assert keys(bench) == [(0, 7)]
    assert acks(bench.said) == [("a", "9", "7", 0)]
    bench.notify(b"a", 8, seqno=9)
    assert keys(bench) == [(0, 7), (0, 8)]


def test_an_application_that_forgets_is_told_anew() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    bench.do(bench.core.unregister(bench.now, b"a", forget=True))
    bench.register(b"a")
    bench.notify(b"a", 7, seqno=9)
    assert keys(bench) == [(0, 7), (0, 7)]


def test_a_version_held_counts_as_acknowledged() -> None:
    bench = Bench().live()
    bench.do(bench.core.register(bench.now, b"a", version=7, epoch=1))
    bench.said.clear()
    bench.notify(b"a", 7, epoch=1)
    bench.notify(b"a", 3, epoch=1)
    assert bench.shown() == []
    assert len(acks(bench.said)) == 2
    bench.notify(b"a", 8, epoch=1)
    assert keys(bench) == [(1, 8)]


def test_an_application_that_states_less_than_it_was_shown_is_told_again() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 9)
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    bench.do(bench.core.unregister(bench.now, b"a"))
    bench.do(bench.core.register(bench.now, b"a", version=3))
    bench.notify(b"a", 9, seqno=9)
    assert keys(bench) == [(0, 9), (0, 9)]


def test_what_was_given_back_after_an_unregistration_is_shown_to_the_next_registration() -> None:
    """Seed 1113: it waited in the mailbox while the application unregistered, and registered again: it was never shown any more."""
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.notify(b"a", None, seqno=2)
    bench.do(bench.core.unregister(bench.now, b"a"))
    for shown in bench.shown():
        bench.do(bench.core.give_back(bench.now, shown))
    bench.do(bench.core.register(bench.now, b"a"))
    bench.notify(b"a", 7, seqno=9)
    assert keys(bench) == [(0, 7), (0, None), (0, 7)]


def test_what_the_application_gives_back_is_shown_at_the_next_redelivery() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.notify(b"a", None, seqno=2)
    for shown in bench.shown():
        bench.do(bench.core.give_back(bench.now, shown))
    bench.notify(b"a", 6)  # outdated meanwhile: not shown
    bench.notify(b"a", 7)
    bench.notify(b"a", None, seqno=2)
    assert keys(bench) == [(0, 7), (0, None), (0, 7), (0, None)]


def test_what_was_shown_before_an_acknowledged_unknown_is_acknowledged_with_it() -> None:
    """Given back, then lost by the service, which knows an older version now: it was delivered for ever, and never acknowledged."""
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    (shown,) = bench.shown()
    bench.do(bench.core.give_back(bench.now, shown))
    bench.notify(b"a", None, seqno=2)
    bench.notify(b"a", 8, seqno=2)
    _, unknown, later = bench.shown()
    bench.do(bench.core.acknowledge(bench.now, unknown))
    bench.said.clear()
    bench.notify(b"a", 5, seqno=2)
    assert acks(bench.said) == [("a", "2", "5", 0)]
    bench.notify(b"a", 8, seqno=2)  # came after the unknown: the application has it in its hands
    assert len(acks(bench.said)) == 1
    bench.do(bench.core.acknowledge(bench.now, later))
    assert acks(bench.said)[-1] == ("a", "2", "8", 0)


def test_seqnos_of_an_earlier_session_hide_nothing_in_the_next() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", None, seqno=5)
    (early,) = bench.shown()
    bench.anew(keep=False)
    bench.grant("token-2")
    bench.do(bench.core.acknowledge(bench.now, early))  # of the old client id: not the new one's to acknowledge
    assert acks(bench.said) == []
    bench.notify(b"a", None, seqno=5)
    assert len(bench.shown()) == 2


def test_versions_shown_before_a_new_session_are_not_shown_again() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7, seqno=5)
    (early,) = bench.shown()
    bench.anew(keep=False)
    bench.grant("token-2")
    bench.notify(b"a", 7, seqno=1)
    bench.take_said()
    bench.do(bench.core.acknowledge(bench.now, early))
    assert acks(bench.said) == [("a", "1", "7", 0)]  # under the seqno of the present session
    assert keys(bench) == [(0, 7)]


def test_acknowledgements_go_together_and_are_not_repeated() -> None:
    bench = bench_with(b"a", b"b")
    bench.say(notify=[notification(b"a", 1), notification(b"b", 2)])
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    (message,) = bench.take_said()
    assert len(message.acks) == 2
    bench.pass_time(100)
    assert acks(bench.said) == []


def test_acknowledgements_made_without_a_connection_go_with_the_next_one() -> None:
    bench = bench_with(b"a")
    bench.notify(b"a", 7)
    bench.do(bench.core.disconnected(bench.now))
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    assert bench.said == []
    bench.do(bench.core.connected(bench.now))
    assert acks(bench.said) == [("a", "1", "7", 0)]


deliveries = st.lists(
    st.one_of(
        st.tuples(st.just("version"), st.integers(0, 2), st.integers(0, 6), st.integers(1, 3)),
        st.tuples(st.just("unknown"), st.integers(0, 2), st.just(0), st.integers(1, 6)),
        st.tuples(st.just("acknowledge"), st.just(0), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("give back"), st.just(0), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("register again"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(deliveries)
def test_once_per_version_never_back_and_never_stuck(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever comes in whatever order: no version twice unless given back, none below an earlier one, every acknowledgement
    names a delivery, and in the end the highest delivered version is shown."""
    bench = bench_with(b"a")
    given_back: set[int] = set()
    delivered: set[Ack] = set()
    for kind, epoch, number, seqno in steps:
        shown = bench.shown()
        if kind in ("version", "unknown"):
            version = number if kind == "version" else None
            told = notification(b"a", version, seqno, epoch)
            delivered.add(Ack(object="a", seqno=told.seqno, version=told.version, epoch=epoch))
            bench.say(notify=[told])
        elif kind == "register again":
            bench.do(bench.core.unregister(bench.now, b"a"))
            bench.register(b"a")
        elif shown and kind == "acknowledge":
            bench.do(bench.core.acknowledge(bench.now, shown[number % len(shown)]))
        elif shown:
            given_back.add(number % len(shown))
            bench.do(bench.core.give_back(bench.now, shown[number % len(shown)]))
    versions = [(one.epoch, one.version) for one in bench.shown() if one.version is not None]
    assert versions == sorted(versions)
    if not given_back:
        assert len(versions) == len(set(versions))
    for message in bench.said:
        assert set(message.acks) <= delivered
    # Settle: the server repeats the highest version until it is acknowledged; the application takes everything.
    for shown_one in bench.shown():
        bench.do(bench.core.acknowledge(bench.now, shown_one))
    bench.said.clear()
    bench.notify(b"a", 7, seqno=9, epoch=2)
    bench.do(bench.core.acknowledge(bench.now, bench.shown()[-1]))
    assert ("a", "9", "7", 2) in acks(bench.said)


def handshake_anew(bench: Bench, epoch: int) -> None:
    """The service knows the client no longer; it counts in this epoch."""
    bench.anew()
    bench.pass_time(61)
    bench.grant("token-2", config=msgspec.structs.replace(CONFIG, epoch=epoch))


def test_a_service_that_counts_from_below_again_is_heard() -> None:
    """It lost everything, epochs included: what was shown of a larger epoch must not hide all that it will ever tell."""
    bench = bench_with(b"a")
    bench.notify(b"a", 100, epoch=3)
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    handshake_anew(bench, epoch=0)
    bench.notify(b"a", 5, epoch=0)
    bench.notify(b"a", 4, epoch=0)
    bench.notify(b"a", 6, epoch=0)
    assert keys(bench) == [(3, 100), (0, 5), (0, 6)]


def test_a_handshake_in_the_same_or_a_larger_epoch_forgets_nothing() -> None:
    for epoch in (3, 4):
        bench = bench_with(b"a")
        bench.notify(b"a", 100, epoch=3)
        handshake_anew(bench, epoch)
        bench.notify(b"a", 100, epoch=3, seqno=9)
        bench.notify(b"a", 99, epoch=3, seqno=9)
        assert keys(bench) == [(3, 100)]


def test_a_version_held_of_an_epoch_above_the_services_hides_nothing() -> None:
    """Stated before the handshake or after it: a state of the time before the loss."""
    bench = Bench()
    bench.start()
    bench.do(bench.core.register(bench.now, b"a", version=100, epoch=3))
    bench.grant(config=msgspec.structs.replace(CONFIG, epoch=0))
    bench.do(bench.core.register(bench.now, b"b", version=100, epoch=3))
    bench.notify(b"a", 5)
    bench.notify(b"b", 5)
    assert keys(bench) == [(0, 5), (0, 5)]


def test_a_version_held_of_an_epoch_that_the_service_told_of_since_counts() -> None:
    bench = Bench()
    bench.start()
    bench.grant(config=msgspec.structs.replace(CONFIG, epoch=0))
    bench.registered(b"a")
    bench.notify(b"a", None, epoch=1)
    bench.do(bench.core.register(bench.now, b"b", version=7, epoch=1))
    bench.notify(b"b", 7, epoch=1)
    assert keys(bench) == [(1, None)]


def test_a_grant_that_is_repeated_late_does_not_take_back_the_epoch() -> None:
    bench = Bench()
    bench.start()
    nonce = next(message.init.nonce for message in bench.said if message.init is not None)
    config = msgspec.structs.replace(CONFIG, epoch=0)
    bench.grant(config=config)
    bench.registered(b"a")
    bench.notify(b"a", 5, epoch=1)
    bench.say(grant=Grant(nonce=nonce, token=bench.token), config=config)
    bench.notify(b"a", 5, epoch=1)
    assert keys(bench) == [(1, 5)]
