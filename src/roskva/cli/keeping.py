"""One loop for `roskva up` and `roskva capture`: starts their processes, starts again what dies or must go, until a signal.

One of each per data directory (a lock file); what a predecessor that was killed left running is ended first. What is special to either is
in a class of its own (up.py, capture_run.py), which says which processes there are and when one must go. See supervise.py for a process
with its log and the pauses before a start, processes.py for how it is ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from roskva.cli import processes
from roskva.cli.supervise import Child
from roskva.durable import private_directory
from roskva.errors import AddressInUse, InvalidSetting

# What runs a part of the service: its name and its options are added.
PROGRAM: Final = (sys.executable, "-m", "roskva")
FIRST_STARTS_MAX: Final = 4  # so many failed starts before the first success: give up and say why
END_S: Final = 2.0  # for what hangs, or has left something behind
_TICK_S: Final = 0.1
_LOOK_S: Final = 0.5  # how often logs are read
_LOCK_TRIES: Final = 5


@contextlib.contextmanager
def data_directory(path: Path, setting: str, lock_name: str, command: str, grace_s: float) -> Iterator[str]:
    """Make the directory and hold it for us alone; yields the name that everything we start will carry.

    `setting` is what names the directory. A predecessor that was killed left its own name: its children, which end by themselves within
    `grace_s`, must be gone before ours start.
    """
    try:
        private_directory(path / "log")
        lock = (path / lock_name).open("a+")
    except OSError as error:
        raise InvalidSetting(f"{setting} is {str(path)!r}, but that cannot be written: {error.strerror}.") from None
    with lock:
        locked = _locked(lock)
        lock.seek(0)
        entries = lock.read().split()
        if not locked:
            by = f" by process {entries[0]}" if entries else ""
            raise AddressInUse(f"The data directory {path} is in use{by}: `{command}` runs on it already.")
        if len(entries) == 2:
            processes.end_run(entries[1], grace_s)
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


def environment() -> dict[str, str]:
    """For a process of ours: it finds this code, and what it prints is in its log at once."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}


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


class Keeper:
    """The loop. It never waits for an answer: whoever asks a process how it is does so beside it."""

    def __init__(self, show: Display) -> None:
        self.show = show
        self._signals = 0

    def run(self) -> int:
        """0: stopped cleanly; 1: something cannot be kept running."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        status, looked = 0, 0.0
        while not self._signals and not status:
            now = time.monotonic()
            for child in self.wanted():
                status = status or int(not self._keep(child, now))
            if now - looked >= _LOOK_S:
                looked = now
                self._read_logs()
                self.look(now)
            time.sleep(_TICK_S)
        began = time.monotonic()
        self.show.line("\nstopping ...")
        self.stop()
        self.show.line(f"stopped in {time.monotonic() - began:.1f} s")
        return status

    # What is special to whoever uses it.

    def wanted(self) -> Sequence[Child]:
        """Those that shall run now."""
        raise NotImplementedError

    def started(self, child: Child, now: float) -> None:
        """It was started this moment."""

    def verdict(self, child: Child, now: float) -> str | None:
        """Why a running process must be ended, or None."""
        raise NotImplementedError

    def hopeless(self, child: Child, status: int | None) -> bool:
        """Whether it is no use to start it again, after it ended with this exit status, was ended or could not be started (None)."""
        raise NotImplementedError

    def said(self, child: Child, lines: Sequence[str]) -> None:
        """These lines are new in its log."""

    def look(self, now: float) -> None:
        """Twice a second."""

    def stop(self) -> None:
        """End all, in a good order. A second signal is to end them at once: `hurry`."""
        raise NotImplementedError

    def hurry(self) -> bool:
        return self._signals > 1

    # How it is done.

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _keep(self, child: Child, now: float) -> bool:
        """Start what is due, and end what has died or must go. False: that is no use any more."""
        if child.due(now):
            trouble = child.start(now)
            if child.process is not None:
                self.started(child, now)
                return True
            delay_s = child.schedule(now)
            self.show.event(f"{child.name} cannot be started: {trouble}. Next try in {delay_s:g} s.")
            return not self.hopeless(child, None)
        if child.process is None:
            return True
        status = child.ended()
        reason = self.verdict(child, now) if status is None else f"ended with status {status}"
        if reason is None:
            return True
        child.end(END_S)
        delay_s = child.schedule(time.monotonic())
        hopeless = self.hopeless(child, status)
        then = f"not started again, giving up. See {child.log.path}" if hopeless else f"started again in {delay_s:g} s"
        self.show.event(f"{child.name} {reason}; it is {then}. The end of its log:")
        for line in child.log.tail():
            self.show.line(f"    {line}")
        return not hopeless

    def _read_logs(self) -> None:
        for child in self.wanted():
            child.log.rotate()
            lines, errors = child.errors()
            for line in errors:
                self.show.event(f"{child.name}: {line}")
            self.said(child, lines)
