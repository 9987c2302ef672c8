"""The Matcher's task over real engines, without Spark: what it writes, tells, buries and waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from roskva.config import Settings
from roskva.errors import FeedFull, PartitionUnavailable
from roskva.feed import open_feed
from roskva.feed.interface import DEAD_LETTERS, REGISTRATIONS, UPDATES
from roskva.matcher.cells import object_row, read_copies, read_version
from roskva.matcher.core import match
from roskva.matcher.forms import At, Form, Stamp, picked
from roskva.model import (
    DROP_COPY,
    OUTCOME_COVERED,
    OUTCOME_UNKNOWN,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    ClientId,
    ObjectKey,
    Registration,
    object_key,
    partition_of,
)
from roskva.pipeline.connections import Connections
from roskva.pipeline.events import COLUMNS, DeadLetter, decode_dead_letter
from roskva.pipeline.matching import MatchTask, Task
from roskva.pipeline.telling import COUNTS, Counts
from roskva.registrar.events import decode_registration, encode_registration
from roskva.table import open_manifest, open_table
from tests.pipeline.standin import RegistrarStandIn, name_in_partition, settings_for

KINDS = "STRING,BIGINT,STRING"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


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


class Rows:
    """Builds rows as the Bridge leaves them, with growing offsets."""

    def __init__(self, settings: Settings) -> None:
        self._offset = 0
        self._incarnation = open_feed(settings).newest(UPDATES)[0].incarnation
        self._settings = settings

    def row(self, topic: str, key: bytes, headers: bytes, value: bytes, bridged: tuple[Any, ...] = (None,) * 4) -> tuple[Any, ...]:
        self._offset += 1
        partition = partition_of(key, self._settings.partitions)
        incarnation = open_feed(self._settings).newest(UPDATES)[partition].incarnation
        return (topic, partition, self._offset, incarnation, 1000, headers, value, *bridged)

    def update(self, name: str, version: int, source: str = "", epoch: int | None = 0, again: bool = False) -> tuple[Any, ...]:
        value = f'{{"object":"{name}","version":{version},"source":"{source}"}}'.encode()
        bridged = (name.encode(), str(version).encode(), source.encode(), KINDS)
        return self.row(UPDATES, object_key("demo", epoch or 0, name.encode()), Stamp("demo", epoch, again).encode(), value, bridged)

    def registration(self, client: str, name: str, seqno: int, registered: bool = True, held: int | None = None) -> tuple[Any, ...]:
        key = object_key("demo", 0, name.encode())
        value = encode_registration(Registration(ClientId(client), key, seqno, registered, client, held))
        return self.row(REGISTRATIONS, key, b"", value)


@pytest.fixture
def rows(settings: Settings) -> Rows:
    return Rows(settings)


def key_of(name: str) -> ObjectKey:
    return object_key("demo", 0, name.encode())


def letters(settings: Settings) -> list[DeadLetter]:
    feed = open_feed(settings)
    found = [record for p in range(feed.partitions) for record in feed.read(DEAD_LETTERS, p, 0, 1_000)]
    return sorted((decode_dead_letter(record.value) for record in found), key=lambda letter: letter.offset)


def run(connected: Connections, *rows: tuple[Any, ...]) -> Counts:
    return Task(connected).run(rows)


def told(registrar: RegistrarStandIn) -> list[tuple[str, int, int, int]]:
    return [(t.client, t.seqno, t.outcome, t.version) for _, t in registrar.told]


def test_a_registration_survives_the_feed() -> None:
    registration = Registration(ClientId("c"), key_of("ü\x00"), 5 << 32, True, "d", held=2**63 - 1, repair=True)
    assert decode_registration(encode_registration(registration)) == registration


def test_an_update_is_written_and_told_to_the_registered(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    run(connected, rows.registration("a", "x", 1), rows.registration("b", "x", 2))
    assert told(registrar) == [("a", 1, OUTCOME_UNKNOWN, 0), ("b", 2, OUTCOME_UNKNOWN, 0)]
    registrar.told.clear()
    counts = run(connected, rows.update("x", 4), rows.update("x", 9), rows.update("x", 7))
    assert sorted(told(registrar)) == [("a", 1, OUTCOME_UPDATE, 9), ("b", 2, OUTCOME_UPDATE, 9)]
    assert (counts.updates, counts.propagations) == (3, 2)
    row = object_row(key_of("x"), 4)
    known = read_version(open_table(connected.settings).read([row])[row])
    assert known is not None
    assert known.version == 9


def test_an_update_and_a_registration_of_one_batch_meet(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    run(connected, rows.update("x", 4), rows.registration("a", "x", 1))
    assert sorted(told(registrar)) == [("a", 1, OUTCOME_UPDATE, 4), ("a", 1, OUTCOME_VERSION, 4)]


def test_a_client_that_holds_the_version_is_told_that_it_is_covered(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows
) -> None:
    run(connected, rows.update("x", 4))
    run(connected, rows.registration("a", "x", 1, held=4), rows.registration("b", "x", 1, held=3))
    assert told(registrar) == [("a", 1, OUTCOME_COVERED, 0), ("b", 1, OUTCOME_VERSION, 4)]


def test_nothing_is_known_while_a_partition_recovers(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    run(connected, rows.update("x", 4))
    partition = partition_of(key_of("x"), 4)
    manifest = open_manifest(connected.settings)
    manifest.record_lost("feed", UPDATES, partition, manifest.record("feed", UPDATES, partition).incarnation)
    run(connected, rows.registration("a", "x", 1, held=4))
    assert told(registrar) == [("a", 1, OUTCOME_UNKNOWN, 0)]


def test_the_source_of_an_update_is_left_out(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    run(connected, rows.registration("a", "x", 1), rows.registration("b", "x", 1))
    registrar.told.clear()
    run(connected, rows.update("x", 4, source="a"))
    assert told(registrar) == [("b", 1, OUTCOME_UPDATE, 4)]
    registrar.told.clear()
    run(connected, rows.update("x", 5, source="a", again=True))
    assert sorted(told(registrar)) == [("a", 1, OUTCOME_UPDATE, 5), ("b", 1, OUTCOME_UPDATE, 5)]


def test_an_update_without_an_epoch_takes_the_present_one(connected: Connections, rows: Rows) -> None:
    open_manifest(connected.settings).raise_epoch("demo", 0)
    run(connected, rows.update("x", 4, epoch=None))
    row = object_row(object_key("demo", 1, b"x"), 4)
    assert read_version(open_table(connected.settings).read([row])[row]) is not None


def test_a_dropped_copy_is_forgotten(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    run(connected, rows.registration("a", "x", 1), rows.registration("b", "x", 1))
    registrar.judge = lambda t: DROP_COPY if t.client == "a" else SETTLED
    counts = run(connected, rows.update("x", 4))
    assert counts.dropped_copies == 1
    row = object_row(key_of("x"), 4)
    assert [copy.client for copy in read_copies(open_table(connected.settings).read([row])[row])] == ["b"]


def test_poison_is_buried_once_and_the_rest_goes_through(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    key = key_of("x")
    batch = [
        rows.registration("a", "x", 1),
        rows.row(UPDATES, key, b"demo", b"\xff\x00"),
        rows.row(UPDATES, key, b"nobody", b'{"object":"x","version":1}'),
        rows.row(UPDATES, key, b"\xff", b'{"object":"x","version":1}'),
        rows.row(UPDATES, key, b"demo", b'{"object":"x","version":-1}', (b"x", b"-1", None, "STRING,BIGINT")),
        rows.row(UPDATES, key, b"demo -1", b'{"object":"x","version":1}', (b"x", b"1", None, "STRING,BIGINT")),
        rows.row(REGISTRATIONS, key, b"", b"[1,2]"),
        rows.row(REGISTRATIONS, key, b"", encode_registration(Registration(ClientId("c"), key, 1 << 70, True, "d"))),
        rows.update("x", 4),
    ]
    counts = run(connected, *batch)
    run(connected, *batch)
    assert counts.dead_letters == 7
    found = letters(connected.settings)
    assert [letter.code for letter in found][:4] == ["malformed-message", "unknown-application", "malformed-message", "invalid-version"]
    assert found[0].value == "base64:/wA="
    assert (found[1].application, found[1].topic, found[1].value) == ("nobody", "updates", '{"object":"x","version":1}')
    assert len({(letter.topic, letter.offset) for letter in found}) == len(found) == 7
    assert ("a", 1, OUTCOME_UPDATE, 4) in told(registrar)


def test_an_update_counts_in_the_form_in_which_it_was_accepted(connected: Connections, registrar: RegistrarStandIn, rows: Rows) -> None:
    """Applications come, and change their forms, while a query runs: what it knows of them is of its start."""
    deep = Form("doc.id", "rev", "by")
    for application, form, value, version in (
        ("later", Form(), b'{"object":"x","version":1,"doc":{"id":"no"},"rev":7}', 1),
        ("later", deep, b'{"object":"no","version":9,"doc":{"id":"x"},"rev":2}', 2),
        ("demo", deep, b'{"object":"no","version":9,"doc":{"id":"x"},"rev":3}', 3),
    ):
        key = object_key(application, 0, b"x")
        bridged = (b"no", b"9", None, "STRING,BIGINT")  # by the forms of the start
        row = rows.row(UPDATES, key, Stamp(application, 0, form=form).encode(), value, bridged)
        counts = run(connected, row)
        assert (counts.updates, counts.dead_letters) == (1, 0), application
        place = object_row(key, connected.settings.partitions)
        known = read_version(open_table(connected.settings).read([place])[place])
        assert known is not None
        assert known.version == version


def test_an_object_that_cannot_be_matched_is_buried_alone(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roskva.pipeline import matching

    def checked(batch: Any, *more: Any) -> Any:
        if key_of("bad") in batch.changes:
            raise RuntimeError("a row that nobody can read")
        return match(batch, *more)

    monkeypatch.setattr(matching, "match", checked)
    names = [f"n{number}" for number in range(8)]
    run(connected, *(rows.registration("a", name, 1) for name in names))
    registrar.told.clear()
    counts = run(connected, *(rows.update(name, 3) for name in names), rows.update("bad", 1))
    assert counts.dead_letters == 1
    assert "a row that nobody can read" in letters(connected.settings)[0].reason
    assert {t.object for _, t in registrar.told} == {key_of(name) for name in names}


def test_a_partition_that_fails_holds_up_no_other(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name_in_partition(partition) for partition in range(4)]
    run(connected, *(rows.registration("a", name, 1) for name in names))
    registrar.told.clear()
    table = open_table(connected.settings)
    original = table.write
    failures = iter(range(3))

    def write(mutations: Any) -> None:
        if any(m.row.table == "matcher" and m.row.partition == 2 for m in mutations) and next(failures, None) is not None:
            raise PartitionUnavailable("busy", "table/matcher-2")
        original(mutations)

    monkeypatch.setattr(table, "write", write)
    counts = run(connected, *(rows.update(name, 3) for name in names))
    assert [t.object for _, t in registrar.told][-1] == key_of(names[2]), "it came last"
    assert {t.object for _, t in registrar.told} == {key_of(name) for name in names}
    assert counts.retries == 3
    assert letters(connected.settings) == []


def test_full_dead_letters_hold_up_nobody(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise FeedFull("full")

    monkeypatch.setattr(open_feed(connected.settings), "append_once", full)
    run(connected, rows.row(UPDATES, b"x", b"demo", b"rubbish"), rows.registration("a", "x", 1))
    assert told(registrar) == [("a", 1, OUTCOME_UNKNOWN, 0)]
    assert "rubbish" in caplog.text
    caplog.clear()
    private = {"demo": replace(connected.settings.applications["demo"], private_names=True)}
    connected.settings = replace(connected.settings, applications=private)
    run(connected, rows.row(UPDATES, b"x", b"demo", b"rubbish"), rows.row(UPDATES, b"x", b"demo", b'{"object":"rubbish","version":-1}'))
    assert "rubbish" not in caplog.text
    assert "demo updates/" in caplog.text


def test_the_task_yields_one_row_of_counts(settings: Settings, registrar: RegistrarStandIn, rows: Rows) -> None:
    columns = list(zip(rows.update("x", 1), rows.update("y", 2), strict=True))
    batch = pa.RecordBatch.from_pydict(dict(zip(COLUMNS, map(list, columns), strict=True)))
    result = list(MatchTask(settings)(iter([batch])))
    assert result[0].schema.names == list(COUNTS)
    assert result[0].to_pylist()[0]["updates"] == 2
    assert list(MatchTask(settings)(iter([]))) == []


def test_the_stamps_of_a_sampled_update_go_along_with_what_is_told_of_it(
    connected: Connections, registrar: RegistrarStandIn, rows: Rows
) -> None:
    def sampled(name: str, version: int) -> tuple[Any, ...]:
        value = f'{{"object":"{name}","version":{version}}}'.encode()
        headers = Stamp("demo", 0, form=Form(), at=At(5, 4)).encode()
        return rows.row(UPDATES, key_of(name), picked(headers, 6, 7), value, (name.encode(), str(version).encode(), None, "STRING,BIGINT"))

    registered = [rows.registration("c1", name, 1) for name in ("x", "y", "z")]
    run(connected, *registered)
    assert registrar.stamps == []
    run(connected, sampled("x", 3), rows.update("y", 4), sampled("z", 1), rows.update("z", 2))
    (found,) = registrar.stamps
    assert found[:6] == (key_of("x"), 3, 4, 5, 0, 6), "of z a later version was told"
    assert found.read_us == 7
    assert found.bridged_us <= found.matched_us
    assert found.told_us == 0
