"""The whole way of a row: from the call that commits it until a client of a running service is informed, beside a plain publish.

`roskva up`, and `roskva capture` with a mapping of a table's rows to objects. Clients are registered for objects of rows and for others, as
many for each. Rows are changed by single statements and the others published by single requests, at the same rate and at the same time: so
both meet the same service. What capture adds is the difference of the two.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from contextlib import closing
from typing import Any, Final

import psycopg2

from bench.capture.publishers import capturing
from bench.capture.stores import DATABASE, BenchPostgres
from bench.capture.usage import CAPTURE, Meter, sleep_until
from bench.capture.usage import DATABASE as OF_DATABASE
from bench.clients import Fleet, Heard
from bench.load import Publishers, until
from bench.report import percentiles
from bench.service import APPLICATION, BenchFailed, Service, running, say
from bench.world import Options, World, caught_up, run

CLIENTS: Final = 100
REGISTRATIONS: Final = 5
FAN_OUT: Final = 5
RATE_PER_S: Final = 50.0  # of each
SECONDS: Final = 20.0
WARM_UP_S: Final = 5.0
TABLE: Final = "articles"
SLOT: Final = "informed"
SERVICE: Final = "service"
_CONNECTIONS: Final = 16
_DRAIN_S: Final = 20.0


class Rows(threading.Thread):
    """Changes rows in turns, one statement each, at a steady rate. Versions are the running number of the change."""

    def __init__(self, dsn: str, objects: int) -> None:
        super().__init__(name="rows", daemon=True)
        self.called_s = array("d", [0.0])  # by version, which begin at 1
        self.returned_s = array("d", [0.0])
        self.failed: Exception | None = None
        self._dsn = dsn
        self._objects = objects
        self._rate = 0.0
        self._seconds = 0.0

    def paced(self, rate: float, seconds: float) -> None:
        self._rate, self._seconds = rate, seconds
        self.start()

    def run(self) -> None:
        try:
            with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                began_s = time.time()
                for number in range(round(self._rate * self._seconds)):
                    # In the middle between two publishes, which begin at the same time.
                    sleep_until(began_s + (number + 0.5) / self._rate)
                    version = len(self.called_s)
                    self.called_s.append(time.time())
                    cursor.execute(f"UPDATE {TABLE} SET revision = %s WHERE id = %s", (version, version % self._objects))
                    self.returned_s.append(time.time())
        except Exception as error:  # told by who waits
            self.failed = error

    @property
    def last_version(self) -> int:
        return len(self.returned_s) - 1

    def latest(self, prefix: str) -> dict[str, int]:
        last = self.last_version
        return {f"{prefix}{version % self._objects}": version for version in range(max(1, last - self._objects + 1), last + 1)}


def measure_informed(server: BenchPostgres, options: Options) -> dict[str, Any]:
    clients = options.clients or CLIENTS
    rows = World(clients, REGISTRATIONS, FAN_OUT, "doc:")
    server.execute(
        DATABASE,
        f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, revision bigint)",
        f"INSERT INTO {TABLE} SELECT g, 0 FROM generate_series(0, {len(rows.objects) - 1}) g",
    )
    datastore = {**server.datastore(SLOT), "publication": SLOT, "tables": [TABLE]}
    mapping = [{"table": TABLE, "object": "doc:{id}", "version": "revision"}]
    with running(options.settings) as service:
        roskva = {"application": APPLICATION, "url": service.url, "mapping": mapping}
        with capturing(datastore, roskva) as capture:
            roles = {CAPTURE: [capture.process.pid], OF_DATABASE: [server.pid], SERVICE: [service.process.pid]}
            return run(_measure(service, server.dsn(DATABASE), roles, rows, options))


async def _measure(service: Service, dsn: str, roles: dict[str, list[int]], rows: World, options: Options) -> dict[str, Any]:
    seconds = options.seconds or SECONDS
    plain = World(rows.clients, REGISTRATIONS, FAN_OUT, "plain:")
    of_rows, of_publishes = Fleet(service.url), Fleet(service.url)
    try:
        await of_rows.join(rows.clients, rows.names_of(), "row")
        await of_publishes.join(plain.clients, plain.names_of(), "plain")
        async with Publishers(service.url, plain.objects, _CONNECTIONS) as publishers:
            writing = Rows(dsn, len(rows.objects))
            warm_up_s = min(WARM_UP_S, seconds)
            say(f"{RATE_PER_S:g} changes of rows and as many publishes a second for {seconds:g} s")
            meter = Meter(roles)
            writing.paced(RATE_PER_S, warm_up_s + seconds)
            if not await publishers.paced(RATE_PER_S, warm_up_s + seconds):
                raise BenchFailed("The service did not accept the publishes.")
            await asyncio.to_thread(writing.join)
            if writing.failed is not None:
                raise BenchFailed(f"Rows could not be changed: {writing.failed}")
            if not await caught_up(of_publishes, publishers, _DRAIN_S) or not await until(
                lambda: _knows_all(of_rows, writing.latest(rows.prefix)), _DRAIN_S
            ):
                raise BenchFailed("Not every client was informed of the latest versions in time.")
            cpu = meter.used()
    finally:
        of_rows.close()
        of_publishes.close()
    first = round(RATE_PER_S * warm_up_s) + 1
    return figures_of(of_rows.heard, of_publishes.heard, writing, publishers, first, rows, seconds) | {"cpu_seconds": cpu}


def _knows_all(fleet: Fleet, latest: dict[str, int]) -> bool:
    return all(client.known.get(name, 0) >= latest.get(name, 0) for client in fleet.clients for name in client.names)


def times_of(heard: Heard, from_s: array[float], first: int) -> list[float]:
    """Milliseconds from each version's own time to each client that was told, of the versions since the first."""
    return [
        (received_s - from_s[version]) * 1000
        for version, received_s in zip(heard.versions, heard.received_s, strict=True)
        if version >= first
    ]


def figures_of(
    of_rows: Heard, of_publishes: Heard, writing: Rows, publishers: Publishers, first: int, world: World, seconds: float
) -> dict[str, Any]:
    called = times_of(of_rows, writing.called_s, first)
    returned = times_of(of_rows, writing.returned_s, first)
    published = times_of(of_publishes, publishers.published_s, first)
    row_ms, publish_ms = percentiles(called), percentiles(published)
    commits_ms = [(back - call) * 1000 for call, back in zip(writing.called_s, writing.returned_s, strict=True)][first:]
    return {
        "load": f"{world.clients} clients x {REGISTRATIONS} registrations for rows, and as many for plain objects;"
        f" {RATE_PER_S:g} changes of rows and {RATE_PER_S:g} publishes a second, {FAN_OUT} clients each, for {seconds:g} s",
        "row_committed_to_client_informed_ms": row_ms,
        "publish_to_client_informed_ms": publish_ms,
        "row_beyond_publish_p50_ms": round(row_ms["p50"] - publish_ms["p50"], 2),
        "row_by_publish_p50": round(row_ms["p50"] / max(0.01, publish_ms["p50"]), 2),
        "row_by_publish_p99": round(row_ms["p99"] / max(0.01, publish_ms["p99"]), 2),
        "after_the_commit_returned_ms": percentiles(returned),
        "call_that_commits_ms": percentiles(commits_ms),
        "publish_call_to_its_answer_ms": percentiles(publishers.answers_ms),
        "told_of_rows": len(called),
        "told_of_publishes": len(published),
        "row_distribution_ms": _distribution(called),
        "publish_distribution_ms": _distribution(published),
    }


def _distribution(times_ms: list[float]) -> list[list[float]]:
    ordered = sorted(times_ms)
    return [[round(ordered[min(len(ordered) - 1, len(ordered) * part // 200)], 3), part / 200] for part in range(201)] if ordered else []
