"""The phases of a world: faults, healing, rest; then more is asked of it (docs/correctness.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from roskva.simulation.checkers import Checker
from roskva.simulation.nemesis import LATE_MAX_S
from roskva.simulation.sweeping import KINDS
from roskva.simulation.workload import Workload
from roskva.table.manifest import COMPLETE

if TYPE_CHECKING:
    from roskva.simulation.world import World

HEALING_S: Final = 90.0  # of virtual time, after which the promise must hold
NEWCOMER_S: Final = 60.0  # in which somebody new learns everything
PROMPT_S: Final = 6.0  # within which a healthy world learns of an update: before the second retry of anything
COMPLETE_S: Final = 70.0  # after which lost partitions are complete again
_LATE_NEWCOMERS: Final = 0.5  # the part of worlds in which somebody new comes after the recovery of what was lost
_LOOK_EVERY_S: Final = 1.0
_REST_S: Final = 12.0
_STEPS_MAX: Final = 4_000_000  # turns of the loop: more is a busy loop


async def live(world: World) -> None:
    for slot in range(world.knobs.gateways):
        world.start_gateway(slot)
    world.start_pipeline()
    workload = Workload(world)
    workload.begin()
    nemesis = asyncio.ensure_future(world.nemesis.run())
    departures = asyncio.ensure_future(workload.sign_outs()) if world.knobs.sign_out_pause_s else None
    await workload.run()
    world.faulty = False
    nemesis.cancel()
    if departures is not None:
        departures.cancel()
    world.tell("world", "faults stop")
    _heal(world)
    await _end_twins(world)
    await asyncio.sleep(LATE_MAX_S if "late messages" in world.knobs.faults else 1.0)
    await _come_to_rest(world, "after the faults", HEALING_S * world.knobs.pace)
    await _rest(world)
    await _one_more_update(world, workload)
    if world.knobs.sweep_pause_s:
        await _recovered(world)
        await _sweep_all(world)
    elif world.chance_for("newcomer").random() < _LATE_NEWCOMERS:
        await _recovered(world)
    await _newcomer(world, workload)


def _heal(world: World) -> None:
    world.network.heal()
    world.stores.heal()
    world.nobody_is_kept_down()
    for process in (*(gateway.process for gateway in world.living_gateways()), *([world.driver.workers] if world.driver else [])):
        process.paused_until_s = 0.0
    for slot in range(world.knobs.gateways):
        world.start_gateway(slot)
    world.start_pipeline()
    for application in world.applications:
        world.start_client(application)


async def _end_twins(world: World) -> None:
    """Of two that run with one state, one is told. Then: what a twin acknowledged the other never saw, and it begins anew."""
    await _come_to_rest(world, "with two processes of one state", HEALING_S * world.knobs.pace, [world.twins])
    for clone in world.clones:
        clone.kill()
    for application in world.applications:
        if application.cloned:
            application.kill()
            application.install()
            application.start()


async def _come_to_rest(world: World, when: str, within_s: float, checkers: Sequence[Checker] = ()) -> None:
    began_s = world.loop.time()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        reasons = ((checker, reason) for checker in checkers or world.checkers if (reason := checker.reason(world)) is not None)
        checker, reason = next(reasons, (None, ""))
        if checker is None:
            return
        if world.loop.time() - began_s > within_s:
            raise checker.broken(f"{when}, {within_s:g} s later: {reason}")
        if world.loop.steps > _STEPS_MAX:
            raise world.storm.broken(f"{_STEPS_MAX:,} turns of the loop and no rest: {reason}")


async def _rest(world: World) -> None:
    before = world.network.counts["sent"]
    await asyncio.sleep(_REST_S)
    world.storm.at_rest(world, _REST_S, world.network.counts["sent"] - before)


async def _one_more_update(world: World, workload: Workload) -> None:
    """In a healthy world, news travel without a retry, and cost a few messages for each who hears of them."""
    before, began_s = world.network.counts["sent"], world.loop.time()
    listeners = workload.one_more_update()
    crowded = world.knobs.outstanding_max < listeners  # more than memory takes: the rest comes a few at a time
    await _come_to_rest(world, "after one more update", HEALING_S if crowded else PROMPT_S * world.knobs.pace)
    world.storm.after_updates(world, world.loop.time() - began_s, world.network.counts["sent"] - before, listeners)


async def _newcomer(world: World, workload: Workload) -> None:
    before = world.stores.appended_to("registrations")
    world.newcomers.newcomer = workload.newcomer()
    await _come_to_rest(world, "with a newcomer", NEWCOMER_S * world.knobs.pace)
    world.storm.after_registrations(world.knobs.objects, world.stores.appended_to("registrations") - before)


async def _recovered(world: World) -> None:
    """Until lost partitions are complete, everything is unknown to whoever comes. Then versions count as known again: those that may."""
    if any(record.state != COMPLETE for record in world.stores.incarnations.values()):
        await asyncio.sleep(COMPLETE_S * world.knobs.pace)


async def _sweep_all(world: World) -> None:
    """Every sweep once, over a world at rest, while chance begins others. Then the two views of registrations are the same."""
    driver = world.driver
    assert driver is not None
    if "row forgets" in world.knobs.faults and not world.knobs.away_s:
        world.nemesis.drift()  # which no update repairs any more
    for kind in KINDS:
        swept = await driver.process.spawn(driver.sweeping.sweep(kind))
        if swept.left:
            raise world.views.broken(f"the sweep {kind} left something in a healthy world: {swept}")
    world.views.swept = True
    await _come_to_rest(world, "after all sweeps", HEALING_S * world.knobs.pace)
