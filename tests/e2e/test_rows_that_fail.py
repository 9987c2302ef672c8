"""A partition of the Matcher's table fails under a running service, with load: everyone else is served, and in the end all are informed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import roskva
from roskva.model import object_key, partition_of
from tests.table.test_faults import write_rules

from .load import OBJECTS, Backend, Follower
from .service import Service

FAILING = 1
BEHIND = {name for name in OBJECTS if partition_of(object_key("demo", 0, name.encode()), 4) == FAILING}
INFORMED_S = 60.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    return write_rules(tmp_path / "faults.json")


@pytest.fixture
def failing_service(tmp_path: Path, faults: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("ROSKVA_TEST_FAULTS", str(faults))
    service = Service(tmp_path / "data", "--set", "scratch_every_s=2").start()
    try:
        yield service
    finally:
        service.stop()


def counted(service: Service) -> dict[str, int]:
    pipeline: dict[str, Any] = service.get("/v1/status")["pipeline"]
    return dict(pipeline.get("counts", {}))


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(INFORMED_S):
            while not condition():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {INFORMED_S:g} s: {what}") from None


async def test_a_partition_of_rows_that_fails_holds_up_nobody_else(failing_service: Service, faults: Path) -> None:
    assert 0 < len(BEHIND) < len(OBJECTS)
    backend, over = Backend(), asyncio.Event()
    followers = [Follower(backend, OBJECTS) for _ in range(3)]
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(failing_service.url, application="demo", retry_for_s=60))
        clients = [await stack.enter_async_context(roskva.Client(failing_service.url, application="demo")) for _ in followers]
        following = [asyncio.create_task(one.follow(client)) for one, client in zip(followers, clients, strict=True)]
        await until(lambda: not any(-1 in one.learned.values() for one in followers), "everyone knows something of everything")
        publishing = asyncio.create_task(backend.publish_until(failing_service.url, over))
        await until(lambda: all(one.learned[name] > 3 for one in followers for name in OBJECTS), "everyone is told of everything")

        write_rules(faults, {"table": "matcher", "partitions": [FAILING]})
        await until(lambda: counted(failing_service).get("scratched", 0) > 0, "updates are put aside")
        known = {name: one.learned[name] for one in followers[:1] for name in BEHIND}
        backend.resting = set(sorted(set(OBJECTS) - BEHIND)[:4])  # nothing later covers what is published of them now
        for _ in range(3):
            await asyncio.gather(*(backend.publish(publisher, name) for name in backend.resting))
            await until(lambda: not any(one.behind().keys() & backend.resting for one in followers), "everyone else is served")
        assert all(followers[0].learned[name] <= known[name] + 1 for name in BEHIND), "what is put aside is told to nobody yet"

        backend.resting = set(BEHIND)
        await asyncio.gather(*(backend.publish(publisher, name) for name in BEHIND))
        write_rules(faults)
        await until(lambda: not any(one.behind().keys() & BEHIND for one in followers), "what was put aside came home")
        over.set()
        await publishing
        await until(lambda: not any(one.behind() for one in followers), "everyone is informed of everything")
        await until(lambda: all(client.in_sync for client in clients), "everyone is in sync")
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
