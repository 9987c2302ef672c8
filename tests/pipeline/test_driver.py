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

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UPDATE
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


class Observed:
    """What the drivers of one data directory tell a Registrar, which holds its answers back when asked to."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registrar = RegistrarStandIn(settings)
        self.key = register(settings, "c", "x", 1 << 32 | 1)
        self.table = open_table(settings)

    def is_told(self, version: int) -> bool:
        return version in self.registrar.versions(self.key)

    def is_told_from_the_oldest(self, version: int) -> bool:
        return self.is_told(version) and any(told.outcome != OUTCOME_UPDATE for _, told in self.registrar.told)

    def hold_back(self, version: int) -> None:
        """A driver is in mid-batch: it told this version, and has no answer."""
        self.registrar.answering.clear()
        publish(self.settings, "x", version)
        wait_until(lambda: self.is_told(version), 30, "the update, whose answer is held back")

    def answer_from_now_on(self) -> None:
        """Once a driver was killed: what is told from now on is told by its successor, and answered."""
        self.registrar.told.clear()
        self.registrar.answering.set()

    def health(self) -> Health | None:
        return read_health(self.table)

    def has_caught_up(self, updates: int) -> bool:
        known = self.health()  # written once a second: the first that we see may be older than the last publish
        return known is not None and known.batch >= 0 and known.lag_total == 0 and known.counts.get("updates", 0) >= updates


@pytest.fixture
def observed(tmp_path: Path) -> Iterator[Observed]:
    observed = Observed(settings_for(tmp_path, propagation_timeout_s=60.0))
    try:
        yield observed
    finally:
        observed.registrar.die()


def write_refused_checkpoint(data: Path) -> Path:
    folder = data / "checkpoints" / "matching" / "1"
    for name, text in {
        "metadata": '{"id":"5b8d7b5c-0000-4000-8000-000000000000"}',
        "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"updates":{}}\n{"of a second source":{}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_refused_checkpoint_a_kill_in_mid_batch_and_a_lost_checkpoint_cost_repeats_and_nothing_else(
    observed: Observed, start_driver: Start
) -> None:
    """Three drivers, one after the other: each start takes long."""
    refused = write_refused_checkpoint(observed.settings.data)
    first = start_driver()
    wait_until(lambda: observed.is_told(0), 90, "the registration, from the oldest record")
    assert [path.name for path in sorted(refused.parent.iterdir())] == ["1", "2", "3"], "the second was copied and refused"

    observed.hold_back(7)
    first.kill()
    observed.answer_from_now_on()
    second = start_driver()
    wait_until(lambda: second.said("first batch done"), 90, "a batch after the restart")
    # Not yet published again: only the repeat of the batch can bring it. (The first batch may be the registration's, repeated too.)
    wait_until(lambda: observed.is_told(7), 30, "nobody had answered for it: it is told again")

    observed.hold_back(8)
    # Only the driver's process is killed: its JVM may go on for a moment beside the successor, and must not spoil its checkpoint.
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait(10)
    shutil.rmtree(observed.settings.data / "checkpoints")
    observed.answer_from_now_on()
    third = start_driver()
    wait_until(lambda: observed.is_told_from_the_oldest(8), 90, "the update, and the registration, which had been done with")
    publish(observed.settings, "x", 9)
    wait_until(lambda: observed.is_told(9), 30, "life goes on")
    assert third.said("first batch done")
    check_health_and_clean_stop(observed, third)


def check_health_and_clean_stop(observed: Observed, driver: Driver) -> None:
    wait_until(lambda: observed.has_caught_up(2), 15, "health that counts both updates, without lag")
    known = observed.health()
    assert known is not None
    assert (known.state, known.pid) == (RUNNING, driver.process.pid)
    assert known.records >= 2
    assert known.durations_ms["triggerExecution"] > 0
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(15) == 0
    wait_until(lambda: not driver.family.alive(), 10, "no process stays behind")
    last = observed.health()
    assert last is not None
    assert last.state == STOPPED


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
