"""Who a client's user is, verified here or asked of the application's own service; and users whose access was revoked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from roskva.access import credentials as module
from roskva.access.credentials import Credentials
from roskva.access.identity import Identity
from roskva.access.jwt_keys import FetchedKeys
from roskva.access.webhooks import FAILURES_MAX
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, CredentialExpired, CredentialRefused, CredentialRequired
from tests.access.service import NOW_S, Answer, Clock, Service, answering, jwk, pem, serving, token


@pytest.fixture
async def credentials(clock: Clock) -> AsyncIterator[Credentials]:
    credentials = Credentials(clock)
    yield credentials
    await credentials.close()


@pytest.fixture
def by_jwt(tmp_path: Path, ed_key: Ed25519PrivateKey) -> ApplicationSettings:
    (tmp_path / "keys").write_bytes(pem(ed_key))
    return ApplicationSettings(authentication="jwt", jwt_keys=str(tmp_path / "keys"))


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving(answering({"user": "alice"})) as service:
        yield service


@pytest.fixture
def by_webhook(service: Service) -> ApplicationSettings:
    return ApplicationSettings(authentication="webhook", authentication_webhook=service.url)


async def identify(credentials: Credentials, settings: ApplicationSettings, credential: str = "secret", device: str = "phone") -> Identity:
    return await credentials.identify("shop", settings, device, credential)


async def test_where_nobody_is_asked_nobody_asks(credentials: Credentials) -> None:
    with pytest.raises(AssertionError):
        await identify(credentials, ApplicationSettings())


async def test_without_a_credential_one_is_required(
    credentials: Credentials, by_jwt: ApplicationSettings, by_webhook: ApplicationSettings, service: Service
) -> None:
    for settings in (by_jwt, by_webhook):
        with pytest.raises(CredentialRequired, match="shop"):
            await identify(credentials, settings, "")
    assert service.asked == []


async def test_by_jwt(credentials: Credentials, by_jwt: ApplicationSettings, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    assert (await identify(credentials, by_jwt, token(ed_key))).user == "alice"
    clock.now_s += 4_000
    with pytest.raises(CredentialExpired):
        await identify(credentials, by_jwt, token(ed_key))


async def test_a_verifier_is_kept_until_the_settings_are_read_again(
    credentials: Credentials, by_jwt: ApplicationSettings, ed_key: Ed25519PrivateKey
) -> None:
    await identify(credentials, by_jwt, token(ed_key))
    first = credentials._verifiers["shop"]
    await identify(credentials, by_jwt, token(ed_key))
    assert credentials._verifiers["shop"] is first
    with pytest.raises(CredentialRefused, match="iss"):
        await identify(credentials, replace(by_jwt, jwt_issuer="https://id.example"), token(ed_key))
    assert credentials._verifiers["shop"] is not first


async def test_a_reload_does_not_fetch_keys_again_that_are_the_same(
    credentials: Credentials, service: Service, ed_key: Ed25519PrivateKey
) -> None:
    """Or a service of keys that is down would shut everybody out at the next change of any setting."""
    service.answer = answering({"keys": [jwk(ed_key.public_key())]})
    settings = ApplicationSettings(authentication="jwt", jwt_keys=service.url)
    await identify(credentials, settings, token(ed_key))
    service.answer = answering({}, 500)
    changed = replace(settings, heartbeat_s=100.0)
    assert (await identify(credentials, changed, token(ed_key))).user == "alice"
    assert len(service.asked) == 1
    before = credentials._verifiers["shop"].keys
    with pytest.raises(AuthorizationUnavailable):
        await identify(credentials, replace(changed, jwt_keys=service.url + "/2"), token(ed_key))
    assert isinstance(before, FetchedKeys)
    assert before._closed


async def test_settings_that_cannot_verify_anybody_refuse_nobody(
    credentials: Credentials, by_jwt: ApplicationSettings, ed_key: Ed25519PrivateKey, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the operator's fault: a client must not think that its user has to sign in again."""
    broken = replace(by_jwt, jwt_keys="/nowhere/at/all")
    for _ in range(5):
        with pytest.raises(AuthorizationUnavailable) as caught:
            await identify(credentials, broken, token(ed_key))
        assert "/nowhere" not in str(caught.value)
    assert len([record for record in caplog.records if "/nowhere/at/all" in record.getMessage()]) == 1
    assert (await identify(credentials, by_jwt, token(ed_key))).user == "alice"


# By webhook.


async def test_by_webhook(credentials: Credentials, by_webhook: ApplicationSettings, service: Service) -> None:
    service.answer = answering({"user": "alice", "claims": {"org": 7}, "expires_s": 600})
    identity = await identify(credentials, by_webhook)
    assert service.asked == [{"application": "shop", "device": "phone", "credential": "secret"}]
    assert identity == Identity(user="alice", claims={"org": 7, "sub": "alice"}, issued_s=NOW_S, until_s=NOW_S + 600)


async def test_patterns_see_the_user_and_not_what_claims_say_about_him(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service
) -> None:
    service.answer = answering({"user": "alice", "claims": {"sub": "root"}})
    assert (await identify(credentials, by_webhook)).claims == {"sub": "alice"}


async def test_it_counts_for_no_longer_than_the_settings_say(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service
) -> None:
    assert (await identify(credentials, replace(by_webhook, credential_s_max=100.0))).until_s == NOW_S + 100
    service.answer = answering({"user": "alice", "expires_s": 1e9})
    assert (await identify(credentials, by_webhook, "another")).until_s == NOW_S + by_webhook.credential_s_max


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal(status: int, credentials: Credentials, by_webhook: ApplicationSettings, service: Service) -> None:
    service.answer = answering({}, status)
    with pytest.raises(CredentialRefused) as caught:
        await identify(credentials, by_webhook, "tops3cret")
    assert "tops3cret" not in str(caught.value)


async def no_json(_request: web.Request, _body: Any) -> web.Response:
    return web.Response(text="yes")


@pytest.mark.parametrize(
    "answer",
    [
        answering({}, 500),
        answering({}, 404),
        no_json,
        answering({}),
        answering([]),
        answering({"user": 7}),
        answering({"user": "alice", "claims": []}),
        answering({"user": "alice", "expires_s": 0}),
        answering({"user": "alice", "expires_s": -1}),
        answering({"user": "alice", "expires_s": "60"}),
    ],
)
async def test_no_answer_is_neither_yes_nor_no(
    answer: Answer, credentials: Credentials, by_webhook: ApplicationSettings, service: Service
) -> None:
    service.answer = answer
    with pytest.raises(AuthorizationUnavailable):
        await identify(credentials, by_webhook)
    service.answer = answering({"user": "alice"})
    assert (await identify(credentials, by_webhook)).user == "alice"


@pytest.mark.parametrize("user", ["", "x" * 257, "a\nb"])
async def test_users_that_cannot_be(user: str, credentials: Credentials, by_webhook: ApplicationSettings, service: Service) -> None:
    service.answer = answering({"user": user})
    with pytest.raises(CredentialRefused):
        await identify(credentials, by_webhook)


async def test_which_webhook_must_be_said(credentials: Credentials) -> None:
    with pytest.raises(AuthorizationUnavailable):
        await identify(credentials, ApplicationSettings(authentication="webhook"))


@pytest.mark.parametrize("credential", ["x" * 8_193, "ä" * 4_097, "\ud800"])
async def test_what_is_too_long_or_no_text_is_refused_before_anybody_is_asked(
    credential: str, credentials: Credentials, by_webhook: ApplicationSettings, by_jwt: ApplicationSettings, service: Service
) -> None:
    for settings in (by_webhook, by_jwt):
        with pytest.raises(CredentialRefused):
            await identify(credentials, settings, credential)
    assert service.asked == []


async def test_an_answer_counts_for_a_minute(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service, clock: Clock
) -> None:
    first = await identify(credentials, by_webhook)
    clock.now_s += 59
    assert await identify(credentials, by_webhook) == first
    assert len(service.asked) == 1
    clock.now_s += 1
    assert (await identify(credentials, by_webhook)).issued_s == NOW_S + 60
    assert len(service.asked) == 2


async def test_an_answer_counts_for_no_longer_than_it_says(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service, clock: Clock
) -> None:
    service.answer = answering({"user": "alice", "expires_s": 5})
    await identify(credentials, by_webhook)
    clock.now_s += 5
    assert (await identify(credentials, by_webhook)).until_s == NOW_S + 10
    assert len(service.asked) == 2


async def test_an_answer_is_for_one_credential_of_one_device_of_one_application(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service
) -> None:
    await identify(credentials, by_webhook)
    await identify(credentials, by_webhook, credential="other")
    await identify(credentials, by_webhook, device="tablet")
    await credentials.identify("news", by_webhook, "phone", "secret")
    await identify(credentials, replace(by_webhook, authentication_webhook=service.url + "/other"))
    assert len(service.asked) == 5


async def test_refusals_are_not_kept(credentials: Credentials, by_webhook: ApplicationSettings, service: Service) -> None:
    service.answer = answering({}, 403)
    with pytest.raises(CredentialRefused):
        await identify(credentials, by_webhook)
    service.answer = answering({"user": "alice"})
    assert (await identify(credentials, by_webhook)).user == "alice"


async def test_answers_are_bounded_and_hold_no_credential(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERS_MAX", 3)
    for number in range(10):
        await identify(credentials, by_webhook, f"tops3cret {number}")
    assert len(credentials._answers) == 3
    assert "tops3cret" not in repr(credentials._answers)
    await identify(credentials, by_webhook, "tops3cret 9")
    assert len(service.asked) == 10
    await identify(credentials, by_webhook, "tops3cret 0")
    assert len(service.asked) == 11


# Revocation.


@pytest.mark.parametrize(
    ("revoked", "refused"),
    [
        ((), False),
        ((f"alice@{NOW_S - 30:.0f}",), False),  # issued at the very second from which on the clocks may differ by no more
        ((f"alice@{NOW_S - 29:.0f}",), True),
        ((f"alice@{NOW_S + 1:.0f}",), True),
        ((f"bob@{NOW_S + 1:.0f}",), False),
        ((f"alice@{NOW_S + 1:.0f}", "alice@5"), True),
        (("alice@5", f"alice@{NOW_S + 1:.0f}"), True),
        ((f"alice@x@{NOW_S + 1:.0f}",), False),
    ],
)
async def test_a_revoked_user(
    revoked: tuple[str, ...], refused: bool, credentials: Credentials, by_jwt: ApplicationSettings, ed_key: Ed25519PrivateKey
) -> None:
    settings = replace(by_jwt, revoked_users=revoked)
    identity = Identity(user="alice", claims={}, issued_s=NOW_S, until_s=NOW_S + 60)
    assert credentials.is_revoked(settings, identity) == refused
    if refused:
        with pytest.raises(CredentialRefused, match="was revoked"):
            await identify(credentials, settings, token(ed_key))
    else:
        assert (await identify(credentials, settings, token(ed_key))).user == "alice"


async def test_a_user_whose_name_is_an_address(credentials: Credentials, by_jwt: ApplicationSettings, ed_key: Ed25519PrivateKey) -> None:
    settings = replace(by_jwt, revoked_users=(f"alice@shop.example@{NOW_S + 1:.0f}",))
    with pytest.raises(CredentialRefused, match="was revoked"):
        await identify(credentials, settings, token(ed_key, sub="alice@shop.example"))


async def test_a_later_token_counts_and_one_without_a_time_does_not(
    credentials: Credentials, by_jwt: ApplicationSettings, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    settings = replace(by_jwt, revoked_users=(f"alice@{NOW_S + 10:.0f}",))
    clock.now_s += 50
    assert (await identify(credentials, settings, token(ed_key, iat=NOW_S + 45))).user == "alice"
    with pytest.raises(CredentialRefused, match="was revoked"):
        await identify(credentials, settings, token(ed_key, iat=None))


@pytest.mark.parametrize("leeway_s", [0.0, 30.0, 300.0])
async def test_a_clock_that_is_ahead_lets_no_token_outlast_its_revocation(
    leeway_s: float, credentials: Credentials, by_jwt: ApplicationSettings, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    """`roskva user revoke` writes the next second; a token of this moment may say that it was issued the leeway later."""
    settings = replace(by_jwt, jwt_leeway_s=leeway_s)
    before = token(ed_key, iat=NOW_S + leeway_s)
    identity = await identify(credentials, settings, before)
    revoked = replace(settings, revoked_users=(f"alice@{NOW_S + 1:.0f}",))
    for _ in range(3):
        assert credentials.is_revoked(revoked, identity)
        with pytest.raises(CredentialRefused, match="was revoked"):
            await identify(credentials, revoked, before)
        clock.now_s += leeway_s + 1
    assert (await identify(credentials, revoked, token(ed_key, iat=NOW_S + leeway_s + 1))).user == "alice"


async def test_where_a_webhook_says_who_it_is_there_is_one_clock(credentials: Credentials, by_webhook: ApplicationSettings) -> None:
    identity = await identify(credentials, by_webhook)
    assert not credentials.is_revoked(replace(by_webhook, revoked_users=(f"alice@{NOW_S:.0f}",)), identity)
    assert credentials.is_revoked(replace(by_webhook, revoked_users=(f"alice@{NOW_S + 1:.0f}",)), identity)


@pytest.mark.parametrize("status", [400, 404, 422, 302])
async def test_who_sends_nonsense_shuts_out_nobody(
    status: int, credentials: Credentials, by_webhook: ApplicationSettings, service: Service
) -> None:
    """Many services answer a credential that they cannot read with another status than 401 and 403."""

    async def who(_request: web.Request, body: Any) -> web.Response:
        return web.json_response({"user": "alice"}) if body["credential"] == "good" else web.Response(status=status)

    service.answer = who
    for number in range(2 * FAILURES_MAX):
        with pytest.raises(AuthorizationUnavailable) as caught:
            await identify(credentials, by_webhook, f"nonsense {number}")
        assert caught.value.answered == status
    assert (await identify(credentials, by_webhook, "good")).user == "alice"


async def test_a_revocation_makes_the_webhook_be_asked_again(
    credentials: Credentials, by_webhook: ApplicationSettings, service: Service, clock: Clock
) -> None:
    before = await identify(credentials, by_webhook)
    clock.now_s += 10
    revoked = replace(by_webhook, revoked_users=(f"alice@{NOW_S + 5:.0f}",))
    assert credentials.is_revoked(revoked, before)
    after = await identify(credentials, revoked)
    assert len(service.asked) == 2
    assert not credentials.is_revoked(revoked, after)
    service.answer = answering({}, 403)
    clock.now_s += 10
    with pytest.raises(CredentialRefused):
        await identify(credentials, replace(by_webhook, revoked_users=(f"alice@{NOW_S + 15:.0f}",)))


async def test_revoked_users_are_read_once_for_each_settings(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ApplicationSettings(revoked_users=tuple(f"user {number}@5" for number in range(1_000)))
    identity = Identity(user="user 7", claims={}, issued_s=1.0, until_s=NOW_S)
    assert credentials.is_revoked(settings, identity)
    made = credentials._revoked.of(settings)
    assert credentials.is_revoked(settings, identity)
    assert credentials._revoked.of(settings) is made
    assert credentials._revoked.of(replace(settings)) is not made
