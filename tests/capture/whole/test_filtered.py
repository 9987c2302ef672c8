"""Filters in a publisher of its own process: what the log does not say of a row passes, what it says is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from roskva.capture.stores.file_log import FileLog
from roskva.capture.subscriber import Callbacks, Subscriber
from roskva.capture.updates import Update
from roskva.capture.watching import metrics_text
from tests.capture.stores.servers_postgres import running_postgres
from tests.capture.whole.part import ROOT, WAIT_S, publishing

pytestmark = pytest.mark.timeout(120)
FILTER: Final = '[table = "orders" AND total in 100.. AND state matches "open|paid"]'


class Told(Callbacks):
    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []

    def on_update(self, update: Update) -> None:
        self.seen.append((str(update.change.operation), update.change.key.get("id")))


def test_it_is_one_that_the_documentation_shows() -> None:
    assert FILTER in (ROOT / "docs/capture.md").read_text()


async def test_rows_that_are_gone_are_told_of_to_whoever_may_have_them() -> None:
    told = Told()
    with running_postgres() as server:
        server.create_database("shop")
        server.execute("shop", "CREATE TABLE orders (id int PRIMARY KEY, total numeric, state text)")
        store = f"kind = 'postgres'\ndsn = '{server.dsn('shop')}'\ntables = ['orders']\n"
        with publishing(f"{store}[applications.shown]\nstart = 'oldest'\nfilter = '{FILTER}'") as part:
            async with Subscriber("shown", await asyncio.to_thread(part.key), [part.address], told):
                await asyncio.to_thread(part.reads)
                server.execute(
                    "shop",
                    "INSERT INTO orders VALUES (7, 150, 'open'), (8, 5, 'open'), (9, 120, 'paid')",
                    "UPDATE orders SET total = 50 WHERE id = 7",  # it leaves the filter: only the documentation tells of it
                    "DELETE FROM orders WHERE id = 7",
                    "DELETE FROM orders WHERE id = 8",  # nobody can say that it was never within
                    "TRUNCATE orders",
                    "ALTER TABLE orders REPLICA IDENTITY FULL",
                    "INSERT INTO orders VALUES (10, 150, 'open'), (11, 5, 'open')",
                    "DELETE FROM orders WHERE id = 10",
                    "DELETE FROM orders WHERE id = 11",
                    "TRUNCATE orders",
                    "INSERT INTO orders VALUES (12, 100, 'paid')",
                )
                async with asyncio.timeout(WAIT_S):
                    while ("insert", 12) not in told.seen:
                        await asyncio.sleep(0.02)
    by_key_alone = [("insert", 7), ("insert", 9), ("delete", 7), ("delete", 8), ("truncate", None)]
    assert told.seen == [*by_key_alone, ("insert", 10), ("delete", 10), ("truncate", None), ("insert", 12)]


async def test_a_line_that_cannot_be_read_comes_to_roskva_and_an_operator_is_told(tmp_path: Path) -> None:
    told, rest = Told(), Told()
    mapping = "[roskva]\napplication = 'demo'\n[[roskva.mapping]]\ntable = 'rows'\nobject = 'row:{id}'\n"
    other = "[applications.other]\nfilter = '[table = \"rows\"]'"
    lines = [
        b'{"operation": "insert", "table": "rows", "key": {"id": 1}}\n',
        b"{\n",
        b'{"operation": "delete", "table": "rows", "key": {"id": 2}}\n',
    ]
    with FileLog(tmp_path / "log") as log, publishing(f"kind = 'files'\npath = '{log.directory}'\n{mapping}{other}") as part:
        key = await asyncio.to_thread(part.key)
        async with Subscriber("roskva", key, [part.address], told), Subscriber("other", key, [part.address], rest):
            await asyncio.to_thread(part.reads)
            for line in lines:
                log.append_lines(line)
            async with asyncio.timeout(WAIT_S):
                while ("delete", 2) not in told.seen or ("delete", 2) not in rest.seen:
                    await asyncio.sleep(0.02)
        assert told.seen == [("insert", 1), ("message", None), ("delete", 2)]
        assert rest.seen == [("insert", 1), ("delete", 2)]
        assert f"cannot be read: 1. The last is in {log.directory}/{0:020}.jsonl, byte {len(lines[0])}: " in part.problems()
        assert "roskva_capture_malformed_lines_total 1" in metrics_text(part.status() or {}).splitlines()
