"""A real service under load while the monkey works: nothing that was acknowledged is lost, and every client ends at the latest version.

Every kind of fault once in CI; ROSKVA_TEST_CHAOS=10 for ten minutes of them (`make chaos`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.checks import LoggedWorld
from tests.chaos.load import OBJECTS, Backend, Follower, Log
from tests.chaos.monkey import Monkey, small_disk
from tests.chaos.proxy import Proxy
from tests.e2e.service import Service

MINUTES = float(os.environ.get("ROSKVA_TEST_CHAOS", "0"))
CLIENTS = 8

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900 + 60 * MINUTES)]


async def test_chaos_loses_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "clients.log")
    with small_disk(tmp_path / "disk") as full_disk:
        service = Service(tmp_path / "disk" / "data", "--gateways", "2").start()
        try:
            monkey = await _live(service, log, tmp_path, full_disk)
        finally:
            service.stop()
            with suppress(OSError):  # the small disk is gone after the test
                shutil.copy(service.log, tmp_path)
                shutil.copytree(service.data / "log", tmp_path / "log", dirs_exist_ok=True)
    log.close()
    world = LoggedWorld(OBJECTS).replay(log.path)
    assert world.reasons() == []
    assert set(monkey.done) == monkey.kinds, "every kind of fault happened"
    assert sum(len(truth.acknowledged) for truth in world.truth.values()) > 100


async def _live(service: Service, log: Log, folder: Path, full_disk: bool) -> Monkey:
    proxy = Proxy(service.url)
    await proxy.open()
    backend = Backend(log)
    over = asyncio.Event()
    followers = [Follower(number, backend, folder, log) for number in range(CLIENTS)]
    living = [asyncio.create_task(follower.live(proxy.url)) for follower in followers]
    publishing = asyncio.create_task(backend.publish_until(service.url, over))
    monkey = Monkey(service, proxy, followers, full_disk)
    try:
        await asyncio.sleep(3)
        await monkey.run(MINUTES * 60 or 600.0, each_once=not MINUTES)
        over.set()
        await asyncio.wait_for(publishing, 240)
        await _until_informed(log, followers, living)
    finally:
        for task in (*living, publishing):
            task.cancel()
        await asyncio.gather(*living, publishing, return_exceptions=True)
        await proxy.close()
    return monkey


async def _until_informed(log: Log, followers: list[Follower], living: list[asyncio.Task[None]]) -> None:
    """Faults are over: all are in sync, and know the latest."""
    async with asyncio.timeout(240):
        while not all(follower.in_sync for follower in followers) or LoggedWorld(OBJECTS).replay(log.path).reasons():
            for task in living:
                assert not task.done(), task.exception()
            await asyncio.sleep(1.0)
