"""Who registers for what, and the options of a measurement: shared by all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import uvloop

from bench.clients import Fleet
from bench.load import Publishers
from bench.service import BenchFailed, Service

SPREAD: Final = 7919  # a prime: the objects of one client lie far apart, so that publishes in turn reach different clients

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line may change. None: the measurement's own choice, which is what the documents quote."""

    seconds: float | None = None
    clients: int | None = None
    rate: float | None = None
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """So many clients with so many registrations each; every object has `fan_out` clients."""

    clients: int
    registrations: int
    fan_out: int
    prefix: str = "o"

    @property
    def objects(self) -> list[str]:
        return [f"{self.prefix}{number}" for number in range(self.clients * self.registrations // self.fan_out)]

    def names_of(self) -> Callable[[int], Sequence[str]]:
        objects = self.objects

        def names(client: int) -> list[str]:
            first = client * self.registrations
            return [objects[slot * SPREAD % len(objects)] for slot in range(first, first + self.registrations)]

        return names


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a load generator: uvloop, as many files as allowed, and few collections of garbage."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*thresholds)


class Window:
    """The measured time: what the service counted, and who used the processor, between its begin and its end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = service.metrics()
        self._batch = int(service.status()["pipeline"]["batch"] or 0)
        self._cpu = service.cpu()
        self.cpu_seconds: dict[str, float] = {}
        self.seconds = 0.0
        self.counted: dict[str, float] = {}
        self.batches = 0
        self.durations_ms: dict[str, float] = {}

    def end(self) -> None:
        self._service.check()
        cpu = self._service.cpu()
        self.cpu_seconds = self._cpu.until(cpu)
        self.seconds = cpu.at_s - self._cpu.at_s
        self.counted = {name: value - self._metrics.get(name, 0.0) for name, value in self._service.metrics().items()}
        pipeline = self._service.status()["pipeline"]
        self.batches = int(pipeline["batch"] or 0) - self._batch
        self.durations_ms = {name: float(value) for name, value in pipeline.get("durations_ms", {}).items()}

    def milestones(self) -> dict[str, int]:
        """What the Registrar counted, as far as anything happened."""
        start = 'roskva_registrar_total{milestone="'
        found = {name[len(start) : -2]: int(value) for name, value in self.counted.items() if name.startswith(start)}
        return {name: value for name, value in found.items() if value}

    def mean_ms(self, histogram: str) -> float:
        count = self.counted.get(f"{histogram}_count", 0.0)
        return round(self.counted.get(f"{histogram}_sum", 0.0) / count, 2) if count else 0.0


async def caught_up(fleet: Fleet, publishers: Publishers, timeout_s: float) -> bool:
    """Whether every client has the latest version of everything within the time."""
    await publishers.drained(4 * timeout_s)
    latest = publishers.latest()
    deadline_s = time.monotonic() + timeout_s
    while any(client.known.get(name, 0) < latest.get(name, 0) for client in fleet.clients for name in client.names):
        if time.monotonic() > deadline_s:
            if fleet.alive() < len(fleet.clients):
                raise BenchFailed(f"{len(fleet.clients) - fleet.alive():,} clients lost their connection.")
            return False
        await asyncio.sleep(0.1)
    return True
