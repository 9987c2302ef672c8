"""The processes of one measurement: publishers of logs in files, and subscribers, which may be killed, stopped and started again.

A publisher is `roskva capture publisher` with a settings file, as anybody would run it; a subscriber is subscribing.py. They talk over TCP
on this machine. Everything is in a temporary folder, carries the name of the run, and is ended with it, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench import accounting
from bench.capture import subscribing
from bench.capture.publishers import environment, written
from bench.capture.records import Records
from bench.service import BenchFailed, free_port
from roskva.capture.running.places import CONTROL
from roskva.cli.capture_control import NotRunning, ask

PUBLISHER: Final = "publishers"
SUBSCRIBER: Final = "subscribers"
ACKNOWLEDGED: Final = "subscribers acknowledge when they are asked for a datamarker, at once"
START_S_MAX: Final = 30.0
WAIT_S_MAX: Final = 120.0
_POLL_S: Final = 0.05


class Bytes(NamedTuple):
    """What a process has read from files and written to them, by the kernel's count (rchar and wchar); sockets are not in it."""

    read: int
    written: int


class Part:
    """One process, and its successors under the same name."""

    def __init__(self, scene: Scene, name: str, role: str, command: Sequence[str]) -> None:
        self.name = name
        self.role = role
        self._scene = scene
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        with (self._scene.folder / f"{self.name}.output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                env=self._scene.environment,
                cwd=self._scene.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """-9. Nothing, if it does not run."""
        process, self._process = self._process, None  # first: whoever looks meanwhile must not take it for an accident
        if process is not None and process.returncode is None:
            process.kill()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._scene.ended_s[self.role] = self._scene.ended_s.get(self.role, 0.0) + used.ru_utime + used.ru_stime

    def stop(self) -> None:
        """It stands still, with all that it holds, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def bytes(self) -> Bytes:
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return Bytes(int(fields["rchar"]), int(fields["wchar"]))

    def check(self) -> None:
        process = self._process
        if process is not None and process.poll() is not None:
            said = (self._scene.folder / f"{self.name}.output").read_text(errors="replace")[-4000:]
            raise BenchFailed(f"{self.name} ended with status {process.returncode}. It said:\n{said}")

    def _signal(self, number: signal.Signals) -> None:
        self.check()
        assert self._process is not None
        self._process.send_signal(number)


class Publisher(Part):
    def __init__(self, scene: Scene, name: str, settings: Mapping[str, Mapping[str, Any]], listen: str, datamarkers: Path | None) -> None:
        self.data = scene.folder / f"{name}.data"
        self.address = listen
        given = dict(settings)
        given["publisher"] = {"name": name, "listen": listen, "data": str(self.data), "key": subscribing.KEY, **settings["publisher"]}
        self._has_peers = bool(given["publisher"].get("peers"))
        config = scene.folder / f"{name}.toml"
        config.write_text(written(given))
        shared = [] if datamarkers is None else ["--datamarkers", str(datamarkers)]
        super().__init__(scene, name, PUBLISHER, ["roskva", "capture", "publisher", "--config", str(config), *shared])

    def start(self) -> None:
        """Returns when it answers; one that is alone with its log, when its flows have begun: what is written from now on is theirs."""
        super().start()
        self._scene.until(lambda: self._has_begun(self.status()), f"{self.name} answers", START_S_MAX)

    def _has_begun(self, status: Mapping[str, Any] | None) -> bool:
        return status is not None and (self._has_peers or bool(status["flows"]))

    def status(self) -> dict[str, Any] | None:
        """None: it does not answer."""
        self.check()
        try:
            answer: dict[str, Any] = self.ask("status")
        except NotRunning:
            return None
        return answer

    def ask(self, command: str, **given: Any) -> Any:
        return ask(self.data / CONTROL, command, **given)

    def told(self) -> dict[str, Any]:
        """The same, of one that must answer."""
        answer = self.status()
        if answer is None:
            raise BenchFailed(f"{self.name} does not answer.")
        if answer["problems"]:
            raise BenchFailed(f"{self.name} has a problem: {answer['problems'][0]}")
        return answer


class Subscriber(Part):
    def __init__(self, scene: Scene, member: str, applications: Sequence[str], publishers: Sequence[str], shards: int) -> None:
        self.member = member
        self.applications = tuple(applications)
        self.records = scene.folder / f"{member}.records"
        given = subscribing.Given(member, self.applications, tuple(publishers), shards, str(self.records))
        super().__init__(scene, member, SUBSCRIBER, [subscribing.__name__, msgspec.json.encode(given).decode()])


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = secrets.token_hex(8)
        self.parts: list[Part] = []
        self.ended_s: dict[str, float] = {}  # CPU seconds of processes that were killed, by role
        self.environment = {**environment(), accounting.RUN_VARIABLE: self.run}

    def publisher(
        self,
        log: Path,
        applications: Mapping[str, Mapping[str, Any]],
        *,
        name: str = "publisher",
        shards: int = 1,
        datamarkers: Path | None = None,
        **settings: Any,
    ) -> Publisher:
        """Not started yet. `settings` are those of [publisher]. Rows are sharded by their numbers."""
        tables: dict[str, Mapping[str, Any]] = {
            "dataset": {"name": "bench", "shards": shards, "shard": f"id % {shards}" if shards > 1 else "0"},
            "datastore": {"kind": "files", "path": str(log)},
            "publisher": settings,
            "applications": applications,
        }
        made = Publisher(self, name, tables, f"127.0.0.1:{free_port()}", datamarkers)
        self.parts.append(made)
        return made

    def subscriber(self, member: str, applications: Sequence[str], publishers: Sequence[str], shards: int = 1) -> Subscriber:
        """Not started yet."""
        made = Subscriber(self, member, applications, publishers, shards)
        self.parts.append(made)
        return made

    def recorded(self, shards: int = 1) -> Records:
        """Of all subscribers that there are now."""
        records = Records(shards)
        for part in self.parts:
            if isinstance(part, Subscriber):
                records.add(part.records)
        return records

    def cpu(self) -> accounting.Snapshot:
        """By role, with those that were killed."""
        found = accounting.snapshot(self.run)
        roles = {part.pid: part.role for part in self.parts}
        used: dict[tuple[int, str], float] = {(0, role): seconds for role, seconds in self.ended_s.items()}
        for (pid, role), seconds in found.by_process.items():
            of_role = (0, roles.get(pid, role))
            used[of_role] = used.get(of_role, 0.0) + seconds
        return replace(found, by_process=used)

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S_MAX, poll_s: float = _POLL_S) -> float:
        """How long it took."""
        began_s = time.monotonic()
        while not condition():
            self.check()
            if time.monotonic() - began_s > wait_s:
                raise BenchFailed(f"It did not become so within {wait_s:g} s: {what}.")
            time.sleep(poll_s)
        return time.monotonic() - began_s

    def end(self) -> None:
        """By force: nothing of it is needed any more. Only what carries our name."""
        for part in self.parts:
            part.kill()
        for pid in accounting.processes(self.run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="roskva-bench-"))
    made = Scene(folder)
    try:
        try:
            yield made
        finally:
            made.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def typed(settings: Mapping[str, str]) -> dict[str, Any]:
    """`--set NAME=VALUE` of the command line, as values of [publisher]."""
    found: dict[str, Any] = {}
    for name, text in settings.items():
        try:
            found[name] = int(text)
        except ValueError:
            try:
                found[name] = float(text)
            except ValueError:
                found[name] = text
    return found
