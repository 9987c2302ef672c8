"""What the service's own stamps tell of a load: one run with the fast path and one without, for `figure8` and `figure9` (Thialfi 6.3).

The load is that of `latency`. Nothing is measured here: the service samples updates as it always does (`stamps_per_s`), and its histograms
are read before and after the window, as `roskva latency` reads them. In a run of several measurements both figures are of the same load.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from bench.clients import Fleet
from bench.load import Publishers
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run
from roskva.cli.http import get_json
from roskva.cli.latency import Seen as Looked
from roskva.cli.latency import look
from roskva.keys import administration
from roskva.telemetry.latency import Histograms

CLIENTS: Final = 1_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 200.0
SECONDS: Final = 30.0
WARM_UP_S: Final = 10.0
_CONNECTIONS: Final = 16
_DRAIN_S: Final = 10.0
_PIPELINE_S: Final = 2.0  # for the pipeline to come with what the fast path told

APPROXIMATIONS: Final = [
    "the service's own stamps: sampled updates, at most four clients of each and gateway; times are known to a sixteenth",
    "'sent' is when a message was given to the connection, 'acknowledged' when its answer was read: the load generator shares the cores",
]
PAPER: Final = {
    "samples": 2_514,
    "dispatched in less than 1 s": 0.88,
    "median delay, synthetic load (6.2)": "0.6-0.7 s",
    "Bridge to Matcher, batched for at most": "500 ms",
    "Matcher's writes": "batched similarly",
    "Matcher's read of who is registered": "mostly from memory",
    "Matcher to Registrar, batched for": "200 ms",
    "network to clients, not in its figures": "30-100 ms",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one service: the histograms of the window, and what it cost."""

    histograms: Histograms
    sampled: int
    backwards: int
    parts: str
    changed: dict[str, str]
    cpu_seconds: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Both:
    load: str
    warm_up: str
    fast: Seen
    without: Seen


_runs: dict[str, Both] = {}  # of this process, by options


def measure(options: Options) -> Both:
    """Once for all figures of a process."""
    found = _runs.get(repr(options))
    if found is None:
        with running(options.settings) as service:
            fast = measure_on(service, options)
        with running({**options.settings, "fast_path": "false"}) as service:
            without = measure_on(service, options)
        found = _runs[repr(options)] = both(options, fast, without)
    return found


def both(options: Options, fast: Seen, without: Seen) -> Both:
    clients, rate, seconds = options.clients or CLIENTS, options.rate or RATE_PER_S, options.seconds or SECONDS
    load = f"{clients:,} clients x {REGISTRATIONS} registrations, {FAN_OUT} clients per object, {rate:g} publishes/s for {seconds:g} s"
    return Both(load, f"registrations, then {min(WARM_UP_S, seconds):g} s of the same load", fast, without)


def measure_on(service: Service, options: Options) -> Seen:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Seen:
    world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT, prefix="stamped")
    rate, seconds = options.rate or RATE_PER_S, options.seconds or SECONDS
    fleet = Fleet(service.url)
    try:
        await fleet.join(world.clients, world.names_of(), prefix="stamped")
        async with Publishers(service.url, world.objects, _CONNECTIONS) as publishers:
            await publishers.paced(rate, min(WARM_UP_S, seconds))
            await caught_up(fleet, publishers, _DRAIN_S)
            await asyncio.sleep(_PIPELINE_S)
            before = await asyncio.to_thread(_read, service)
            window = await asyncio.to_thread(Window, service)
            say(f"measuring for {seconds:g} s")
            kept_up = await publishers.paced(rate, seconds)
            if not kept_up or not await caught_up(fleet, publishers, _DRAIN_S) or publishers.refused:
                raise BenchFailed(f"The service did not keep up with {rate:g} publishes/s.")
            await asyncio.to_thread(window.end)
            await asyncio.sleep(_PIPELINE_S)
            after = await asyncio.to_thread(_read, service)
    finally:
        fleet.close()
    came = after.since(before)
    return Seen(
        came.histograms,
        came.sampled,
        came.backwards,
        service.parts,
        service.changed,
        window.cpu_seconds,
        window.seconds,
    )


def _read(service: Service) -> Looked:
    """Of all gateways: a new connection reaches any one of them."""

    def ask(address: str, path: str) -> dict[str, Any]:
        return get_json(address + path, shown=administration(service.data))

    seen = look(service.url, ask)
    if seen.missing:
        raise BenchFailed(f"Not every gateway told what it measured: {', '.join(seen.missing)} did not.")
    return seen
