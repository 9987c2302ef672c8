"""Somebody who is not who it says: tokens and credentials that are forged, cut, swapped, late or of elsewhere."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from roskva.keys import load_keys
from roskva.model import ClientId
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar.row import ClientRow
from tests.access.service import pem
from tests.security.adversary import EMPTY, LEDGER, Town, summaries, token_of

INIT = {"nonce": "n", "application": "shop", "device": "den"}


def without_padding(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_forged_tokens(town: Town) -> None:
    """Random, flipped, cut, signed with another key, or spelled otherwise; with a good credential of its own beside."""
    async with town.innocent() as ann:
        token = token_of(ann)
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        claims = load_keys(town.gateway.settings.data).keyring.verify(token)
        eve = town.shop.credential("eve")
        forged = [
            without_padding(secrets.token_bytes(80)),
            *(without_padding(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) for place in (0, 1, 2, 17, 18, len(data) - 1)),
            *(token[:size] for size in (1, 20, len(token) // 2, len(token) - 1)),
            token + "A",
            token[:-1] + " ",
            Keyring({1: secrets.token_bytes(32)}).sign(claims),
            Keyring({1: secrets.token_bytes(32)}).sign(claims._replace(user="eve")),
            "\0" * 40,
        ]
        adversary = await town.adversary()
        for number, one in enumerate(forged, 1):
            code = await adversary.anew(token=one, credential=eve, register=[{"op": 1, "object": "news:1"}])
            assert code == "token-invalid", one
            assert town.gateway.metrics.tokens_refused == number
        assert summaries(adversary) == []
        assert len(town.gateway.registrar.sessions) == 1


async def test_a_token_from_another_connection_without_its_credential(town: Town) -> None:
    async with town.innocent() as ann:
        thief = await town.adversary()
        stolen = token_of(ann)
        for message in (
            {"token": stolen},
            {"token": stolen, "register": [{"op": 99, "object": "inbox:ann:2"}]},
            {"token": stolen, "unregister": [{"op": 99, "object": "inbox:ann"}]},
            {"token": stolen, "sync": {"op": 99, "objects": []}},
            {"token": stolen, "forget": True},
            {"token": stolen, "acks": [{"object": "inbox:ann", "seqno": "4294967297"}]},
        ):
            assert await thief.wanted(**message) == "credential-required"
        assert town.gateway.registrar.counters.credentials_refused == 6


async def test_a_token_with_the_credential_of_another_user(town: Town) -> None:
    """Neither over a connection of its own, nor in a session that it has."""
    async with town.innocent() as ann:
        thief, stolen, mine = await town.adversary(), token_of(ann), town.shop.credential("eve")
        assert await thief.anew(token=stolen, credential=mine, forget=True) == "token-invalid"
        await thief.enter(mine)
        assert await thief.anew(token=stolen, credential=mine, sync={"op": 99, "objects": []}) == "token-invalid"
        assert town.gateway.registrar.counters.started_anew == 2
        assert summaries(thief) == [EMPTY]


async def test_the_credential_of_another_user_in_a_living_session(town: Town) -> None:
    async with town.innocent():
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        bob = town.shop.credential("bob")
        assert await adversary.anew(token=token, credential=bob, register=[{"op": 1, "object": "inbox:bob"}]) == "token-invalid"
        assert await adversary.wanted(token=token, register=[{"op": 1, "object": "inbox:eve"}]) == "credential-required"
        counters = town.gateway.registrar.counters
        assert (counters.started_anew, counters.credentials_refused, counters.registrations) == (1, 1, 1)


async def test_tokens_and_credentials_of_another_application(town: Town) -> None:
    async with town.innocent():
        teller = await town.adversary()
        teller.may_hear = {LEDGER}
        theirs = await teller.enter(town.bank.credential("carl"), application="bank")
        await teller.say(token=theirs, register=[{"op": 1, "object": LEDGER}])
        await teller.until(lambda one: one.get("status"))
        await teller.close()
        thief = await town.adversary()
        for credential in (town.shop.credential("carl"), town.shop.credential("carl", key=town.bank.key)):
            assert await thief.wanted(token=theirs, credential=credential) == "credential-refused"
        for application, issuer in (("shop", town.bank), ("bank", town.shop)):
            init = INIT | {"application": application, "prior": theirs}
            assert await thief.wanted(init=init, credential=issuer.credential("carl")) == "credential-refused"
        assert town.gateway.registrar.counters.credentials_refused == 4
        # As `prior` of the other application it is worth nothing: its bearer is a new client, without registrations.
        verify = load_keys(town.gateway.settings.data).keyring.verify
        token = await thief.enter(town.shop.credential("carl"), prior=theirs)
        assert verify(token).client != verify(theirs).client
        assert summaries(thief) == [EMPTY]


async def test_the_token_of_somebody_else_as_prior(town: Town) -> None:
    async with town.innocent() as ann:
        verify = load_keys(town.gateway.settings.data).keyring.verify
        thief = await town.adversary()
        token = await thief.enter(town.shop.credential("eve"), device="her-phone", prior=token_of(ann))
        assert (verify(token).user, verify(token_of(ann)).user) == ("eve", "ann")
        assert verify(token).client != verify(token_of(ann)).client
        assert summaries(thief) == [EMPTY]
        assert town.gateway.registrar.counters.superseded == 0


async def test_credentials_that_nobody_signed_or_for_somebody_else(town: Town) -> None:
    shop, now_s = town.shop, int(time.time())
    public = pem(shop.key)
    claims = {"sub": "ann", "iat": now_s, "exp": now_s + 600, "iss": shop.issuer, "aud": "shop"}

    def part(value: object) -> str:
        return without_padding(json.dumps(value).encode())

    def confused(secret: bytes) -> str:
        signed = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}"
        return f"{signed}.{without_padding(hmac.digest(secret, signed.encode(), hashlib.sha256))}"

    good = shop.credential("ann")
    head, payload, signature = good.split(".")
    refused = [
        "nonsense" * 10,
        "." * 20,
        f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}.",
        f"{part({'alg': 'none'})}.{payload}.{signature}",
        *(confused(secret) for secret in (public, public.strip(), public[27:-26])),
        f"{head}.{part(claims | {'sub': 'bob'})}.{signature}",
        f"{head}.{payload}.{signature[:-4]}AAAA",
        f"{head}.{payload}.",
        f"{head}.{payload}",
        shop.credential("ann", key=Ed25519PrivateKey.generate()),
        shop.credential("ann", aud="bank"),
        shop.credential("ann", aud=None),
        shop.credential("ann", aud=["bank", "wiki"]),
        shop.credential("ann", iss="https://evil.example"),
        shop.credential("ann", iss=None),
        shop.credential("ann", exp=None),
        shop.credential("ann", nbf=now_s + 600),
        shop.credential("ann", iat=now_s + 600),
        shop.credential(""),
        shop.credential("a\nb"),
        "x" * 8_192,
    ]
    async with town.innocent():
        adversary = await town.adversary()
        for number, credential in enumerate(refused, 1):
            assert await adversary.wanted(init=INIT, credential=credential) == "credential-refused", credential
            assert town.gateway.registrar.counters.credentials_refused == number
        assert await adversary.wanted(init=INIT, credential=shop.credential("ann", exp=now_s - 5)) == "credential-expired"
        assert await adversary.wanted(init=INIT) == "credential-required"
        assert town.gateway.registrar.counters.credentials_refused == len(refused) + 2
        error = (await adversary.ask(init=INIT, credential="x" * 8_193))["error"]
        assert error["code"] == "malformed-message"
        assert town.gateway.metrics.messages_malformed == 1
        assert "grant" not in json.dumps(adversary.heard)


def later(town: Town, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions so much time has passed. The credentials of the innocent are good for an hour."""
    monkeypatch.setattr(town.gateway.registrar.users, "_wall_clock", lambda: time.time() + seconds)


async def test_a_session_outlives_its_credential_in_silence_only(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    async with town.innocent():
        eve = await town.adversary()
        eve.may_hear = {"inbox:eve"}
        token = await eve.enter(town.shop.credential("eve", exp=int(time.time()) + 600))
        await eve.say(token=token, register=[{"op": 1, "object": "inbox:eve"}])
        await eve.until(lambda one: one.get("status"))
        later(town, 700, monkeypatch)
        assert await eve.wanted(token=token, register=[{"op": 2, "object": "news:1"}]) == "credential-expired"
        assert town.gateway.registrar.counters.credentials_refused == 1
        await town.publish("inbox:eve")
        for message in await eve.quiet(0.7):
            assert message["credential"]["code"] == "credential-expired"
        again = await town.adversary()
        assert await again.wanted(token=token, credential=town.shop.credential("eve", exp=int(time.time()) - 1)) == "credential-expired"
        assert town.gateway.registrar.counters.registrations == 2


@pytest.mark.parametrize("why", ["expired", "revoked"])
async def test_a_grant_that_is_used_late_counts_no_longer_than_its_credential(
    town: Town, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was granted a session need not show its credential again over the same connection; as long as that is good."""
    async with town.innocent():
        eve = await town.adversary()
        token = (await eve.ask(init=INIT, credential=town.shop.credential("eve", exp=int(time.time()) + 600)))["grant"]["token"]
        if why == "expired":
            later(town, 700, monkeypatch)
        else:
            town.write(revoked_users=[f"eve@{int(time.time()) + 1}"])
            await town.gateway.reloading.look()
        assert await eve.wanted(token=token, register=[{"op": 1, "object": "inbox:eve"}]) == "credential-required"
        assert town.gateway.registrar.counters.credentials_refused == 1
        assert town.gateway.registrar.counters.registrations == 1
        await town.publish("inbox:eve")
        assert await eve.quiet() == []


async def test_a_user_that_is_revoked_while_it_comes_in(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its credential was good a moment ago, and its session is not yet among those that are looked at when the settings change."""
    async with town.innocent():
        eve = await town.adversary()
        credential = town.shop.credential("eve")
        token = (await eve.ask(init=INIT, credential=credential))["grant"]["token"]
        look, registrar = town.gateway.registrar.rows.look, town.gateway.registrar

        async def slow(client: ClientId) -> ClientRow:
            if "eve" not in str(town.gateway.applications["shop"].revoked_users):
                town.write(revoked_users=[f"eve@{int(time.time()) + 1}"])
                await town.gateway.reloading.look()
            return await look(client)

        monkeypatch.setattr(registrar.rows, "look", slow)
        answer = await eve.ask(token=token, register=[{"op": 1, "object": "inbox:eve"}])
        assert answer["start_anew"] == {"code": "token-elsewhere", "keep": True}
        assert await eve.wanted(init=INIT | {"nonce": "again", "prior": token}, credential=credential) == "credential-refused"
        assert registrar.counters.credentials_refused == 1
        assert len(registrar.sessions) == 1


@pytest.mark.parametrize("user", ["u" * 256, "\N{SNOWMAN}" * 256])
async def test_users_with_long_names_are_users(town: Town, user: str) -> None:
    """And nobody is kept out, or let in, by the length of his own."""
    async with town.innocent():
        guest = await town.adversary()
        token = await guest.enter(town.shop.credential(user), device="d" * 128)
        assert len(token) <= 512
        assert await guest.anew(token=token, credential=town.shop.credential(user[:-1] + "x")) == "token-invalid"
        again = await town.adversary()
        assert "good_s" in (await again.ask(token=token, credential=town.shop.credential(user)))["credential"]
        assert await again.wanted(init=INIT, credential=town.shop.credential(user + "u")) == "credential-refused"


async def test_claims_of_the_service_are_signed_by_the_service(town: Town) -> None:
    """A token that says another user, application or session, under a signature of another one."""
    async with town.innocent() as ann:
        adversary = await town.adversary()
        token = await adversary.enter(town.shop.credential("eve"))
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        mine, hers = (load_keys(town.gateway.settings.data).keyring.verify(one) for one in (token, token_of(ann)))
        bodies: list[Claims] = [mine._replace(user="ann"), mine._replace(client=hers.client), hers, mine._replace(session=9)]
        for number, claims in enumerate(bodies, 1):
            body = base64.urlsafe_b64decode((text := Keyring({data[1]: b"k" * 32}).sign(claims)) + "=" * (-len(text) % 4))[18:]
            assert await adversary.anew(token=without_padding(data[:18] + body), credential=town.shop.credential("eve")) == "token-invalid"
            assert town.gateway.metrics.tokens_refused == number
