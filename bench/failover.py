"""failover: a gateway that holds 10,000 clients is killed; later all tables and the feed are dropped. When are all informed again?

Informed is a client that is in sync by its own judgement (equal summaries, nothing owed, nothing in flight) and that was told, since the
loss, of everything that it had to hear of: after the kill, what it had not acknowledged before; after the drop, all its objects. That it
is true is then tried: a new version of one object of every client is published, and must arrive.

The clients are the real cores of the client library (returning.py), in this process. What they cost is listed apart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.accounting import DRIVER, GATEWAY, GENERATOR, JVM, OTHERS, PLANNER, SUPERVISOR, WORKERS, Snapshot
from bench.load import until
from bench.report import Aim, Result, percentiles
from bench.returning import Event, ReturningFleet
from bench.service import APPLICATION, ROOT, BenchFailed, Service, running, say
from bench.world import Options, World, run
from roskva.model import name_from_text
from roskva.publisher import Publisher

CLIENTS: Final = 10_000
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
HOLDING_BACK: Final = 10  # of so many clients one does not acknowledge
STEADY_S: Final = 30.0
SETTLING_S: Final = 120  # the default: it is what a gateway does after a loss
KILL_AIM_S: Final = 15.0
DROP_AIM_S: Final = 60.0
_TIMEOUT_S: Final = 300.0
_AFTERWARDS_S: Final = 10.0  # what still goes on when all are informed is a cost, too
_STORED_S: Final = 2.0  # for the gateway to store what is not acknowledged
_BETWEEN_S: Final = 10.0  # beyond settling_s: the second loss meets a gateway that trusts its memory again

GROUPS: Final = {
    "gateway": (GATEWAY,),
    "pipeline": (DRIVER, JVM, PLANNER, WORKERS),
    "supervisor": (SUPERVISOR,),
    "load generator": (GENERATOR,),
    "others on this machine": (OTHERS,),
}
APPROXIMATIONS: Final = [
    "clients keep no state files: a real one writes one small file per new session",
    "10,000 clients in one process on one event loop: they wait for each other as they would not on 10,000 machines",
    "CPU of processes that ended in a window (the killed gateway, `roskva drop`) is not in their lines; that of the latter is in 'others'",
]


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds by group, and in how long a time."""

    seconds: float
    cpu_s: dict[str, float]

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> Usage:
        used = before.until(after)
        return cls(after.at_s - before.at_s, {group: sum(used.get(role, 0.0) for role in roles) for group, roles in GROUPS.items()})

    def above(self, steady: Usage) -> dict[str, float]:
        """What it cost beyond what the steady state would have used in the same time."""
        return {group: round(used - steady.per_s(group) * self.seconds, 2) for group, used in self.cpu_s.items()}

    def per_s(self, group: str) -> float:
        return self.cpu_s[group] / self.seconds if self.seconds else 0.0

    def rounded(self) -> dict[str, float]:
        return {group: round(used, 2) for group, used in self.cpu_s.items()}


@dataclass(frozen=True, slots=True)
class Loss:
    """What happened after one loss."""

    what: str
    event: Event
    at_once_s: float  # until all were informed at the same moment: some are told "unknown" a second time
    counts: dict[str, int]
    until_informed: Usage
    afterwards: Usage
    proof_s: float  # until a version that was published afterwards had reached everybody

    def figures(self, steady: Usage) -> dict[str, Any]:
        return {
            "what": self.what,
            "informed_s": percentiles(self.event.informed_s),
            "all_at_the_same_moment_s": round(self.at_once_s, 2),
            "connected_s": percentiles(self.event.connected_s),
            "new_session_s": percentiles(self.event.granted_s),
            "reconnected": len(self.event.connected_s),
            "new_sessions": len(self.event.granted_s),
            "seen_by_the_clients": dict(sorted(self.counts.items())),
            "cpu_seconds_until_all_were_informed": self.until_informed.rounded(),
            "above_steady_state": self.until_informed.above(steady),
            f"above_steady_state_in_the_{_AFTERWARDS_S:g}_s_after": self.afterwards.above(steady),
            "next_version_reached_all_after_s": round(self.proof_s, 2),
            "informed_over_time": over_time(self.event.informed_s),
            "connected_over_time": over_time(self.event.connected_s),
        }


def over_time(times_s: Sequence[float], points: int = 100) -> list[list[float]]:
    """[seconds, how many by then], thinned out: the first, the last, and every so many in between."""
    ordered = sorted(times_s)
    step = max(1, len(ordered) // points)
    shown = sorted({0, len(ordered) - 1, *range(step - 1, len(ordered), step)}) if ordered else []
    return [[round(ordered[index], 3), index + 1] for index in shown]


def one_object_each(names_of: Callable[[int], Sequence[str]], clients: Sequence[int]) -> list[str]:
    """Few objects such that each of these clients has registered at least one of them."""
    chosen: dict[str, None] = {}
    for client in clients:
        names = names_of(client)
        if not any(name in chosen for name in names):
            chosen[names[0]] = None
    return list(chosen)


def measure(options: Options) -> Result:
    with running({"settling_s": str(SETTLING_S), **options.settings}, losses=True) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options) -> Result:
    return run(_Failover(service, options).measure())


class _Failover:
    def __init__(self, service: Service, options: Options) -> None:
        self._service = service
        self._options = options
        self._world = World(options.clients or CLIENTS, REGISTRATIONS, FAN_OUT)
        self._names_of = self._world.names_of()
        self._steady_s = options.seconds or STEADY_S
        self._version = 0
        self._settling_s = float(service.changed["settling_s"])
        self._started_s = time.monotonic()

    async def measure(self) -> Result:
        self._fleet = fleet = ReturningFleet(self._service.url)
        try:
            await fleet.join(self._world.clients, self._names_of, _TIMEOUT_S)
            await self._publish(self._world.objects)
            await self._rest()
            steady = await self._steady()
            await self._hold_back(range(0, self._world.clients, HOLDING_BACK))
            kill = await self._lose("kill -9 of the gateway", self._kill)
            await asyncio.sleep((self._settling_s + _BETWEEN_S) * self._steady_s / STEADY_S)  # shorter in short runs
            drop = await self._lose("roskva drop all", self._drop)
        finally:
            await fleet.close()
        self._service.check()
        return self._result(steady, kill, drop)

    async def _publish(self, objects: Sequence[str]) -> None:
        """A new version of these objects; returns when all who registered them have been told."""
        version = self._version = self._version + 1
        wanted = {name_from_text(name) for name in objects}
        for client in self._fleet.clients:
            client.to_hear.update((name, version) for name in client.names if name in wanted)
        async with Publisher(self._service.url, application=APPLICATION) as publisher:
            errors = [error for error in await publisher.publish_many((name, version) for name in objects) if error is not None]
        if errors:
            raise BenchFailed(f"{len(errors):,} of {len(objects):,} publishes were refused: {errors[0]}")
        if not await until(lambda: not any(client.to_hear for client in self._fleet.clients), _TIMEOUT_S):
            left = sum(bool(client.to_hear) for client in self._fleet.clients)
            raise BenchFailed(f"{left:,} clients did not learn of what was published within {_TIMEOUT_S:g} s.")

    async def _rest(self) -> None:
        """Until the gateway has settled after its start, and everybody is in sync."""
        await asyncio.sleep(max(0.0, self._started_s + self._settling_s + _STORED_S - time.monotonic()))
        await self._fleet.informed(_TIMEOUT_S)

    async def _steady(self) -> Usage:
        say(f"steady state for {self._steady_s:g} s")
        before = await asyncio.to_thread(self._service.cpu)
        await asyncio.sleep(self._steady_s)
        return Usage.between(before, await asyncio.to_thread(self._service.cpu))

    async def _hold_back(self, numbers: Sequence[int]) -> None:
        """These clients are told of a new version of an object, and do not acknowledge it."""
        for number in numbers:
            self._fleet.clients[number].held = []
        await self._publish(one_object_each(self._names_of, numbers))
        await asyncio.sleep(_STORED_S)
        unacknowledged = sum(bool(self._fleet.clients[number].held) for number in numbers)
        if unacknowledged < len(numbers):
            raise BenchFailed(f"Only {unacknowledged:,} of {len(numbers):,} clients have something unacknowledged.")

    async def _lose(self, what: str, lose: Callable[[], Any]) -> Loss:
        say(what)
        before = await asyncio.to_thread(self._service.cpu)
        event = self._fleet.begin_event()
        await lose()
        await self._fleet.informed(_TIMEOUT_S)
        at_once_s = self._fleet.now() - event.began_s
        after = await asyncio.to_thread(self._service.cpu)
        say(f"all are informed after {max(event.informed_s):.1f} s")
        await asyncio.sleep(_AFTERWARDS_S)
        later = await asyncio.to_thread(self._service.cpu)
        counts = dict(event.counts)
        await self._fleet.informed(_TIMEOUT_S)  # "unknown" may be told twice
        began_s = time.monotonic()
        await self._publish(one_object_each(self._names_of, range(self._world.clients)))
        return Loss(what, event, at_once_s, counts, Usage.between(before, after), Usage.between(after, later), time.monotonic() - began_s)

    async def _kill(self) -> None:
        os.kill(await asyncio.to_thread(self._service.pid, GATEWAY), signal.SIGKILL)
        self._fleet.event.began_s = self._fleet.now()
        for client in self._fleet.clients:
            client.give_back()

    async def _drop(self) -> None:
        for client in self._fleet.clients:
            client.to_hear.update((name, client.seen.get(name, 0)) for name in client.names)
        command = [sys.executable, "-m", "roskva", "drop", "all", "--yes", "--data", str(self._service.data)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self._fleet.event.began_s = self._fleet.now()
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise BenchFailed(f"`roskva drop all` failed: {done.stdout}{done.stderr}")
        self._fleet.event.counts["ms until the command had ended"] = round((self._fleet.now() - self._fleet.event.began_s) * 1000)

    def _result(self, steady: Usage, kill: Loss, drop: Loss) -> Result:
        clients = self._world.clients
        return Result(
            name="failover",
            settings={
                "load": f"{clients:,} connected clients x {REGISTRATIONS} registrations, {clients // HOLDING_BACK:,} of them with"
                " unacknowledged notifications at the kill; then all tables and feeds are dropped",
                "clients": "real cores of the client library with their own pauses and retries, in one process",
                "service": self._service.parts,
                "changed": self._service.changed,
            },
            warm_up=f"registrations, a version of every object, until {self._service.changed['settling_s']} s after the start;"
            f" {self._steady_s:g} s of steady state",
            figures={
                "steady_cpu_percent_of_a_core": {group: round(100 * steady.per_s(group), 2) for group in GROUPS},
                "kill": kill.figures(steady),
                "drop": drop.figures(steady),
            },
            aims=[
                Aim("kill -9: all clients informed", "s", KILL_AIM_S, max(kill.event.informed_s)),
                Aim("drop of all state: all clients informed", "s", DROP_AIM_S, max(drop.event.informed_s)),
            ],
            cpu_seconds={group: round(kill.until_informed.cpu_s[group] + drop.until_informed.cpu_s[group], 2) for group in GROUPS},
            cpu_window_s=kill.until_informed.seconds + drop.until_informed.seconds,
            approximations=APPROXIMATIONS,
        )
