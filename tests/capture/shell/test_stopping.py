"""A publisher that stops leaves no flow unreleased, whatever was under way: the next one would wait until it counts as dead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from roskva.capture.datamarkers import Claim, SqliteDatamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.publisher import Publisher
from tests.capture.shell.numberlog import NumberLog
from tests.capture.shell.serving import settings_of
from tests.capture.shell.watching import until


async def test_flows_that_are_won_while_it_stops_are_released(tmp_path: Path, log: NumberLog) -> None:
    taken, go = threading.Event(), threading.Event()

    class Late(SqliteDatamarkers):
        def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
            won = super().take(claims, publisher)
            taken.set()
            assert go.wait(20)
            return won

    store = Late(tmp_path / "datamarkers", log.identity)
    publisher = Publisher(settings_of(tmp_path, 2), log, store)
    await publisher.start()
    await until(taken.is_set)
    stopping = asyncio.create_task(publisher.stop())
    await until(lambda: publisher.owning.stopping)
    go.set()
    await stopping
    assert [(record.epoch, record.released) for record in store.records().values()] == [(1, True), (1, True)]
    store.close()
