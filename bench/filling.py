"""Fills the two tables of a data directory that nobody uses yet, as if so many clients had registered through the service.

Through the engine's own path a million clients would take an hour. So the files are made by the engine, as partitions of the manifest,
and then filled with plain inserts in the order of their keys. The cells are those that the Registrar and the Matcher write: after a
registration is done and its notification was acknowledged in time, nothing of it is left but `reg` and `pending`, done.
"""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from bench.service import APPLICATION, say
from bench.world import SPREAD, World
from roskva.config import Settings
from roskva.feed.known import known_since
from roskva.keys import load_keys
from roskva.matcher.cells import registration_cell, version_cell
from roskva.model import ClientId, ObjectKey, client_partition, object_key, partition_of, seqno_of
from roskva.protocol.tokens import Claims
from roskva.registrar.cells import REG, REGISTERED, Created, created_cell, done_cell, seen_cell, seqno_cell
from roskva.table import SqliteTable, open_manifest
from roskva.table.interface import Cell

VERSION: Final = 7
_SECONDS_PER_DAY: Final = 86_400
_ID_BYTES: Final = 11  # as the Registrar mints them
TAG: Final = "bench000"  # of everybody's first session


def client_id(number: int) -> ClientId:
    """As good as random, and the same in every process."""
    return ClientId(base64.urlsafe_b64encode(hashlib.blake2b(b"bench %d" % number, digest_size=_ID_BYTES).digest()).rstrip(b"=").decode())


class Filled(NamedTuple):
    clients: int
    objects: int
    cells: int
    bytes: int
    seconds: float


class Population:
    """Who is who. Client number n has an id, and registered the objects that its `World` gives it, in its first session."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ids = [client_id(number) for number in range(world.clients)]
        self.objects = world.clients * world.registrations // world.fan_out
        self._back = pow(SPREAD, -1, self.objects)  # from an object to the first slot that holds it

    def key(self, number: int) -> ObjectKey:
        return object_key(APPLICATION, 0, f"{self.world.prefix}{number}".encode())

    def registered_by(self, client: int) -> Iterator[tuple[int, int]]:
        """(number of the object, seqno of the registration)."""
        first = client * self.world.registrations
        for place in range(self.world.registrations):
            yield (first + place) * SPREAD % self.objects, seqno_of(1, place + 1)

    def registered_for(self, number: int) -> Iterator[tuple[int, int]]:
        """(number of the client, seqno of its registration)."""
        slot = number * self._back % self.objects
        for _ in range(self.world.fan_out):
            client, place = divmod(slot, self.world.registrations)
            yield client, seqno_of(1, place + 1)
            slot += self.objects

    def client_cells(self, client: int, day: int) -> list[Cell]:
        cells = [created_cell(Created(APPLICATION, f"device-{client}")), seen_cell(day)]
        for number, seqno in self.registered_by(client):
            key = self.key(number)
            cells += (Cell(REG + key, seqno, REGISTERED), done_cell(key, seqno))
        cells.append(seqno_cell(seqno_of(1, self.world.registrations), TAG.encode()))
        return sorted(cells)

    def object_cells(self, number: int, incarnation: int) -> list[Cell]:
        copies = [registration_cell(self.ids[client], seqno, f"device-{client}", True) for client, seqno in self.registered_for(number)]
        return sorted([*copies, version_cell(VERSION, "", incarnation)])


def fill(data: Path, world: World, now_s: float, matcher: bool = True) -> Filled:
    """Make a new data directory with these clients and objects in it, and (`matcher`) the Matcher's copies."""
    began_s = time.monotonic()
    population = Population(world)
    settings = Settings(data=data)
    data.mkdir(parents=True, exist_ok=True)
    manifest = open_manifest(settings)
    table = SqliteTable(data, manifest)
    clients = _by_partition(
        ((client_partition(one, settings.partitions), number) for number, one in enumerate(population.ids)), settings.partitions
    )
    objects = _by_partition(
        ((partition_of(population.key(number), settings.partitions), number) for number in range(population.objects)), settings.partitions
    )
    parts: list[_Part] = []
    for partition in range(settings.partitions):
        table.incarnation("matcher", partition)
        table.incarnation("registrar", partition)
        incarnation = known_since(manifest.record, partition, settings.partitions) or 1
        paths = table.path("registrar", partition), table.path("matcher", partition)
        parts.append(_Part(*paths, clients[partition], objects[partition] if matcher else [], incarnation))
    table.close()
    manifest.close()  # nothing of SQLite is open when processes are forked
    filling = _Filling(population, parts, int(now_s // _SECONDS_PER_DAY))
    cells = 0
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork"), _begin, (filling,)) as pool:
        for done, filled in enumerate(pool.map(_fill_part, range(len(parts))), 1):
            cells += filled
            say(f"partition {done} of {len(parts)} is filled: {cells:,} cells so far")
    size = sum(path.stat().st_size for part in parts for path in (part.registrar, part.matcher))
    return Filled(world.clients, population.objects, cells, size, time.monotonic() - began_s)


class _Part(NamedTuple):
    registrar: Path
    matcher: Path
    clients: list[int]
    objects: list[int]
    incarnation: int


class _Filling(NamedTuple):
    population: Population
    parts: list[_Part]
    day: int


_filling: list[_Filling] = []  # in the processes that fill, a partition each: they inherit it


def _begin(filling: _Filling) -> None:
    _filling.append(filling)


def _fill_part(partition: int) -> int:
    """Answers how many cells."""
    population, parts, day = _filling[-1]
    part = parts[partition]
    ordered = sorted(part.clients, key=lambda number: population.ids[number].encode())
    cells = _insert(part.registrar, ((population.ids[number].encode(), population.client_cells(number, day)) for number in ordered))
    by_key = sorted(part.objects, key=population.key)
    return cells + _insert(part.matcher, ((population.key(number), population.object_cells(number, part.incarnation)) for number in by_key))


def tokens_of(data: Path, clients: int) -> list[str]:
    """The tokens of the clients' first sessions, signed with this data directory's own key: with them they return."""
    settings = Settings(data=data)
    manifest = open_manifest(settings)
    table = SqliteTable(data, manifest)
    incarnations = [table.incarnation("registrar", partition) for partition in range(settings.partitions)]
    table.close()
    manifest.close()
    keyring = load_keys(data).keyring
    tokens = []
    for number in range(clients):
        client = client_id(number)
        incarnation = incarnations[client_partition(client, settings.partitions)]
        tokens.append(keyring.sign(Claims(client, APPLICATION, f"device-{number}", 1, settings.data_center, incarnation, TAG)))
    return tokens


def _by_partition(numbers: Iterable[tuple[int, int]], partitions: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(partitions)]
    for partition, number in numbers:
        found[partition].append(number)
    return found


def _insert(path: Path, rows: Iterable[tuple[bytes, Sequence[Cell]]]) -> int:
    """Into a file that only we have open. What is lost if the machine dies now is this bench."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute("BEGIN")
        before = connection.total_changes
        connection.executemany("INSERT INTO cells VALUES (?, ?, ?, ?)", ((row, *cell) for row, cells in rows for cell in cells))
        connection.execute("COMMIT")
        return connection.total_changes - before
    finally:
        connection.close()
