"""recovery: a gateway starts on tables of ever more clients, of which always 1,000 have something unfinished. How long it takes to find it.

Aim: flat, since marks lead to what is unfinished and nothing walks over all clients. Measured twice: the scan itself, by a Registrar that
is handed its partitions; and a whole gateway, from its start to its word that all was found. The kernel forgets the files before each.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.filling import Filled, fill
from bench.report import Aim, Result
from bench.service import APPLICATION, BenchFailed, say
from bench.world import Options, World, run
from roskva.config import ApplicationSettings, Settings
from roskva.feed import FeedLanes, open_feed
from roskva.feed.interface import REGISTRATIONS
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from roskva.model import ClientId, object_key, seqno_of
from roskva.registrar.cells import Pending, client_row, registration_cells, seqno_cell
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.service import Registrar
from roskva.table import TableLanes, open_manifest, open_table
from roskva.table.interface import Mutation
from roskva.table.marks import marks_for

CLIENTS: Final = (10_000, 100_000, 1_000_000)
UNFINISHED: Final = 1_000
REGISTRATIONS_EACH: Final = 5
BOOTS: Final = 5
_FOUND_S: Final = 60.0
_FLAT: Final = 2.0


def measure(options: Options) -> Result:
    clients = CLIENTS if options.clients is None else (options.clients, 10 * options.clients)
    steps = [_step(count) for count in clients]
    scans = [step["scan_ms"] for step in steps]
    gateways = [step["gateway_ms"] for step in steps]
    cpu = [step["scan_cpu_ms"] for step in steps]
    return Result(
        name="recovery",
        settings={
            "load": f"{_listed(clients)} clients x {REGISTRATIONS_EACH} registrations, {UNFINISHED:,} of them unfinished",
            "boots": f"{BOOTS} of each, the median counts",
        },
        warm_up="none: the kernel's copies of the files are dropped before every boot",
        figures={
            "steps": steps,
            "scan_ratio": max(scans) / min(scans),
            "scan_cpu_ratio": max(cpu) / min(cpu),
            "gateway_ratio": max(gateways) / min(gateways),
        },
        aims=[
            Aim("recovery scan, slowest size / fastest", "", _FLAT, max(scans) / min(scans)),
            Aim("gateway start, slowest size / fastest", "", _FLAT, max(gateways) / min(gateways)),
        ],
        acknowledgement="nobody is online",
        approximations=["Rows are inserted in bulk, so the files are less fragmented than those of a service that grew."],
    )


def _listed(counts: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)


def _step(clients: int) -> dict[str, Any]:
    data = Path(tempfile.mkdtemp(prefix="roskva-recovery-"))
    try:
        filled = fill(data, World(clients, REGISTRATIONS_EACH, REGISTRATIONS_EACH), time.time())
        settings = Settings(data=data, listen="127.0.0.1:0", settling_s=0.0, applications={APPLICATION: ApplicationSettings()})
        _leave_unfinished(settings)
        scans = [run(_scan(settings, f"scan-{boot}")) for boot in range(BOOTS)]
        gateways = [run(_gateway(settings)) for _ in range(BOOTS)]
    finally:
        shutil.rmtree(data)
    figures = _figures(filled, scans, gateways)
    say(f"{clients:,} clients: scan {figures['scan_ms']:.0f} ms, gateway {figures['gateway_ms']:.0f} ms")
    return figures


def _figures(filled: Filled, scans: list[tuple[float, float]], gateways: list[float]) -> dict[str, Any]:
    return {
        "clients": filled.clients,
        "cells": filled.cells,
        "mib": round(filled.bytes / (1 << 20)),
        "scan_ms": round(statistics.median(took_ms for took_ms, _ in scans), 1),
        "scan_max_ms": round(max(took_ms for took_ms, _ in scans), 1),
        "scan_cpu_ms": round(statistics.median(cpu_ms for _, cpu_ms in scans), 1),
        "gateway_ms": round(statistics.median(gateways), 1),
        "gateway_max_ms": round(max(gateways), 1),
    }


def _leave_unfinished(settings: Settings) -> None:
    """As a gateway leaves it that dies between its write and the Matcher's answer: marks, and rows with a pending registration."""
    table = open_table(settings)
    clients: dict[ClientId, None] = {}
    while len(clients) < UNFINISHED:
        partition = len(clients) % settings.partitions
        for key, _ in table.scan("registrar", partition, after=secrets.token_urlsafe(12).encode(), limit=1):
            clients[ClientId(key.decode())] = None
    table.write(marks_for(clients, dict.fromkeys(range(settings.partitions), 0), settings.partitions, b"bench"))
    seqno = seqno_of(1, REGISTRATIONS_EACH + 1)
    cells = [*registration_cells(object_key(APPLICATION, 0, b"unfinished"), seqno, True, Pending()), seqno_cell(seqno, b"bench000")]
    table.write([Mutation(client_row(client, settings.partitions), cells) for client in clients])
    _close(settings)


async def _scan(settings: Settings, member: str) -> tuple[float, float]:
    """A Registrar is handed all partitions, and repeats what their marks lead to. Milliseconds, and of them CPU."""
    _forget_pages(settings.data)
    feed = open_feed(settings)
    before = _appended(settings)
    lanes, feed_lanes = TableLanes(open_table(settings), settings.partitions), FeedLanes(feed)
    view = MemberView(timeout_s=3_600.0)
    view.observe([member_cell(Member(member, "127.0.0.1:1", "127.0.0.1:2"), 1)], 0.0)
    registrar = Registrar(settings, lanes, feed_lanes, load_keys(settings.data).keyring, member, view)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    registrar.members_changed()
    await registrar.rounds._follow_marks()
    while registrar.recovery.taken_over:
        await registrar.rounds._follow_marks()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    if _appended(settings) - before != UNFINISHED:
        raise BenchFailed(f"{_appended(settings) - before:,} of {UNFINISHED:,} unfinished registrations were found.")
    await lanes.close()
    await feed_lanes.close()
    _close(settings)
    return 1000.0 * took_s, 1000.0 * cpu_s


class _Words(logging.Handler):
    """Listens for "found N unfinished of partition p"."""

    def __init__(self, partitions: int) -> None:
        super().__init__(logging.INFO)
        self.found: list[int] = []
        self.all_found = asyncio.Event()
        self._partitions = partitions

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("found %d unfinished"):
            self.found.append(int(record.args[0]))  # type: ignore[index, arg-type]
            if len(self.found) == self._partitions:
                self.all_found.set()


async def _gateway(settings: Settings) -> float:
    _forget_pages(settings.data)
    words, log = _Words(settings.partitions), logging.getLogger("roskva.registrar.rounds")
    log.addHandler(words)
    log.setLevel(logging.INFO)
    gateway = Gateway(settings)
    began_s = time.perf_counter()
    try:
        await gateway.start()
        await asyncio.wait_for(words.all_found.wait(), _FOUND_S)
        took_s = time.perf_counter() - began_s
        if sum(words.found) != UNFINISHED:
            raise BenchFailed(f"{sum(words.found):,} of {UNFINISHED:,} clients with unfinished registrations were found.")
    finally:
        log.removeHandler(words)
        await gateway.stop()
        _close(settings)
    return 1000.0 * took_s


def _appended(settings: Settings) -> int:
    return sum(position.offset for position in open_feed(settings).newest(REGISTRATIONS).values())


def _close(settings: Settings) -> None:
    open_table(settings).close()
    open_feed(settings).close()
    open_manifest(settings).close()


def _forget_pages(data: Path) -> None:
    """A start after a power failure reads from the disk, and so does this one."""
    for path in data.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
