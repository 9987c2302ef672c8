"""Which objects a user may register for: by patterns, and by what the application's own service says, for as long as that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from roskva.access.authorization import Authorization
from roskva.access.credentials import Credentials
from roskva.access.identity import Identity
from roskva.access.webhooks import CALLS_MAX
from roskva.config import ApplicationSettings, load
from roskva.errors import AuthorizationUnavailable, InvalidSetting
from tests.access.service import NOW_S, Answer, Clock, Service, answering, serving

ALICE = Identity(user="alice", claims={"sub": "alice"}, issued_s=0.0, until_s=NOW_S + 1)
BOB = Identity(user="bob", claims={"sub": "bob"}, issued_s=0.0, until_s=NOW_S + 1)


def allowing(prefix: str = "", **more: object) -> Answer:
    async def answer(_request: web.Request, body: Any) -> web.Response:
        return web.json_response({"allowed": [name for name in body["objects"] if name.startswith(prefix)], **more})

    return answer


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving(allowing("doc:")) as service:
        yield service


@pytest.fixture
async def authorization(clock: Clock) -> AsyncIterator[Authorization]:
    authorization = Authorization(clock=clock)
    yield authorization
    await authorization.close()


@pytest.fixture
def settings(service: Service) -> ApplicationSettings:
    return ApplicationSettings(authorization_webhook=service.url, webhook_timeout_s=5.0)


async def ask(authorization: Authorization, settings: ApplicationSettings, names: Iterable[str], user: Identity = ALICE) -> dict[str, bool]:
    return await authorization.ask("shop", settings, user, "phone", list(names))


def known(
    authorization: Authorization, settings: ApplicationSettings, name: str, user: Identity = ALICE, device: str = "phone"
) -> bool | None:
    return authorization.known("shop", settings, user, device, name)


async def test_without_a_webhook_the_patterns_decide(authorization: Authorization) -> None:
    settings = ApplicationSettings(registrable=("news:*", "inbox:{sub}"))
    assert known(authorization, settings, "news:1") is True
    assert known(authorization, settings, "inbox:alice") is True
    assert known(authorization, settings, "inbox:alice", BOB) is False
    assert await ask(authorization, settings, ["news:1", "inbox:bob"]) == {"news:1": True, "inbox:bob": False}
    assert known(authorization, ApplicationSettings(registrable=()), "news:1") is False


async def test_the_webhook_is_asked_for_what_the_patterns_allow(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    settings = replace(settings, registrable=("doc:*", "list:*"))
    names = ["doc:1", "list:1", "other", "doc:1"]
    assert [known(authorization, settings, name) for name in names] == [None, None, False, None]
    assert await ask(authorization, settings, names) == {"doc:1": True, "list:1": False, "other": False}
    assert service.asked == [{"application": "shop", "user": "alice", "device": "phone", "objects": ["doc:1", "list:1"]}]
    assert [known(authorization, settings, name) for name in names] == [True, False, False, True]
    assert await ask(authorization, settings, names) == {"doc:1": True, "list:1": False, "other": False}
    assert len(service.asked) == 1


async def test_answers_are_for_one_user_of_one_application(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    await ask(authorization, settings, ["doc:1"])
    assert known(authorization, settings, "doc:1", BOB) is None
    assert authorization.known("news", settings, ALICE, "phone", "doc:1") is None


async def test_answers_are_for_one_device(authorization: Authorization, settings: ApplicationSettings, service: Service) -> None:
    """It is part of the question, so the service may say yes for the desk in the office and no for a phone."""

    async def at_the_desk(_request: web.Request, body: Any) -> web.Response:
        return web.json_response({"allowed": body["objects"] if body["device"] == "desk" else []})

    service.answer = at_the_desk
    assert await authorization.ask("shop", settings, ALICE, "desk", ["doc:1"]) == {"doc:1": True}
    assert known(authorization, settings, "doc:1", device="phone") is None
    assert await authorization.ask("shop", settings, ALICE, "phone", ["doc:1"]) == {"doc:1": False}
    assert known(authorization, settings, "doc:1", device="desk") is True
    assert known(authorization, settings, "doc:1", device="phone") is False
    authorization.forget("shop", "alice")
    assert known(authorization, settings, "doc:1", device="desk") is known(authorization, settings, "doc:1", device="phone") is None


async def test_new_patterns_count_at_once(authorization: Authorization, settings: ApplicationSettings) -> None:
    await ask(authorization, settings, ["doc:1"])
    assert known(authorization, replace(settings, registrable=("news:*",)), "doc:1") is False


async def test_answers_count_for_authorization_s(authorization: Authorization, settings: ApplicationSettings, clock: Clock) -> None:
    settings = replace(settings, authorization_s=100.0)
    await ask(authorization, settings, ["doc:1", "no"])
    clock.now_s += 99.9
    assert known(authorization, settings, "doc:1") is True
    assert known(authorization, settings, "no") is False
    clock.now_s += 0.1
    assert known(authorization, settings, "doc:1") is None
    assert known(authorization, settings, "no") is None
    assert len(authorization._answers) == 0


@pytest.mark.parametrize(("expires_s", "counts_s"), [(5, 5.0), (1e9, 100.0), (0, 1.0), (-7, 1.0), (0.2, 1.0)])
async def test_the_webhook_may_say_that_they_count_for_less(
    expires_s: float, counts_s: float, authorization: Authorization, settings: ApplicationSettings, service: Service, clock: Clock
) -> None:
    settings = replace(settings, authorization_s=100.0)
    service.answer = allowing(expires_s=expires_s)
    await ask(authorization, settings, ["doc:1"])
    clock.now_s += counts_s - 0.1
    assert known(authorization, settings, "doc:1") is True
    clock.now_s += 0.2
    assert known(authorization, settings, "doc:1") is None


@pytest.mark.parametrize("expires_s", [None, 0.1, 60])
async def test_however_short_the_settings_say_an_answer_counts_until_somebody_looked(
    expires_s: float | None, authorization: Authorization, settings: ApplicationSettings, service: Service, clock: Clock
) -> None:
    """Or notifications would wait for ever, and the webhook be asked without end."""
    service.answer = allowing(expires_s=expires_s)
    settings = replace(settings, authorization_s=0.01)
    await ask(authorization, settings, ["doc:1"])
    clock.now_s += 0.9
    assert known(authorization, settings, "doc:1") is True
    clock.now_s += 0.2
    assert known(authorization, settings, "doc:1") is None


def test_a_settings_file_says_at_least_a_second(tmp_path: Path) -> None:
    file = tmp_path / "roskva.toml"
    file.write_text("[applications.shop]\nauthorization_s = 0.2\n")
    with pytest.raises(InvalidSetting, match="authorization_s"):
        load(file, {}, {})
    file.write_text("[applications.shop]\nauthorization_s = 1\n")
    assert load(file, {}, {}).applications["shop"].authorization_s == 1.0


async def test_many_are_asked_for_in_thousands(authorization: Authorization, settings: ApplicationSettings, service: Service) -> None:
    names = [f"doc:{number}" for number in range(2_500)]
    answers = await ask(authorization, settings, names)
    assert answers == dict.fromkeys(names, True)
    assert sorted(len(asked["objects"]) for asked in service.asked) == [500, 1_000, 1_000]


@pytest.mark.parametrize("letter", ["x", "ö", "朔", "😀", '"', "<"])
async def test_names_are_asked_for_in_calls_whose_answers_are_not_too_long(
    letter: str, authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    padding = letter * (110 // len(letter.encode()))
    names = [f"doc:{number}:{padding}" for number in range(1_000)]
    assert await ask(authorization, settings, names) == dict.fromkeys(names, True)
    assert 3 < len(service.asked) < 30


async def test_what_was_not_asked_for_is_not_learned(authorization: Authorization, settings: ApplicationSettings, service: Service) -> None:
    service.answer = answering({"allowed": ["doc:1", "doc:2", "*"]})
    assert await ask(authorization, settings, ["doc:1", "doc:3"]) == {"doc:1": True, "doc:3": False}
    assert known(authorization, settings, "doc:2") is None


@pytest.mark.parametrize(
    "answer",
    [
        answering({}, 500),
        answering({"allowed": ["doc:1"]}, 403),
        answering({"allowed": ["doc:1"]}, 404),
        answering({}),
        answering([]),
        answering({"allowed": "doc:1"}),
        answering({"allowed": True}),
        answering({"allowed": [7]}),
        answering({"allowed": ["doc:1"], "expires_s": "long"}),
    ],
)
async def test_no_answer_allows_nothing(
    answer: Answer, authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    service.answer = answer
    with pytest.raises(AuthorizationUnavailable):
        await ask(authorization, settings, ["doc:1"])
    assert known(authorization, settings, "doc:1") is None
    assert authorization._asking == {}
    service.answer = allowing()
    assert await ask(authorization, settings, ["doc:1"]) == {"doc:1": True}


async def test_of_several_calls_that_which_answered_is_known(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    async def half(_request: web.Request, body: Any) -> web.Response:
        if "doc:0" in body["objects"]:
            return web.json_response({}, status=500)
        return web.json_response({"allowed": body["objects"]})

    service.answer = half
    with pytest.raises(AuthorizationUnavailable):
        await ask(authorization, settings, [f"doc:{number}" for number in range(1_500)])
    assert known(authorization, settings, "doc:0") is None
    assert known(authorization, settings, "doc:1400") is True


# At the same time.


class Gate:
    """Answers yes when it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.inside = 0

    async def __call__(self, _request: web.Request, body: Any) -> web.Response:
        self.inside += 1
        await self.opened.wait()
        return web.json_response({"allowed": body["objects"]})

    async def entered(self, count: int = 1) -> None:
        async with asyncio.timeout(5):
            while self.inside < count:
                await asyncio.sleep(0.001)


async def test_whoever_asks_the_same_shares_the_call(authorization: Authorization, settings: ApplicationSettings, service: Service) -> None:
    service.answer = gate = Gate()
    first = asyncio.create_task(ask(authorization, settings, ["doc:1", "doc:2"]))
    await gate.entered()
    second = asyncio.create_task(ask(authorization, settings, ["doc:2", "doc:3"]))
    await gate.entered(2)
    third = asyncio.create_task(ask(authorization, settings, ["doc:1", "doc:2", "doc:3"]))
    await asyncio.sleep(0.02)
    gate.opened.set()
    assert await first == {"doc:1": True, "doc:2": True}
    assert await second == {"doc:2": True, "doc:3": True}
    assert await third == {"doc:1": True, "doc:2": True, "doc:3": True}
    assert [asked["objects"] for asked in service.asked] == [["doc:1", "doc:2"], ["doc:3"]]
    assert authorization._asking == {}


async def test_whoever_goes_away_does_not_end_the_call_of_the_others(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    service.answer = gate = Gate()
    first = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await gate.entered()
    second = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    gate.opened.set()
    assert await second == {"doc:1": True}
    assert len(service.asked) == 1


async def test_neither_another_user_nor_another_device_shares_it(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    await asyncio.gather(
        ask(authorization, settings, ["doc:1"], ALICE),
        ask(authorization, settings, ["doc:1"], BOB),
        authorization.ask("shop", settings, BOB, "desk", ["doc:1"]),
    )
    assert sorted((asked["user"], asked["device"]) for asked in service.asked) == [("alice", "phone"), ("bob", "desk"), ("bob", "phone")]


# Forgetting.


async def test_forgetting_a_user_or_an_application(authorization: Authorization, settings: ApplicationSettings) -> None:
    for user in (ALICE, BOB):
        await ask(authorization, settings, ["doc:1", "doc:2"], user)
        await authorization.ask("news", settings, user, "phone", ["doc:1"])
    authorization.forget("shop", "alice")
    assert known(authorization, settings, "doc:1") is None
    assert known(authorization, settings, "doc:2") is None
    assert known(authorization, settings, "doc:1", BOB) is True
    assert authorization.known("news", settings, ALICE, "phone", "doc:1") is True
    authorization.forget("shop")
    assert known(authorization, settings, "doc:1", BOB) is None
    assert authorization.known("news", settings, ALICE, "phone", "doc:1") is True
    authorization.forget("news")
    authorization.forget("never heard of")
    authorization.forget("shop", "nobody")
    assert len(authorization._answers) == 0


async def test_an_answer_that_was_on_its_way_is_forgotten_too(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    service.answer = gate = Gate()
    before = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await gate.entered()
    authorization.forget("shop", "alice")
    after = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await gate.entered(2)  # the question is asked anew
    before_task = next(iter(authorization._asking.values()))
    gate.opened.set()
    assert await before == {"doc:1": True}
    assert await after == {"doc:1": True}
    assert before_task.done()
    assert len(service.asked) == 2
    assert authorization._asking == {}


async def test_a_late_answer_from_before_a_revocation_is_not_kept(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    service.answer = gate = Gate()
    before = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await gate.entered()
    authorization.forget("shop")
    gate.opened.set()
    await before
    assert known(authorization, settings, "doc:1") is None


async def test_answers_are_bounded_and_those_in_use_stay(
    authorization: Authorization, settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roskva.access.answers.ANSWERS_PER_APPLICATION_MAX", 10)
    await ask(authorization, settings, [f"doc:{number}" for number in range(10)])
    assert known(authorization, settings, "doc:0") is True
    await ask(authorization, settings, [f"doc:{number}" for number in range(10, 15)])
    assert len(authorization._answers) == 10
    assert known(authorization, settings, "doc:0") is True
    assert known(authorization, settings, "doc:1") is None


async def test_users_of_one_application_do_not_push_out_the_answers_of_another(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    await authorization.ask("news", settings, BOB, "phone", ["doc:1"])
    for first in range(0, 110_000, 10_000):
        await ask(authorization, settings, [f"doc:{number}" for number in range(first, first + 10_000)])
    assert authorization.known("news", settings, BOB, "phone", "doc:1") is True
    assert len(authorization._answers) == 20_001


async def test_whoever_asks_about_credentials_does_not_keep_those_who_are_known_waiting(
    authorization: Authorization, settings: ApplicationSettings, service: Service
) -> None:
    """A stranger may make an application ask about as many credentials as he likes."""
    async with serving(Gate()) as who:
        asking = replace(settings, authentication="webhook", authentication_webhook=who.url, webhook_timeout_s=5.0)
        credentials = Credentials(webhooks=authorization._webhooks)
        strangers = [asyncio.create_task(credentials.identify("shop", asking, "phone", f"forged {number}")) for number in range(100)]
        async with asyncio.timeout(5):
            while len(who.asked) < CALLS_MAX:
                await asyncio.sleep(0.005)
            hurried = replace(asking, webhook_timeout_s=1.0)
            assert await ask(authorization, hurried, ["doc:1"]) == {"doc:1": True}
        assert len(who.asked) == CALLS_MAX
        for stranger in strangers:
            stranger.cancel()
        await asyncio.wait(strangers)


async def test_closing_ends_what_is_asked(settings: ApplicationSettings, service: Service, clock: Clock) -> None:
    service.answer = gate = Gate()
    authorization = Authorization(clock=clock)
    waiting = asyncio.create_task(ask(authorization, settings, ["doc:1"]))
    await gate.entered()
    await authorization.close()
    with pytest.raises(AuthorizationUnavailable):
        await waiting
    gate.opened.set()
