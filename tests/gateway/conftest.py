"""A running gateway on real sockets and real SQLite files, on uvloop as in production."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from roskva.config import Settings
from roskva.feed import open_feed
from roskva.gateway.service import Gateway
from roskva.keys import bearer, load_keys
from roskva.table import open_manifest, open_table


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


Start = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", listen="127.0.0.1:0", send_buffer_bytes_max=64 << 10)


@pytest.fixture
async def start(settings: Settings) -> AsyncIterator[Start]:
    """Starts gateways on the test's data directory, with settings changed; all are stopped at the end, whatever happens."""
    running: list[Gateway] = []

    async def begin(member_id: str = "", **changes: object) -> Gateway:
        gateway = Gateway(dataclasses.replace(settings, **changes), member_id)  # type: ignore[arg-type]  # any setting, each of its own type
        await gateway.start()
        running.append(gateway)
        return gateway

    yield begin
    for gateway in reversed(running):
        await gateway.stop()
    close_engines(running[0].settings if running else settings)


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    return await start()


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[aiohttp.ClientSession]:
    """Calls as an operator does."""
    headers = bearer(load_keys(settings.data).admin)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20), headers=headers) as session:
        yield session


@pytest.fixture
async def anybody() -> AsyncIterator[aiohttp.ClientSession]:
    """Shows no key."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


def close_engines(settings: Settings) -> None:
    """They are opened once per process and data directory, and shared by the gateways of a test."""
    open_table(settings).close()
    open_feed(settings).close()
    open_manifest(settings).close()
