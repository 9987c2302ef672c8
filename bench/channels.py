"""channels: the same load over WebSockets and over long polls, in turns, in one run: latency, and the gateway's CPU, as ratios.

The clients are lean ones of one kind, which differ only in what carries their messages (clients.py, polled.py). Each round begins with
clients and objects of its own. Ratios are of the sums and percentiles over all rounds of a channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.accounting import GATEWAY, GENERATOR, OTHERS
from bench.clients import Fleet, LeanClient
from bench.load import Publishers
from bench.polled import PolledClient
from bench.report import Result, percentiles
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run

CLIENTS: Final = 1_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 200.0
SECONDS: Final = 20.0
WARM_UP_S: Final = 10.0
WEBSOCKET: Final = "websocket"
LONG_POLL: Final = "long poll"
ORDER: Final = (WEBSOCKET, LONG_POLL, LONG_POLL, WEBSOCKET)  # a machine that grows faster or slower favours neither
KINDS: Final[dict[str, type[LeanClient]]] = {WEBSOCKET: LeanClient, LONG_POLL: PolledClient}
_CONNECTIONS: Final = 16
_DRAIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Round:
    channel: str
    latencies_ms: list[float]
    expected: int
    repeated: int
    window: Window


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options, order: Sequence[str] = ORDER) -> Result:
    return run(_measure(service, options, order))


async def _measure(service: Service, options: Options, order: Sequence[str]) -> Result:
    rounds = [await _round(service, options, channel, f"{number}-") for number, channel in enumerate(order)]
    return _result(service, options, rounds)


async def _round(service: Service, options: Options, channel: str, prefix: str) -> Round:
    world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT, prefix=f"{prefix}o")
    rate, seconds = options.rate or RATE_PER_S, options.seconds or SECONDS
    fleet = Fleet(service.url, KINDS[channel])
    try:
        await fleet.join(world.clients, world.names_of(), f"{prefix}device")
        async with Publishers(service.url, world.objects, _CONNECTIONS) as publishers:
            await publishers.paced(rate, min(WARM_UP_S, seconds))
            await caught_up(fleet, publishers, _DRAIN_S)
            first = publishers.last_version + 1
            fleet.heard.clear()
            window = await asyncio.to_thread(Window, service)
            say(f"{channel}: measuring for {seconds:g} s")
            kept_up = await publishers.paced(rate, seconds)
            complete = await caught_up(fleet, publishers, _DRAIN_S)
            await asyncio.to_thread(window.end)
            if not complete or not kept_up or publishers.refused:
                raise BenchFailed(f"{channel}: not every client had the latest versions, or {rate:g} publishes/s were not accepted.")
            heard = fleet.heard
            latencies_ms = [
                (received_s - publishers.published_s[version]) * 1000
                for version, received_s in zip(heard.versions, heard.received_s, strict=True)
            ]
            return Round(channel, latencies_ms, FAN_OUT * (publishers.last_version + 1 - first), heard.repeated, window)
    finally:
        fleet.close()


def figures_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """By channel: latency, what was delivered, CPU for each 1,000 notifications; then long polls against WebSockets."""
    channels = [_channel(channel, [one for one in rounds if one.channel == channel]) for channel in KINDS]
    websocket, long_poll = channels
    ratios = {
        name: round(long_poll[name] / websocket[name], 2) if websocket[name] else 0.0
        for name in ("p50_ms", "p95_ms", "p99_ms", "gateway_cpu_ms_per_1000", "generator_cpu_ms_per_1000")
    }
    return {"channels": channels, "long_poll_to_websocket": ratios}


def _channel(channel: str, rounds: Sequence[Round]) -> dict[str, Any]:
    latencies_ms = [value for one in rounds for value in one.latencies_ms]
    delivered = max(1, len(latencies_ms))
    return {
        "channel": channel,
        **{f"{part}_ms": value for part, value in percentiles(latencies_ms).items()},
        "delivered": len(latencies_ms),
        "collapsed": sum(one.expected for one in rounds) - len(latencies_ms),
        "repeated": sum(one.repeated for one in rounds),
        "gateway_cpu_ms_per_1000": round(1e6 * sum(one.window.cpu_seconds.get(GATEWAY, 0.0) for one in rounds) / delivered, 1),
        "generator_cpu_ms_per_1000": round(1e6 * sum(one.window.cpu_seconds.get(GENERATOR, 0.0) for one in rounds) / delivered, 1),
        "others_cpu_s": round(sum(one.window.cpu_seconds.get(OTHERS, 0.0) for one in rounds), 1),
    }


def _result(service: Service, options: Options, rounds: Sequence[Round]) -> Result:
    clients, rate = options.clients or CLIENTS, options.rate or RATE_PER_S
    roles = {role for one in rounds for role in one.window.cpu_seconds}
    return Result(
        name="channels",
        settings={
            "load": f"{clients:,} clients x {REGISTRATIONS} registrations, {FAN_OUT} clients per object, {rate:g} publishes/s;"
            f" in turns: {', '.join(one.channel for one in rounds)}",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"registrations, then {min(WARM_UP_S, options.seconds or SECONDS):g} s of the same load, in each round",
        figures=figures_of(rounds),
        aims=[],
        cpu_seconds={role: round(sum(one.window.cpu_seconds.get(role, 0.0) for one in rounds), 2) for role in sorted(roles)},
        cpu_window_s=sum(one.window.seconds for one in rounds),
        approximations=[
            "each client over long polls has two kept connections, as browsers and the Python client have",
            "the gateway's CPU holds publishing and propagation, which are the same over both",
        ],
    )
