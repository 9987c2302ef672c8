"""Files are deleted under a running service, or dropped on purpose, with load: every client ends in sync, and informed of what it was
registered for. Then, in the same service and under the same load, an application is reset and an object invalidated."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

import roskva

from .load import OBJECTS, Backend, Follower
from .service import Service, alive, command_of, descendants_of

CLIENTS = 6
INFORMED_S = 90.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# What is deleted, in the order of the rounds; and in one of them overwritten.
OVERWRITTEN = "pages of the Matcher's table and of the feed"
LOSSES = {
    OVERWRITTEN: ["table/matcher-*.db*", "feed/updates-*.db*"],
    "the Matcher's table": ["table/matcher-*"],
    "the feed": ["feed/*"],
    "the Registrar's table": ["table/registrar-*"],
    "the manifest": ["manifest.db*"],
    "scratch, marks and members": ["table/scratch-*", "table/marks-*", "table/members-*"],
    "all of the data directory but the keys": ["table/*", "feed/*", "lost/*", "checkpoints/**/*", "manifest.db*"],
}


async def test_whatever_is_deleted_under_load_every_client_is_informed(breakable: Service, backend: Backend, tmp_path: Path) -> None:
    over = asyncio.Event()
    followers = [Follower(backend, random.sample(OBJECTS, 5)) for _ in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(breakable.url, application="demo", retry_for_s=120))
        clients = [await stack.enter_async_context(roskva.Client(breakable.url, application="demo")) for _ in followers]
        following = [asyncio.create_task(one.follow(client)) for one, client in zip(followers, clients, strict=True)]
        publishing = asyncio.create_task(backend.publish_until(breakable.url, over))
        async with asyncio.timeout(INFORMED_S):
            while any(-1 in one.learned.values() for one in followers):
                await asyncio.sleep(0.1)
        for what, patterns in [*LOSSES.items(), ("all, on purpose", [])]:
            backend.resting = set(random.sample(OBJECTS, 6))
            await asyncio.gather(*(backend.publish(publisher, name) for name in backend.resting))  # perhaps not matched yet
            if what == OVERWRITTEN:
                await _overwrite(breakable, patterns)
            elif patterns:
                await _delete(breakable, patterns)
            else:
                await _ordered(breakable, "drop", "all", "--data", str(breakable.data), "--yes")
            await _informed(followers, backend.resting, f"after the loss of {what}")
            await asyncio.gather(*(backend.publish(publisher, name) for name in backend.resting))
            await _informed(followers, backend.resting, f"of the next version, after the loss of {what}")
            assert not publishing.done(), publishing.exception()
        await _reset_and_invalidated(breakable, publisher, tmp_path)
        over.set()
        await asyncio.wait_for(publishing, 150)
        await _informed(followers, set(OBJECTS), "when all is over")
        async with asyncio.timeout(INFORMED_S):
            while not all(client.in_sync for client in clients):
                await asyncio.sleep(0.2)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _reset_and_invalidated(service: Service, publisher: roskva.Publisher, folder: Path) -> None:
    """A backend goes back from version 100 to 5: one client is connected throughout, another one is away meanwhile."""
    name, state = "restored", folder / "away.state"
    async with roskva.Client(service.url, application="demo") as client:
        await client.register(name)
        async with roskva.Client(service.url, application="demo", state=state) as away:
            await away.register(name)
            await asyncio.gather(_told(client, None, epoch=0), _told(away, None, epoch=0))
            await publisher.publish(name, 100)
            await asyncio.gather(_told(client, 100, epoch=0), _told(away, 100, epoch=0))
        await _ordered(service, "reset", "demo")
        await _told(client, None, epoch=1)
        await publisher.publish(name, 5)
        await _told(client, 5, epoch=1)
        async with roskva.Client(service.url, application="demo", state=state) as away:
            await away.register(name, version=100, epoch=0)
            await _told(away, None, epoch=1)  # and not 5: what was dropped a moment ago still counts as being recovered
        said = await _ordered(service, "invalidate", f"demo/{name[:4]}*")
        assert 'told "unknown"' in said
        await _told(client, None, epoch=1)


async def _ordered(service: Service, *words: str) -> str:
    """A command of the CLI, which succeeds."""
    done = await asyncio.to_thread(service.run, *words, timeout_s=INFORMED_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _told(client: roskva.Client, version: int | None, epoch: int) -> None:
    """Wait for this version, or for unknown; what comes before it is acknowledged, too."""
    async with asyncio.timeout(INFORMED_S):
        async for notification in client:
            client.acknowledge(notification)
            if (notification.version, notification.epoch) == (version, epoch):
                return
    raise AssertionError("the client has stopped")


async def _delete(service: Service, patterns: list[str]) -> None:
    """What was lost before is begun anew when it is next used, and then is there to be deleted."""
    async with asyncio.timeout(INFORMED_S):
        while not (files := [path for pattern in patterns for path in service.data.glob(pattern) if path.is_file()]):
            await asyncio.sleep(0.1)
    for path in files:
        path.unlink(missing_ok=True)


async def _overwrite(service: Service, patterns: list[str]) -> None:
    """All but the heads of these files, as a broken disk would; it is noticed under the load, and the files are put aside."""
    files = [path for pattern in patterns for path in service.data.glob(pattern) if not path.name.endswith("-shm")]
    assert files
    for path in files:
        with suppress(FileNotFoundError), path.open("r+b") as file:  # a log that was merged meanwhile
            file.seek(100)
            file.write(random.randbytes(max(0, path.stat().st_size - 100)))
    async with asyncio.timeout(INFORMED_S):
        while not list(service.data.glob("*/lost/*.db")):
            await asyncio.sleep(0.1)


async def _informed(followers: list[Follower], names: set[str], when: str) -> None:
    """Everybody has what is acknowledged of these by now."""
    try:
        async with asyncio.timeout(INFORMED_S):
            while any(one.behind().keys() & names for one in followers):
                await asyncio.sleep(0.1)
    except TimeoutError:
        behind = [{name: gap for name, gap in one.behind().items() if name in names} for one in followers]
        raise AssertionError(f"{when}, somebody is not informed: {behind}") from None


def test_not_even_spark_outlives_a_supervisor_that_was_killed(breakable: Service) -> None:
    """The last test of this service."""
    family = descendants_of(breakable.pid)
    assert len(family) >= 3  # gateway, driver, JVM
    os.kill(breakable.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 15
    while left := [pid for pid in family if alive(pid)]:
        assert time.monotonic() < deadline_s, [command_of(pid) for pid in left]
        time.sleep(0.1)
