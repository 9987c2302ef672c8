"""A publisher in a process of its own, over a NumberLog: `python -m tests.capture.shell.publisher_process '{"name": ...}'`. Says READY."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.limits import Limits
from roskva.capture.ownership import Peer
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from tests.capture.shell.numberlog import KEY, NumberLog, NumberShards


async def serve(given: dict[str, str]) -> None:
    folder = Path(given["folder"])
    name = given["name"]
    log = NumberLog(folder / "numbers", name)
    store = SqliteDatamarkers(folder / "datamarkers", log.identity)
    settings = PublisherSettings(
        name=name,
        listen=f"unix:{folder / name}",
        control=folder / f"{name}.control",
        applications={"watch": ApplicationSettings(KEY, start="oldest")},
        shards=NumberShards(int(given["shards"])),
        peers=tuple(Peer(peer) for peer in given.get("peers", "").split() if peer),
        limits=Limits(datamarker_period_s=float(given.get("datamarker_period_s", 0.05)), allocation_period_s=0.1),
        changes_max=int(given.get("changes_max", 50)),
        tick_s=0.01,
        look_s=0.02,
        beat_s=0.1,
        takeover_s=float(given.get("takeover_s", 1.0)),
        steady_s=0.3,
        settle_s=0.02,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Publisher(settings, log, store):
        print("READY", flush=True)
        await stop.wait()
    store.close()
    log.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(json.loads(sys.argv[1])))
