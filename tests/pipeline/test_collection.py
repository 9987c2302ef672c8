"""The sweeps `collect` and `zombies` on real tables: with a Registrar that answers, with one that refuses, and with none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.matcher.cells import object_row, read_copies, registration_cell
from roskva.model import (
    DROP_COPY,
    OUTCOME_COLLECT,
    OUTCOME_ZOMBIE,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    client_partition,
    object_key,
    partition_of,
)
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps import Progress, Request, Swept, frame
from roskva.pipeline.sweeps.frame import DAY_MS, Task, task_of
from roskva.pipeline.sweeps.zombies import copies_of
from roskva.registrar.cells import (
    CREATED,
    WAITING,
    Created,
    Pending,
    client_row,
    closed_on,
    created_cell,
    done_cell,
    log_cell,
    registration_cells,
    seen_cell,
    seqno_cell,
)
from roskva.registrar.core_collection import COLLECTED
from roskva.table import open_table
from roskva.table.interface import Cell, Mutation, RowKey
from tests.pipeline.standin import RegistrarStandIn, marked, settings_for

TODAY = 20_000
OLD, RECENT = TODAY - 61, TODAY - 60  # by the default of 60 days
SEQNO = 1 << 32 | 1
KEYS = [object_key("demo", 0, b"object-%d" % number) for number in range(6)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings, judge=lambda told: DROP_COPY)
    yield standin
    standin.die()


def a_client(settings: Settings, name: str, *keys: ObjectKey, seen: int = OLD, created: bool = True) -> ClientId:
    """A row as a Registrar leaves it, with a notification that waits, and the Matcher's copies."""
    client, table = ClientId(name), open_table(settings)
    cells = [seqno_cell(SEQNO), seen_cell(seen)]
    if created:
        cells.append(created_cell(Created("demo", name)))
    for key in keys:
        cells += [*registration_cells(key, SEQNO, True, Pending()), done_cell(key, SEQNO), log_cell(key, SEQNO, 7, WAITING)]
        table.write([Mutation(object_row(key, settings.partitions), [registration_cell(client, SEQNO, name, True)])])
    table.write([Mutation(client_row(client, settings.partitions), cells)])
    return client


def sweep(settings: Settings, name: str, dry_run: bool = False, connected: Connections | None = None) -> Swept:
    mine = connected or Connections(settings)
    request, total = Request(name, TODAY * DAY_MS, dry_run=dry_run), Swept()
    task: Task = task_of(name)(mine, request, Progress())
    for partition in range(settings.partitions):
        total.add(task.run(partition))
    mine.links.close()
    return total


def stored(settings: Settings, client: ClientId) -> dict[bytes, Cell]:
    key = client_row(client, settings.partitions)
    return dict(open_table(settings).read([key])[key])


def copies(settings: Settings, key: ObjectKey) -> set[str]:
    row = object_row(key, settings.partitions)
    return {copy.client for copy in read_copies(open_table(settings).read([row])[row])}


def everything(settings: Settings) -> list[tuple[object, ...]]:
    """Every cell of every row of clients and objects, deletes included, as the engine keeps them."""
    found = []
    for table in ("registrar", "matcher", "scratch", "marks"):
        for partition in range(settings.partitions):
            open_table(settings).read([RowKey(table, partition, b"")])
            with sqlite3.connect(open_table(settings).path(table, partition)) as file:
                found += [(table, partition, *cell) for cell in file.execute("SELECT * FROM cells ORDER BY row, name")]
    return found


def of_client(settings: Settings, client: ClientId) -> list[tuple[object, ...]]:
    return [cell for cell in everything(settings) if cell[0] == "registrar" and cell[2] == client.encode()]


def test_those_not_seen_for_long_are_proposed_with_the_day_on_which_they_were_seen(settings: Settings, registrar: RegistrarStandIn) -> None:
    old = {a_client(settings, f"old-{number}", seen=OLD - number) for number in range(5)}
    for number in range(5):
        a_client(settings, f"recent-{number}", seen=RECENT + number)
    a_client(settings, "zombie", created=False)
    swept = sweep(settings, "collect")
    assert (swept.looked_at, swept.proposed, swept.done, swept.refused, swept.left) == (11, 5, 5, 0, 0)
    assert {told.client for _, told in registrar.told} == old
    assert (OUTCOME_COLLECT, OLD - 3) in {(told.outcome, told.version) for _, told in registrar.told if told.client == "old-3"}


def test_pages(settings: Settings, registrar: RegistrarStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "ROWS_AT_A_TIME", 3)
    clients = {a_client(settings, f"client-{number}") for number in range(30)}
    told: list[int] = []
    request = Request("collect", TODAY * DAY_MS)
    connected = Connections(settings)
    task = task_of("collect")(connected, request, Progress(lambda swept: told.append(swept.looked_at), clock=iter(range(99)).__next__))
    total = [task.run(partition).looked_at for partition in range(settings.partitions)]
    connected.links.close()
    assert sum(total) == 30
    assert {one.client for _, one in registrar.told} == clients
    assert len(told) >= 10, "it tells after every page how far it has come"


def test_what_the_owner_refuses_stays(settings: Settings, registrar: RegistrarStandIn) -> None:
    registrar.judge = lambda told: SETTLED
    client = a_client(settings, "back", KEYS[0])
    assert sweep(settings, "collect").refused == 1
    zombie = a_client(settings, "zombie", KEYS[0], created=False)
    before = everything(settings)
    assert sweep(settings, "zombies").refused == 1
    assert everything(settings) == before
    assert copies(settings, KEYS[0]) == {client, zombie}


def test_what_cannot_be_asked_now_is_left_for_the_next_time(settings: Settings, registrar: RegistrarStandIn) -> None:
    """One row that nobody can read holds up neither the sweep nor others."""
    registrar.judge = lambda told: UNAVAILABLE if told.client == "stuck" else DROP_COPY
    a_client(settings, "stuck", created=False)
    others = [a_client(settings, f"zombie-{number}", created=False) for number in range(5)]
    swept = sweep(settings, "zombies")
    assert (swept.proposed, swept.done, swept.left) == (6, 5, 1)
    assert [bool(stored(settings, client)) for client in (ClientId("stuck"), *others)] == [True] + [False] * 5


def test_without_a_registrar_the_row_decides_and_a_mark_is_left(settings: Settings) -> None:
    old, recent = a_client(settings, "old", KEYS[0]), a_client(settings, "recent", KEYS[0], seen=RECENT)
    swept = sweep(settings, "collect")
    assert (swept.proposed, swept.done, swept.counts) == (1, 1, {"without_owner": 1})
    assert CREATED not in stored(settings, old)
    assert CREATED in stored(settings, recent)
    assert marked(settings) == {old}


def test_a_whole_collection_leaves_nothing_of_a_client(settings: Settings) -> None:
    gone = a_client(settings, "gone", *KEYS)
    stays = a_client(settings, "stays", *KEYS, seen=TODAY)
    sweep(settings, "collect")
    assert [cell[3:] for cell in of_client(settings, gone) if cell[3] == CREATED] == [COLLECTED]
    swept = sweep(settings, "zombies")
    assert (swept.looked_at, swept.proposed, swept.done, swept.counts["copies"]) == (2, 1, 1, len(KEYS))
    assert of_client(settings, gone) == [], "not even the delete is left"
    assert len(stored(settings, stays)) == 3 + 3 * len(KEYS)
    for key in KEYS:
        assert copies(settings, key) == {stays}
    again = sweep(settings, "zombies")
    assert (again.proposed, again.done) == (0, 0)


def test_a_registration_on_its_way_does_not_bring_the_copy_back(settings: Settings) -> None:
    """Its event is still in the feed: what the Matcher writes for it loses, and what it tells the Registrar is void."""
    client = a_client(settings, "gone", KEYS[0], created=False)
    sweep(settings, "zombies")
    row = object_row(KEYS[0], settings.partitions)
    open_table(settings).write([Mutation(row, [registration_cell(client, SEQNO, "gone", True)])])
    assert copies(settings, KEYS[0]) == set()


def test_a_cell_that_was_written_since_stays_and_is_found_the_next_time(settings: Settings, registrar: RegistrarStandIn) -> None:
    """A blind write that had read the row before it was collected lands while the owner is asked."""
    client = a_client(settings, "gone", KEYS[0], created=False)
    late = log_cell(KEYS[0], SEQNO, 9, WAITING)

    def judge(told: Propagation) -> int:
        open_table(settings).write([Mutation(client_row(client, settings.partitions), [late])])
        return DROP_COPY

    registrar.judge = judge
    assert sweep(settings, "zombies").done == 1
    assert list(stored(settings, client).values()) == [late]
    registrar.judge = lambda told: DROP_COPY
    assert sweep(settings, "zombies").done == 1
    assert of_client(settings, client) == []


def test_a_row_that_is_created_again_while_it_is_looked_at_is_the_owners_to_defend(settings: Settings, registrar: RegistrarStandIn) -> None:
    """No Registrar does that; if the table did, by a restored file say, the owner sees `created` and refuses."""
    client = a_client(settings, "gone", created=False)

    def judge(told: Propagation) -> int:
        assert told == (client, b"", 0, OUTCOME_ZOMBIE, 0)
        open_table(settings).write([Mutation(client_row(client, settings.partitions), [created_cell(Created("demo", "gone"))])])
        return SETTLED

    registrar.judge = judge
    sweep(settings, "zombies")
    assert CREATED in stored(settings, client)


def test_cut_between_its_two_steps_it_does_the_rest_the_next_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [a_client(settings, f"gone-{number}", KEYS[0], KEYS[1]) for number in range(4)]
    sweep(settings, "collect")
    connected = Connections(settings)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(connected.table, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            sweep(settings, "zombies", connected=connected)
    assert all(stored(settings, client) for client in clients), "the rows still name what they registered"
    swept = sweep(settings, "zombies")
    assert (swept.done, swept.left) == (4, 0)
    assert not any(of_client(settings, client) for client in clients)
    assert copies(settings, KEYS[0]) == copies(settings, KEYS[1]) == set()


def test_rows_whose_copies_cannot_be_dropped_stay_and_others_go(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = partition_of(KEYS[0], settings.partitions)
    fine = next(key for key in KEYS if partition_of(key, settings.partitions) != broken)
    stays = a_client(settings, "stays", KEYS[0], created=False)
    goes = a_client(settings, "goes", fine, created=False)
    connected = Connections(settings)
    write = connected.table.write

    def fails(mutations: list[Mutation]) -> None:
        if any(mutation.row[:2] == ("matcher", broken) for mutation in mutations):
            raise PartitionUnavailable("It is broken.", f"matcher-{broken}")
        write(mutations)

    with monkeypatch.context() as patched:
        patched.setattr(connected.table, "write", fails)
        swept = sweep(settings, "zombies", connected=connected)
    assert (swept.done, swept.left) == (1, 1)
    assert stored(settings, stays)
    assert not stored(settings, goes)
    assert sweep(settings, "zombies").done == 1
    assert copies(settings, KEYS[0]) == set()


def test_a_partition_that_cannot_be_read_is_left_for_the_next_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_READ_TRIES_MAX", 2)
    clients = [a_client(settings, f"old-{number}") for number in range(20)]
    broken = client_partition(clients[0], settings.partitions)
    connected = Connections(settings)
    scan = connected.table.scan

    def fails(table: str, partition: int, after: bytes = b"", limit: int = 1_000) -> Iterator[tuple[bytes, dict[bytes, Cell]]]:
        if partition == broken:
            raise PartitionUnavailable("It is broken.", f"registrar-{broken}")
        return scan(table, partition, after, limit)  # type: ignore[return-value]

    with monkeypatch.context() as patched:
        patched.setattr(connected.table, "scan", fails)
        swept = sweep(settings, "collect", connected=connected)
    in_others = sum(client_partition(client, settings.partitions) != broken for client in clients)
    assert (swept.done, swept.left, swept.counts["partitions_not_read"]) == (in_others, 1, 1)
    assert sweep(settings, "collect").done == 20 - in_others


@pytest.mark.parametrize("name", ["collect", "zombies"])
def test_a_dry_run_counts_and_changes_nothing(settings: Settings, registrar: RegistrarStandIn, name: str) -> None:
    a_client(settings, "old", KEYS[0])
    a_client(settings, "zombie", KEYS[1], created=False)
    before = everything(settings)
    swept = sweep(settings, name, dry_run=True)
    assert (swept.looked_at, swept.proposed, swept.done, swept.refused, swept.left) == (2, 1, 0, 0, 0)
    assert everything(settings) == before
    assert registrar.told == []


def test_a_row_that_is_no_clients_is_nobodys_business(settings: Settings) -> None:
    open_table(settings).write([Mutation(RowKey("registrar", 0, b"\xff\xfe"), [seen_cell(1)])])
    client = a_client(settings, "old")
    sweep(settings, "collect")
    assert sweep(settings, "zombies").done == 1
    assert stored(settings, client) == {}


def test_a_row_that_nobody_can_read_is_a_zombie(settings: Settings) -> None:
    """Its client counts as lost for its owner, and starts anew."""
    client = a_client(settings, "broken", KEYS[0])
    row = client_row(client, settings.partitions)
    open_table(settings).write([Mutation(row, [Cell(CREATED, 0, b"\xc1")])])
    assert sweep(settings, "collect").proposed == 0
    assert sweep(settings, "zombies").done == 1
    assert of_client(settings, client) == []
    assert copies(settings, KEYS[0]) == set()


def test_what_the_matcher_knows_to_be_unregistered_is_not_written_again(settings: Settings) -> None:
    told, pending, live, purged = KEYS[:4]
    cells = [
        *registration_cells(told, SEQNO, False, Pending()),
        done_cell(told, SEQNO),
        closed_on(done_cell(purged, SEQNO), TODAY),
        closed_on(registration_cells(purged, SEQNO, False, Pending())[0], TODAY),
        *registration_cells(pending, SEQNO, False, Pending()),
        *registration_cells(live, SEQNO, True, Pending()),
    ]
    client = ClientId("c")
    open_table(settings).write([Mutation(client_row(client, settings.partitions), cells)])
    dropped = {mutation.row.key for mutation in copies_of(client, stored(settings, client), settings.partitions)}
    assert dropped == {pending, live}
