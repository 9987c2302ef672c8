"""kill -9 of gateway, pipeline or both, under load: no acknowledged publish is lost, and every client ends at the latest version.

Three kills in CI; ROSKVA_TEST_KILLS=20 for the long form.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import roskva

from .service import Service

KILLS = int(os.environ.get("ROSKVA_TEST_KILLS", "3"))
OBJECTS = [f"doc-{number}" for number in range(12)]
CLIENTS = 8

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240 + 40 * KILLS)]


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data").start()
    try:
        yield service
    finally:
        service.stop()


class Backend:
    """The application's store: a version is stored before it is published; a client that is told "unknown" fetches from here."""

    def __init__(self) -> None:
        self.stored = dict.fromkeys(OBJECTS, 0)
        self.acknowledged = dict.fromkeys(OBJECTS, 0)

    async def publish_until(self, url: str, over: asyncio.Event) -> None:
        async with roskva.Publisher(url, application="demo", retry_for_s=120) as publisher:
            while not over.is_set():
                await asyncio.gather(*(self._publish(publisher, name) for name in random.sample(OBJECTS, 4)))
                await asyncio.sleep(0.02)

    async def _publish(self, publisher: roskva.Publisher, name: str) -> None:
        self.stored[name] += 1
        version = self.stored[name]
        await publisher.publish(name, version)
        self.acknowledged[name] = max(self.acknowledged[name], version)


class Follower:
    """A client that remembers what it learned; it must never be shown an older version after a later one."""

    def __init__(self, backend: Backend, names: list[str]) -> None:
        self.backend = backend
        self.learned = dict.fromkeys(names, -1)
        self.shown = dict.fromkeys(names, -1)

    async def follow(self, client: roskva.Client) -> None:
        for name in self.learned:
            await client.register(name)
        async for notification in client:
            name = notification.object
            if notification.version is None:
                self.learned[name] = self.backend.stored[name]
            else:
                assert notification.version > self.shown[name], "shown a version again, or an older one"
                self.shown[name] = notification.version
                self.learned[name] = max(self.learned[name], notification.version)

    def behind(self) -> dict[str, tuple[int, int]]:
        latest = self.backend.acknowledged
        return {name: (have, latest[name]) for name, have in self.learned.items() if have < latest[name]}


async def test_kill_9_of_gateway_and_pipeline_under_load_loses_nothing(own_service: Service) -> None:
    backend = Backend()
    over = asyncio.Event()
    followers = [Follower(backend, random.sample(OBJECTS, 5)) for _ in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(roskva.Client(own_service.url, application="demo")) for _ in followers]
        following = [asyncio.create_task(one.follow(client)) for one, client in zip(followers, clients, strict=True)]
        publishing = asyncio.create_task(backend.publish_until(own_service.url, over))
        await asyncio.sleep(3)
        for number in range(KILLS):
            # Whoever dies again and again is restarted after longer and longer pauses: kill what serves, not what is about to start.
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(own_service.serving):
                    await asyncio.sleep(0.2)
            for part in (("gateway",), ("pipeline",), ("gateway", "pipeline"))[number % 3]:
                await asyncio.to_thread(own_service.kill, part)
            await asyncio.sleep(random.uniform(4, 8))
            assert not publishing.done(), publishing.exception()
        over.set()
        await asyncio.wait_for(publishing, 150)
        async with asyncio.timeout(150):
            while any(one.behind() for one in followers):
                for task in following:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0.2)
        async with asyncio.timeout(120):
            while not all(client.in_sync for client in clients):
                await asyncio.sleep(0.2)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    assert sum(backend.acknowledged.values()) > 100


def test_ctrl_c_stops_within_ten_seconds_and_leaves_no_process_behind(own_service: Service) -> None:
    assert own_service.stop() < 10.0
