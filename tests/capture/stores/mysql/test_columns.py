"""Columns of every kind, compared with what the database itself says of them."""

from __future__ import annotations

import json
import random
from typing import Any

from roskva.capture.stores.mysql import MysqlStore
from tests.capture.stores.binlog.columns import ColumnsOfBoth
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mysql import MysqlServer

DOCUMENTS = 400
# Values of MySQL's own in a document: what JSON has no type for, and numbers in every form.
OWN = (
    "JSON_ARRAY(18446744073709551615, -9223372036854775808, 4294967295, -2147483648, -32768, 32768, 65535, 65536, 0, -1)",
    "JSON_ARRAY(1e0, -0e0, 1e15, 1e16, 1e300, 5e-324, 1.5e-5, 1e-14, 1e-15, 1e-16, 1.2345e-14, 9.99999999999999e15, 1234567890123456.7e0)",
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10, 3)), CAST(-123456789012345678901234567890.123456789 AS DECIMAL(65, 30)), 0.1)",
    "JSON_ARRAY(DATE'2020-01-02', TIMESTAMP'2020-01-02 03:04:05.678', TIME'-12:34:56.7', TIME'838:59:59', TIMESTAMP'9999-12-31 23:59:59')",
    "JSON_ARRAY(x'00010203', b'101', CAST(REPEAT('x', 200) AS BINARY(200)), ST_GeomFromText('POINT(1 2)'), CAST(2020 AS YEAR))",
    "JSON_OBJECT('', JSON_OBJECT(), 'a', JSON_ARRAY(), 'ä', NULL, 'b', true, 'c', false)",
    "CAST(CONCAT(REPEAT('[', 99), '1', REPEAT(']', 99)) AS JSON)",
    "JSON_ARRAY(REPEAT('x', 70000), 1, -70000, 5000000000, 'ü', JSON_OBJECT('k', REPEAT('é', 40000), 'l', 1, 'm', 100000))",
    "CAST('\"a text\"' AS JSON)", "CAST('null' AS JSON)", "CAST('17' AS JSON)",
)  # fmt: skip


class TestColumnsOfBoth(ColumnsOfBoth): ...


def test_a_document_is_the_text_that_the_database_makes_of_it(server: MysqlServer, store: MysqlStore, database: str) -> None:
    server.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, j JSON)", database=database)
    begin = store.retained().end
    seeded = random.Random(8)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for own in OWN:
            cursor.execute(f"INSERT INTO t (j) VALUES ({own})")
        cursor.executemany("INSERT INTO t (j) VALUES (%s)", [(json.dumps(_document(seeded, 4)),) for _ in range(DOCUMENTS)])
        cursor.execute("COMMIT")
        cursor.execute("SELECT id, CAST(j AS CHAR) FROM t ORDER BY id")
        told = list(cursor.fetchall())
    changes = read_to(store, begin)
    assert len(told) == len(OWN) + DOCUMENTS
    for change, (number, text) in zip(changes, told, strict=True):
        assert change.columns == {"id": number, "j": text}


def _document(seeded: random.Random, depth: int) -> Any:
    kind = seeded.randrange(9 if depth else 6)
    if kind == 0:
        return seeded.choice((None, True, False))
    if kind == 1:
        return seeded.randrange(-(2 ** seeded.randrange(1, 63)), 2 ** seeded.randrange(1, 64))
    if kind in (2, 3):
        return seeded.choice((seeded.random(), seeded.uniform(-1e6, 1e6), float(f"{seeded.random()}e{seeded.randrange(-300, 300)}")))
    if kind in (4, 5):
        return "".join(chr(seeded.choice((seeded.randrange(1, 128), 0xE9, 0x1F41D))) for _ in range(seeded.choice((0, 3, 200))))
    if kind == 6:
        return [_document(seeded, depth - 1) for _ in range(seeded.randrange(6))]
    return {f"key {seeded.randrange(1000)}": _document(seeded, depth - 1) for _ in range(seeded.randrange(6))}


def test_text_is_text_in_its_character_set_and_bytes_are_bytes(server: MysqlServer, store: MysqlStore, database: str) -> None:
    kinds = {
        "y": "YEAR", "g": "POINT", "l": "VARCHAR(20) CHARACTER SET latin1", "u": "VARCHAR(300)", "n": "TEXT COLLATE utf8mb4_0900_as_cs",
        "k": "CHAR(9) CHARACTER SET koi8r", "j": "JSON", "vb": "VARBINARY(300)", "b": "BINARY(6)", "bl": "LONGBLOB",
        "e": "ENUM('a', 'it''s')",
        "e2": "ENUM('ö') CHARACTER SET latin1", "st": "SET('a', 'ü', 'c')", "i": "INT UNSIGNED INVISIBLE DEFAULT 4294967295",
        "v": "INT AS (id + 1) VIRTUAL", "s": "INT AS (id + 2) STORED",
    }  # fmt: skip
    definitions = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    server.run(f"CREATE TABLE t (id INT PRIMARY KEY, {definitions}, INDEX ((CAST(j->'$.m' AS UNSIGNED ARRAY))))", database=database)
    begin = store.retained().end
    insert = (
        "INSERT INTO t (id, y, g, l, u, n, k, j, vb, b, bl, e, e2, st) VALUES (%s, 2155, POINT(1, 2), 'Þór€', 'Þ\U0001f41d', 'nö', 'При',"
        " '{\"m\": [1, 2]}', x'00ff20', x'ff0020', x'80', 'it''s', 'ö', 'a,c')"
    )
    server.run(insert.replace("%s", "1"), database=database)
    # What the log does not name is asked of the tables.
    server.run(
        "SET GLOBAL binlog_row_metadata = MINIMAL", insert.replace("%s", "2"), "SET GLOBAL binlog_row_metadata = FULL", database=database
    )
    point = bytes.fromhex("00000000 01 01000000 000000000000f03f 0000000000000040")
    for number, change in enumerate(read_to(store, begin), 1):
        columns = dict(change.columns)
        assert {name: columns.pop(name, None) for name in ("v", "s")} == {"v": number + 1, "s": number + 2}
        assert columns == {
            "id": number, "y": 2155, "g": point, "l": "Þór€", "u": "Þ\U0001f41d", "n": "nö", "k": "При", "j": '{"m": [1, 2]}',
            "vb": b"\x00\xff\x20", "b": b"\xff\x00\x20\x00\x00\x00", "bl": b"\x80", "e": "it's", "e2": "ö", "st": "a,c", "i": 4294967295,
        }  # fmt: skip
        assert change.key == {"id": number}
