"""Keys that are fetched: from a real server on 127.0.0.1, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from roskva.access.jwt import JwtVerifier
from roskva.access.jwt_keys import FetchedKeys, Key, fitting
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, CredentialRefused, InvalidSetting
from tests.access.service import Answer, Clock, Service, answering, jwk, serving, token


def settings_for(url: str, **more: object) -> ApplicationSettings:
    return ApplicationSettings(**{"authentication": "jwt", "jwt_keys": url, "webhook_timeout_s": 0.5, **more})  # type: ignore[arg-type]


def set_of(**keys: Ed25519PrivateKey) -> Answer:
    return answering({"keys": [jwk(key.public_key(), kid=kid) for kid, key in keys.items()]})


@pytest.fixture
async def service(ed_key: Ed25519PrivateKey) -> AsyncIterator[Service]:
    async with serving(set_of(a=ed_key)) as service:
        yield service


@pytest.fixture
async def verifier(service: Service, clock: Clock) -> AsyncIterator[JwtVerifier]:
    verifier = JwtVerifier(settings_for(service.url), clock)
    yield verifier
    await verifier.close()


async def user(verifier: JwtVerifier, key: Ed25519PrivateKey, kid: str | None = "a") -> str:
    identity = await verifier.identify(token(key, headers={"kid": kid} if kid else None, exp=9e9))
    return identity.user


async def quiet(verifier: JwtVerifier) -> None:
    """Until nothing is fetched any more."""
    assert isinstance(verifier.keys, FetchedKeys)
    async with asyncio.timeout(5):
        while verifier.keys._fetching is not None:
            await asyncio.sleep(0.001)


async def test_keys_are_fetched_when_they_are_needed_and_kept(service: Service, verifier: JwtVerifier, ed_key: Ed25519PrivateKey) -> None:
    assert service.asked == []
    for kid in ("a", None, "a"):
        assert await user(verifier, ed_key, kid) == "alice"
    assert len(service.asked) == 1
    assert service.headers[0]["Accept-Encoding"] == "identity"


async def test_all_who_come_at_once_share_one_fetch(service: Service, verifier: JwtVerifier, ed_key: Ed25519PrivateKey) -> None:
    assert await asyncio.gather(*(user(verifier, ed_key) for _ in range(50))) == ["alice"] * 50
    assert len(service.asked) == 1


async def test_whoever_goes_away_does_not_end_the_fetch_of_the_others(
    service: Service, verifier: JwtVerifier, ed_key: Ed25519PrivateKey
) -> None:
    first = asyncio.create_task(user(verifier, ed_key))
    second = asyncio.create_task(user(verifier, ed_key))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "alice"
    assert len(service.asked) == 1


async def test_an_unknown_key_is_looked_for_at_most_every_30_s(
    service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    new = Ed25519PrivateKey.generate()
    assert await user(verifier, ed_key) == "alice"
    service.answer = set_of(a=ed_key, b=new)
    for _ in range(10):
        clock.now_s += 2.9
        with pytest.raises(CredentialRefused, match="not known"):
            await user(verifier, new, "b")
    assert len(service.asked) == 1
    clock.now_s += 1.1
    assert await user(verifier, new, "b") == "alice"
    assert await user(verifier, ed_key) == "alice"
    assert len(service.asked) == 2
    clock.now_s += 31
    for number in range(10):
        with pytest.raises(CredentialRefused, match="not known"):
            await user(verifier, new, f"attack {number}")
    assert len(service.asked) == 3


async def test_tokens_of_another_algorithm_make_nobody_fetch(service: Service, verifier: JwtVerifier) -> None:
    with pytest.raises(CredentialRefused):
        await verifier.identify(token(b"x" * 32, "HS256", {"kid": "new"}))
    assert service.asked == []


async def test_after_an_hour_they_are_fetched_again_and_nobody_waits(
    service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    assert await user(verifier, ed_key) == "alice"
    clock.now_s += 3_599
    assert await user(verifier, ed_key) == "alice"
    await quiet(verifier)
    assert len(service.asked) == 1
    service.answer = set_of(b=Ed25519PrivateKey.generate())
    clock.now_s += 2
    assert await user(verifier, ed_key) == "alice"  # with the keys that are there
    await quiet(verifier)
    assert len(service.asked) == 2
    with pytest.raises(CredentialRefused, match="not known"):  # it was withdrawn
        await user(verifier, ed_key)


async def test_what_cannot_be_fetched_leaves_the_old_keys_for_a_day(
    service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    assert await user(verifier, ed_key) == "alice"
    service.answer = answering({}, status=500)
    for _ in range(24):
        clock.now_s += 3_599
        assert await user(verifier, ed_key) == "alice"
        await quiet(verifier)
    assert len(service.asked) > 20
    with pytest.raises(AuthorizationUnavailable):  # it may be new, and nobody can say
        await user(verifier, ed_key, "b")
    clock.now_s += 60
    with pytest.raises(AuthorizationUnavailable):
        await user(verifier, ed_key)
    service.answer = set_of(a=ed_key)
    clock.now_s += 31
    assert await user(verifier, ed_key) == "alice"


async def test_without_any_keys_it_is_tried_again_with_growing_pauses(
    service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    service.answer = answering({}, status=503)
    tries = []
    for second in range(120):
        before = len(service.asked)
        with pytest.raises(AuthorizationUnavailable):
            await user(verifier, ed_key)
        if len(service.asked) > before:
            tries.append(second)
        clock.now_s += 1
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91]
    service.answer = set_of(a=ed_key)
    clock.now_s += 30
    assert await user(verifier, ed_key) == "alice"


async def too_large(_request: web.Request, _body: object) -> web.Response:
    return web.json_response({"keys": [], "padding": "x" * 70_000})


async def redirecting(request: web.Request, _body: object) -> web.Response:
    raise web.HTTPFound(str(request.url.with_path("/elsewhere")))


async def hanging(_request: web.Request, _body: object) -> web.Response:
    await asyncio.sleep(5)
    return web.json_response({"keys": []})


async def no_json(_request: web.Request, _body: object) -> web.Response:
    return web.Response(text="<html>")


@pytest.mark.parametrize("answer", [too_large, redirecting, hanging, no_json, answering([]), answering({"keys": 7}), answering({}, 404)])
async def test_answers_that_hold_no_keys(service: Service, verifier: JwtVerifier, answer: Answer, ed_key: Ed25519PrivateKey) -> None:
    service.answer = answer
    with pytest.raises(AuthorizationUnavailable):
        await user(verifier, ed_key)
    assert len(service.asked) == 1


async def test_an_empty_set_is_an_answer(service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    assert await user(verifier, ed_key) == "alice"
    service.answer = answering({"keys": []})
    clock.now_s += 3_601
    await user(verifier, ed_key)
    await quiet(verifier)
    with pytest.raises(CredentialRefused, match="not known"):
        await user(verifier, ed_key)


async def test_nobody_there(clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    verifier = JwtVerifier(settings_for("http://127.0.0.1:1/keys"), clock)
    with pytest.raises(AuthorizationUnavailable):
        await user(verifier, ed_key)
    await verifier.close()


async def test_a_clock_that_is_set_back_drops_no_keys(
    service: Service, verifier: JwtVerifier, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    assert await user(verifier, ed_key) == "alice"
    service.answer = answering({}, status=500)
    clock.now_s -= 10
    assert await user(verifier, ed_key) == "alice"
    assert len(service.asked) == 1


async def test_closing_ends_a_fetch(service: Service, verifier: JwtVerifier, ed_key: Ed25519PrivateKey) -> None:
    service.answer = hanging
    waiting = asyncio.create_task(user(verifier, ed_key))
    async with asyncio.timeout(5):
        while not service.asked:
            await asyncio.sleep(0.001)
    await verifier.close()
    with pytest.raises(AuthorizationUnavailable):
        await waiting
    with pytest.raises(AuthorizationUnavailable):
        await user(verifier, ed_key)
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://keys.example/set",
        "http://10.0.0.1/set",
        "http://127.0.0.1.example/set",
        "http://localhost.example/set",
        "http://127.0.0.1@keys.example/set",
        "http://[2001:db8::1]/set",
        "ftp://127.0.0.1/set",
        "file:///etc/passwd",
        "http://",
        "https:///set",
    ],
)
def test_keys_are_fetched_with_tls_or_from_this_machine(url: str, clock: Clock) -> None:
    with pytest.raises(InvalidSetting):
        JwtVerifier(settings_for(url), clock)


@pytest.mark.parametrize("url", ["https://keys.example/set", "http://localhost:8/set", "http://127.0.0.9/set", "http://[::1]:8/set"])
def test_these_may_be_fetched_from(url: str, clock: Clock) -> None:
    assert isinstance(JwtVerifier(settings_for(url), clock).keys, FetchedKeys)


def test_secrets_are_not_fetched(clock: Clock) -> None:
    with pytest.raises(InvalidSetting, match="file"):
        JwtVerifier(settings_for("https://keys.example/set", jwt_algorithm="HS256"), clock)


@pytest.mark.parametrize(
    ("kid", "names"),
    [(None, ["a", "b", None]), ("a", ["a"]), ("c", [None])],
)
def test_a_key_without_a_name_may_be_meant_by_any_token(kid: str | None, names: Sequence[str | None]) -> None:
    keys = [Key(name, b"") for name in ("a", "b", None)]
    assert [key.kid for key in fitting(keys, kid)] == names
