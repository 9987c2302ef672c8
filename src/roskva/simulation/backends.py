"""Backends: they change objects, and publish each new version until it is acknowledged. What they know is the truth of the world.

A version is in the backend's own store before Roskva hears of it, so whoever fetches an object after a notification gets that version or a
later one. An update that was never acknowledged may or may not take effect: its backend may have died.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from roskva.simulation.processes import Process

if TYPE_CHECKING:
    from roskva.simulation.clients import Application
    from roskva.simulation.world import World

_REQUEST_S = 2.0


@dataclass
class Truth:
    """What became of one object."""

    versions: list[int] = field(default_factory=list)  # all that were ever tried, in their order
    acknowledged: set[int] = field(default_factory=set)  # those that Roskva said it has
    sources: dict[int, set[str]] = field(default_factory=dict)  # the devices that made each version ("": nobody's)

    @property
    def latest(self) -> int:
        return self.versions[-1] if self.versions else -1

    @property
    def latest_acknowledged(self) -> int:
        return max(self.acknowledged, default=-1)


class Backend:
    """One life of a process that publishes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = world.chance_for(f"backend {number}")
        self.process = Process(f"backend-{number}", world.loop, host=f"backend-{number}")
        self._under_way: list[asyncio.Task[None]] = []

    def change(self, name: bytes, source: Application | None = None, skip: int = 1, again: bool = False) -> None:
        """Change an object (or publish its last version once more), and publish until it is acknowledged."""
        world = self.world
        truth = world.truth[name]
        if again and truth.versions:
            version = self.chance.choice(truth.versions)
        else:
            version = truth.latest + skip
            truth.versions.append(version)
        device = source.device if source is not None and source.running else ""
        truth.sources.setdefault(version, set()).add(device)
        if source is not None and device:
            source.made_change(name, version)
        world.tell(self.process.name, f"publishes {name.decode()} {version}{f' made by {device}' if device else ''}")
        self._under_way.append(self.process.spawn(self._publish(name, version, device)))

    @property
    def busy(self) -> bool:
        return any(not task.done() for task in self._under_way)

    async def all_acknowledged(self) -> None:
        under_way, self._under_way = self._under_way, []
        if under_way:
            await asyncio.wait(under_way)

    async def _publish(self, name: bytes, version: int, device: str) -> None:
        update = {"application": "demo", "object": name.decode(), "version": version}
        body = msgspec.json.encode({**update, "source": device} if device else update)
        pause_s = 0.2
        while True:
            gateway = self.world.some_gateway(self.chance)
            if gateway is not None:
                try:
                    publish = partial(gateway.publishing.publish, body)
                    status, _ = await self.world.network.request(self.process, gateway.process, publish, _REQUEST_S)
                    if status == 200:
                        break
                except TimeoutError:
                    pass
            await asyncio.sleep(pause_s * self.chance.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 5.0)
        self.world.truth[name].acknowledged.add(version)
        self.world.acknowledged(name, version)
