"""What clients that only are there cost a gateway: resident memory for each, CPU for their keepalives, the longest collection of garbage.

Gateways alone, over tables that bench/filling.py filled: the clients come back with their tokens (bench/crowd.py), over a WebSocket each
or over a few trusted lines. Some come and go first, so that what is loaded once is loaded.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.accounting import GATEWAY, memory_kib
from bench.crowd import Crowd, world_of
from bench.filling import fill
from bench.service import running, say
from bench.world import World

ROW_IDLE_S: Final = 10
VISITORS: Final = 1_000
_SETTLE_S: Final = 12.0


class Size(NamedTuple):
    clients: int
    lines: int  # trusted ones; 0: a WebSocket for each
    gateways: int = 1

    @property
    def channel(self) -> str:
        return "trusted line" if self.lines else "WebSocket"


def measured(size: Size, seconds: float, settings: dict[str, str]) -> dict[str, Any]:
    clients = size.clients
    changed = {
        "row_idle_s": str(ROW_IDLE_S),
        "connections_max": str(clients + 1_000),
        "connections_per_address_max": str(clients + 1_000),
        "handshakes_per_address_per_s": str(clients + 1_000),
        **({"gateways": str(size.gateways)} if size.gateways > 1 else {}),
        **settings,
    }
    settle_s = min(_SETTLE_S, seconds)
    world = world_of(clients)
    with running(changed, pipeline=False, prepare=lambda data: _fill(data, world)) as service:
        time.sleep(settle_s if size.gateways > 1 else 0.0)  # until they know each other
        pids = service.pids(GATEWAY)
        with Crowd(service, clients, size.lines, coming=min(VISITORS, clients)):
            pass
        time.sleep(settle_s)
        empty_kib = sum(map(memory_kib, pids))
        with Crowd(service, clients, size.lines) as crowd:
            time.sleep(settle_s)
            full_kib = sum(map(memory_kib, pids))
            before, cpu = service.metrics(), service.cpu()
            say(f"{clients:,} clients are idle for {seconds:g} s")
            time.sleep(seconds)
            later, after = service.cpu(), service.metrics()
            longest_ms = service.largest("roskva_collection_ms_max")
        took_s = later.at_s - cpu.at_s
        sent = 'roskva_messages_total{way="sent"}'
        return {
            "channel": size.channel,
            "clients": clients,
            "gateways": len(pids),
            "bytes_per_client": round((full_kib - empty_kib) * 1024 / clients),
            "gateway_mib": round(full_kib / 1024, 1),
            "came_s": round(crowd.came_s, 1),
            "cpu_percent_of_a_core": round(100 * cpu.until(later).get(GATEWAY, 0.0) / took_s, 1),
            "keepalives_per_s": round((after.get(sent, 0.0) - before.get(sent, 0.0)) / took_s),
            "longest_collection_ms": round(longest_ms),  # of any of the gateways
            "others_cpu_percent": round(100 * cpu.until(later).get("others on this machine", 0.0) / took_s),
        }


def _fill(data: Path, world: World) -> None:
    fill(data, world, time.time(), matcher=False)
