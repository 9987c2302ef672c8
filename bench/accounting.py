"""Who used how much of this machine: CPU seconds and memory of the processes of one run, from /proc.

Every process of a run carries the run's name in its environment, as the children of its children do. What the rest of the
machine did in the same time is counted too: a run beside other work says so by itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RUN_VARIABLE: Final = "ROSKVA_BENCH_RUN"
GATEWAY: Final = "gateway"
SUPERVISOR: Final = "supervisor"
DRIVER: Final = "pipeline driver"
JVM: Final = "Spark JVM"
PLANNER: Final = "Python planner"  # latestOffset and partitions of the source, one process
WORKERS: Final = "Python workers"  # source readers, Matcher tasks, and Spark's daemons that fork them
GENERATOR: Final = "load generator"
ATTACKER: Final = "attacker"  # bench/hostile.py
OTHERS: Final = "others on this machine"
SERVICE: Final = (GATEWAY, SUPERVISOR, DRIVER, JVM, PLANNER, WORKERS)

SPARK: Final = (DRIVER, JVM, PLANNER, WORKERS)

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU seconds so far, by process."""

    at_s: float
    by_process: dict[tuple[int, str], float]
    busy_s: float  # of all cores of the machine, whoever used them
    gateways: dict[int, str] = field(default_factory=dict)  # their names, where there are several

    def until(self, later: Snapshot) -> dict[str, float]:
        """CPU seconds between two snapshots, by role. A process that ended in between is not counted.

        Of several gateways, what all used together, and by its name what each of them did.
        """
        used: dict[str, float] = {}
        each: dict[str, float] = {}
        for process, seconds in later.by_process.items():
            pid, role = process
            spent_s = seconds - self.by_process.get(process, 0.0)
            used[role] = used.get(role, 0.0) + spent_s
            if pid in later.gateways:
                each[later.gateways[pid]] = spent_s
        others = later.busy_s - self.busy_s - sum(used.values())
        named = {name: round(seconds, 2) for name, seconds in sorted(each.items())}
        return {role: round(seconds, 2) for role, seconds in used.items()} | named | {OTHERS: round(max(0.0, others), 2)}


def per_10_000(cpu_seconds: Mapping[str, float], delivered: int) -> dict[str, float]:
    """CPU seconds of 10,000 deliveries, of the gateway and of Spark's processes, and of the whole service."""

    def cost(*roles: str) -> float:
        return round(sum(cpu_seconds.get(role, 0.0) for role in roles) * 10_000 / max(1, delivered), 3)

    return {"gateway": cost(GATEWAY), "Spark": cost(*SPARK), "service": cost(*SERVICE), "load generator": cost(GENERATOR)}


def snapshot(run: str) -> Snapshot:
    found = processes(run)
    by_process = {(pid, role): _cpu_s(pid) for pid, role in found.items()}
    by_process[os.getpid(), GENERATOR] = time.process_time()
    return Snapshot(time.monotonic(), by_process, _machine_busy_s(), _names_of([pid for pid, role in found.items() if role == GATEWAY]))


def _names_of(gateways: list[int]) -> dict[int, str]:
    """One alone needs none."""
    if len(gateways) < 2:
        return {}
    found: dict[int, str] = {}
    for pid in gateways:
        with contextlib.suppress(OSError):
            found[pid] = name_in(Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")) or f"gateway {pid}"
    return found


def name_in(command: list[str]) -> str:
    """Of a gateway, as it was told; empty: it was not."""
    return command[command.index("--name") + 1] if "--name" in command[:-1] else ""


def processes(run: str) -> dict[int, str]:
    """The processes that carry the run's name, with what each is for."""
    wanted = f"{RUN_VARIABLE}={run}".encode()
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                command = Path("/proc", name, "cmdline").read_bytes().decode(errors="replace").split("\0")
                found[int(name)] = _role(command)
    return found


def _role(command: list[str]) -> str:
    text = " ".join(command)
    if "python_streaming_source_runner" in text:
        return PLANNER
    if "pyspark.daemon" in text or "pyspark.worker" in text or "pyspark.sql.worker" in text:
        return WORKERS
    if os.path.basename(command[0]) == "java":
        return JVM
    if "-m bench.hostile" in text:
        return ATTACKER
    if "-m bench.bursting" in text or "-m bench.crowd" in text:
        return GENERATOR
    if "-m roskva gateway" in text:
        return GATEWAY
    if "-m roskva pipeline" in text:
        return DRIVER
    return SUPERVISOR


def memory_kib(pid: int) -> int:
    """Resident memory of a process. What the kernel holds for its sockets is not in it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def memory_by_role_mib(run: str) -> dict[str, float]:
    """Resident memory by role; pages that forked workers share are counted in each of them."""
    used: dict[str, float] = {}
    for pid, role in processes(run).items():
        with contextlib.suppress(OSError):
            used[role] = used.get(role, 0.0) + memory_kib(pid) / 1024
    return {role: round(mib, 1) for role, mib in used.items()}


def _cpu_s(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0.0
    parts = text[text.rindex(")") + 2 :].split()  # the command before it may hold blanks and brackets
    return (int(parts[11]) + int(parts[12])) / _TICKS_PER_S


def _machine_busy_s() -> float:
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S
