"""Operators: they reset the application and invalidate objects, by the commands of some gateway, until one says that it is done.

An application is reset beside backends that go on, with versions that grow on; or after its backend was restored from a backup. Then, as
docs/operations.md asks, what publishes the old versions is stopped first: no gateway takes or has any request of it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from roskva.simulation.backends import State
from roskva.simulation.processes import Process

if TYPE_CHECKING:
    from roskva.simulation.backends import Backend
    from roskva.simulation.gateways import SimulatedGateway
    from roskva.simulation.world import World

_REQUEST_S = 2.0
_LOOK_S = 0.05


class Invalidated(NamedTuple):
    """What was invalidated: an object, or all whose names begin so."""

    name: bytes
    whole: bool

    def holds(self, name: bytes) -> bool:
        return name == self.name if self.whole else name.startswith(self.name)


class History:
    """Which line of versions an epoch counts. After the manifest was lost, an epoch may stand for two: the later one is meant."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.line = 0
        self.epoch = 0  # as backends know it: by the answer to the last reset
        self.restoring = False
        self.served = 0  # publishes that gateways are at work on
        self._lines = {0: 0}  # by epoch
        world.stores.epoch_raised = self._raised

    def takes(self, backend: Backend) -> bool:
        """Whether its publishes are let through: not while it is restored, nor what comes late of the one before."""
        return not self.restoring and backend.line == self.line

    def _raised(self) -> None:
        epoch = self._world.epoch
        before = self._lines.get(epoch - 1, 0)
        self._lines[epoch] = self.line
        for truth in self._world.truth.values():
            if truth.states:
                if before == self.line:
                    truth.put_back(self.line, truth.version)
                truth.resets.append((epoch, truth.latest))

    def serial_of(self, name: bytes, epoch: int, version: int) -> int | None:
        """The state that a notification means; None: there never was one."""
        truth = self._world.truth[name]
        # Of the line that this epoch counts; or of one after it, by a gateway that had not heard of a reset and appended it twice.
        lines = range(self.line, -1, -1) if self._world.stores.epochs_lost else range(self._lines.get(epoch, 0), self.line + 1)
        return next((truth.serials[state] for line in lines if (state := State(line, version)) in truth.serials), None)

    def restore(self, back: Any) -> None:
        """Every object is what it once was, by `back`, and versions go on from there."""
        self.line += 1
        for truth in self._world.truth.values():
            if truth.states:
                truth.put_back(self.line, back(truth))

    def reset_answered(self, epoch: int) -> None:
        self.epoch = epoch
        for truth in self._world.truth.values():
            if truth.resets:
                truth.acknowledge(truth.reset_at(epoch))


class Operator:
    """A person with a terminal, and one thing to do."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = world.chance_for(f"operator {number}")
        self.process = Process(f"operator-{number}", world.loop, host=f"operator-{number}")
        self.busy = True

    def reset(self) -> None:
        self.process.spawn(self._reset())

    def restore(self) -> None:
        self.process.spawn(self._restore())

    def invalidate(self, what: Invalidated) -> None:
        self.process.spawn(self._invalidate(what))

    async def _reset(self) -> None:
        answer = await self._ask("reset", {"application": "demo"})
        self.world.tell(self.process.name, f"has reset the application: epoch {answer['epoch']}")
        self.world.history.reset_answered(answer["epoch"])
        self.busy = False

    async def _restore(self) -> None:
        world = self.world
        world.history.restoring = True
        while world.history.served:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        world.history.restore(lambda truth: self.chance.choice((-1, *(state.version for state in truth.states))))
        world.tell(self.process.name, "has restored the backend from a backup")
        await self._reset()
        world.history.restoring = False
        world.kill_backend()

    async def _invalidate(self, what: Invalidated) -> None:
        world = self.world
        asked = {"object": what.name.decode()} if what.whole else {"prefix": what.name.decode()} if what.name else {}
        world.invalidations.asked(self, what)
        await self._ask("invalidate", {"application": "demo", **asked})
        world.tell(self.process.name, f"has invalidated {what.name.decode()}{'' if what.whole else '*'}")
        world.invalidations.accepted(self)
        self.busy = False

    async def _ask(self, command: str, request: dict[str, str]) -> dict[str, Any]:
        body = msgspec.json.encode(request)
        while True:
            gateway = self.world.some_gateway(self.chance)
            if gateway is not None:
                try:
                    work = partial(_obey, gateway, command, body)
                    answer = await self.world.network.request(self.process, gateway.process, work, _REQUEST_S)
                    if answer is not None:
                        return dict(answer)
                except TimeoutError:
                    pass
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))


async def _obey(gateway: SimulatedGateway, command: str, body: bytes) -> dict[str, Any] | None:
    return await gateway.obey(command, body)
