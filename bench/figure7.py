"""figure7: what more and more notifications cost a fixed crowd (Thialfi 6.2, Figure 7): CPU of the whole service, and latency.

All clients are online; nobody arrives. The rate of publishes is raised until clients are notified 13,000 times a second, 2,000 at a time.
Compared is the CPU that all processes of the service use in a second with that at the first rate.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from bench import figure6
from bench.many import FAN_OUT, REGISTRATIONS, SCALED, Crowd, bring, crowd, measured, relative
from bench.report import Aim, Result
from bench.service import say
from bench.world import Options, run
from roskva.load.generator import Generator

RATES_PER_S: Final = tuple(float(rate) for rate in range(1_000, 14_000, 2_000))
STEP_S: Final = 7.0
SETTLE_S: Final = 2.0
P99_LIMIT_MS: Final = 2_000.0
_HELD: Final = 0.97  # of what was offered came within the step
_DRAIN_S: Final = 60.0


def measure(options: Options) -> Result:
    with crowd(options.clients or figure6.CLIENTS, options) as there:
        return run(_alone(there, options))


async def _alone(there: Crowd, options: Options) -> Result:
    async with there.generator() as generator:
        await bring(generator, there.world.clients)
        generator.rate_per_s = RATES_PER_S[0] / FAN_OUT
        await asyncio.sleep(min(figure6.WARM_UP_S, 3 * (options.seconds or STEP_S)))
        return await climb(there, generator, options)


async def climb(there: Crowd, generator: Generator, options: Options) -> Result:
    seconds = options.seconds or STEP_S
    rates = RATES_PER_S if options.rate is None else (options.rate, 2 * options.rate)
    steps: list[dict[str, Any]] = []
    before = replace(generator.counts)
    for rate in rates:
        generator.rate_per_s = rate / FAN_OUT
        await asyncio.sleep(min(SETTLE_S, seconds))
        step = await measured(there.service, generator, seconds)
        held = step["notified_per_s"] >= _HELD * rate and step["p99_ms"] < P99_LIMIT_MS and not step["refused"]
        steps.append({"offered_per_s": rate, **step, "held": held})
        say(
            f"{rate:,.0f}/s offered: {step['notified_per_s']:,.0f}/s, p50 {step['p50_ms']:.0f} ms, p99 {step['p99_ms']:,.0f} ms,"
            f" {step['cpu_percent']:.0f} % of a core: {'held' if held else 'not held'}"
        )
        if step["p99_ms"] > 5 * P99_LIMIT_MS:
            break  # what follows would only queue up
    if not (complete := await generator.drained(_DRAIN_S)):
        say(generator.lacking)
    highest = max((step["notified_per_s"] for step in steps if step["held"]), default=0.0)
    grown = {name: relative(steps, name) for name in ("cpu_percent", "p50_ms", "p99_ms")}
    return Result(
        name="figure7",
        settings={
            "load": f"{there.world.clients:,} clients x {REGISTRATIONS} registrations, all online; {rates[0]:,.0f} to {rates[-1]:,.0f}"
            f" notifications/s, by a fifth as many publishes, each for {FAN_OUT} clients",
            "steps": f"{seconds:g} s each; held: {100 * _HELD:g} % of what was offered came in time, p99 below 2 s, nothing refused",
            "service": there.service.parts,
            "changed": there.changed,
        },
        warm_up=f"{SETTLE_S:g} s of each rate before its step",
        figures={
            "steps": steps,
            "relative_to_the_first": grown,
            "highest_held_per_s": highest,
            "all_told_in_the_end": complete,
            "published": generator.counts.published - before.published,
            "notified": generator.counts.notified - before.notified,
        },
        aims=[
            Aim("notifications held", "/s", rates[-1] * _HELD, highest, larger_is_better=True),
            Aim("accepted versions that a client in sync was not told of", "", 0.0, float(generator.counts.missing)),
            Aim("clients that were not in sync in the end", "", 0.0, float(generator.wanted - generator.counts.in_sync)),
        ],
        cpu_seconds=steps[-1]["cpu_s"],
        cpu_window_s=steps[-1]["window_s"],
        approximations=[
            *SCALED,
            "The clients of one object come one after the other: an update is for five that are online, and for nobody who is not.",
        ],
    )
