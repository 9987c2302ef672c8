"""A real `roskva up` as a test starts it: real processes, sockets, SQLite and Spark, on a free port of loopback."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roskva.keys import administration

ROOT = Path(__file__).parents[2]
START_S = 120.0
STOP_S = 15.0


class Service:
    """`roskva up` in a process group of its own, over a data directory that outlives it."""

    def __init__(self, data: Path, *options: str, by_make: bool = False) -> None:
        self.data = data
        self.command: list[str] = []
        self._by_make = by_make  # as the README says, by `make up`
        self.options = options
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._listen = "127.0.0.1:0"

    @property
    def log(self) -> Path:
        """What `roskva up` printed."""
        return self.data.parent / f"{self.data.name}.up.log"

    def start(self) -> Service:
        arguments = ["--data", str(self.data), "--listen", self._listen, *self.options]
        self.command = [sys.executable, "-m", "roskva", "up", *arguments]
        environment, folder = dict(os.environ), None
        if self._by_make:
            self.command, folder = ["make", "--no-print-directory", "up", f"ARGS={shlex.join(arguments)}"], ROOT
            for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"):  # of `make test`
                environment.pop(name, None)
        log = self.log
        with log.open("a") as output:
            self._process = subprocess.Popen(
                self.command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        deadline_s = time.monotonic() + START_S
        while not self._ready(log):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise AssertionError(f"roskva up did not become ready:\n{log.read_text()}")
            time.sleep(0.1)
        return self

    def _ready(self, log: Path) -> bool:
        for line in log.read_text().splitlines():
            if "demo page" in line:
                self.url = line.split()[-1].rstrip("/")
                self._listen = self.url.removeprefix("http://")
                return self.readyz()
        return False

    def readyz(self) -> bool:
        return self._answers("/readyz")

    def serving(self) -> bool:
        """Its gateway answers; the pipeline may be on its way."""
        return self._answers("/healthz")

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def read(self, path: str) -> bytes:
        """As an operator."""
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=administration(self.data)), timeout=5) as answer:
            return bytes(answer.read())

    @property
    def pid(self) -> int:
        assert self._process is not None
        if not self._by_make:
            return self._process.pid
        return next(pid for pid in descendants_of(self._process.pid) if "up" in command_of(pid) and "make" not in command_of(pid))

    def parts(self, part: str) -> list[int]:
        """The processes of `gateway` or `pipeline`: children of `up` that were started under that name."""
        return [pid for pid in children_of(self.pid) if "roskva" in " ".join(words := command_of(pid)) and part in words]

    def child(self, part: str) -> int | None:
        """One of them, by chance: there may be several gateways."""
        running = self.parts(part)
        return random.choice(running) if running else None

    def kill(self, part: str) -> None:
        """kill -9, once the part runs."""
        deadline_s = time.monotonic() + 30
        while (pid := self.child(part)) is None:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{part} does not run")
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)

    def kill_all(self, part: str) -> None:
        """The same, of all processes of the part."""
        self.kill(part)
        for pid in self.parts(part):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> float:
        """Ctrl-C; answers how long it took. Whatever is left of the process group after that is ended, and is a failure."""
        process = self._process
        if process is None or process.poll() is not None:
            return 0.0
        began_s = time.monotonic()
        family = [process.pid, *descendants_of(process.pid)]
        if self._by_make:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        took_s = time.monotonic() - began_s
        left = [pid for pid in family if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"roskva up left processes behind: {left}"
        return took_s

    def run(self, *arguments: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """A command of the CLI against this service."""
        return subprocess.run(
            [sys.executable, "-m", "roskva", *arguments],
            env={**os.environ, "ROSKVA_URL": self.url, "ROSKVA_DATA": str(self.data)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def children_of(pid: int) -> Sequence[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants_of(pid: int) -> Sequence[int]:
    found = list(children_of(pid))
    for child in found:
        found.extend(children_of(child))
    return found


def command_of(pid: int) -> Sequence[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
