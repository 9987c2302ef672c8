"""figure6: what more and more active users cost (Thialfi 6.2, Figure 6): CPU of the whole service, messages, bytes, memory, latency.

As in the paper, each client has five distinct objects, one of which is published every 8 minutes, and it heartbeats every 20 minutes;
and while a window is measured, clients arrive at 570 a second, though never more than an eighth of all. So the updates, notifications
and heartbeats of a second grow with the number of clients, and the arrivals do not, as soon as there are some 90,000.
Compared is the CPU that all processes of the service use in a second, at each number of users, with that at the first; the paper found
about 3 times as much for 23 times as many users. It says nothing where the service does not keep up: a full core cannot cost more.
Between the windows clients come as fast as they can.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench.many import REGISTRATIONS, SCALED, Crowd, bring, crowd, measured, relative
from bench.report import Aim, Result
from bench.service import BenchFailed, say
from bench.world import Options, run
from roskva.load.generator import Generator

CLIENTS: Final = 1_000_000
FAN_OUT: Final = 1
PARTS: Final = (0.1, 0.2, 0.4, 0.7, 1.0)
ARRIVALS_PER_S: Final = 570.0
UPDATE_EVERY_S: Final = 480.0
WINDOW_S: Final = 15.0
SETTLE_S: Final = 4.0
WARM_UP_S: Final = 20.0
AIM: Final = 1.8
_FLAT: Final = 1.5
_LATE_MS: Final = 1_000.0  # p50 from then on: what is due waits in line
_PUBLISHED_WITHIN: Final = 0.05  # of what is due: more is a backlog of before, less is not accepted
_AT_THE_ENDS: Final = 20
_DRAIN_S: Final = 60.0
_ARRIVING_PART: Final = 8  # one of so many clients arrives around a window, at most


def measure(options: Options) -> Result:
    with crowd(options.clients or CLIENTS, options, FAN_OUT) as there:
        return measure_on(there, options)


def measure_on(there: Crowd, options: Options) -> Result:
    return run(_measure(there, options))


async def _measure(there: Crowd, options: Options) -> Result:
    async with there.generator() as generator:
        return await climb(there, generator, options)


async def climb(there: Crowd, generator: Generator, options: Options) -> Result:
    """Leaves all clients online, and publishes nothing any more."""
    clients, seconds = there.world.clients, options.seconds or WINDOW_S
    steps: list[dict[str, Any]] = []
    generator.update_every_s = every_s = UPDATE_EVERY_S if options.rate is None else clients / options.rate
    await bring(generator, round(PARTS[0] * clients / 2))
    await asyncio.sleep(min(WARM_UP_S, 3 * seconds))  # Spark's first batches compile what the later ones run
    for part in PARTS:
        step = await _step(there, generator, round(part * clients), seconds)
        step["kept_up"] = kept_up(step, every_s)
        steps.append(step)
        shown = f"{step['cpu_percent']:.0f} % of a core, p50 {step['p50_ms']:.0f} ms, {step['gateway_mib']:,.0f} MiB"
        shown += "" if step["kept_up"] else ": did not keep up"
        say(f"{step['clients']:,} clients: {shown}")
    if not await generator.drained(_DRAIN_S):
        raise BenchFailed(generator.lacking)
    names = ("cpu_percent", "kib_per_s", "messages_in_per_s", "messages_out_per_s", "service_mib", "p50_ms")
    grown = {name: relative(steps, name) for name in names}
    last = steps[-1]
    users = round(last["clients"] / steps[0]["clients"], 1)
    return Result(
        name="figure6",
        settings={
            "load": f"{steps[0]['clients']:,} to {clients:,} clients x {REGISTRATIONS} registrations",
            "clients_per_object": there.world.fan_out,
            "updates": f"one by each client every {every_s:g} s",
            "heartbeat_s": 1_200,
            "arrivals_per_s": f"at most {ARRIVALS_PER_S:g} within the windows of {seconds:g} s",
            "compared": "CPU seconds of all processes of the service in a second, with arrivals, updates and heartbeats going on",
            "service": there.service.parts,
            "changed": there.changed,
        },
        warm_up=f"{min(WARM_UP_S, 3 * seconds):g} s with half of the first clients, then {SETTLE_S:g} s before each window",
        figures={
            "steps": steps,
            "relative_to_the_first": grown,
            "users": users,
            "published": generator.counts.published,
            "notified": generator.counts.notified,
        },
        aims=[
            Aim(
                f"CPU at {users:g} times the users / CPU at the first",
                "",
                AIM,
                grown["cpu_percent"][-1],
                kept_up=all(step["kept_up"] for step in steps),
            ),
            Aim("p50, slowest window / first", "", _FLAT, max(grown["p50_ms"])),
        ],
        cpu_seconds=last["cpu_s"],
        cpu_window_s=last["window_s"],
        approximations=[
            *SCALED,
            "Clients that arrive within a window restart: they handshake with their prior token and find their registrations in place.",
            (
                f"At most an eighth of the clients arrives in a window: below {_ARRIVING_PART * _arriving(seconds):,} of them, that is"
                f" less than {ARRIVALS_PER_S:g} a second; `arrived_per_s` of each step says how many."
            ),
            "Those that come between two windows go on with their sessions, and are anywhere between two heartbeats.",
        ],
    )


def kept_up(step: dict[str, Any], every_s: float) -> bool:
    """Whether as much was published in the window as was due in it, but for some at either end, and was told soon."""
    due_per_s = step["clients"] / every_s
    allowed_per_s = _PUBLISHED_WITHIN * due_per_s + _AT_THE_ENDS / step["window_s"]
    return bool(abs(step["published_per_s"] - due_per_s) <= allowed_per_s and step["p50_ms"] < _LATE_MS and not step["refused"])


def _arriving(seconds: float) -> int:
    """So many would, at the paper's rate, while a window is settled and measured."""
    return int(ARRIVALS_PER_S * (seconds + SETTLE_S))


async def _step(there: Crowd, generator: Generator, wanted: int, seconds: float) -> dict[str, Any]:
    """Bring all but those that arrive within the window, then measure while these do."""
    within = min(_arriving(seconds), wanted // _ARRIVING_PART)
    came_per_s = await bring(generator, wanted - within)
    generator.clients.resume = False
    generator.arrivals_per_s = within / (seconds + SETTLE_S)
    generator.wanted = wanted
    await asyncio.sleep(min(SETTLE_S, seconds))
    step = await measured(there.service, generator, seconds)
    return {"clients": wanted, **step, "arrived_per_s": round(generator.arrivals_per_s, 1), "came_per_s_before": round(came_per_s, 1)}
