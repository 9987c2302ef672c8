"""Somebody who means no good and speaks the protocol by hand; the town in which it does so; and the innocent beside it.

The town is a real gateway with a settings file that is read again, and two applications: `shop`, whose users show JSON Web Tokens and may
hear of their own inbox and of the news, and `bank` with keys of its own. A Matcher follows its feed. Whatever the adversary hears is kept,
and so is all that is logged: `learned_nothing` looks for what is not its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import roskva
from roskva.access.publish_keys import hash_of, new_key
from roskva.config import Settings, Sources
from roskva.gateway.service import Gateway
from roskva.keys import bearer, load_keys
from roskva.protocol.summaries import SetDigest
from tests.access.service import pem
from tests.gateway.conftest import close_engines
from tests.gateway.matching import run_matcher
from tests.gateway.talking import WAIT_S, channel_url

RELOAD_S = 0.2
RELOADED_S = 2 * RELOAD_S + 1.0  # as docs/security.md says
LETTERS = "inbox:ann"  # what the innocent waits for
LEDGER = "ledger:carl"  # of the bank
EMPTY = {"count": 0, "digest": "0" * 32}


def summary_of(*names: str) -> dict[str, Any]:
    digest = SetDigest()
    for name in names:
        digest.add(name.encode())
    summary = digest.summary()
    return {"count": summary.count, "digest": summary.digest}


class Issuer:
    """Who signs the credentials of one application's users."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.key = Ed25519PrivateKey.generate()
        self.publish_key = new_key()
        self.made: list[str] = []

    def credential(self, user: str, key: Any = None, algorithm: str = "EdDSA", **claims: object) -> str:
        """For an hour; a claim that is None is left out."""
        now_s = int(time.time())
        given = {"sub": user, "iat": now_s, "exp": now_s + 3600, "iss": self.issuer, "aud": self.application, **claims}
        text = jwt.encode({name: one for name, one in given.items() if one is not None}, key or self.key, algorithm=algorithm)
        self.made.append(text)
        return text

    @property
    def issuer(self) -> str:
        return f"https://{self.application}.example"

    def table(self, keys: Path, **more: object) -> str:
        """Of the settings file. What is given more is written as JSON writes it, which is TOML for texts, numbers and lists of them."""
        given = {
            "publish_keys": [hash_of(self.publish_key)],
            "authentication": "jwt",
            "jwt_keys": str(keys),
            "jwt_issuer": self.issuer,
            "jwt_audience": self.application,
            "jwt_leeway_s": 0,
            **more,
        }
        return f"[applications.{self.application}]\n" + "".join(f"{name} = {json.dumps(one)}\n" for name, one in given.items())


class Adversary:
    """One connection, and all that was said and heard over it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.said: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.may_hear: set[str] = set()  # objects of its own
        self.closed_with: tuple[int | None, str] | None = None
        self._news = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.socket:
            if message.type == aiohttp.WSMsgType.TEXT:
                self.heard.append(json.loads(message.data))
                self._news.set()
        self.closed_with = self.socket.close_code, ""
        self._news.set()

    async def close(self) -> None:
        await self.socket.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def say(self, **message: Any) -> None:
        text = json.dumps(message)
        self.said.append(text)
        await self.socket.send_str(text)

    async def until(self, found: Callable[[dict[str, Any]], Any], start: int = 0) -> dict[str, Any]:
        """The first message heard, since so many, of which this is true."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for message in self.heard[start:]:
                    if found(message):
                        return message
                assert self.closed_with is None, f"closed with {self.closed_with} after {self.heard}"
                self._news.clear()
                await self._news.wait()

    async def ask(self, **message: Any) -> dict[str, Any]:
        """Say it, and answer the next message that is heard."""
        start = len(self.heard)
        await self.say(**message)
        return await self.until(lambda _: True, start)

    async def ended(self) -> int | None:
        """The code with which the gateway closed."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait([self._listening])
        assert self.closed_with is not None
        return self.closed_with[0]

    async def wanted(self, **message: Any) -> str:
        """Say what is answered with a wish for another credential: its code. Nothing was granted by it."""
        answer = await self.ask(**message)
        assert answer.get("credential", {}).get("wanted") is True, answer
        assert not {"grant", "notify", "summary", "status"} & set(answer), answer
        return str(answer["credential"]["code"])

    async def anew(self, **message: Any) -> str:
        """Say what is answered with: start anew, as a new client. The code."""
        answer = await self.ask(**message)
        assert answer.get("start_anew", {}).get("keep", False) is False, answer
        assert not {"grant", "notify", "summary", "status"} & set(answer), answer
        return str(answer["start_anew"]["code"])

    async def enter(self, credential: str = "", device: str = "den", application: str = "shop", **more: Any) -> str:
        """A session of its own, as anybody may begin one who has a credential. The token."""
        nonce = f"n{len(self.said)}"
        init = {"nonce": nonce, "application": application, "device": device, **more}
        start = len(self.heard)
        await self.say(init=init, credential=credential)
        granted = await self.until(lambda one: "grant" in one or "credential" in one or "error" in one, start)
        assert granted.get("grant", {}).get("nonce") == nonce, granted
        token: str = granted["grant"]["token"]
        start = len(self.heard)
        await self.say(token=token, credential=credential)
        await self.until(lambda one: one.get("token") == token and "grant" not in one, start)
        return token

    async def quiet(self, seconds: float = 0.3) -> list[dict[str, Any]]:
        """What is heard for so long."""
        start = len(self.heard)
        await asyncio.sleep(seconds)
        return self.heard[start:]


class Town:
    """See the module. `write` changes the settings file; whoever waits for RELOADED_S sees what it says now."""

    def __init__(self, folder: Path, logged: pytest.LogCaptureFixture) -> None:
        self.shop, self.bank = Issuer("shop"), Issuer("bank")
        self.file = folder / "roskva.toml"
        self.gateway: Gateway
        self.http: aiohttp.ClientSession
        self.secrets: set[str] = set()
        self._folder = folder
        self._logged = logged
        self._adversaries: list[Adversary] = []
        self._versions = iter(range(1_001, 2_000))
        for issuer in (self.shop, self.bank):
            self.keys_of(issuer).write_bytes(pem(issuer.key))

    def keys_of(self, issuer: Issuer) -> Path:
        return self._folder / f"{issuer.application}.pem"

    def write(self, **shop: object) -> None:
        """The settings, with these of the shop's. As an editor does that replaces the file."""
        patterns = {"registrable": ["inbox:{sub}", "inbox:{sub}:*", "news:*"], "resend_min_s": 0.3}
        tables = [self.shop.table(self.keys_of(self.shop), **(patterns | shop)), self.bank.table(self.keys_of(self.bank))]
        aside = self.file.with_suffix(".new")
        aside.write_text("\n".join(tables))
        os.replace(aside, self.file)

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, **shop: object) -> AsyncIterator[Town]:
        self.write(**shop)
        flags = {"data": str(settings.data), "listen": settings.listen, "reload_s": str(RELOAD_S)}
        sources = Sources(self.file, False, {}, flags)
        self.gateway = gateway = Gateway(sources.load(), sources=sources)
        await gateway.start()
        matching = asyncio.create_task(run_matcher(gateway))
        keys = load_keys(settings.data)
        self.admin_key = keys.admin
        self.secrets |= {self.shop.publish_key, self.bank.publish_key, keys.admin, keys.trusted, LETTERS, LEDGER}
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as self.http:
                yield self
                for adversary in self._adversaries:
                    await adversary.close()
        finally:
            matching.cancel()
            await asyncio.gather(matching, return_exceptions=True)
            await gateway.stop()
            close_engines(gateway.settings)

    async def adversary(self) -> Adversary:
        adversary = Adversary(await self.http.ws_connect(channel_url(self.gateway), max_msg_size=0))
        self._adversaries.append(adversary)
        return adversary

    async def publish(self, name: str, issuer: Issuer | None = None) -> int:
        """A new version, as the application's own backend publishes it."""
        issuer, version = issuer or self.shop, next(self._versions)
        body = {"application": issuer.application, "object": name, "version": version}
        async with self.http.post(self.gateway.url + "/v1/publish", json=body, headers=bearer(issuer.publish_key)) as answer:
            assert answer.status == 200, await answer.text()
        return version

    @contextlib.asynccontextmanager
    async def innocent(self, user: str = "ann") -> AsyncIterator[roskva.Client]:
        """A good client beside whatever happens: it registers before, and after it is notified and in sync, under the same id.

        The bank has something to tell meanwhile, too.
        """
        name = f"inbox:{user}"
        async with roskva.Client(self.gateway.url, application="shop", credential=self.shop.credential(user), device="her-phone") as client:
            await client.register(name)
            await heard(client, None)
            token = token_of(client)
            self.secrets.add(token)
            yield client
            await self.publish(LEDGER, self.bank)
            await heard(client, await self.publish(name))
            await client.synced(10)
            async with asyncio.timeout(10):
                while not client.in_sync:
                    await asyncio.sleep(0.01)
            assert token_of(client) == token, "it had to begin anew"
        self.learned_nothing()

    def learned_nothing(self) -> None:
        """No adversary heard of what is not its own, or any secret that it did not know; and no log holds one, whoever showed it."""
        for adversary in self._adversaries:
            knew = "".join(adversary.said)
            own = {message["grant"]["token"] for message in adversary.heard if "grant" in message}
            for message in adversary.heard:
                assert adversary.may_hear.issuperset(told["object"] for told in message.get("notify", ())), message
                text = json.dumps(message)
                for secret in self.secrets | {*self.shop.made, *self.bank.made}:
                    assert secret not in text or secret in knew, (secret, text)
                token = message.get("token", "")
                assert token in {"", *own} or json.dumps(token) in knew, message
        logged = self._logged.text
        for secret in {*self.secrets, *self.shop.made, *self.bank.made, *self._shown()}:
            assert secret not in logged, secret

    def _shown(self) -> Iterable[str]:
        """Tokens and credentials that adversaries sent, good or bad."""
        for adversary in self._adversaries:
            for text in adversary.said:
                said = json.loads(text)
                for shown in (said.get("token", ""), said.get("credential", ""), (said.get("init") or {}).get("prior", "")):
                    if len(shown) >= 8:
                        yield shown


def token_of(client: roskva.Client) -> str:
    assert client._core is not None
    token = client._core._handshake.token
    assert token
    return token


async def heard(client: roskva.Client, version: int | None) -> None:
    """The client is told of this version, and acknowledges what it hears until then. None: of anything."""
    async with asyncio.timeout(WAIT_S):
        async for notification in client:
            client.acknowledge(notification)
            if version is None or notification.version == version:
                return


def summaries(adversary: Adversary) -> list[dict[str, Any]]:
    """All that it was told of anybody's registrations, each once."""
    found: list[dict[str, Any]] = []
    for message in adversary.heard:
        summary = message.get("summary")
        if summary is not None and summary not in found:
            found.append(summary)
    return found
