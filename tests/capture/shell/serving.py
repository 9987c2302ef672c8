"""A publisher over a NumberLog in this process, with settings that do not let tests wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from roskva.capture.datamarkers import Datamarkers, SqliteDatamarkers
from roskva.capture.limits import Limits
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from roskva.capture.subscriber import Callbacks, Subscriber
from tests.capture.shell.numberlog import KEY, NumberLog, NumberShards

LIMITS = Limits(datamarker_period_s=0.05, allocation_period_s=0.05)


def settings_of(folder: Path, shards: int = 1, name: str = "p1", **changed: Any) -> PublisherSettings:
    given: dict[str, Any] = {
        "name": name,
        "listen": f"unix:{folder / name}",
        "control": folder / f"{name}.control",
        "applications": {"watch": ApplicationSettings(KEY, start="oldest")},
        "shards": NumberShards(shards),
        "limits": LIMITS,
        "tick_s": 0.01,
        "look_s": 0.05,
        "beat_s": 0.05,
        "balance_s": 0.2,
        "settle_s": 0.02,
    }
    return PublisherSettings(**given | changed)


@asynccontextmanager
async def publishing(
    folder: Path, log: NumberLog, shards: int = 1, name: str = "p1", store: Datamarkers | None = None, **changed: Any
) -> AsyncIterator[Publisher]:
    store = store or SqliteDatamarkers(folder / "datamarkers", log.identity)
    try:
        async with Publisher(settings_of(folder, shards, name, **changed), log, store) as publisher:
            yield publisher
            assert publisher.failed is not None
            assert not publisher.failed.done(), "the core found something that must not be"
            publisher.core.check()
    finally:
        store.close()


def subscriber(publisher: Publisher, callbacks: Callbacks, application: str = "watch", member: str = "m1", **changed: Any) -> Subscriber:
    changed = {"reconnect_s_max": 0.2, "beat_s": 0.05} | changed
    return Subscriber(application, KEY, [publisher.address], callbacks, member, **changed)


async def command(folder: Path, name: str = "p1", **request: object) -> Any:
    """The answer, or the error's code."""
    reader, writer = await asyncio.open_unix_connection(folder / f"{name}.control")
    writer.write(json.dumps(request).encode() + b"\n")
    answer: Mapping[str, Any] = json.loads(await reader.readline())
    writer.close()
    await writer.wait_closed()
    return answer["answer"] if answer["ok"] else answer["error"]
