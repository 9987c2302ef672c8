"""Files are deleted under a running service, with load: every client ends in sync, and informed of what it was registered for."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

import roskva

from .load import OBJECTS, Backend, Follower
from .service import Service

CLIENTS = 6
INFORMED_S = 90.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# What is deleted, in the order of the rounds.
LOSSES = {
    "the Matcher's table": ["table/matcher-*"],
    "the feed": ["feed/*"],
    "the Registrar's table": ["table/registrar-*"],
    "all tables and the feed": ["table/*", "feed/*"],
}


async def test_whatever_is_deleted_under_load_every_client_is_informed(own_service: Service) -> None:
    backend, over = Backend(), asyncio.Event()
    followers = [Follower(backend, random.sample(OBJECTS, 5)) for _ in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(own_service.url, application="demo", retry_for_s=120))
        clients = [await stack.enter_async_context(roskva.Client(own_service.url, application="demo")) for _ in followers]
        following = [asyncio.create_task(one.follow(client)) for one, client in zip(followers, clients, strict=True)]
        publishing = asyncio.create_task(backend.publish_until(own_service.url, over))
        async with asyncio.timeout(INFORMED_S):
            while any(-1 in one.learned.values() for one in followers):
                await asyncio.sleep(0.1)
        for what, patterns in LOSSES.items():
            backend.resting = set(random.sample(OBJECTS, 6))
            await asyncio.gather(*(backend.publish(publisher, name) for name in backend.resting))  # perhaps not matched yet
            _delete(own_service, patterns)
            await _informed(followers, backend.resting, f"after the loss of {what}")
            await asyncio.gather(*(backend.publish(publisher, name) for name in backend.resting))
            await _informed(followers, backend.resting, f"of the next version, after the loss of {what}")
            assert not publishing.done(), publishing.exception()
        over.set()
        await asyncio.wait_for(publishing, 150)
        await _informed(followers, set(OBJECTS), "when all is over")
        async with asyncio.timeout(INFORMED_S):
            while not all(client.in_sync for client in clients):
                await asyncio.sleep(0.2)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def _delete(service: Service, patterns: list[str]) -> None:
    files = [path for pattern in patterns for path in service.data.glob(pattern) if path.is_file()]
    assert files
    for path in files:
        path.unlink(missing_ok=True)


async def _informed(followers: list[Follower], names: set[str], when: str) -> None:
    """Everybody has what is acknowledged of these by now."""
    try:
        async with asyncio.timeout(INFORMED_S):
            while any(one.behind().keys() & names for one in followers):
                await asyncio.sleep(0.1)
    except TimeoutError:
        behind = [{name: gap for name, gap in one.behind().items() if name in names} for one in followers]
        raise AssertionError(f"{when}, somebody is not informed: {behind}") from None
