"""throughput: the highest rate of notifications that are delivered and acknowledged with p99 below 2 s.

The rate of publishes, in batches, is raised step by step until a step fails or delivers less than the one before; one more step halfway
back refines it. A step passes if every client ends at the latest version of everything, and the time from publish to client stays below
the limit at p99. Updates of one object that meet in a batch of the pipeline collapse to the last, as they should. What collapsed is not
counted as delivered, but its time counts: until the client had the version that overtook it. The highest rate before any of that begins
is told too. One more step, at a rate that every peer of ours sustains (docs/peers.md), tells what a delivery costs, and whom.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bench.accounting import per_10_000
from bench.clients import Fleet, Heard
from bench.load import CallingPublishers, Publishers
from bench.report import Aim, Result, percentiles
from bench.service import Service, running, say
from bench.world import Options, Window, World, caught_up, run

CLIENTS: Final = 1_000
P99_LIMIT_MS: Final = 2_000.0
SINGLE_AIM_PER_S: Final = 30_000.0
BATCHED_AIM_PER_S: Final = 50_000.0
CPU_AIM_S: Final = 0.8
CPU_RATE_PER_S: Final = 10_000.0
STEP_S: Final = 6.0
BATCH: Final = 50
# Notifications per second that are offered, until a step fails.
STEPS_PER_S: Final = (4_000, 8_000, 10_000, 13_000, 16_000, 20_000, 25_000, 32_000, 40_000, 50_000, 60_000, 70_000)
_DRAIN_S: Final = 15.0
_WARM_UP_S: Final = 6.0
_NEARLY_NONE: Final = 0.01  # of what was delivered


class Way(NamedTuple):
    """How publishes come. Enough registrations, that is objects, that few updates of one of them meet in a batch."""

    fan_out: int
    batch: int
    registrations: int = 25
    aim_per_s: float = BATCHED_AIM_PER_S
    library: bool = (
        False  # by calls of roskva.Publisher, each for one update: it sends together what is called while a request is under way
    )

    @property
    def name(self) -> str:
        single = "single calls of the Publisher" if self.library else "single publishes"
        return f"{self.fan_out}, {single if self.batch == 1 else f'batches of {self.batch}'}"

    @property
    def connections(self) -> int:
        """A connection has one publish under way: single ones need more of them."""
        return 128 if self.batch == 1 else 16

    def publishers(self, url: str, objects: Sequence[str]) -> Publishers:
        return CallingPublishers(url, objects) if self.library else Publishers(url, objects, self.connections)


WAYS: Final = (
    Way(5, BATCH),
    Way(5, 1, aim_per_s=SINGLE_AIM_PER_S, library=True),
    Way(5, 1, aim_per_s=SINGLE_AIM_PER_S),
    Way(1, BATCH),
)


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    clients = options.clients or CLIENTS
    seconds = options.seconds or STEP_S
    steps = [float(rate) for rate in STEPS_PER_S] if options.rate is None else [options.rate]
    fan_outs: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    held: dict[str, bool] = {}  # whether it kept up where that was measured
    best_cpu: dict[str, float] = {}
    window_s = 0.0
    for number, way in enumerate(WAYS):
        world = World(clients, way.registrations, way.fan_out, prefix=f"w{number}-")
        found, window = await _climb(service, world, way, steps, seconds, refine=options.rate is None)
        fan_outs[way.name] = found
        at_rate = next((step for step in found["steps"] if step["offered_per_s"] == (options.rate or CPU_RATE_PER_S)), None)
        if at_rate is not None:
            held[way.name] = at_rate["passed"]
            costs[way.name] = per_10_000(at_rate["cpu_s"], at_rate["delivered"])
        if window is not None and not best_cpu:
            best_cpu, window_s = window.cpu_seconds, window.seconds
    return Result(
        name="throughput",
        settings={
            "load": f"{clients:,} clients; steps of {seconds:g} s",
            "registrations_per_client": {way.name: way.registrations for way in WAYS},
            "connections_of_publishers": {way.name: "the library's" if way.library else way.connections for way in WAYS},
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"registrations, then {min(_WARM_UP_S, seconds):g} s at the first step's rate",
        figures={"cpu_s_per_10_000_deliveries_at_10_000_per_s": costs, "fan_outs": fan_outs},
        aims=[
            *(
                Aim(
                    f"delivered at a fan-out of {way.name}", "/s", way.aim_per_s, fan_outs[way.name]["highest_per_s"], larger_is_better=True
                )
                for way in WAYS
            ),
            *(
                Aim(f"CPU of 10,000 deliveries, fan-out {name}", "s", CPU_AIM_S, cost["service"], kept_up=held[name])
                for name, cost in costs.items()
            ),
        ],
        cpu_seconds=best_cpu,
        cpu_window_s=window_s,
    )


async def _climb(
    service: Service, world: World, way: Way, rates: list[float], seconds: float, refine: bool
) -> tuple[dict[str, Any], Window | None]:
    """Steps upwards until one fails; answers them, and the window of the best that passed."""
    fleet = Fleet(service.url)
    steps: list[dict[str, Any]] = []
    best: tuple[float, Window] | None = None
    uncollapsed = 0.0
    try:
        await fleet.join(world.clients, world.names_of(), prefix=world.prefix)
        async with way.publishers(service.url, world.objects) as publishers:
            await publishers.paced(rates[0] / world.fan_out, min(_WARM_UP_S, seconds), way.batch)
            await caught_up(fleet, publishers, _DRAIN_S)
            waiting = list(rates)
            passed = 0.0
            while waiting:
                offered = waiting.pop(0)
                step, window = await _step(service, world, way, fleet, publishers, offered, seconds)
                steps.append(step)
                say(
                    f"fan-out {way.name}: offered {offered:,.0f}/s, delivered {step['delivered_per_s']:,.0f}/s,"
                    f" p99 {step['p99_ms']:,.0f} ms: {'passed' if step['passed'] else 'failed'}"
                )
                grew = best is None or step["delivered_per_s"] > best[0]
                if step["passed"] and step["collapsed"] <= step["delivered"] * _NEARLY_NONE:
                    uncollapsed = max(uncollapsed, step["delivered_per_s"])
                if step["passed"] and grew:
                    passed, best = offered, (step["delivered_per_s"], window)
                elif refine:
                    waiting, refine = [(passed + offered) / 2], False
                else:
                    waiting = []
    finally:
        fleet.close()
    highest = best[0] if best is not None else 0.0
    found = {
        "objects": len(world.objects),
        "highest_per_s": highest,
        "highest_without_collapse_per_s": uncollapsed,
        "steps": steps,
    }
    return found, None if best is None else best[1]


def learning_times_ms(heard: Heard, published_s: Sequence[float], objects: int, first: int) -> list[float]:
    """From each publish since the first to each client that learned it, by that version or by one that overtook it.

    Objects take turns, so the versions of one of them lie `objects` apart.
    """
    times_ms: list[float] = []
    for version, before, received_s in zip(heard.versions, heard.before, heard.received_s, strict=True):
        learned = version
        while learned > before and learned >= first:
            times_ms.append((received_s - published_s[learned]) * 1000)
            learned -= objects
    return times_ms


async def _step(
    service: Service, world: World, way: Way, fleet: Fleet, publishers: Publishers, offered: float, seconds: float
) -> tuple[dict[str, Any], Window]:
    first = publishers.last_version + 1
    fleet.heard.clear()
    publishers.answers_ms = publishers.answers_ms[:0]
    refused = publishers.refused
    window = await asyncio.to_thread(Window, service)
    began_s = time.time()
    kept_up = await publishers.paced(offered / world.fan_out, seconds, way.batch)
    complete = await caught_up(fleet, publishers, _DRAIN_S)
    await asyncio.to_thread(window.end)
    heard = fleet.heard
    last_s = heard.received_s[-1] if len(heard) else began_s
    took_s = max(seconds, last_s - began_s)
    times_ms = learning_times_ms(heard, publishers.published_s, len(world.objects), first)
    expected = world.fan_out * (publishers.last_version + 1 - first)
    parts = percentiles(times_ms)
    milestones = window.milestones()
    step = {
        "offered_per_s": offered,
        "delivered_per_s": round(len(heard) / took_s, 1),
        "p50_ms": parts["p50"],
        "p99_ms": parts["p99"],
        "delivered": len(heard),
        "collapsed": expected - len(heard) if complete else 0,
        "repeated": heard.repeated,
        "written": milestones.get("stored", 0),
        "refused": publishers.refused - refused,
        "connections_lost": publishers.connections_lost,
        "publish_p99_ms": percentiles(publishers.answers_ms)["p99"],
        "batches": window.batches,
        "cpu_s": window.cpu_seconds,
        "passed": bool(kept_up and complete and parts["p99"] < P99_LIMIT_MS and publishers.refused == refused),
    }
    return step, window
