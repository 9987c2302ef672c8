"""The real service under the real `roskva up`: what the README promises, and that not even Spark is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from roskva.cli import processes

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


class Service:
    """A running `roskva up`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.output = folder / "up.out"
        with self.output.open("wb") as out:
            self.process = self.start("up", "--data", str(self.data), "--listen", "127.0.0.1:0", stdout=out)
        until(lambda: "Ctrl-C stops it." in self.text() or self.process.poll() is not None, 150, self.text)
        assert self.process.poll() is None, self.text()
        found = re.search(r"demo page +(\S+)/", self.text())
        assert found is not None
        self.url = found[1]
        self.run = (self.data / "up.lock").read_text().split()[1]

    def text(self) -> str:
        return self.output.read_text()

    def start(self, *arguments: str, stdout: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "roskva", *arguments]
        return subprocess.Popen(command, env=ENVIRONMENT, cwd=self.folder, stdout=stdout, stderr=subprocess.STDOUT)

    def roskva(self, *arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "roskva", *arguments, "--url", self.url]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


def until(true: Callable[[], bool], timeout_s: float, shown: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {shown()}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    members = processes.of_run(service.run)
    assert len(members) >= 3  # gateway, driver, JVM
    began = time.monotonic()
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(20) == 0, service.text()
    assert time.monotonic() - began < 10
    assert not any(processes.alive(process) for process in members)


def test_watch_shows_what_publish_published(service: Service) -> None:
    watch = service.start("watch", "demo/readme", "--json", "--count", "2", "--timeout", "90", "--url", service.url)
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    assert first == {"object": "demo/readme", "version": None, "epoch": 0}  # nothing was published yet: unknown
    service.roskva("publish", "demo/readme", "7")
    assert json.loads(watch.stdout.readline()) == {"object": "demo/readme", "version": 7, "epoch": 0}
    watch.stdout.close()
    assert watch.wait(20) == 0


def test_the_python_of_the_readme_works(service: Service) -> None:
    text = (ROOT / "README.md").read_text()
    program = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    program = program.replace("http://127.0.0.1:8470", service.url)
    running = subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, cwd=service.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"hello 7\n"
    finally:
        running.kill()
        running.communicate()


def test_status_knows_the_gateway_and_the_pipeline(service: Service) -> None:
    text = service.roskva("status")
    assert "gateways   1" in text
    assert "running" in text


def test_what_the_service_refuses_is_one_clear_line(service: Service) -> None:
    assert "There is no application 'nobody' here." in service.roskva("publish", "nobody/x", "1", status=1)


def test_the_doctor_knows_who_holds_the_port(service: Service) -> None:
    listen = service.url.removeprefix("http://")
    done = subprocess.run(
        [sys.executable, "-m", "roskva", "doctor", "--json", "--data", str(service.data), "--listen", listen],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    states = {check["name"]: check for check in json.loads(done.stdout)}
    assert states["port"]["state"] == "ok"
    assert "Roskva" in states["port"]["what"]
    assert states["manifest"]["state"] == "ok"


def test_not_even_spark_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    service = Service(tmp_path)  # a long path, by the way: names of Unix sockets may have 107 bytes, and Spark has such
    members = processes.of_run(service.run)
    assert len(members) >= 3
    service.process.kill()
    service.process.wait()
    until(lambda: not any(processes.alive(process) for process in members | processes.of_run(service.run)), 15, lambda: members)
