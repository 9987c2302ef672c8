"""The thread of a caravan: at the pace that it is told, also when it is told to stand while it reads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

from roskva.capture.flows import Routed
from roskva.capture.interface import Batch
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.reading import Reading, Router, Routing
from roskva.capture.rows import Schemas
from tests.capture.shell.numberlog import NumberShards
from tests.capture.shell.watching import until

BATCH_BYTES = 1 << 16


class Slow:
    """A datastore with one reader, whose reads return when the test says so."""

    def __init__(self) -> None:
        self.reads = 0
        self.may_return = threading.Semaphore(0)

    def read_after(self, position: Position) -> Slow:
        return self

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        self.reads += 1
        self.may_return.acquire(timeout=10.0)
        return Batch([], Position(0, self.reads), BATCH_BYTES)

    def close(self) -> None: ...


class Taking:
    def __init__(self) -> None:
        self.reached = BEGINNING

    def taken(self, caravan: int, after: Position, routed: list[Routed], reached: Position, bytes_read: int) -> None:
        self.reached = reached

    def cut(self, caravan: int, oldest: Position) -> None: ...

    def position_of(self, caravan: int) -> Position | None:
        return self.reached


async def test_a_batch_during_which_it_is_told_to_stand_is_charged_by_the_pace_before() -> None:
    """By any less, it would stand for days: a subscriber that was slow for a moment would never hear anything again."""
    store, taking = Slow(), Taking()
    reading = Reading(1, BEGINNING, cast(Any, store), Router(Routing(NumberShards(1), {}), Schemas()), 100, taking)
    reading.start()
    try:
        reading.pace(BATCH_BYTES * 100.0)
        await until(lambda: store.reads == 1)
        reading.pace(0.0)
        store.may_return.release()
        await until(lambda: taking.reached.sequence == 1)
        await asyncio.sleep(0.1)
        assert store.reads == 1, "it stands"
        reading.pace(BATCH_BYTES * 100.0)
        store.may_return.release()
        await until(lambda: taking.reached.sequence == 2, 5.0)
    finally:
        reading.close()
        store.may_return.release(10)
        assert await asyncio.to_thread(reading.join, 5.0)
