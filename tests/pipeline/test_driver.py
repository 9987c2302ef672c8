"""The pipeline's process: killed in mid-batch, stopped, orphaned. Real processes, real Spark."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UPDATE, ObjectKey
from roskva.pipeline.health import RUNNING, STOPPED, Health, read_health
from roskva.table import open_table
from tests.pipeline.standin import RegistrarStandIn, publish, register, settings_for, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


class Family:
    """A process and all that it starts, told from others by a mark in the environment, which each inherits."""

    def __init__(self) -> None:
        name, value = "ROSKVA_TEST_DRIVER", secrets.token_hex(8)
        self._mark = f"{name}={value}".encode()
        self.environment = {**os.environ, name: value, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=self.environment, cwd=ROOT, start_new_session=True
        )

    def members(self) -> dict[int, str]:
        """Those that live, and their commands."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
        return found

    def alive(self) -> list[str]:
        return list(self.members().values())


class Driver:
    """The process, its family, and its output line by line."""

    def __init__(self, data: Path) -> None:
        self.family = Family()
        self.process = self.family.start("-m", "tests.pipeline.driver", str(data))
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines.extend(line.strip() for line in self.process.stdout)

    def said(self, text: str) -> bool:
        assert self.process.poll() is None, f"the driver ended: {self.lines}"
        return any(text in line for line in self.lines)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        wait_until(lambda: not self.family.alive(), 20, "Spark's daemons end with it")
        self._reader.join(5)


Start = Callable[[], Driver]


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Start]:
    """Starts drivers on the test's data directory; all are killed at the end."""
    started: list[Driver] = []

    def start() -> Driver:
        started.append(Driver(tmp_path))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()


class MidBatch(NamedTuple):
    """A driver that told version 7 of x to a Registrar which holds its answer back."""

    settings: Settings
    registrar: RegistrarStandIn
    key: ObjectKey
    driver: Driver

    def answer_from_now_on(self) -> None:
        """Once it was killed: what is told from now on is told by its successor, and answered."""
        self.registrar.told.clear()
        self.registrar.answering.set()

    def is_told(self, version: int) -> bool:
        return version in self.registrar.versions(self.key)


@pytest.fixture
def mid_batch(tmp_path: Path, start_driver: Start) -> Iterator[MidBatch]:
    settings = settings_for(tmp_path, propagation_timeout_s=60.0)
    registrar = RegistrarStandIn(settings)
    try:
        driver = start_driver()
        key = register(settings, "c", "x", 1 << 32 | 1)
        wait_until(lambda: registrar.versions(key) == [0], 90, "the registration")
        registrar.answering.clear()
        publish(settings, "x", 7)
        wait_until(lambda: 7 in registrar.versions(key), 30, "the update, whose answer is held back")
        yield MidBatch(settings, registrar, key, driver)
    finally:
        registrar.die()


def test_killed_in_mid_batch_it_repeats_the_batch_and_then_stops_cleanly(mid_batch: MidBatch, start_driver: Start) -> None:
    mid_batch.driver.kill()
    mid_batch.answer_from_now_on()
    second = start_driver()
    wait_until(lambda: second.said("first batch done"), 90, "a batch after the restart")
    # Not yet published again: only the repeat of the batch can bring it. (The first batch may be the registration's, repeated too.)
    wait_until(lambda: mid_batch.is_told(7), 30, "nobody had answered for it: it is told again")
    publish(mid_batch.settings, "x", 8)
    wait_until(lambda: mid_batch.is_told(8), 30, "life goes on")

    table = open_table(mid_batch.settings)

    def health() -> Health | None:
        return read_health(table)

    def told_all() -> bool:
        h = health()  # written once a second: the first that we see may be older than the last publish
        return h is not None and h.batch >= 0 and h.lag_total == 0 and h.counts.get("updates", 0) >= 2

    wait_until(told_all, 15, "health that counts both updates, without lag")
    known = health()
    assert known is not None
    assert (known.state, known.pid) == (RUNNING, second.process.pid)
    assert known.records >= 2
    assert known.durations_ms["triggerExecution"] > 0

    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(15) == 0
    wait_until(lambda: not second.family.alive(), 10, "no process stays behind")
    last = health()
    assert last is not None
    assert last.state == STOPPED


def test_killed_in_mid_batch_with_its_checkpoint_lost_it_begins_with_the_oldest_record(mid_batch: MidBatch, start_driver: Start) -> None:
    """Only the driver's process is killed: its JVM may go on for a moment beside the successor, and must not spoil its checkpoint."""
    first = mid_batch.driver.process
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)
    shutil.rmtree(mid_batch.settings.data / "checkpoints")
    mid_batch.answer_from_now_on()
    second = start_driver()

    def from_the_oldest() -> bool:
        outcomes = {told.outcome for _, told in mid_batch.registrar.told}
        return mid_batch.is_told(7) and bool(outcomes - {OUTCOME_UPDATE})

    wait_until(from_the_oldest, 90, "the update, and the registration, which had been done with")
    publish(mid_batch.settings, "x", 8)
    wait_until(lambda: mid_batch.is_told(8), 30, "life goes on")
    assert second.said("first batch done")


def test_a_checkpoint_that_spark_refuses_costs_repeats_and_nothing_else(tmp_path: Path, start_driver: Start) -> None:
    settings = settings_for(tmp_path, propagation_timeout_s=60.0)
    folder = tmp_path / "checkpoints" / "matching" / "1"
    for name, text in {
        "metadata": '{"id":"5b8d7b5c-0000-4000-8000-000000000000"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"updates":{}}\n{"of a second source":{}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    registrar = RegistrarStandIn(settings)
    try:
        key = register(settings, "c", "x", 1 << 32 | 1)
        driver = start_driver()
        wait_until(lambda: registrar.versions(key), 90, "the registration, from the oldest record")
        assert [path.name for path in sorted(folder.parent.iterdir())] == ["1", "2", "3"], "the second was copied and refused"
        assert driver.process.poll() is None
    finally:
        registrar.die()


def test_it_ends_when_its_parent_dies(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'tests.pipeline.driver', {str(tmp_path)!r}], stdout=subprocess.PIPE, text=True)\n"
        "for line in child.stdout:\n"
        "    print(line, end='', flush=True)\n"
    )
    family = Family()
    parent = family.start("-c", code)
    assert parent.stdout is not None
    with parent.stdout:
        for line in parent.stdout:
            if "session started" in line:
                break
    assert any("java" in command for command in family.alive())
    parent.kill()  # only the parent: the driver must notice by itself
    parent.wait(5)
    wait_until(lambda: not family.alive(), 20, f"the driver, its JVM and its daemons end: {family.alive()}")
