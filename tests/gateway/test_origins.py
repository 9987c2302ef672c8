"""Pages of other origins: which may call, and what they may call then (gateway/origins.py)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from roskva.config import ApplicationSettings, Settings, Sources
from roskva.gateway.service import Gateway
from roskva.gateway.websocket import HttpConnection, WebSocketConnection
from tests.gateway.conftest import Start, close_engines
from tests.gateway.talking import UPGRADE, Raw, channel_url, close_of, frame, handshake, hear_until, say
from tests.gateway.test_reloading import write

SHOP, WIKI, STRANGER = "https://shop.example", "https://wiki.example:8443", "https://elsewhere.example"


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    applications = {
        "demo": ApplicationSettings(),
        "shop": ApplicationSettings(origins=(SHOP,)),
        "wiki": ApplicationSettings(origins=(WIKI, "https://Other.example")),
    }
    return await start(applications=applications)


def update(application: str) -> str:
    return json.dumps({"application": application, "object": "o", "version": 1})


async def test_a_websocket_of_a_listed_page_speaks_only_with_the_application_that_lists_it(
    gateway: Gateway, http: aiohttp.ClientSession
) -> None:
    async with http.ws_connect(channel_url(gateway)) as own, http.ws_connect(channel_url(gateway), origin=SHOP) as page:
        token = await handshake(own)
        _, connection = gateway.router.connections.values()
        assert type(connection) is WebSocketConnection
        assert connection.party.origin == SHOP
        for refused in ({"init": {"nonce": "n", "application": "wiki", "device": "d"}}, {"token": token}):
            await say(page, **refused)
            error = (await hear_until(page, "error"))["error"]
            assert (error["code"], error.get("transient", False)) == ("origin-refused", False)
        assert gateway.metrics.origins_refused == 2
        await say(page, init={"nonce": "n", "application": "shop", "device": "d"})
        grant = (await hear_until(page, "grant"))["grant"]
        assert grant["nonce"] == "n"
        await say(page, token=grant["token"])
        await hear_until(page, "summary")
        assert connection.party.application == "shop"


async def test_a_websocket_of_an_unknown_page_is_refused(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for origin in (STRANGER, "null", "https://shop.example.evil.example", "http://shop.example"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(channel_url(gateway), origin=origin)
        assert refused.value.status == 403
    assert gateway.metrics.origins_refused == 4
    async with http.ws_connect(channel_url(gateway), origin="https://other.example") as socket:  # as browsers write it
        await say(socket, init={"nonce": "n", "application": "wiki", "device": "d"})
        assert "grant" in await hear_until(socket, "grant")


async def test_a_websocket_on_a_connection_that_was_used_before_remembers_the_page(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    await raw.read_head()
    await raw.reader.readexactly(len(b'{"alive":true}'))
    await raw.send(UPGRADE.replace(b"Host: h\r\n", f"Host: h\r\nOrigin: {WIKI}\r\n".encode()))
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    await raw.send(frame(1, b'{"init":{"nonce":"n","application":"shop","device":"d"}}'))
    async with asyncio.timeout(10):
        assert b"origin-refused" in await raw.reader.read(4096)
    (connection,) = gateway.router.connections.values()
    assert type(connection) is HttpConnection
    assert connection.party.origin == WIKI
    await raw.close()


async def test_a_polled_channel_remembers_the_page(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    page = {"Origin": SHOP}
    async with http.post(gateway.url + "/v1/channels", headers=page) as answer:
        assert answer.status == 201
        assert answer.headers["Access-Control-Allow-Origin"] == SHOP
        url = gateway.url + "/v1/channels/" + (await answer.json())["id"]
    for application, told in (("wiki", "origin-refused"), ("shop", '"grant"')):
        init = json.dumps({"init": {"nonce": "n", "application": application, "device": "d"}})
        async with http.post(url, data=init, headers=page) as answer:
            assert answer.status == 204
        async with http.get(url + "?wait_s=5", headers=page) as answer:
            assert told in await answer.text()
            assert answer.headers["Access-Control-Allow-Origin"] == SHOP
    async with http.get(url + "/events", headers=page) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == SHOP
        assert await answer.content.readexactly(3) == b":\n\n"
    async with http.post(gateway.url + "/v1/channels", headers={"Origin": STRANGER}) as answer:
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/publish", "/v1/invalidate"])
async def test_what_a_page_orders_is_for_an_application_that_lists_it(gateway: Gateway, anybody: aiohttp.ClientSession, path: str) -> None:
    body = {"shop": {"application": "shop", "object": "o"}, "wiki": {"application": "wiki", "object": "o"}}
    if path == "/v1/publish":
        body = {name: json.loads(update(name)) for name in body}
    for application, origin, status in (("shop", SHOP, 200), ("wiki", SHOP, 403), ("wiki", STRANGER, 403), ("wiki", gateway.url, 200)):
        async with anybody.post(gateway.url + path, data=json.dumps(body[application]), headers={"Origin": origin}) as answer:
            assert answer.status == status, await answer.text()
            # Whoever is listed may read why it was refused.
            assert answer.headers.get("Access-Control-Allow-Origin") == (SHOP if origin == SHOP else None)
            assert answer.headers.get("Vary") == ("Origin" if origin == SHOP else None)
            if status == 403:
                assert (await answer.json())["error"]["code"] == "origin-refused"
    assert gateway.metrics.origins_refused == 2


async def test_a_page_asks_for_versions_of_objects_of_its_application(gateway: Gateway, anybody: aiohttp.ClientSession) -> None:
    for application, code in (("shop", "unknown-object"), ("wiki", "origin-refused")):
        async with anybody.get(f"{gateway.url}/v1/objects/{application}/o", headers={"Origin": SHOP}) as answer:
            assert (await answer.json())["error"]["code"] == code
            assert answer.headers["Access-Control-Allow-Origin"] == SHOP


async def test_a_browser_asks_before_it_calls(gateway: Gateway, anybody: aiohttp.ClientSession) -> None:
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    async with anybody.options(gateway.url + "/v1/publish", headers=asking | {"Origin": SHOP}) as answer:
        assert answer.status == 204
        told = {name: value for name, value in answer.headers.items() if name.startswith("Access-Control") or name == "Vary"}
    assert told == {
        "Access-Control-Allow-Origin": SHOP,
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
        "Access-Control-Expose-Headers": "Retry-After",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    async with anybody.options(gateway.url + "/v1/publish", headers=asking | {"Origin": STRANGER}) as answer:
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers
    async with anybody.options(gateway.url + "/v1/publish", headers={"Origin": SHOP}) as answer:
        assert answer.status == 405  # no such question


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/status"), ("GET", "/metrics"), ("GET", "/v1/dead-letters"), ("POST", "/v1/reset"), ("GET", "/v1/inspect/clients/c"),
        ("GET", "/v1/inspect/objects/shop/o"), ("GET", "/v1/trusted"), ("OPTIONS", "/v1/reset"), ("GET", "/v1/nothing"),
    ],
)  # fmt: skip
async def test_what_is_for_operators_is_never_for_a_page_of_another_origin(
    gateway: Gateway, http: aiohttp.ClientSession, method: str, path: str
) -> None:
    headers = {"Origin": SHOP, "Access-Control-Request-Method": "POST"}
    async with http.request(method, gateway.url + path, headers=headers) as answer:  # although it shows the operators' key
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == "origin-refused"
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_origins_change_without_a_restart(gateway: Gateway, anybody: aiohttp.ClientSession) -> None:
    before = dict(gateway.applications.now)
    gateway.applications.replace(before | {"shop": ApplicationSettings(origins=(STRANGER,))})
    for origin, status in ((STRANGER, 200), (SHOP, 403)):
        async with anybody.post(gateway.url + "/v1/publish", data=update("shop"), headers={"Origin": origin}) as answer:
            assert answer.status == status
    gateway.applications.replace(before)
    async with anybody.post(gateway.url + "/v1/publish", data=update("shop"), headers={"Origin": SHOP}) as answer:
        assert answer.status == 200


PORT = "PORT"  # that the gateway listens on
# (host of the page and of the request, its other fields, whether the page counts as the gateway's own)
HOSTS = [
    ("127.0.0.1:PORT", {}, True),
    ("localhost:PORT", {}, True),
    ("LocalHost:PORT", {}, True),
    ("[::1]:PORT", {}, True),
    ("127.0.0.1:8080", {}, True),  # a tunnel
    ("shop.internal", {"X-Forwarded-For": "192.0.2.1"}, True),  # nginx
    ("shop.internal:8080", {"X-Forwarded-For": "192.0.2.1"}, True),
    ("evil.example:PORT", {}, False),  # its name points to this machine by now
    ("evil.example:PORT", {"X-Forwarded-For": "192.0.2.1"}, False),  # which a page of ours may write, so one of theirs, too
    ("evil.example", {}, False),
    ("127.0.0.1.evil.example:PORT", {}, False),
    ("localhost.evil.example:PORT", {}, False),
    ("10.0.0.1:PORT", {}, False),
]


@pytest.mark.parametrize(("host", "fields", "own"), HOSTS)
async def test_on_a_port_of_this_machine_no_name_that_points_here_makes_a_page_our_own(
    gateway: Gateway, anybody: aiohttp.ClientSession, host: str, fields: dict[str, str], own: bool
) -> None:
    host = host.replace(PORT, gateway.url.rpartition(":")[2])
    headers = {"Host": host, "Origin": f"http://{host.lower()}", **fields}
    for path, body in (("/v1/publish", update("demo")), ("/v1/channels", "")):
        async with anybody.post(gateway.url + path, data=body, headers=headers) as answer:
            assert answer.status == ({"/v1/publish": 200, "/v1/channels": 201}[path] if own else 403), await answer.text()
    raw = await Raw.connect(gateway)
    await raw.send(UPGRADE.replace(b"Host: h\r\n", "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()))
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 " if own else b"HTTP/1.1 403 ")
    await raw.close()
    assert gateway.metrics.origins_refused == (0 if own else 3)


async def test_what_is_no_proxy_is_not_believed_when_it_forwards(start: Start, anybody: aiohttp.ClientSession) -> None:
    gateway = await start(proxies=("192.0.2.7",))
    headers = {"Host": "shop.internal", "Origin": "http://shop.internal", "X-Forwarded-For": "192.0.2.1"}
    async with anybody.post(gateway.url + "/v1/publish", data=update("demo"), headers=headers) as answer:
        assert answer.status == 403


async def test_pages_that_are_no_longer_listed_are_cut_off(settings: Settings, tmp_path: Path, anybody: aiohttp.ClientSession) -> None:
    """Not those that the same change leaves alone: pages of other applications, of our own, and whoever is no page."""
    file = tmp_path / "roskva.toml"
    shop, wiki = f'[applications.shop]\norigins = ["{SHOP}"]\n', f'[applications.wiki]\norigins = ["{WIKI}", "{SHOP}"]\n'
    write(file, shop + wiki)
    sources = Sources(file, True, {}, {"data": str(settings.data), "listen": settings.listen, "reload_s": "0.05"})
    gateway = Gateway(sources.load(), sources=sources)
    await gateway.start()
    try:
        url = channel_url(gateway)
        async with (
            anybody.ws_connect(url, origin=SHOP) as page,
            anybody.ws_connect(url, origin=SHOP) as page_of_wiki,
            anybody.ws_connect(url, origin=SHOP) as silent_page,
            anybody.ws_connect(url, origin=WIKI) as other,
            anybody.ws_connect(url, origin=gateway.url) as own,
        ):
            applications = {page: "shop", page_of_wiki: "wiki", other: "wiki", own: "shop"}
            for socket, application in applications.items():
                await say(socket, init={"nonce": "n", "application": application, "device": "d"})
                token = (await hear_until(socket, "grant"))["grant"]["token"]
                await say(socket, token=token)
                await hear_until(socket, "summary")
            async with anybody.post(gateway.url + "/v1/channels", headers={"Origin": SHOP}) as answer:
                polled = gateway.url + "/v1/channels/" + (await answer.json())["id"]
            write(file, "[applications.shop]\n" + wiki)
            assert (await hear_until(page, "error"))["error"]["code"] == "origin-refused"
            assert await close_of(page) == (1008, "origin-refused")
            assert gateway.metrics.origins_refused == 1
            write(file, "[applications.shop]\n" + wiki.replace(f', "{SHOP}"', ""))
            for socket in (page_of_wiki, silent_page):
                assert await close_of(socket) == (1008, "origin-refused")
            async with anybody.get(polled, headers={"Origin": WIKI}) as answer:
                assert "origin-refused" in await answer.text()
            assert gateway.metrics.origins_refused == 4
            for socket in (other, own):
                await say(socket, init={"nonce": "again", "application": applications[socket], "device": "d"})
                assert (await hear_until(socket, "grant"))["grant"]["nonce"] == "again"
    finally:
        await gateway.stop()
        close_engines(gateway.settings)
