"""A subscriber in a process of its own that counts what it is given, and who starts it: `counting`.

The process holds a subscriber of the library for each application, each with a connection of its own, on uvloop. It prints a line of JSON
every SAMPLE_S: rows so far, and when the first and the last came, by its own clock. `timed`: also how long ago each row was committed.
`lean`: rows are counted in their frames, and only the last of each is made into an update. That is for many applications on one machine:
their decoding would otherwise be most of what is measured. All else (handshake, credit, tokens, acknowledgements) is the library's.

    python -m bench.capture.counting '{"applications": ["a"], "publishers": ["127.0.0.1:8480"], "key": "...", ...}'
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from bench.capture.publishers import Capture, end, environment
from bench.service import BenchFailed
from roskva.capture import wire
from roskva.capture.positions import Position
from roskva.capture.rows import Decoding
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.subscriber.connection import Connection
from roskva.capture.subscriber.flow import ReceivedFlow
from roskva.capture.updates import Update

SAMPLE_S: Final = 0.1
_raws: Final[msgspec.msgpack.Decoder[list[msgspec.Raw]]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Sample(NamedTuple):
    """What one application had got at a time."""

    at_s: float
    rows: int
    first_s: float  # when the first rows came; 0: none has
    first_rows: int  # so many came then
    last_s: float
    repeated: int
    lost: int  # how often it was told of a loss
    timed: int  # rows whose times are known


class Count(Callbacks):
    """The callbacks of one application."""

    def __init__(self, timed: bool) -> None:
        self.rows = self.first_rows = self.repeated = self.lost = 0
        self.first_s = self.last_s = 0.0
        self.times_ms = array("d")  # from the commit to here, in the order of arrival
        self._timed = timed
        self._at: dict[Shard, Position] = {}

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        now_s = time.time()
        self.rows += len(updates)
        self.last_s = now_s
        if not self.first_s:
            self.first_s, self.first_rows = now_s, self.rows
        known = self._at.get(shard)
        if known is not None and updates[0].change.position <= known:
            self.repeated += sum(update.change.position <= known for update in updates)
        self._at[shard] = updates[-1].change.position
        if self._timed:
            now_us = now_s * 1_000_000
            self.times_ms.extend([(now_us - update.change.committed_us) / 1_000 for update in updates])

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.lost += 1

    def sample(self) -> Sample:
        timed = len(self.times_ms)
        return Sample(time.time(), self.rows, self.first_s, self.first_rows, self.last_s, self.repeated, self.lost, timed)


class LeanDecoding(Decoding):
    """Counts the rows of a frame, and decodes the last: its position says how far the flow is."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self._count = count

    def updates(self, shard: int, history: int, rows: msgspec.Raw | bytes) -> list[Update]:
        parts = _raws.decode(rows)
        self._count.rows += len(parts) - 1
        return super().updates(shard, history, b"\x91" + bytes(parts[-1]))  # an array of one


class LeanSubscriber(Subscriber):
    def _opened(self, connection: Connection, frame: wire.Open) -> ReceivedFlow | None:
        if not isinstance(connection.decoding, LeanDecoding):  # no row has come yet: a flow opens before its first
            assert isinstance(self._callbacks, Count)
            connection.decoding = LeanDecoding(self._callbacks)
        return super()._opened(connection, frame)


def main() -> None:
    given = json.loads(sys.argv[1])
    counts = {name: Count(given["timed"]) for name in given["applications"]}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(count(given, counts))
    Path(given["times"]).write_bytes(b"".join(one.times_ms.tobytes() for one in counts.values()))


async def count(given: dict[str, Any], counts: dict[str, Count]) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kind = LeanSubscriber if given["lean"] else Subscriber
    async with contextlib.AsyncExitStack() as stack:
        for name, callbacks in counts.items():
            await stack.enter_async_context(kind(name, given["key"].encode(), given["publishers"], callbacks))
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_S):
                    await stop.wait()
            print(json.dumps({name: one.sample() for name, one in counts.items()}), flush=True)


class Counting:
    """The process, seen from the measurement."""

    def __init__(self, capture: Capture, applications: Sequence[str], folder: Path, *, lean: bool, timed: bool) -> None:
        self.applications = tuple(applications)
        self.samples: dict[str, list[Sample]] = {name: [] for name in applications}
        self._times = folder / "times"
        self._errors = folder / "errors"
        given = {
            "applications": list(applications),
            "publishers": [capture.address],
            "key": capture.key,
            "lean": lean,
            "timed": timed,
            "times": str(self._times),
        }
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.capture.counting", json.dumps(given)],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._listening = threading.Thread(target=self._listen, name="counting", daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            for name, sample in json.loads(line).items():
                self.samples[name].append(Sample(*sample))

    @property
    def rows(self) -> int:
        """Of all applications."""
        return sum(samples[-1].rows for samples in self.samples.values() if samples)

    def last(self, application: str) -> Sample:
        samples = self.samples[application]
        return samples[-1] if samples else Sample(0.0, 0, 0.0, 0, 0.0, 0, 0, 0)

    def wait(self, rows_each: int, timeout_s: float) -> None:
        """Until every application has so many rows."""
        deadline_s = time.monotonic() + timeout_s
        while min(self.last(name).rows for name in self.applications) < rows_each:
            if self.process.poll() is not None:
                raise BenchFailed(f"The subscriber ended. It said:\n{self.said()}")
            if time.monotonic() > deadline_s:
                got = {name: self.last(name).rows for name in self.applications}
                raise BenchFailed(f"After {timeout_s:g} s not everybody had {rows_each:,} rows: {got}. {self.said()}")
            time.sleep(SAMPLE_S / 2)

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    def end(self) -> array[float]:
        """Ends it; answers the times of all rows, if it was to take them."""
        end(self.process)
        self._listening.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        times_ms = array("d")
        if self._times.exists():
            times_ms.frombytes(self._times.read_bytes())
        return times_ms


@contextlib.contextmanager
def counting(capture: Capture, applications: Sequence[str], *, lean: bool = False, timed: bool = False) -> Iterator[Counting]:
    """Ended with the block, unless that did it; returns at once when it has begun to connect."""
    with tempfile.TemporaryDirectory(prefix="roskva-bench-") as folder:
        started = Counting(capture, applications, Path(folder), lean=lean, timed=timed)
        try:
            yield started
        finally:
            if started.process.poll() is None:
                started.end()


def rates(samples: Sequence[Sample], period_s: float) -> list[list[float]]:
    """Rows per second over time: for each period its end, in seconds since the first sample, and the rate in it."""
    found: list[list[float]] = []
    if not samples:
        return found
    before = samples[0]
    for sample in samples[1:]:
        if sample.at_s - before.at_s >= period_s:
            found.append([round(sample.at_s - samples[0].at_s, 2), round((sample.rows - before.rows) / (sample.at_s - before.at_s), 1)])
            before = sample
    return found


def sustained(samples: Sequence[Sample], seconds: float) -> float:
    """The highest rate over any stretch of so many seconds."""
    best, start = 0.0, 0
    for sample in samples:
        while start + 1 < len(samples) and sample.at_s - samples[start + 1].at_s >= seconds:
            start += 1
        first = samples[start]
        if sample.at_s - first.at_s >= seconds:
            best = max(best, (sample.rows - first.rows) / (sample.at_s - first.at_s))
    return round(best, 1)


if __name__ == "__main__":
    main()
