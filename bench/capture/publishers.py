"""A real `roskva capture` for a measurement: its settings file, the process, and what it says of itself.

`publishing` starts the publisher alone, `capturing` all of `roskva capture`. Both are ended by their own process, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.service import ROOT, BenchFailed, free_port
from roskva.capture.running.places import CONTROL
from roskva.cli.capture_control import ask
from roskva.errors import RoskvaError

START_S: Final = 30.0
ANSWER_S: Final = 35.0
STOP_S: Final = 25.0
# Of log per second, for a flow that lags. The default spares the database: 16 MiB/s, or twice what the lead reads. Where a backlog is
# measured, that pace would be what is measured.
UNPACED: Final = {"caravan_rate_min": 64.0 * 2**20}

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Capture:
    """One that runs."""

    config: Path
    data: Path
    address: str
    key: str
    process: subprocess.Popen[bytes]
    output: Path

    def ask(self, command: str, **given: object) -> Any:
        return ask(self.data / CONTROL, command, ANSWER_S, **given)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask("status")
        return answer

    def said(self) -> str:
        logs = [self.output, *sorted(self.data.glob("log/*.log"))]
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in logs)

    def riding(self, flows: int, timeout_s: float = START_S) -> None:
        """Until so many flows have a subscriber, and are read for."""
        self.until(lambda: sum(flow["state"] == "riding" for flow in self.status()["flows"]) >= flows, f"{flows} flows ride", timeout_s)

    def until(self, true: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            if self.process.poll() is not None:
                raise BenchFailed(f"Capture ended with status {self.process.returncode} before {what}. It said:\n{self.said()}")
            with contextlib.suppress(RoskvaError):
                if true():
                    return
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"{timeout_s:g} s were not enough until {what}. Capture said:\n{self.said()}")
            time.sleep(0.05)


def written(tables: Mapping[str, Any], path: str = "") -> str:
    """As TOML: tables of values, tables of tables, and lists of tables."""
    values = {name: value for name, value in tables.items() if not _is_table(value)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    for name, value in tables.items():
        full = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            lines.append(f"[{full}]\n{written(value, full)}")
        elif _is_table(value):
            lines += [f"[[{full}]]\n{written(one, full)}" for one in value]
    return "\n".join(lines)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


@contextlib.contextmanager
def publishing(
    datastore: Table,
    applications: Mapping[str, Table],
    *,
    dataset: Table | None = None,
    publisher: Table | None = None,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Capture]:
    """A publisher over the datastore, and nothing else. `limits` are set while it runs, before anybody subscribes."""
    tables = {"dataset": {"name": "bench", **(dataset or {})}, "datastore": datastore, "applications": applications}
    with _started(tables, publisher or {}, "publisher") as capture:
        if limits:
            capture.ask("set", **limits)
        yield capture


@contextlib.contextmanager
def capturing(datastore: Table, roskva: Table, *, publisher: Table | None = None) -> Iterator[Capture]:
    """`roskva capture` as one types it: supervisor, publisher, and Roskva's own subscriber."""
    tables = {"dataset": {"name": "bench"}, "datastore": datastore, "roskva": roskva}
    with _started(tables, publisher or {}) as capture:
        capture.riding(1)
        yield capture


@contextlib.contextmanager
def _started(tables: Mapping[str, Any], publisher: Table, *part: str) -> Iterator[Capture]:
    folder = Path(tempfile.mkdtemp(prefix="roskva-bench-"))
    try:
        key, address = secrets.token_hex(16), f"127.0.0.1:{free_port()}"
        of_publisher = {"listen": address, "data": str(folder / "data"), "key": key, **publisher}
        config = folder / "capture.toml"
        config.write_text(written({**tables, "publisher": of_publisher}))
        command = [sys.executable, "-m", "roskva", "capture", *part, "--config", str(config)]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        capture = Capture(config, folder / "data", address, key, process, folder / "output")
        try:
            capture.until(lambda: bool(capture.status()), "it answers")
            yield capture
            if process.poll() is not None:
                raise BenchFailed(f"Capture ended during the measurement. It said:\n{capture.said()}")
        finally:
            end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """Without settings of the developer's: measured is what anybody gets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROSKVA_")}
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def end(process: subprocess.Popen[bytes]) -> None:
    """The clean way, then by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
