"""The reader of a datastore alone, in a process of its own: what decoding costs, without a publisher or anybody who subscribes.

python -m bench.capture.reading SETTINGS.toml ROWS
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.capture.publishers import environment, written
from bench.capture.stores import Store
from bench.service import BenchFailed
from roskva.capture.settings import load
from roskva.capture.stores.opening import datastore_of

BATCH: Final = 1_000  # changes read at once, as a publisher does
IDLE_S_MAX: Final = 20.0
TIMEOUT_S: Final = 300.0


class Read(NamedTuple):
    rows: int  # after the first batch, with which the time begins
    seconds: float
    cpu_s: float
    bytes: int
    bytes_a_row: float


def read(config: Path, rows: int) -> Read:
    """From the oldest of the log on, until so many rows were decoded."""
    store = datastore_of(load(config))
    try:
        store.prepare()
        reader = store.read_after(store.retained().oldest)
        got = size = first = 0
        began_s = began_cpu_s = 0.0
        idle_s = time.monotonic()
        while got < rows:
            changes, _, bytes_read = reader.read(BATCH, 0.5)
            if changes:
                idle_s = time.monotonic()
                got += len(changes)
                if not first:
                    first, began_s, began_cpu_s = got, idle_s, time.process_time()
                else:
                    size += bytes_read
            elif time.monotonic() - idle_s > IDLE_S_MAX:
                raise BenchFailed(f"The reader found {got:,} of {rows:,} rows.")
        seconds = max(time.monotonic() - began_s, 1e-6)
        reader.close()
    finally:
        store.close()
    return Read(got - first, seconds, time.process_time() - began_cpu_s, size, size / max(1, got - first))


def read_alone(store: Store, rows: int) -> Read:
    with tempfile.TemporaryDirectory(prefix="roskva-bench-") as folder:
        config = Path(folder) / "capture.toml"
        config.write_text(written({"dataset": {"name": "bench"}, "datastore": store.settings}))
        done = subprocess.run(
            [sys.executable, "-m", "bench.capture.reading", str(config), str(rows)],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        raise BenchFailed(f"The reader of {store.name} failed: {done.stderr[-2000:]}")
    return Read(*json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]), int(sys.argv[2]))))
