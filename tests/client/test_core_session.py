"""Tokens, heartbeats, silence (Thialfi 4.1.2, 4.1.6): the client's core without I/O."""

from __future__ import annotations

import json

import pytest

from roskva.client.actions import CloseChannel, ReissueRegistrations, Reported, Stopped, WriteState
from roskva.client.limits import connect_pause_s
from roskva.client.state import encode_state
from roskva.errors import ClientStopped, InvalidApplication, UnknownApplication
from roskva.protocol.messages import Config, ErrorReport, Grant
from roskva.protocol.summaries import SetDigest
from tests.client.scripted import CONFIG, Bench, status


def prior(token: str = "token-0", application: str = "demo", device: str = "phone") -> bytes:
    return encode_state(application, device, token)


def test_every_start_handshakes_and_asks_for_registrations() -> None:
    bench = Bench()
    bench.start()
    assert bench.actions == [ReissueRegistrations()]
    (message,) = bench.take_said()
    assert message.token == ""
    assert message.summary == SetDigest().summary()
    assert message.init is not None
    assert (message.init.application, message.init.device, message.init.prior) == ("demo", "phone", None)


def test_a_start_with_state_names_the_prior_token() -> None:
    bench = Bench(state=prior())
    bench.start()
    assert bench.said[0].init is not None
    assert bench.said[0].init.prior == "token-0"


@pytest.mark.parametrize(
    "state",
    [b"", b"\xff", b"{}", b'{"v":99,"application":"demo","device":"phone"}', prior(device="tablet"), prior(application="x")],
)
def test_a_state_of_no_use_is_ignored_and_said_so(state: bytes) -> None:
    bench = Bench(state=state)
    bench.start()
    assert bench.core.state_ignored
    assert bench.said[0].init is not None
    assert bench.said[0].init.prior is None


def test_the_state_is_written_at_each_grant() -> None:
    bench = Bench()
    bench.start()
    bench.grant("token-7")
    (written,) = [action for action in bench.actions if isinstance(action, WriteState)]
    assert json.loads(written.state) == {"v": 1, "application": "demo", "device": "phone", "token": "token-7"}


def test_a_grant_is_used_at_once_so_that_it_takes_effect() -> None:
    bench = Bench()
    bench.start()
    bench.grant("token-7")
    assert [message.token for message in bench.take_said()] == ["", "token-7"]


def test_init_is_repeated_with_a_new_nonce_and_only_the_last_one_counts() -> None:
    bench = Bench()
    bench.start()
    first = bench.take_said()[0].init
    bench.pass_time(5)
    later = [message.init for message in bench.said]
    assert first is not None
    assert 1 <= len(later) <= 3  # pauses that double from one second
    bench.say(token="stale", grant=Grant(nonce=first.nonce, token="stale"))
    assert not [action for action in bench.actions if isinstance(action, WriteState)]
    bench.grant("good")
    assert bench.said[-1].token == "good"


def test_a_repeated_grant_is_ignored() -> None:
    bench = Bench()
    bench.start()
    nonce = bench.said[0].init.nonce  # type: ignore[union-attr]
    bench.grant("token-1")
    bench.take_said()
    assert bench.say(token="token-2", grant=Grant(nonce=nonce, token="token-2")) == []
    bench.register(b"x")
    assert bench.said[0].token == "token-1"


def test_messages_of_another_token_are_ignored() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    assert bench.say(token="other", status=[status(b"a", "unregistered")], config=Config(quiet_s=100)) == []
    bench.register(b"b")
    assert bench.said  # no quiet period began


def test_start_anew_as_a_new_client_states_everything_by_sync() -> None:
    bench = Bench().live()
    bench.registered(b"a", b"b")
    bench.anew(keep=False)
    assert ReissueRegistrations() in bench.actions
    (message,) = bench.take_said()
    assert message.init is not None
    assert message.init.prior is None
    bench.said = [message]
    bench.has = set()
    bench.grant("token-2")
    sync = bench.take_said()[-1].sync
    assert sync is not None
    assert sync.op == 1
    assert sorted(stated.object for stated in sync.objects or []) == ["a", "b"]
    bench.has = {b"a", b"b"}
    bench.say()
    assert bench.core.in_sync(bench.now)


def test_start_anew_with_the_id_kept_names_the_prior_token_and_resends_nothing() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.anew("token-elsewhere", keep=True)
    (message,) = bench.said
    assert message.init is not None
    assert message.init.prior == "token-1"
    bench.grant("token-2")
    assert [m.sync or m.register for m in bench.said[1:]] == [[]]
    assert ReissueRegistrations() not in bench.actions


def test_start_anew_for_an_older_token_or_a_repeat_is_ignored() -> None:
    bench = Bench().live()
    bench.anew("token-elsewhere", keep=True)
    bench.anew("token-elsewhere", keep=True)  # the repeat comes while the init waits
    assert len(bench.said) == 1
    bench.grant("token-2")
    bench.take_said()
    assert bench.anew("session-superseded", keep=True, token="token-1") == []


def test_a_refused_init_is_recognized_by_its_nonce() -> None:
    bench = Bench(state=prior())
    bench.start()
    nonce = bench.take_said()[0].init.nonce  # type: ignore[union-attr]
    bench.anew(keep=False, token="", nonce="another")
    assert bench.said == []
    bench.anew(keep=False, token="", nonce=nonce)
    assert bench.said[0].init is not None
    assert bench.said[0].init.prior is None


def test_a_server_that_refuses_everything_is_asked_ever_more_slowly() -> None:
    bench = Bench(dice=0.0)
    bench.start()
    inits = 0
    for _ in range(200):
        bench.pass_time(0.5)
        for message in bench.take_said():
            assert message.init is not None
            inits += 1
            bench.anew(keep=False, token="", nonce=message.init.nonce)
    assert inits <= 101 + 2  # dice of 0: a second each; never in a tight loop


def test_superseded_twice_within_a_minute_stops() -> None:
    bench = Bench().live()
    bench.say()
    bench.anew("session-superseded", keep=True)
    assert bench.said[0].init is not None
    bench.grant("token-2")
    bench.say()
    bench.pass_time(30)
    actions = bench.anew("session-superseded", keep=True)
    assert CloseChannel() in actions
    (stopped,) = [action for action in actions if isinstance(action, Stopped)]
    assert isinstance(stopped.error, ClientStopped)
    assert bench.core.register(bench.now, b"x") == []
    assert bench.core.tick(bench.now + 1e6) == []
    assert bench.core.next_deadline() is None


def test_sessions_that_never_took_effect_do_not_count_as_superseded() -> None:
    """A channel that repeats an init makes two sessions of it: the client is alone all the same."""
    bench = Bench().live()
    for number in range(2, 6):
        bench.anew("session-superseded", keep=True)
        bench.pass_time(5)
        bench.grant(f"token-{number}")
        bench.say(grant=Grant(nonce="an older one", token=bench.token))  # a repeat of the grant welcomes nobody
        bench.say(summary=None, error=ErrorReport(code="unavailable", message="no Registrar", transient=True))
    assert bench.core.stopped is None
    assert bench.said[-1].token == "token-5"


def test_superseded_again_after_more_than_a_minute_handshakes_once_more() -> None:
    bench = Bench().live()
    bench.say()
    bench.anew("session-superseded", keep=True)
    bench.grant("token-2")
    bench.say()
    bench.pass_time(61)
    bench.said.clear()
    bench.anew("session-superseded", keep=True)
    assert bench.said[0].init is not None


def test_a_reconnect_speaks_at_once_with_the_token_and_does_not_handshake() -> None:
    bench = Bench().live()
    bench.do(bench.core.disconnected(bench.now))
    assert bench.core.next_deadline() is None
    bench.do(bench.core.connected(bench.now + 3))
    (message,) = bench.said
    assert message.init is None
    assert message.token == "token-1"
    assert message.summary is not None


@pytest.mark.parametrize(("dice", "expected_s"), [(0.0, 960), (0.5, 1200), (1.0, 1440)])
def test_heartbeats_are_smeared_both_ways_and_counted_from_the_last_message(dice: float, expected_s: float) -> None:
    bench = Bench(dice=dice).live()
    bench.pass_time(500)
    bench.registered(b"a")
    bench.pass_time(expected_s - 1)
    assert bench.take_said() == []
    bench.pass_time(2)
    (message,) = bench.take_said()
    assert message.token == "token-1"
    assert message.summary is not None
    assert message.summary.count == 1


def test_two_keepalives_of_silence_close_the_channel() -> None:
    """Trap 43: half open, it would look in sync for as long as nobody tries to send."""
    bench = Bench().live()
    bench.pass_time(99, keepalives=False)
    assert CloseChannel() not in bench.actions
    bench.pass_time(2, keepalives=False)
    assert bench.actions.count(CloseChannel()) == 1
    assert bench.core.next_deadline() is None


def test_in_sync_needs_equal_summaries_nothing_owed_and_a_recent_word() -> None:
    """Trap 43: not while registrations are on their way, nor after silence."""
    bench = Bench()
    assert not bench.core.in_sync(bench.now)
    bench.live()
    assert bench.core.in_sync(bench.now)
    assert not bench.core.in_sync(bench.now + 100)
    bench.unsettled = 1
    bench.say()
    assert not bench.core.in_sync(bench.now)
    bench.say(summary=None, unsettled=0, error=ErrorReport(code="unavailable", message="later", transient=True))
    assert not bench.core.in_sync(bench.now)  # a message without summary says nothing of our session
    bench.unsettled = 0
    bench.say()
    assert bench.core.in_sync(bench.now)
    bench.register(b"a")
    assert not bench.core.in_sync(bench.now)
    bench.has = {b"a"}
    bench.say(status=[status(b"a")])
    assert bench.core.in_sync(bench.now)
    bench.do(bench.core.disconnected(bench.now))
    assert not bench.core.in_sync(bench.now)
    bench.do(bench.core.connected(bench.now))
    assert not bench.core.in_sync(bench.now)  # not before the server spoke over this connection
    bench.say()
    assert bench.core.in_sync(bench.now)


def test_a_quiet_period_holds_back_all_but_acknowledgements_and_heartbeats() -> None:
    bench = Bench().live()
    bench.registered(b"a")
    bench.notify(b"a", 1)
    bench.say(config=Config(quiet_s=30, heartbeat_s=20, heartbeat_smear=0, retry_min_s=1, retry_max_s=60))
    bench.register(b"b")
    assert bench.take_said() == []
    bench.do(bench.core.acknowledge(bench.now, *bench.shown()))
    (message,) = bench.take_said()
    assert message.acks
    assert not message.register
    bench.pass_time(25)
    assert [bool(m.register) for m in bench.take_said()] == [False]  # a heartbeat
    bench.pass_time(6)
    assert [r.object for m in bench.said for r in m.register] == ["b"]


def test_an_error_that_asks_for_patience_gets_it() -> None:
    bench = Bench().live()
    bench.say(summary=None, error=ErrorReport(code="overloaded", message="busy", transient=True, retry_after_s=5.0))
    assert bench.actions == [Reported("overloaded", "busy", True)]
    bench.register(b"a")
    bench.pass_time(7)
    assert bench.take_said() == []
    bench.pass_time(1)  # 7.5 s: the dice showed 0.5
    assert bench.said[0].register


@pytest.mark.parametrize(("dice", "earliest_s"), [(0.0, 5.0), (0.5, 7.5), (0.99, 9.9)])
def test_clients_that_were_refused_together_do_not_return_together(dice: float, earliest_s: float) -> None:
    bench = Bench(dice=dice).live()
    bench.say(summary=None, error=ErrorReport(code="overloaded", message="busy", transient=True, retry_after_s=5.0))
    bench.register(b"a")
    bench.pass_time(earliest_s - 0.25)
    assert bench.take_said() == []
    bench.pass_time(0.5)
    assert bench.said[0].register


def test_a_gateway_that_goes_is_left_at_a_moment_of_ones_own_and_only_once() -> None:
    bench = Bench().live()
    bench.say(summary=None, error=ErrorReport(code="going-away", message="bye", transient=True, retry_after_s=10.0))
    assert bench.actions == [CloseChannel()]  # nothing was refused, and whatever carried it, it leads nowhere any more
    assert [connect_pause_s(bench.core.config, 0, dice, bench.core.spread_s) for dice in (0.0, 0.5, 1.0)] == [0.0, 5.0, 10.0]
    assert connect_pause_s(bench.core.config, 1, 1.0, bench.core.spread_s) == 2 * bench.core.config.connect_min_s  # it has waited its turn
    assert connect_pause_s(bench.core.config, 0, 1.0, 1e9) == bench.core.config.connect_max_s
    bench.do(bench.core.disconnected(bench.now))
    bench.do(bench.core.connected(bench.now))
    assert connect_pause_s(bench.core.config, 0, 1.0, bench.core.spread_s) == bench.core.config.connect_min_s


def _waits_long_for_an_answer(what: str) -> Bench:
    """A client whose own pause for this has grown to a minute."""
    bench = Bench(dice=0.99)
    if what == "init":
        bench.start()
    else:
        bench.live()
    if what == "register":
        bench.register(b"a")
    elif what == "sync":
        other = SetDigest()
        other.add(b"z")
        bench.say(summary=other.summary())
    bench.pass_time(70, keepalives=False)
    bench.take_said()
    return bench


@pytest.mark.parametrize(("code", "again"), [("overloaded", True), ("unavailable", False)])
@pytest.mark.parametrize("what", ["init", "register", "sync"])
def test_what_finds_no_room_is_said_again_when_the_server_has_room_however_long_the_own_pause(what: str, code: str, again: bool) -> None:
    bench = _waits_long_for_an_answer(what)
    token = "" if what == "init" else "token-1"
    bench.say(token=token, summary=None, error=ErrorReport(code=code, message="busy", transient=True, retry_after_s=2.0))
    bench.pass_time(1.9, keepalives=False)
    assert bench.take_said() == []
    bench.pass_time(2.2, keepalives=False)
    assert any(bool(getattr(message, what)) for message in bench.take_said()) is again


@pytest.mark.parametrize("before", ["granted", "reconnected"])
def test_a_session_whose_first_message_is_refused_says_it_again(before: str) -> None:
    """Until the Registrar has heard it, the client is offline to it: nothing would be delivered before the next heartbeat."""
    bench = Bench().live()
    if before == "reconnected":
        bench.say()
        bench.do(bench.core.disconnected(bench.now))
        bench.do(bench.core.connected(bench.now))
        assert [message.token for message in bench.take_said()] == ["token-1"]
    for _ in range(3):
        bench.say(summary=None, error=ErrorReport(code="overloaded", message="busy", transient=True, retry_after_s=1.0))
        assert bench.take_said() == []
        bench.pass_time(2)
        assert [message.token for message in bench.take_said()] == ["token-1"]
    bench.say()
    bench.pass_time(40)
    assert bench.take_said() == []


def test_an_unknown_application_stops_a_client_that_never_worked() -> None:
    bench = Bench()
    bench.start()
    bench.say(token="", summary=None, error=ErrorReport(code="unknown-application", message=str(UnknownApplication("demo"))))
    (stopped,) = [action for action in bench.actions if isinstance(action, Stopped)]
    assert isinstance(stopped.error, UnknownApplication)
    assert str(stopped.error) == str(UnknownApplication("demo"))


def test_an_unknown_application_does_not_stop_a_client_that_worked_before() -> None:
    bench = Bench().live()
    bench.anew("token-elsewhere", keep=True)
    bench.say(token="", summary=None, error=ErrorReport(code="unknown-application", message="no"))
    assert bench.core.stopped is None
    bench.pass_time(10)
    bench.grant("token-2")
    assert bench.said[-1].token == "token-2"


def test_a_configuration_without_reason_makes_no_busy_loop() -> None:
    zeros = Config(
        heartbeat_s=0,
        heartbeat_smear=9,
        keepalive_s=0.2,
        retry_min_s=-1,
        retry_max_s=0,
        operations_per_message_max=0,
        message_bytes_max=0,
    )
    bench = Bench(config=zeros).live()
    bench.register(b"a", b"b")
    for _ in range(20):
        bench.pass_time(0.05)
        bench.say()
    assert len(bench.said) < 500
    assert all(len(m.register) <= 1 for m in bench.said)


def test_stop_ends_everything() -> None:
    bench = Bench().live()
    assert bench.core.stop() == [CloseChannel()]
    assert bench.core.stop() == []
    assert bench.say() == []


def test_bad_arguments_raise_at_once() -> None:
    from roskva.client.core import ClientCore

    with pytest.raises(InvalidApplication):
        ClientCore("No Such Name", "phone", random=lambda: 0.5, nonce=lambda: "n", config=CONFIG)
