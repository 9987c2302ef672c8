"""Objects with many registrations over real engines, without Spark: handed over by the Matcher's task, told page by page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.feed import open_feed
from roskva.feed.interface import DEAD_LETTERS, FAN_OUTS, UPDATES, Entry
from roskva.matcher.cells import REG, object_row, read_copies, read_version, registration_cell
from roskva.matcher.core import collapse, tell_registered
from roskva.matcher.events import Invalidation, decode_fan_out, decode_update, encode_invalidation, encode_update
from roskva.matcher.forms import At, Form, Stamp, picked
from roskva.matcher.scratch import Unwalked, read_cell
from roskva.model import (
    DROP_COPY,
    OUTCOME_LOST,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    PUT_ASIDE,
    SETTLED,
    ClientId,
    ObjectKey,
    Propagation,
    Update,
    object_key,
    partition_of,
)
from roskva.pipeline import fanout
from roskva.pipeline.connections import Connections, connections
from roskva.pipeline.events import Origin, decode_dead_letter
from roskva.pipeline.fanout import FanOut, FanOutTask
from roskva.pipeline.health import HEALTH_ROW, ROUNDS
from roskva.pipeline.matching import Task
from roskva.pipeline.sweeps.frame import Progress, Request
from roskva.pipeline.sweeps.scratched import ScratchSweep
from roskva.pipeline.telling import COUNTS, Counts
from roskva.table import open_table
from roskva.table.interface import Mutation
from tests.pipeline.standin import RegistrarStandIn, settings_for
from tests.pipeline.test_matching import Rows, key_of

ABOVE = 10
CLIENTS = [f"c{number:02}" for number in range(25)]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(fanout, "PAGE_CELLS", 10)
    return settings_for(tmp_path, fan_out_above=ABOVE, scratch_after_s=0.2)


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.die()


@pytest.fixture
def connected(settings: Settings) -> Iterator[Connections]:
    opened = Connections(settings)
    yield opened
    opened.links.close()


@pytest.fixture
def rows(settings: Settings) -> Rows:
    return Rows(settings)


@pytest.fixture
def large(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> ObjectKey:
    """An object for which all CLIENTS are registered."""
    Task(connected).run([rows.registration(client, "large", 1) for client in CLIENTS])
    registrar.told.clear()
    return key_of("large")


def handed_over(settings: Settings) -> list[Update]:
    feed = open_feed(settings)
    return [decode_update(record.value) for p in range(feed.partitions) for record in feed.read(FAN_OUTS, p, 0, 1_000)]


def origin(value: bytes, offset: int = 0) -> Origin:
    return Origin(FAN_OUTS, 0, offset, 1, 1000, b"", value)


def fan_out(connected: Connections, *updates: Update) -> Counts:
    return FanOut(connected).run([origin(encode_update(update), offset) for offset, update in enumerate(updates)])


def test_the_matcher_writes_the_version_and_leaves_the_telling_to_the_fan_out(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    counts = Task(connected).run([rows.update("large", 7, source="c03"), rows.update("small", 1), rows.registration("new", "large", 1)])
    assert (counts.updates, counts.fan_outs) == (2, 1)
    assert handed_over(connected.settings) == [Update(large, 7, "c03")]
    assert [(t.client, t.outcome, t.version) for _, t in registrar.told] == [("new", OUTCOME_VERSION, 7)], "it reads the version itself"
    row = object_row(large, 4)
    known = read_version(open_table(connected.settings).read([row], prefix=b"version")[row])
    assert known is not None
    assert known.version == 7


def test_everyone_is_told_page_by_page_but_the_source(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    Task(connected).run([rows.update("large", 7, source="c03")])
    counts = fan_out(connected, *handed_over(connected.settings))
    assert sorted(t.client for _, t in registrar.told) == [client for client in CLIENTS if client != "c03"]
    assert registrar.versions(large) == [7] * 24
    assert (counts.fan_outs, counts.propagations, registrar.calls) == (1, 24, 1 + 3)


def test_the_stamps_of_a_sampled_update_go_through_the_second_query_with_some_of_its_pages(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    sampled = Stamp("demo", 0, form=Form(), at=At(5, 4)).encode()
    Task(connected).run([rows.row(UPDATES, large, picked(sampled, 6, 7), b'{"object":"large","version":7}')])
    feed = open_feed(connected.settings)
    (record,) = [record for p in range(feed.partitions) for record in feed.read(FAN_OUTS, p, 0, 10)]
    FanOut(connected).run([Origin(FAN_OUTS, 0, 0, 1, 1000, picked(record.headers, 8, 9), record.value)])
    assert registrar.calls == 1 + 3, "three pages"
    first, second = registrar.stamps
    assert (first.object, first.version, first.published_us, first.received_us) == (large, 7, 4, 5)
    assert (first.picked_us, first.read_us, first.fanned_out) == (8, 9, True), "by the second query"
    assert first.bridged_us <= first.matched_us
    assert (second.received_us, second.picked_us, second.matched_us) == (5, 0, 0), "the hops are told once"


def test_updates_that_meet_are_told_once_and_as_the_row_has_it(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    Task(connected).run([rows.update("large", 7, source="c03")])
    Task(connected).run([rows.update("large", 8, source="c03")])
    Task(connected).run([rows.update("large", 9, source="c04")])
    fan_out(connected, *handed_over(connected.settings)[:2])
    assert registrar.versions(large) == [9] * 25, "nobody is left out: 9 has another source"


def test_a_registration_of_the_meantime_is_told_or_has_read_the_version(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    Task(connected).run([rows.update("large", 7)])
    walk = fanout._Walk(large, collapse([Update(large, 7, "")], []).changes[large], 4)
    page = walk.read(connected.table)
    told = walk.told_of(page)
    walk.go_on(page)
    Task(connected).run([rows.registration("c005", "large", 1), rows.registration("c205", "large", 1)])  # behind the walk, before it
    while not walk.done:
        page = walk.read(connected.table)
        told += walk.told_of(page)
        walk.go_on(page)
    informed = {t.client for t in told if t.version == 7} | {t.client for _, t in registrar.told if t.version == 7}
    assert informed == {*CLIENTS, "c005", "c205"}


def test_objects_take_turns(connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey) -> None:
    Task(connected).run([rows.registration(client, "other", 1) for client in CLIENTS])
    registrar.told.clear()
    fan_out(connected, Update(large, 1, ""), Update(key_of("other"), 1, ""))
    order = [t.object for _, t in registrar.told]
    assert [order[at] for at in (0, 10, 20, 30, 40, 45)] == [large, key_of("other")] * 3


def test_pages_that_cannot_be_read_now_are_read_later(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connected.table.read
    failures = iter([False, True, False, True, True])

    def read(keys: Any, *more: Any, **named: Any) -> Any:
        if keys[0].table == "matcher" and next(failures, False):
            raise PartitionUnavailable("busy", "table/matcher-0")
        return original(keys, *more, **named)

    monkeypatch.setattr(connected.table, "read", read)
    counts = fan_out(connected, Update(large, 3, ""))
    assert registrar.versions(large) == [3] * 25
    assert counts.retries == 3


def test_a_page_whose_telling_fails_is_told_again(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connected.links.propagate
    failures = iter([OSError("no key"), RuntimeError("unforeseen"), PartitionUnavailable("busy", "x")])

    def propagate(told: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return original(told)

    monkeypatch.setattr(connected.links, "propagate", propagate)
    fan_out(connected, Update(large, 3, ""))
    assert sorted(t.client for _, t in registrar.told) == CLIENTS


def test_copies_of_the_dead_are_dropped(connected: Connections, registrar: RegistrarStandIn, large: ObjectKey) -> None:
    registrar.judge = lambda told: DROP_COPY if told.client == "c07" else SETTLED
    assert fan_out(connected, Update(large, 3, "")).dropped_copies == 1
    row = object_row(large, 4)
    assert "c07" not in {copy.client for copy in read_copies(open_table(connected.settings).read([row])[row])}


def test_poison_is_buried_and_the_rest_goes_through(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(key: ObjectKey, *more: Any) -> Any:
        if key == key_of("bad"):
            raise RuntimeError("a row that nobody can read")
        return tell_registered(key, *more)

    monkeypatch.setattr(fanout, "tell_registered", checked)
    values = [b"\xff", encode_update(Update(key_of("bad"), 1, "")), encode_update(Update(large, 3, "")), b"[]"]
    counts = FanOut(connected).run([origin(value, offset) for offset, value in enumerate(values)])
    assert registrar.versions(large) == [3] * 25
    assert counts.dead_letters == 3
    feed = open_feed(connected.settings)
    letters = [decode_dead_letter(record.value) for p in range(4) for record in feed.read(DEAD_LETTERS, p, 0, 100)]
    assert sorted(letter.offset for letter in letters) == [0, 1, 3]
    assert {letter.topic for letter in letters} == {FAN_OUTS}


def test_a_full_topic_keeps_the_batch_open_until_the_fan_out_has_caught_up(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connected.feed.append
    refusals = iter([True, True])

    def append(topic: str, entries: list[Entry]) -> Any:
        if topic == FAN_OUTS and next(refusals, False):
            raise PartitionUnavailable("full", "feed/fan-outs-0")
        return original(topic, entries)

    monkeypatch.setattr(connected.feed, "append", append)
    counts = Task(connected).run([rows.update("large", 7)])
    assert counts.retries == 2
    assert handed_over(connected.settings) == [Update(large, 7, "", again=True)]


def test_a_long_walk_says_that_it_moves(connected: Connections, registrar: RegistrarStandIn, large: ObjectKey) -> None:
    def rounds() -> int:
        cell = connected.table.read([HEALTH_ROW], prefix=ROUNDS)[HEALTH_ROW].get(ROUNDS)
        return 0 if cell is None else cell.timestamp

    fan_out(connected, Update(large, 3, ""))
    assert rounds() == 1, "once a second at most"
    fan_out(connected, Update(large, 4, ""))
    assert rounds() == 2


def test_many_thousands_are_told_a_page_at_a_time(
    settings: Settings, connected: Connections, registrar: RegistrarStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "PAGE_CELLS", 1_000)
    key = object_key("demo", 0, b"huge")
    row = object_row(key, settings.partitions)
    for start in range(0, 20_000, 1_000):
        cells = [registration_cell(ClientId(f"c{number:06}"), 1, f"d{number}", registered=True) for number in range(start, start + 1_000)]
        connected.table.write([Mutation(row, cells)])
    sizes: list[int] = []
    original = connected.links.propagate

    def propagate(told: list[Propagation]) -> Any:
        sizes.append(len(told))
        return original(told)

    monkeypatch.setattr(connected.links, "propagate", propagate)
    fan_out(connected, Update(key, 3, ""))
    assert sizes == [1_000] * 20
    assert len({told.client for _, told in registrar.told}) == 20_000


def test_the_task_yields_one_row_of_counts(settings: Settings, registrar: RegistrarStandIn, large: ObjectKey) -> None:
    columns = {name: [value] for name, value in origin(encode_update(Update(large, 3, "")))._asdict().items()}
    result = list(FanOutTask(settings)(iter([pa.RecordBatch.from_pydict(columns)])))
    assert result[0].schema.names == list(COUNTS)
    assert result[0].to_pylist()[0]["propagations"] == 25
    assert list(FanOutTask(settings)(iter([]))) == []
    connections(settings).links.close()  # else the worker's, which live on


def invalidate(connected: Connections, *orders: tuple[int, Invalidation]) -> Counts:
    """Each order is the partition of its record, and what is invalidated."""
    return FanOut(connected).run(
        [origin(encode_invalidation(order), offset)._replace(partition=partition) for offset, (partition, order) in enumerate(orders)]
    )


def whole(prefix: bytes, epoch: int = 0) -> list[tuple[int, Invalidation]]:
    """One order in every partition, as the gateway appends it."""
    return [(partition, Invalidation(object_key("demo", epoch, prefix), prefix=True)) for partition in range(4)]


def informed(registrar: RegistrarStandIn) -> list[tuple[str, str]]:
    assert {told.outcome for _, told in registrar.told} <= {OUTCOME_LOST}
    return sorted((told.object[len(key_of("")) :].decode(), told.client) for _, told in registrar.told)


def test_records_of_both_kinds_decode() -> None:
    update, order = Update(key_of("a"), 7, "c03", again=True), Invalidation(key_of("a"), prefix=True)
    assert decode_fan_out(encode_update(update)) == update
    assert decode_fan_out(encode_invalidation(order)) == order
    assert encode_update(update).startswith(b"["), "as before there were invalidations"


def test_an_invalidated_object_is_walked_and_everyone_is_to_be_registered_anew(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    Task(connected).run([rows.registration("c00", "larger", 1)])
    registrar.told.clear()
    before = registrar.calls
    counts = invalidate(connected, (0, Invalidation(large)), (0, Invalidation(large)))
    assert informed(registrar) == [("large", client) for client in CLIENTS], "once, though it was ordered twice"
    assert {told.seqno for _, told in registrar.told} == {1}
    assert (counts.fan_outs, counts.invalidated, registrar.calls - before) == (2, 25, 3), "page by page"


@pytest.mark.parametrize(
    ("prefix", "expected"), [("l", "l la large"), ("la", "la large"), ("large", "large"), ("x", ""), ("", "k l la large m")]
)
def test_a_prefix_reaches_what_begins_with_it_in_all_partitions_and_nothing_else(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey, prefix: str, expected: str
) -> None:
    few = [rows.registration("c1", name, 1) for name in ("k", "l", "la", "m")]
    elsewhere = object_key("demo2", 0, b"large"), object_key("demo", 1, b"large")
    Task(connected).run(few)
    table = open_table(connected.settings)
    table.write([Mutation(object_row(key, 4), [registration_cell(ClientId("no"), 1, "", registered=True)]) for key in elsewhere])
    registrar.told.clear()
    invalidate(connected, *whole(prefix.encode()))
    wanted = expected.split()
    assert informed(registrar) == sorted(
        [(name, "c1") for name in wanted if name != "large"] + [("large", c) for c in CLIENTS if "large" in wanted]
    )


def test_many_small_rows_are_told_in_pages_and_a_large_one_does_not_make_them_wait(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "ROWS_AT_A_TIME", 7)
    names = [f"l{number:03}" for number in range(60)]
    Task(connected).run([rows.registration("c1", name, 1) for name in names])
    registrar.told.clear()
    before = registrar.calls
    counts = invalidate(connected, *whole(b"l"))
    assert informed(registrar) == sorted([(name, "c1") for name in names] + [("large", client) for client in CLIENTS])
    assert counts.invalidated == 85
    assert 60 / 7 + 3 <= registrar.calls - before <= 20
    table = open_table(connected.settings)
    assert all(len(list(table.scan("matcher", partition))) for partition in range(4)), "the rows are in all partitions"


def test_the_unregistered_are_left_alone(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    Task(connected).run([rows.registration("c1", "x", 1), rows.registration("c2", "x", 1)])
    Task(connected).run([rows.registration("c2", "x", 2, registered=False)])
    registrar.told.clear()
    assert invalidate(connected, *whole(b"")).invalidated == 1
    assert informed(registrar) == [("x", "c1")]


def test_rows_that_cannot_be_scanned_now_are_scanned_later(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connected.table.scan
    failures = iter([True, False, True])

    def scan(*more: Any, **named: Any) -> Any:
        if next(failures, False):
            raise PartitionUnavailable("busy", "table/matcher-0")
        return original(*more, **named)

    monkeypatch.setattr(connected.table, "scan", scan)
    assert invalidate(connected, *whole(b"la")).retries == 2
    assert informed(registrar) == [("large", client) for client in CLIENTS]


def test_an_update_and_an_invalidation_of_one_object_are_both_told(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, large: ObjectKey
) -> None:
    values = [encode_update(Update(large, 3, "")), encode_invalidation(Invalidation(large)), b'{"invalidate": 1}', b'{"nonsense": "x"}']
    counts = FanOut(connected).run([origin(value, offset) for offset, value in enumerate(values)])
    assert sorted(told.outcome for _, told in registrar.told) == [OUTCOME_UPDATE] * 25 + [OUTCOME_LOST] * 25
    assert counts.invalidated == 25
    assert counts.dead_letters == 2


def test_a_client_whose_row_cannot_be_written_is_put_aside_alone(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connected.links.propagate

    def propagate(told: list[Propagation], **more: Any) -> Any:
        answer = original(told, **more)
        special = {"c03": PUT_ASIDE, "c04": DROP_COPY}
        return replace(answer, verdicts=[special.get(one.client, SETTLED) for one in told])

    monkeypatch.setattr(connected.links, "propagate", propagate)
    counts = invalidate(connected, (0, Invalidation(large)))
    assert (counts.scratched, counts.dropped_copies) == (1, 1)
    assert counts.invalidated == len(CLIENTS) - 2, "neither who is still to be told, nor who is gone"
    (untold,) = put_aside(connected)
    assert isinstance(untold, Propagation)
    assert (untold.client, untold.object, untold.outcome) == ("c03", large, OUTCOME_LOST)
    monkeypatch.undo()
    registrar.told.clear()
    sweep_scratch(connected)
    assert [(told.client, told.outcome) for _, told in registrar.told] == [("c03", OUTCOME_LOST)]
    assert put_aside(connected) == []


@pytest.mark.parametrize("prefix", [False, True])
def test_an_invalidation_whose_rows_cannot_be_read_goes_on_later_from_where_it_was(
    connected: Connections, registrar: RegistrarStandIn, large: ObjectKey, monkeypatch: pytest.MonkeyPatch, prefix: bool
) -> None:
    """Page by page; after the second one nothing can be read any more, for longer than anybody waits."""
    monkeypatch.setattr(fanout, "PAGE_CELLS", 10)
    reads = iter([True, True])
    original = connected.table.read

    def read(*more: Any, **named: Any) -> Any:
        if named.get("prefix") == REG and not next(reads, False):
            raise PartitionUnavailable("busy", "table/matcher-0")
        return original(*more, **named)

    monkeypatch.setattr(connected.table, "read", read)
    ordered = Invalidation(large[:-1], prefix=True) if prefix else Invalidation(large)
    invalidate(connected, (partition_of(large, connected.settings.partitions), ordered))
    assert 10 <= len(informed(registrar)) < len(CLIENTS)
    monkeypatch.undo()
    monkeypatch.setattr(fanout, "PAGE_CELLS", 10)
    assert [type(one) for one in put_aside(connected)] == [Unwalked]
    sweep_scratch(connected)
    assert put_aside(connected) == []
    again = connected.feed.read(FAN_OUTS, partition_of(large, connected.settings.partitions), 0, 10)
    FanOut(connected).run([origin(record.value, record.offset)._replace(partition=record.partition) for record in again])
    assert informed(registrar) == [("large", client) for client in CLIENTS], "each once"


def put_aside(connected: Connections) -> list[Any]:
    partitions = range(connected.settings.partitions)
    return [read_cell(cell) for number in partitions for _, row in connected.table.scan("scratch", number) for cell in row.values()]


def sweep_scratch(connected: Connections) -> None:
    sweep = ScratchSweep(connected, Request("scratch", 0), Progress())
    for partition in range(connected.settings.partitions):
        sweep.run(partition)
