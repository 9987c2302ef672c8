"""reconnect: a gateway with 10,000 clients is restarted cleanly. When are all in sync again, at what cost, and do they come in a herd?

It is told to stop (SIGTERM): it says "going away" to everybody and ends; `roskva up` starts it again. The clients are the real cores of the
client library with their own pauses (returning.py). Every attempt to connect is noted, those that nobody accepts, too. CPU is read every
second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from bench.accounting import GATEWAY, Snapshot
from bench.failover import APPROXIMATIONS, GROUPS, Usage, over_time
from bench.report import Result, percentiles
from bench.returning import Event, ReturningFleet
from bench.service import Service, running, say
from bench.world import Options, World, run

CLIENTS: Final = 10_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
STEADY_S: Final = 30.0
SETTLING_S: Final = 120  # the default: it is what a gateway does after a start
AFTERWARDS_S: Final = 10.0  # attempts that still come when all are in sync belong to the picture
_STEP_S: Final = 1.0
_TIMEOUT_S: Final = 300.0


def measure(options: Options) -> Result:
    with running({"settling_s": str(SETTLING_S), **options.settings}, losses=True) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_Reconnect(service, options).measure())


def per_second(times_s: Sequence[float]) -> list[int]:
    """How many fell into each second, from the first on."""
    counts = [0] * (int(max(times_s)) + 1 if times_s else 0)
    for at_s in times_s:
        counts[max(0, int(at_s))] += 1
    return counts


def peaks(samples: Sequence[Snapshot]) -> dict[str, float]:
    """The most that each group used between two samples that follow each other, in percent of a core."""
    usages = [Usage.between(before, after) for before, after in pairwise(samples)]
    return {group: round(100 * max((usage.per_s(group) for usage in usages), default=0.0), 1) for group in GROUPS}


class _Reconnect:
    def __init__(self, service: Service, options: Options) -> None:
        self._service = service
        self._world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT)
        self._steady_s = options.seconds or STEADY_S
        self._samples: list[Snapshot] = []

    async def measure(self) -> Result:
        fleet = ReturningFleet(self._service.url)
        try:
            await fleet.join(self._world.clients, self._world.names_of(), _TIMEOUT_S)
            say(f"steady state for {self._steady_s:g} s")
            before = await asyncio.to_thread(self._service.cpu)
            await asyncio.sleep(self._steady_s)
            await fleet.informed(_TIMEOUT_S)
            after = await asyncio.to_thread(self._service.cpu)
            event, window = await self._restart(fleet)
        finally:
            await fleet.close()
        self._service.check()
        return self._result(event, Usage.between(before, after), window)

    async def _restart(self, fleet: ReturningFleet) -> tuple[Event, Usage]:
        say("SIGTERM to the gateway")
        pid = await asyncio.to_thread(self._service.pid, GATEWAY)
        sampling = asyncio.create_task(self._sample())
        event = fleet.begin_event(disconnects=True)
        os.kill(pid, signal.SIGTERM)
        try:
            await fleet.informed(_TIMEOUT_S)
            say(f"all are in sync again after {max(event.informed_s):.1f} s")
            await asyncio.sleep(AFTERWARDS_S)
            await fleet.informed(_TIMEOUT_S)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        return event, Usage.between(self._samples[0], self._samples[-1])

    async def _sample(self) -> None:
        while True:
            began_s = time.monotonic()
            self._samples.append(await asyncio.to_thread(self._service.cpu))
            await asyncio.sleep(max(0.0, began_s + _STEP_S - time.monotonic()))

    def _result(self, event: Event, steady: Usage, window: Usage) -> Result:
        attempts = per_second(event.attempts_s)
        figures: dict[str, Any] = {
            "in_sync_s": percentiles(event.informed_s),
            "connected_s": percentiles(event.connected_s),
            "reconnected": len(event.connected_s),
            "attempts": len(event.attempts_s),
            "attempts_per_client": round(len(event.attempts_s) / self._world.clients, 2),
            "attempts_in_the_busiest_second": max(attempts, default=0),
            "peak_cpu_percent_of_a_core": peaks(self._samples),
            "steady_cpu_percent_of_a_core": {group: round(100 * steady.per_s(group), 1) for group in GROUPS},
            "above_steady_state_cpu_seconds": window.above(steady),
            "seen_by_the_clients": dict(sorted(event.counts.items())),
            "attempts_per_second": attempts,
            "connected_over_time": over_time(event.connected_s),
            "in_sync_over_time": over_time(event.informed_s),
        }
        return Result(
            name="reconnect",
            settings={
                "load": f"{self._world.clients:,} connected clients x {REGISTRATIONS} registrations; the gateway is restarted cleanly",
                "clients": "real cores of the client library with their own pauses and retries, in one process",
                "service": self._service.parts,
                "changed": self._service.changed,
            },
            warm_up=f"registrations, and {self._steady_s:g} s of steady state",
            figures=figures,
            aims=[],
            cpu_seconds=window.rounded(),
            cpu_window_s=window.seconds,
            approximations=[
                *APPROXIMATIONS[:2],
                "peaks are of samples a second apart; the CPU that the old gateway used in its last second is not in them",
            ],
        )
