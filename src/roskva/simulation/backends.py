"""Backends: they change objects, and publish each new version until it is acknowledged. What they know is the truth of the world.

A version is in the backend's own store before Roskva hears of it, so whoever fetches an object after a notification gets that version or a
later one. An update that was never acknowledged may or may not take effect: its backend may have died.

What an object was, one state after the other, is numbered by serials. Versions are numbers of the application's own, and begin from below
when it is restored from a backup: a line of versions that grow ends there, and another begins.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from roskva.simulation.processes import Process

if TYPE_CHECKING:
    from roskva.simulation.clients import Application
    from roskva.simulation.world import World

_REQUEST_S = 2.0


class State(NamedTuple):
    """An object at one time."""

    line: int  # how often the backend was restored before
    version: int


@dataclass
class Truth:
    """What became of one object."""

    states: list[State] = field(default_factory=list)  # by serial
    serials: dict[State, int] = field(default_factory=dict)  # of those that were published, or tried
    acknowledged: set[int] = field(default_factory=set)  # serials of those that Roskva said it has
    latest_acknowledged: int = -1
    sources: dict[int, set[str]] = field(default_factory=dict)  # by serial: the devices that made it ("": nobody's)
    resets: list[tuple[int, int]] = field(default_factory=list)  # epochs, and the serial at which each began

    @property
    def latest(self) -> int:
        return len(self.states) - 1

    @property
    def version(self) -> int:
        """Of the latest state."""
        return self.states[-1].version if self.states else -1

    def change(self, line: int, version: int) -> int:
        """The serial of a new state, which is about to be published."""
        state = State(line, version)
        self.states.append(state)
        self.serials[state] = self.latest
        return self.latest

    def put_back(self, line: int, version: int) -> None:
        """It is what it was, or something earlier: a state that nobody publishes."""
        self.states.append(State(line, version))

    def acknowledge(self, serial: int) -> None:
        self.acknowledged.add(serial)
        self.latest_acknowledged = max(self.latest_acknowledged, serial)

    def told(self, serial: int) -> str:
        """As a person reads it."""
        if serial < 0:
            return "nothing"
        return f"{self.states[serial].version}{' after a reset' if any(serial == at for _, at in self.resets) else ''}"

    def described(self, name: bytes, serial: int) -> str:
        return f"{name.decode()} at {self.told(serial)}"

    def reset_at(self, epoch: int) -> int:
        """The serial at which an epoch began: whoever is told anything of that epoch knows that all before it is void."""
        return max((serial for began, serial in self.resets if began <= epoch), default=-1)


class Backend:
    """One life of a process that publishes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = world.chance_for(f"backend {number}")
        self.process = Process(f"backend-{number}", world.loop, host=f"backend-{number}")
        self.line = world.history.line
        self._under_way: list[asyncio.Task[None]] = []

    def change(self, name: bytes, source: Application | None = None, skip: int = 1, again: bool = False) -> None:
        """Change an object (or publish one of its versions once more), and publish until it is acknowledged."""
        world = self.world
        if not world.history.takes(self):
            return
        truth = world.truth[name]
        old = self._old(truth) if again else []
        serial = self.chance.choice(old) if old else truth.change(self.line, truth.version + skip)
        device = source.device if source is not None and source.running else ""
        truth.sources.setdefault(serial, set()).add(device)
        if source is not None and device:
            source.made_change(name, serial)
        version = truth.states[serial].version
        world.tell(self.process.name, f"publishes {name.decode()} {version}{f' made by {device}' if device else ''}")
        self._under_way.append(self.process.spawn(self._publish(name, serial, device)))

    def _old(self, truth: Truth) -> list[int]:
        """What it may publish once more. Where versions are forgotten, not one below the latest: no publisher repeats for that long."""
        published = [serial for state, serial in truth.serials.items() if state.line == self.line]
        return published[-1:] if self.world.knobs.sweep_pause_s else published

    @property
    def busy(self) -> bool:
        return any(not task.done() for task in self._under_way)

    async def all_acknowledged(self) -> None:
        under_way, self._under_way = self._under_way, []
        if under_way:
            await asyncio.wait(under_way)

    async def _publish(self, name: bytes, serial: int, device: str) -> None:
        truth = self.world.truth[name]
        update = {"object": name.decode(), "version": truth.states[serial].version}
        if device:
            update["source"] = device
        # As a request of several pieces: whichever of them is durable, the update is.
        request = {"updates": [update] * 3} if self.world.knobs.tiny_turns else update
        body = msgspec.json.encode({"application": "demo", **request})
        pause_s = 0.2
        while True:
            gateway = self.world.some_gateway(self.chance)
            if gateway is not None:
                try:
                    publish = partial(gateway.publish, self, body)
                    if await self.world.network.request(self.process, gateway.process, publish, _REQUEST_S):
                        break
                except TimeoutError:
                    pass
            await asyncio.sleep(pause_s * self.chance.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 5.0)
        truth.acknowledge(serial)
        self.world.acknowledged(name, truth.states[serial].version)
