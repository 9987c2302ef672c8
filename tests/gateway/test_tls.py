"""TLS on the one port (gateway/tls.py, gateway/server.py): both protocols over it, renewal, and what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.gateway.opening import OPENING_S
from roskva.gateway.service import Gateway
from roskva.gateway.tls import certificates_of
from roskva.gateway.websocket import HttpConnection, WebSocketConnection
from tests.gateway.certificates import Authority, common_name
from tests.gateway.conftest import Start
from tests.gateway.talking import UPGRADE, Raw, channel_url, frame, handshake, hear_until, say


class Files:
    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "chain.pem", folder / "key.pem"
        self.authority = Authority()
        self.renew("first")

    def renew(self, name: str) -> None:
        self.authority.certify(self.certificate, self.key, name)

    def settings(self) -> dict[str, object]:
        return {"tls_certificate": str(self.certificate), "tls_key": str(self.key), "reload_s": 0.05}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def secure(start: Start, files: Files) -> Gateway:
    return await start(**files.settings())


@pytest.fixture
async def https(files: Files) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=files.authority.trusted())
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def connect(gateway: Gateway, context: ssl.SSLContext) -> Raw:
    host, port = gateway.url.removeprefix("https://").split(":")
    return Raw(*await asyncio.open_connection(host, int(port), ssl=context))


async def connect_plain(gateway: Gateway) -> Raw:
    host, port = gateway.url.removeprefix("https://").split(":")
    return Raw(*await asyncio.open_connection(host, int(port)))


def shown(raw: Raw) -> str:
    der = raw.writer.get_extra_info("ssl_object").getpeercert(True)
    return common_name(der)


async def test_a_client_and_a_publisher_over_tls(secure: Gateway, https: aiohttp.ClientSession) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    async with https.ws_connect(channel_url(secure)) as socket:
        token = await handshake(socket)
        (connection,) = secure.router.connections.values()
        assert type(connection) is WebSocketConnection  # on picows
        await say(socket, token=token, register=[{"op": 1, "object": "o"}])
        body = json.dumps({"application": "demo", "object": "o", "version": 7})
        async with https.post(secure.url + "/v1/publish", data=body) as answer:
            assert answer.status == 200
            assert await answer.json() == {"results": [{"ok": True}]}
        await say(socket, token=token)
        assert (await hear_until(socket, "token"))["token"] == token
    assert secure.metrics.updates_appended == 1


async def test_large_messages_go_both_ways_over_tls(secure: Gateway, https: aiohttp.ClientSession) -> None:
    async with https.ws_connect(channel_url(secure)) as socket:
        await say(socket, init={"nonce": "n", "application": "demo", "device": "d"}, padding="x" * 500_000)
        assert (await hear_until(socket, "grant"))["grant"]["nonce"] == "n"
        (connection,) = secure.router.connections.values()
        sizes = [30, 9_000, 40, 70_000, 50, 200_000]
        for size in sizes:
            connection.send(b"x" * size)
        async with asyncio.timeout(10):
            assert [len((await socket.receive()).data) for _ in sizes] == sizes


async def test_a_websocket_after_other_requests_goes_over_tls_too(secure: Gateway, files: Files) -> None:
    raw = await connect(secure, files.authority.trusted())
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
    await raw.reader.readexactly(len(b'{"alive":true}'))
    await raw.send(UPGRADE)
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    await raw.send(frame(1, b'{"init":{"nonce":"n","application":"demo","device":"d"}}'))
    async with asyncio.timeout(10):
        assert b'"grant"' in await raw.reader.read(4096)
    (connection,) = secure.router.connections.values()
    assert type(connection) is HttpConnection
    await raw.close()


async def test_an_upgrade_in_many_small_pieces_over_tls(secure: Gateway, files: Files) -> None:
    raw = await connect(secure, files.authority.trusted())
    for place in range(0, len(UPGRADE), 7):
        await raw.send(UPGRADE[place : place + 7])
        await asyncio.sleep(0.001)
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    await raw.close()


async def test_http_1_1_is_agreed_on_and_old_versions_of_tls_are_not(secure: Gateway, files: Files) -> None:
    context = files.authority.trusted()
    context.set_alpn_protocols(["h2", "http/1.1"])
    raw = await connect(secure, context)
    ssl_object = raw.writer.get_extra_info("ssl_object")
    assert ssl_object.selected_alpn_protocol() == "http/1.1"
    assert ssl_object.version() in {"TLSv1.2", "TLSv1.3"}
    await raw.close()
    assert secure.port.certificates is not None
    assert secure.port.certificates.context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_renewed_certificate_is_used_for_new_connections(secure: Gateway, files: Files, https: aiohttp.ClientSession) -> None:
    trusted = files.authority.trusted()
    old = await connect(secure, trusted)
    assert shown(old) == "first"
    async with https.ws_connect(channel_url(secure)) as socket:
        token = await handshake(socket)
        files.renew("second")
        async with asyncio.timeout(10):
            while True:
                new = await connect(secure, trusted)
                name = shown(new)
                await new.close()
                if name == "second":
                    break
                await asyncio.sleep(0.02)
        await say(socket, token=token)  # connections that exist stay
        assert (await hear_until(socket, "token"))["token"] == token
    await old.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await old.read_head()).startswith(b"HTTP/1.1 200 ")
    await old.close()


async def test_a_bad_new_pair_is_logged_and_the_old_one_goes_on(secure: Gateway, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roskva.gateway.tls")
    before = files.key.read_bytes()
    files.renew("second")
    files.key.write_bytes(before)  # the key of the first
    async with asyncio.timeout(10):
        while "does not belong to the certificate" not in caplog.text:
            await asyncio.sleep(0.02)
    assert str(files.key) in caplog.text
    raw = await connect(secure, files.authority.trusted())
    assert shown(raw) == "first"
    await raw.close()
    os.remove(files.key)
    async with asyncio.timeout(10):
        while f"{files.key} cannot be read" not in caplog.text:
            await asyncio.sleep(0.02)
    told = len(caplog.records)
    await asyncio.sleep(0.3)
    assert len(caplog.records) == told  # once for each change, not for each look
    files.renew("third")
    async with asyncio.timeout(10):
        while "was read again" not in caplog.text:
            await asyncio.sleep(0.02)
    raw = await connect(secure, files.authority.trusted())
    assert shown(raw) == "third"
    await raw.close()


async def test_plain_http_to_a_tls_port_is_refused_at_once(secure: Gateway, https: aiohttp.ClientSession) -> None:
    raw = await connect_plain(secure)
    began_s = time.monotonic()
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"200 OK" not in await raw.read_to_end()
    assert time.monotonic() - began_s < OPENING_S / 2
    await raw.close()
    assert secure.metrics.connections_refused == 1
    assert not secure.port.openings
    async with https.get(secure.url + "/healthz") as answer:
        assert answer.status == 200


async def test_tls_to_a_plain_port_is_refused_at_once(gateway: Gateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(host, int(port), ssl=Authority().trusted())
    async with asyncio.timeout(5):
        while gateway.port.openings:
            await asyncio.sleep(0.01)
    assert gateway.metrics.connections_refused == 1


async def test_a_tls_handshake_that_does_not_come_is_an_opening_and_ends_like_one(secure: Gateway) -> None:
    silent = await connect_plain(secure)
    async with asyncio.timeout(5):
        while not secure.port.openings:
            await asyncio.sleep(0.01)
    secure.port.sweep(time.monotonic() + OPENING_S - 1)
    assert len(secure.port.openings) == 1  # not yet
    secure.port.sweep(time.monotonic() + OPENING_S + 1)
    assert await silent.read_to_end() == b""
    async with asyncio.timeout(5):
        while secure.port.openings:
            await asyncio.sleep(0.01)
    await silent.close()


async def test_a_peer_that_hangs_up_during_the_handshake_is_forgotten(secure: Gateway) -> None:
    for _ in range(5):
        await (await connect_plain(secure)).close()
    async with asyncio.timeout(5):
        while secure.port.openings or not secure.metrics.connections_refused:
            await asyncio.sleep(0.01)


async def test_tls_handshakes_count_for_connections_max(start: Start, files: Files) -> None:
    gateway = await start(connections_max=2, **files.settings())
    waiting = [await connect_plain(gateway) for _ in range(2)]
    async with asyncio.timeout(5):
        while len(gateway.port.openings) < 2:
            await asyncio.sleep(0.01)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(gateway, files.authority.trusted())
    assert gateway.metrics.limited_connections == 1
    for raw in waiting:
        await raw.close()
    async with asyncio.timeout(5):
        while gateway.port.full():
            await asyncio.sleep(0.01)
    await (await connect(gateway, files.authority.trusted())).close()


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key"])
async def test_one_of_the_two_alone_is_refused(start: Start, files: Files, missing: str) -> None:
    with pytest.raises(InvalidSetting, match=missing):
        await start(**{**files.settings(), missing: ""})


def test_files_that_cannot_be_used_are_named(files: Files, tmp_path: Path) -> None:
    settings = Settings(tls_certificate=str(files.certificate), tls_key=str(files.key))
    other = tmp_path / "other.pem"
    assert certificates_of(settings) is not None
    with pytest.raises(InvalidSetting, match=r"tls_key: .*other\.pem cannot be read: No such file"):
        certificates_of(Settings(tls_certificate=str(files.certificate), tls_key=str(other)))
    files.authority.certify(tmp_path / "another.pem", other)
    with pytest.raises(InvalidSetting, match=r"other\.pem does not belong to the certificate in .*chain\.pem"):
        certificates_of(Settings(tls_certificate=str(files.certificate), tls_key=str(other)))
    other.write_text("nonsense")
    with pytest.raises(InvalidSetting, match="not a certificate chain and its unencrypted key in PEM"):
        certificates_of(Settings(tls_certificate=str(files.certificate), tls_key=str(other)))
    assert certificates_of(Settings()) is None


async def test_over_tls_a_plain_page_of_the_same_host_is_another_origin(secure: Gateway, https: aiohttp.ClientSession) -> None:
    for origin, status in ((secure.url, 200), (secure.url.replace("https", "http"), 403)):
        async with https.get(secure.url + "/healthz", headers={"Origin": origin}) as answer:
            assert answer.status == status
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await https.ws_connect(channel_url(secure), origin=secure.url.replace("https", "http"))
    async with https.ws_connect(channel_url(secure), origin=secure.url) as socket:
        assert await handshake(socket)


async def test_two_gateways_share_a_port_that_speaks_tls(start: Start, files: Files) -> None:
    one = await start("left", share_port=True, **files.settings())
    two = await start("two", share_port=True, **files.settings() | {"listen": one.url.removeprefix("https://")})
    async with asyncio.timeout(20):
        while not all(gateway.metrics.connections_opened for gateway in (one, two)):
            connector = aiohttp.TCPConnector(ssl=files.authority.trusted())
            async with aiohttp.ClientSession(connector=connector) as fresh, fresh.ws_connect(channel_url(one)) as socket:
                await handshake(socket)
