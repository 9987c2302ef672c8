"""The MariaDB datastore over a real server: what its rows, transactions and statements become."""

from __future__ import annotations

import threading
import tracemalloc
from contextlib import closing

import pytest

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.mariadb import MariadbStore
from roskva.capture.updates import Operation
from roskva.errors import CaptureRefused, DatastoreUnavailable
from tests.capture.stores.binlog.reading import batches_to, read_to
from tests.capture.stores.servers_mariadb import MariadbServer


def test_rows_come_in_the_order_of_their_commits_and_are_counted_within_them(
    server: MariadbServer, store: MariadbStore, database: str
) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", database=database)
    begin = store.retained().end
    server.run(
        "BEGIN", "INSERT INTO t VALUES (1, 'a'), (2, NULL)", "UPDATE t SET v = 'b' WHERE id = 1", "DELETE FROM t WHERE id = 2", "COMMIT",
        "INSERT INTO t VALUES (3, 'c')", database=database,
    )  # fmt: skip
    changes = read_to(store, begin)
    first, second = Position(0, begin.sequence + 1), Position(0, begin.sequence + 2)
    assert [(change.position, change.operation, change.key, change.columns) for change in changes] == [
        (first._replace(index=1), Operation.INSERT, {"id": 1}, {"id": 1, "v": "a"}),
        (first._replace(index=2), Operation.INSERT, {"id": 2}, {"id": 2, "v": None}),
        (first._replace(index=3), Operation.UPDATE, {"id": 1}, {"id": 1, "v": "b"}),
        (first._replace(index=4), Operation.DELETE, {"id": 2}, {"id": 2, "v": None}),
        (second._replace(index=1), Operation.INSERT, {"id": 3}, {"id": 3, "v": "c"}),
    ]
    assert {(change.database, change.table, change.unchanged, change.attached, change.old_key) for change in changes} == {
        (database, "t", (), None, None)
    }
    assert all(change.size > 0 and change.committed_us > 1_700_000_000_000_000 for change in changes)
    assert store.retained().end == second


def test_reading_goes_on_after_any_row_even_in_the_middle_of_a_commit(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))", database=database)
    begin = store.retained().end
    server.run(
        "BEGIN",
        "INSERT INTO t SELECT seq, IF(seq % 3, repeat('x', seq), NULL) FROM seq_1_to_20",
        "UPDATE t SET v = 'y'",
        "COMMIT",
        database=database,
    )
    server.run("INSERT INTO t VALUES (100, 'z')", "DELETE FROM t WHERE id = 100", database=database)
    changes = read_to(store, begin)
    assert len(changes) == 42
    for place, change in enumerate(changes):
        if place % 9 == 0 or place > 39:
            assert read_to(store, change.position) == changes[place + 1 :]
    assert read_to(store, Position(0, changes[0].position.sequence, 0)) == changes


def test_a_batch_has_no_more_than_was_asked_for_and_says_how_far_it_got(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    begin = store.retained().end
    server.run("INSERT INTO t SELECT seq FROM seq_1_to_25", database=database)
    batches = [batch for batch in batches_to(store, begin, changes_max=10) if batch.changes]
    assert [len(batch.changes) for batch in batches] == [10, 10, 5]
    assert [batch.reached for batch in batches[:2]] == [batches[0].changes[-1].position, batches[1].changes[-1].position]
    assert sum(batch.bytes_read for batch in batches) > 100
    for batch in batches:
        again = read_to(store, batch.reached)
        assert [change.key["id"] for change in again] == list(range(int(str(batch.changes[-1].key["id"])) + 1, 26))


def test_a_changed_key_brings_the_old_one(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (v INT, a INT, b VARCHAR(10), w INT, PRIMARY KEY (b, a))", database=database)
    server.run("INSERT INTO t VALUES (1, 2, 'x', NULL), (1, 3, 'y', 7)", database=database)
    begin = store.retained().end
    server.run(
        "UPDATE t SET a = 9 WHERE a = 2", "UPDATE t SET a = 8, b = 'z' WHERE a = 3", "UPDATE t SET v = 5 WHERE a = 8", database=database
    )
    assert [(change.key, change.old_key, change.columns["v"]) for change in read_to(store, begin)] == [
        ({"b": "x", "a": 9}, {"b": "x", "a": 2}, 1),
        ({"b": "z", "a": 8}, {"b": "y", "a": 3}, 1),
        ({"b": "z", "a": 8}, None, 5),
    ]


def test_a_table_without_key_has_none(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (a INT, b INT UNIQUE)", database=database)
    begin = store.retained().end
    server.run("INSERT INTO t VALUES (1, 2)", "UPDATE t SET b = 3", "DELETE FROM t", database=database)
    assert [(change.key, change.old_key, dict(change.columns)) for change in read_to(store, begin)] == [
        ({}, None, {"a": 1, "b": 2}),
        ({}, None, {"a": 1, "b": 3}),
        ({}, None, {"a": 1, "b": 3}),
    ]


def test_truncate_is_a_change_of_the_whole_table(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE `tä``b` (id INT)", "CREATE TABLE c (id INT)", "INSERT INTO c VALUES (1)", database=database)
    begin = store.retained().end
    server.run(
        "TRUNCATE TABLE `tä``b`", f"/* by hand */ truncate {database}.c", f"TRUNCATE `{database}` . `c` NOWAIT",
        "SET STATEMENT max_statement_time = 10 FOR TRUNCATE TABLE c", "ALTER TABLE c ADD COLUMN truncate_me INT", "SET NAMES latin1",
        "TRUNCATE `tä``b`".encode("latin1"), database=database,
    )  # fmt: skip
    changes = read_to(store, begin)
    assert [change.table for change in changes] == ["tä`b", "c", "c", "c", "tä`b"]
    assert {(change.operation, change.database, len(change.key), len(change.columns)) for change in changes} == {
        (Operation.TRUNCATE, database, 0, 0)
    }
    assert read_to(store, changes[0].position) == changes[1:]


def test_whatever_takes_rows_away_without_a_word_is_told_as_a_truncate(server: MariadbServer, store: MariadbStore, database: str) -> None:
    parts = (
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20), PARTITION r VALUES LESS THAN (30))"
    )
    server.run(
        f"CREATE TABLE t (id INT PRIMARY KEY) {parts}", "CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (11), (21)",
        database=database,
    )  # fmt: skip
    begin = store.retained().end
    server.run(
        "ALTER TABLE t TRUNCATE PARTITION p", "ALTER TABLE t EXCHANGE PARTITION q WITH TABLE u", "ALTER TABLE t DROP PARTITION r",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)", "CREATE OR REPLACE TABLE v (id INT PRIMARY KEY) SELECT 7 AS id",
        f"CREATE TEMPORARY TABLE {database}.w (id INT)", "DROP TEMPORARY TABLE w", f"DROP TABLE u, {database}.v", "DROP TABLE IF EXISTS t",
        database=database,
    )  # fmt: skip
    told = [(change.operation, change.table) for change in read_to(store, begin)]
    at = told.index((Operation.INSERT, "v"))
    assert told[:at] + told[at + 1 :] == [(Operation.TRUNCATE, name) for name in "ttuttvuvt"]
    assert told[at - 1] == (Operation.TRUNCATE, "v")


def test_rows_have_the_columns_of_their_time_whatever_became_of_the_table(
    server: MariadbServer, store: MariadbStore, database: str
) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", database=database)
    begin = store.retained().end
    server.run(
        "INSERT INTO t VALUES (1, 2, 3)", "ALTER TABLE t DROP COLUMN a", "INSERT INTO t VALUES (2, 3)",
        "ALTER TABLE t RENAME COLUMN b TO c, ADD COLUMN d VARCHAR(10) FIRST", "INSERT INTO t VALUES ('x', 3, 4)",
        "DROP TABLE t", database=database,
    )  # fmt: skip
    assert [change.columns for change in read_to(store, begin)] == [
        {"id": 1, "a": 2, "b": 3},
        {"id": 2, "b": 3},
        {"d": "x", "id": 3, "c": 4},
        {},  # the table is gone
    ]


@pytest.mark.parametrize("metadata", ["NO_LOG", "MINIMAL"])
def test_without_metadata_the_table_is_described_as_it_is_now(
    server: MariadbServer, store: MariadbStore, database: str, metadata: str
) -> None:
    server.run(
        "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, e ENUM('a', 'it''s'), b BLOB, v VARCHAR(9))",
        "CREATE TABLE gone (a INT, b VARCHAR(9))",
        database=database,
    )
    server.run(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        begin = store.retained().end
        server.run(
            "INSERT INTO t VALUES (4000000000, 'it''s', 'b', 'v')", "INSERT INTO gone VALUES (1, 'x')", "DROP TABLE gone", database=database
        )
        changes = read_to(store, begin)
        assert [(change.key, change.columns) for change in changes] == [
            ({"id": 4_000_000_000}, {"id": 4_000_000_000, "e": "it's", "b": b"b", "v": "v"}),
            ({}, {"@1": 1, "@2": "x"}),
            ({}, {}),  # it is gone
        ]
        server.run("ALTER TABLE t DROP COLUMN b", database=database)
        with pytest.raises(CaptureRefused, match=rf"{database}\.t were logged with 4 columns, it has 3 now.*binlog_row_metadata = FULL"):
            read_to(store, begin)
    finally:
        server.run("SET GLOBAL binlog_row_metadata = 'FULL'")


def test_a_table_that_is_created_with_rows_brings_them(server: MariadbServer, store: MariadbStore, database: str) -> None:
    begin = store.retained().end
    server.run("CREATE TABLE t (PRIMARY KEY (id)) SELECT seq AS id, 'x' AS v FROM seq_1_to_2", database=database)
    server.run("CREATE OR REPLACE TABLE t SELECT 3 AS id", database=database)
    changes = read_to(store, begin)
    assert [(change.position.index, change.key, change.columns) for change in changes] == [
        (1, {"id": 1}, {"id": 1, "v": "x"}),
        (2, {"id": 2}, {"id": 2, "v": "x"}),
        (1, {}, {}),  # what was there is gone
        (2, {}, {"id": 3}),
    ]


def test_columns_that_the_log_leaves_out_are_named(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)", "INSERT INTO t VALUES (1, 2, 'three')", database=database)
    begin = store.retained().end
    server.run("SET binlog_row_image = 'MINIMAL'", "UPDATE t SET a = 5", "UPDATE t SET id = 9", "DELETE FROM t", database=database)
    assert [(change.key, change.old_key, change.columns, change.unchanged) for change in read_to(store, begin)] == [
        ({"id": 1}, None, {"id": 1, "a": 5}, ("b",)),
        ({"id": 9}, {"id": 1}, {"id": 9}, ("a", "b")),
        ({"id": 9}, None, {"id": 9}, ("a", "b")),
    ]


def test_compressed_events_are_read(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "SET GLOBAL log_bin_compress = ON", database=database)
    try:
        begin = store.retained().end
        server.run(
            "INSERT INTO t VALUES (1, repeat('x', 3000)), (2, repeat('y', 3000))", "UPDATE t SET v = repeat('z', 2000)", "DELETE FROM t",
            f"TRUNCATE t /* {'so ' * 200} */", database=database,
        )  # fmt: skip
    finally:
        server.run("SET GLOBAL log_bin_compress = OFF")
    changes = read_to(store, begin)
    assert [(change.operation, len(str(change.columns.get("v", "")))) for change in changes] == [
        (Operation.INSERT, 3000), (Operation.INSERT, 3000), (Operation.UPDATE, 2000), (Operation.UPDATE, 2000),
        (Operation.DELETE, 2000), (Operation.DELETE, 2000), (Operation.TRUNCATE, 0),
    ]  # fmt: skip


def test_a_transaction_of_many_rows_needs_no_more_memory_than_a_piece_of_it(
    server: MariadbServer, store: MariadbStore, database: str
) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", database=database)
    begin = store.retained().end
    server.run("INSERT INTO t SELECT seq, repeat('x', 1000) FROM seq_1_to_20000", database=database)
    end = Position(0, begin.sequence + 1)
    reader = store.read_after(begin)
    seen, bytes_read, reached = 0, 0, begin
    tracemalloc.start()
    try:
        while reached < end:
            batch = reader.read(200, 10.0)
            for change in batch.changes:
                seen += 1
                assert change.key == {"id": seen}
            reached, bytes_read = batch.reached, bytes_read + batch.bytes_read
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        reader.close()
    assert seen == 20_000
    assert bytes_read > 20_000_000
    assert peak_bytes < 4_000_000


def test_a_row_larger_than_a_packet_is_read(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)", database=database)
    begin = store.retained().end
    server.run("INSERT INTO t VALUES (1, repeat('ab', 9000000)), (2, 'c')", database=database)
    changes = read_to(store, begin)
    assert [change.columns["v"] for change in changes] == [b"ab" * 9_000_000, b"c"]
    with closing(MariadbStore(server.settings(event_bytes_max=2**20))) as small, pytest.raises(CaptureRefused, match="event_bytes_max"):
        read_to(small, begin)


def test_commits_that_change_no_row_are_reached_and_silence_is_no_fault(server: MariadbServer, database: str) -> None:
    with closing(MariadbStore(server.settings(heartbeat_s=0.1))) as store:
        begin = store.retained().end
        reader = store.read_after(begin)
        assert reader.read(10, 0.05).changes == []
        server.run("CREATE TABLE t (id INT)", "ALTER TABLE t ADD v INT", database=database)
        batches = [reader.read(10, 0.2) for _ in range(5)]  # for longer than the server may be silent
        assert [batch.changes for batch in batches] == [[]] * 5
        assert batches[-1].reached == Position(0, begin.sequence + 2, WHOLE)
        reader.close()


def test_a_server_that_says_nothing_any_more_is_unavailable(server: MariadbServer) -> None:
    with closing(MariadbStore(server.settings(heartbeat_s=0.1))) as store:
        reader = store.read_after(store.retained().end)
        assert reader.read(10, 0.2).changes == []
        server.pause(True)
        try:
            with pytest.raises(DatastoreUnavailable, match="not even a heartbeat"):
                reader.read(10, 20.0)
        finally:
            server.pause(False)
        reader.close()


def test_a_producer_attaches_keys_to_what_follows_in_its_transaction(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run(
        "CREATE TABLE roskva_attach (name VARCHAR(64) NOT NULL, value TEXT) ENGINE=BLACKHOLE",
        "CREATE TABLE t (id INT PRIMARY KEY)",
        database=database,
    )
    begin = store.retained().end
    server.run(
        "BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO roskva_attach VALUES ('source', 'tablet'), ('request', '7')",
        "INSERT INTO t VALUES (2), (3)", "INSERT INTO roskva_attach VALUES ('request', '8')", "DELETE FROM t WHERE id = 1", "COMMIT",
        "INSERT INTO t VALUES (4)", database=database,
    )  # fmt: skip
    changes = read_to(store, begin)
    assert [(change.position.index, change.table, change.key["id"], change.attached) for change in changes] == [
        (1, "t", 1, None),
        (4, "t", 2, {"source": "tablet", "request": "7"}),
        (5, "t", 3, {"source": "tablet", "request": "7"}),
        (7, "t", 1, {"source": "tablet", "request": "8"}),
        (1, "t", 4, None),
    ]
    assert read_to(store, changes[1].position) == changes[2:]
    assert server.rows("SELECT count(*) FROM roskva_attach", database) == [(0,)]


def test_statements_in_the_place_of_rows_are_refused(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    begin = store.retained().end
    server.run("SET binlog_format = 'STATEMENT'", "INSERT INTO t VALUES (1)", database=database)
    end = store.retained().end
    server.run("INSERT INTO t VALUES (2)", database=database)
    with pytest.raises(CaptureRefused, match=rf"the statement INSERT .* after {begin}.*binlog_format=ROW"):
        read_to(store, begin)
    with pytest.raises(CaptureRefused, match="statement INSERT"):  # and never passed over
        read_to(store, begin, changes_max=1)
    assert [change.key for change in read_to(store, end)] == [{"id": 2}]


def test_prepared_transactions_are_refused_unless_they_count(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    begin = store.retained().end
    server.run(
        "XA START 'x'",
        "INSERT INTO t VALUES (1)",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
        "INSERT INTO t VALUES (2)",
        database=database,
    )
    with pytest.raises(CaptureRefused, match="prepared_xa_counts"):
        read_to(store, begin)
    with closing(MariadbStore(server.settings(prepared_xa_counts=True))) as counting:
        assert [change.key for change in read_to(counting, begin)] == [{"id": 1}, {"id": 2}]


def test_closing_the_datastore_ends_a_read_under_way(server: MariadbServer) -> None:
    store = MariadbStore(server.settings())
    reader = store.read_after(store.retained().end)
    begun = threading.Event()
    raised: list[BaseException] = []

    def wait() -> None:
        begun.set()
        try:
            reader.read(1, 60.0)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait(10)
    store.close()
    thread.join(10)
    assert [type(error) for error in raised] == [DatastoreUnavailable]
    with pytest.raises(DatastoreUnavailable, match="closed"):
        store.retained()
    with pytest.raises(DatastoreUnavailable, match="closed"):
        reader.read(1, 0)


def test_who_may_not_read_the_log_is_refused(server: MariadbServer) -> None:
    server.run("CREATE OR REPLACE USER weak@'%' IDENTIFIED BY 'secret'")
    with closing(MariadbStore(server.settings(user="weak", password="secret"))) as store:
        with pytest.raises(CaptureRefused, match=r"refuses weak: .*BINLOG MONITOR"):
            store.retained()
        server.run("GRANT BINLOG MONITOR ON *.* TO weak@'%'")
        reader = store.read_after(store.retained().end)
        with pytest.raises(CaptureRefused, match=r"refuses weak: .*REPLICATION SLAVE"):
            reader.read(1, 10.0)
        reader.close()
    with (
        closing(MariadbStore(server.settings(user="weak", password="wrong"))) as store,
        pytest.raises(CaptureRefused, match="refuses weak"),
    ):
        store.prepare()


def test_a_connection_that_is_ended_says_so(server: MariadbServer, store: MariadbStore) -> None:
    reader = store.read_after(store.retained().end)
    reader.read(1, 0.1)
    (thread,) = [row[0] for row in server.rows("SHOW PROCESSLIST") if row[4] == "Binlog Dump"]
    server.run(f"KILL {thread}")
    with pytest.raises(DatastoreUnavailable):
        reader.read(1, 20.0)
    reader.close()


def test_a_server_that_is_not_there_is_unavailable(server: MariadbServer) -> None:
    with closing(MariadbStore(server.settings(port=1))) as store, pytest.raises(DatastoreUnavailable, match=r"127\.0\.0\.1:1 "):
        store.retained()
