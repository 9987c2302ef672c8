"""Two gateways, two processes, one data directory: messages find their owner, and partitions move when one is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import roskva

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


class SecondGateway:
    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "roskva", "gateway", "--data", str(data), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = "http://" + line.strip().rpartition("http://")[2]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def second(service: Service) -> Iterator[SecondGateway]:
    second = SecondGateway(service.data)
    try:
        yield second
    finally:
        second.end()


async def learn(client: roskva.Client, learned: dict[roskva.Client, int | None]) -> None:
    async for notification in client:
        if notification.version is not None:
            learned[client] = notification.version


async def all_at(learned: dict[roskva.Client, int | None], version: int) -> None:
    async with asyncio.timeout(60):
        while set(learned.values()) != {version}:
            await asyncio.sleep(0.05)


async def owners(service: Service) -> set[str]:
    return set((await asyncio.to_thread(service.get, "/v1/status"))["partitions"].values())


async def test_clients_of_both_learn_and_go_on_learning_when_one_is_killed(service: Service, second: SecondGateway) -> None:
    name = f"two-{uuid.uuid4().hex[:8]}"
    async with asyncio.timeout(20):
        while len((await asyncio.to_thread(service.get, "/v1/status"))["members"]) != 2:
            await asyncio.sleep(0.1)
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(roskva.Publisher(service.url, application="demo"))
        # Ids are minted for partitions that the accepting gateway owns. So that some clients have their Registrar at the other
        # one, half of them move: they start at the second gateway and come back, with their state, through the first.
        learned: dict[roskva.Client, int | None] = {}
        learners: list[asyncio.Task[None]] = []
        for number in range(6):
            state = service.data.parent / f"{name}-{number}.state"
            if number % 2:
                async with roskva.Client(second.url, application="demo", state=state) as visitor:
                    await visitor.register(name)
                    await visitor.synced(timeout=30)
            client = await stack.enter_async_context(roskva.Client(service.url, application="demo", state=state))
            await client.register(name)
            learned[client] = None
            learners.append(asyncio.create_task(learn(client, learned)))
        await publisher.publish(name, 1)
        await all_at(learned, 1)
        second.end()
        await publisher.publish(name, 2)
        await all_at(learned, 2)
        async with asyncio.timeout(30):
            while len(await owners(service)) != 1:
                await asyncio.sleep(0.2)
        await publisher.publish(name, 3)
        await all_at(learned, 3)
        for task in learners:
            task.cancel()
        await asyncio.gather(*learners, return_exceptions=True)
