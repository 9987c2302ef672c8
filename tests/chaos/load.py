"""The load: backends that publish, clients that come and go, and a log of what each of them did and saw."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import roskva
from roskva.errors import RoskvaError

OBJECTS = [f"doc-{number}" for number in range(12)]


class Log:
    """JSON lines, in the order in which things happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)

    def write(self, who: str, what: str, **more: Any) -> None:
        self._file.write(json.dumps({"who": who, "what": what, **more}) + "\n")

    def close(self) -> None:
        self._file.close()


class Backend:
    """The application's store: a version is stored before it is published; whoever fetches gets what is stored."""

    def __init__(self, log: Log) -> None:
        self.stored = dict.fromkeys(OBJECTS, -1)
        self.acknowledged = 0
        self._log = log

    async def publish_until(self, url: str, over: asyncio.Event) -> None:
        async with roskva.Publisher(url, application="demo", retry_for_s=180) as publisher:
            while not over.is_set():
                await asyncio.gather(*(self._publish(publisher, name) for name in random.sample(OBJECTS, 3)))
                await asyncio.sleep(0.03)

    async def _publish(self, publisher: roskva.Publisher, name: str) -> None:
        self.stored[name] += 1
        version = self.stored[name]
        self._log.write("backend", "published", object=name, version=version)
        await publisher.publish(name, version)
        self.acknowledged += 1
        self._log.write("backend", "acknowledged", object=name, version=version)


class JumpyClient(roskva.Client):
    """Its clock may jump ahead, as that of a laptop that slept."""

    ahead_s = 0.0

    def _now(self) -> float:
        return super()._now() + self.ahead_s


class Follower:
    """An application: it keeps what it learned, dies and comes back with its state, changes its mind."""

    def __init__(self, number: int, backend: Backend, folder: Path, log: Log) -> None:
        self.name = f"client-{number}"
        self.client: JumpyClient | None = None
        self._backend = backend
        self._state = folder / f"{self.name}.state"
        self._log = log
        self._wishes = set(random.sample(OBJECTS, 5))
        self._restart = asyncio.Event()

    async def live(self, url: str) -> None:
        while True:
            self._restart.clear()
            self._log.write(self.name, "starts")
            async with JumpyClient(url, application="demo", state=str(self._state)) as client:
                self.client = client
                for name in sorted(self._wishes):
                    await self._register(name)
                following = asyncio.create_task(self._follow(client))
                restarting = asyncio.create_task(self._restart.wait())
                done, _ = await asyncio.wait([following, restarting], return_when=asyncio.FIRST_COMPLETED)
                for task in (following, restarting):
                    task.cancel()
                if following in done:
                    following.result()

    async def _register(self, name: str) -> None:
        assert self.client is not None
        self._wishes.add(name)
        self._log.write(self.name, "registers", object=name)
        await self.client.register(name)

    async def _follow(self, client: roskva.Client) -> None:
        async for notification in client:
            fetched = self._backend.stored[notification.object] if notification.version is None else None
            self._log.write(self.name, "told", object=notification.object, version=notification.version, fetched=fetched)

    async def change_mind(self) -> None:
        client = self.client
        if client is None:
            return
        name = random.choice(OBJECTS)
        try:
            if name in self._wishes:
                self._wishes.discard(name)
                self._log.write(self.name, "unregisters", object=name)
                await client.unregister(name)
            else:
                await self._register(name)
        except RoskvaError:
            pass  # it is just restarting, and will state its wishes

    def restart(self) -> None:
        self._restart.set()

    @property
    def in_sync(self) -> bool:
        return self.client is not None and self.client.in_sync
