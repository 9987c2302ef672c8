"""Processes of our own: how to start one that cannot outlive us, and how to end it with everything that it started.

A child of `up` carries a name in its environment (ROSKVA_RUN), which whatever it starts inherits. Process groups alone do not
do: Spark's Python daemons have groups of their own, and when the JVM dies they have another parent. Linux only (/proc, prctl).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from roskva.parent import when_parent_is_gone

RUN: Final = "ROSKVA_RUN"  # names what a process belongs to
PARENT: Final = "ROSKVA_PARENT"  # the process id of the supervisor that must not be outlived
_PR_SET_PDEATHSIG: Final = 1
_ORPHAN_GRACE_S: Final = 5.0  # for a clean stop, after the supervisor is gone


class Process(NamedTuple):
    """A process, named so that a later one with the same number is not taken for it."""

    pid: int
    started: int  # clock ticks after boot


def start(command: Sequence[str], environment: Mapping[str, str], run: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that Ctrl-C at the terminal reaches only us."""
    tied = {**environment, RUN: run, PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=tied, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def end_with_parent(environment: Mapping[str, str]) -> None:
    """Called by a child at its start: once the supervisor is gone, even by kill -9, it stops, by force if that takes long."""
    parent = environment.get(PARENT, "")
    if not parent.isdigit():
        return
    # The signal is sent when the thread that started us ends, which is the supervisor's main thread.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    when_parent_is_gone(_end_as_orphan, int(parent))


def _end_as_orphan() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_GRACE_S)
    for process in of_run(os.environ.get(RUN, "")) | descendants([os.getpid()]):
        if process.pid != os.getpid():
            kill(process)
    os.kill(os.getpid(), signal.SIGKILL)


def of_run(run: str) -> set[Process]:
    """Every process that carries the name, or one below it (`run` is "a": "a" and "a/b")."""
    if not run:
        return set()
    exact, below = f"{RUN}={run}".encode(), f"{RUN}={run}/".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(entry == exact or entry.startswith(below) for entry in entries):
                found.update(_identify(pid))
    return found


def descendants(roots: Iterable[int]) -> set[Process]:
    """The processes below these, by parent, and those of their process groups."""
    parents = {pid: _stat(pid) for pid in _pids()}
    wanted = set(roots)
    found: set[int] = set()
    grew = True
    while grew:
        below = {pid for pid, stat in parents.items() if stat is not None and (stat.parent in wanted or stat.group in wanted)}
        grew = not below <= found
        found |= below
        wanted |= below
    return {Process(pid, stat.started) for pid in found if (stat := parents.get(pid)) is not None}


def alive(process: Process) -> bool:
    """Whether it still runs; one that has ended and waits for its parent does not count."""
    stat = _stat(process.pid)
    return stat is not None and stat.started == process.started and stat.state != "Z"


def kill(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    if alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def end_run(run: str, grace_s: float, roots: Iterable[int] = (), hurry: Callable[[], bool] = lambda: False) -> int:
    """End every process of a run: the clean way, and after `grace_s`, or when `hurry` says so, by force.

    Answers how many had to be forced.

    Only the roots get the clean signal: they know in which order to stop what they started. Looks again until nothing is left,
    since a process may start another while it is looked for.
    """
    roots = list(roots)
    members = of_run(run) | descendants(roots)
    for process in members:
        if process.pid in roots or not roots:
            kill(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and not hurry():
        members |= of_run(run)
        if not any(alive(process) for process in members):
            return 0
        time.sleep(0.05)
    forced = 0
    for _ in range(20):
        remaining = [process for process in members | of_run(run) if alive(process)]
        if not remaining:
            break
        forced = max(forced, len(remaining))
        for process in remaining:
            kill(process)
        time.sleep(0.05)
    return forced


class _Stat(NamedTuple):
    state: str
    parent: int
    group: int
    started: int


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    parts = text[text.rindex(")") + 2 :].split()  # the command before it may hold blanks and brackets
    return _Stat(state=parts[0], parent=int(parts[1]), group=int(parts[2]), started=int(parts[19]))


def _identify(pid: int) -> list[Process]:
    stat = _stat(pid)
    return [] if stat is None else [Process(pid, stat.started)]
