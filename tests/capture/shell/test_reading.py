"""A caravan's reader: how it keeps to the pace that it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from roskva.capture.flows import Routed
from roskva.capture.interface import Batch, Finding, Reader, Retained
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.reading import Opening, Reading, Router, Routing
from roskva.capture.publisher.settings import OneShard
from roskva.capture.rows import Schemas

READ_BYTES = 100_000


class _Log:
    """A datastore, and its one reader: each read brings READ_BYTES and no change, and calls `during` in between."""

    identity = "log"

    def __init__(self, during: Callable[[int], None]) -> None:
        self.reads = 0
        self._during = during

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        self.reads += 1
        self._during(self.reads)
        return Batch([], Position(0, self.reads), READ_BYTES)

    def read_after(self, position: Position) -> Reader:
        return self

    def retained(self) -> Retained:
        return Retained(BEGINNING, BEGINNING)

    def at_time(self, time_s: float) -> Position:
        return BEGINNING

    def confirm(self, position: Position) -> None: ...

    def prepare(self) -> None: ...

    def check(self) -> list[Finding]:
        return []

    def close(self) -> None: ...


class _Taking:
    def __init__(self) -> None:
        self.reached = BEGINNING
        self.more = asyncio.Event()

    def taken(self, caravan: int, after: Position, routed: list[Routed], reached: Position, bytes_read: int) -> None:
        self.reached = reached
        self.more.set()

    def cut(self, caravan: int, oldest: Position) -> None: ...

    def position_of(self, caravan: int) -> Position | None:
        return self.reached


async def test_a_reader_that_is_stopped_in_the_middle_of_a_read_goes_on_at_the_pace_it_is_told_next() -> None:
    """What it read when it was told to stand is paid for at the pace of before, and not for ever."""
    standing = threading.Event()

    def stop(reads: int) -> None:
        if reads == 2:
            reading.pace(0.0)
            standing.set()

    taking = _Taking()
    log = _Log(stop)
    reading = Reading(1, BEGINNING, Opening(log), Router(Routing(OneShard(), {}), Schemas()), 1_000, taking)
    reading.start()
    try:
        reading.pace(100.0 * READ_BYTES)
        assert await asyncio.to_thread(standing.wait, 5.0)
        await asyncio.sleep(0.1)
        assert log.reads == 2, "it stands"
        reading.pace(100.0 * READ_BYTES)
        async with asyncio.timeout(5.0):
            while taking.reached < Position(0, 4):
                taking.more.clear()
                await taking.more.wait()
    finally:
        reading.close()
        assert await asyncio.to_thread(reading.join, 5.0)


async def test_a_reader_reads_no_faster_than_it_is_told() -> None:
    log = _Log(lambda reads: None)
    reading = Reading(1, BEGINNING, Opening(log), Router(Routing(OneShard(), {}), Schemas()), 1_000, _Taking())
    reading.start()
    try:
        reading.pace(10.0 * READ_BYTES)
        await asyncio.sleep(0.5)
        assert 1 <= log.reads <= 9  # 5 by the pace, one that is under way, and what it may read at once after it stood
    finally:
        reading.close()
        assert await asyncio.to_thread(reading.join, 5.0)
