"""Calls to Registrars, and the blind write where none answers: real sockets, real tables, no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import (
    DROP_COPY,
    NOT_OWNER,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    client_partition,
    object_key,
)
from roskva.propagation import blind as blind_module
from roskva.propagation.links import Links
from roskva.registrar.cells import Created, Pending, client_row, created_cell, registration_cells, seqno_cell
from roskva.registrar.core import BlindDecision, blind
from roskva.registrar.row import ClientRow, Waiting
from roskva.table import open_table
from roskva.table.interface import Mutation, Row, RowKey
from roskva.table.marks import MARKS
from tests.pipeline.standin import RegistrarStandIn, marked, settings_for, sharing_ids, wait_until

KEY = object_key("demo", 0, b"thing")
SEQNO = 1 << 32 | 1


@pytest.fixture
def timeout_s() -> float:
    return 0.3


@pytest.fixture
def settings(tmp_path: Path, timeout_s: float) -> Settings:
    return settings_for(tmp_path, propagation_timeout_s=timeout_s)


@pytest.fixture
def registrars(settings: Settings) -> Iterator[list[RegistrarStandIn]]:
    started: list[RegistrarStandIn] = []
    yield started
    for registrar in started:
        registrar.die()


@pytest.fixture
def links(settings: Settings) -> Iterator[Links]:
    opened = Links(settings, open_table(settings))
    yield opened
    opened.close()


def told(client: str, version: int = 7, outcome: int = OUTCOME_UPDATE, key: ObjectKey = KEY) -> Propagation:
    return Propagation(ClientId(client), key, SEQNO, outcome, version)


def create(settings: Settings, client: str, pending: bool = False) -> None:
    cells = [created_cell(Created("demo", client)), seqno_cell(SEQNO), *registration_cells(KEY, SEQNO, True, Pending())]
    open_table(settings).write([Mutation(client_row(ClientId(client), settings.partitions), cells if pending else [*cells[:3]])])


def row_of(settings: Settings, client: str) -> ClientRow:
    key = client_row(ClientId(client), settings.partitions)
    return ClientRow(ClientId(client), open_table(settings).read([key])[key].values())


def test_each_registrar_gets_one_call_with_what_it_owns(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    one, two = sharing_ids(settings.partitions)
    registrars += [RegistrarStandIn(settings, identity=one), RegistrarStandIn(settings, lambda told: DROP_COPY, two)]
    batch = [told(f"c{number}") for number in range(40)]
    result = links.propagate(batch)
    owners = {registrar.id: {t.client for _, t in registrar.told} for registrar in registrars}
    assert [registrar.calls for registrar in registrars] == [1, 1]
    assert all(owners.values())
    assert set.union(*owners.values()) == {t.client for t in batch}
    assert result.verdicts == [SETTLED if t.client in owners[registrars[0].id] else DROP_COPY for t in batch]
    assert result.blind_writes == 0


def test_without_any_gateway_everything_is_written_blindly_behind_marks(settings: Settings, links: Links) -> None:
    create(settings, "here")
    result = links.propagate([told("here"), told("gone")])
    assert result.verdicts == [SETTLED, DROP_COPY], "a client whose row is gone is dropped by the Matcher"
    assert result.blind_writes == 2
    assert list(row_of(settings, "here").waiting()) == [Waiting(KEY, SEQNO, 7)]
    assert marked(settings) == {"here"}


def test_marks_that_always_come_too_late_are_given_up_for_now(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cannot mark in time writes nothing, and is asked again."""
    monkeypatch.setattr(blind_module, "came_in_time", lambda before, after: False)
    create(settings, "here")
    assert blind_module.write_blindly(open_table(settings), settings, [told("here")]) == [None]
    assert not row_of(settings, "here").waits


def test_marks_are_durable_before_the_row(settings: Settings, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    create(settings, "c")
    table = open_table(settings)
    written: list[str] = []
    original = table.write

    def write(mutations: list[Mutation]) -> None:
        written.extend(mutation.row.table for mutation in mutations)
        original(mutations)

    monkeypatch.setattr(table, "write", write)
    links.propagate([told("c")])
    assert written[:2] == [MARKS, "registrar"]


def test_a_blind_write_settles_a_registration(settings: Settings, links: Links) -> None:
    create(settings, "c", pending=True)
    assert row_of(settings, "c").pending_count == 1
    links.propagate([told("c", outcome=OUTCOME_VERSION)])
    row = row_of(settings, "c")
    assert row.pending_count == 0
    assert list(row.waiting()) == [Waiting(KEY, SEQNO, 7)]


def test_a_dead_registrar_is_tried_twice_then_written_for(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    registrars.append(RegistrarStandIn(settings))
    create(settings, "c")
    links.propagate([told("c", 1)])
    registrars[0].die()
    result = links.propagate([told("c", 2)])
    assert (result.verdicts, result.blind_writes) == ([SETTLED], 1)
    assert list(row_of(settings, "c").waiting()) == [Waiting(KEY, SEQNO, 2)]


def test_a_hung_registrar_costs_its_time_out_once_until_a_probe_answers(
    settings: Settings, links: Links, registrars: list[RegistrarStandIn]
) -> None:
    """Trap 25: one hung gateway must not cost every batch a time-out."""
    registrars.append(RegistrarStandIn(settings))
    create(settings, "c")
    registrars[0].answering.clear()
    began_s = time.monotonic()
    assert links.propagate([told("c", 1)]).blind_writes == 1
    assert time.monotonic() - began_s >= 2 * settings.propagation_timeout_s, "one retry with fresh members"
    calls = registrars[0].calls
    began_s = time.monotonic()
    assert links.propagate([told("c", 2)]).blind_writes == 1
    assert time.monotonic() - began_s < settings.propagation_timeout_s, "blind at once"
    assert registrars[0].calls == calls
    registrars[0].answering.set()
    wait_until(lambda: not links.down, 5, "a probe finds it again")
    assert registrars[0].probes >= 1
    result = links.propagate([told("c", 3)])
    assert (result.blind_writes, registrars[0].told[-1][1].version) == (0, 3)


def test_a_connection_that_died_quietly_is_made_anew(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    registrars.append(RegistrarStandIn(settings))
    links.propagate([told("c", 1)])
    for connection in list(registrars[0]._open):
        connection.shutdown(2)
    time.sleep(0.1)
    result = links.propagate([told("c", 2)])
    assert (result.verdicts, result.blind_writes) == ([SETTLED], 0)
    assert registrars[0].versions(KEY)[-1] == 2


def test_who_is_not_the_owner_is_asked_again_with_fresh_members_then_written_for(
    settings: Settings, links: Links, registrars: list[RegistrarStandIn]
) -> None:
    answers = iter([NOT_OWNER, SETTLED])
    registrars.append(RegistrarStandIn(settings, judge=lambda told: next(answers, NOT_OWNER)))
    create(settings, "c")
    result = links.propagate([told("c", 1)])
    assert (result.verdicts, result.blind_writes, result.retries) == ([SETTLED], 0, 1)
    result = links.propagate([told("c", 2)])
    assert (result.verdicts, result.blind_writes) == ([SETTLED], 1)
    assert registrars[0].calls == 2 + 3


def test_partitions_move_to_a_gateway_that_joins(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    one, two = sharing_ids(settings.partitions)
    registrars.append(RegistrarStandIn(settings, identity=one))
    batch = [told(f"c{number}") for number in range(40)]
    links.propagate(batch)
    registrars.append(RegistrarStandIn(settings, identity=two))
    time.sleep(0.6)
    links.propagate(batch)
    assert registrars[1].told
    registrars[1].leave()
    time.sleep(0.6)
    assert links.propagate(batch).blind_writes == 0


def test_an_unavailable_row_keeps_the_batch_open(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    answers = iter([UNAVAILABLE] * 4)
    registrars.append(RegistrarStandIn(settings, judge=lambda told: next(answers, SETTLED)))
    result = links.propagate([told("c")])
    assert (result.verdicts, result.blind_writes, result.retries) == ([SETTLED], 0, 4)


def test_a_table_that_fails_keeps_blind_writes_open_and_holds_up_no_other_partition(
    settings: Settings, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {client_partition(ClientId(name), settings.partitions): name for name in (f"c{number}" for number in range(40))}
    for name in clients.values():
        create(settings, name)
    table = open_table(settings)
    original = table.read
    failures = iter(range(3))
    order: list[int] = []

    def read(rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        if rows and rows[0].table == "registrar":
            if rows[0].partition == 1 and next(failures, None) is not None:
                raise PartitionUnavailable("busy", "table/registrar-1")
            order.append(rows[0].partition)
        return original(rows, prefix, limit, after)

    monkeypatch.setattr(table, "read", read)
    result = links.propagate([told(name) for name in clients.values()])
    assert set(result.verdicts) == {SETTLED}
    assert result.retries == 3
    assert order[-1] == 1
    assert sorted(order) == [0, 1, 2, 3]


def test_a_row_that_nobody_can_read_holds_up_nobody(
    settings: Settings, links: Links, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("good", "bad"):
        create(settings, name)

    def checked(row: ClientRow, told: Propagation) -> BlindDecision:
        if row.client == "bad" and not row.empty:
            raise ValueError("not a cell that anybody wrote")
        return blind(row, told)

    monkeypatch.setattr(blind_module, "blind", checked)
    assert links.propagate([told("bad"), told("good")]).verdicts == [DROP_COPY, SETTLED]
    assert [waiting.version for waiting in row_of(settings, "good").waiting()] == [7]
    assert "the row of client bad cannot be read" in caplog.text


def test_a_row_that_its_registrar_never_has_is_written_in_its_stead(
    settings: Settings, links: Links, registrars: list[RegistrarStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roskva.propagation.patience._LONGEST_S", 0.02)
    registrars.append(RegistrarStandIn(settings, judge=lambda told: UNAVAILABLE))
    create(settings, "c")
    result = links.propagate([told("c")])
    assert (result.verdicts, result.blind_writes) == ([SETTLED], 1)
    assert [waiting.version for waiting in row_of(settings, "c").waiting()] == [7]


@pytest.mark.parametrize("timeout_s", [30.0])  # on a busy machine an answer may take long; none is to go twice
def test_many_propagations_go_in_several_frames(settings: Settings, links: Links, registrars: list[RegistrarStandIn]) -> None:
    registrars.append(RegistrarStandIn(settings))
    result = links.propagate([told(f"c{number}") for number in range(12_000)])
    assert registrars[0].calls == 3
    assert result.verdicts == [SETTLED] * 12_000
    assert len(registrars[0].told) == 12_000
