"""latency: how long from a publish until each registered client has it, by the fast path and through the whole pipeline, and where it goes.

Twice, each time on a new service: with the fast path, and without.

Stamps per notification: the publish call (generator), the record's `time_ms` (set when the gateway's append begins its transaction),
`time_ms` of the message (set when the Registrar hands it to the connection), arrival (generator). All are of this machine's one clock.
What lies between append and Registrar is Spark's, and told by its own phases.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Final

from bench.clients import Fleet
from bench.load import Publishers
from bench.report import Aim, Result, percentiles
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run
from roskva.feed import UPDATES, open_feed

CLIENTS: Final = 1_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 200.0
SECONDS: Final = 30.0
WARM_UP_S: Final = 15.0
P50_AIM_MS: Final = 3.0
P99_AIM_MS: Final = 20.0
ANSWER_P50_AIM_MS: Final = 5.0  # of a publish, its fsync included
P50_WITHOUT_AIM_MS: Final = 100.0
P99_WITHOUT_AIM_MS: Final = 250.0
_CONNECTIONS: Final = 16
_DRAIN_S: Final = 10.0

APPROXIMATIONS: Final = [
    "stamps of the feed and of messages have a resolution of 1 ms, rounded down",
    "a record is stamped when its transaction begins: the fsync is part of the hop after it, and of 'publish call to its answer'",
    "Spark's phases are medians over the last 50 batches by its own progress reports, not stamps of these notifications",
    "waiting for the batch before it is what remains of 'appended to sent' after one batch's phases up to the sending: an estimate",
]


def measure(options: Options) -> Result:
    """The result with the fast path, and inside of it the one without."""
    with running(options.settings) as service:
        result = measure_on(service, options)
    with running({**options.settings, "fast_path": "false"}) as service:
        without = measure_on(service, options)
    cpu = {"cpu_seconds": without.cpu_seconds, "cpu_window_s": without.cpu_window_s}
    aims = [
        *result.aims,
        Aim("publish to client without the fast path, p50", "ms", P50_WITHOUT_AIM_MS, without.figures["publish_to_client_ms"]["p50"]),
        Aim("publish to client without the fast path, p99", "ms", P99_WITHOUT_AIM_MS, without.figures["publish_to_client_ms"]["p99"]),
    ]
    return replace(result, figures={**result.figures, "without_the_fast_path": {**without.figures, **cpu}}, aims=aims)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT)
    rate = options.rate or RATE_PER_S
    seconds = options.seconds or SECONDS
    warm_up_s = min(WARM_UP_S, seconds)
    fleet = Fleet(service.url)
    try:
        await fleet.join(world.clients, world.names_of())
        async with Publishers(service.url, world.objects, _CONNECTIONS) as publishers:
            say(f"warming up for {warm_up_s:g} s")
            await publishers.paced(rate, warm_up_s)
            await caught_up(fleet, publishers, _DRAIN_S)
            first = publishers.last_version + 1
            fleet.heard.clear()
            publishers.answers_ms = publishers.answers_ms[:0]
            window = await asyncio.to_thread(Window, service)
            say(f"measuring for {seconds:g} s")
            kept_up = await publishers.paced(rate, seconds)
            expected = FAN_OUT * (publishers.last_version + 1 - first)
            complete = await caught_up(fleet, publishers, _DRAIN_S)
            await asyncio.to_thread(window.end)
            if not complete:
                raise BenchFailed(f"Not every client had the latest versions {_DRAIN_S:g} s after the last publish.")
            if not kept_up or publishers.refused:
                raise BenchFailed(f"The service did not accept {rate:g} publishes/s ({publishers.refused} were refused).")
            appended_ms = await asyncio.to_thread(_appended_ms, service, first)
            hops, total = _hops(fleet, publishers, appended_ms)
            return _result(service, world, rate, warm_up_s, expected, fleet, publishers, window, hops, total)
    finally:
        fleet.close()


def _appended_ms(service: Service, first: int) -> dict[int, int]:
    """The feed's stamp of every publish since the first one, by version."""
    feed = open_feed(service.settings)
    newest = feed.newest(UPDATES)
    found: dict[int, int] = {}
    for partition, start in feed.oldest(UPDATES).items():
        for record in feed.read(UPDATES, partition, start.offset, newest[partition].offset):
            version = int(json.loads(record.value)["version"])
            if version >= first:
                found[version] = record.time_ms
    return found


def _hops(fleet: Fleet, publishers: Publishers, appended_ms: dict[int, int]) -> tuple[dict[str, list[float]], list[float]]:
    """Each notification's time, in three parts that add up to the whole."""
    hops: dict[str, list[float]] = {"publish call to appended": [], "appended to sent by the Registrar": [], "sent to received": []}
    to_feed, through_spark, to_client = hops.values()
    total: list[float] = []
    heard = fleet.heard
    for version, sent_ms, received_s in zip(heard.versions, heard.sent_ms, heard.received_s, strict=True):
        published_ms = publishers.published_s[version] * 1000
        stamp_ms = appended_ms[version]
        to_feed.append(stamp_ms - published_ms)
        through_spark.append(float(sent_ms - stamp_ms))
        to_client.append(received_s * 1000 - sent_ms)
        total.append(received_s * 1000 - published_ms)
    return hops, total


def _result(
    service: Service,
    world: World,
    rate: float,
    warm_up_s: float,
    expected: int,
    fleet: Fleet,
    publishers: Publishers,
    window: Window,
    hops: dict[str, list[float]],
    total: list[float],
) -> Result:
    whole = percentiles(total)
    mean = sum(total) / len(total) if total else 1.0
    ordered = sorted(total)
    figures: dict[str, Any] = {
        "publish_to_client_ms": whole,
        "delivered": len(fleet.heard),
        "collapsed": expected - len(fleet.heard),
        "repeated": fleet.heard.repeated,
        "hops": [
            {"hop": hop} | percentiles(times) | {"share_of_mean": round(sum(times) / max(1, len(times)) / mean, 3)}
            for hop, times in hops.items()
        ],
        "publish_call_to_its_answer_ms": percentiles(publishers.answers_ms),
        "spark_phases_ms": window.durations_ms,
        "spark_batches": window.batches,
        "estimated_wait_for_the_batch_before_ms": _wait_estimate(hops, window),
        "propagate_call_at_the_gateway_mean_ms": window.mean_ms("roskva_propagate_milliseconds"),
        "publish_at_the_gateway_mean_ms": window.mean_ms("roskva_publish_milliseconds"),
        "registrar": window.milestones(),
        "distribution_ms": [round(ordered[min(len(ordered) - 1, len(ordered) * step // 200)], 1) for step in range(201)] if ordered else [],
    }
    return Result(
        name="latency",
        settings={
            "load": f"{world.clients:,} clients x {REGISTRATIONS} registrations, {FAN_OUT} clients per object, {rate:g} publishes/s",
            "publishes": "single, paced, not batched",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up=f"registrations, then {warm_up_s:g} s of the same load",
        figures=figures,
        aims=[
            Aim("publish to client, p50", "ms", P50_AIM_MS, whole["p50"]),
            Aim("publish to client, p99", "ms", P99_AIM_MS, whole["p99"]),
            Aim("publish call to its answer, p50", "ms", ANSWER_P50_AIM_MS, percentiles(publishers.answers_ms)["p50"]),
        ],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        approximations=APPROXIMATIONS,
    )


def _wait_estimate(hops: dict[str, list[float]], window: Window) -> float:
    """What is left of the middle hop when one batch's own phases, less the wait for acknowledgements, are taken off."""
    through_spark = percentiles(hops["appended to sent by the Registrar"])["p50"]
    own = window.durations_ms.get("triggerExecution", 0.0) - window.mean_ms("roskva_propagate_milliseconds")
    return round(max(0.0, through_spark - own), 1)
