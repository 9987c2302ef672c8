"""A partition of a table fails under a running service, with load: everyone else is served, and in the end all are informed.

The gateway has hardly any memory for what is in progress: whatever it drops, it must find again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import roskva
from roskva.model import object_key, partition_of
from tests.table.test_faults import write_rules

from .load import OBJECTS, Backend, Follower, Listener
from .service import Service

FAILING = 1
BEHIND = {name for name in OBJECTS if partition_of(object_key("demo", 0, name.encode()), 4) == FAILING}
INFORMED_S = 60.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rules(tmp_path_factory.mktemp("faults") / "faults.json")


@pytest.fixture(scope="module")
def failing_service(tmp_path_factory: pytest.TempPathFactory, faults: Path) -> Iterator[Service]:
    # What the fast path tells does not wait for rows, so what is put aside could not be seen.
    little = (
        "fast_path=false",
        "unfinished_max=20",
        "outstanding_max=30",
        "rows_cached_max=10",
        "scan_s=2",
        "scratch_every_s=2",
        "compare_every_s=10",
    )
    options = [word for setting in little for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ROSKVA_TEST_FAULTS", str(faults))
        service = Service(tmp_path_factory.mktemp("failing") / "data", *options).start()
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


async def test_clients_whose_rows_fail_hold_up_nobody_and_are_told_in_the_end(
    failing_service: Service, faults: Path, tmp_path: Path
) -> None:
    names = [f"of-clients-{number}" for number in range(4)]
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(failing_service.url, application="demo", retry_for_s=60))
        listeners = [Listener(failing_service.url, tmp_path / f"state-{number}") for number in range(16)]
        for listener in listeners:
            await stack.enter_async_context(listener.client)
            for name in names:
                await listener.client.register(name)
        for listener in listeners:
            await listener.client.synced(INFORMED_S)
        for listener in listeners[
            :10
        ]:  # for whom something must be written; that none of ten by random ids fails happens once in a thousand runs
            await listener.client.close()
        before = counted(failing_service).get("scratched", 0)
        write_rules(faults, {"table": "registrar", "partitions": [0, 1], "operations": ["write"]})
        await asyncio.sleep(0.5)  # a process looks at the rules ten times a second, and two versions are told within less than that
        for version in (1, 2):
            await asyncio.gather(*(publisher.publish(name, version) for name in names))
        await until(lambda: counted(failing_service).get("scratched", 0) > before, "who cannot be told is put aside")
        await until(lambda: all(one.has_all(names, 2)() for one in listeners[10:]), "who is online is told, whether its row fails or not")
        write_rules(faults)
        again = [Listener(failing_service.url, tmp_path / f"state-{number}") for number in range(10)]
        for listener in again:
            await stack.enter_async_context(listener.client)
            for name in names:
                await listener.client.register(name)
        await until(lambda: all(one.has_all(names, 2)() for one in again), "who was offline is told when it returns")


async def test_with_hardly_any_memory_everyone_is_informed(failing_service: Service, tmp_path: Path) -> None:
    names = [f"much-{number}" for number in range(150)]
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(failing_service.url, application="demo", retry_for_s=60))
        listeners = [Listener(failing_service.url, tmp_path / f"state-{number}") for number in range(4)]
        for listener in listeners:
            await stack.enter_async_context(listener.client)
            for name in names:
                await listener.client.register(name)
        for listener in listeners:
            await listener.client.synced(INFORMED_S)
        assert milestone(failing_service, "shed") > 0
        await listeners[0].client.close()
        await asyncio.gather(*(publisher.publish(name, 1) for name in names))
        await until(lambda: all(one.has_all(names, 1)() for one in listeners[1:]), "who is online is told everything")
        back = Listener(failing_service.url, tmp_path / "state-0")
        async with back.client:
            for name in names:
                await back.client.register(name)
            await until(back.has_all(names, 1), "who was offline is told everything, part by part")
            await back.client.synced(INFORMED_S)


async def test_a_sweep_runs_on_schedule_by_itself_and_finds_no_drift(failing_service: Service) -> None:
    """Whatever failed in the tests before this one: the two views of all registrations agree."""
    listener = Listener(failing_service.url)
    async with listener.client:
        for name in OBJECTS:
            await listener.client.register(name)
        await listener.client.synced(INFORMED_S)
    now_ms = time.time_ns() // 1_000_000
    found: dict[str, Any] = {}

    def is_over() -> bool:
        found.update(failing_service.get("/v1/status")["sweeps"].get("compare", {}))
        return bool(found.get("began_ms", 0) > now_ms and found["state"] != "running")

    await until(is_over, "a sweep that began after the last fault")
    assert (found["state"], found["swept"]["left"], found["swept"]["proposed"]) == ("done", 0, 0), found
    assert found["swept"]["counts"]["compared"] >= len(OBJECTS)
    assert "compare: done" in failing_service.run("status").stdout


def milestone(service: Service, name: str) -> float:
    lines = service.read("/metrics").decode().splitlines()
    (value,) = (line.split()[-1] for line in lines if line.startswith("roskva_registrar_total{") and f'"{name}"' in line)
    return float(value)
