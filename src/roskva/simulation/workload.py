"""What applications and backends do while the nemesis works: drawn from the seed, act by act."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from roskva.simulation.clients import Application

if TYPE_CHECKING:
    from roskva.simulation.world import World

_UPDATES_AT_REST: Final = 3
_BACK_AFTER_S: Final = 8.0  # at most, somebody who signed out is there again


class Workload:
    def __init__(self, world: World) -> None:
        self.world = world
        self.knobs = world.knobs
        self._chance = world.chance_for("workload")
        resting = world.chance_for("resting")
        self._rests_at_s = {
            name: self.knobs.busy_s * (resting.uniform(0.2, 0.9) if resting.random() < self.knobs.resting else 1.0) for name in world.names
        }

    def begin(self) -> None:
        for number in range(self.knobs.applications):
            application = Application(self.world, number)
            application.prompt = self._chance.random() >= self.knobs.slow_applications
            application.states_versions = self._chance.random() < self.knobs.fetch
            self.world.applications.append(application)
            application.start()
            for name in self._chance.sample(self.world.names, min(self.knobs.registrations, len(self.world.names))):
                application.register(name)

    async def run(self) -> None:
        end_s = self.world.loop.time() + self.knobs.busy_s
        while self.world.loop.time() < end_s:
            await asyncio.sleep(self._chance.expovariate(1 / self.knobs.pause_s))
            publish = self._chance.random() < self.knobs.publishes
            hot = publish and self._chance.random() < self.knobs.hot
            name = self.world.names[0] if hot else self._chance.choice(self.world.names)
            if self.world.loop.time() > self._rests_at_s[name]:
                continue
            if publish:
                await self._publish(name)
            else:
                self._registrations(name)

    async def _publish(self, name: bytes) -> None:
        chance, knobs, world = self._chance, self.knobs, self.world
        for _ in range(chance.randint(1, knobs.burst)):
            source = chance.choice(world.applications) if chance.random() < knobs.sources else None
            again = chance.random() < knobs.again
            world.backend.change(name, source, chance.choice((1, 1, 1, 5)), again)
            if not knobs.faults:  # one publish of an object at a time: then the source of each is certain
                await world.backend.all_acknowledged()
                await asyncio.sleep(0.5)

    def _registrations(self, name: bytes) -> None:
        chance, knobs = self._chance, self.knobs
        application = chance.choice(self.world.applications)
        if not application.running or application.stopped or application.leaving:
            return
        if name in application.wishes:
            application.unregister(name)
            if chance.random() < knobs.flapping:
                application.register(name)
            return
        application.register(name, fetch=chance.random() < knobs.fetch)
        if chance.random() < knobs.flapping:
            application.unregister(name)

    async def sign_outs(self) -> None:
        """Now and then somebody signs out, and comes back as a new client with other wishes."""
        chance, knobs, world = self.world.chance_for("sign-outs"), self.knobs, self.world
        while knobs.sign_out_pause_s:  # until this is cancelled
            await asyncio.sleep(chance.expovariate(1 / knobs.sign_out_pause_s))
            application = chance.choice(world.applications)
            wishes = chance.sample(world.names, min(knobs.registrations, len(world.names)))
            back_after_s = chance.uniform(0.0, _BACK_AFTER_S)
            if application.running and not application.stopped and not application.leaving:
                application.sign_out(wishes, back_after_s)

    def one_more_update(self) -> int:
        """Of a few objects. Answers how many clients are to hear of one, each counted for each."""
        world = self.world
        names = self._chance.sample(world.names, min(_UPDATES_AT_REST, len(world.names)))
        for name in names:
            world.backend.change(name)
        return sum(name in application.wishes for application in world.applications if application.running for name in names)

    def newcomer(self) -> Application:
        """Somebody who registers for everything when all is over."""
        application = Application(self.world, len(self.world.applications))
        self.world.applications.append(application)
        application.start()
        for name in self.world.names:
            application.register(name)
        return application
