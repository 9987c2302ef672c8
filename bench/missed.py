"""missed: a client is offline while its objects change thousands of times. What it is told when it returns, and how soon.

Another client with the same registrations stays online: when that one has the latest versions, the pipeline is through.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

from bench.clients import Fleet, LeanClient
from bench.load import Publishers, until
from bench.report import Aim, Result
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, run
from roskva.feed.interface import UPDATES

REGISTRATIONS: Final = 5
PUBLISHES: Final = 10_000
ROUNDS: Final = 5
BATCH: Final = 100
RATE_PER_S: Final = 5_000.0
_THROUGH_S: Final = 60.0
_RETURN_S: Final = 30.0
_AFTERWARDS_S: Final = 2.0  # for anything that comes on top


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    publishes = round(options.seconds * RATE_PER_S) if options.seconds else PUBLISHES
    count = ROUNDS if options.seconds is None else 2
    names = [f"m{number}" for number in range(REGISTRATIONS)]
    fleet = Fleet(service.url)
    try:
        await fleet.join(2, lambda number: names)
        traveller, witness = fleet.clients
        async with Publishers(service.url, names, 8) as publishers:
            await publishers.paced(100.0, 3.0)  # warm-up, with both online
            await _has_all(witness, publishers, _THROUGH_S)
            window = await asyncio.to_thread(Window, service)
            rounds = [await _round(service, fleet, traveller, witness, publishers, publishes) for _ in range(count)]
            await asyncio.to_thread(window.end)
    finally:
        fleet.close()
    most = max(one["notifications"] for one in rounds)
    return Result(
        name="missed",
        settings={
            "load": f"{REGISTRATIONS} registrations, {publishes:,} publishes to them while offline, {count} returns",
            "publishes": f"batches of {BATCH} at {RATE_PER_S:,.0f}/s",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up="300 publishes with the client online",
        figures={
            "rounds": rounds,
            "caught_up_median_ms": statistics.median(one["caught_up_ms"] for one in rounds),
            "publishes_per_notification": round(publishes / max(1, most), 1),
        },
        aims=[Aim("notifications on return, at most", "", float(REGISTRATIONS), float(most))],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
    )


async def _has_all(client: LeanClient, publishers: Publishers, timeout_s: float) -> bool:
    latest = publishers.latest()
    return await until(lambda: all(client.known.get(name, 0) >= version for name, version in latest.items()), timeout_s)


async def _round(
    service: Service, fleet: Fleet, traveller: LeanClient, witness: LeanClient, publishers: Publishers, publishes: int
) -> dict[str, Any]:
    traveller.close()
    await until(lambda: traveller.closed, 5.0)
    await publishers.paced(RATE_PER_S, publishes / RATE_PER_S, BATCH)
    await publishers.drained(_THROUGH_S)
    if publishers.refused or not await _has_all(witness, publishers, _THROUGH_S):
        raise BenchFailed("The publishes were not all accepted and delivered to the client that stayed online.")
    # The client that stayed online was told by the fast path; for the one that is offline the pipeline writes, after a rest.
    for _ in range(int(_THROUGH_S * 10)):
        if not await asyncio.to_thread(service.lag, UPDATES):
            break
        await asyncio.sleep(0.1)
    else:
        raise BenchFailed("The pipeline did not work off what was published.")
    await asyncio.sleep(0.5)  # the batch's last writes
    fleet.heard.clear()
    began_s = time.perf_counter()
    await traveller.connect(fleet.url, prior=traveller.token)
    granted_ms = (time.perf_counter() - began_s) * 1000
    traveller.speak()
    if not await _has_all(traveller, publishers, _RETURN_S):
        raise BenchFailed(f"The returning client did not learn the latest versions within {_RETURN_S:g} s.")
    caught_up_ms = (time.perf_counter() - began_s) * 1000
    await asyncio.sleep(_AFTERWARDS_S)
    told = len(fleet.heard) + fleet.heard.unknown + fleet.heard.repeated
    say(f"returned: {told} notifications, caught up after {caught_up_ms:.0f} ms")
    return {"notifications": told, "caught_up_ms": round(caught_up_ms, 1), "handshake_ms": round(granted_ms, 1)}
