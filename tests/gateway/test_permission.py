"""Who may call what over HTTP (gateway/permission.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from roskva.access.publish_keys import hash_of, new_key
from roskva.config import ApplicationSettings
from roskva.gateway.service import Gateway
from roskva.keys import bearer, load_keys
from tests.gateway.conftest import Start

FOR_OPERATORS = [
    ("GET", "/v1/status"),
    ("GET", "/metrics"),
    ("GET", "/v1/dead-letters?limit=nonsense"),
    ("GET", "/v1/inspect/clients/x?limit=nonsense"),
    ("GET", "/v1/inspect/objects/demo/x?limit=nonsense"),
    ("POST", "/v1/reset"),
]
FOR_EVERYBODY = ["/healthz", "/readyz", "/v1/openapi.json", "/", "/demo.js", "/demo.css", "/roskva.js"]


@pytest.mark.parametrize(("method", "path"), FOR_OPERATORS)
async def test_what_is_for_operators_is_refused_before_anything_is_read(
    gateway: Gateway, anybody: aiohttp.ClientSession, method: str, path: str
) -> None:
    keys = load_keys(gateway.settings.data)
    shown = ["", "Bearer", "Bearer ", f"Bearer {keys.trusted}", f"Basic {keys.admin}", f"Bearer {keys.admin}x", "Bearer ü", "Bearer \udcff"]
    for number, header in enumerate(shown, 1):
        headers = {"Authorization": header} if header else {}
        async with anybody.request(method, gateway.url + path, headers=headers, data=b"\xff") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (401, "administration-refused"), header
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert gateway.metrics.administration_refused == number
    async with anybody.request(method, gateway.url + path, headers={"Authorization": f"bearer {keys.admin}"}) as answer:
        # As good as the request is: the key has let it through.
        assert answer.status == (400 if "nonsense" in path or method == "POST" else 200)
    assert gateway.metrics.administration_refused == len(shown)


async def test_without_a_key_in_the_file_nobody_is_an_operator(gateway: Gateway, anybody: aiohttp.ClientSession) -> None:
    gateway.routes.permission.admin_key = ""
    for headers in ({}, {"Authorization": "Bearer "}):
        async with anybody.get(gateway.url + "/v1/status", headers=headers) as answer:
            assert answer.status == 401


@pytest.mark.parametrize("path", FOR_EVERYBODY)
async def test_what_everybody_may_ask(gateway: Gateway, anybody: aiohttp.ClientSession, path: str) -> None:
    async with anybody.get(gateway.url + path) as answer:
        assert answer.status in ((200, 503) if path == "/readyz" else (200,))


KEYS = [new_key() for _ in range(3)]  # two of the shop's, one of the wiki's
SHOP = ApplicationSettings(publish_keys=(hash_of(KEYS[0]), hash_of(KEYS[1])))
WIKI = ApplicationSettings(publish_keys=(hash_of(KEYS[2]),))
OPEN = ApplicationSettings()


async def publish(http: aiohttp.ClientSession, gateway: Gateway, application: str, key: str = "") -> tuple[int, str, str]:
    """Status and code of all three calls that need a key, which must be alike but for what was asked."""
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/publish", {"application": application, "object": "a", "version": 1}),
        ("POST", "/v1/invalidate", {"application": application, "object": "a"}),
        ("GET", f"/v1/objects/{application}/a", None),
    ]
    answers = []
    for method, path, body in asked:
        async with http.request(method, gateway.url + path, json=body, headers=bearer(key)) as answer:
            error = (await answer.json()).get("error", {})
            answers.append((answer.status, error.get("code", ""), error.get("message", "")))
    known = [(200, "", "") if code == "unknown-object" else (status, code, message) for status, code, message in answers]
    assert len(set(known)) == 1, answers
    return known[0]


async def test_a_key_opens_its_own_application_only(start: Start, anybody: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"shop": SHOP, "wiki": WIKI, "open": OPEN})
    admin = load_keys(gateway.settings.data).admin
    may = {"shop": [KEYS[0], KEYS[1], admin], "wiki": [KEYS[2], admin], "open": [*KEYS, admin, "", "nonsense"]}
    refused = 0
    for application, allowed in may.items():
        for key in [*KEYS, admin, "", "nonsense", KEYS[0] + "x", hash_of(KEYS[0])]:
            status, code, _ = await publish(anybody, gateway, application, key)
            if key in allowed or application == "open":
                assert status == 200, (application, key, code)
            else:
                refused += 3
                assert (status, code) == (401, "publish-key-refused"), (application, key)
            assert gateway.metrics.publish_keys_refused == refused


async def test_whether_an_application_exists_is_not_told_to_those_without_a_key(start: Start, anybody: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"shop": SHOP, "wiki": WIKI, "open": OPEN})
    for key in ("", "nonsense", KEYS[2]):
        _, _, existing = await publish(anybody, gateway, "shop", key)
        _, _, missing = await publish(anybody, gateway, "shup", key)
        assert existing.replace("'shop'", "'shup'") == missing
    assert (await publish(anybody, gateway, "shup", load_keys(gateway.settings.data).admin))[:2] == (404, "unknown-application")


async def test_without_any_keys_everything_is_as_open_as_before(gateway: Gateway, anybody: aiohttp.ClientSession) -> None:
    assert (await publish(anybody, gateway, "demo"))[0] == 200
    assert (await publish(anybody, gateway, "demo", "nonsense"))[0] == 200
    assert (await publish(anybody, gateway, "shup"))[:2] == (404, "unknown-application")


async def test_who_can_publish_nowhere_is_refused_before_the_body_is_read(start: Start, anybody: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"shop": SHOP, "wiki": WIKI})
    for path in ("/v1/publish", "/v1/invalidate"):
        for key, status in (("", 401), ("nonsense", 401), (KEYS[0], 400), (KEYS[2], 400)):
            async with anybody.post(gateway.url + path, data=b"nonsense", headers=bearer(key)) as answer:
                assert answer.status == status, (path, key)
    assert gateway.metrics.publish_requests == 2  # those with a key


async def test_keys_that_come_and_go_count_at_once(start: Start, anybody: aiohttp.ClientSession) -> None:
    gateway = await start(applications={"shop": SHOP})
    assert (await publish(anybody, gateway, "shop", KEYS[0]))[0] == 200
    gateway.applications.replace({"shop": replace(SHOP, publish_keys=SHOP.publish_keys[1:])})
    assert (await publish(anybody, gateway, "shop", KEYS[0]))[0] == 401
    assert (await publish(anybody, gateway, "shop", KEYS[1]))[0] == 200
    gateway.applications.replace({"shop": OPEN})
    assert (await publish(anybody, gateway, "shop"))[0] == 200
