"""idle: what it costs to do nothing. Memory of the gateway per connected client, and CPU of the whole service without any updates.

Resident memory of the gateway is read with no clients (after some have come and gone, so that what is loaded once is loaded), and with
all of them connected and registered, after their rows have left the cache and keepalives have gone round. The kernel's own memory for
sockets is not in it, for this service as for those that it is compared with.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.accounting import GATEWAY, SERVICE, memory_by_role_mib, memory_kib
from bench.clients import Fleet
from bench.idling import Size, measured
from bench.report import Aim, Result
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, World, run

CLIENTS: Final = 10_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
SECONDS: Final = 20.0
CROWD_S: Final = 15.0
STEPS: Final = 4
ROW_IDLE_S: Final = 10  # the default is 60: the wait for it would measure nothing
MEMORY_AIM_KIB: Final = 8.0
CPU_AIM_PERCENT: Final = 5.0
CROWDS: Final = (Size(10_000, 0), Size(50_000, 0), Size(1_000_000, 4))
_CROWD_AIMS_BYTES: Final = {"WebSocket": 8 * 1024, "trusted line": 1_200}
_VISITORS: Final = 200
_SETTLE_S: Final = 14.0
_OTHER_FILES: Final = 1_000  # of a gateway, beside its connections
_EVENLY: Final = 0.9  # the kernel spreads connections over gateways by chance


def measure(options: Options) -> Result:
    with running({"row_idle_s": str(ROW_IDLE_S), **options.settings}) as service:
        result = measure_on(service, options)
    crowds = [measured(size, options.seconds or CROWD_S, options.settings) for size in crowds_of(options.clients)]
    result.figures["crowds"] = crowds
    result.aims += [aim_of(crowd) for crowd in crowds]
    return result


def crowds_of(clients: int | None) -> Sequence[Size]:
    """In proportion to the clients of the whole service, if those are chosen. More WebSockets than a process has files: more gateways."""
    chosen = CROWDS if clients is None else [Size(size.clients * clients // CLIENTS or 1, size.lines) for size in CROWDS]
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    of_a_gateway = max(1, round(_EVENLY * (files - _OTHER_FILES)))
    return [size if size.lines else size._replace(gateways=-(-size.clients // of_a_gateway)) for size in chosen]


def aim_of(crowd: dict[str, Any]) -> Aim:
    aim = _CROWD_AIMS_BYTES[crowd["channel"]]
    where = "the gateway" if crowd["gateways"] == 1 else f"{crowd['gateways']} gateways"
    return Aim(f"memory of {where} per idle {crowd['channel']} client, {crowd['clients']:,}", "bytes", aim, crowd["bytes_per_client"])


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    clients = options.clients or CLIENTS
    seconds = options.seconds or SECONDS
    settle_s = min(_SETTLE_S, 5 * seconds)
    pids = service.pids(GATEWAY)
    await _visit(service, min(_VISITORS, clients))
    await asyncio.sleep(settle_s)
    empty_kib = sum(map(memory_kib, pids))
    samples = [{"clients": 0, "gateway_mib": round(empty_kib / 1024, 2)}]
    say(f"idle without clients for {seconds:g} s")
    empty = await _quiet(service, seconds)
    fleet = Fleet(service.url)
    world = World(clients // STEPS, REGISTRATIONS, FAN_OUT)
    try:
        for step in range(STEPS):
            await fleet.join(world.clients, world.names_of(), prefix=f"idle-{step}")
            samples.append({"clients": len(fleet.clients), "gateway_mib": round(sum(map(memory_kib, pids)) / 1024, 2)})
        await asyncio.sleep(settle_s)
        at_rest_kib = sum(map(memory_kib, pids))
        samples.append({"clients": len(fleet.clients), "gateway_mib": round(at_rest_kib / 1024, 2)})
        say(f"idle with {len(fleet.clients):,} clients for {seconds:g} s")
        full = await _quiet(service, seconds)
        memory = memory_by_role_mib(service.run)
        if fleet.alive() < len(fleet.clients):
            raise BenchFailed(f"{len(fleet.clients) - fleet.alive():,} idle clients lost their connection.")
    finally:
        fleet.close()
    per_client_kib = (at_rest_kib - empty_kib) / (STEPS * world.clients)
    return _result(service, clients, seconds, settle_s, samples, per_client_kib, empty, full, memory)


async def _visit(service: Service, count: int) -> None:
    """Clients that come, register and go: what a gateway loads and allocates once is there afterwards."""
    fleet = Fleet(service.url)
    world = World(count, REGISTRATIONS, FAN_OUT, prefix="v")
    await fleet.join(count, world.names_of(), prefix="visitor")
    fleet.close()


async def _quiet(service: Service, seconds: float) -> Window:
    window = await asyncio.to_thread(Window, service)
    began_s = time.monotonic()
    await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began_s)))
    await asyncio.to_thread(window.end)
    return window


def _percent(window: Window) -> dict[str, float]:
    return {role: round(100 * window.cpu_seconds.get(role, 0.0) / window.seconds, 2) for role in SERVICE}


def _result(
    service: Service,
    clients: int,
    seconds: float,
    settle_s: float,
    samples: list[dict[str, Any]],
    per_client_kib: float,
    empty: Window,
    full: Window,
    memory: dict[str, float],
) -> Result:
    empty_percent, full_percent = _percent(empty), _percent(full)
    return Result(
        name="idle",
        settings={
            "load": f"{clients:,} connected clients x {REGISTRATIONS} registrations, nothing published",
            "how": "VmRSS of the gateway at rest with all clients, less that with none; CPU from /proc/PID/stat",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"{min(_VISITORS, clients)} clients came, registered and left; {settle_s:g} s of rest before each reading",
        figures={
            "kib_per_client": round(per_client_kib, 2),
            "memory_samples": samples,
            "memory_by_role_mib": memory,
            "cpu_percent_of_a_core_without_clients": empty_percent | {"whole service": round(sum(empty_percent.values()), 2)},
            "cpu_percent_of_a_core_with_clients": full_percent | {"whole service": round(sum(full_percent.values()), 2)},
            "keepalives_sent": int(full.counted.get('roskva_messages_total{way="sent"}', 0.0)),
        },
        aims=[
            Aim("memory of the gateway per idle client", "KiB", MEMORY_AIM_KIB, round(per_client_kib, 2)),
            Aim("CPU of the whole idle service", "%", CPU_AIM_PERCENT, round(sum(empty_percent.values()), 2)),
            Aim("the same with all clients connected, keepalives included", "%", CPU_AIM_PERCENT, round(sum(full_percent.values()), 2)),
        ],
        cpu_seconds=full.cpu_seconds,
        cpu_window_s=full.seconds,
    )
