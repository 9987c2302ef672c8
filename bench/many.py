"""Very many clients of one service: the tables are filled beforehand, and the clients return over trusted lines (roskva.load).

Registering millions of objects through the pipeline would take half an hour. So the tables are made as if that had happened (filling.py),
and each client holds a token of its own first session, signed with the service's own key. The generator runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import accounting
from bench.filling import fill, tokens_of
from bench.service import APPLICATION, BenchFailed, Service, running, say
from bench.world import Options, Window, World
from roskva.keys import load_keys
from roskva.load.generator import Generator
from roskva.load.measuring import NUMBERS
from roskva.load.plan import Plan

REGISTRATIONS: Final = 5
FAN_OUT: Final = 5  # where a measurement does not say otherwise
PUBLISHERS: Final = 4  # requests under way, and
BATCH: Final = 1_000  # updates in one of them at most, as roskva.Publisher has them
LINES: Final = 8
ARRIVALS_MAX_PER_S: Final = 20_000.0  # between windows: as fast as it goes
_STUCK_S: Final = 60.0  # without anybody new in sync

SCALED: Final = [
    "The tables were filled beforehand, as if all clients had registered: through the pipeline that would take half an hour.",
    "The files were filled in the order of their keys: their pages are fuller than those of tables that grew.",
    "Clients come over trusted lines, eight WebSockets for all of them: what the kernel holds for a socket of each is not in it.",
    "These lines have one keepalive each for all their clients; the paper has none.",
    f"Updates are published as one roskva.Publisher sends them: at once, and together while its {PUBLISHERS} requests are under way.",
]


@dataclass(frozen=True, slots=True)
class Crowd:
    service: Service
    world: World
    tokens: list[str]
    changed: dict[str, str]

    def generator(self) -> Generator:
        plan = Plan(
            clients=self.world.clients,
            registrations=self.world.registrations,
            objects=self.world.clients * self.world.registrations // self.world.fan_out,
            application=APPLICATION,
            object_prefix=self.world.prefix,
            device_prefix="device-",
            lines=min(LINES, self.world.clients),
            batch=BATCH,
            publishers=PUBLISHERS,
            resume=True,
            together=True,
        )
        return Generator(plan, self.service.url, load_keys(self.service.data).trusted, tokens=self.tokens)


@contextlib.contextmanager
def crowd(clients: int, options: Options, fan_out: int = FAN_OUT) -> Iterator[Crowd]:
    """A running service whose tables know so many clients; none of them is online. Each object is registered by `fan_out` of them."""
    world = World(clients, REGISTRATIONS, fan_out)
    tokens: list[str] = []

    def prepare(data: Path) -> None:
        filled = fill(data, world, time.time())
        tokens.extend(tokens_of(data, clients))
        say(f"{filled.cells:,} cells of {clients:,} clients in {filled.seconds:.0f} s")

    changed = {
        "connections_max": str(clients + 1_000),
        "gateway_memory_bytes_max": "0",
        **options.settings,
    }
    with running(changed, prepare=prepare) as service:
        yield Crowd(service, world, tokens, service.changed)


async def bring(generator: Generator, wanted: int) -> float:
    """So many clients are to be in sync; those that are not there yet go on with their sessions. Answers how many came in a second."""
    began_s, before = time.monotonic(), generator.counts.in_sync
    generator.clients.resume = True
    generator.arrivals_per_s = ARRIVALS_MAX_PER_S
    generator.wanted = wanted
    seen, seen_s = before, began_s
    while generator.counts.in_sync < wanted:
        generator.check()
        await asyncio.sleep(0.1)
        if generator.counts.in_sync > seen:
            seen, seen_s = generator.counts.in_sync, time.monotonic()
        if time.monotonic() - seen_s > _STUCK_S:
            raise BenchFailed(f"Only {seen:,} of {wanted:,} clients are in sync: {generator.counts.said or 'the others are not answered'}")
    return (wanted - before) / max(0.001, time.monotonic() - began_s)


async def measured(service: Service, generator: Generator, seconds: float) -> dict[str, Any]:
    """What a window of so long brought: CPU by process, messages, bytes, memory, latency."""
    window = await asyncio.to_thread(Window, service)
    generator.report()  # latencies from now on
    began_s, before = time.monotonic(), {name: getattr(generator.counts, name) for name in NUMBERS}
    await asyncio.sleep(seconds)
    took_s, report = time.monotonic() - began_s, generator.report()
    per_s = {name: round((getattr(generator.counts, name) - value) / took_s, 1) for name, value in before.items()}
    await asyncio.to_thread(window.end)
    generator.check()
    service_s = sum(window.cpu_seconds.get(role, 0.0) for role in accounting.SERVICE)
    memory = accounting.memory_by_role_mib(service.run)
    latency = report.latencies.summary()
    return {
        "cpu_percent": round(100 * service_s / window.seconds, 1),
        "published_per_s": per_s["published"],
        "notified_per_s": per_s["notified"],
        "heartbeats_per_s": per_s["heartbeats"],
        "messages_in_per_s": per_s["sent"],
        "messages_out_per_s": per_s["received"],
        "kib_per_s": round((per_s["bytes_sent"] + per_s["bytes_received"]) / 1024, 1),
        "gateway_mib": memory.get(accounting.GATEWAY, 0.0),
        "service_mib": round(sum(memory.values()), 1),
        "p50_ms": latency["p50"],
        "p99_ms": latency["p99"],
        "publish_p99_ms": report.answers.summary()["p99"],
        "refused": round(per_s["publish_refused"] + per_s["publish_lost"] + per_s["publish_skipped"], 1),
        "retries_per_s": per_s["retries"],
        "cpu_s": window.cpu_seconds,
        "window_s": round(window.seconds, 2),
    }


def relative(steps: list[dict[str, Any]], name: str) -> list[float]:
    """Each step's figure by that of the first."""
    first = steps[0][name] or 1.0
    return [round(step[name] / first, 2) for step in steps]
