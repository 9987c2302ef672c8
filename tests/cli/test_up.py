"""`roskva up` as a real process over stand-ins for its parts: starts, restarts, stops, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roskva.address import bound_socket
from roskva.cli import processes
from roskva.cli.processes import Process
from roskva.errors import AddressInUse
from tests.cli.stand_in import write_status

ROOT = Path(__file__).resolve().parents[2]
RUN_UP = [sys.executable, str(ROOT / "tests/cli/run_up.py")]
WELCOME = "Ctrl-C stops it."


class Up:
    """One `roskva up` under test, with what it printed."""

    def __init__(self, data: Path, *options: str, fault: str = "", output: Path | None = None) -> None:
        self.data = data
        self.output = output or data.parent / f"{data.name}.out"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ROSKVA_TEST_FAULT": fault}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                # One gateway, on a machine with any number of cores.
                [*RUN_UP, "--gateways", "1", "--data", str(data), "--listen", "127.0.0.1:0", *options],
                stdout=out,
                stderr=out,
                env=environment,
            )
        self.run = ""

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, timeout_s: float = 30.0) -> None:
        until(lambda: text in self.text() or self.process.poll() is not None, timeout_s, self.text)
        assert text in self.text(), self.text()
        self.run = self.run or (self.data / "up.lock").read_text().split()[1]

    def members(self, part: str = "") -> set[Process]:
        return processes.of_run(f"{self.run}/{part}" if part else self.run)

    def pid(self, part: str) -> int:
        """Of the part itself, not of what it started."""
        return next(process.pid for process in self.members(part) if os.getpgid(process.pid) == process.pid and self._is_part(process))

    def _is_part(self, process: Process) -> bool:
        return b"stand_in" in Path(f"/proc/{process.pid}/cmdline").read_bytes()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)


def until(true: Callable[[], bool], timeout_s: float, shown: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {shown()}"
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    running: list[Up] = []

    def begin(*options: str, fault: str = "", data: str = "data", output: Path | None = None) -> Up:
        running.append(Up(tmp_path / data, *options, fault=fault, output=output))
        return running[-1]

    yield begin
    for up in running:
        up.process.kill()
        up.process.wait()
        processes.end_run(up.run, 0.0)


def test_shows_each_step_with_its_time_and_then_where_to_go(start: Callable[..., Up]) -> None:
    up = start()
    up.wait_for(WELCOME)
    for step in ("data directory", "gateway", "Spark", "pipeline"):
        assert any(line.strip().startswith(step) and line.endswith(" s") for line in up.text().splitlines()), up.text()
    assert "demo page   http://127.0.0.1:" in up.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_cleanly_and_leaves_no_process_behind(start: Callable[..., Up], number: signal.Signals) -> None:
    up = start()
    up.wait_for(WELCOME)
    members = up.members()
    assert len(members) == 3  # gateway, pipeline and its daemon
    began = time.monotonic()
    up.process.send_signal(number)
    assert up.process.wait(15) == 0
    assert time.monotonic() - began < 10
    assert not any(processes.alive(process) for process in members)


def test_what_ignores_the_signal_is_ended_by_force_in_time(start: Callable[..., Up]) -> None:
    up = start("--gateways", "3", fault="stubborn")  # of which each gets the same time, and not one after the other
    up.wait_for(WELCOME)
    members = up.members()
    began = time.monotonic()
    assert up.stop() == 0
    assert time.monotonic() - began < 10
    assert not any(processes.alive(process) for process in members)


def test_a_second_interrupt_ends_everything_at_once(start: Callable[..., Up]) -> None:
    up = start(fault="stubborn")
    up.wait_for(WELCOME)
    members = up.members()
    began = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    up.wait_for("stopping")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(15) == 0
    assert time.monotonic() - began < 3
    assert not any(processes.alive(process) for process in members)


def test_the_parts_do_not_outlive_a_supervisor_that_was_killed(start: Callable[..., Up]) -> None:
    up = start()
    up.wait_for(WELCOME)
    members = up.members()
    up.process.kill()
    until(lambda: not any(processes.alive(process) for process in members), 10, lambda: members)


def test_even_stubborn_parts_do_not_outlive_a_supervisor_that_was_killed(start: Callable[..., Up]) -> None:
    up = start(fault="stubborn")
    up.wait_for(WELCOME)
    members = up.members()
    up.process.kill()
    until(lambda: not any(processes.alive(process) for process in members), 12, lambda: members)


def test_a_successor_ends_what_a_killed_predecessor_left(start: Callable[..., Up]) -> None:
    first = start(fault="stubborn")
    first.wait_for(WELCOME)
    members = first.members()
    first.process.kill()
    first.process.wait()
    second = start()
    second.wait_for(WELCOME)
    assert not any(processes.alive(process) for process in members)


@pytest.mark.parametrize("part", ["gateway", "pipeline"])
def test_what_dies_is_started_again_and_what_it_had_started_is_ended(start: Callable[..., Up], part: str) -> None:
    up = start()
    up.wait_for(WELCOME)
    before = up.members(part)
    os.kill(up.pid(part), signal.SIGKILL)
    up.wait_for(f"{part} ended with status -9")
    until(lambda: bool(up.members(part) - before), 10)
    assert not any(processes.alive(process) for process in before)


def test_neither_a_full_disk_under_its_output_nor_a_lost_log_folder_ends_the_supervisor(start: Callable[..., Up]) -> None:
    up = start(output=Path("/dev/full"))
    lock = up.data / "up.lock"
    until(lambda: lock.exists() and len(lock.read_text().split()) == 2, 10)
    up.run = lock.read_text().split()[1]
    until(lambda: bool(up.members("pipeline")), 10)
    before = up.members("gateway")
    shutil.rmtree(up.data / "log")
    os.kill(up.pid("gateway"), signal.SIGKILL)
    until(lambda: bool(up.members("gateway") - before), 10)
    assert up.process.poll() is None
    assert (up.data / "log" / "gateway.log").exists()


def test_a_gateway_that_hangs_is_started_again(start: Callable[..., Up]) -> None:
    up = start()
    up.wait_for(WELCOME)
    hung = up.pid("gateway")
    os.kill(hung, signal.SIGSTOP)
    up.wait_for("gateway did not answer for 2 s")
    until(lambda: {process.pid for process in up.members("gateway")} not in (set(), {hung}), 10)


def test_of_several_gateways_each_is_restarted_alone_when_it_dies_or_hangs(start: Callable[..., Up]) -> None:
    up = start("--gateways", "3")
    up.wait_for(WELCOME)
    assert "3 listen on http://127.0.0.1:" in up.text()
    names = [f"gateway-{number}" for number in (1, 2, 3)]
    before = {name: up.pid(name) for name in names}
    os.kill(before["gateway-1"], signal.SIGKILL)
    os.kill(before["gateway-3"], signal.SIGSTOP)
    up.wait_for("gateway-1 ended with status -9")
    up.wait_for("gateway-3 did not answer for 2 s")
    until(lambda: all(up.members(name) for name in names), 10, up.text)
    after = {name: up.pid(name) for name in names}
    assert {name for name in names if after[name] != before[name]} == {"gateway-1", "gateway-3"}
    assert all((up.data / "log" / f"{name}.log").exists() for name in names)
    members = up.members()
    assert up.stop() == 0
    assert not any(processes.alive(process) for process in members)


def test_the_port_stays_the_service_s_own_while_no_gateway_listens(start: Callable[..., Up]) -> None:
    up = start()
    up.wait_for(WELCOME)
    address = up.text().partition("demo page   http://")[2].partition("/")[0]
    os.kill(up.pid("gateway"), signal.SIGSTOP)
    with pytest.raises(AddressInUse):
        bound_socket(address)
    os.kill(up.pid("gateway"), signal.SIGKILL)
    with pytest.raises(AddressInUse):
        bound_socket(address)


def test_a_pipeline_with_work_and_without_progress_is_started_again(start: Callable[..., Up]) -> None:
    up = start("--set", "pipeline_stall_s=1")
    up.wait_for(WELCOME)
    write_status(up.data, batch=4, lag=9)
    up.wait_for("pipeline has work for its query matching and did none of it for 1 s")


def test_gives_up_when_a_part_never_starts_and_shows_why(start: Callable[..., Up]) -> None:
    up = start(fault="broken")
    assert up.process.wait(30) == 1
    assert "ERROR this one is broken" in up.text()
    assert "giving up" in up.text()


def test_a_second_one_on_the_same_data_directory_is_refused(start: Callable[..., Up]) -> None:
    first = start()
    first.wait_for(WELCOME)
    second = Up(first.data)
    assert second.process.wait(20) == 1
    assert "in use" in second.text()
    assert str(first.process.pid) in second.text()
    assert "Traceback" not in second.text()
    assert first.process.poll() is None


def test_a_port_in_use_is_named(start: Callable[..., Up]) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        up = start("--listen", f"127.0.0.1:{port}")
        assert up.process.wait(20) == 1
    assert f"Port {port} on 127.0.0.1 is in use" in up.text()
    assert len(up.text().splitlines()) == 1
