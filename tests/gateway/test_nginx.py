"""Behind a real nginx with its default time limits, with and without the two lines that let WebSockets through."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from roskva.client.choice import AUTO, LONG_POLL, WEBSOCKET
from roskva.config import ApplicationSettings
from roskva.gateway import polled, polling
from roskva.gateway.service import Gateway
from tests.gateway.conftest import Start
from tests.gateway.matching import SmallMatcher
from tests.gateway.test_channels import OBJECTS, QUICK, QUICK_CLIENT, Learner, until

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
NGINX_READ_S = 60  # its default proxy_read_timeout

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx: `make test` installs one where it may")

UPGRADE = 'proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";'
CONFIGURATION = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {service};
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            {upgrade}
        }}
    }}
}}
"""


@contextlib.asynccontextmanager
async def nginx(folder: Path, service: str, upgrade: str) -> AsyncIterator[str]:
    """Its address, while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    user = f"user {getpass.getuser()};" if os.getuid() == 0 else ""  # else its worker could not read the folder
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(user=user, folder=folder, port=port, service=service, upgrade=upgrade))
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(NGINX, "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(configuration))
    try:
        async with asyncio.timeout(10):
            while not await _listens(port):
                assert process.returncode is None, (folder / "error.log").read_text()
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    return await start(applications={"demo": QUICK})


@pytest.mark.parametrize(
    ("upgrade", "asked", "channel"),
    [(UPGRADE, AUTO, WEBSOCKET), ("", AUTO, LONG_POLL), (UPGRADE, LONG_POLL, LONG_POLL)],
    ids=["with upgrade", "without", "long polls where upgrades work"],
)
async def test_the_client_finds_its_way(gateway: Gateway, tmp_path: Path, upgrade: str, asked: str, channel: str) -> None:
    async with nginx(tmp_path, gateway.url, upgrade) as url, SmallMatcher(gateway) as matcher:
        learner = Learner(url, config=QUICK_CLIENT, channel=asked)
        async with learner.client:
            await learner.register()
            assert learner.client.channel == channel
            for version in range(1, 6):
                await asyncio.gather(*(matcher.publish(name, version) for name in OBJECTS))
            await learner.learns(5)
            assert len(gateway.router.connections) == 1
        await until(lambda: not gateway.registrar.sessions)  # its goodbye came through
    assert gateway.registrar.counters.handshakes == 1


async def test_events_are_not_held_back(gateway: Gateway, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with nginx(tmp_path, gateway.url, "") as url:
        async with http.post(url + "/v1/channels") as answer:
            identity = (await answer.json())["id"]
        async with http.get(f"{url}/v1/channels/{identity}/events") as stream, asyncio.timeout(10):
            assert await stream.content.readuntil(b"\n\n") == b":\n\n"
            async with http.post(
                f"{url}/v1/channels/{identity}", data=b'{"init":{"nonce":"n","application":"demo","device":"d"}}'
            ) as answer:
                assert answer.status == 204
            event = await stream.content.readuntil(b"\n\n")
            assert json.loads(event.removeprefix(b"data: "))["grant"]["nonce"] == "n"
        await until(lambda: gateway.port.polls.named(identity) in gateway.port.polls._unattended)  # nginx tells that the reader left


async def test_a_page_is_of_the_same_origin_where_nginx_passes_on_the_host(
    gateway: Gateway, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with nginx(tmp_path, gateway.url, "") as url:
        async with http.post(url + "/v1/channels", headers={"Origin": url}) as answer:
            assert answer.status == 201
        async with http.post(url + "/v1/channels", headers={"Origin": "http://elsewhere.example"}) as answer:
            assert answer.status == 403


async def test_limits_count_for_the_address_that_nginx_saw(start: Start, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    gateway = await start(connections_per_address_max=1)
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with nginx(tmp_path, gateway.url, UPGRADE) as url, aiohttp.ClientSession(connector=connector) as stranger:
        channel = url.replace("http", "ws") + "/v1/channel"
        invented = {"X-Forwarded-For": "127.0.0.1"}  # nginx adds its own after it
        async with stranger.ws_connect(channel):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await stranger.ws_connect(channel, headers=invented)
            assert refused.value.status == 503
            async with stranger.post(url + "/v1/channels", headers=invented) as answer:
                assert (await answer.json())["error"]["code"] == "too-many-connections"
            async with http.ws_connect(channel), http.ws_connect(channel):  # of 127.0.0.1, without limits
                assert len(gateway.router.connections) == 3
    assert gateway.metrics.limited_connections_of_address == 2


def test_nothing_is_silent_for_as_long_as_nginx_waits_by_default() -> None:
    assert polled.WAIT_S < NGINX_READ_S
    assert polling.BEAT_S < NGINX_READ_S
    assert ApplicationSettings().keepalive_s < NGINX_READ_S
