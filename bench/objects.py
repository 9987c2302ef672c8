"""objects: one client with 50,000 registrations: what it takes to make them, to restart in sync, and to repair a difference of 1 %.

The client is `roskva.Client`, over a trusted line whose messages are counted. The difference: it restarts with half a percent of its
objects gone and as many new ones, so that the summaries differ, and states only what lies in the buckets that do (docs/protocol.md, Sync).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.report import Aim, Result
from bench.service import APPLICATION, BenchFailed, Service, running, say
from bench.world import Options, Window, run
from roskva import Channel, Client, Notification
from roskva.client.channels.trusted import TrustedLine
from roskva.keys import load_keys

REGISTRATIONS: Final = 50_000
DIFFERENCE: Final = 0.01
_TIMEOUT_S: Final = 180.0
_OPERATION: Final = b'"op":'


class Counted(Channel):
    """A channel that counts what it carries."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner
        self.sent = self.sent_bytes = self.received_count = self.received_bytes = self.operations = 0
        inner.listen(self._came, self.interrupted)

    def send(self, data: bytes) -> None:
        self.sent += 1
        self.sent_bytes += len(data)
        self.operations += data.count(_OPERATION)
        self._inner.send(data)

    def ended(self) -> None:
        self._inner.ended()

    def _came(self, data: bytes) -> None:
        self.received_count += 1
        self.received_bytes += len(data)
        self.received(data)


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_measure(service, options))


async def _measure(service: Service, options: Options) -> Result:
    count = options.clients or REGISTRATIONS
    changed = max(1, int(count * DIFFERENCE / 2))
    names = [f"many/{number}" for number in range(count)]
    others = names[changed:] + [f"new/{number}" for number in range(changed)]
    steps: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="roskva-objects-") as folder:
        state = Path(folder) / "state"
        async with TrustedLine(service.url, load_keys(service.data).trusted) as line:
            window = await asyncio.to_thread(Window, service)
            for what, wished in (("register", names), ("restart in sync", names), ("repair 1 %", others)):
                step = await _run(Counted(line.channel()), state, wished)
                steps.append({"what": what, **step})
                say(f"{what}: {step['seconds']:.1f} s, {step['sent_kib']:,.0f} KiB sent, {step['received_kib']:,.0f} KiB received")
            await asyncio.to_thread(window.end)
    registered, restarted, repaired = steps
    return Result(
        name="objects",
        settings={
            "load": f"one client, {count:,} registrations; then {2 * changed:,} differences",
            "client": "roskva.Client over a trusted line, state in a file",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up="none",
        figures={
            "steps": steps,
            "registrations_per_s": round(count / registered["seconds"], 1),
            "restart_bytes_for_each_100_of_registering": round(100 * _bytes(restarted) / _bytes(registered), 2),
            "repair_bytes_for_each_100_of_registering": round(100 * _bytes(repaired) / _bytes(registered), 2),
        },
        aims=[
            Aim("restart in sync: bytes for each 100 of registering", "", 1.0, 100 * _bytes(restarted) / _bytes(registered)),
            Aim("operations of a restart in sync", "", 0.0, float(restarted["operations"])),
        ],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        acknowledgement="the application acknowledges what it is told in the turn of the event loop in which it is told",
    )


def _bytes(step: dict[str, Any]) -> float:
    return float(step["sent_kib"] + step["received_kib"])


async def _run(channel: Counted, state: Path, names: Sequence[str]) -> dict[str, Any]:
    """One run of the client, from its start until it is in sync: the service has its registrations, and it was told all it was owed."""
    told = confirmed = 0

    def notified(_: Notification) -> None:
        nonlocal told
        told += 1

    def changed(_: str, registered: bool) -> None:
        nonlocal confirmed
        confirmed += registered

    began_s = time.monotonic()
    async with Client(application=APPLICATION, channel=channel, state=state, on_notify=notified, on_status=changed) as client:
        # In one turn of the event loop, before it is connected: as an application states them when it starts.
        for name in names:
            await client.register(name)
        stated_s = time.monotonic() - began_s
        while not client.in_sync:
            if time.monotonic() - began_s > _TIMEOUT_S:
                raise BenchFailed(f"{len(names):,} registrations were not in sync within {_TIMEOUT_S:g} s: {confirmed:,} were confirmed.")
            await asyncio.sleep(0.02)
        seconds = time.monotonic() - began_s
        await asyncio.sleep(0)
    return {
        "seconds": round(seconds, 2),
        "of_them_stating_s": round(stated_s, 2),
        "sent_kib": round(channel.sent_bytes / 1024, 1),
        "received_kib": round(channel.received_bytes / 1024, 1),
        "messages": channel.sent + channel.received_count,
        "operations": channel.operations,
        "told": told,
    }
