"""`roskva up`: gateways and pipeline together on this machine, on the embedded engines, until Ctrl-C.

Shows each step of the start with its time, then where to go. One `up` per data directory (a lock file); what a predecessor that
was killed left running is ended first. It holds the public port, on which all its gateways listen (gateway/sharing.py). See gateways.py
for how many those are, supervise.py for when a process is restarted, processes.py for how it is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
import urllib.parse
import uuid
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from roskva.address import address_of, host_and_port
from roskva.cli import processes
from roskva.cli.gateways import MEMBER, evenly_drawn, gateways_of
from roskva.cli.http import DOOR, get_json
from roskva.cli.report import PipelineReport
from roskva.cli.supervise import GATEWAY_SILENCE_S, GATEWAY_START_S, STOP_GRACE_S, Child, Progress, Watch
from roskva.config import Settings
from roskva.durable import private_directory
from roskva.errors import AddressInUse, InvalidSetting, RoskvaError
from roskva.gateway.sharing import RUN, SharedPort

# What runs a part of the service: `gateway` or `pipeline` and its options are added.
PROGRAM: Final = (sys.executable, "-m", "roskva")
SESSION_STARTED: Final = "pipeline: session started"  # what the pipeline prints
_TICK_S: Final = 0.1
_LOOK_S: Final = 0.5  # how often logs are read
_FIRST_STARTS_MAX: Final = 4  # so many failed starts before the first success: give up and say why


def up(settings: Settings, arguments: argparse.Namespace, program: Sequence[str] = PROGRAM) -> int:
    """Run until a signal. 0: stopped cleanly; 1: could not start."""
    from roskva.pipeline.session import find_java_home

    find_java_home()  # says what to do if there is none, before anything is started
    show = Display(sys.stdout)
    with data_directory(settings.data) as run:
        port = claim_port(settings)
        try:
            show.step("data directory", str(settings.data))
            return Supervisor(settings, port, run, show, arguments, program).run()
        finally:
            port.close()


def public_url(listen: str, tls: bool = False) -> str:
    """Where a person on this machine reaches the service that listens there."""
    host, port = host_and_port(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{address_of(host, port)}"


def claim_port(settings: Settings) -> SharedPort:
    """The port, held for as long as `up` runs: port 0 becomes a free one; a port in use is refused with who answers there."""
    host, port = host_and_port(settings.listen)
    try:
        claimed = SharedPort(settings.listen, settings.data)
    except AddressInUse:
        raise AddressInUse(f"Port {port} on {host} is in use{_who_answers(settings.listen)}.") from None
    claimed.hold()
    return claimed


def _who_answers(listen: str) -> str:
    try:
        return ": a Roskva service answers there" if "alive" in get_json(f"{public_url(listen)}/healthz", 2.0) else ""
    except RoskvaError:
        return " by another program"


@contextlib.contextmanager
def data_directory(path: Path) -> Iterator[str]:
    """Make the directory and hold it for us alone; yields the name that everything we start will carry."""
    try:
        private_directory(path / "log")
        lock = (path / "up.lock").open("a+")
    except OSError as error:
        raise InvalidSetting(f"data is {str(path)!r}, but that cannot be written: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().split()
            by = f" by process {holder[0]}" if holder else ""
            raise AddressInUse(f"The data directory {path} is in use{by}: `roskva up` runs on it already.") from None
        _end_predecessor(lock)
        run = uuid.uuid4().hex
        lock.truncate(0)
        lock.write(f"{os.getpid()} {run}\n")
        lock.flush()
        try:
            yield run
        finally:
            processes.end_run(run, 0.0)
            lock.truncate(0)


def _end_predecessor(lock: IO[str]) -> None:
    """A predecessor that was killed left its name: its children, which end by themselves, must be gone before ours start."""
    lock.seek(0)
    entries = lock.read().split()
    if len(entries) == 2:
        processes.end_run(entries[1], STOP_GRACE_S)


def _spelled() -> str:
    """How the person at this terminal starts `roskva`: the script may not be in the path."""
    script = Path(sys.argv[0])
    if shutil.which("roskva") is None and script.name == "roskva":
        return os.path.relpath(script)
    return "roskva"


class Display:
    """What a person sees: steps with their times, then what happens."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._began = time.monotonic()

    def step(self, name: str, what: str) -> None:
        self.line(f"  {name:<16}{what:<44}{time.monotonic() - self._began:6.1f} s")

    def event(self, text: str) -> None:
        self.line(f"{time.strftime('%H:%M:%S')} {text}")

    def line(self, text: str = "") -> None:
        """Whoever redirected it to a disk that is full, or has stopped reading, sees less. The service goes on."""
        with contextlib.suppress(OSError):
            print(text, file=self._out, flush=True)


class Supervisor:
    """The loop of `up`. It never waits for an answer: `Watch` asks beside it."""

    def __init__(
        self,
        settings: Settings,
        port: SharedPort,
        run: str,
        show: Display,
        arguments: argparse.Namespace,
        program: Sequence[str],
    ) -> None:
        self._settings, self._show, self._arguments, self._program = settings, show, arguments, program
        listen = address_of(host_and_port(settings.listen)[0], port.port)
        self._port = port
        self._url = public_url(listen, tls=bool(settings.tls_certificate))
        self._pipeline = self._child("pipeline", run)
        self._watches: dict[Child, Watch] = {}  # by gateway
        self._ids: dict[str, str] = {}  # of the gateways, by name
        for name, options in gateways_of(settings).items():
            told = partial(self._drawn, name)
            gateway = self._child("gateway", run, "--listen", listen, "--share-port", "--name", name, *options, name=name, told=told)
            self._watches[gateway] = Watch(f"{DOOR}://{urllib.parse.quote(str(settings.data.absolute() / RUN / name))}.sock")
        self._progress = Progress(0.0, settings.pipeline_stall_s, 0)
        self._signals = 0
        self._served = self._session = self._complete = False

    def _drawn(self, name: str) -> dict[str, str]:
        """The id of the next start of a gateway: no two starts have the same."""
        others = [drawn for other, drawn in self._ids.items() if other != name]
        self._ids[name] = evenly_drawn(others, self._settings.partitions)
        return {MEMBER: self._ids[name]}

    def _child(self, part: str, run: str, *options: str, name: str = "", told: Callable[[], Mapping[str, str]] = dict) -> Child:
        source = str(Path(__file__).resolve().parents[2])
        paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
        command = [*self._program, part, *self._handed_on(), *options]
        name = name or part
        return Child(name, command, environment, run, self._settings.data / "log" / f"{name}.log", told)

    def _handed_on(self) -> Sequence[str]:
        handed = ["--data", str(self._settings.data)]
        if self._arguments.config is not None:
            handed += ["--config", str(self._arguments.config)]
        for pair in self._arguments.set:
            handed += ["--set", pair]
        if self._settings.insecure:
            handed += ["--set", "insecure=true"]
        return handed

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        for watch in self._watches.values():
            watch.start()
        looked = 0.0
        status = 0
        while not self._signals:
            now = time.monotonic()
            for gateway in self._watches:
                self._keep(gateway, now)
            if self._served:  # the pipeline calls the gateway's Registrars: it has no use before
                self._keep(self._pipeline, now)
            if now - looked >= _LOOK_S:
                looked = now
                self._look(now)
            if self._gave_up():
                status = 1
                break
            time.sleep(_TICK_S)
        self._stop()
        return status

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _keep(self, child: Child, now: float) -> None:
        """Start what is due, and end what has died or must go."""
        if child.due(now):
            trouble = child.start(now)
            if child.process is None:
                self._show.event(f"{child.name} cannot be started: {trouble}. Next try in {child.schedule(now):g} s.")
            elif child is self._pipeline:
                self._progress = Progress(now, self._settings.pipeline_stall_s, child.process.pid)
            return
        if child.process is None:
            return
        status = child.ended()
        reason = self._verdict(child, now) if status is None else f"ended with status {status}"
        if reason is None:
            return
        child.end(2.0)
        delay_s = child.schedule(time.monotonic())
        self._show.event(f"{child.name} {reason}; it is started again in {delay_s:g} s. The end of its log:")
        for line in child.log.tail():
            self._show.line(f"    {line}")

    def _verdict(self, child: Child, now: float) -> str | None:
        """Why a running process must be ended, or None."""
        if child is self._pipeline:
            return self._progress.observe(now, self._report())
        answered = self._watches[child].answered
        if answered > child.started:
            return f"did not answer for {GATEWAY_SILENCE_S:g} s" if now - answered > GATEWAY_SILENCE_S else None
        return f"did not answer within {GATEWAY_START_S:g} s" if now - child.started > GATEWAY_START_S else None

    def _report(self) -> PipelineReport | None:
        """What the gateway that answered last says of the pipeline."""
        watches = [watch for watch in self._watches.values() if watch.pipeline is not None]
        return max(watches, key=lambda watch: watch.answered).pipeline if watches else None

    def _look(self, now: float) -> None:
        """Read the logs, tell of errors, and of the steps of the first start."""
        self._port.renew()
        for child in (*self._watches, self._pipeline):
            child.log.rotate()
            lines, errors = child.errors()
            for line in errors:
                self._show.event(f"{child.name}: {line}")
            if child is self._pipeline and not self._session and SESSION_STARTED in lines:
                self._session = True
                self._show.step("Spark", "session is ready")
        if not self._served and all(watch.answered > gateway.started > 0.0 for gateway, watch in self._watches.items()):
            self._served = True
            count = len(self._watches)
            self._show.step(*(("gateway", f"listens on {self._url}") if count == 1 else ("gateways", f"{count} listen on {self._url}")))
        if not self._complete and self._progress.running:
            self._complete = True
            self._show.step("pipeline", "is running")
            self._welcome()

    def _welcome(self) -> None:
        application = next(iter(self._settings.applications))
        elsewhere = "" if self._url.endswith(":8470") else f" --url {self._url}"
        command = _spelled()
        self._show.line()
        self._show.line(f"  demo page   {self._url}/")
        self._show.line(f"  watch       {command} watch {application}/hello{elsewhere}")
        self._show.line(f"  publish     {command} publish {application}/hello 7{elsewhere}")
        self._show.line(f"  logs        {self._settings.data / 'log'}")
        self._show.line("\n  Ctrl-C stops it.")
        if self._arguments.open:
            webbrowser.open(f"{self._url}/")

    def _gave_up(self) -> bool:
        for child in (*self._watches, self._pipeline):
            succeeded = self._complete if child is self._pipeline else self._served
            if not succeeded and child.process is None and child.starts >= _FIRST_STARTS_MAX:
                self._show.event(f"{child.name} could not be started {child.starts} times; giving up. See {child.log.path}.")
                return True
        return False

    def _stop(self) -> None:
        """The pipeline first: what it still does, it does with the gateways' Registrars. A second Ctrl-C ends at once."""
        began = time.monotonic()
        self._show.line("\nstopping ...")
        for watch in self._watches.values():
            watch.stop()
        self._pipeline.end(STOP_GRACE_S, hurry=lambda: self._signals > 1)
        for gateway in self._watches:
            gateway.ask_to_end()  # all of them together, and then one after the other, until one time for all
        deadline = time.monotonic() + STOP_GRACE_S
        for gateway in self._watches:
            gateway.end(max(0.0, deadline - time.monotonic()), hurry=lambda: self._signals > 1)
        self._show.line(f"stopped in {time.monotonic() - began:.1f} s")
