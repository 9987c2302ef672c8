"""security: what it costs to ask who somebody is, how cheaply strangers are refused, and what good clients notice of a bad one.

Costs: handshakes and registrations of an open application, of one with JSON Web Tokens and patterns, and of one with a webhook, in turns on
one service; notifications in a Registrar of this process (telling.py). Refusals: handshakes by the CPU of the gateway that they take.
Latency: good clients at a steady load while one attacker (hostile.py), a process of its own at the lowest priority, does one thing after
the other; a process that only spins shows what an attacker on the same two cores takes by being there.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import hostile
from bench.accounting import ATTACKER, GATEWAY, OTHERS, RUN_VARIABLE, Snapshot
from bench.clients import Fleet, LeanClient
from bench.guarded import PREFIX, Guard, Guarded, SignedIn, credential_of
from bench.load import Publishers
from bench.report import Result, percentiles
from bench.service import ROOT, BenchFailed, Service, free_port, running, say
from bench.telling import Registry
from bench.world import Options, Window, World, caught_up, run

CLIENTS: Final = 200
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 50.0
QUIET_S: Final = 10.0  # before the attacks, and once more after them: the machine may be another by then
ATTACK_S: Final = 12.0
REFUSED_S: Final = 6.0
MILLION: Final = 1_000_000  # handshakes of one address, all in one window
MILLION_S: Final = 150.0  # at most
JOINING_PER_CLIENT: Final = 5  # clients of a turn that joins, for each of those that are served during attacks
ORDER: Final = (0, 1, 2, 2, 1, 0)  # a machine that grows faster or slower favours none
_AT_ONCE: Final = 100
_JOIN_S: Final = 60.0
_DRAIN_S: Final = 20.0
_WARM_UP_S: Final = 8.0
_ATTACKER_S: Final = 15.0  # for one that should be done
_REST_S: Final = 1.0
_CONNECTIONS: Final = 8

QUIET: Final = "quiet"
# What is done to the service, in words, by the name of the attack.
ATTACKS: Final = {
    "spin": "none: a process that spins",
    "messages": "messages of one WebSocket",
    "connections": "connections, opened and closed",
    "handshakes": "handshakes with forged credentials",
    "oversized": "frames of 1 MiB and a byte",
    "slow": f"{hostile.SLOW_CONNECTIONS} slow heads",
}
APPROXIMATIONS: Final = [
    "CPU of the gateway is counted in hundredths of a second",
    "a handshake is counted with its TCP connection and upgrade; a registration with the Matcher's call that confirms it",
    "attackers share two cores with the service and the load generator, at the lowest priority: compare with the process that only spins",
    "attackers over loopback send faster than a network would let them; each is one address",
]


class Attacked(NamedTuple):
    """What an attacker says that it did, and what it took of the processor."""

    did: dict[str, int]
    cpu_s: float


def measure(options: Options) -> Result:
    guarded: list[Guarded] = []

    def prepare(data: Path) -> None:
        guarded.append(Guarded(data.parent, free_port()))
        guarded[0].write()

    with running(options.settings, prepare=prepare) as service:
        return run(_Security(service, guarded[0], options).measure())


class _Security:
    def __init__(self, service: Service, guarded: Guarded, options: Options) -> None:
        self._service = service
        self._guarded = guarded
        self._options = options
        self._clients = options.clients or CLIENTS
        self._rate = options.rate or RATE_PER_S
        self._rest_s = min(_REST_S, options.seconds or _REST_S)
        self._windows: list[Window] = []

    async def measure(self) -> Result:
        async with self._guarded.answering() as asked:
            joined = await self._joining()
            notified = await self._telling()
            calls = asked()
        refused = await self._refusals()
        attacks = await self._attacks()
        self._service.check()
        return self._result(costs(self._guarded.guards, joined, notified), calls, refused, attacks)

    # What it costs to ask.

    async def _joining(self) -> list[dict[str, float]]:
        """Handshakes and registrations, in turns; the first turn of each kind comes after a small one that does not count."""
        for place, guard in enumerate(self._guarded.guards):
            await self._join(guard, f"warm-{place}", max(2 * FAN_OUT, self._clients // 10))
        return [
            {"guard": index, **await self._join(self._guarded.guards[index], f"{turn}", self._clients * JOINING_PER_CLIENT)}
            for turn, index in enumerate(ORDER)
        ]

    async def _join(self, guard: Guard, turn: str, count: int) -> dict[str, float]:
        world = World(count, REGISTRATIONS, FAN_OUT, prefix=f"{PREFIX}{turn}-")
        names_of = world.names_of()
        fleet = Fleet(self._service.url, guard.kind)
        crowd = [guard.kind(f"{turn}-{number}", names_of(number), fleet.heard) for number in range(count)]
        for client in crowd:
            client.prepare()
        try:
            begun = await asyncio.to_thread(self._service.cpu)
            await _all(crowd, lambda client: client.connect(fleet.url))
            connected = await asyncio.to_thread(self._service.cpu)
            await _all(crowd, lambda client: client.register())
            registered = await asyncio.to_thread(self._service.cpu)
        finally:
            for client in crowd:
                client.close()
        await asyncio.sleep(self._rest_s)
        shares = {
            "handshakes": count,
            "handshakes_s": _gateway_s(begun, connected),
            "registrations": count * REGISTRATIONS,
            "registrations_s": _gateway_s(connected, registered),
            "others_s": begun.until(registered)[OTHERS],
        }
        say(f"{guard.name}: {count:,} handshakes {shares['handshakes_s']:.2f} CPU s, registrations {shares['registrations_s']:.2f}")
        return shares

    async def _telling(self) -> list[dict[str, float]]:
        guards = self._guarded.guards
        calls = 40 if self._options.seconds is None else 4
        async with Registry.open(guards) as registry:
            for guard in guards:
                await registry.tell(guard.kind.application, max(2, calls // 4))
            turns = []
            for index in ORDER * 2:
                count, used_s = await registry.tell(guards[index].kind.application, calls)
                turns.append({"guard": index, "notifications": count, "notifications_s": used_s})
        return turns

    # Who is refused.

    async def _refusals(self) -> list[dict[str, Any]]:
        forged = credential_of(self._guarded.stranger, "stranger")
        seconds = min(REFUSED_S, self._options.seconds or REFUSED_S)
        million = MILLION if self._options.seconds is None else MILLION // 200
        kinds = {
            "no credential": ("127.0.0.1", "", seconds, None),
            "a forged credential": ("127.0.0.1", forged, seconds, None),
            "a million, above the limit of their address": (hostile.ADDRESS, forged, MILLION_S, million),
        }
        found = []
        for what, (address, credential, limit_s, count) in kinds.items():
            window = await asyncio.to_thread(Window, self._service)
            done = await self._attack("handshakes", limit_s, address, credential, nice=False, count=count)
            await self._end(window, done)
            told = {name.removeprefix("handshakes: "): count for name, count in done.did.items() if name.startswith("handshakes: ")}
            found.append(refusal(what, told, window.cpu_seconds.get(GATEWAY, 0.0)))
            say(f"{what}: {found[-1]['refused']:,} refused, {found[-1]['refused_per_cpu_s']:,.0f} for each CPU second of the gateway")
        return found

    # What others notice.

    async def _attacks(self) -> list[dict[str, Any]]:
        world = World(self._clients, REGISTRATIONS, FAN_OUT, prefix=f"{PREFIX}served-")
        fleet = Fleet(self._service.url, SignedIn)
        names_of = world.names_of()
        found = []
        try:
            for number in range(world.clients):
                client = SignedIn(f"served-{number}", names_of(number), fleet.heard)
                client.prepare()
                fleet.clients.append(client)
            await _all(fleet.clients, lambda client: client.connect(fleet.url))
            await _all(fleet.clients, lambda client: client.register())
            async with Publishers(self._service.url, world.objects, _CONNECTIONS, SignedIn.application) as publishers:
                await publishers.paced(self._rate, min(_WARM_UP_S, self._options.seconds or _WARM_UP_S))
                for name in (QUIET, *ATTACKS, QUIET):
                    if not await caught_up(fleet, publishers, _DRAIN_S):
                        raise BenchFailed(f"Not every client had the latest versions before {name!r}.")
                    found.append(await self._served(name, fleet, publishers))
        finally:
            fleet.close()
        return compared(found)

    async def _served(self, name: str, fleet: Fleet, publishers: Publishers) -> dict[str, Any]:
        seconds = self._options.seconds or (QUIET_S if name == QUIET else ATTACK_S)
        await asyncio.sleep(self._rest_s)
        first, refused = publishers.last_version + 1, publishers.refused
        fleet.heard.clear()
        credential = credential_of(self._guarded.stranger if name == "handshakes" else self._guarded.key, "stranger")
        window = await asyncio.to_thread(Window, self._service)
        attacking = None
        if name != QUIET:
            attacking = asyncio.create_task(self._attack(name, seconds + self._rest_s, hostile.ADDRESS, credential, nice=True))
            await asyncio.sleep(self._rest_s / 2)
        kept_up = await publishers.paced(self._rate, seconds)
        done = await attacking if attacking is not None else Attacked({}, 0.0)
        complete = await caught_up(fleet, publishers, _DRAIN_S)
        await self._end(window, done)
        if not complete or not kept_up:
            raise BenchFailed(f"{name}: not every client had the latest versions {_DRAIN_S:g} s after the last publish.")
        heard = fleet.heard
        latencies_ms = [
            (received_s - publishers.published_s[version]) * 1000
            for version, received_s in zip(heard.versions, heard.received_s, strict=True)
            if version >= first
        ]
        row: dict[str, Any] = {
            "attack": ATTACKS.get(name, QUIET),
            "latencies_ms": latencies_ms,
            "delivered": len(latencies_ms),
            "expected": FAN_OUT * (publishers.last_version + 1 - first),
            "publishes_refused": publishers.refused - refused,
            "lost_connections": len(fleet.clients) - fleet.alive(),
            "gateway_cpu_s": window.cpu_seconds.get(GATEWAY, 0.0),
            "others_cpu_s": window.cpu_seconds.get(OTHERS, 0.0),
            "attacker_cpu_s": done.cpu_s,
            "attacker": done.did,
            "refused_by_the_gateway": refused_in(window.counted),
        }
        parts = percentiles(latencies_ms)
        say(f"{row['attack']}: p50 {parts['p50']:,.0f} ms, p99 {parts['p99']:,.0f} ms; {done.did}")
        return row

    async def _end(self, window: Window, done: Attacked) -> None:
        await asyncio.to_thread(window.end)
        # It is gone by then, and looks like somebody else's.
        window.cpu_seconds[OTHERS] = round(max(0.0, window.cpu_seconds[OTHERS] - done.cpu_s), 2)
        window.cpu_seconds[ATTACKER] = done.cpu_s
        self._windows.append(window)

    async def _attack(self, name: str, seconds: float, address: str, credential: str, nice: bool, count: int | None = None) -> Attacked:
        return await asyncio.to_thread(attack, self._service, name, seconds, address, credential, nice, count)

    def _result(self, asking: list[dict[str, Any]], calls: int, refused: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> Result:
        roles = {role for window in self._windows for role in window.cpu_seconds}
        return Result(
            name="security",
            settings={
                "load": f"{self._clients:,} good clients x {REGISTRATIONS} registrations, {FAN_OUT} clients per object,"
                f" {self._rate:g} publishes/s, and one attacker at a time",
                "asking": f"in turns of {self._clients * JOINING_PER_CLIENT:,} clients x {REGISTRATIONS} registrations: "
                + ", ".join(self._guarded.guards[index].name for index in ORDER),
                "notifications": "in this process: a Registrar over SQLite, calls of the Matcher made by hand, 500 notifications each",
                "refusals": f"{hostile.HANDSHAKING_CONNECTIONS} connections, each with one handshake at a time",
                "service": self._service.parts,
                "changed": self._service.changed,
            },
            warm_up="a tenth of a turn of each kind; for the latency, 8 s of the same load",
            figures={"asking": asking, "webhook_calls": calls, "refused": refused, "attacks": attacks},
            aims=[],
            cpu_seconds={role: round(sum(window.cpu_seconds.get(role, 0.0) for window in self._windows), 2) for role in sorted(roles)},
            cpu_window_s=sum(window.seconds for window in self._windows),
            approximations=APPROXIMATIONS,
        )


def attack(service: Service, name: str, seconds: float, address: str, credential: str, nice: bool, count: int | None = None) -> Attacked:
    """Run an attacker, and tell what it did. It ends by itself; carrying the run's name, it would end with the service, too."""
    command = [sys.executable, "-m", "bench.hostile", name, service.url.removeprefix("http://"), f"{seconds:g}", "--address", address]
    command += ["--application", SignedIn.application, *(["--nice"] if nice else [])]
    command += [] if count is None else ["--count", str(count)]
    environment = {**os.environ, RUN_VARIABLE: service.run, hostile.CREDENTIAL_VARIABLE: credential}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds + _ATTACKER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"The attacker {name!r} did not end.") from None
    if done.returncode != 0:
        raise BenchFailed(f"The attacker {name!r} failed:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Attacked(told["did"], told["cpu_s"])


def costs(guards: Sequence[Guard], joined: Sequence[Mapping[str, float]], told: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """By what is asked: CPU milliseconds for 1,000 of each, over all turns, and how many times those of the first, which asks nothing."""
    rows: list[dict[str, Any]] = []
    for index, guard in enumerate(guards):
        row: dict[str, Any] = {"asks": guard.name}
        for what, turns in (("handshakes", joined), ("registrations", joined), ("notifications", told)):
            mine = [turn for turn in turns if turn["guard"] == index]
            count = sum(turn[what] for turn in mine)
            row[f"{what}_cpu_ms_per_1000"] = round(1e6 * sum(turn[f"{what}_s"] for turn in mine) / max(1, count), 1)
        rows.append(row)
    for row in rows:
        for what in ("handshakes", "registrations", "notifications"):
            name = f"{what}_cpu_ms_per_1000"
            row[f"{what}_ratio"] = round(row[name] / rows[0][name], 2) if rows[0][name] else 0.0
    return rows


def refusal(what: str, told: Mapping[str, int], cpu_s: float) -> dict[str, Any]:
    """What handshakes were told, by code; those that were granted are not refused."""
    refused = sum(count for code, count in told.items() if code != "granted")
    return {
        "what": what,
        "refused": refused,
        "granted": told.get("granted", 0),
        "gateway_cpu_s": cpu_s,
        "refused_per_cpu_s": round(refused / cpu_s, 1) if cpu_s else 0.0,
        "codes": dict(told),
    }


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was measured twice as one; each with how many times as long it took as in quiet, which is the first."""
    by_attack: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_attack.setdefault(row["attack"], []).append(row)
    found: list[dict[str, Any]] = []
    for attack_name, mine in by_attack.items():
        parts = percentiles([value for row in mine for value in row["latencies_ms"]])
        one: dict[str, Any] = {"attack": attack_name, "p50_ms": parts["p50"], "p99_ms": parts["p99"]}
        quiet = found[0] if found else one
        for part in ("p50", "p99"):
            one[f"{part}_ratio"] = round(one[f"{part}_ms"] / quiet[f"{part}_ms"], 2) if quiet[f"{part}_ms"] else 0.0
        for name, value in mine[0].items():
            if isinstance(value, int | float):
                one[name] = round(sum(row[name] for row in mine), 2)
            elif isinstance(value, dict):
                one[name] = value
        if len(mine) > 1:
            one["p50_ms_each"] = [percentiles(row["latencies_ms"])["p50"] for row in mine]
        found.append(one)
    return found


def refused_in(counted: Mapping[str, float]) -> dict[str, int]:
    """What the gateway says it refused, by limit or code, as far as anything was."""
    found = {}
    for name, value in counted.items():
        if name.startswith(("roskva_limited_total{", "roskva_refused_total{")) and value:
            found[name.partition('="')[2].removesuffix('"}')] = int(value)
    if counted.get("roskva_connections_refused_total"):
        found["connections refused"] = int(counted["roskva_connections_refused_total"])
    return found


def _gateway_s(before: Snapshot, after: Snapshot) -> float:
    return before.until(after).get(GATEWAY, 0.0)


async def _all(clients: Sequence[LeanClient], work: Callable[[LeanClient], Awaitable[None]]) -> None:
    """Some at once, until all are done."""
    waiting = iter(clients)

    async def one_after_the_other() -> None:
        for client in waiting:
            await work(client)

    try:
        async with asyncio.timeout(_JOIN_S), asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(clients))):
                group.create_task(one_after_the_other())
    except TimeoutError:
        raise BenchFailed(f"Not all of {len(clients):,} clients could connect and register within {_JOIN_S:g} s.") from None
