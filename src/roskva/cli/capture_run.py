"""`roskva capture`: the publisher and, if [roskva] is in the settings, Roskva's own subscriber, until Ctrl-C; restarts what dies.

One per data directory (a lock file); what a predecessor that was killed left running is ended first. `publisher` and `notifier` are the
parts alone, for a supervisor of one's own. See supervise.py for the pauses before a start, processes.py for how a process is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from roskva.capture import running
from roskva.capture.settings import CaptureSettings, load
from roskva.cli import processes
from roskva.cli.capture_control import LOCK, NotRunning, ask, config_of
from roskva.cli.settings import operator_key
from roskva.cli.supervise import Child
from roskva.cli.up import PROGRAM, Display
from roskva.durable import private_directory
from roskva.errors import AddressInUse, InvalidSetting, RoskvaError

log = logging.getLogger(__name__)

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
STOP_GRACE_S: Final = 12.0  # the publisher waits 5 s for its flows to be given back, and 5 s for its readers
SILENCE_S_MAX: Final = 15.0  # a publisher that answered before, and does not for so long, is ended
MISUSED: Final = 2  # the exit status of a part that no restart helps
_TICK_S: Final = 0.1
_LOOK_S: Final = 0.5
_FIRST_STARTS_MAX: Final = 4
_ASK_S: Final = 1.0
_LOCK_TRIES: Final = 5
# A row is a handful of new objects, and goes by its reference counts: with Python's own (700, 10, 10) the collector walks through
# thousands of them for each batch, and finds nothing.
_COLLECTED_AFTER: Final = (50_000, 20, 100)


def capture(arguments: argparse.Namespace, program: Sequence[str] = PROGRAM) -> int:
    """Run until a signal. 0: stopped cleanly; 1: could not start."""
    settings = load(config_of(arguments))
    running.check_places(settings)
    running.check_datamarkers(settings, arguments.datamarkers)
    if not settings.applications:
        raise InvalidSetting("Nobody subscribes: the settings of capture need [roskva] with a mapping, or an [applications.NAME].")
    with _data_directory(settings.publisher.data) as run:
        return Supervisor(settings, run, Display(sys.stdout), arguments, program).run()


def publisher(arguments: argparse.Namespace) -> int:
    """The part that reads the log. Ends with MISUSED if no restart would help."""

    async def work(settings: CaptureSettings, stop: asyncio.Event) -> None:
        def ready(address: str) -> None:
            _collect_rarely()
            log.info("The publisher listens on %s.", address)

        await running.publish(settings, stop, arguments.metrics or "", arguments.datamarkers, ready)

    return _part(arguments, work)


def notifier(arguments: argparse.Namespace) -> int:
    """The part that publishes versions."""

    async def work(settings: CaptureSettings, stop: asyncio.Event) -> None:
        if settings.roskva is None:
            raise InvalidSetting("There is no [roskva] in the settings of capture: it says where versions are published.")
        key = operator_key(settings.roskva.url, argparse.Namespace())

        def ready(url: str) -> None:
            _collect_rarely()
            log.info("Versions are published at %s.", url)

        await running.notify(settings, stop, key, ready)

    return _part(arguments, work)


def _collect_rarely() -> None:
    """Once all is loaded: what is there stays, and is never walked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def _part(arguments: argparse.Namespace, work: Callable[[CaptureSettings, asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    settings = load(config_of(arguments))
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    processes.end_with_parent(os.environ)

    async def until_told() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(settings, stop)

    try:
        asyncio.run(until_told())
    except RoskvaError as error:
        log.critical("%s", error)
        return 1 if error.transient or isinstance(error, AddressInUse) else MISUSED
    return 0


@contextlib.contextmanager
def _data_directory(path: Path) -> Iterator[str]:
    """Make the directory and hold it for us alone; yields the name that everything we start will carry."""
    try:
        private_directory(path / "log")
        lock = (path / LOCK).open("a+")
    except OSError as error:
        raise InvalidSetting(f"publisher.data is {str(path)!r}, but that cannot be written: {error.strerror}.") from None
    with lock:
        if not _locked(lock):
            raise AddressInUse(f"The data directory {path} is in use{_by(lock)}: `roskva capture` runs on it already.")
        lock.seek(0)
        before = lock.read().split()
        if len(before) == 2:
            processes.end_run(before[1], STOP_GRACE_S)
        run = uuid.uuid4().hex
        lock.truncate(0)
        lock.write(f"{os.getpid()} {run}\n")
        lock.flush()
        try:
            yield run
        finally:
            processes.end_run(run, 0.0)
            lock.truncate(0)


def _locked(lock: IO[str]) -> bool:
    """Tries a few times: a command that looks whether somebody runs here holds it for a moment."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_TICK_S)
    return False


def _by(lock: IO[str]) -> str:
    lock.seek(0)
    holder = lock.read().split()
    return f" by process {holder[0]}" if holder else ""


class Pulse(threading.Thread):
    """Asks the publisher every second whether it lives, beside the supervisor's loop, which must never wait for an answer."""

    def __init__(self, control: Path) -> None:
        super().__init__(name="pulse", daemon=True)
        self.answered = 0.0  # when it last did, by time.monotonic
        self._control = control
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_ASK_S if self.answered else _TICK_S):
            try:
                ask(self._control, "flows", SILENCE_S_MAX, application="-")
            except NotRunning:
                continue
            except RoskvaError:
                pass  # it answers, whatever it says
            self.answered = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()


class Supervisor:
    def __init__(self, settings: CaptureSettings, run: str, show: Display, arguments: argparse.Namespace, program: Sequence[str]) -> None:
        self._settings, self._show, self._arguments, self._program = settings, show, arguments, program
        options = ("metrics", "datamarkers")
        handed_on = [f"--{name}={value}" for name in options if (value := getattr(arguments, name))]
        self._publisher = self._child("publisher", run, *handed_on)
        self._children = [self._publisher]
        if settings.roskva is not None:
            self._children.append(self._child("notifier", run))
        self._pulse = Pulse(settings.publisher.data / running.CONTROL)
        self._signals = 0
        self._served = False

    def _child(self, part: str, run: str, *options: str) -> Child:
        source = str(Path(__file__).resolve().parents[2])
        paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
        command = [*self._program, "capture", part, "--config", str(config_of(self._arguments)), *options]
        return Child(part, command, environment, run, self._settings.publisher.data / "log" / f"{part}.log")

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._show.step("data directory", str(self._settings.publisher.data))
        self._pulse.start()
        status, looked = 0, 0.0
        while not self._signals:
            now = time.monotonic()
            for child in self._children:
                status = status or self._keep(child, now)
            if now - looked >= _LOOK_S:
                looked = now
                self._look()
            if status:
                break
            time.sleep(_TICK_S)
        self._stop()
        return status

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _keep(self, child: Child, now: float) -> int:
        """Start what is due, and end what has died or hangs. 1: no restart will help, or none has."""
        if child.due(now):
            trouble = child.start(now)
            if child.process is None:
                self._show.event(f"{child.name} cannot be started: {trouble}. Next try in {child.schedule(now):g} s.")
            return 0
        if child.process is None:
            return 0
        ended = child.ended()
        reason = self._verdict(child, now) if ended is None else f"ended with status {ended}"
        if reason is None:
            return 0
        child.end(2.0)
        never = child is self._publisher and not self._served and child.starts >= _FIRST_STARTS_MAX
        if never or (ended == MISUSED and child.starts == 1):
            self._show.event(f"{child.name} {reason}; it is not started again. The end of its log, {child.log.path}:")
            self._tail(child)
            return 1
        delay_s = child.schedule(time.monotonic())
        self._show.event(f"{child.name} {reason}; it is started again in {delay_s:g} s. The end of its log:")
        self._tail(child)
        return 0

    def _verdict(self, child: Child, now: float) -> str | None:
        """Why a running process must be ended. One that never answered may wait for its database, for as long as it takes."""
        silent_s = now - self._pulse.answered
        if child is self._publisher and self._pulse.answered > child.started and silent_s > SILENCE_S_MAX:
            return f"did not answer for {silent_s:.0f} s"
        return None

    def _tail(self, child: Child) -> None:
        for line in child.log.tail():
            self._show.line(f"    {line}")

    def _look(self) -> None:
        for child in self._children:
            child.log.rotate()
            _, errors = child.errors()
            for line in errors:
                self._show.event(f"{child.name}: {line}")
        if not self._served and self._pulse.answered > self._publisher.started > 0.0:
            self._served = True
            self._show.step("publisher", f"reads, and listens on {self._settings.publisher.listen}")
            self._welcome()

    def _welcome(self) -> None:
        config = f" --config {self._arguments.config}" if self._arguments.config else ""
        self._show.line()
        self._show.line(f"  status      roskva capture status{config}")
        self._show.line(f"  logs        {self._settings.publisher.data / 'log'}")
        if self._settings.roskva is not None:
            self._show.line(f"  versions    of {self._settings.roskva.application} at {self._settings.roskva.url}")
        self._show.line("\n  Ctrl-C stops it.")

    def _stop(self) -> None:
        """The subscriber first, so that it acknowledges what it has published. A second Ctrl-C ends at once."""
        began = time.monotonic()
        self._show.line("\nstopping ...")
        self._pulse.stop()
        for child in reversed(self._children):
            child.end(STOP_GRACE_S, hurry=lambda: self._signals > 1)
        self._show.line(f"stopped in {time.monotonic() - began:.1f} s")
