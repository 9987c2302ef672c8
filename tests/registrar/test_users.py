"""Users at the Registrar: who is let in, what it may register for and hear, and what is ended when it may no longer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roskva.access import Identity
from roskva.config import ApplicationSettings, Settings
from roskva.errors import (
    AuthorizationUnavailable,
    CredentialExpired,
    CredentialRefused,
    CredentialRequired,
    NotAuthorized,
    RateLimited,
    TokenElsewhere,
    TokenInvalid,
)
from roskva.model import OUTCOME_UNREGISTERED, OUTCOME_UPDATE, SETTLED, Registration, name_of
from roskva.protocol.messages import ClientMessage, Init, Register, ServerMessage, Sync, SyncObject
from roskva.protocol.summaries import SetDigest
from roskva.registrar.sessions import Session
from roskva.registrar.users import RENEWALS_AT_ONCE
from tests.registrar.place import Clock, HeldChannel, Place, serving, told

ASKING = ApplicationSettings(authentication="webhook", authentication_webhook="http://127.0.0.1:9/who", registrable=("*",))
NOW_S = 1_800_000_000.0


class Book:
    """Decides as the test says: credentials are names of users, and `allowed` lists objects by user."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.good_s = math.inf
        self.claims: dict[str, dict[str, Any]] = {}
        self.allowed: dict[str, set[str]] = {}
        self.known_now = True  # else whoever is asked without waiting does not know
        self.answers = True
        self.identified: list[str] = []
        self.asked: list[Sequence[str]] = []
        self.revoked: set[str] = set()
        self.forgotten: list[str] = []

    async def identify(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity:
        await asyncio.sleep(0)
        self.identified.append(credential)
        user, _, state = credential.partition("/")
        if not user:
            raise CredentialRequired(application)
        if state == "forged" or user in self.revoked:
            raise CredentialRefused("The credential's signature is wrong.")
        return Identity(user=user, claims=dict(self.claims.get(credential, {})), issued_s=0.0, until_s=self.clock() + self.good_s)

    def is_revoked(self, settings: ApplicationSettings, identity: Identity) -> bool:
        return identity.user in self.revoked

    def may(self, identity: Identity, name: str) -> bool:
        objects = self.allowed.get(identity.user)
        return objects is None or name in objects

    def known(self, application: str, settings: ApplicationSettings, identity: Identity, device: str, name: str) -> bool | None:
        return self.may(identity, name) if self.known_now else None

    async def ask(
        self, application: str, settings: ApplicationSettings, identity: Identity, device: str, names: Sequence[str]
    ) -> dict[str, bool]:
        await asyncio.sleep(0)
        self.asked.append(names)
        if not self.answers:
            raise AuthorizationUnavailable("Nobody answers.")
        return {name: self.may(identity, name) for name in names}

    def forget(self, application: str, user: str | None = None) -> None:
        self.forgotten.append(application)


class Hall(Place):
    """A Registrar whose application `demo` asks who its users are."""

    def __init__(self, settings: Settings) -> None:
        self.wall = Clock(NOW_S)
        self.book = Book(self.wall)
        super().__init__(replace(settings, applications={"demo": ASKING}), wall_clock=self.wall)
        self.registrar.users._access = self.book

    async def enter(self, channel: HeldChannel, user: str, device: str = "d1", prior: str | None = None) -> str:
        nonce = f"n{len(channel.received)}"
        init = Init(nonce=nonce, application="demo", device=device, prior=prior)
        self.say(channel, ClientMessage(init=init, credential=user))
        granted = await channel.until(lambda m: m.grant and m.grant.nonce == nonce)
        assert granted.grant is not None
        token = granted.grant.token
        self.say(channel, ClientMessage(token=token, summary=SetDigest().summary()))
        await channel.until(lambda m: m.token == token and not m.grant)
        return token

    async def registered(self, channel: HeldChannel, token: str, name: str, op: int = 1) -> Registration:
        return await self.register(channel, token, name, op)


@pytest.fixture
async def hall(tmp_path: Path) -> AsyncIterator[Hall]:
    async with _hall(tmp_path) as place:
        yield place


@asynccontextmanager
async def _hall(folder: Path) -> AsyncIterator[Hall]:
    place = Hall(Settings(data=folder, settling_s=0.0))
    async with serving(place):
        yield place


def wants(message: ServerMessage, code: str) -> bool:
    return message.credential is not None and message.credential.wanted and message.credential.code == code


async def test_without_a_credential_nothing_is_granted(hall: Hall) -> None:
    channel = HeldChannel()
    hall.say(channel, ClientMessage(init=Init(nonce="n", application="demo", device="d")))
    refused = await channel.until(lambda m: m.credential)
    assert wants(refused, CredentialRequired.code)
    assert refused.grant is None
    hall.say(channel, ClientMessage(init=Init(nonce="n2", application="demo", device="d"), credential="ann/forged"))
    await channel.until(lambda m: wants(m, CredentialRefused.code))
    assert hall.registrar.counters.credentials_refused == 2
    assert not any(message.grant for message in channel.received)


async def test_a_grant_names_the_user_and_how_long_its_credential_is_good(hall: Hall) -> None:
    hall.book.good_s = 600.0
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    granted = await channel.until(lambda m: m.grant)
    assert granted.credential is not None
    assert granted.credential.good_s == 600.0
    assert hall.claims(token).user == "ann"
    created = hall.row(token).created
    assert created is not None
    assert (created.user, created.device) == ("ann", "d1")
    assert hall.book.identified == ["ann"], "the handshake's own channel need not show it twice"


async def test_the_ids_of_one_user_end_alike(hall: Hall) -> None:
    ann = [hall.client(await hall.enter(HeldChannel(), "ann", f"d{one}")) for one in range(2)]
    bob = hall.client(await hall.enter(HeldChannel(), "bob", "d9"))
    assert ann[0] != ann[1]
    assert ann[0].rpartition(".")[2] == ann[1].rpartition(".")[2] != bob.rpartition(".")[2]


async def test_another_user_on_the_same_device_is_another_client(hall: Hall) -> None:
    first = await hall.enter(HeldChannel(), "ann")
    second = await hall.enter(HeldChannel(), "bob", prior=first)
    again = await hall.enter(HeldChannel(), "ann", prior=first)
    assert hall.client(first) != hall.client(second)
    assert hall.client(first) == hall.client(again)


async def test_a_token_alone_opens_nothing(hall: Hall) -> None:
    token = await hall.enter(HeldChannel(), "ann")
    thief = HeldChannel()
    hall.say(thief, ClientMessage(token=token, register=[Register(op=1, object="secret")]))
    await thief.until(lambda m: wants(m, CredentialRequired.code))
    hall.say(thief, ClientMessage(token=token, credential="mallory"))
    refused = await thief.until(lambda m: m.start_anew)
    assert refused.start_anew is not None
    assert (refused.start_anew.code, refused.start_anew.keep) == (TokenInvalid.code, False)
    assert hall.events() == []


async def test_the_same_user_moves_to_another_channel(hall: Hall) -> None:
    token = await hall.enter(HeldChannel(), "ann")
    other = HeldChannel()
    hall.say(other, ClientMessage(token=token, summary=SetDigest().summary(), credential="ann"))
    welcome = await other.until(lambda m: m.credential)
    assert welcome.credential is not None
    assert not welcome.credential.wanted


async def test_an_announced_session_is_asked_for_its_credential(hall: Hall) -> None:
    token = await hall.enter(HeldChannel(), "ann")
    other = HeldChannel()
    hall.registrar.sessions.clear()  # as after a change of owners
    hall.registrar.announce(other, hall.claims(token), token)
    await other.until(lambda m: wants(m, CredentialRequired.code))
    assert not hall.registrar.sessions


async def test_who_may_not_register_is_refused_for_good(hall: Hall) -> None:
    hall.book.allowed["ann"] = {"mine"}
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    hall.say(channel, ClientMessage(token=token, register=[Register(op=1, object="mine"), Register(op=2, object="yours")]))
    answer = await channel.until(lambda m: m.status)
    assert [(one.object, one.state, one.transient, one.code) for one in answer.status] == [("yours", "failed", False, NotAuthorized.code)]
    async with asyncio.timeout(15):
        while not hall.events():
            await asyncio.sleep(0.005)
    assert [name_of(event.object) for event in hall.events()] == [b"mine"]
    assert hall.registrar.counters.not_authorized == 1


@pytest.mark.parametrize("spelled", ["base64:eW91cnM", "yours"])
async def test_another_spelling_of_a_name_opens_nothing(hall: Hall, spelled: str) -> None:
    """`base64:eW91cnM` is `yours`."""
    hall.book.allowed["ann"] = {"mine"}
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    hall.say(channel, ClientMessage(token=token, register=[Register(op=1, object=spelled)]))
    answer = await channel.until(lambda m: m.status)
    assert answer.status[0].code == NotAuthorized.code
    assert hall.book.asked[-1] == ["yours"]
    assert hall.events() == []


async def test_a_sync_registers_only_what_is_allowed(hall: Hall) -> None:
    hall.book.allowed["ann"] = {"mine"}
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    stated = Sync(op=1, objects=[SyncObject(object="mine"), SyncObject(object="yours")])
    hall.say(channel, ClientMessage(token=token, sync=stated))
    answer = await channel.until(lambda m: m.status)
    assert [one.object for one in answer.status] == ["yours"]
    mine = SetDigest()
    mine.add(b"mine")
    await channel.until(lambda m: m.summary == mine.summary())


async def test_while_nobody_decides_a_registration_waits(hall: Hall) -> None:
    hall.book.answers = False
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    hall.say(channel, ClientMessage(token=token, register=[Register(op=1, object="x")]))
    answer = await channel.until(lambda m: m.error)
    assert answer.error is not None
    assert (answer.error.code, answer.error.transient) == (AuthorizationUnavailable.code, True)
    assert hall.events() == []
    hall.book.answers = True
    await hall.registered(channel, token, "x", op=2)


async def test_a_notification_waits_until_somebody_says_that_it_may_be_heard(hall: Hall) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    event = await hall.registered(channel, token, "x")
    hall.book.known_now = hall.book.answers = False
    assert await hall.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    assert hall.row(token).waits, "it is durable, so that the feed may go on"
    await asyncio.sleep(0.5)
    assert not any(message.notify for message in channel.received)
    hall.book.known_now = hall.book.answers = True
    told_of = await channel.until(lambda m: m.notify)
    assert told_of.notify[0].version == "7"


async def test_what_may_not_be_heard_any_more_is_ended(hall: Hall) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    event = await hall.registered(channel, token, "x")
    hall.book.allowed["ann"] = set()
    assert await hall.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    ended = await channel.until(lambda m: m.status)
    assert (ended.status[0].object, ended.status[0].state, ended.status[0].code) == ("x", "failed", NotAuthorized.code)
    assert not ended.status[0].transient
    assert ended.summary == SetDigest().summary(), "so that the client's and the service's agree"
    assert not any(message.notify for message in channel.received)
    last = max(hall.events(), key=lambda one: one.seqno)
    assert not last.registered, "the Matcher hears of it, too"
    assert hall.registrar.counters.revoked == 1
    assert await hall.registrar.propagate([told(last, OUTCOME_UNREGISTERED)]) == [SETTLED]


async def test_an_expired_credential_hears_nothing_until_it_is_renewed(hall: Hall) -> None:
    hall.book.good_s = 60.0
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    event = await hall.registered(channel, token, "x")
    hall.wall.now_s += 61.0
    assert await hall.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    await channel.until(lambda m: wants(m, CredentialExpired.code))
    hall.say(channel, ClientMessage(token=token, register=[Register(op=2, object="y")]))
    await asyncio.sleep(0.4)
    assert not any(message.notify for message in channel.received)
    assert len(hall.events()) == 1, "nor is anything registered"
    hall.say(channel, ClientMessage(token=token, credential="ann"))
    told_of = await channel.until(lambda m: m.notify)
    assert told_of.notify[0].version == "7"
    assert hall.client(token) in hall.registrar.sessions
    assert hall.row(token).standing(event.object) == (event.seqno, True), "a refresh disturbs no registration"


async def test_a_new_credential_that_allows_less_ends_what_it_does_not_allow(hall: Hall) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    await hall.registered(channel, token, "x")
    await hall.registered(channel, token, "y", op=2)
    hall.book.allowed["ann"] = {"y"}
    hall.book.claims["ann/less"] = {"docs": ["y"]}
    hall.say(channel, ClientMessage(token=token, credential="ann/less"))
    ended = await channel.until(lambda m: m.status)
    assert [one.object for one in ended.status] == ["x"]


async def test_a_renewal_that_changes_only_its_dates_looks_at_nothing(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    await asyncio.sleep(0.05)
    checks: list[Session] = []
    monkeypatch.setattr(hall.registrar.users, "check_soon", checks.append)
    for number in range(3):
        hall.book.claims[f"ann/{number}"] = {"exp": number, "iat": number, "jti": str(number)}
        hall.say(channel, ClientMessage(token=token, credential=f"ann/{number}"))
    await channel.until(lambda m: m.credential and len(hall.book.identified) == 4)
    assert checks == []


async def test_registrations_are_looked_at_once_however_often_rights_change(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    await asyncio.sleep(0.05)
    users, session = hall.registrar.users, hall.registrar.sessions[hall.client(token)]
    begun = []
    going_on = asyncio.Event()

    async def check(one: Session) -> None:
        begun.append(one)
        await going_on.wait()

    monkeypatch.setattr(users, "check", check)
    for _ in range(100):
        users.check_soon(session)
    await asyncio.sleep(0.02)
    assert len(begun) == 1
    going_on.set()
    await asyncio.sleep(0.02)
    assert len(begun) == 2, "and once more, since something changed meanwhile"


async def test_renewals_of_one_client_have_a_rate(hall: Hall) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    for _ in range(30):
        hall.say(channel, ClientMessage(token=token, credential="ann/forged"))
    limited = await channel.until(lambda m: m.error)
    assert limited.error is not None
    assert (limited.error.code, limited.error.transient) == (RateLimited.code, True)
    assert limited.error.retry_after_s > 0
    await asyncio.sleep(0.05)
    assert len(hall.book.identified) <= 1 + RENEWALS_AT_ONCE


async def test_a_session_that_returns_with_less_loses_what_it_had(hall: Hall) -> None:
    token = await hall.enter(first := HeldChannel(), "ann")
    await hall.registered(first, token, "x")
    hall.registrar.closed(first)
    hall.book.allowed["ann"] = set()
    again = HeldChannel()
    await hall.enter(again, "ann", prior=token)
    ended = await again.until(lambda m: m.status)
    assert [(one.object, one.code) for one in ended.status] == [("x", NotAuthorized.code)]


async def test_a_credential_of_another_user_ends_the_session(hall: Hall) -> None:
    channel = HeldChannel()
    token = await hall.enter(channel, "ann")
    hall.say(channel, ClientMessage(token=token, credential="bob"))
    refused = await channel.until(lambda m: m.start_anew)
    assert refused.start_anew is not None
    assert not refused.start_anew.keep
    assert hall.client(token) not in hall.registrar.sessions


class TestSettingsThatChange:
    async def test_a_revoked_user_is_told_and_hears_nothing_more(self, hall: Hall) -> None:
        channel = HeldChannel()
        token = await hall.enter(channel, "ann")
        event = await hall.registered(channel, token, "x")
        hall.book.revoked.add("ann")
        self._change(hall, replace(ASKING, revoked_users=("ann@1800000000",)))
        await channel.until(lambda m: wants(m, CredentialRefused.code))
        assert hall.client(token) not in hall.registrar.sessions
        assert await hall.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
        hall.say(channel, ClientMessage(token=token, credential="ann"))
        await asyncio.sleep(0.1)
        assert not any(message.notify for message in channel.received)
        assert hall.book.forgotten == ["demo"]

    async def test_fewer_patterns_end_registrations(self, hall: Hall) -> None:
        channel = HeldChannel()
        token = await hall.enter(channel, "ann")
        await hall.registered(channel, token, "x")
        hall.book.allowed["ann"] = set()
        self._change(hall, replace(ASKING, registrable=("news:*",)))
        ended = await channel.until(lambda m: m.status)
        assert ended.status[0].code == NotAuthorized.code

    @pytest.mark.parametrize("registrable", [("*",), ("news:*",)])
    async def test_who_came_unasked_comes_again_when_users_are_asked_for(self, tmp_path: Path, registrable: tuple[str, ...]) -> None:
        open_to_all = {"demo": ApplicationSettings(registrable=registrable)}
        async with serving(Place(Settings(data=tmp_path, settling_s=0.0, applications=open_to_all))) as place:
            place.registrar.users._access = Book(Clock(NOW_S))
            channel = HeldChannel()
            await place.start_client(channel)
            place.registrar.users.applications_changed(open_to_all, {"demo": ASKING})
            refused = await channel.until(lambda m: m.start_anew)
            assert refused.start_anew is not None
            assert (refused.start_anew.code, refused.start_anew.keep) == (TokenElsewhere.code, True)

    async def test_an_application_that_is_gone_takes_its_sessions_along(self, hall: Hall) -> None:
        channel = HeldChannel()
        await hall.enter(channel, "ann")
        hall.registrar.users.applications_changed({"demo": ASKING}, {})
        refused = await channel.until(lambda m: m.start_anew)
        assert refused.start_anew is not None
        assert not refused.start_anew.keep
        assert not hall.registrar.sessions

    @staticmethod
    def _change(hall: Hall, settings: ApplicationSettings) -> None:
        applications: Mapping[str, ApplicationSettings] = {"demo": settings}
        hall.registrar.users.applications_changed({"demo": ASKING}, applications)


async def test_patterns_count_for_anybody_too(tmp_path: Path) -> None:
    """An application may let everybody in, and still say what there is to register for."""
    applications = {"demo": ApplicationSettings(registrable=("news:*",))}
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0, applications=applications))) as place:
        clock = Clock(NOW_S)
        place.registrar.users._access = book = Book(clock)
        book.allowed[""] = {"news:1"}
        channel = HeldChannel()
        token = await place.start_client(channel)
        place.say(channel, ClientMessage(token=token, register=[Register(op=1, object="secret")]))
        answer = await channel.until(lambda m: m.status)
        assert answer.status[0].code == NotAuthorized.code
        assert book.identified == []
