"""A load for tests of the whole service: a backend that publishes, and clients that remember what they learned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import roskva

OBJECTS = [f"doc-{number}" for number in range(12)]


class Backend:
    """The application's store: a version is stored before it is published; a client that is told "unknown" fetches from here."""

    def __init__(self) -> None:
        self.stored = dict.fromkeys(OBJECTS, 0)
        self.acknowledged = dict.fromkeys(OBJECTS, 0)

        self.resting: set[str] = set()  # objects that are left alone: nothing later covers what is lost of them

    async def publish_until(self, url: str, over: asyncio.Event) -> None:
        async with roskva.Publisher(url, application="demo", retry_for_s=120) as publisher:
            while not over.is_set():
                busy = [name for name in OBJECTS if name not in self.resting]
                await asyncio.gather(*(self.publish(publisher, name) for name in random.sample(busy, 4)))
                await asyncio.sleep(0.02)

    async def publish(self, publisher: roskva.Publisher, name: str) -> None:
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


class Listener:
    """A client that keeps all that it was told, in order; None is unknown."""

    def __init__(self, url: str, state: Path | None = None) -> None:
        self.told: list[tuple[str, int | None]] = []
        self.client = roskva.Client(
            url,
            application="demo",
            state=state,
            on_notify=lambda told: self.told.append((told.object, told.version)),
            on_unknown=lambda told: self.told.append((told.object, None)),
        )

    def has(self, name: str, version: int) -> Callable[[], bool]:
        return self.has_all([name], version)

    def has_all(self, names: list[str], version: int) -> Callable[[], bool]:
        return lambda: all((name, version) in self.told for name in names)
