"""sweeping: what a sweep over a million clients with five registrations each takes, and what the running service feels of it.

The tables are filled before the service starts (filling.py). Then clients of this bench are served as in `latency`, without a pause, while
one sweep after the other runs beside them: `collect` and `compare` on the service's own schedule, in its Spark session; and the walk
of `repair`, which would need a loss to be scheduled, as the same task in a process of its own, as a dry run. Notifications that were
published while no sweep ran are the measure for those that were.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.accounting import OTHERS, WORKERS, Snapshot
from bench.clients import Fleet, Heard
from bench.filling import Filled, fill
from bench.load import Publishers
from bench.report import Result, percentiles
from bench.service import ROOT, BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run
from roskva.config import Settings
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, task_of
from roskva.pipeline.sweeps.record import DONE, FAILED, PLANNED, STOPPED, Record, clock_ms, read_record, write_records
from roskva.table import open_table

CLIENTS: Final = 1_000_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
SERVED: Final = 1_000  # clients of the load
RATE_PER_S: Final = 200.0
SECONDS: Final = 30.0  # without a sweep, before, between and after
FREE_BYTES_MIN: Final = 10 * 10**9
BYTES_PER_CLIENT: Final = 3_000  # more than is needed
SCHEDULED: Final = ("collect", "compare")
WALK: Final = "repair (walk)"
QUIET: Final = ""  # the phases in which no sweep runs
_CONNECTIONS: Final = 16
_DRAIN_S: Final = 30.0
_SWEEP_S_MAX: Final = 5_400.0
_LOOK_EVERY_S: Final = 1.0
_LONG_S: Final = 4 * _SWEEP_S_MAX

APPROXIMATIONS: Final = [
    "the files were filled in the order of their keys: their pages are fuller than those of tables that grew",
    "the walk of repair runs in a process of its own without Spark, not in one of the two places for tasks of the pipeline's session",
    "rows per second are of the time from the sweep's begin to its end in its own record, Spark's jobs included; all of it beside the load",
]


@dataclass(slots=True)
class Phase:
    """A stretch of the measurement: one sweep, or none."""

    sweep: str
    began_s: float  # of the wall clock, as publishes are stamped
    ended_s: float = 0.0
    swept: Swept = field(default_factory=Swept)
    took_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)


def latencies_ms(heard: Heard, published_s: Sequence[float], phases: Sequence[Phase]) -> dict[str, list[float]]:
    """Of every notification, from publish to client, by the sweep that ran when it was published. Those at a border are of neither."""
    found: dict[str, list[float]] = {phase.sweep: [] for phase in phases}
    for version, received_s in zip(heard.versions, heard.received_s, strict=True):
        due_s = published_s[version]
        for phase in phases:
            if phase.began_s <= due_s < phase.ended_s:
                found[phase.sweep].append((received_s - due_s) * 1000)
                break
    return found


def sweep_figures(phase: Phase, times_ms: Sequence[float], quiet_ms: dict[str, float], quiet_cpu_per_s: dict[str, float]) -> dict[str, Any]:
    """One sweep's line: how fast, and what others felt of it."""
    latency = percentiles(times_ms)
    seconds = phase.ended_s - phase.began_s
    above = {role: round(used - quiet_cpu_per_s.get(role, 0.0) * seconds, 1) for role, used in phase.cpu_s.items()}
    return {
        "sweep": phase.sweep,
        "rows": phase.swept.looked_at,
        "seconds": round(phase.took_s, 1),
        "rows_per_s": round(phase.swept.looked_at / phase.took_s, 1) if phase.took_s else 0.0,
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "max_ms": latency["max"],
        "p50_ratio": round(latency["p50"] / quiet_ms["p50"], 3) if quiet_ms["p50"] else 0.0,
        "p99_ratio": round(latency["p99"] / quiet_ms["p99"], 3) if quiet_ms["p99"] else 0.0,
        "cpu_s_above_quiet": above,
        "proposed": phase.swept.proposed,
        "left": phase.swept.left,
        "counts": dict(phase.swept.counts),
    }


def measure(options: Options) -> Result:
    world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT, prefix="filled")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < FREE_BYTES_MIN + world.clients * BYTES_PER_CLIENT:
        raise BenchFailed(f"There are only {free / 1e9:.1f} GB free in {tempfile.gettempdir()}: too few to fill tables there.")
    filled: list[Filled] = []
    with running(options.settings, prepare=lambda data: filled.append(fill(data, world, time.time()))) as service:
        return run(_Sweeping(service, options, filled[0]).measure())


class _Sweeping:
    def __init__(self, service: Service, options: Options, filled: Filled) -> None:
        self._service = service
        self._filled = filled
        self._seconds = options.seconds or SECONDS
        self._rate = options.rate or RATE_PER_S
        self._world = World(SERVED, REGISTRATIONS, FAN_OUT)
        self._phases: list[Phase] = []
        self._table = open_table(service.settings)
        self._walk_cpu_s = 0.0

    async def measure(self) -> Result:
        fleet = Fleet(self._service.url)
        try:
            await fleet.join(self._world.clients, self._world.names_of())
            async with Publishers(self._service.url, self._world.objects, _CONNECTIONS) as publishers:
                load = asyncio.create_task(publishers.paced(self._rate, _LONG_S))
                try:
                    await asyncio.sleep(self._seconds)  # warm-up
                    window = await asyncio.to_thread(Window, self._service)
                    await self._quiet()
                    for name in SCHEDULED:
                        await self._during(name, partial(self._scheduled, name))
                        await self._quiet()
                    await self._during(WALK, self._walk)
                    self._count_walk(self._phases[-1])
                    await self._quiet()
                finally:
                    kept_up = not load.done()
                    load.cancel()
                    await asyncio.gather(load, return_exceptions=True)
                if not kept_up or publishers.refused:
                    raise BenchFailed(f"The service did not accept {self._rate:g} publishes/s ({publishers.refused} were refused).")
                await asyncio.to_thread(window.end)
                if not await caught_up(fleet, publishers, _DRAIN_S):
                    raise BenchFailed(f"Not every client had the latest versions {_DRAIN_S:g} s after the last publish.")
                return self._result(window, latencies_ms(fleet.heard, publishers.published_s, self._phases))
        finally:
            fleet.close()

    @contextmanager
    def _phase(self, sweep: str, before: Snapshot) -> Iterator[Phase]:
        phase = Phase(sweep, time.time())
        yield phase
        phase.ended_s = time.time()
        phase.cpu_s = before.until(self._service.cpu())
        self._phases.append(phase)

    async def _quiet(self) -> None:
        say(f"no sweep for {self._seconds:g} s")
        await asyncio.sleep(1.0)  # for what the sweep left
        with self._phase(QUIET, self._service.cpu()):
            await asyncio.sleep(self._seconds)

    async def _during(self, name: str, sweep: Callable[[], tuple[Swept, float]]) -> None:
        say(f"{name} over {self._filled.clients:,} clients")
        with self._phase(name, self._service.cpu()) as phase:
            phase.swept, phase.took_s = await asyncio.to_thread(sweep)
        if phase.swept.left:
            raise BenchFailed(f"{name} left {phase.swept.left:,} for the next time: {phase.swept}")
        say(f"{phase.swept.looked_at:,} rows in {phase.took_s:.1f} s")

    def _scheduled(self, name: str) -> tuple[Swept, float]:
        """Make it due, and wait until the service has run it."""
        asked_ms = clock_ms()
        write_records(self._table, [Record(name, PLANNED, ended_ms=1)])
        deadline_s = time.monotonic() + _SWEEP_S_MAX
        while time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
            record = read_record(self._table, name)
            if record is None or record.began_ms < asked_ms or record.state not in (DONE, FAILED, STOPPED):
                continue
            if record.state != DONE:
                raise BenchFailed(f"The sweep {name} is {record.state}: {record.error}")
            return record.swept, (record.ended_ms - record.began_ms) / 1000
        raise BenchFailed(f"The sweep {name} did not end within {_SWEEP_S_MAX:g} s.")

    def _walk(self) -> tuple[Swept, float]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
        command = [sys.executable, "-m", "bench.sweeping", str(self._service.data)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SWEEP_S_MAX, check=False)
        if done.returncode:
            raise BenchFailed(f"The walk failed: {done.stderr}")
        told = json.loads(done.stdout)
        self._walk_cpu_s = told["cpu_s"]
        return Swept(int(told["rows"]), int(told["proposed"])), float(told["seconds"])

    def _count_walk(self, phase: Phase) -> None:
        """In the service it would be a worker's work."""
        phase.cpu_s[WORKERS] = phase.cpu_s.get(WORKERS, 0.0) + self._walk_cpu_s
        phase.cpu_s[OTHERS] = max(0.0, phase.cpu_s.get(OTHERS, 0.0) - self._walk_cpu_s)

    def _result(self, window: Window, times_ms: dict[str, list[float]]) -> Result:
        quiet_ms = percentiles(times_ms[QUIET])
        quiet = [phase for phase in self._phases if phase.sweep == QUIET]
        quiet_s = sum(phase.ended_s - phase.began_s for phase in quiet)
        quiet_cpu_per_s: dict[str, float] = {}
        for phase in quiet:
            for role, used in phase.cpu_s.items():
                quiet_cpu_per_s[role] = quiet_cpu_per_s.get(role, 0.0) + used / quiet_s
        sweeps = [sweep_figures(phase, times_ms[phase.sweep], quiet_ms, quiet_cpu_per_s) for phase in self._phases if phase.sweep != QUIET]
        filled = self._filled
        return Result(
            name="sweeping",
            settings={
                "load": f"{filled.clients:,} clients x {REGISTRATIONS} registrations of {filled.objects:,} objects",
                "served_meanwhile": f"{SERVED:,} clients x {REGISTRATIONS} registrations, {self._rate:g} publishes/s, fan-out {FAN_OUT}",
                "service": self._service.parts,
                "changed": self._service.changed,
            },
            warm_up=f"registrations of the clients that are served, then {self._seconds:g} s of their load",
            figures={
                "filled": {"cells": filled.cells, "mib": round(filled.bytes / 2**20, 1), "seconds": round(filled.seconds, 1)},
                "without_a_sweep_ms": quiet_ms,
                "sweeps": sweeps,
            },
            aims=[],
            cpu_seconds=window.cpu_seconds,
            cpu_window_s=window.seconds,
            approximations=APPROXIMATIONS,
        )


def walk(data: Path) -> dict[str, float]:
    """The walk of `repair` over all clients' rows, as if all objects had been lost; nothing is proposed to anybody."""
    settings = Settings(data=data)
    request = Request("repair", clock_ms(), dry_run=True, lost=frozenset(range(settings.partitions)))
    task = task_of("repair")(Connections(settings), request, Progress())
    began_s, cpu_s = time.monotonic(), time.process_time()
    swept = Swept()
    for partition in range(settings.partitions):
        swept.add(task.run(partition))
    took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    return {"rows": swept.looked_at, "proposed": swept.proposed, "seconds": took_s, "cpu_s": cpu_s}


if __name__ == "__main__":
    print(json.dumps(walk(Path(sys.argv[1]))))
