"""Changes of a real PostgreSQL, from its log."""

from __future__ import annotations

import resource
import time

import psycopg2
import pytest

from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.stores.postgres.replication import before_time
from roskva.capture.updates import Change
from roskva.errors import DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores.postgres.place import Place, read_past, take
from tests.capture.stores.servers_postgres import PostgresServer


def rows(changes: list[Change]) -> list[tuple[str, object]]:
    return [(str(change.operation), change.key.get("id")) for change in changes]


def test_a_committed_change_is_read_with_its_key_time_and_place(place: Place) -> None:
    before_us = time.time_ns() // 1000
    change = place.one("INSERT INTO documents VALUES (1, 'þorn')")
    assert (change.operation, change.database, change.table) == ("insert", place.name, "documents")
    assert (change.key, change.columns, change.old_key, change.attached) == ({"id": 1}, {"id": 1, "title": "þorn"}, None, None)
    assert change.position.history == 1
    assert change.position.index == 1
    assert change.size > 0
    assert before_us <= change.committed_us <= time.time_ns() // 1000


def test_what_is_rolled_back_is_never_seen(place: Place) -> None:
    end = place.store.retained().end
    place.execute("BEGIN; INSERT INTO documents VALUES (1, 'a'); ROLLBACK")
    place.transaction(
        "INSERT INTO documents VALUES (2, 'b')",
        "SAVEPOINT here",
        "INSERT INTO documents VALUES (3, 'c')",
        "SELECT pg_logical_emit_message(true, 'roskva', '{\"gone\": 1}')",
        "ROLLBACK TO here",
        "INSERT INTO documents VALUES (4, 'd')",
    )
    changes = place.changes(2, end)
    assert rows(changes) == [("insert", 2), ("insert", 4)]
    assert [change.position.index for change in changes] == [1, 2]
    assert changes[1].attached is None


def test_transactions_come_in_the_order_of_their_commits(place: Place) -> None:
    end = place.store.retained().end
    first = psycopg2.connect(place.server.dsn(place.name))
    try:
        with first.cursor() as cursor:
            cursor.execute("INSERT INTO documents VALUES (1, 'began first')")
            place.execute("INSERT INTO documents VALUES (2, 'ended first')")
            cursor.execute("INSERT INTO documents VALUES (3, 'began first')")
        first.commit()
    finally:
        first.close()
    changes = place.changes(3, end)
    assert rows(changes) == [("insert", 2), ("insert", 1), ("insert", 3)]
    assert [change.position for change in changes] == sorted(change.position for change in changes)


def test_updates_deletes_and_changes_of_keys(place: Place) -> None:
    end = place.store.retained().end
    place.execute(
        "INSERT INTO documents VALUES (1, 'a')",
        "UPDATE documents SET title = NULL",
        "UPDATE documents SET id = 2",
        "DELETE FROM documents",
    )
    _, updated, moved, deleted = place.changes(4, end)
    assert (updated.key, updated.columns, updated.old_key) == ({"id": 1}, {"id": 1, "title": None}, None)
    assert (moved.key, moved.old_key) == ({"id": 2}, {"id": 1})
    assert (deleted.operation, deleted.key, deleted.columns) == ("delete", {"id": 2}, {"id": 2})


def test_values_of_many_types(place: Place) -> None:
    change = place.one(
        "CREATE TABLE kinds (id bigint PRIMARY KEY, b bool, s smallint, r real, d float8, n numeric, raw bytea, at timestamptz,"
        " day date, took interval, j jsonb, list int[], u uuid, c char(3), nothing text)",
        "SET timezone = 'America/New_York'; SET datestyle = 'German'; SET bytea_output = 'escape';"
        "INSERT INTO kinds VALUES (9223372036854775807, true, -5, 0.1, 'NaN', 12345678901234567890.123, '\\x00ff',"
        " '2026-01-02 03:04:05+00', '2026-01-02', '1 day 02:00',"
        " '{\"a\": [1]}', '{1,NULL}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ab', NULL)",
    )
    assert change.columns == {
        "id": 2**63 - 1,
        "b": True,
        "s": -5,
        "r": 0.1,
        "d": "NaN",
        "n": "12345678901234567890.123",
        "raw": b"\x00\xff",
        "at": "2026-01-02 03:04:05+00",
        "day": "2026-01-02",
        "took": "1 day 02:00:00",
        "j": '{"a": [1]}',
        "list": "{1,NULL}",
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "c": "ab ",
        "nothing": None,
    }


def test_a_database_without_an_encoding_may_hold_what_is_not_text(server: PostgresServer) -> None:
    place = Place(server, "ascii", "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        place.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        place.store.prepare()
        change = place.one("INSERT INTO t VALUES (1, E'caf\\xe9'), (2, 'plain')")
        assert change.columns == {"id": 1, "v": b"caf\xe9"}
    finally:
        place.close()


def test_a_database_of_another_encoding_is_read_as_unicode(server: PostgresServer) -> None:
    place = Place(server, "latin", "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        place.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        place.store.prepare()
        assert place.one("INSERT INTO t VALUES (1, 'café')").columns == {"id": 1, "v": "café"}
    finally:
        place.close()


def test_a_large_value_that_an_update_leaves_alone_is_named_as_unchanged(place: Place) -> None:
    place.execute(
        "CREATE TABLE large (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE large ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO large VALUES (1, 1, repeat('x', 100000))",
    )
    change = place.one("UPDATE large SET n = 2")
    assert (change.columns, change.unchanged) == ({"id": 1, "n": 2}, ("body",))
    place.execute("ALTER TABLE large REPLICA IDENTITY FULL")
    change = place.one("UPDATE large SET n = 3")
    assert (change.unchanged, change.key, change.old_key, len(str(change.columns["body"]))) == ((), {"id": 1}, None, 100_000)


def test_a_table_without_key_shows_the_old_row(place: Place) -> None:
    place.execute("CREATE TABLE loose (a int, b text)", "ALTER TABLE loose REPLICA IDENTITY FULL", "INSERT INTO loose VALUES (1, 'x')")
    updated = place.one("UPDATE loose SET b = 'y'")
    deleted = place.one("DELETE FROM loose")
    assert (updated.key, updated.columns, updated.old_key) == ({}, {"a": 1, "b": "y"}, {"a": 1, "b": "x"})
    assert (deleted.key, deleted.columns) == ({}, {"a": 1, "b": "y"})


def test_a_table_may_change_its_form_while_it_is_read(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    found = take(reader, 1)
    place.execute(
        "ALTER TABLE documents ADD COLUMN pages int DEFAULT 7",
        "INSERT INTO documents VALUES (2, 'b', 8)",
        "ALTER TABLE documents DROP COLUMN title",
        "UPDATE documents SET pages = 9 WHERE id = 1",
        "ALTER TABLE documents RENAME TO papers",
        "ALTER TABLE papers ALTER COLUMN pages TYPE text",
        "INSERT INTO papers VALUES (3, 'many')",
    )
    found += take(reader, 3)
    reader.close()
    assert [(change.table, change.columns) for change in found] == [
        ("documents", {"id": 1, "title": "a"}),
        ("documents", {"id": 2, "title": "b", "pages": 8}),
        ("documents", {"id": 1, "pages": 9}),
        ("papers", {"id": 3, "pages": "many"}),
    ]


def test_a_truncate_is_a_change_of_each_table(place: Place) -> None:
    place.execute("CREATE SCHEMA sales", "CREATE TABLE sales.orders (id int PRIMARY KEY)")
    end = place.store.retained().end
    place.execute("TRUNCATE documents, sales.orders")
    reader = place.store.read_after(end)
    first = reader.read(1, 5.0)  # what one message brings may be more than fits
    second = reader.read(1, 5.0)
    reader.close()
    changes = [*first.changes, *second.changes]
    assert [len(first.changes), len(second.changes)] == [1, 1]
    assert {(change.operation, change.table) for change in changes} == {("truncate", "documents"), ("truncate", "sales.orders")}
    assert [change.position.index for change in changes] == [1, 2]
    assert first.reached == changes[0].position < second.reached
    assert place.changes(1, first.reached) == [changes[1]]


def test_a_row_of_a_partitioned_table_is_of_that_table(place: Place) -> None:
    change = place.one(
        "CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (100)",
        "INSERT INTO events VALUES (5)",
    )
    assert (change.table, change.key) == ("events", {"id": 5})


def test_a_producer_attaches_keys_to_its_transaction(place: Place) -> None:
    end = place.store.retained().end
    place.transaction(
        "INSERT INTO documents VALUES (1, 'a')",
        'SELECT pg_logical_emit_message(true, \'roskva\', \'{"region": "eu", "n": 3}\')',
        "INSERT INTO documents VALUES (2, 'b')",
    )
    place.execute("INSERT INTO documents VALUES (3, 'c')")
    changes = place.changes(3, end)
    assert [change.attached for change in changes] == [None, {"region": "eu", "n": 3}, None]
    # Whoever begins in the middle of it learns the same.
    assert place.changes(2, changes[0].position) == changes[1:]


def test_other_messages_are_changes_of_no_row(place: Place) -> None:
    end = place.store.retained().end
    place.transaction("SELECT pg_logical_emit_message(true, 'audit', 'who')", "INSERT INTO documents VALUES (1, 'a')")
    place.execute("SELECT pg_logical_emit_message(false, 'roskva', '{}')", "SELECT pg_logical_emit_message(false, 'raw', '\\xff00'::bytea)")
    place.execute("INSERT INTO documents VALUES (2, 'b')")
    changes = place.changes(5, end)
    assert [(str(change.operation), change.table, change.columns.get("content")) for change in changes] == [
        ("message", "audit", "who"),
        ("insert", "documents", None),
        ("message", "roskva", "{}"),
        ("message", "raw", b"\xff\x00"),
        ("insert", "documents", None),
    ]
    positions = [change.position for change in changes]
    assert positions == sorted(set(positions))
    for number, position in enumerate(positions[:-1], 1):
        assert [change.position for change in place.changes(5 - number, position)] == positions[number:]


def test_reading_begins_after_any_position_even_within_a_commit(place: Place) -> None:
    end = place.store.retained().end
    place.execute("INSERT INTO documents SELECT n, 'a' FROM generate_series(1, 5) n", "INSERT INTO documents VALUES (6, 'b')")
    every = place.changes(6, end)
    for number, change in enumerate(every[:-1]):
        assert place.changes(5 - number, change.position) == every[number + 1 :]
    whole = every[0].position._replace(index=WHOLE)
    assert place.changes(1, whole) == every[5:]
    assert place.changes(6, every[0].position._replace(index=0)) == every


def test_several_readers_at_several_places_do_not_disturb_each_other(place: Place) -> None:
    end = place.store.retained().end
    place.execute(*(f"INSERT INTO documents VALUES ({number}, 'a')" for number in range(6)))
    every = place.changes(6, end)
    readers = [place.store.read_after(end), place.store.read_after(every[2].position), place.store.read_after(every[5].position)]
    place.execute("INSERT INTO documents VALUES (6, 'b')")
    found = [take(reader, count) for reader, count in zip(readers, (7, 4, 1), strict=True)]
    for reader in readers:
        reader.close()
    assert found[0][:6] == every
    assert found[1] == found[0][3:]
    assert found[2] == found[0][6:]
    assert place.store.retained().oldest <= end, "none of them has moved the anchor"


def test_a_transaction_of_any_size_needs_no_memory_to_speak_of(place: Place) -> None:
    """Its changes, held at once, would take some 150 MB."""
    end = place.store.retained().end
    place.execute("INSERT INTO documents SELECT n, 'title ' || n FROM generate_series(1, 150000) n")
    reader = place.store.read_after(end)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count, last = 0, end
    while count < 120_000:
        batch = reader.read(2000, 1.0)
        assert len(batch.changes) <= 2000
        assert not batch.changes or batch.reached == batch.changes[-1].position
        count, last = count + len(batch.changes), batch.reached
    reader.close()
    assert last.index == count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 40_000
    # And another reader goes on in the middle of it.
    (change,) = place.changes(1, last)
    assert (change.position, change.key) == (last._replace(index=count + 1), {"id": count + 1})


def test_a_quiet_reader_moves_on_with_the_log_of_others(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    place.server.execute("postgres", "CREATE TABLE IF NOT EXISTS others (n int)", "INSERT INTO others SELECT generate_series(1, 1000)")
    end = place.store.retained().end
    assert read_past(reader, end) == []
    # It has passed nothing that it would have had to give.
    place.execute("INSERT INTO documents VALUES (1, 'a')")
    (change,) = take(reader, 1)
    reader.close()
    assert change.position > end


def test_what_is_reached_never_passes_a_transaction_that_is_still_open(place: Place) -> None:
    reader = place.store.read_after(place.store.retained().end)
    open_one = psycopg2.connect(place.server.dsn(place.name))
    try:
        with open_one.cursor() as cursor:
            cursor.execute("INSERT INTO documents VALUES (1, 'a')")
        place.execute("INSERT INTO documents VALUES (2, 'b')")
        end = place.store.retained().end
        assert rows(read_past(reader, end)) == [("insert", 2)]
        open_one.commit()
    finally:
        open_one.close()
    (change,) = take(reader, 1)
    reader.close()
    assert change.key == {"id": 1}
    assert change.position > end


def test_reached_is_a_position_to_go_on_from(place: Place) -> None:
    end = place.store.retained().end
    place.execute(*(f"INSERT INTO documents SELECT n, 'a' FROM generate_series({start}, {start + 2}) n" for start in range(0, 30, 3)))
    every = place.changes(30, end)
    found: list[Change] = []
    position = end
    while len(found) < 30:
        reader = place.store.read_after(position)
        batch = reader.read(4, 5.0)
        reader.close()
        found += batch.changes
        position = batch.reached
    assert found == every


def test_nothing_comes_after_the_time_is_over(place: Place) -> None:
    end = place.store.retained().end
    reader = place.store.read_after(end)
    batch = reader.read(10, 0.05)
    reader.close()
    assert (list(batch.changes), batch.bytes_read) == ([], 0)
    assert batch.reached >= end


def test_positions_that_the_server_never_had_are_refused(place: Place) -> None:
    end = place.store.retained().end
    for position in (end._replace(history=2), end._replace(sequence=end.sequence + 1_000_000), end._replace(history=7, sequence=1)):
        with pytest.raises(WrongHistory):
            place.store.read_after(position)


def test_what_was_never_kept_or_was_confirmed_is_cut_off(place: Place) -> None:
    oldest = place.store.retained().oldest
    with pytest.raises(LogCut) as beginning:
        place.store.read_after(BEGINNING)
    assert beginning.value.oldest == oldest
    place.execute("INSERT INTO documents VALUES (1, 'a')", "INSERT INTO documents VALUES (2, 'b')")
    first, second = place.changes(2)
    place.store.confirm(first.position._replace(index=WHOLE))
    with pytest.raises(LogCut) as cut:
        place.store.read_after(oldest)
    assert place.changes(1, Position(*cut.value.oldest)) == [second]  # type: ignore[misc]  # an object, to the error


def test_a_time_is_found_in_the_log(place: Place) -> None:
    place.execute("INSERT INTO documents VALUES (1, 'a')", "SELECT pg_sleep(0.02)", "INSERT INTO documents VALUES (2, 'b')")
    first, second = place.changes(2)
    store = place.store
    assert store.at_time(first.committed_us / 1e6 - 10) < first.position
    between = store.at_time((first.committed_us + second.committed_us) / 2e6)
    assert first.position < between < second.position
    assert place.changes(1, between) == [second]
    later = store.at_time(time.time() + 1000)
    assert later > second.position
    place.execute("INSERT INTO documents VALUES (3, 'c')")
    assert rows(place.changes(1, later)) == [("insert", 3)]


def test_the_search_of_a_time_ends_when_nobody_waits_for_it_any_more(place: Place) -> None:
    store = place.store
    oldest, identity = store.retained().oldest, store.identity
    place.execute("INSERT INTO documents SELECT number, 'x' FROM generate_series(1, 20000) AS number")
    with pytest.raises(DatastoreUnavailable, match="given up"):
        before_time(place.settings, identity, oldest, int((time.time() + 1000) * 1e6), 20.0, lambda: True)
