"""kill -9 of a gateway, the pipeline or both, under load: no acknowledged publish is lost, and every client ends at the latest version.

Two gateways share the port, and both hold clients: those of the one that is killed come to the other.

Three kills in CI; ROSKVA_TEST_KILLS=20 for the long form.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack

import pytest

import roskva

from .load import OBJECTS, Backend, Follower
from .service import Service

KILLS = int(os.environ.get("ROSKVA_TEST_KILLS", "3"))
CLIENTS = 16  # all of them at one of the two gateways: once in 30,000 runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240 + 40 * KILLS)]


async def test_kill_9_of_gateway_and_pipeline_under_load_loses_nothing(breakable: Service, backend: Backend) -> None:
    over = asyncio.Event()
    followers = [Follower(backend, random.sample(OBJECTS, 5)) for _ in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(roskva.Client(breakable.url, application="demo")) for _ in followers]
        following = [asyncio.create_task(one.follow(client)) for one, client in zip(followers, clients, strict=True)]
        publishing = asyncio.create_task(backend.publish_until(breakable.url, over))
        await asyncio.sleep(3)
        status = await asyncio.to_thread(breakable.get, "/v1/status")
        held = {name: gateway["connections"] for name, gateway in status["gateways"].items()}
        assert len(held) == 2, held
        assert all(held.values()), held
        assert sum(held.values()) >= CLIENTS
        for number in range(KILLS):
            # Whoever dies again and again is restarted after longer and longer pauses: kill what serves, not what is about to start.
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(breakable.serving):
                    await asyncio.sleep(0.2)
            for part in (("gateway",), ("pipeline",), ("gateway", "pipeline"))[number % 3]:
                await asyncio.to_thread(breakable.kill, part)
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
