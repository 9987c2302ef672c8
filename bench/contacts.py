"""contacts: how old is what clients show, and how often do they ask the backend: by polling, and told by Roskva.

The programs are those of examples/contacts: three backends of their own process, the clients' own `follow` in this process. All three are
changed at the same moments, and measured in one window: they take a small part of the machine.

Staleness counts from when a change was sent to the backend until a client showed a list that holds it. It is real time, nothing is
compressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.load import until
from bench.report import Result, percentiles
from bench.service import ROOT, BenchFailed, Service, free_port, running, say
from bench.world import Options, Window, run
from examples.contacts.live import client as live
from examples.contacts.polling import client as polling

CLIENTS: Final = 200  # of each way
CLIENTS_PER_LIST: Final = 2
CHANGES_PER_S: Final = 1.0  # of all lists together
WINDOW_S: Final = 180.0
POLLS_S: Final = (10.0, 60.0)
_START_S: Final = 60.0
_GRACE_S: Final = 30.0
_CONTACT: Final = "changed"  # whose phone is the number of the change


@dataclass(slots=True)
class Changes:
    """What was changed, by list: numbers that grow, and when each was due."""

    numbers: dict[str, list[int]] = field(default_factory=dict)
    due_s: list[float] = field(default_factory=lambda: [0.0])

    def make(self, name: str, due_s: float) -> int:
        number = len(self.due_s)
        self.due_s.append(due_s)
        self.numbers.setdefault(name, []).append(number)
        return number

    def between(self, name: str, before: int, until: int) -> list[int]:
        """The changes of this list after one and up to another."""
        numbers = self.numbers.get(name, [])
        return numbers[bisect_right(numbers, before) : bisect_right(numbers, until)]


class Watcher:
    """One client's screen: notes how old each change was when it was first shown."""

    def __init__(self, changes: Changes, name: str, stale_ms: list[float]) -> None:
        self._changes = changes
        self._name = name
        self._stale_ms = stale_ms
        self._seen = 0
        self.shows = 0

    def show(self, contacts: dict[str, str]) -> None:
        now_s = time.monotonic()
        self.shows += 1
        number = int(contacts.get(_CONTACT, "0"))
        self._stale_ms.extend((now_s - self._changes.due_s[one]) * 1000 for one in self._changes.between(self._name, self._seen, number))
        self._seen = max(self._seen, number)

    def is_behind(self) -> bool:
        return bool(self._changes.between(self._name, self._seen, len(self._changes.due_s)))


@dataclass(slots=True)
class Way:
    """One way to learn of changes: its backend, and its clients."""

    name: str
    kind: str  # the folder of its programs
    every_s: float | None = None  # None: it is told
    backend: str = ""
    watchers: list[Watcher] = field(default_factory=list)
    stale_ms: list[float] = field(default_factory=list)
    reads: int = 0

    def figures(self, seconds: float) -> dict[str, Any]:
        found = percentiles(self.stale_ms)
        return {
            "way": self.name,
            "backend_reads_per_s": round(self.reads / seconds, 2),
            "changes_shown": len(self.stale_ms),
            **{f"stale_{part}_s": round(value / 1000, 3) for part, value in found.items()},
        }


def measure(options: Options) -> Result:
    with running(options.settings) as service:
        return measure_on(service, options)


def measure_on(service: Service, options: Options, polls_s: Sequence[float] = POLLS_S) -> Result:
    ways = [Way(f"polls every {every_s:g} s", "polling", every_s) for every_s in polls_s] + [Way("told by Roskva", "live")]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roskva-bench-contacts-")))
        for number, way in enumerate(ways):
            way.backend = stack.enter_context(_backend(way.kind, folder / f"{number}.db", service))
        return run(_Contacts(service, options, ways).measure())


@contextlib.contextmanager
def _backend(kind: str, database: Path, service: Service) -> Iterator[str]:
    port = free_port()
    program = ROOT / "examples" / "contacts" / kind / "backend.py"
    command = [sys.executable, str(program), "--database", str(database), "--port", str(port)]
    if kind == "live":
        command += ["--service", service.url]
    with database.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class _Contacts:
    def __init__(self, service: Service, options: Options, ways: list[Way]) -> None:
        self._service = service
        self._ways = ways
        self._clients = options.clients or CLIENTS
        self._rate_per_s = options.rate or CHANGES_PER_S
        self._window_s = options.seconds or WINDOW_S
        self._changes = Changes()
        run = secrets.token_hex(4)  # their versions begin at 1: no other run's names
        self._lists = [f"list-{run}-{number}" for number in range(max(1, self._clients // CLIENTS_PER_LIST))]

    async def measure(self) -> Result:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            for way in self._ways:
                await self._answers(http, way.backend)
            async with self._following(http):
                await self._first_shown()
                return await self._window(http)

    async def _answers(self, http: aiohttp.ClientSession, backend: str) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                await _reads(http, backend)
                return
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"The backend at {backend} does not answer.")
            await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _following(self, http: aiohttp.ClientSession) -> AsyncIterator[None]:
        tasks: list[asyncio.Task[None]] = []
        for way in self._ways:
            for number in range(self._clients):
                name = self._lists[number % len(self._lists)]
                watcher = Watcher(self._changes, name, way.stale_ms)
                way.watchers.append(watcher)
                tasks.append(asyncio.create_task(self._follow(http, way, name, watcher)))
        try:
            yield
        finally:
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed:
            raise BenchFailed(f"{len(failed)} clients ended by themselves: {failed[0].exception()!r}")

    async def _follow(self, http: aiohttp.ClientSession, way: Way, name: str, watcher: Watcher) -> None:
        if way.every_s is None:
            await live.follow(http, way.backend, name, watcher.show, self._service.url)
        else:
            await asyncio.sleep(random.random() * way.every_s)  # they did not start together
            await polling.follow(http, way.backend, name, watcher.show, way.every_s)

    async def _first_shown(self) -> None:
        slowest_s = max(way.every_s or 0.0 for way in self._ways)
        say(f"{len(self._ways)} x {self._clients} clients start, over {slowest_s:g} s")
        if not await until(lambda: all(watcher.shows for way in self._ways for watcher in way.watchers), slowest_s + _START_S):
            left = {way.name: sum(not watcher.shows for watcher in way.watchers) for way in self._ways}
            raise BenchFailed(f"Clients that showed nothing: {left}")

    async def _window(self, http: aiohttp.ClientSession) -> Result:
        say(f"{self._window_s:g} s of {self._rate_per_s:g} changes/s")
        before = [await _reads(http, way.backend) for way in self._ways]
        window = await asyncio.to_thread(Window, self._service)
        began_s = time.monotonic()
        await self._change_at_rate(http, began_s)
        seconds = time.monotonic() - began_s
        for way, reads in zip(self._ways, before, strict=True):
            way.reads = await _reads(http, way.backend) - reads
        await asyncio.to_thread(window.end)
        patience_s = max(way.every_s or 0.0 for way in self._ways) + _GRACE_S
        if not await until(lambda: not any(watcher.is_behind() for way in self._ways for watcher in way.watchers), patience_s):
            left = {way.name: sum(watcher.is_behind() for watcher in way.watchers) for way in self._ways}
            raise BenchFailed(f"Clients that did not show every change within {patience_s:g} s: {left}")
        return self._result(seconds, window)

    async def _change_at_rate(self, http: aiohttp.ClientSession, began_s: float) -> None:
        total = max(1, round(self._window_s * self._rate_per_s))
        for number in range(total):
            due_s = began_s + number / self._rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            name = random.choice(self._lists)
            change = self._changes.make(name, due_s)
            await asyncio.gather(*(_change(http, way.backend, name, change) for way in self._ways))
        await asyncio.sleep(max(0.0, began_s + self._window_s - time.monotonic()))

    def _result(self, seconds: float, window: Window) -> Result:
        return Result(
            name="contacts",
            settings={
                "load": f"{self._clients} clients of each way, {CLIENTS_PER_LIST} for each list, {self._rate_per_s:g} changes/s in all",
                "service": self._service.parts,
                "changed": self._service.changed,
            },
            warm_up="until every client has shown its list once",
            figures={
                "changes": len(self._changes.due_s) - 1,
                "ways": [way.figures(seconds) for way in self._ways],
            },
            aims=[],
            cpu_seconds=window.cpu_seconds,
            cpu_window_s=window.seconds,
            acknowledgement="a client that is told acknowledges when it has fetched and shown the list",
            approximations=[
                "the load generator's CPU holds all clients, the pollers', too; that of the three backends is in 'others on this machine'",
                "one backend each, on loopback: a fetch takes a millisecond",
            ],
        )


async def _reads(http: aiohttp.ClientSession, backend: str) -> int:
    async with http.get(f"{backend}/requests", raise_for_status=True) as answer:
        return int((await answer.json()).get("reads", 0))


async def _change(http: aiohttp.ClientSession, backend: str, name: str, number: int) -> None:
    async with http.put(f"{backend}/lists/{name}/{_CONTACT}", data=str(number), raise_for_status=True):
        pass
