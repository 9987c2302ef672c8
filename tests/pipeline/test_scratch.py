"""Rows that cannot be written: what is for them is put aside, everybody else is served, and a sweep brings it home (Thialfi 4.2.6).

Real feed and table with injected faults, real tasks; no Spark. Long, since tasks, links, teller, fan-out and sweep share one stage.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roskva.config import ApplicationSettings, Settings
from roskva.errors import FeedFull
from roskva.feed import open_feed
from roskva.feed.interface import FAN_OUTS, UPDATES
from roskva.feed.known import known_since
from roskva.matcher.cells import object_row, read_version
from roskva.matcher.forms import form_of
from roskva.matcher.scratch import Homeless, Unwalked, read_cell
from roskva.model import (
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    PUT_ASIDE,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    Propagation,
    Update,
    client_partition,
    object_key,
    partition_of,
)
from roskva.pipeline import scratch
from roskva.pipeline.connections import Connections
from roskva.pipeline.events import Origin, read_events
from roskva.pipeline.fanout import FanOut
from roskva.pipeline.matching import Task
from roskva.pipeline.sweeps.frame import Progress, Request, Swept
from roskva.pipeline.sweeps.scratched import ScratchSweep, as_entry
from roskva.pipeline.telling import Counts, Teller
from roskva.registrar.cells import Created, Pending, client_row, created_cell, registration_cells, seqno_cell
from roskva.registrar.row import ClientRow, Waiting
from roskva.table import open_manifest, open_table
from roskva.table.faults import FaultyTable
from roskva.table.interface import Cell, Mutation, RowKey
from tests.pipeline.standin import RegistrarStandIn, name_in_partition, settings_for, wait_until
from tests.pipeline.test_matching import Rows, key_of, told
from tests.table.test_faults import write_rules

NAMES = [name_in_partition(partition) for partition in range(4)]
DOWN = 2
DOWN_RULE = {"table": "matcher", "partitions": [DOWN]}
SEQNO = 1 << 32 | 1


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "data", scratch_after_s=0.1)


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.die()


@pytest.fixture
def rows(settings: Settings) -> Rows:
    return Rows(settings)


class Injected(Connections):
    """Connections to a table that fails as the test wishes."""

    def __init__(self, settings: Settings, path: Path) -> None:
        super().__init__(settings)
        self.path = path
        self.taken = dict.fromkeys(range(settings.partitions), 0)
        self.__dict__["table"] = FaultyTable(open_table(settings), write_rules(path))

    def fail(self, *rules: dict[str, Any]) -> None:
        write_rules(self.path, *rules)

    def aside(self) -> list[Homeless | Propagation | Unwalked]:
        table = open_table(self.settings)
        found = [read_cell(cell) for p in range(self.settings.partitions) for _, row in table.scan("scratch", p) for cell in row.values()]
        return sorted(found, key=repr)

    def sweep(self, dry_run: bool = False) -> Swept:
        sweep, total = ScratchSweep(self, Request("scratch", 0, dry_run), Progress()), Swept()
        for partition in range(self.settings.partitions):
            total.add(sweep.run(partition))
        return total

    def brought_home(self) -> list[tuple[Any, ...]]:
        """What sweeps appended to the feed since the last call, as rows of the Bridge."""
        found = []
        for partition, newest in open_feed(self.settings).newest(UPDATES).items():
            for record in open_feed(self.settings).read(UPDATES, partition, self.taken[partition], newest.offset):
                origin = (UPDATES, partition, record.offset, newest.incarnation, record.time_ms, record.headers, record.value)
                found.append((*origin, *(None,) * 4))
            self.taken[partition] = newest.offset
        return found

    def heal(self) -> Counts:
        """Nothing fails any more: one sweep, and the Matcher's task takes what it appended."""
        self.fail()
        self.sweep()
        return Task(self).run(self.brought_home())


@pytest.fixture
def injected(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Injected]:
    monkeypatch.setattr("roskva.table.faults._LOOK_EVERY_S", 0.0)
    opened = Injected(settings, tmp_path / "faults.json")
    yield opened
    opened.links.close()


@pytest.fixture
def registered(injected: Injected, registrar: RegistrarStandIn, rows: Rows) -> RegistrarStandIn:
    """Client a is registered for one object of each partition."""
    Task(injected).run([rows.registration("a", name, 1) for name in NAMES])
    registrar.told.clear()
    return registrar


def updates(rows: Rows, version: int, names: Sequence[str] = NAMES, **more: Any) -> list[tuple[Any, ...]]:
    return [rows.update(name, version, **more) for name in names]


def versions_told(registrar: RegistrarStandIn) -> dict[str, int]:
    return {name: max(registrar.versions(key_of(name))) for name in NAMES if registrar.versions(key_of(name))}


# Objects' rows.


def test_rows_that_fail_take_none_of_their_partition_along(injected: Injected, registrar: RegistrarStandIn, rows: Rows) -> None:
    names = [name for number in range(200) if partition_of(key_of(name := f"n{number}"), 4) == DOWN]
    bad = {name for name in names if name.startswith("n1")}
    assert 0 < len(bad) < len(names) / 2 + 20
    Task(injected).run([rows.registration("a", name, 1) for name in names])
    registrar.told.clear()
    injected.fail({"table": "matcher", "prefix": "demo\x00\x00\x00\x00\x00n1"})
    Task(injected).run(updates(rows, 5, names))
    assert {one.object for one in injected.aside() if isinstance(one, Homeless)} == {key_of(name) for name in bad}
    assert {one.object for _, one in registrar.told} == {key_of(name) for name in names if name not in bad}
    registrar.told.clear()
    counts = Task(injected).run(updates(rows, 6, names))
    assert {one.object for _, one in registrar.told} == {key_of(name) for name in names if name not in bad}
    assert counts.retries == 0, "those known to fail are tried apart, and nobody waits"
    injected.heal()
    assert {one.object for _, one in registrar.told} == {key_of(name) for name in names}


def test_what_fails_now_and_then_is_told_or_put_aside(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    injected.fail({"table": "matcher", "rate": 0.5}, {"table": "scratch", "rate": 0.5})
    for version in range(5, 15):
        Task(injected).run(updates(rows, version))
    injected.heal()
    assert versions_told(registered) == dict.fromkeys(NAMES, 14)
    assert injected.aside() == []


def test_a_read_that_fails_after_the_write_counts_the_same(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    """The version is there, but nobody was told."""
    injected.fail({**DOWN_RULE, "operations": ["read"]})
    Task(injected).run(updates(rows, 5))
    row = object_row(key_of(NAMES[DOWN]), 4)
    known = read_version(open_table(injected.settings).read([row])[row])
    assert known is not None
    assert known.version == 5
    assert NAMES[DOWN] not in versions_told(registered)
    injected.heal()
    assert versions_told(registered) == dict.fromkeys(NAMES, 5)


def in_the_background(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_what_cannot_even_be_put_aside_keeps_its_batch_open(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    injected.fail(DOWN_RULE, {"table": "scratch"})
    running = in_the_background(lambda: Task(injected).run(updates(rows, 5)))
    wait_until(lambda: len(versions_told(registered)) == 3, what="everyone else is told")
    running.join(0.5)
    assert running.is_alive()
    injected.fail()
    running.join(20)
    assert not running.is_alive()
    assert versions_told(registered) == dict.fromkeys(NAMES, 5)


def test_the_batch_after_an_outage_began_spends_no_patience(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    injected.fail(DOWN_RULE)
    assert Task(injected).run(updates(rows, 5)).retries > 0
    later = name_in_partition(DOWN, prefix="later")
    counts = Task(injected).run([*updates(rows, 6), rows.update(later, 1)])
    assert (counts.retries, counts.scratched) == (0, 2)
    injected.fail()
    counts = Task(injected).run(updates(rows, 7))
    assert counts.scratched == 0, "what works again is found at the next try"
    assert versions_told(registered) == dict.fromkeys(NAMES, 7)


def test_trap_11_nobody_is_left_out_on_what_comes_from_scratch(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5, source="a"))
    assert told(registered) == []
    injected.heal()
    assert told(registered) == [("a", 1, OUTCOME_UPDATE, 5)]


def test_trap_32_a_version_keeps_its_incarnation_on_its_way_through_scratch(
    injected: Injected, registered: RegistrarStandIn, rows: Rows
) -> None:
    """v8 is put aside; v9 is acknowledged, and the feed is lost with it. When v8 comes home, who holds 8 is not "covered"."""
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 8))
    manifest = open_manifest(injected.settings)
    assert manifest.record_lost("feed", UPDATES, DOWN, manifest.record("feed", UPDATES, DOWN).incarnation)
    incarnation = open_feed(injected.settings).newest(UPDATES)[DOWN].incarnation
    manifest.mark_complete("feed", UPDATES, DOWN, incarnation)
    injected.heal()
    registered.told.clear()
    Task(injected).run([rows.registration("b", NAMES[DOWN], 1, held=8), rows.registration("c", NAMES[0], 1, held=8)])
    assert [outcome for client, _, outcome, _ in told(registered) if client == "b"] == [OUTCOME_UNKNOWN]
    assert [outcome for client, _, outcome, _ in told(registered) if client == "c"] != [OUTCOME_UNKNOWN], "the others are known"


# The sweep.


def test_while_a_row_fails_its_version_stays_and_the_feed_is_left_alone(
    injected: Injected, registered: RegistrarStandIn, rows: Rows
) -> None:
    injected.fail(DOWN_RULE, {"table": "matcher", "partitions": [1]})
    Task(injected).run(updates(rows, 5))
    injected.fail(DOWN_RULE)
    for expected in ((2, 1, 1), (1, 0, 1), (1, 0, 1)):
        swept = injected.sweep()
        assert (swept.proposed, swept.done, swept.left) == expected
    Task(injected).run(injected.brought_home())
    assert {name for name in versions_told(registered) if registered.versions(key_of(name))} == set(NAMES) - {NAMES[DOWN]}
    assert len(injected.aside()) == 1


def test_a_sweep_that_dies_before_it_forgets_is_repeated_without_harm(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5))
    injected.fail({"table": "scratch", "operations": ["write"]})
    assert injected.sweep().done == 0
    injected.fail()
    assert injected.sweep().done == 1
    counts = Task(injected).run(injected.brought_home())
    assert counts.updates == 2
    assert registered.versions(key_of(NAMES[DOWN])) == [5]
    assert injected.aside() == []


def test_what_is_put_aside_again_before_the_sweep_forgets_stays(
    injected: Injected, registered: RegistrarStandIn, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5))
    injected.fail()
    forget = injected.table.forget

    def late(mutations: Sequence[Mutation]) -> None:
        if mutations:
            injected.fail(DOWN_RULE)
            Task(injected).run(injected.brought_home())
            injected.fail()
        forget(mutations)

    monkeypatch.setattr(injected.table, "forget", late)
    injected.sweep()
    assert [(one.version, one.rounds) for one in injected.aside() if isinstance(one, Homeless)] == [(5, 1)]
    monkeypatch.undo()
    injected.heal()
    assert versions_told(registered)[NAMES[DOWN]] == 5
    assert injected.aside() == []


def test_a_full_feed_takes_nothing_home(
    injected: Injected, registered: RegistrarStandIn, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5))
    injected.fail()

    def full(*_: Any) -> None:
        raise FeedFull("full")

    with monkeypatch.context() as patched:
        patched.setattr(injected.feed, "append", full)
        assert injected.sweep().left == 1
    assert len(injected.aside()) == 1
    injected.heal()
    assert versions_told(registered)[NAMES[DOWN]] == 5


def test_a_dry_run_changes_nothing(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    assert not scratch.waiting(injected.table, injected.settings)
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5))
    injected.fail()
    swept = injected.sweep(dry_run=True)
    assert (swept.proposed, swept.done, injected.brought_home()) == (1, 0, [])
    assert scratch.waiting(injected.table, injected.settings)
    assert scratch.size(injected.table, injected.settings) == 1
    injected.fail({"table": "scratch"})
    assert scratch.size(injected.table, injected.settings) == 0, "what cannot be read is not counted"


def test_what_a_sweep_appends_is_in_the_standard_form_whatever_the_application_s_own() -> None:
    key = object_key("shop", 3, b"\x00\xff")
    entry = as_entry(Homeless(key, 2**63 - 1, 77, 4))
    own = form_of(replace(ApplicationSettings(), object_path="doc.id", version_path="doc.rev"))
    row = (UPDATES, 0, 1, 5, 0, entry.headers, entry.value, *(None,) * 4)
    events = read_events([row], {"shop": own}, lambda application: 9)
    assert [update for update, _ in events.updates] == [Update(key, 2**63 - 1, "", again=True)]


# Clients' rows.


def clients_in(partition: int, count: int) -> list[str]:
    return [name for number in range(200) if client_partition(ClientId(name := f"c{number}"), 4) == partition][:count]


def create(settings: Settings, *clients: str) -> None:
    for client in clients:
        cells = [created_cell(Created("demo", client)), seqno_cell(SEQNO), *registration_cells(key_of("x"), SEQNO, True, Pending())]
        open_table(settings).write([Mutation(client_row(ClientId(client), settings.partitions), cells)])


def waiting_for(settings: Settings, client: str) -> list[Waiting]:
    key = client_row(ClientId(client), settings.partitions)
    return list(ClientRow(ClientId(client), open_table(settings).read([key])[key].values()).waiting())


def propagation(client: str, version: int = 7, outcome: int = OUTCOME_UPDATE) -> Propagation:
    return Propagation(ClientId(client), key_of("x"), SEQNO, outcome, version)


def test_clients_whose_rows_fail_are_put_aside_and_told_by_the_sweep_they_alone(injected: Injected, settings: Settings) -> None:
    """No gateway runs: everything is written blindly."""
    bad, good = clients_in(1, 3), clients_in(2, 3)
    create(settings, *bad, *good)
    injected.fail({"table": "registrar", "partitions": [1], "operations": ["write"]})
    counts = Counts()
    Teller(injected, counts).tell([propagation(client) for client in [*bad, *good]])
    assert counts.scratched == 3
    assert all(waiting_for(settings, client) == [Waiting(key_of("x"), SEQNO, 7)] for client in good)
    assert {one.client for one in injected.aside() if isinstance(one, Propagation)} == set(bad)
    assert injected.sweep().left == 3
    injected.fail()
    wait_until(lambda: injected.sweep().proposed == 0, 10, "who failed a moment ago is not tried all the time")
    assert all(waiting_for(settings, client) == [Waiting(key_of("x"), SEQNO, 7)] for client in bad)
    assert injected.aside() == []
    assert injected.brought_home() == [], "everybody else has heard: the feed is left alone"


def test_one_client_s_row_that_fails_takes_no_other_along(injected: Injected, settings: Settings) -> None:
    clients = clients_in(1, 12)
    create(settings, *clients)
    injected.fail({"table": "registrar", "start": clients[5], "end": clients[5] + "\x00"})
    told = injected.links.propagate([propagation(client) for client in clients])
    assert [verdict == PUT_ASIDE for verdict in told.verdicts] == [number == 5 for number in range(12)]
    told = injected.links.propagate([propagation(client, 8) for client in clients])
    assert [verdict == PUT_ASIDE for verdict in told.verdicts] == [number == 5 for number in range(12)]
    assert told.retries == 0, "who failed a moment ago is tried once"


def test_a_registrar_that_cannot_write_and_a_task_that_cannot_either(
    injected: Injected, settings: Settings, registrar: RegistrarStandIn
) -> None:
    registrar.judge = lambda told: UNAVAILABLE if client_partition(told.client, 4) == 1 else SETTLED
    injected.fail({"table": "registrar", "partitions": [1]})
    bad, good = clients_in(1, 2), clients_in(2, 2)
    create(settings, *bad, *good)
    verdicts = injected.links.propagate([propagation(client) for client in [*bad, *good]]).verdicts
    assert verdicts == [PUT_ASIDE, PUT_ASIDE, SETTLED, SETTLED]
    registrar.judge = lambda told: SETTLED
    wait_until(lambda: injected.links.propagate([propagation(bad[0])]).verdicts == [SETTLED], 10, "asked again, a moment later")


def test_what_a_registration_yields_is_left_to_its_pending_marker(injected: Injected, settings: Settings) -> None:
    (client,) = clients_in(1, 1)
    create(settings, client)
    injected.fail({"table": "registrar", "partitions": [1]})
    counts = Counts()
    Teller(injected, counts).tell([propagation(client, outcome=OUTCOME_VERSION)])
    assert (counts.left_pending, counts.scratched, injected.aside()) == (1, 0, [])
    key = client_row(ClientId(client), 4)
    assert ClientRow(ClientId(client), open_table(settings).read([key])[key].values()).pending_count == 1


def test_what_a_repair_asks_for_waits_in_scratch_and_holds_up_nobody(injected: Injected, settings: Settings) -> None:
    """One client's row that fails must not keep a pass from its end, and all other sweeps with it."""
    (bad,), (good,) = clients_in(1, 1), clients_in(2, 1)
    create(settings, bad, good)
    injected.fail({"table": "registrar", "partitions": [1], "operations": ["write"]})
    lost = [propagation(client, version=0, outcome=OUTCOME_LOST) for client in (bad, good)]
    Teller(injected, Counts()).tell(lost)
    assert injected.aside() == [lost[0]]
    assert not made_anew(settings, bad)
    assert made_anew(settings, good)
    injected.fail()
    assert injected.sweep().done == 1
    assert injected.aside() == []
    assert made_anew(settings, bad), "registered anew: its owner repeats it"


def made_anew(settings: Settings, client: str) -> bool:
    row = client_row(ClientId(client), settings.partitions)
    pending = ClientRow(ClientId(client), open_table(settings).read([row])[row].values()).pending()
    return [(seqno > SEQNO, one.repair) for _, seqno, one in pending] == [(True, True)]


@pytest.mark.parametrize("name", [b"v:\xff\xfe\x00\x00\x00\x00\x00x", b"nonsense"])
def test_a_cell_that_nobody_can_read_holds_up_no_other(injected: Injected, registered: RegistrarStandIn, rows: Rows, name: bytes) -> None:
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 5))
    injected.fail()
    for partition in range(4):
        open_table(injected.settings).write([Mutation(RowKey("scratch", partition, b"\x00first"), [Cell(name, 1, b"0" * 16)])])
    assert (injected.sweep().done, injected.sweep().done) == (1, 0)


def test_a_version_that_comes_home_after_a_loss_is_not_known(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    """4 is put aside, 9 is written and told. The Matcher's partition is lost, with 9: when 4 comes home, who holds 4 is not covered."""
    injected.fail(DOWN_RULE)
    Task(injected).run(updates(rows, 4))
    injected.fail()
    Task(injected).run(updates(rows, 9))
    manifest = open_manifest(injected.settings)
    assert manifest.record_lost("table", "matcher", DOWN, manifest.record("table", "matcher", DOWN).incarnation)
    open_table(injected.settings).incarnation("matcher", DOWN)  # made anew
    assert manifest.mark_complete("table", "matcher", DOWN, manifest.record("table", "matcher", DOWN).incarnation)
    injected.heal()
    registered.told.clear()
    Task(injected).run([rows.registration("b", NAMES[DOWN], 1, held=4)])
    assert [outcome for client, _, outcome, _ in told(registered) if client == "b"] == [OUTCOME_UNKNOWN]


def test_neither_the_client_s_row_nor_scratch_the_batch_stays_open(injected: Injected, settings: Settings) -> None:
    (client,) = clients_in(1, 1)
    create(settings, client)
    injected.fail({"table": "registrar", "partitions": [1]}, {"table": "scratch"})
    running = in_the_background(lambda: Teller(injected, Counts()).tell([propagation(client)]))
    running.join(0.5)
    assert running.is_alive()
    injected.fail()
    running.join(20)
    assert waiting_for(settings, client) == [Waiting(key_of("x"), SEQNO, 7)]


# Fan-outs.


def fan_outs(settings: Settings) -> list[Origin]:
    feed = open_feed(settings)
    return [
        Origin(FAN_OUTS, p, record.offset, 1, 0, b"", record.value)
        for p, newest in feed.newest(FAN_OUTS).items()
        for record in feed.read(FAN_OUTS, p, 0, newest.offset)
    ]


def test_a_fan_out_whose_row_cannot_be_read_comes_back_through_the_matcher(
    injected: Injected, settings: Settings, registrar: RegistrarStandIn, rows: Rows
) -> None:
    injected.settings = replace(settings, fan_out_above=3)
    clients = [f"c{number}" for number in range(6)]
    Task(injected).run([rows.registration(client, NAMES[DOWN], 1) for client in clients])
    Task(injected).run(updates(rows, 5))
    (first,) = fan_outs(settings)
    injected.fail(DOWN_RULE)
    registrar.told.clear()
    counts = FanOut(injected).run([first])
    assert counts.scratched == 1
    assert injected.aside() == [Homeless(key_of(NAMES[DOWN]), 5, 0, 0)]
    injected.heal()
    second = fan_outs(settings)[-1]
    assert second != first
    injected.fail(DOWN_RULE)
    FanOut(injected).run([second])
    assert injected.aside() == [Homeless(key_of(NAMES[DOWN]), 5, 0, 1)], "another cell than the one that was brought home"
    injected.heal()
    FanOut(injected).run([fan_outs(settings)[-1]])
    assert {one.client for _, one in registrar.told} == set(clients)
    row = object_row(key_of(NAMES[DOWN]), 4)
    known = read_version(open_table(settings).read([row])[row])
    assert known is not None
    assert known.incarnation == known_since(open_manifest(settings).record, DOWN, 4), "what was known stays known"
