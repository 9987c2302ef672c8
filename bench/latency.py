"""latency: how long from a publish until each registered client has it, by the fast path and through the whole pipeline, and where it goes.

Twice, each time on a new service: with the fast path, and without; each at 1,000 deliveries a second, by single publishes, and then at
10,000, by requests of ten updates. A publish counts from the moment at which it was due. What single publishes come to at 10,000 is in
`throughput`, by themselves and as roskva.Publisher sends them.

Stamps per notification: the publish call (generator), the record's `time_ms` (set when the gateway's append begins its transaction),
`time_ms` of the message (set when the Registrar hands it to the connection), arrival (generator). All are of this machine's one clock.
What lies between append and Registrar is Spark's, and told by its own phases.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
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
BUSY_RATE_PER_S: Final = 2_000.0
BUSY_BATCH: Final = 10
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


@dataclass(frozen=True, slots=True)
class Step:
    """How much is published. Objects of another prefix are another step's: versions of each begin anew."""

    rate_per_s: float
    batch: int
    prefix: str
    must_keep_up: bool

    @property
    def publishes(self) -> str:
        return "single, paced, not batched" if self.batch == 1 else f"paced, in requests of {self.batch}"


QUIET: Final = Step(RATE_PER_S, 1, "o", must_keep_up=True)
BUSY: Final = Step(BUSY_RATE_PER_S, BUSY_BATCH, "busy", must_keep_up=False)


def measure(options: Options) -> Result:
    """The result with the fast path at the lower rate, and inside of it the others."""
    found: dict[bool, list[Result]] = {}
    for fast in (True, False):
        with running(options.settings if fast else {**options.settings, "fast_path": "false"}) as service:
            found[fast] = [measure_on(service, options)]
            if options.rate is None:
                found[fast].append(measure_on(service, options, BUSY))
    (result, *busy), (without, *busy_without) = found[True], found[False]
    figures = {**result.figures, "without_the_fast_path": _with_cpu(without)}
    aims = [*result.aims, *_aims(without, " without the fast path", P50_WITHOUT_AIM_MS, P99_WITHOUT_AIM_MS)]
    for one, one_without in zip(busy, busy_without, strict=True):
        figures["at_10,000_deliveries_per_s"] = {**_with_cpu(one), "without_the_fast_path": _with_cpu(one_without)}
        aims += _aims(one, " at 10,000 deliveries/s in requests of ten", P50_AIM_MS, P99_AIM_MS)
        answer_ms = one.figures["publish_call_to_its_answer_ms"]["p50"]
        kept_up = one.figures["kept_up"]
        aims.append(
            Aim(
                "publish call to its answer at 10,000 deliveries/s in requests of ten, p50",
                "ms",
                ANSWER_P50_AIM_MS,
                answer_ms,
                kept_up=kept_up,
            )
        )
    return replace(result, figures=figures, aims=aims)


def _with_cpu(result: Result) -> dict[str, Any]:
    return {
        **result.figures,
        "publishes": result.settings["publishes"],
        "cpu_seconds": result.cpu_seconds,
        "cpu_window_s": result.cpu_window_s,
    }


def _aims(result: Result, where: str, p50_ms: float, p99_ms: float) -> list[Aim]:
    whole, kept_up = result.figures["publish_to_client_ms"], result.figures["kept_up"]
    return [
        Aim(f"publish to client{where}, p50", "ms", p50_ms, whole["p50"], kept_up=kept_up),
        Aim(f"publish to client{where}, p99", "ms", p99_ms, whole["p99"], kept_up=kept_up),
    ]


def measure_on(service: Service, options: Options, step: Step = QUIET) -> Result:
    if options.rate is not None:
        step = replace(step, rate_per_s=options.rate)
    return run(_measure(service, options, step))


async def _measure(service: Service, options: Options, step: Step) -> Result:
    world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT, step.prefix)
    rate = step.rate_per_s
    seconds = options.seconds or SECONDS
    warm_up_s = min(WARM_UP_S, seconds)
    fleet = Fleet(service.url)
    try:
        await fleet.join(world.clients, world.names_of(), step.prefix)
        async with Publishers(service.url, world.objects, _CONNECTIONS) as publishers:
            say(f"warming up for {warm_up_s:g} s at {rate:g} publishes/s")
            await publishers.paced(rate, warm_up_s, step.batch)
            await caught_up(fleet, publishers, _DRAIN_S)
            first = publishers.last_version + 1
            fleet.heard.clear()
            publishers.answers_ms = publishers.answers_ms[:0]
            window = await asyncio.to_thread(Window, service)
            say(f"measuring for {seconds:g} s")
            kept_up = await publishers.paced(rate, seconds, step.batch)
            expected = FAN_OUT * (publishers.last_version + 1 - first)
            complete = await caught_up(fleet, publishers, _DRAIN_S)
            await asyncio.to_thread(window.end)
            if not complete and step.must_keep_up:
                raise BenchFailed(f"Not every client had the latest versions {_DRAIN_S:g} s after the last publish.")
            kept_up = kept_up and complete and not publishers.refused
            if not kept_up and step.must_keep_up:
                raise BenchFailed(f"The service did not accept {rate:g} publishes/s ({publishers.refused} were refused).")
            appended_ms = await asyncio.to_thread(_appended_ms, service, first, world.prefix)
            hops, total = _hops(fleet, publishers, appended_ms)
            result = _result(service, world, step, warm_up_s, expected, fleet, publishers, window, hops, total)
            aims = [replace(aim, kept_up=kept_up) for aim in result.aims]
            return replace(result, figures={"kept_up": kept_up, **result.figures}, aims=aims)
    finally:
        fleet.close()


def _appended_ms(service: Service, first: int, prefix: str) -> dict[int, int]:
    """The feed's stamp of every publish of this step since the first one, by version."""
    feed = open_feed(service.settings)
    newest = feed.newest(UPDATES)
    found: dict[int, int] = {}
    for partition, start in feed.oldest(UPDATES).items():
        for record in feed.read(UPDATES, partition, start.offset, newest[partition].offset):
            update = json.loads(record.value)
            version = int(update["version"])
            if version >= first and update["object"].startswith(prefix):
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
        stamp_ms = appended_ms.get(version)
        if stamp_ms is None:  # of the warm-up, and came late
            continue
        to_feed.append(stamp_ms - published_ms)
        through_spark.append(float(sent_ms - stamp_ms))
        to_client.append(received_s * 1000 - sent_ms)
        total.append(received_s * 1000 - published_ms)
    return hops, total


def _result(
    service: Service,
    world: World,
    step: Step,
    warm_up_s: float,
    expected: int,
    fleet: Fleet,
    publishers: Publishers,
    window: Window,
    hops: dict[str, list[float]],
    total: list[float],
) -> Result:
    whole, rate = percentiles(total), step.rate_per_s
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
            "publishes": step.publishes,
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
