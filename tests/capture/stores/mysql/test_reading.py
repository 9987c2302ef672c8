"""The MySQL datastore over a real server: what its rows, transactions and statements become, where MariaDB's are others."""

from __future__ import annotations

import threading

import pytest

from roskva.capture.stores.mysql import MysqlStore
from roskva.capture.updates import Operation
from roskva.errors import CaptureRefused
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mysql import MysqlServer


def test_whatever_takes_rows_away_without_a_word_is_told_as_a_truncate(server: MysqlServer, store: MysqlStore, database: str) -> None:
    parts = (
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN (20), PARTITION r VALUES LESS THAN (30))"
    )
    server.run(f"CREATE TABLE t (id INT) {parts}", "CREATE TABLE u (id INT)", "CREATE TABLE `ü` (id INT)", database=database)
    begin = store.retained().end
    server.run(
        "INSERT INTO t VALUES (1), (11), (21)", "ALTER TABLE t ALGORITHM=DEFAULT, DROP PARTITION p", "ALTER TABLE t TRUNCATE PARTITION q",
        "ALTER TABLE t EXCHANGE PARTITION r WITH TABLE u", "ALTER TABLE t REMOVE PARTITIONING", "TRUNCATE `ü`", "DROP TABLE `ü`, u",
        database=database,
    )  # fmt: skip
    changes = read_to(store, begin)
    assert [change.operation for change in changes[:3]] == [Operation.INSERT] * 3
    assert [(change.operation, change.table) for change in changes[3:]] == [
        (Operation.TRUNCATE, table) for table in ("t", "t", "t", "u", "ü", "ü", "u")
    ]


def test_a_table_that_is_made_of_rows_brings_them(server: MysqlServer, store: MysqlStore, database: str) -> None:
    """From 8.0.21 on in one transaction with the statement that makes the table."""
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", database=database)
    begin = store.retained().end
    server.run("CREATE TABLE c AS SELECT id FROM t", database=database)
    changes = read_to(store, begin)
    assert [(change.operation, change.table, change.columns) for change in changes] == [
        (Operation.INSERT, "c", {"id": 1}), (Operation.INSERT, "c", {"id": 2}),
    ]  # fmt: skip
    assert store.retained().end.sequence == begin.sequence + 1


def test_keys_that_a_producer_attaches_go_with_its_transaction(server: MysqlServer, store: MysqlStore, database: str) -> None:
    server.run(
        "CREATE TABLE roskva_attach (name VARCHAR(64) NOT NULL, value TEXT) ENGINE=BLACKHOLE", "CREATE TABLE t (id INT)", database=database
    )
    begin = store.retained().end
    server.run("BEGIN", "INSERT INTO roskva_attach VALUES ('topic', 'billing')", "INSERT INTO t VALUES (1)", "COMMIT", database=database)
    (change,) = read_to(store, begin)
    assert (change.table, change.attached, change.position.index) == ("t", {"topic": "billing"}, 2)


def test_a_table_that_cannot_roll_back_is_told_as_it_is(server: MysqlServer, store: MysqlStore, database: str) -> None:
    server.run("CREATE TABLE m (id INT) ENGINE=MyISAM", "CREATE TABLE t (id INT)", database=database)
    begin = store.retained().end
    server.run("INSERT INTO m VALUES (1), (2)", "INSERT INTO t VALUES (3)", database=database)
    assert [(change.table, change.columns["id"]) for change in read_to(store, begin)] == [("m", 1), ("m", 2), ("t", 3)]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("binlog_row_value_options = 'PARTIAL_JSON'", "binlog_row_value_options = ''"),
        ("binlog_transaction_compression = ON", "binlog_transaction_compression = OFF"),
        ("binlog_format = STATEMENT", "the statement UPDATE instead of the rows"),
    ],
)
def test_what_is_not_read_is_refused_with_the_setting_to_change(
    server: MysqlServer, store: MysqlStore, database: str, setting: str, told: str
) -> None:
    server.run(
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON)", 'INSERT INTO t VALUES (1, \'{"a": 1, "b": "xxxxxxxxxx"}\')', database=database
    )
    begin = store.retained().end
    server.run(f"SET {setting}", "UPDATE t SET j = JSON_SET(j, '$.a', 2)", database=database)
    reader = store.read_after(begin)
    with pytest.raises(CaptureRefused, match=told):
        reader.read(10, 10.0)
    reader.close()
    end = store.retained().end
    server.run("UPDATE t SET j = '[]'", database=database)
    assert [change.columns for change in read_to(store, end)] == [{"id": 1, "j": "[]"}], "behind it"


def test_an_xa_transaction_is_refused_or_told_when_it_is_prepared(server: MysqlServer, store: MysqlStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    begin = store.retained().end
    server.run("XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'", database=database)
    server.run("INSERT INTO t VALUES (2)", database=database)
    with pytest.raises(CaptureRefused, match="prepared_xa_counts"):
        read_to(store, begin)
    counting = MysqlStore(server.settings(prepared_xa_counts=True))
    assert [change.columns["id"] for change in read_to(counting, begin)] == [1, 2]
    counting.close()


def test_an_image_that_is_not_whole_names_what_it_lacks(server: MysqlServer, store: MysqlStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)", "INSERT INTO t VALUES (1, 2, 'x')", database=database)
    begin = store.retained().end
    server.run("SET binlog_row_image = MINIMAL", "UPDATE t SET a = 3", database=database)
    (change,) = read_to(store, begin)
    assert (change.key, change.columns, change.unchanged) == ({"id": 1}, {"id": 1, "a": 3}, ("b",))


def test_a_commit_that_is_read_before_it_is_done_is_of_this_log(server: MysqlServer, store: MysqlStore, database: str) -> None:
    """With semi-synchronous replication, or as here before it is synced: who has read it, and acknowledged it, is not beyond the end."""
    server.run("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    reader = store.read_after(store.retained().end)
    server.run("SET GLOBAL sync_binlog = 0, binlog_group_commit_sync_delay = 1000000")
    committing = threading.Thread(target=server.run, args=("INSERT INTO t VALUES (1)",), kwargs={"database": database})
    try:
        committing.start()
        (change,) = reader.read(1, 10.0).changes
        for _ in range(20):
            retained = store.retained()
            assert retained.follows or change.position < retained.end, "it is not taken for what was undone"
            store.read_after(change.position).close()
    finally:
        committing.join()
        server.run("SET GLOBAL sync_binlog = 1, binlog_group_commit_sync_delay = 0")
        reader.close()
    assert store.retained().follows is False
