"""Sweeps in the simulated world: the real tasks, begun by the driver when chance says so, cut short when it or its workers die."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from roskva.matcher.scratch import SCRATCH
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, task_of
from roskva.simulation.fibers import Fiber

if TYPE_CHECKING:
    from roskva.simulation.pipelines import SimulatedDriver

KINDS: Final = ("collect", "zombies", "purge", "objects", "compare")
_DRY_RUNS: Final = 0.1


class Sweeping:
    """Of one life of the pipeline's process. As its schedule does: one sweep at a time, and what waits in scratch goes between."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._world = driver.world
        self._chance = driver.world.chance_for(f"sweeps of {driver.name}")
        self._turn = asyncio.Lock()

    def start(self) -> None:
        self._driver.process.spawn(self._scratch())
        if self._world.knobs.sweep_pause_s:
            self._driver.process.spawn(self._now_and_then())

    async def _scratch(self) -> None:
        """While anything was put aside, one sweep after the other tries to bring it home."""
        while True:
            await asyncio.sleep(self._world.settings.scratch_every_s)
            await self._driver.process.breathe()
            if any(row.table == SCRATCH and cells for row, cells in self._world.stores.rows.items()):
                await self.sweep("scratch", dry_run=self._chance.random() < _DRY_RUNS)

    async def _now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / self._world.knobs.sweep_pause_s))
            await self._driver.process.breathe()
            await self.sweep(self._chance.choice(KINDS), dry_run=self._chance.random() < _DRY_RUNS)

    async def sweep(self, name: str, dry_run: bool = False) -> Swept:
        """Partition by partition, as one job each."""
        driver, world = self._driver, self._world
        async with self._turn:
            request = Request(name, int(driver.process.wall_clock() * 1000), dry_run)
            task = task_of(name)(driver.connected(f"sweep {name}", 0), request, Progress())  # type: ignore[arg-type]
            total = Swept()
            for partition in range(world.knobs.partitions):
                running = driver.workers.spawn(Fiber(partial(task.run, partition)).run())
                await driver.all_done([running])
                total.add(running.result())
        world.sweeps[f"{name}{', dry run' if dry_run else ''}"] += 1
        world.tell(driver.name, f"swept, {name}{' (dry run)' if dry_run else ''}: {total}")
        return total
