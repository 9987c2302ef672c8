"""Who may call what over HTTP (gateway/permission.py)."""

from __future__ import annotations

import aiohttp
import pytest

from roskva.gateway.service import Gateway
from roskva.keys import load_keys

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
    shown = ["", "Bearer", "Bearer ", f"Bearer {keys.trusted}", f"Basic {keys.admin}", f"Bearer {keys.admin}x", "Bearer ü"]
    for number, header in enumerate(shown, 1):
        headers = {"Authorization": header} if header else {}
        async with anybody.request(method, gateway.url + path, headers=headers, data=b"\xff") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (401, "administration-refused"), header
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert gateway.metrics.administration_refused == number
    async with anybody.request(method, gateway.url + path, headers={"Authorization": f"bearer {keys.admin}"}) as answer:
        assert answer.status in (200, 400)
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
