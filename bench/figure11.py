"""figure11: buffered notifications over time, while rows cannot be written (Thialfi 4.2.6 and Figure 11).

A steady load, and two outages that are injected into the running service: first a part of the Matcher's rows, then a partition of the
Registrar's. Every second: what waits in scratch, and what the feed holds that the pipeline has not done. Half of the clients are
offline, so that notifications are written into their rows; they return at the end, and must be told everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.clients import Fleet, LeanClient
from bench.load import Publishers, until
from bench.report import Aim, Result, percentiles
from bench.service import BenchFailed, Service, running, say
from bench.world import Options, Window, World, caught_up, run
from roskva.matcher.scratch import SCRATCH, Homeless, read_cell
from roskva.table import open_table

WORLD: Final = World(clients=200, registrations=5, fan_out=5)
RATE_PER_S: Final = 50.0
SECONDS: Final = 150.0
_VARIABLE: Final = "ROSKVA_TEST_FAULTS"
_BACK_S: Final = 60.0  # for what was put aside to come home
_SETTLED_S: Final = 5.0  # after an outage began or ended: what belongs to which is not clear


@dataclass(frozen=True, slots=True)
class Outage:
    what: str
    rule: dict[str, Any]
    begins: float  # as parts of the measured time
    ends: float


# Objects are called o0 to o199: those that begin with o1 are more than half.
MATCHER: Final = Outage("the Matcher's rows of objects o1*", {"table": "matcher", "prefix": "demo\x00\x00\x00\x00\x00o1"}, 0.15, 0.4)
REGISTRAR: Final = Outage("partition 1 of the Registrar's rows", {"table": "registrar", "partitions": [1]}, 0.6, 0.8)
OUTAGES: Final = (MATCHER, REGISTRAR)


def measure(options: Options) -> Result:
    with _faults() as path, running({"scratch_every_s": "5", **options.settings}) as service:
        return run(_measure(service, options, path))


@contextmanager
def _faults() -> Iterator[Path]:
    """A file of rules, without any yet, and its name where the service finds it."""
    with tempfile.TemporaryDirectory(prefix="roskva-bench-") as folder:
        path = Path(folder) / "faults.json"
        _inject(path)
        os.environ[_VARIABLE] = str(path)
        try:
            yield path
        finally:
            del os.environ[_VARIABLE]


def _inject(path: Path, *outages: Outage) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"rules": [outage.rule for outage in outages]}))
    new.rename(path)


async def _measure(service: Service, options: Options, faults: Path) -> Result:
    seconds, rate = options.seconds or SECONDS, options.rate or RATE_PER_S
    fleet = Fleet(service.url)
    try:
        await fleet.join(WORLD.clients, WORLD.names_of())
        async with Publishers(service.url, WORLD.objects, 8) as publishers:
            await publishers.paced(rate, 5.0)
            if not await caught_up(fleet, publishers, 60.0):
                raise BenchFailed("The warm-up was not delivered.")
            offline = fleet.clients[::2]
            for client in offline:
                client.close()
            fleet.heard.clear()
            window = await asyncio.to_thread(Window, service)
            sampler = _Sampler(service)
            sampling = asyncio.create_task(sampler.run())
            try:
                spans = await _under_outages(publishers, faults, rate, seconds, sampler.began_s)
                await publishers.drained(60.0)
                home_s = await _come_home(sampler)
            finally:
                if sampling.done():
                    sampling.result()  # why there are no samples
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)
            await asyncio.to_thread(window.end)
            if publishers.refused:
                raise BenchFailed(f"{publishers.refused:,} publishes were refused.")
            latencies = _latencies(fleet, publishers, spans, sampler.began_s)
            await _returned(fleet, offline, publishers)
    finally:
        fleet.close()
    return _result(service, sampler.samples, spans, latencies, home_s, window, f"{rate:g} publishes/s for {seconds:g} s")


async def _under_outages(publishers: Publishers, faults: Path, rate: float, seconds: float, began_s: float) -> list[dict[str, Any]]:
    publishing = asyncio.create_task(publishers.paced(rate, seconds))
    spans = []
    for outage in OUTAGES:
        await asyncio.sleep(began_s + outage.begins * seconds - time.time())
        _inject(faults, outage)
        say(f"outage: {outage.what}")
        begins = time.time() - began_s
        await asyncio.sleep(began_s + outage.ends * seconds - time.time())
        _inject(faults)
        say("it is over")
        spans.append({"what": outage.what, "from_s": round(begins, 1), "to_s": round(time.time() - began_s, 1)})
    if not await publishing:
        raise BenchFailed("The gateway does not answer publishes any more.")
    return spans


class _Sampler:
    """Looks once a second at what is buffered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.began_s = time.time()
        self.samples: list[dict[str, Any]] = []

    async def run(self) -> None:
        while True:
            self.samples.append(await asyncio.to_thread(self._sample))
            await asyncio.sleep(1.0)

    def _sample(self) -> dict[str, Any]:
        settings = self._service.settings
        table = open_table(settings)
        cells = [
            read_cell(cell)
            for partition in range(settings.partitions)
            for _, row in table.scan(SCRATCH, partition, limit=100_000)
            for cell in row.values()
        ]
        status = self._service.status()
        homeless = sum(isinstance(one, Homeless) for one in cells)
        return {
            "at_s": round(time.time() - self.began_s, 1),
            "versions_in_scratch": homeless,
            "clients_in_scratch": len(cells) - homeless,
            "lag": sum(behind for topic in status["pipeline"]["lag"].values() for behind in topic.values()),
            "scratched": status["pipeline"].get("counts", {}).get("scratched", 0),
        }


async def _come_home(sampler: _Sampler) -> float:
    """How long after the last publish scratch is empty."""
    began_s = time.time()
    seen = len(sampler.samples)

    def empty() -> bool:
        last = sampler.samples[-1]
        return len(sampler.samples) > seen + 1 and not (last["versions_in_scratch"] or last["clients_in_scratch"] or last["lag"])

    if not await until(empty, _BACK_S):
        raise BenchFailed(f"What was put aside did not come home within {_BACK_S:g} s.")
    return time.time() - began_s


def _latencies(fleet: Fleet, publishers: Publishers, spans: Sequence[dict[str, Any]], began_s: float) -> dict[str, dict[str, float]]:
    """Of notifications to online clients that no outage touches: publish to client, before, during each and between them."""
    untouched = {name for name in WORLD.objects if not name.startswith("o1")}
    found: dict[str, list[float]] = {"without outages": [], **{span["what"]: [] for span in spans}}
    heard = fleet.heard
    for version, received_s in zip(heard.versions, heard.received_s, strict=True):
        due_s = publishers.published_s[version]
        if publishers.object_of(version) not in untouched:
            continue
        at_s = due_s - began_s
        during = next((span for span in spans if span["from_s"] - _SETTLED_S <= at_s <= span["to_s"] + _SETTLED_S), None)
        if during is None:
            found["without outages"].append((received_s - due_s) * 1000)
        elif during["from_s"] <= at_s <= during["to_s"]:
            found[during["what"]].append((received_s - due_s) * 1000)
    return {what: percentiles(values) | {"notifications": len(values)} for what, values in found.items()}


async def _returned(fleet: Fleet, offline: Sequence[LeanClient], publishers: Publishers) -> None:
    for client in offline:
        await client.connect(fleet.url, prior=client.token)
        client.speak()
    if not await caught_up(fleet, publishers, 60.0):
        raise BenchFailed("Not every client learned everything.")


def _result(
    service: Service,
    samples: list[dict[str, Any]],
    spans: list[dict[str, Any]],
    latencies: dict[str, dict[str, float]],
    home_s: float,
    window: Window,
    load: str,
) -> Result:
    usual = latencies["without outages"]
    ratios = {span["what"]: round(latencies[span["what"]]["p50"] / max(usual["p50"], 0.1), 2) for span in spans}
    return Result(
        name="figure11",
        settings={
            "load": f"{WORLD.clients} clients x {WORLD.registrations} registrations, half of them offline, {load}",
            "service": service.parts,
            "changed": service.changed,
        },
        warm_up="5 s of the same load with everyone online",
        figures={
            "samples": samples,
            "outages": spans,
            "most_versions_in_scratch": max(one["versions_in_scratch"] for one in samples),
            "most_clients_in_scratch": max(one["clients_in_scratch"] for one in samples),
            "most_lag": max(one["lag"] for one in samples),
            "put_aside": samples[-1]["scratched"] - samples[0]["scratched"],
            "empty_after_last_publish_s": round(home_s, 1),
            "untouched_ms": latencies,
            "untouched_p50_ratio": ratios,
        },
        aims=[Aim("p50 of those that no outage touches, by that without", "x", 2.0, max(ratios.values()))],
        cpu_seconds=window.cpu_seconds,
        cpu_window_s=window.seconds,
        approximations=["Samples are taken once a second; the feed's lag is what the pipeline last said, which may be a second old."],
    )
