"""loss: latency when 1 % of the messages between clients and gateway are lost, in either direction, against none; in turns, in one run.

The load generator drops them by chance: notifications and acknowledgements alike. What is lost is made up for by the side that needs
the answer: the Registrar sends again what was not acknowledged, after `resend_min_s` (1 s).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench.accounting import SERVICE
from bench.report import Aim, Result
from bench.service import APPLICATION, BenchFailed, Service, running, say
from bench.world import Options, Window, run
from roskva.keys import load_keys
from roskva.load.generator import Generator
from roskva.load.measuring import Latencies
from roskva.load.plan import Plan

CLIENTS: Final = 1_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 200.0
SECONDS: Final = 12.0  # of each turn
P99_AIM_MS: Final = 1_500.0
TURNS: Final = (0.0, 0.01, 0.01, 0.0)
_WARM_UP_S: Final = 3.0
_JOIN_S: Final = 180.0
_DRAIN_S: Final = 30.0


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    clients, seconds, rate = options.clients or CLIENTS, options.seconds or SECONDS, options.rate or RATE_PER_S
    plan = Plan(
        clients,
        REGISTRATIONS,
        clients * REGISTRATIONS // FAN_OUT,
        application=APPLICATION,
        object_prefix="lost/",
        device_prefix="lost-",
        lines=min(4, clients),
    )
    found = {part: _Found() for part in TURNS}
    async with Generator(plan, service.url, load_keys(service.data).trusted) as generator:
        generator.wanted = clients
        await _in_sync(generator, clients)
        generator.rate_per_s = rate
        await asyncio.sleep(min(_WARM_UP_S, seconds))
        window = await asyncio.to_thread(Window, service)
        for part in TURNS:
            await _turn(generator, part, seconds, found[part])
            say(f"{100 * part:g} % lost: p99 {found[part].latencies.percentile_ms(0.99):,.0f} ms so far")
        await asyncio.to_thread(window.end)
        generator.drop(0.0)
        if not await generator.drained(_DRAIN_S):
            raise BenchFailed(generator.lacking)
    losses = [one.figures(part) for part, one in found.items()]
    ratio = {part: round(losses[1][f"{part}_ms"] / max(0.01, losses[0][f"{part}_ms"]), 2) for part in ("p50", "p95", "p99")}
    return Result(
        name="loss",
        settings={
            "load": f"{clients:,} clients x {REGISTRATIONS} registrations, {rate:g} publishes/s, {FAN_OUT} clients per object",
            "turns": f"{', '.join(f'{100 * part:g} %' for part in TURNS)} lost, {seconds:g} s each",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"registrations, then {min(_WARM_UP_S, seconds):g} s of the same load",
        figures={"losses": losses, "ratio": ratio, "service_cpu_s": round(sum(window.cpu_seconds.get(role, 0.0) for role in SERVICE), 2)},
        aims=[
            Aim("p50 with 1 % lost / without", "", 1.2, ratio["p50"]),
            Aim("p99 with 1 % lost: told again after a second", "ms", P99_AIM_MS, losses[1]["p99_ms"]),
            Aim("accepted versions that a client was not told of", "", 0.0, float(generator.counts.missing)),
        ],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        approximations=[
            "Messages are lost at the load generator, one by one and independently; a network loses them in bursts.",
            "In the two seconds after each turn, in which what was lost is told again, nothing is lost.",
        ],
    )


class _Found:
    def __init__(self) -> None:
        self.latencies = Latencies()
        self.dropped = self.repeated = self.notified = self.messages = 0

    def figures(self, part: float) -> dict[str, Any]:
        summary = {f"{name}_ms": value for name, value in self.latencies.summary().items()}
        return {
            "dropped_percent": 100 * part,
            "notified": self.notified,
            **summary,
            "messages": self.messages,
            "dropped": self.dropped,
            "repeated": self.repeated,
        }


async def _turn(generator: Generator, part: float, seconds: float, found: _Found) -> None:
    """What was lost is made up for after a second: a turn is followed by two seconds that belong to it, though nothing is lost in them."""
    counts = generator.counts
    before = (counts.dropped, counts.repeated, counts.notified, counts.sent + counts.received)
    generator.report()
    generator.drop(part)
    await asyncio.sleep(seconds)
    generator.drop(0.0)
    rate, generator.rate_per_s = generator.rate_per_s, 0.0
    await asyncio.sleep(2.0)
    found.latencies.add(generator.report().latencies)
    after = (counts.dropped, counts.repeated, counts.notified, counts.sent + counts.received)
    dropped, repeated, notified, messages = (now - then for now, then in zip(after, before, strict=True))
    found.dropped += dropped
    found.repeated += repeated
    found.notified += notified
    found.messages += messages
    generator.rate_per_s = rate
    generator.check()


async def _in_sync(generator: Generator, clients: int) -> None:
    try:
        async with asyncio.timeout(_JOIN_S):
            while generator.counts.in_sync < clients:
                await asyncio.sleep(0.05)
                generator.check()
    except TimeoutError:
        raise BenchFailed(f"Only {generator.counts.in_sync:,} of {clients:,} clients were in sync within {_JOIN_S:g} s.") from None
