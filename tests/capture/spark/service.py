"""Publishers over a log in files, each in a process of its own that tests kill.

    python -m tests.capture.spark.service FOLDER NAME ALL_NAMES SHARDS DATAMARKER_PERIOD_S

Their applications begin at the oldest update: "lake" gets everything, "picky" what is of the table wanted.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.limits import Limits
from roskva.capture.ownership import Peer
from roskva.capture.publisher import ApplicationSettings, Publisher, PublisherSettings
from roskva.capture.sharding import Sharding, parse_rule
from roskva.capture.stores.file_lines import Entry
from roskva.capture.stores.file_log import FileLog
from roskva.capture.stores.files import FileDatastore
from roskva.capture.updates import Operation, Update

KEY: Final = "a-key-that-nobody-may-ever-see"
ROOT: Final = Path(__file__).parents[3]


def _wanted(update: Update) -> bool:
    return update.change.table == "wanted"


async def _serve(folder: Path, name: str, names: Sequence[str], shards: int, datamarker_period_s: float) -> None:
    store = FileDatastore(folder / "log", "shop")
    datamarkers = SqliteDatamarkers(folder / "datamarkers", store.identity)
    settings = PublisherSettings(
        name=name,
        listen=f"unix:{folder / name}",
        control=None,
        applications={
            "lake": ApplicationSettings(KEY.encode(), start="oldest"),
            "picky": ApplicationSettings(KEY.encode(), passes=_wanted, start="oldest"),
        },
        shards=Sharding(shards, parse_rule(f"id % {shards}", shards)),
        peers=tuple(map(Peer, names)),
        limits=Limits(datamarker_period_s=datamarker_period_s, allocation_period_s=0.1),
        changes_max=50,
        tick_s=0.01,
        beat_s=0.1,
        takeover_s=1.0,
        steady_s=0.3,
        settle_s=0.02,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Publisher(settings, store, datamarkers):
        print("READY", flush=True)
        await stop.wait()
    datamarkers.close()
    store.close()


class Service:
    """The log, and the processes that publish it; the first of them is the primary."""

    def __init__(self, folder: Path, shards: int = 4, names: Sequence[str] = ("p1",)) -> None:
        self.folder = folder
        self.shards = shards
        self.names = names
        self.datamarker_period_s = 0.1
        self.log = FileLog(folder / "log")
        self.written = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def options(self) -> dict[str, str]:
        """Of a source that reads it."""
        publishers = ",".join(f"unix:{self.folder / name}" for name in self.names)
        return {"publishers": publishers, "application": "lake", "secretKey": KEY}

    def write(self, count: int, table: str = "documents", text: str = "") -> None:
        """Updates with the next ids; the shard is the remainder."""
        numbers = range(self.written, self.written + count)
        self.written += count
        self.write_entries([Entry(Operation.UPDATE, table, {"id": n}, {"id": n, "text": text}) for n in numbers])

    def write_entries(self, entries: Sequence[Entry]) -> None:
        self.log.append(entries)

    def start(self, name: str = "p1") -> None:
        given = [str(self.folder), name, ",".join(self.names), str(self.shards), str(self.datamarker_period_s)]
        process = subprocess.Popen([sys.executable, "-m", "tests.capture.spark.service", *given], cwd=ROOT, stdout=subprocess.PIPE)
        self._processes[name] = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"READY\n"

    def kill(self, name: str = "p1") -> None:
        """With -9."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str = "p1") -> None:
        """Its flows are closed and released."""
        self._end(name, signal.SIGTERM)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name)
        process.send_signal(how)
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._processes):
            self.kill(name)
        self.log.close()

    def datamarkers(self, application: str = "lake") -> dict[int, int | None]:
        """What is stored: shard -> sequence."""
        store = SqliteDatamarkers(self.folder / "datamarkers", self.log.identity)
        try:
            records = store.records()
        finally:
            store.close()
        return {
            name.shard: None if record.datamarker is None else record.datamarker.sequence
            for name, record in records.items()
            if name.application == application
        }


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4]), float(sys.argv[5])))
