"""A transaction of a million rows goes through publisher and subscriber, and the publisher's memory does not grow with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from tests.capture.stores.servers_postgres import running_postgres
from tests.capture.whole.part import Part, publishing

pytestmark = pytest.mark.timeout(180)

ROWS = 1_000_000
WAIT_S = 120.0
GROWTH_MIB_MAX = 64  # the rows have 60 MB of text alone


class Counting(Callbacks):
    def __init__(self) -> None:
        self.next = 0
        self.wrong: list[tuple[int, object]] = []

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        for update in updates:
            if update.change.key["id"] != self.next and len(self.wrong) < 10:
                self.wrong.append((self.next, update.change.key["id"]))
            self.next += 1


def most_mib(part: Part) -> float:
    """The most memory that the process ever had."""
    (line,) = (one for one in Path(f"/proc/{part.pid}/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def test_a_million_rows_in_one_transaction() -> None:
    with running_postgres(max_wal_size="1GB") as server:
        server.create_database("shop")
        server.execute("shop", "CREATE TABLE documents (id int PRIMARY KEY, title text)")
        with publishing(f"kind = 'postgres'\ndsn = '{server.dsn('shop')}'\ntables = ['documents']") as part:
            await asyncio.to_thread(part.reads)
            counting = Counting()
            async with Subscriber("watch", part.key(), [part.address], counting, "tests"):
                server.execute("shop", "INSERT INTO documents VALUES (0, 'first')")
                async with asyncio.timeout(WAIT_S):
                    while counting.next < 1:
                        await asyncio.sleep(0.05)
                    before_mib = most_mib(part)
                    insert = f"INSERT INTO documents SELECT n, repeat('x', 60) FROM generate_series(1, {ROWS}) n"
                    await asyncio.to_thread(server.execute, "shop", insert)
                    while counting.next < ROWS + 1:
                        await asyncio.sleep(0.05)
            assert counting.wrong == []
            assert most_mib(part) < before_mib + GROWTH_MIB_MAX
            assert part.stop() == 0
