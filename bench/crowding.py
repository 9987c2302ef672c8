"""`python -m bench.crowding DATA URL REGISTERED PUBLISHES`: an object with very many clients, all of them online over trusted lines.

The clients are in the tables already (`world_of`, bench/filling.py), and come with their tokens. A process of its own, as that of
bench/bursting.py: acknowledging takes all that it has. It says when all are here; a line of input lets it begin: the object is published,
and again as soon as everybody has been told. It prints how long that took and what the crowd felt, and ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.filling import tokens_of
from bench.many import LINES, bring
from bench.service import APPLICATION, BenchFailed
from bench.world import World, run
from roskva.keys import load_keys
from roskva.load.generator import Generator
from roskva.load.plan import Plan

HERE: Final = "came_s"
OFFLINE: Final = "hot1"  # the object whose clients stay away
_ONLINE: Final = 0  # the number of the other
_TOLD_S: Final = 60.0  # one version to all
_LOOK_S: Final = 0.01


def world_of(registered: int) -> World:
    """Two objects with so many clients each: those with even numbers have the first, those with odd ones the second."""
    return World(2 * registered, 1, registered, prefix="hot")


async def crowd(data: Path, url: str, registered: int, publishes: int) -> None:
    world = world_of(registered)
    plan = Plan(
        clients=world.clients,
        registrations=world.registrations,
        objects=len(world.objects),
        application=APPLICATION,
        object_prefix=world.prefix,
        device_prefix="device-",
        lines=min(LINES, registered),
        publishers=1,
        resume=True,
        together=True,  # those of the first object come first, and nobody else is wanted
    )
    tokens = await asyncio.to_thread(tokens_of, data, world.clients)
    began_s = time.monotonic()
    async with Generator(plan, url, load_keys(data).trusted, tokens=tokens) as generator:
        await bring(generator, registered)
        print(json.dumps({HERE: round(time.monotonic() - began_s, 1)}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await told(generator, registered, publishes)), flush=True)


async def told(generator: Generator, registered: int, publishes: int) -> dict[str, Any]:
    generator.report()  # latencies from now on
    took_s: list[float] = []
    counts = generator.counts
    for _ in range(publishes):
        before, began_s = counts.notified, time.monotonic()
        generator.publishing.publish(_ONLINE, time.time_ns() // 1_000)
        generator.publishing.flush()
        while counts.notified - before < registered:
            generator.check()
            if counts.publish_refused or counts.publish_lost:
                raise BenchFailed(f"The crowded object's publish was refused: {counts.said or 'without a word'}")
            if time.monotonic() - began_s > _TOLD_S:
                missing = registered - counts.notified + before
                raise BenchFailed(f"{missing:,} of {registered:,} clients of one object were not told within {_TOLD_S:g} s.")
            await asyncio.sleep(_LOOK_S)
        took_s.append(round(time.monotonic() - began_s, 2))
    return {
        "seconds_per_publish": [{"s": one} for one in took_s],
        "told_per_s": round(registered * len(took_s) / max(0.001, sum(took_s)), 1),
        "latency_ms": generator.report().latencies.summary(),
        "repeated": counts.repeated,
    }


if __name__ == "__main__":
    run(crowd(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5])))
