"""A real gateway, as in tests/gateway, and somebody who means no good: from 127.0.0.2, which has no exemption from any limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from roskva.config import Settings
from roskva.gateway.service import Gateway
from roskva.registrar import rounds
from tests.gateway.conftest import anybody, gateway, http, pytest_asyncio_loop_factories, settings, start
from tests.gateway.talking import Raw
from tests.security.adversary import Town

__all__ = ["anybody", "gateway", "http", "pytest_asyncio_loop_factories", "settings", "start"]

STRANGER = "127.0.0.2"


async def connect_from(gateway: Gateway, address: str = STRANGER) -> Raw:
    host, port = gateway.url.partition("://")[2].split(":")
    return Raw(*await asyncio.open_connection(host, int(port), local_addr=(address, 0)))


@pytest.fixture
async def stranger() -> AsyncIterator[aiohttp.ClientSession]:
    """Calls from an address that limits count for, with a connection for each call."""
    connector = aiohttp.TCPConnector(local_addr=(STRANGER, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


@pytest.fixture
async def town(
    tmp_path: Path, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Town]:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(rounds, "_SETTLED_AFTER_S", 0.1)  # only so that the innocent know sooner that they are in sync
    async with Town(tmp_path, caplog).open(settings) as town:
        yield town
