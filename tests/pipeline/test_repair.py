"""What a lost partition took with it is registered anew: who is asked, and when it is done. Real tables, manifests and Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import OUTCOME_LOST, ClientId, ObjectKey, Propagation, client_partition, object_key, partition_of
from roskva.pipeline import repair as repair_module
from roskva.pipeline.connections import Connections
from roskva.pipeline.repair import Lost, Repair, lost_in, newest_of, partitions_to_repair, registrations_to_repair
from roskva.pipeline.sweeps import Request, Swept, jobs, schedule
from roskva.pipeline.sweeps.record import SWEEPS_ROW, Record, Repaired, read_records, read_repaired, write_repaired
from roskva.pipeline.sweeps.repairs import Repairs
from roskva.pipeline.sweeps.schedule import Schedule
from roskva.pipeline.telling import Counts
from roskva.registrar.cells import CREATED, Created, Pending, client_row, created_cell, registration_cells
from roskva.table import open_manifest, open_table
from roskva.table.interface import Cell, Mutation, Row, RowKey, Table
from roskva.table.manifest import COMPLETE, LOST, RECOVERING, Address, Manifest, PartitionRecord
from tests.pipeline.standin import RegistrarStandIn, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEQNO = 1 << 32 | 1
LATELY = 1 << 62  # an incarnation above all others
NAMES = [b"object-%d" % number for number in range(20)]
KEYS = [object_key("demo", 0, name) for name in NAMES]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.die()


def a_client(settings: Settings, name: str, *keys: ObjectKey, created: bool = True, registered: bool = True) -> ClientId:
    """A row with these registrations."""
    client = ClientId(name)
    cells = [created_cell(Created("demo", name))] if created else []
    for key in keys:
        cells += registration_cells(key, SEQNO, registered, Pending())
    open_table(settings).write([Mutation(client_row(client, settings.partitions), cells)])
    return client


def lost_of(settings: Settings, key: ObjectKey) -> frozenset[int]:
    return frozenset({partition_of(key, settings.partitions)})


def test_only_what_the_pipeline_cannot_do_without_is_repaired() -> None:
    """Trap 39: and of that only what is made again already, under the number that it has now."""
    records = {
        Address("table", "matcher", 0): PartitionRecord(7, RECOVERING, True),
        Address("table", "matcher", 1): PartitionRecord(1, COMPLETE, True),
        Address("table", "matcher", 2): PartitionRecord(3, LOST, False),
        Address("table", "registrar", 0): PartitionRecord(2, RECOVERING, True),  # its clients start anew by themselves
        Address("feed", "updates", 3): PartitionRecord(9, RECOVERING, True),
        Address("feed", "registrations", 3): PartitionRecord(9, RECOVERING, True),  # what is pending is appended again
    }
    assert lost_in(records) == [(Address("table", "matcher", 0), 7), (Address("feed", "updates", 3), 9)]


def test_what_was_put_aside_in_scratch_may_have_been_of_any_object() -> None:
    records = {Address("table", "scratch", 2): PartitionRecord(7, RECOVERING, True)}
    assert partitions_to_repair(lost_in(records), 4) == {0, 1, 2, 3}
    assert partitions_to_repair([Lost(Address("table", "matcher", 2), 7), Lost(Address("feed", "fan-outs", 0), 7)], 4) == {0, 2}


def test_a_client_is_asked_to_repair_what_it_registered_of_the_lost_partitions(settings: Settings) -> None:
    client = a_client(settings, "client", *KEYS)
    row = client_row(client, settings.partitions)
    cells = open_table(settings).read([row])[row]
    lost = lost_of(settings, KEYS[0])
    told = list(registrations_to_repair(client, cells, lost, settings.partitions, lambda application: 0))
    expected = [key for key in KEYS if partition_of(key, settings.partitions) in lost]
    assert sorted(told) == sorted(Propagation(client, key, SEQNO, OUTCOME_LOST, 0) for key in expected)
    assert 0 < len(expected) < len(KEYS)
    assert list(registrations_to_repair(client, cells, lost, settings.partitions, lambda application: 1)) == [], "of an old epoch"


def test_a_pass_finds_every_registration_page_by_page(
    settings: Settings, registrar: RegistrarStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_module, "ROWS_AT_A_TIME", 3)
    registered = {a_client(settings, f"client-{number}", KEYS[0]) for number in range(25)}
    a_client(settings, "gone", KEYS[0], created=False)
    a_client(settings, "unregistered", KEYS[0], registered=False)
    connected = Connections(settings)
    repair = Repair(connected)
    for partition in range(settings.partitions):
        repair.run(partition, lost_of(settings, KEYS[0]), LATELY)
    connected.links.close()
    assert repair.counts.propagations == 25
    assert {told.client for _, told in registrar.told} == registered


def test_rows_that_began_after_the_loss_are_left_out_and_others_are_not(settings: Settings, registrar: RegistrarStandIn) -> None:
    """After a loss of everything clients register anew by themselves: to do it for them once more would double the work."""
    manifest, partitions = open_manifest(settings), settings.partitions
    clients = [a_client(settings, f"client-{number}", KEYS[0]) for number in range(20)]
    lost = Lost(Address("table", "matcher", partition_of(KEYS[0], partitions)), lose(manifest, partition_of(KEYS[0], partitions)))
    began_anew = client_partition(clients[0], partitions)
    address = Address("table", "registrar", began_anew)
    assert manifest.record_lost(*address, manifest.record(*address).incarnation)
    with suppress(PartitionUnavailable):  # whoever has it open is told of the loss once
        a_client(settings, "client-0", KEYS[0])
    for number, client in enumerate(clients):
        if client_partition(client, partitions) == began_anew:
            a_client(settings, f"client-{number}", KEYS[0])
    connected = Connections(settings)
    for partition in range(partitions):
        Repair(connected).run(partition, lost_of(settings, KEYS[0]), newest_of([lost]))
    told = {told.client for _, told in registrar.told}
    assert told == {client for client in clients if client_partition(client, partitions) != began_anew}
    assert told
    again = lose(manifest, lost.address.partition)
    assert again > manifest.record(*address).incarnation, "a later loss has a greater incarnation, whichever partition it is"
    for partition in range(partitions):
        Repair(connected).run(partition, lost_of(settings, KEYS[0]), again)
    connected.links.close()
    assert {told.client for _, told in registrar.told} == set(clients)


def test_a_row_that_nobody_can_read_holds_up_nobody(settings: Settings, registrar: RegistrarStandIn) -> None:
    fine = a_client(settings, "fine", KEYS[0])
    broken = a_client(settings, "broken", KEYS[0], created=False)
    open_table(settings).write([Mutation(client_row(broken, settings.partitions), [Cell(CREATED, 0, b"\xc1")])])
    connected = Connections(settings)
    for partition in range(settings.partitions):
        Repair(connected).run(partition, lost_of(settings, KEYS[0]), LATELY)
    connected.links.close()
    assert {told.client for _, told in registrar.told} == {fine}


def test_the_job_runs_in_spark(settings: Settings, registrar: RegistrarStandIn, spark: SparkSession) -> None:
    clients = {a_client(settings, f"client-{number}", KEYS[0], KEYS[1]) for number in range(10)}
    counts = jobs.repair(spark, settings, frozenset(range(settings.partitions)), LATELY)
    assert counts.propagations == 20
    assert {(told.client, told.object) for _, told in registrar.told} == {(one, key) for one in clients for key in KEYS[:2]}


class Passes:
    """In the place of the job."""

    def __init__(self) -> None:
        self.lost: list[frozenset[int]] = []
        self.newest = 0
        self.fails = False

    def __call__(self, lost: frozenset[int], newest: int) -> Counts:
        if self.fails:
            raise RuntimeError("Spark is ending")
        self.lost.append(lost)
        self.newest = newest
        return Counts()


@pytest.fixture
def manifest(settings: Settings) -> Manifest:
    open_table(settings).write([Mutation(client_row(ClientId("c"), settings.partitions), [created_cell(Created("demo", "c"))])])
    return open_manifest(settings)


def lose(manifest: Manifest, partition: int) -> int:
    """As whoever finds the file gone: record it, and make another."""
    address = Address("table", "matcher", partition)
    seen = manifest.record(*address).incarnation
    assert manifest.record_lost(*address, seen)
    incarnation = manifest.record(*address).incarnation
    assert manifest.create(address, incarnation, lambda: None)
    return incarnation


def test_each_loss_gets_one_pass_and_counts_as_known_after_the_horizon(settings: Settings, manifest: Manifest) -> None:
    """Trap 32: a publisher may repeat for a while what it published before the loss."""
    settings, passes = replace(settings, retry_horizon_s=100.0), Passes()
    repairs = Repairs(manifest, open_table(settings), settings, passes)
    repairs.step(0.0)
    assert passes.lost == []
    lose(manifest, 1)
    for now_s in (10.0, 12.0, 109.0):
        repairs.step(now_s)
        assert manifest.record("table", "matcher", 1).state == RECOVERING
    assert passes.lost == [frozenset({1})]
    repairs.step(110.0)
    assert manifest.record("table", "matcher", 1).state == COMPLETE


def test_what_is_lost_again_is_repaired_again(settings: Settings, manifest: Manifest) -> None:
    settings, passes = replace(settings, retry_horizon_s=100.0), Passes()
    repairs = Repairs(manifest, open_table(settings), settings, passes)
    lose(manifest, 1)
    repairs.step(0.0)
    lose(manifest, 1)
    repairs.step(99.0)
    repairs.step(101.0)  # the first loss is over; the second is not
    assert passes.lost == [frozenset({1}), frozenset({1})]
    assert passes.newest == manifest.record("table", "matcher", 1).incarnation
    assert manifest.record("table", "matcher", 1).state == RECOVERING
    repairs.step(200.0)
    assert manifest.record("table", "matcher", 1).state == COMPLETE


def kept(settings: Settings, manifest: Manifest) -> dict[Lost, int]:
    found = read_repaired(open_table(settings), manifest.snapshot().deployment)
    return {Lost(one.address, one.incarnation): one.waited_ms for one in found}


def test_a_pipeline_that_is_started_again_repairs_nothing_twice_and_goes_on_waiting(settings: Settings, manifest: Manifest) -> None:
    """Whatever the clocks say: what counts is how long a running pipeline has waited. Its own clock begins anywhere."""
    settings, passes = replace(settings, retry_horizon_s=100.0), Passes()
    lost = Lost(Address("table", "matcher", 1), lose(manifest, 1))
    before = Repairs(manifest, open_table(settings), settings, passes)
    before.step(5_000.0)
    assert kept(settings, manifest) == {lost: 0}
    before.step(5_035.0)
    assert kept(settings, manifest) == {lost: 35_000}

    after = Repairs(manifest, open_table(settings), settings, passes)
    after.step(7.0)
    after.step(71.0)
    assert manifest.record("table", "matcher", 1).state == RECOVERING
    after.step(72.0)
    assert manifest.record("table", "matcher", 1).state == COMPLETE
    assert kept(settings, manifest) == {}
    assert passes.lost == [frozenset({1})]


def test_what_was_lost_again_while_the_pipeline_was_down_is_repaired_again(settings: Settings, manifest: Manifest) -> None:
    settings, passes = replace(settings, retry_horizon_s=100.0), Passes()
    lose(manifest, 1)
    lose(manifest, 2)
    Repairs(manifest, open_table(settings), settings, passes).step(0.0)
    incarnation = lose(manifest, 2)
    after = Repairs(manifest, open_table(settings), settings, passes)
    after.step(0.0)
    assert passes.lost == [frozenset({1, 2}), frozenset({2})]
    assert Lost(Address("table", "matcher", 2), incarnation) in kept(settings, manifest)
    assert len(kept(settings, manifest)) == 2


def test_a_pass_that_failed_is_not_kept_as_repaired(settings: Settings, manifest: Manifest) -> None:
    passes = Passes()
    passes.fails = True
    lose(manifest, 1)
    with pytest.raises(RuntimeError):
        Repairs(manifest, open_table(settings), settings, passes).step(0.0)
    assert kept(settings, manifest) == {}
    passes.fails = False
    Repairs(manifest, open_table(settings), settings, passes).step(0.0)
    assert passes.lost == [frozenset({1})]


class Unreachable:
    """A table whose record of sweeps can be neither read nor written."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.fails = True

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"") -> dict[RowKey, Row]:
        if self.fails:
            raise PartitionUnavailable("busy", "members-0")
        return self._table.read(rows, prefix=prefix)

    def write(self, mutations: Sequence[Mutation]) -> None:
        self._table.write(mutations)


def test_a_repair_does_not_wait_for_its_record(settings: Settings, manifest: Manifest) -> None:
    settings, passes = replace(settings, retry_horizon_s=100.0), Passes()
    table = Unreachable(open_table(settings))
    repairs = Repairs(manifest, table, settings, passes)  # type: ignore[arg-type]
    lost = Lost(Address("table", "matcher", 1), lose(manifest, 1))
    repairs.step(0.0)
    assert passes.lost == [frozenset({1})]
    table.fails = False
    repairs.step(2.0)
    assert kept(settings, manifest) == {}, "not at every step"
    repairs.step(40.0)
    assert kept(settings, manifest) == {lost: 40_000}
    table.fails = True
    repairs.step(100.0)
    assert manifest.record("table", "matcher", 1).state == COMPLETE
    table.fails = False
    repairs.step(140.0)
    assert kept(settings, manifest) == {}
    assert passes.lost == [frozenset({1})]


@pytest.mark.parametrize("garbled", [b"{", b'{"sweep": "collect"}', None])
def test_without_a_record_that_counts_the_repair_is_repeated(settings: Settings, manifest: Manifest, garbled: bytes | None) -> None:
    passes, table = Passes(), open_table(settings)
    incarnation = lose(manifest, 1)
    if garbled is None:
        write_repaired(table, "of another manifest", [Repaired(Address("table", "matcher", 1), incarnation, 0)])
    else:
        table.write([Mutation(SWEEPS_ROW, [Cell(b"repaired", 1, garbled)])])
    Repairs(manifest, table, settings, passes).step(0.0)
    assert passes.lost == [frozenset({1})]
    assert list(kept(settings, manifest).values()) == [0]
    assert read_records(table) == {}, "it is not taken for a sweep"


def no_job(request: Request, record: Record, partition: int) -> Swept:
    raise AssertionError("no sweep is due in this test")


def test_a_pass_that_fails_is_begun_again(settings: Settings, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_LOOK_EVERY_S", 0.01)
    passes, stop = Passes(), threading.Event()
    passes.fails = True
    lose(manifest, 2)
    plan = Schedule(open_table(settings), settings, no_job, Repairs(manifest, open_table(settings), settings, passes).step)
    thread = threading.Thread(target=plan.run, args=(stop,))
    thread.start()
    try:
        threading.Event().wait(0.1)
        passes.fails = False
        for _ in range(500):
            if passes.lost:
                break
            threading.Event().wait(0.01)
    finally:
        stop.set()
        thread.join(10)
    assert passes.lost == [frozenset({2})]
