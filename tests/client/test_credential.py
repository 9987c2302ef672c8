"""Who the user is (docs/protocol.md, Users and credentials): which messages say so, and what the core makes of the answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from roskva.client.actions import CredentialAccepted, CredentialWanted, RegistrationFailed, ReissueRegistrations, StatusChanged
from roskva.client.core import ClientCore
from roskva.client.credential import CHARACTERS_MAX, REFRESH
from roskva.errors import InvalidSetting
from roskva.protocol import messages
from roskva.protocol.messages import ClientMessage, Config, CredentialState, ErrorReport
from roskva.protocol.summaries import SetDigest
from tests.client.scripted import CONFIG, Bench, status

REQUIRED, REFUSED, EXPIRED = "credential-required", "credential-refused", "credential-expired"


def bench_of(text: str = "first", config: Config = CONFIG) -> Bench:
    bench = Bench(config=config)
    bench.core = ClientCore(
        "demo", "phone", random=lambda: bench.dice, nonce=lambda: f"nonce-{len(bench.said)}", config=config, credential=text
    )
    return bench


def want(bench: Bench, code: str = REFUSED, **fields: object) -> None:
    bench.say(summary=None, credential=CredentialState(wanted=True, code=code, message="Not so."), **fields)


def accept(bench: Bench, good_s: float = 0.0) -> None:
    bench.say(credential=CredentialState(good_s=good_s))


def carried(said: list[ClientMessage]) -> list[str]:
    return [message.credential for message in said]


def wanted(bench: Bench) -> list[str]:
    return [action.code for action in bench.actions if isinstance(action, CredentialWanted)]


class TestWhatCarriesIt:
    def test_every_init_and_no_message_after_it_over_the_same_connection(self) -> None:
        bench = bench_of()
        bench.start()
        bench.pass_time(5)
        assert set(carried(bench.said)) == {"first"}
        assert len(bench.said) > 1
        bench.grant()
        bench.register(b"a")
        assert carried(bench.take_said()[-2:]) == ["", ""]

    def test_the_first_message_over_each_connection(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        for _ in range(2):
            bench.do(bench.core.disconnected(bench.now))
            bench.do(bench.core.connected(bench.now))
            bench.register(b"b")
            bench.do(bench.core.unregister(bench.now, b"b"))
            assert carried(bench.take_said()) == ["first", "", ""]

    def test_a_new_one_at_once_alone_if_nothing_else_is_due(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        bench.do(bench.core.use_credential(bench.now, "second"))
        (said,) = bench.take_said()
        assert said == ClientMessage(token=bench.token, summary=SetDigest([b"a"]).summary(), credential="second")

    def test_a_new_one_while_an_init_is_unanswered(self) -> None:
        bench = bench_of("")
        bench.start()
        assert carried(bench.take_said()) == [""]
        bench.do(bench.core.use_credential(bench.now, "late"))
        (said,) = bench.take_said()
        assert said.init is not None
        assert said.credential == "late"

    def test_without_one_nothing_differs(self) -> None:
        plain, bench = Bench(), bench_of("")
        for one in (plain, bench):
            one.start()
        assert [message.credential for message in plain.said] == [""]
        assert b"credential" not in messages.encode(bench.said[0])
        assert bench.do(bench.core.use_credential(bench.now, "")) == []

    def test_given_up_it_is_not_shown_any_more(self) -> None:
        bench = bench_of().live()
        assert bench.do(bench.core.use_credential(bench.now, "")) == []
        bench.do(bench.core.connected(bench.now))
        assert carried(bench.take_said()) == [""]

    def test_there_is_room_for_it(self) -> None:
        config = Config(message_bytes_max=60_000, operations_per_message_max=100)
        bench = bench_of("\x00" * CHARACTERS_MAX, config).live()
        bench.do(bench.core.disconnected(bench.now))
        bench.register(*(b'"' * 120 + b"%02d" % number for number in range(40)))
        bench.do(bench.core.connected(bench.now))
        said = bench.take_said()
        assert carried(said)[0]
        assert sum(len(message.register) for message in said) == 40
        assert all(len(messages.encode(message)) <= 60_000 for message in said)

    @pytest.mark.parametrize("text", ["x" * (CHARACTERS_MAX + 1), 7, None])
    def test_what_cannot_be_one_is_refused_and_not_shown(self, text: object) -> None:
        with pytest.raises(InvalidSetting) as refused:
            bench_of(text)  # type: ignore[arg-type]  # that is what is tested
        assert "xx" not in str(refused.value)
        with pytest.raises(InvalidSetting):
            bench_of().core.use_credential(0.0, text)  # type: ignore[arg-type]


class TestWanted:
    def test_it_is_tried_again_with_pauses_that_grow_and_each_time_with_the_credential(self) -> None:
        bench = bench_of()
        bench.start()
        times = []
        for _ in range(12):
            assert carried(bench.take_said()) == ["first"]
            times.append(bench.now)
            want(bench, token="")
            assert bench.take_said() == [], "not at once"
            deadline = bench.core.next_deadline()
            assert deadline is not None
            bench.now = deadline
            bench.do(bench.core.tick(bench.now))
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses[0] >= CONFIG.retry_min_s
        assert pauses == sorted(pauses)
        assert pauses[-1] <= CONFIG.retry_max_s
        assert wanted(bench) == [REFUSED] * 12

    def test_of_a_living_session_everything_is_held_back_but_one_turn_at_a_time(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        bench.register(b"b")
        assert len(bench.take_said()) == 1
        want(bench, EXPIRED)
        bench.register(b"c")
        assert bench.take_said() == []
        bench.pass_time(CONFIG.retry_min_s - 0.01)
        assert bench.take_said() == []
        bench.pass_time(1.5)
        said = bench.take_said()
        assert carried(said)[0] == "first"
        assert not any(carried(said)[1:])
        assert len(said) <= 2
        bench.pass_time(600.0)
        assert 8 <= len([text for text in carried(bench.take_said()) if text]) <= 40, "an answer that is lost does not end it"

    def test_an_accepted_one_brings_everything_in_flight_at_once(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        bench.register(b"b")
        want(bench, EXPIRED)
        bench.take_said()
        bench.do(bench.core.use_credential(bench.now, "second"))
        (said,) = bench.take_said()
        assert said.credential == "second"
        assert [one.object for one in said.register] == ["b"]
        accept(bench)
        (said,) = bench.take_said()
        assert [one.object for one in said.register] == ["b"], "who knows which of them was the one that was accepted"
        assert bench.actions[-1] == CredentialAccepted(0.0)
        bench.has.add(b"b")
        bench.say(status=[status(b"b")])
        assert bench.core.in_sync(bench.now)

    def test_nothing_is_in_sync_while_it_is_wanted(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        assert bench.core.in_sync(bench.now)
        want(bench, EXPIRED)
        assert not bench.core.in_sync(bench.now)
        assert not bench.core.alive(bench.now)
        bench.say()  # a keepalive
        assert not bench.core.in_sync(bench.now)
        accept(bench)
        assert bench.core.in_sync(bench.now)

    def test_messages_refused_together_count_once(self) -> None:
        bench = bench_of().live()
        bench.register(b"a")
        for code in (EXPIRED, EXPIRED, REFUSED, REFUSED):
            want(bench, code)
        assert wanted(bench) == [EXPIRED, REFUSED]
        first = bench.core.next_deadline()
        want(bench, REFUSED)
        assert bench.core.next_deadline() == first

    def test_one_that_the_server_has_not_seen_is_shown_at_once_and_nobody_is_told(self) -> None:
        """Another Registrar has taken over, under a living connection."""
        bench = bench_of().live()
        bench.registered(b"a")
        bench.pass_time(60.0)
        bench.take_said()
        want(bench, REQUIRED)
        assert carried(bench.take_said()) == ["first"]
        assert wanted(bench) == []
        for _ in range(3):  # whatever else was under way
            want(bench, REQUIRED)
        assert bench.take_said() == [], "but not without end"
        assert wanted(bench) == []
        bench.pass_time(2.0)
        assert carried(bench.take_said()) == ["first"]
        want(bench, REQUIRED)
        assert wanted(bench) == [REQUIRED]

    def test_nor_is_it_shown_at_once_twice_within_a_pause(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        for _ in range(3):
            want(bench, REQUIRED)
            accept(bench)
        assert len(bench.take_said()) <= 3
        assert wanted(bench) == []

    def test_the_same_text_again_changes_nothing_while_it_is_wanted_and_is_shown_otherwise(self) -> None:
        bench = bench_of().live()
        bench.do(bench.core.use_credential(bench.now, "first"))
        assert carried(bench.take_said()) == ["first"], "a session of the application's own that was prolonged"
        want(bench)
        assert bench.do(bench.core.use_credential(bench.now, "first")) == []
        bench.do(bench.core.use_credential(bench.now, "second"))
        assert carried(bench.take_said()) == ["second"]

    def test_a_client_without_one_does_not_spin(self) -> None:
        bench = bench_of("")
        bench.start()
        inits = 0
        for _ in range(1_000):
            inits += len(bench.take_said())
            want(bench, REQUIRED, token="")
            deadline = bench.core.next_deadline()
            assert deadline is not None
            if deadline > 700.0:
                break
            bench.now = max(bench.now, deadline)
            bench.do(bench.core.tick(bench.now))
        assert 8 <= inits <= 40
        assert set(wanted(bench)) == {REQUIRED}

    def test_a_new_connection_does_not_shorten_the_pause(self) -> None:
        bench = bench_of().live()
        for _ in range(6):
            want(bench)
            bench.now = bench.core.next_deadline() or bench.now
            bench.do(bench.core.tick(bench.now))
        want(bench)
        bench.take_said()
        bench.do(bench.core.disconnected(bench.now))
        assert bench.core.next_deadline() is None
        bench.do(bench.core.connected(bench.now))
        assert bench.take_said() == []
        bench.pass_time(CONFIG.retry_max_s)
        assert "first" in carried(bench.take_said())

    def test_what_is_said_to_another_session_is_not_ours(self) -> None:
        bench = bench_of().live()
        want(bench, token="another")
        assert wanted(bench) == []
        assert bench.core.alive(bench.now)

    def test_another_user_is_a_new_client(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        bench.do(bench.core.use_credential(bench.now, "of somebody else"))
        bench.take_said()
        bench.anew()
        (said,) = bench.take_said()
        assert said.init is not None
        assert (said.init.prior, said.credential) == (None, "of somebody else")
        assert any(isinstance(action, ReissueRegistrations) for action in bench.actions)
        bench.has.clear()
        bench.said.append(said)
        bench.grant("token-2", credential=CredentialState(good_s=60.0))
        sync = bench.take_said()[-1].sync
        assert sync is not None
        assert [one.object for one in sync.objects or []] == ["a"]

    def test_an_error_beside_it_keeps_its_own_pause(self) -> None:
        bench = bench_of().live()
        bench.say(summary=None, error=ErrorReport(code="unavailable", message="", transient=True, retry_after_s=30.0))
        want(bench)
        bench.take_said()
        bench.pass_time(2.5)
        assert [bool(message.register or message.sync) for message in bench.take_said()] == [False], "a heartbeat that shows it"


class TestRefresh:
    @pytest.mark.parametrize(("dice", "part"), [(0.0, 0.7), (0.5, 0.8), (1.0, 0.9)])
    def test_another_is_asked_for_once_before_it_ends(self, dice: float, part: float) -> None:
        bench = bench_of().live()
        bench.dice = dice
        accept(bench, 600.0)
        assert bench.actions == [CredentialAccepted(600.0)]
        bench.pass_time(600.0 * part - 0.1)
        assert wanted(bench) == []
        bench.pass_time(0.2)
        assert wanted(bench) == [REFRESH]
        assert not bench.core.credential.stale(bench.now)
        assert bench.core.alive(bench.now)
        bench.pass_time(400.0)
        assert wanted(bench) == [REFRESH]
        assert bench.core.credential.stale(bench.now)
        bench.take_said()
        bench.do(bench.core.use_credential(bench.now, "second"))
        assert carried(bench.take_said()) == ["second"]
        assert not bench.core.credential.stale(bench.now)
        accept(bench, 100.0)
        bench.pass_time(100.0)
        assert wanted(bench) == [REFRESH] * 2

    def test_the_deadline_is_told(self) -> None:
        bench = bench_of().live()
        accept(bench, 10.0)
        assert bench.core.next_deadline() == bench.now + 8.0

    def test_one_that_is_good_for_no_time_at_all_does_not_spin(self) -> None:
        bench = bench_of().live()
        accept(bench, 0.001)
        assert bench.core.next_deadline() == bench.now + CONFIG.retry_min_s

    def test_one_that_is_good_for_the_session_is_never_asked_for(self) -> None:
        bench = bench_of().live()
        accept(bench)
        bench.pass_time(100_000.0)
        assert wanted(bench) == []


class TestRevoked:
    def test_a_registration_that_stood_is_ended_and_the_summaries_agree(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a", b"b")
        bench.has.discard(b"a")
        bench.say(status=[status(b"a", "failed", code="not-authorized", message="No more.")])
        assert bench.actions == [StatusChanged(b"a", registered=False), RegistrationFailed(b"a", False, "not-authorized", "No more.")]
        assert bench.core.desired.summary() == SetDigest([b"b"]).summary()
        assert bench.core.in_sync(bench.now)
        bench.pass_time(1500.0)
        said = bench.take_said()
        assert not any(message.register or message.unregister or message.sync for message in said)
        assert {message.summary for message in said} == {SetDigest([b"b"]).summary()}

    def test_what_comes_for_it_later_is_nobodys(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a")
        bench.has.clear()
        bench.say(status=[status(b"a", "failed", code="not-authorized")])
        bench.notify(b"a", 7)
        assert bench.shown() == []
        assert bench.take_said() == []
        bench.register(b"a")
        assert [one.object for one in bench.take_said()[-1].register] == ["a"], "the application may try again"

    def test_one_that_never_stood_failed_as_before(self) -> None:
        bench = bench_of().live()
        bench.register(b"a")
        bench.say(status=[status(b"a", "failed", code="not-authorized")])
        assert bench.actions == [RegistrationFailed(b"a", False, "not-authorized", "")]
        assert bench.core.in_sync(bench.now)

    def test_if_the_word_is_lost_the_sync_brings_it(self) -> None:
        bench = bench_of().live()
        bench.registered(b"a", b"b")
        bench.has.discard(b"a")
        bench.say()
        sync = bench.take_said()[-1].sync
        assert sync is not None
        assert {one.object for one in sync.objects or []} == {"a", "b"}
        bench.say(status=[status(b"a", "failed", code="not-authorized")])
        assert bench.core.in_sync(bench.now)
        assert bench.statuses() == [(b"a", False)]
