"""Publishers in processes of their own that die at any moment, and others that go on (Wormhole 3.3.1, 3.3.2, 4.4.2)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.subscriber import Subscriber
from tests.capture.shell import publisher_process
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command
from tests.capture.shell.watching import Watching, until

ROOT = Path(__file__).parents[3]
KILLS = 12


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NumberLog]:
    log = NumberLog(tmp_path / "numbers", "p1")
    yield log
    log.close()


class Process:
    """One publisher. Ended by its own pid, whatever happens."""

    def __init__(self, folder: Path, name: str, **given: object) -> None:
        arguments = {"folder": str(folder), "name": name} | {key: str(value) for key, value in given.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", publisher_process.__name__, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )

    async def ready(self) -> None:
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line == b"READY\n"

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        self._process.send_signal(how)
        self._process.wait(20)
        if self._process.stdout is not None:
            self._process.stdout.close()

    async def stop_for_a_while(self, store: Path) -> None:
        """Not in the middle of a write: in a file of SQLite that would keep everybody else from writing, too."""
        for _ in range(50):
            self._process.send_signal(signal.SIGSTOP)
            if await asyncio.to_thread(may_write, store):
                return
            self.go_on()
            await asyncio.sleep(0.02)
        pytest.fail("it writes all the time")

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def may_write(store: Path) -> bool:
    with closing(sqlite3.connect(store, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True


@asynccontextmanager
async def process(folder: Path, name: str, **given: object) -> AsyncIterator[Process]:
    running = Process(folder, name, **given)
    try:
        await running.ready()
        yield running
    finally:
        running.end()


@asynccontextmanager
async def writing(log: NumberLog) -> AsyncIterator[None]:
    """Numbers come all the time."""

    async def write() -> None:
        dice = random.Random(7)
        while True:
            log.append(dice.randrange(1, 60))
            await asyncio.sleep(0.004)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stored(folder: Path, shards: int) -> dict[int, int]:
    """Of each shard, so many of the log's numbers are dealt with."""
    store = SqliteDatamarkers(folder / "datamarkers", "numbers")
    records = store.records()
    store.close()
    found = {}
    for shard in range(shards):
        datamarker = records[FlowName("watch", shard)].datamarker
        found[shard] = 0 if datamarker is None else datamarker.sequence
    return found


def owners(folder: Path) -> set[str]:
    store = SqliteDatamarkers(folder / "datamarkers", "numbers")
    found = {record.owner for record in store.records().values() if not record.released}
    store.close()
    return found


async def test_kill_9_at_any_point_skips_nothing_and_repeats_only_what_comes_after_the_datamarker(tmp_path: Path, log: NumberLog) -> None:
    shards = 3
    dice = random.Random(20)
    watching = Watching(shards)
    async with Subscriber("watch", KEY, [f"unix:{tmp_path / 'p1'}"], watching, "m1", reconnect_s_max=0.05), writing(log):
        for kill in range(KILLS):
            before = {shard: len(first) for shard, first in watching.first.items()}
            marks = stored(tmp_path, shards) if kill else dict.fromkeys(range(shards), 0)
            async with process(tmp_path, "p1", shards=shards):
                if kill == KILLS - 1 or kill % 3:
                    await until(lambda before=before: all(len(watching.first.get(s, ())) > before.get(s, 0) for s in range(shards)))  # type: ignore[misc]
                await asyncio.sleep(dice.random() * 0.3)
            for shard in range(shards):
                if len(watching.first.get(shard, ())) > before.get(shard, 0):
                    # The first number of the shard that is not up to the datamarker.
                    expected = marks[shard] + (shard - marks[shard]) % shards
                    assert watching.first[shard][before.get(shard, 0)] == expected, f"kill {kill}"
    count = log.count
    async with (
        Subscriber("watch", KEY, [f"unix:{tmp_path / 'p1'}"], watching, "m1", reconnect_s_max=0.05),
        process(tmp_path, "p1", shards=shards),
    ):
        await until(lambda: watching.has_all(count))
    assert watching.skipped == []
    assert watching.losses == [], "nothing was confirmed to the datastore before it was acknowledged"
    assert watching.total - watching.repeated == count
    assert watching.repeated > 0, "or the kills came when nothing was under way"
    assert log.gone > 0


async def test_when_the_owner_dies_another_goes_on_and_when_it_returns_flows_go_back(tmp_path: Path, log: NumberLog) -> None:
    shards, peers = 3, "p1 p2"
    watching = Watching(shards)
    addresses = [f"unix:{tmp_path / name}" for name in ("p1", "p2")]
    given = {"shards": shards, "peers": peers, "takeover_s": 1.0}
    async with (
        process(tmp_path, "p2", **given),
        Subscriber("watch", KEY, addresses, watching, "m1", reconnect_s_max=0.1),
        writing(log),
    ):
        async with process(tmp_path, "p1", **given):
            await until(lambda: owners(tmp_path) == {"p1"} and watching.total > 100)
        at_death = log.count
        await until(lambda: owners(tmp_path) == {"p2"})
        await until(lambda: watching.has_all(at_death + 100))
        assert watching.skipped == []
        repeated, notices = watching.repeated, len(watching.notices)
        async with process(tmp_path, "p1", **given):
            await until(lambda: owners(tmp_path) == {"p1"})
            at_return = log.count
            await until(lambda: watching.has_all(at_return + 100))
            assert len(watching.notices) == notices + shards
            assert watching.repeated == repeated, "handed back after all was acknowledged and stored: nothing comes twice"
            # All flows of an application move by one change, and back.
            assert await command(tmp_path, command="move", application="watch", to="p2") == {"application": "watch", "order": ["p2", "p1"]}
            await until(lambda: owners(tmp_path) == {"p2"})
            at_move = log.count
            await until(lambda: watching.has_all(at_move + 100))
            assert watching.repeated == repeated
            await command(tmp_path, "p2", command="move", application="watch", to="")
            await until(lambda: owners(tmp_path) == {"p1"})
            count = log.count
            await until(lambda: watching.has_all(count))
    assert watching.skipped == []
    assert watching.losses == []


async def test_an_owner_that_stood_still_and_wakes_up_is_fenced(tmp_path: Path, log: NumberLog) -> None:
    shards, peers = 2, "p1 p2"
    watching = Watching(shards)
    addresses = [f"unix:{tmp_path / name}" for name in ("p1", "p2")]
    given = {"shards": shards, "peers": peers, "takeover_s": 1.0}
    async with (
        process(tmp_path, "p1", **given) as first,
        process(tmp_path, "p2", **given),
        Subscriber("watch", KEY, addresses, watching, "m1", reconnect_s_max=0.1),
        writing(log),
    ):
        await until(lambda: owners(tmp_path) == {"p1"} and watching.total > 100)
        await first.stop_for_a_while(tmp_path / "datamarkers")
        await until(lambda: owners(tmp_path) == {"p2"})
        at = log.count
        await until(lambda: watching.has_all(at))
        first.go_on()
        # It wakes up with flows that are not its own any more, and gets them back in good order.
        await until(lambda: owners(tmp_path) == {"p1"})
        count = log.count
        await until(lambda: watching.has_all(count))
        assert (await command(tmp_path, "p1", command="status"))["fenced"] == shards, "it knows what it lost"
    assert watching.skipped == []
    assert watching.losses == []


async def test_a_publisher_that_is_asked_to_stop_leaves_nothing_to_repeat(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(2)
    log.append(500)
    async with Subscriber("watch", KEY, [f"unix:{tmp_path / 'p1'}"], watching, "m1", reconnect_s_max=0.05):
        for count in (500, 1000):
            publisher = Process(tmp_path, "p1", shards=2, datamarker_period_s=1000)
            try:
                await publisher.ready()
                await until(lambda count=count: watching.has_all(count))  # type: ignore[misc]
            finally:
                await asyncio.to_thread(publisher.end, signal.SIGTERM)
            log.append(500)
    assert watching.tokens
    assert (watching.total, watching.repeated, watching.skipped) == (1000, 0, [])
