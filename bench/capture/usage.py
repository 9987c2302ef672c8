"""What processes have used: CPU seconds and bytes read, each with all that it has started, from /proc.

A database has a process for each connection, and those end: what an ended child has used is in its parent's count, so nothing is missed as
long as the parent lives.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench import accounting
from bench.accounting import GENERATOR, OTHERS

PUBLISHER: Final = "publisher"
SUBSCRIBER: Final = "subscriber"
DATABASE: Final = "database"
CAPTURE: Final = "roskva capture"

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_NO_RUN: Final = "-"


def _seen() -> dict[int, tuple[int, float]]:
    """Every process: its parent, and the CPU seconds of itself and of its children that have ended."""
    found: dict[int, tuple[int, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                text = Path("/proc", name, "stat").read_text(errors="replace")
                parts = text[text.rindex(")") + 2 :].split()  # the command before it may hold blanks and brackets
                found[int(name)] = (int(parts[1]), sum(map(int, parts[11:15])) / _TICKS_PER_S)
    return found


def with_children(pids: Iterable[int]) -> set[int]:
    """These processes, and all that they have started."""
    return _descended(pids, _seen())


def _descended(pids: Iterable[int], seen: Mapping[int, tuple[int, float]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in seen.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in pids if pid in seen]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    seen = _seen()
    return sum(seen[pid][1] for pid in _descended(pids, seen))


def bytes_read(pids: Iterable[int]) -> int:
    """That they have asked the kernel for, from files and sockets, in memory or not. What ended is not in it."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                if line.startswith("rchar:"):
                    total += int(line.split()[1])
    return total


class Meter:
    """CPU seconds by role, from when it is made on. A role is one or more processes with all that they start."""

    def __init__(self, roles: Mapping[str, Iterable[int]]) -> None:
        self._roles = {role: tuple(pids) for role, pids in roles.items()}
        self._machine = accounting.snapshot(_NO_RUN)
        self._before = self._now()
        self.seconds = 0.0

    def _now(self) -> dict[str, float]:
        own = os.times()
        # With what this process has started and seen the end of: a load generator may be a program.
        generator_s = own.user + own.system + own.children_user + own.children_system
        return {GENERATOR: generator_s} | {role: cpu_s(pids) for role, pids in self._roles.items()}

    def used(self) -> dict[str, float]:
        """Since it was made; `seconds` is how long that is."""
        machine = accounting.snapshot(_NO_RUN)
        self.seconds = machine.at_s - self._machine.at_s
        used = {role: seconds - self._before[role] for role, seconds in self._now().items()}
        others = machine.busy_s - self._machine.busy_s - sum(used.values())
        return {role: round(seconds, 2) for role, seconds in used.items()} | {OTHERS: round(max(0.0, others), 2)}


def sleep_until(at_s: float) -> None:
    """By time.time()."""
    left_s = at_s - time.time()
    if left_s > 0:
        time.sleep(left_s)
