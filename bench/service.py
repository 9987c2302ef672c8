"""A real service for one measurement: `roskva up`, or a gateway alone, in a temporary data directory on a free port.

Everything that it starts carries the name of the run, and is ended with it, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from bench import accounting
from roskva.cli.gateways import gateway_count
from roskva.config import Settings
from roskva.keys import administration

ROOT: Final = Path(__file__).resolve().parents[1]
APPLICATION: Final = "demo"
START_S: Final = 120.0
_STOP_S: Final = 15.0
_RESTARTED: Final = "it is started again"  # what `up` says when a part died or hung
# After a change of members, that is also after a start, a gateway trusts no row in its memory for `settling_s`. A measurement
# is of what comes after: the default of 120 s would only be waited for.
BASE_SETTINGS: Final = {"settling_s": "15"}

_OF_GATEWAY: Final = re.compile(r'gateway="[^"]*",?')

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BenchFailed(Exception):
    """The service did not do what a measurement needs; its log says why."""


@dataclass(frozen=True, slots=True)
class Service:
    run: str
    url: str
    data: Path
    process: subprocess.Popen[bytes]
    changed: dict[str, str]  # settings that differ from their defaults
    parts: str  # what runs, in words
    output: Path  # what it prints
    losses: bool = False  # whether the measurement ends parts of it on purpose
    beside: tuple[subprocess.Popen[bytes], ...] = ()  # further gateways, where there is no supervisor

    @property
    def settings(self) -> Settings:
        """Enough of them to open feed and tables beside the service."""
        return Settings(data=self.data)

    def cpu(self) -> accounting.Snapshot:
        return accounting.snapshot(self.run)

    def pid(self, role: str) -> int:
        """Of one of them, where there are several."""
        return self.pids(role)[0]

    def pids(self, role: str) -> list[int]:
        found = [pid for pid, of in accounting.processes(self.run).items() if of == role]
        if not found:
            raise BenchFailed(f"There is no process of the {role}.")
        return sorted(found)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get("/v1/status"))
        return answer

    def lag(self, topic: str) -> int:
        """Records of a topic that the pipeline has not committed yet."""
        return sum(self.status()["pipeline"]["lag"].get(topic, {}).values())

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by its name with labels, summed over the gateways."""
        return summed_samples(self.get("/metrics").decode())

    def largest(self, name: str) -> float:
        """A sample of /metrics, of the gateway that has most of it: a maximum does not add up. 0 if there is none."""
        return max((value for found, value in _samples(self.get("/metrics").decode()) if found == name), default=0.0)

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, headers=administration(self.data))
        with _opener.open(request, timeout=10.0) as answer:
            body: bytes = answer.read()
        return body

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]

    def check(self) -> None:
        """A measurement over a restart of one of its parts would be of something else."""
        if self.process.poll() is not None or (_RESTARTED in self.said() and not self.losses):
            raise BenchFailed(f"A part of the service ended during the measurement. It said:\n{self.said()}")


@contextlib.contextmanager
def running(
    changed: Mapping[str, str] | None = None,
    pipeline: bool = True,
    losses: bool = False,
    prepare: Callable[[Path], None] = lambda data: None,
) -> Iterator[Service]:
    """Start the service, wait until it answers, and end every process of it afterwards.

    `losses`: it may lose parts meanwhile. `prepare` is called with the data directory before anything is started.
    """
    run = secrets.token_hex(8)
    folder = Path(tempfile.mkdtemp(prefix="roskva-bench-"))
    settings = {**BASE_SETTINGS, **(changed or {})}
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "roskva", "up" if pipeline else "gateway", "--data", str(folder / "data"), "--listen", listen]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    gateways = int(settings.get("gateways", "0"))
    gateways = gateway_count(Settings(gateways=gateways)) if pipeline else max(1, gateways)
    try:
        prepare(folder / "data")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    say(f"starting {'the service' if pipeline else 'a gateway'} on {listen}")
    try:
        with (folder / "output").open("wb") as output:
            commands = [command]
            if not pipeline and gateways > 1:  # without a supervisor
                commands = [[*command, "--share-port", "--name", f"gateway-{number + 1}"] for number in range(gateways)]
            process, *beside = [_start(one, run, output) for one in commands]
            service = Service(run, f"http://{listen}", folder / "data", process, settings, "", folder / "output", losses, tuple(beside))
            try:
                found = _wait_until_ready(service, pipeline, gateways)
                several = f"{found} gateways" if found > 1 else "gateway"
                service = replace(service, parts=f"{several} and pipeline (roskva up)" if pipeline else f"{several} only")
                yield service
                service.check()
            finally:
                _end(service)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summed_samples(text: str) -> dict[str, float]:
    samples: dict[str, float] = {}
    for name, value in _samples(text):
        samples[name] = samples.get(name, 0.0) + value
    return samples


def _samples(text: str) -> Iterator[tuple[str, float]]:
    """Each gateway's, by a name without that of the gateway."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            labelled, _, value = line.rpartition(" ")
            yield _OF_GATEWAY.sub("", labelled).replace("{}", ""), float(value)


def _start(command: list[str], run: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROSKVA_") or name == "ROSKVA_TEST_FAULTS"}
    paths = [str(ROOT / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), accounting.RUN_VARIABLE: run}
    # Without a settings file of the developer's: measured is what anybody gets.
    return subprocess.Popen(
        [*command],
        env=environment,
        cwd=Path(output.name).parent,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait_until_ready(service: Service, pipeline: bool, gateways: int) -> int:
    """How many gateways there are then, by what they say themselves."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < START_S:
        if service.process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError, KeyError):
            status = service.status()
            if (status["pipeline"]["state"] == "running" or not pipeline) and len(status["gateways"]) >= gateways:
                say(f"ready after {time.monotonic() - began_s:.1f} s")
                return len(status["gateways"])
        time.sleep(0.2)
    raise BenchFailed(f"The service was not ready within {START_S:g} s. It said:\n{service.said()}")


def _end(service: Service) -> None:
    """The clean way, then by force, until no process carries the run's name."""
    for process in (service.process, *service.beside):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        service.process.wait(_STOP_S)
    for _ in range(40):
        left = accounting.processes(service.run)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    for process in (service.process, *service.beside):
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """A line of progress."""
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
