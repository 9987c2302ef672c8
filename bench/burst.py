"""burst: what a backlog and a crowded object do to everybody else.

First a burst of updates, in batches of 1,000, over objects that nobody is registered for: how fast the pipeline works off what it is
behind. Then an object that 100,000 clients are registered for, all of them offline, is published again and again: each time 100,000
rows are written. Then another such object, all of whose clients are online over trusted lines (bench/crowding.py): each time 100,000 are
told and acknowledge it. Beside all three, and before, a small steady load goes on: its latency, by the fast path, is what others feel.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.accounting import RUN_VARIABLE
from bench.bursting import BATCH
from bench.clients import Fleet
from bench.crowding import HERE, OFFLINE, world_of
from bench.filling import fill
from bench.load import Publishers
from bench.report import Aim, Result, percentiles
from bench.service import ROOT, BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run
from roskva.feed.interface import FAN_OUTS, UPDATES

UPDATES_IN_BURST: Final = 1_000_000
OBJECTS: Final = 10_000
REGISTERED: Final = 100_000
HOT_PUBLISHES: Final = 3
WORKED_OFF_AIM_PER_S: Final = 20_000.0
LATENCY_TIMES_AIM: Final = 3.0  # p50 of the steady load, against itself before
STEADY_CLIENTS: Final = 200
STEADY_PER_S: Final = 50.0
QUIET_S: Final = 8.0
_PUBLISHERS: Final = 8
_STEADY_CONNECTIONS: Final = 128  # each has one publish under way: with few of them a slow answer would hold up those that are due
_LOOK_S: Final = 0.25
_WORKED_OFF_S: Final = 90.0
_COME_S: Final = 180.0
_SETTLE_S: Final = 3.0  # after the crowd came
_DRAIN_S: Final = 20.0

APPROXIMATIONS: Final = [
    "the backlog is looked at every quarter of a second, and the pipeline tells it once a second or with each batch",
    "nobody is registered for the objects of the burst: what is worked off is their updates' way through Bridge and Matcher",
    "the clients that are online come over trusted lines, from one process, which shares the two cores with everything else",
]


def measure(options: Options) -> Result:
    registered = REGISTERED if options.clients is None else 10 * options.clients
    changed = {"connections_max": str(max(18_000, registered + 1_000)), **options.settings}
    with running(changed, prepare=partial(prepare, registered=registered)) as service:
        return measure_on(service, options, registered)


def prepare(data: Path, registered: int) -> None:
    fill(data, world_of(registered), time.time())


def measure_on(service: Service, options: Options, registered: int) -> Result:
    return run(_measure(service, options, registered))


class Steady:
    """A small load that goes on whatever happens, and who felt what when."""

    def __init__(self, service: Service, clients: int) -> None:
        self.clients = clients
        self._world = World(clients, 5, 5, prefix="steady")
        self.fleet = Fleet(service.url)
        self.publishers = Publishers(service.url, self._world.objects, _STEADY_CONNECTIONS)
        self._pacing: asyncio.Task[bool] | None = None

    async def start(self) -> None:
        await self.fleet.join(self._world.clients, self._world.names_of(), prefix="steady")
        await self.publishers.__aenter__()
        self._pacing = asyncio.get_running_loop().create_task(self.publishers.paced(STEADY_PER_S, 3_600.0))

    async def stop(self) -> bool:
        """Whether every client has everything."""
        if self._pacing is not None:
            self._pacing.cancel()
        complete = await caught_up(self.fleet, self.publishers, _DRAIN_S)
        await self.publishers.__aexit__()
        self.fleet.close()
        return complete

    async def during(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, dict[str, float]]:
        """What the work answers, and the latency of what was published meanwhile."""
        first = self.publishers.last_version + 1
        answered = len(self.publishers.answers_ms)
        answer = await work()
        last = self.publishers.last_version
        await asyncio.sleep(1.0)
        heard, published_s = self.fleet.heard, self.publishers.published_s
        times_ms = [
            (received_s - published_s[version]) * 1000
            for version, received_s in zip(heard.versions, heard.received_s, strict=True)
            if first <= version <= last
        ]
        answers = percentiles(self.publishers.answers_ms[answered:])
        return answer, percentiles(times_ms) | {
            "notifications": len(times_ms),
            "publish_answered_p50": answers["p50"],
            "publish_answered_max": answers["max"],
        }


async def _measure(service: Service, options: Options, registered: int) -> Result:
    updates = UPDATES_IN_BURST if options.rate is None else int(options.rate)
    quiet_s = min(QUIET_S, options.seconds or QUIET_S)
    steady = Steady(service, STEADY_CLIENTS if options.clients is None else options.clients)
    await steady.start()
    try:
        await asyncio.sleep(quiet_s)  # the first batches are slower
        _, before = await steady.during(lambda: asyncio.sleep(quiet_s))
        window = await asyncio.to_thread(Window, service)
        burst, beside_burst = await steady.during(partial(_burst, service, updates))
        await asyncio.to_thread(window.end)
        hot, beside_hot = await steady.during(partial(_hot, service, registered))
        online, beside_online = await _beside_those_online(service, registered, steady)
        complete = await steady.stop()
    finally:
        steady.fleet.close()
    if not complete:
        raise BenchFailed("Not every client of the steady load had the latest versions in the end.")
    latency = {
        "before": before,
        "beside the burst": beside_burst,
        "beside the crowd offline": beside_hot,
        "beside the crowd online": beside_online,
    }
    times = {when: found["p50"] / max(0.001, before["p50"]) for when, found in latency.items()}
    return Result(
        name="burst",
        settings={
            "load": f"{updates:,} updates of {OBJECTS:,} objects in batches of {BATCH:,}; {registered:,} clients for each of two more",
            "steady": f"{steady.clients} clients x 5 registrations, 5 clients per object, {STEADY_PER_S:g} publishes/s",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"{quiet_s:g} s of the steady load",
        figures={"burst": burst, "crowd_offline": hot, "crowd_online": online, "latency_ms": latency},
        aims=[
            Aim("backlog worked off", "/s", WORKED_OFF_AIM_PER_S, burst["worked_off_per_s"], larger_is_better=True),
            *(Aim(f"p50 {when}, times that before", "x", LATENCY_TIMES_AIM, by) for when, by in times.items() if when != "before"),
        ],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        approximations=APPROXIMATIONS,
    )


async def _process(service: Service, module: str, *arguments: object) -> asyncio.subprocess.Process:
    """Of the load generator, beside this one: what it computes, the steady load does not wait for."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), RUN_VARIABLE: service.run}
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe)


async def _burst(service: Service, updates: int) -> dict[str, Any]:
    began_s = time.monotonic()
    publishing = await _process(service, "bench.bursting", service.url, updates, OBJECTS, _PUBLISHERS)
    backlog: list[dict[str, float]] = []
    ended: dict[str, float] | None = None
    ended_s = 0.0
    try:
        while True:
            await asyncio.sleep(_LOOK_S)
            lag = await asyncio.to_thread(service.lag, UPDATES)
            backlog.append({"s": round(time.monotonic() - began_s, 2), "updates": lag})
            if ended is None and publishing.returncode is not None:
                assert publishing.stdout is not None
                ended, ended_s = json.loads(await publishing.stdout.read()), backlog[-1]["s"]
                say(f"{ended['accepted']:,.0f} updates published in {ended['seconds']:.1f} s, {lag:,} of them wait")
            if ended is not None and lag <= 2 * STEADY_PER_S:  # those of the steady load wait for a batch, too
                break
            if time.monotonic() - began_s > _WORKED_OFF_S:
                raise BenchFailed(f"{lag:,} updates still waited {_WORKED_OFF_S:g} s after the burst began.")
    finally:
        if publishing.returncode is None:
            publishing.kill()
            await publishing.wait()
    return burst_figures(updates, ended, ended_s, backlog)


def burst_figures(updates: int, ended: Mapping[str, float], ended_s: float, backlog: list[dict[str, float]]) -> dict[str, Any]:
    """Only what was accepted is worked off; a burst of which a part was refused is not the one that was to be measured."""
    if ended["refused"]:
        raise BenchFailed(f"{ended['refused']:,.0f} of {updates:,} updates of the burst were refused.")
    whole_s = backlog[-1]["s"]
    return {
        "updates": updates,
        "refused": ended["refused"],
        "published_per_s": round(ended["accepted"] / ended["seconds"], 1),
        "published_in_s": ended_s,
        "largest_backlog": max(one["updates"] for one in backlog),
        "worked_off_in_s": whole_s,
        "worked_off_per_s": round(ended["accepted"] / whole_s, 1),
        "backlog": backlog,
    }


async def _hot(service: Service, registered: int) -> dict[str, Any]:
    """Each publish is one fan-out to all; the next comes when it is done."""
    took_s: list[float] = []
    async with Publishers(service.url, [OFFLINE], 1) as publishers:
        publishers.published_s.extend([0.0] * 1_000)  # versions above that of the filled tables
        for _ in range(HOT_PUBLISHES):
            before = await asyncio.to_thread(_told, service)
            began_s = time.monotonic()
            publishers.publish(1, time.time())
            while await asyncio.to_thread(_told, service) - before < registered or await asyncio.to_thread(service.lag, FAN_OUTS) > 0:
                if time.monotonic() - began_s > _WORKED_OFF_S:
                    raise BenchFailed(f"The crowded object's clients were not all told within {_WORKED_OFF_S:g} s.")
                await asyncio.sleep(_LOOK_S)
            took_s.append(round(time.monotonic() - began_s, 2))
            say(f"{registered:,} clients of one object have it in their rows after {took_s[-1]:.1f} s")
    return {
        "registered": registered,
        "seconds_per_publish": [{"s": one} for one in took_s],
        "rows_per_s": round(registered * len(took_s) / max(0.001, sum(took_s)), 1),
    }


async def _beside_those_online(service: Service, registered: int, steady: Steady) -> tuple[dict[str, Any], dict[str, float]]:
    """What its process found of the crowd that is online, and what the steady load felt of its being told, not of its coming."""
    crowd = await _process(service, "bench.crowding", service.data, service.url, registered, HOT_PUBLISHES)
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    begin, lines = crowd.stdin, crowd.stdout

    async def said(within_s: float) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(lines.readline(), within_s)
        except TimeoutError:
            raise BenchFailed(f"The crowd of {registered:,} clients was not done within {within_s:g} s.") from None
        if not line:
            raise BenchFailed(f"The process with the crowd of {registered:,} clients ended; above is why.")
        found: dict[str, Any] = json.loads(line)
        return found

    async def told() -> dict[str, Any]:
        begin.write(b"\n")
        return await said(HOT_PUBLISHES * _WORKED_OFF_S)

    try:
        came = await said(_COME_S)
        say(f"{registered:,} clients of one object came in {came[HERE]:.0f} s")
        await asyncio.sleep(min(_SETTLE_S, registered / 1_000))
        found, felt = await steady.during(told)
        say(f"all of them are told within {max(one['s'] for one in found['seconds_per_publish']):.1f} s")
        return {"registered": registered, "came_s": came[HERE], **found}, felt
    finally:
        if crowd.returncode is None:
            crowd.kill()
        await crowd.wait()


def _told(service: Service) -> int:
    return int(service.metrics().get('roskva_registrar_total{milestone="stored"}', 0))
