"""What the tests of failover share: publishers as real processes, a writer that never stops, a subscriber that writes everything down."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import psycopg2
import pymysql

from roskva.capture.datamarkers import open_datamarkers
from roskva.capture.ownership import Reach
from roskva.capture.positions import Position
from roskva.capture.publisher.about import reach_from
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from tests.capture.stores.servers_postgres import free_port

ROOT: Final = Path(__file__).resolve().parents[3]
KEY: Final = "a key of thirty-two bytes, no less"
TAKEOVER_S: Final = 2.0
SHARDS: Final = 2
WAIT_S: Final = 40.0


@contextmanager
def folder_for_sockets() -> Iterator[Path]:
    """With a short path, below which each publisher has its data directory."""
    folder = Path(tempfile.mkdtemp(prefix="roskva-failover-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def until(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> float:
    """Seconds that it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < wait_s, f"it did not become so within {wait_s:g} s: {what}"
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


class PublisherProcess:
    """`roskva capture publisher`, with settings of its own. Ended by its own pid, whatever happens."""

    def __init__(self, folder: Path, name: str, datastore: str, datamarkers: str, peers: tuple[str, ...], **applications: str) -> None:
        """`applications`: further ones beside `watch`, each with the lines of its section."""
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.output = folder / f"{name}.out"
        self._file = folder / f"{name}.toml"
        others = "\n".join(f"[applications.{other}]\n{lines}" for other, lines in applications.items())
        self._file.write_text(f"""
[dataset]
name = "shop"
shards = {SHARDS}
shard = "id % {SHARDS}"
[datastore]
{datastore}
[publisher]
name = "{name}"
listen = "{self.address}"
data = "{folder / name}"
peers = [{", ".join(f'"{peer}"' for peer in peers)}]
datamarkers = "{datamarkers}"
takeover_s = {TAKEOVER_S}
datamarker_period_s = 0.2
key = "{KEY}"
[applications.watch]
start = "oldest"
filter = '[table = "documents"]'
{others}
""")
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self) -> None:
        assert self._process is None
        self._starts += 1
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "roskva", "capture", "publisher", "--config", str(self._file)],
                stdout=output, stderr=output, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            )  # fmt: skip

    @property
    def ready(self) -> bool:
        assert self._process is not None
        said = self.said()
        assert self._process.poll() is None, said[-3000:]
        return said.count("The publisher listens on") == self._starts

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def pause(self, on: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None


@asynccontextmanager
async def running(*publishers: PublisherProcess) -> AsyncIterator[None]:
    """The first of them owns the flows."""
    try:
        for publisher in publishers:
            publisher.start()
        await until(lambda: all(publisher.ready for publisher in publishers), "all run")
        yield
    finally:
        for publisher in publishers:
            publisher.kill()


class Writer:
    """Commits rows of `documents`, one after the other, as fast as one session does, at most a few hundred in a second.

    A commit whose answer is lost may have happened or not: its row is among `uncertain`, and is not tried again.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.connect = connect  # may be changed, to another server
        self.committed: list[int] = []
        self.uncertain: set[int] = set()
        self._next = 1
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self.__exit__()

    def _run(self) -> None:
        connection = None
        while not self._stopped.is_set():
            number, self._next = self._next, self._next + 1
            try:
                if connection is None:
                    connection = self.connect()
                self.uncertain.add(number)
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO documents (id, title) VALUES (%s, 'x')", (number,))
                self.committed.append(number)
                self.uncertain.discard(number)
                self._stopped.wait(0.003)
            except (psycopg2.Error, pymysql.err.MySQLError, OSError):
                connection = None
                self._stopped.wait(0.05)


class Rows(Callbacks):
    """Every row that came, in the order in which it did."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}
        self.positions: dict[int, Position] = {}  # of each row, when it came last
        self.losses: list[tuple[int, Position, Position]] = []
        self._seen: set[int] = set()
        self.repeated = 0

    def on_update(self, update: Update) -> None:
        number = update.change.key["id"]
        assert isinstance(number, int)
        assert update.shard == number % SHARDS
        self.repeated += number in self._seen
        self._seen.add(number)
        self.ids[update.shard].append(number)
        self.positions[number] = update.change.position

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.losses.append((shard.number, after, upto))

    def has(self, number: int) -> bool:
        return number in self._seen

    def histories(self, numbers: Iterable[int]) -> set[int]:
        return {self.positions[number].history for number in numbers}

    def has_all_of(self, writer: Writer) -> bool:
        return self._seen.issuperset(writer.committed)

    def check(self, writer: Writer) -> None:
        """Every committed row came, in order within its shard after dropping repeats, and nothing that was never written."""
        missing = set(writer.committed) - self._seen
        assert not missing, f"{len(missing)} of {len(writer.committed)} committed rows never came: {sorted(missing)[:20]}"
        assert self._seen <= {*writer.committed, *writer.uncertain}
        for shard, ids in self.ids.items():
            first = list(dict.fromkeys(ids))
            assert first == sorted(first), f"shard {shard} is out of order"


def subscriber(rows: Callbacks, publishers: tuple[PublisherProcess, ...], application: str = "watch") -> Subscriber:
    return Subscriber(application, KEY.encode(), [one.address for one in publishers], rows, "m1", reconnect_s_max=0.2)


class Owners:
    """Who owns the flows of `watch`, as it is written beside the datamarkers."""

    def __init__(self, place: str) -> None:
        self._store = open_datamarkers(place, "shop")

    def are(self, owner: str) -> bool:
        flows = {flow: record for flow, record in self._store.records().items() if flow.application == "watch"}
        return len(flows) == SHARDS and all(record.owner == owner and not record.released for record in flows.values())

    def epochs(self) -> Mapping[int, int]:
        return {flow.shard: record.epoch for flow, record in self._store.records().items() if flow.application == "watch"}

    def datamarkers(self) -> list[Position]:
        """Of those that have one."""
        return [record.datamarker for record in self._store.records().values() if record.datamarker is not None]

    def reach(self, publisher: str) -> Reach | None:
        """What of the log it says that it can read."""
        return reach_from(self._store.members()[f"publisher:{publisher}"].about)

    def close(self) -> None:
        self._store.close()


async def serves(publisher: PublisherProcess, writer: Writer, rows: Rows, owners: Owners) -> None:
    """It owns all flows, and rows that were written since everybody is there are dealt with: no log of a peer begins after that."""
    await until(lambda: owners.are(publisher.name) and len(writer.committed) > 50, "it owns all flows")
    number = writer.committed[-1]
    await until(lambda: rows.has(number) and min(owners.datamarkers()) > rows.positions[number], "rows come and are acknowledged")


async def killed_and_back(first: PublisherProcess, second: PublisherProcess, writer: Writer, rows: Rows, owners: Owners) -> float:
    """Kill -9 of the publisher that owns the flows; the other one goes on; the first one returns and gets them back without a gap.

    Everybody is there already. The answer: seconds for which nothing came.
    """
    await serves(first, writer, rows, owners)
    before = owners.epochs()
    first.kill()
    number = writer.committed[-1]
    silent_s = await until(lambda: rows.has(number + 100), "the second one goes on")
    assert owners.are(second.name)
    assert all(epoch > before[shard] for shard, epoch in owners.epochs().items())
    repeated = rows.repeated
    first.start()
    await until(lambda: first.ready, "the first one is back")
    await until(lambda: owners.are(first.name), "flows go back")
    number = writer.committed[-1]
    await until(lambda: rows.has(number + 100), "the first one goes on")
    assert rows.repeated == repeated, "they were handed over: nothing comes twice"
    return silent_s
