"""publish: durable publishes per second, each answered after the fsync that it stands for, by size of batch and number of publishers."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench.load import Publishers
from bench.report import Aim, Result, percentiles
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, run

RUNS: Final = ((1, 1), (1, 100), (32, 1), (32, 100))  # publishers, batch
SECONDS: Final = 10.0
AIM_PER_S: Final = 20_000.0
_OBJECTS: Final = 1_000
_WARM_UP_S: Final = 2.0


def measure(options: Options) -> Result:
    # Without a pipeline nothing consumes the feed, so what is measured is the gateway, its disk and this generator.
    with running(options.settings, pipeline=False) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    seconds = options.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    window = None
    for publishers, batch in RUNS:
        found, window = await _run(service, publishers, batch, seconds)
        say(f"{publishers} publishers, batches of {batch}: {found['publishes_per_s']:,.0f}/s")
        runs.append(found)
    assert window is not None
    best = max(run["publishes_per_s"] for run in runs if run["batch"] == 100)
    return Result(
        name="publish",
        settings={
            "load": f"1 and 32 publishers that wait for their answer, batches of 1 and 100, {seconds:g} s each",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"{min(_WARM_UP_S, seconds):g} s of the same load before each run",
        figures={
            "runs": runs,
            "ratio_of_batches_to_single_publishes": round(best / max(1.0, runs[2]["publishes_per_s"]), 2),
        },
        aims=[Aim("durable publishes in batches of 100", "/s", AIM_PER_S, best, larger_is_better=True)],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        acknowledgement="no clients are connected",
    )


async def _run(service: Service, publishers: int, batch: int, seconds: float) -> tuple[dict[str, Any], Window]:
    async with Publishers(service.url, [f"p{number}" for number in range(_OBJECTS)], publishers) as load:
        await load.closed_loop(publishers, batch, min(_WARM_UP_S, seconds))
        load.answers_ms = load.answers_ms[:0]
        before = load.accepted
        window = await asyncio.to_thread(Window, service)
        began_s = asyncio.get_running_loop().time()
        await load.closed_loop(publishers, batch, seconds)
        took_s = asyncio.get_running_loop().time() - began_s
        await asyncio.to_thread(window.end)
        if load.refused:
            raise BenchFailed(f"{load.refused:,} publishes were refused.")
    accepted = load.accepted - before
    cpu = window.cpu_seconds.get("gateway", 0.0)
    found = {
        "publishers": publishers,
        "batch": batch,
        "publishes_per_s": round(accepted / took_s, 1),
        "requests_per_s": round(accepted / batch / took_s, 1),
        "answer_ms": percentiles(load.answers_ms),
        "p99_ms": percentiles(load.answers_ms)["p99"],
        "gateway_cpu_us_per_publish": round(cpu / max(1, accepted) * 1e6, 1),
        "cpu_s": window.cpu_seconds,
    }
    return found, window
