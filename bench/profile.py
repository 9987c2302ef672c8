"""`python -m bench.profile`, or `make profile`: where a standard load spends the service's time. Writes to a folder, by default ./profile.

Flame graphs (SVG) of the gateway and of the pipeline's busiest Python worker, by py-spy; a table of the ten functions of each that held the
interpreter longest; how much of the samples was in SQLite's engines; Spark's own phases; CPU by process and, of the gateway, by thread; if
perf is installed, what the gateway does below Python. py-spy stops what it looks at for a moment: read shares, not times.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import accounting
from bench.clients import Fleet
from bench.load import Publishers
from bench.service import BenchFailed, Service, running, say
from bench.world import Window, World, caught_up, run

SAMPLES_PER_S: Final = 200
_CLIENTS: Final = 1_000
_FAN_OUT: Final = 5
_REGISTRATIONS: Final = 10
_DRAIN_S: Final = 20.0
_TOP: Final = 10
_WORKERS_MAX: Final = 2  # that are looked at: more of them slow down what is measured
_ENGINES: Final = re.compile(r"roskva/(table|feed)/(sqlite|files|manifest)\.py")


class Share(NamedTuple):
    part: float  # of all samples
    function: str


def read(text: str) -> Counter[tuple[str, ...]]:
    """py-spy's raw form: a line for each stack, its frames from the outermost on, and how often it was seen."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        stacks[tuple(stack.split(";"))] += int(count)
    return stacks


def top(stacks: Counter[tuple[str, ...]], count: int = _TOP) -> list[Share]:
    """The functions that were themselves at work most often, whatever line of them."""
    own: Counter[str] = Counter()
    for stack, seen in stacks.items():
        own[re.sub(r":\d+\)$", ")", stack[-1])] += seen
    total = max(1, sum(own.values()))
    return [Share(round(seen / total, 4), function) for function, seen in own.most_common(count)]


def in_engines(stacks: Counter[tuple[str, ...]]) -> float:
    """The share of samples inside of table and feed: transactions, fsyncs, and the checks around them."""
    total = max(1, sum(stacks.values()))
    return round(sum(seen for stack, seen in stacks.items() if any(map(_ENGINES.search, stack))) / total, 4)


def table(title: str, shares: Sequence[Share]) -> list[str]:
    return [f"| share | {title} |", "|---|---|", *(f"| {100 * one.part:.1f} % | `{one.function}` |" for one in shares), ""]


class Spy:
    """py-spy on some processes for some seconds."""

    def __init__(self, pids: dict[int, str], seconds: float, form: str, folder: Path, flags: Sequence[str] = ()) -> None:
        found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
        if found is None:
            raise BenchFailed("py-spy is not installed: pip install py-spy.")
        ending = "svg" if form == "flamegraph" else form
        self.files = {pid: folder / f"{role.replace(' ', '-')}-{pid}.{ending}" for pid, role in pids.items()}
        options = ["--rate", str(SAMPLES_PER_S), "--duration", str(max(1, int(seconds))), "--format", form, *flags]
        self._running = [
            subprocess.Popen(
                [found, "record", *options, "--output", str(file), "--pid", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for pid, file in self.files.items()
        ]

    async def done(self) -> None:
        for one in self._running:
            await asyncio.to_thread(one.wait)


def threads(pid: int) -> dict[str, float]:
    """CPU seconds of each thread so far; the event loop's is called by the number of the process."""
    found: dict[str, float] = {}
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        fields = stat.read_text().rpartition(") ")[2].split()
        found[stat.parent.name] = (int(fields[11]) + int(fields[12])) / 100
    return found


def busiest_workers(service: Service, before: accounting.Snapshot) -> dict[int, str]:
    used = {
        pid: seconds - before.by_process.get((pid, role), 0.0)
        for (pid, role), seconds in service.cpu().by_process.items()
        if role == accounting.WORKERS
    }
    return dict.fromkeys(sorted(used, key=lambda pid: -used[pid])[:_WORKERS_MAX], "worker")


async def profile(service: Service, rate_per_s: float, batch: int, seconds: float, folder: Path) -> str:
    world = World(_CLIENTS, _REGISTRATIONS, _FAN_OUT)
    fleet = Fleet(service.url)
    await fleet.join(world.clients, world.names_of())
    async with Publishers(service.url, world.objects, 128 if batch == 1 else 16) as publishers:

        async def load(length_s: float) -> None:
            await publishers.paced(rate_per_s / _FAN_OUT, length_s, batch)

        before = service.cpu()
        await load(5.0)
        gateway = service.pid(accounting.GATEWAY)
        pids = {gateway: "gateway"} | busiest_workers(service, before)
        say(f"undisturbed, for {seconds:g} s")
        fleet.heard.clear()
        began, window = threads(gateway), await asyncio.to_thread(Window, service)
        await load(seconds)
        await asyncio.to_thread(window.end)
        spent = {name: round(used - began.get(name, 0.0), 2) for name, used in threads(gateway).items()}
        heard = len(fleet.heard)
        say("with py-spy, three times")
        held = Spy(pids, seconds, "raw", folder, ["--gil"])
        await asyncio.gather(load(seconds + 1), held.done())
        engines = Spy({gateway: "gateway-all"} | {pid: "worker-all" for pid in pids if pid != gateway}, seconds, "raw", folder)
        await asyncio.gather(load(seconds + 1), engines.done())
        drawn = Spy(pids, seconds, "flamegraph", folder)
        await asyncio.gather(load(seconds + 1), drawn.done(), asyncio.to_thread(perf, gateway, seconds, folder))
        await caught_up(fleet, publishers, _DRAIN_S)
    fleet.close()
    lines = [f"Load: {rate_per_s:,.0f} notifications/s offered, fan-out {_FAN_OUT}, batches of {batch}; {seconds:g} s.", ""]
    for pid, file in held.files.items():
        if file.exists() and file.stat().st_size:
            role = "gateway" if pid == gateway else f"Python worker {pid}"
            lines += table(f"{role}: functions that held the interpreter's lock", top(read(file.read_text())))
    for pid, file in engines.files.items():
        if file.exists() and file.stat().st_size:
            lines.append(f"In SQLite's engines, of samples at work, {pids[pid]}: {100 * in_engines(read(file.read_text())):.1f} %")
    lines += ["", f"CPU seconds of 10,000 deliveries: {accounting.per_10_000(window.cpu_seconds, heard)}"]
    lines += [f"CPU seconds by process: {window.cpu_seconds}"]
    lines += [
        f"CPU seconds of the gateway's threads: {dict(sorted(spent.items(), key=lambda one: -one[1])[:6])}, {gateway} is the event loop"
    ]
    lines += [f"Spark's phases, medians in ms: {window.durations_ms}; batches: {window.batches}"]
    lines += [f"Registrar: {window.milestones()}", f"A propagation call took {window.mean_ms('roskva_propagate_milliseconds')} ms (mean)"]
    return "\n".join(lines) + "\n"


def perf(pid: int, seconds: float, folder: Path) -> None:
    """What py-spy cannot see: system calls and extensions. Left out where perf is not installed, or not allowed."""
    if shutil.which("perf") is None:
        return
    data = folder / "perf.data"
    record = ["perf", "record", "-q", "-F", "199", "-p", str(pid), "-o", str(data), "--", "sleep", str(int(seconds))]
    if subprocess.run(record, capture_output=True, check=False).returncode == 0:
        report = ["perf", "report", "-i", str(data), "--stdio", "--sort", "symbol", "--percent-limit", "0.5"]
        (folder / "perf.txt").write_bytes(subprocess.run(report, capture_output=True, check=False).stdout)
    data.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Profiles a real service under a standard load.")
    parser.add_argument("--rate", type=float, default=10_000.0, metavar="N", help="notifications per second (default: 10000)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="updates of one publish request (default: 1)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="length of each of the four looks (default: 10)")
    parser.add_argument("--out", type=Path, default=Path("profile"), metavar="DIR", help="where it goes (default: ./profile)")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        with running() as service:
            found = run(profile(service, arguments.rate, arguments.batch, arguments.seconds, arguments.out))
    except (BenchFailed, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    (arguments.out / "profile.md").write_text(found)
    print(found, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
