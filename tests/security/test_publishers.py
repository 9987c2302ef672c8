"""Backends and operators that are none: publishing and administration without the key, with a wrong one, or one of somebody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from roskva.access.publish_keys import hash_of, new_key
from roskva.feed import UPDATES, open_feed
from roskva.gateway.http import served
from roskva.keys import bearer, load_keys
from tests.gateway.talking import WAIT_S, Raw
from tests.security.adversary import LEDGER, LETTERS, Town

# What anybody may ask; all else is for operators, or for those with a key of the application.
OPEN = {
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/v1/openapi.json"),
    ("get", "/"),
    ("get", "/demo.css"),
    ("get", "/demo.js"),
    ("get", "/roskva.js"),
    ("get", "/v1/channel"),
    ("get", "/v1/trusted"),  # has a key of its own
    ("post", "/v1/channels"),
    ("get", "/v1/channels/{id}"),
    ("post", "/v1/channels/{id}"),
    ("delete", "/v1/channels/{id}"),
    ("get", "/v1/channels/{id}/events"),
    ("post", "/v1/channels/{id}/close"),
}
WITH_KEY = {("post", "/v1/publish"), ("post", "/v1/invalidate"), ("get", "/v1/objects/{application}/{name}")}


class Calls:
    """Over HTTP, with whatever was answered kept."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.answers: list[str] = []
        self.shown: set[str] = set()

    async def call(self, method: str, path: str, key: str = "", body: Any = None, header: str = "") -> tuple[int, str]:
        """Status, and the code of the error if it is one."""
        headers = {"Authorization": header} if header else bearer(key)
        self.shown |= {one for one in (key, header) if len(one) > 12}
        async with self.town.http.request(method, self.town.gateway.url + path, json=body, headers=headers) as answer:
            text = await answer.text()
            self.answers += [text, str(dict(answer.headers))]
            return answer.status, json.loads(text).get("error", {}).get("code", "") if answer.content_type == "application/json" else ""

    def told_no_secrets(self, logged: str) -> None:
        keys = load_keys(self.town.gateway.settings.data)
        known = {keys.admin, keys.trusted, keys.internal.hex(), self.town.shop.publish_key, self.town.bank.publish_key, *self.shown}
        known |= {hash_of(key).partition(":")[2] for key in known}
        for secret in known:
            assert secret not in logged, secret
            for answer in self.answers:
                assert secret not in answer, (secret, answer)


def updates_of(town: Town) -> int:
    """How many there are in the feed."""
    return sum(position.offset for position in open_feed(town.gateway.settings).newest(UPDATES).values())


async def test_publishing_needs_a_key_of_the_application(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(town)
    shop, bank, metrics = town.shop.publish_key, town.bank.publish_key, town.gateway.metrics
    admin, trusted = town.admin_key, load_keys(town.gateway.settings.data).trusted
    wrong = ["", new_key(), bank, trusted, hash_of(shop), hash_of(shop).partition(":")[2], shop[:-1], shop + "x", shop.upper(), "rk_"]
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/publish", {"application": "shop", "object": LETTERS, "version": 9_000}),
        ("POST", "/v1/publish", {"application": "shop", "updates": [{"object": LETTERS, "version": 9_000}] * 3}),
        ("POST", "/v1/publish", {"application": "shop", "raw": [{"object": LETTERS, "version": 9_000}]}),
        ("POST", "/v1/invalidate", {"application": "shop", "object": LETTERS}),
        ("POST", "/v1/invalidate", {"application": "shop", "prefix": "inbox:"}),
        ("GET", "/v1/objects/shop/inbox:ann", None),
        ("GET", "/v1/objects/bank%2F..%2Fshop/inbox:ann", None),
    ]
    async with town.innocent():
        before, refused = updates_of(town), 0
        for method, path, body in asked:
            for key in wrong:
                refused += 1
                assert await calls.call(method, path, key, body) == (401, "publish-key-refused"), (path, key)
                assert metrics.publish_keys_refused == refused
            for header in (f"Basic {shop}", f"bearer{shop}", shop, f"Bearer,{shop}", f"Token {shop}"):
                refused += 1
                assert await calls.call(method, path, body=body, header=header) == (401, "publish-key-refused"), (path, header)
            for query in (f"?key={shop}", f"?access_token={shop}", f"?authorization=Bearer%20{shop}"):
                refused += 1
                calls.shown.add(shop)
                assert await calls.call(method, path + query, "", body) == (401, "publish-key-refused")
        assert metrics.publish_keys_refused == refused
        assert updates_of(town) == before
        # The bank's key opens the bank's, and an operator's both.
        change = {"object": LEDGER, "version": 9_001}
        assert await calls.call("POST", "/v1/publish", bank, {"application": "bank", **change}) == (200, "")
        assert await calls.call("POST", "/v1/publish", shop, {"application": "bank", **change}) == (401, "publish-key-refused")
        for application in ("shop", "bank"):
            assert await calls.call("POST", "/v1/publish", admin, {"application": application, "object": "news:1", "version": 1}) == (
                200,
                "",
            )
        assert await calls.call("POST", "/v1/publish", "", {"application": "nowhere", **change}) == (401, "publish-key-refused")
        assert updates_of(town) == before + 3
    calls.told_no_secrets(caplog.text)


async def published(calls: Calls, path: str, key: str) -> None:
    """Until the Matcher knows it."""
    async with asyncio.timeout(WAIT_S):
        while (found := await calls.call("GET", path, key)) != (200, ""):
            assert found == (404, "unknown-object")
            await asyncio.sleep(0.05)


async def test_a_batch_is_for_one_application_and_says_nothing_of_others(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(town)
    body = {
        "application": "shop",
        "updates": [{"application": "bank", "object": LEDGER, "version": 1}, {"object": f"bank/{LEDGER}", "version": 1}],
    }
    async with town.innocent():
        before = updates_of(town)
        assert await calls.call("POST", "/v1/publish", town.shop.publish_key, body) == (200, "")
        # The batch says whose it is. An update that says so itself is refused, and a name with a slash is a name of the shop's.
        refused, accepted = json.loads(calls.answers[-2])["results"]
        assert (refused["error"]["code"], accepted) == ("malformed-message", {"ok": True})
        assert updates_of(town) == before + 1
        await published(calls, f"/v1/objects/shop/bank%2F{LEDGER}", town.shop.publish_key)
        assert await calls.call("GET", f"/v1/objects/shop/{LEDGER}", town.shop.publish_key) == (404, "unknown-object")
        assert await calls.call("GET", f"/v1/objects/bank/{LEDGER}", town.bank.publish_key) == (404, "unknown-object")
        # A client's token and credential are no keys, and a key is no credential.
        adversary = await town.adversary()
        credential = town.shop.credential("eve")
        token = await adversary.enter(credential)
        for shown in (token, credential):
            assert await calls.call("POST", "/v1/publish", shown, body) == (401, "publish-key-refused")
        assert town.gateway.metrics.publish_keys_refused == 2
        init = {"nonce": "n", "application": "shop", "device": "den"}
        for key in (town.shop.publish_key, town.admin_key):
            other = await town.adversary()
            assert await other.wanted(init=init, credential=key) == "credential-refused"
        assert town.gateway.registrar.counters.credentials_refused == 2
    calls.told_no_secrets(caplog.text)


async def test_administration_needs_its_key(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """Every route that is neither open nor for backends: a new one is found here."""
    calls = Calls(town)
    routes = served(town.gateway.routes.application()) - OPEN - WITH_KEY
    assert served(town.gateway.routes.application()) >= OPEN | WITH_KEY
    assert {path for _, path in routes} >= {"/v1/status", "/metrics", "/v1/reset", "/v1/erase", "/v1/dead-letters"}
    keys = load_keys(town.gateway.settings.data)
    wrong = ["", new_key(), town.shop.publish_key, town.bank.publish_key, keys.trusted, keys.admin[:-1], keys.admin + "x"]
    body = {"application": "shop", "user": "ann"}
    async with town.innocent():
        refused = 0
        for method, path in sorted(routes):
            for old, new in (("{application}", "shop"), ("{name}", "inbox:ann"), ("{user}", "ann"), ("{id}", "x")):
                path = path.replace(old, new)
            for key in wrong:
                refused += 1
                answer = await calls.call(method, path, key, body if method == "post" else None)
                assert answer == (401, "administration-refused"), (path, key)
            for query in (f"?key={keys.admin}", f"?admin={keys.admin}"):
                refused += 1
                assert await calls.call(method, path + query) == (401, "administration-refused")
            assert town.gateway.metrics.administration_refused == refused
        assert len(town.gateway.registrar.sessions) == 1, "nobody was erased"
        status, code = await calls.call("GET", "/v1/inspect/users/shop/ann", keys.admin)
        assert (status, code) == (200, "")
        calls.answers.pop()
        calls.shown.add(keys.admin)
    assert not any(LETTERS in answer for answer in calls.answers)
    calls.told_no_secrets(caplog.text)


async def test_the_line_of_trusted_servers_needs_its_key(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(town)
    async with town.innocent():
        for number, key in enumerate(("", new_key(), town.admin_key, town.shop.publish_key, "ü"), 1):
            assert await calls.call("GET", "/v1/trusted", key) == (401, "trust-refused")
            assert town.gateway.metrics.trust_refused == number
        for path in (b"/v1/trusted", b"/v1/status", b"/v1/objects/shop/x"):  # bytes that are no text
            raw = await Raw.connect(town.gateway)
            await raw.send(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
            assert (await raw.read_head()).startswith(b"HTTP/1.1 401 ")
            await raw.close()
    calls.told_no_secrets(caplog.text)
