"""The pipeline's process: killed in mid-batch, stopped, orphaned. Real processes, real Spark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roskva.model import OUTCOME_UPDATE
from roskva.pipeline.health import RUNNING, STOPPED, read_health
from roskva.table import open_table
from tests.pipeline.standin import RegistrarStandIn, publish, register, settings_for, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


class Driver:
    """The process, its output line by line, and every process that carries its mark in the environment."""

    def __init__(self, data: Path) -> None:
        self.mark = f"ROSKVA_TEST_DRIVER={os.getpid()}-{id(self)}"
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.driver", str(data)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
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

    def alive(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        wait_until(lambda: not self.alive(), 20, "Spark's daemons end with it")
        self._reader.join(5)


@pytest.fixture
def start_driver() -> Iterator[Callable[[Path], Driver]]:
    started: list[Driver] = []

    def start(data: Path) -> Driver:
        started.append(Driver(data))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()


def test_killed_in_mid_batch_it_repeats_the_batch_and_then_stops_cleanly(tmp_path: Path, start_driver: Callable[[Path], Driver]) -> None:
    settings = settings_for(tmp_path, propagation_timeout_s=60.0)
    registrar = RegistrarStandIn(settings)
    try:
        first = start_driver(tmp_path)
        key = register(settings, "c", "x", 1 << 32 | 1)
        wait_until(lambda: registrar.versions(key) == [0], 90, "the registration")
        registrar.answering.clear()
        publish(settings, "x", 7)
        wait_until(lambda: 7 in registrar.versions(key), 30, "the update, whose answer is held back")
        first.kill()

        registrar.told.clear()
        registrar.answering.set()
        second = start_driver(tmp_path)
        wait_until(lambda: second.said("first batch done"), 90, "a batch after the restart")
        # Not yet published again: only the repeat of the batch can bring it. (The first batch may be the registration's, repeated too.)
        wait_until(lambda: 7 in registrar.versions(key), 30, "nobody had answered for it: it is told again")
        publish(settings, "x", 8)
        wait_until(lambda: 8 in registrar.versions(key), 30, "life goes on")

        table = open_table(settings)
        health = lambda: read_health(table)  # noqa: E731

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
        wait_until(lambda: not second.alive(), 10, "no process stays behind")
        last = health()
        assert last is not None
        assert last.state == STOPPED
    finally:
        registrar.die()


def test_killed_in_mid_batch_with_its_checkpoint_lost_it_begins_with_the_oldest_record(
    tmp_path: Path, start_driver: Callable[[Path], Driver]
) -> None:
    """Only the driver's process is killed: its JVM may go on for a moment beside the successor, and must not spoil its checkpoint."""
    settings = settings_for(tmp_path, propagation_timeout_s=60.0)
    registrar = RegistrarStandIn(settings)
    try:
        first = start_driver(tmp_path)
        key = register(settings, "c", "x", 1 << 32 | 1)
        wait_until(lambda: registrar.versions(key) == [0], 90, "the registration")
        registrar.answering.clear()
        publish(settings, "x", 7)
        wait_until(lambda: 7 in registrar.versions(key), 30, "the update, whose answer is held back")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(10)
        shutil.rmtree(tmp_path / "checkpoints")

        registrar.told.clear()
        registrar.answering.set()
        second = start_driver(tmp_path)

        def from_the_oldest() -> bool:
            outcomes = {told.outcome for _, told in registrar.told}
            return 7 in registrar.versions(key) and bool(outcomes - {OUTCOME_UPDATE})

        wait_until(from_the_oldest, 90, "the update, and the registration, which had been done with")
        publish(settings, "x", 8)
        wait_until(lambda: 8 in registrar.versions(key), 30, "life goes on")
        assert second.said("first batch done")
    finally:
        registrar.die()


def test_it_ends_when_its_parent_dies(tmp_path: Path) -> None:
    mark = f"ROSKVA_TEST_ORPHAN={os.getpid()}-{tmp_path.name}"
    name, _, value = mark.partition("=")
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'tests.pipeline.driver', {str(tmp_path)!r}], stdout=subprocess.PIPE, text=True)\n"
        "for line in child.stdout:\n"
        "    print(line, end='', flush=True)\n"
    )
    environment = {**os.environ, name: value, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)

    def alive() -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
            except OSError:
                continue
        return found

    assert parent.stdout is not None
    with parent.stdout:
        for line in parent.stdout:
            if "session started" in line:
                break
    assert any("java" in command for command in alive())
    parent.kill()  # only the parent: the driver must notice by itself
    parent.wait(5)
    wait_until(lambda: not alive(), 20, f"the driver, its JVM and its daemons end: {alive()}")
