"""Those who were let in and may no longer: revoked in the settings file, by another credential, by the application's own service."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

from roskva.gateway.service import Gateway
from tests.access.service import answering, serving
from tests.security.adversary import EMPTY, RELOADED_S, Adversary, Town, summaries, summary_of

INIT = {"nonce": "n", "application": "shop", "device": "den"}


async def registered(adversary: Adversary, credential: str, *names: str) -> str:
    token = await adversary.enter(credential)
    adversary.may_hear |= set(names)
    await adversary.say(token=token, register=[{"op": op, "object": name} for op, name in enumerate(names, 1)])
    for name in names:
        await adversary.until(lambda one, name=name: {"object": name, "state": "registered"} in one.get("status", ()))  # type: ignore[misc]
    return token


def versions(adversary: Adversary, start: int = 0) -> list[str]:
    return [told.get("version", "") for message in adversary.heard[start:] for told in message.get("notify", ())]


async def acknowledge(adversary: Adversary, token: str) -> None:
    """Whatever it heard so far."""
    await adversary.say(token=token, acks=[told for message in adversary.heard for told in message.get("notify", ())])


async def test_a_revoked_user_hears_nothing_after_the_stated_time(town: Town) -> None:
    """By the file alone. Neither over its connection nor over another, nor with any credential that was issued before."""
    async with town.innocent():
        eve = await town.adversary()
        credential = town.shop.credential("eve")
        token = await registered(eve, credential, "inbox:eve", "news:1")
        version = await town.publish("inbox:eve")
        await eve.until(lambda _: str(version) in versions(eve))
        await acknowledge(eve, token)
        town.write(revoked_users=[f"eve@{int(time.time()) + 1}"])
        await asyncio.sleep(RELOADED_S)
        start = len(eve.heard)
        told = [message["credential"] for message in eve.heard if message.get("credential", {}).get("wanted")]
        assert [(one["code"], "revoked" in one["message"]) for one in told] == [("credential-refused", True)]
        for name in ("inbox:eve", "news:1"):
            await town.publish(name)
        assert await eve.quiet(1.0) == []
        assert await eve.wanted(token=token) == "credential-required"
        assert await eve.wanted(token=token, credential=credential) == "credential-refused"
        again = await town.adversary()
        assert await again.wanted(token=token, credential=credential) == "credential-refused"
        assert await again.wanted(init=INIT, credential=credential) == "credential-refused"
        assert await again.wanted(init=INIT | {"prior": token}, credential=town.shop.credential("eve", iat=None)) == "credential-refused"
        assert versions(eve, start) == versions(again) == []
        assert town.gateway.registrar.counters.credentials_refused == 6
        assert len(town.gateway.registrar.sessions) == 1


async def test_who_signs_in_again_after_that_hears_what_it_missed(town: Town) -> None:
    async with town.innocent():
        eve = await town.adversary()
        token = await registered(eve, town.shop.credential("eve", iat=int(time.time()) - 60), "inbox:eve")
        await acknowledge(eve, token)
        town.write(revoked_users=[f"eve@{int(time.time()) - 40}"])
        await town.gateway.reloading.look()
        version = await town.publish("inbox:eve")
        assert all("notify" not in message for message in await eve.quiet())
        await eve.say(token=token, credential=town.shop.credential("eve"))
        await eve.until(lambda _: str(version) in versions(eve))
        assert town.gateway.registrar.counters.credentials_refused == 1


async def test_patterns_that_allow_less_end_registrations(town: Town) -> None:
    async with town.innocent():
        eve = await town.adversary()
        token = await registered(eve, town.shop.credential("eve"), "inbox:eve", "news:1")
        await acknowledge(eve, token)
        town.write(registrable=["inbox:{sub}"])
        ended = await eve.until(lambda one: any(status["state"] == "failed" for status in one.get("status", ())))
        (status,) = ended["status"]
        assert (status["object"], status["code"], status.get("transient", False)) == ("news:1", "not-authorized", False)
        assert ended["summary"] == summary_of("inbox:eve")
        start = len(eve.heard)
        await town.publish("news:1")
        version = await town.publish("inbox:eve")
        await eve.until(lambda _: str(version) in versions(eve, start))
        await eve.quiet()
        assert set(versions(eve, start)) == {str(version)}
        assert town.gateway.registrar.counters.revoked == 1


async def test_an_application_that_begins_to_ask_lets_nobody_stay_unasked(town: Town) -> None:
    """Nor one that was granted a session when nobody asked, and has said nothing yet."""
    open_to_all = {"authentication": "none", "registrable": ["*"]}
    town.write(**open_to_all)
    await town.gateway.reloading.look()
    speaking, silent = await town.adversary(), await town.adversary()
    token = await registered(speaking, "", "inbox:ann")
    granted = (await silent.ask(init=INIT))["grant"]["token"]
    town.write()
    await town.gateway.reloading.look()
    told = await speaking.until(lambda one: "start_anew" in one)
    assert told["start_anew"]["code"] == "token-elsewhere"
    start = len(speaking.heard)
    async with town.innocent():
        assert await silent.wanted(token=granted, register=[{"op": 1, "object": "inbox:ann"}]) == "credential-required"
        assert await speaking.wanted(token=token) == "credential-required"
        assert await speaking.anew(token=token, credential=town.shop.credential("eve")) == "token-invalid"
        again = await town.adversary()
        await again.enter(town.shop.credential("eve"), prior=token)
        assert summaries(again) == [EMPTY]
        assert town.gateway.registrar.counters.credentials_refused == 2
    assert versions(speaking, start) == versions(silent) == []


async def test_an_answer_of_the_applications_own_service_that_expired_is_asked_for_again(town: Town) -> None:
    """And when that refuses then, the registration ends before anything more is told."""

    async def allow(_request: web.Request, body: Any) -> web.Response:
        return web.json_response({"allowed": body["objects"]})

    async with serving(allow) as service:
        town.write(authorization_webhook=service.url, authorization_s=1.0)
        await town.gateway.reloading.look()
        async with town.innocent():
            eve = await town.adversary()
            token = await registered(eve, town.shop.credential("eve"), "inbox:eve", "news:1")
            await acknowledge(eve, token)
            await asyncio.sleep(1.1)
            asked = len(service.asked)
            version = await town.publish("inbox:eve")
            await eve.until(lambda _: str(version) in versions(eve))
            await acknowledge(eve, token)
            assert {"application": "shop", "user": "eve", "device": "den", "objects": ["inbox:eve"]} in service.asked[asked:]

            async def allow_no_news(request: web.Request, body: Any) -> web.Response:
                return web.json_response({"allowed": [name for name in body["objects"] if not name.startswith("news:")]})

            service.answer = allow_no_news
            await asyncio.sleep(1.1)
            start = len(eve.heard)
            await town.publish("news:1")
            ended = await eve.until(lambda one: any(status["state"] == "failed" for status in one.get("status", ())), start)
            assert [(one["object"], one["code"], one.get("transient", False)) for one in ended["status"]] == [
                ("news:1", "not-authorized", False)
            ]
            assert ended["summary"] == summary_of("inbox:eve")
            assert versions(eve, start) == []
            assert town.gateway.registrar.counters.revoked == 1
            failed = await eve.ask(token=token, register=[{"op": 9, "object": "news:1"}])
            assert failed["status"][0]["code"] == "not-authorized"
            assert town.gateway.registrar.counters.not_authorized == 1
        assert not any("credential" in str(question) for question in service.asked)


async def test_while_the_applications_own_service_fails_nothing_is_told_and_nothing_ends(town: Town) -> None:
    async def allow(_request: web.Request, body: Any) -> web.Response:
        return web.json_response({"allowed": body["objects"]})

    async with serving(allow) as service:
        town.write(authorization_webhook=service.url, authorization_s=1.0)
        await town.gateway.reloading.look()
        eve = await town.adversary()
        token = await registered(eve, town.shop.credential("eve"), "inbox:eve")
        await acknowledge(eve, token)
        service.answer = answering({"error": "down"}, 500)
        await asyncio.sleep(1.1)
        start = len(eve.heard)
        version = await town.publish("inbox:eve")
        await eve.quiet(1.0)
        assert versions(eve, start) == []
        refused = await eve.ask(token=token, register=[{"op": 5, "object": "news:1"}])
        assert (refused["error"]["code"], refused["error"]["transient"]) == ("authorization-unavailable", True)
        service.answer = allow
        await eve.until(lambda _: str(version) in versions(eve, start))
        assert await registrations_of(town.gateway, token) == 1
        async with town.innocent():
            pass


async def registrations_of(gateway: Gateway, token: str) -> int:
    (session,) = [one for one in gateway.registrar.sessions.values() if one.token == token]
    return (await gateway.registrar.rows.get(session.client)).digest.count
