"""Columns of every kind, compared with what the database itself says of them."""

from __future__ import annotations

from roskva.capture.stores.mariadb import MariadbStore
from tests.capture.stores.binlog.columns import ColumnsOfBoth
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer


class TestColumnsOfBoth(ColumnsOfBoth):
    scale_max = 38


def test_text_is_text_in_its_character_set_and_bytes_are_bytes(server: MariadbServer, store: MariadbStore, database: str) -> None:
    kinds = {
        "g": "POINT", "l": "VARCHAR(20) CHARACTER SET latin1", "u": "VARCHAR(300)", "c": "CHAR(10)", "w": "CHAR(200)",
        "k": "VARCHAR(9) CHARACTER SET koi8r",
        "x": "VARCHAR(9) CHARACTER SET utf16", "s": "VARCHAR(9) CHARACTER SET swe7", "t": "TINYTEXT", "m": "MEDIUMTEXT CHARACTER SET ucs2",
        "n": "VARCHAR(9) COLLATE uca1400_ai_ci", "vb": "VARBINARY(300)", "b": "BINARY(6)", "bb": "BINARY(2)", "bl": "BLOB", "j": "JSON",
        "e": "ENUM('a', 'ö', 'it''s')", "e2": "ENUM('x') CHARACTER SET latin1", "st": "SET('a', 'ü', 'c')", "i6": "INET6", "uu": "UUID",
    }  # fmt: skip
    server.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{name} {kind}' for name, kind in kinds.items())})", database=database)
    begin = store.retained().end
    server.run(
        "INSERT INTO t VALUES (1, POINT(1, 2), 'Þór€', 'Þ\U0001f41d', 'ab  ', 'wide é', 'Привет', '\U0001f41dq', 'abc', 'tiny', 'mé', 'nö',"
        " x'00ff20', x'ff0020', '', x'80', '{\"a\": [1, null]}', 'ö', 'x', 'a,c', '::1', '12345678-1234-1234-9234-123456789abc')",
        "INSERT INTO t (id, l, e, st, c) VALUES (2, x'8141', 3, '', '')",
        database=database,
    )
    first, second = (change.columns for change in read_to(store, begin))
    point = bytes.fromhex("00000000 01 01000000 000000000000f03f 0000000000000040")
    assert first == {
        "id": 1, "l": "Þór€", "u": "Þ\U0001f41d", "c": "ab", "w": "wide é", "k": "Привет", "x": "\U0001f41dq", "s": b"abc", "t": "tiny",
        "m": "mé", "n": "nö", "vb": b"\x00\xff\x20", "b": b"\xff\x00\x20\x00\x00\x00", "bb": b"\0\0", "bl": b"\x80",
        "j": '{"a": [1, null]}', "e": "ö", "e2": "x", "st": "a,c", "g": point, "i6": bytes(15) + b"\x01", "uu": first["uu"],
    }  # fmt: skip
    assert isinstance(first["uu"], bytes)
    assert len(first["uu"]) == 16
    assert (second["l"], second["e"], second["st"], second["c"], second["u"]) == (b"\x81A", "it's", "", "", None)


def test_compressed_invisible_and_generated_columns_are_columns(server: MariadbServer, store: MariadbStore, database: str) -> None:
    server.run(
        "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(2000) COMPRESSED, b BLOB COMPRESSED, i INT INVISIBLE DEFAULT 7,"
        " v INT AS (id + 1) VIRTUAL, s INT AS (id + 2) STORED)",
        database=database,
    )
    begin = store.retained().end
    server.run(
        "INSERT INTO t (id, c, b) VALUES (1, repeat('é', 900), repeat('x', 5000)), (2, 'short', ''), (3, '', NULL)",
        "UPDATE t SET c = 'u' WHERE id = 1",
        database=database,
    )
    changes = [change.columns for change in read_to(store, begin)]
    assert changes[0] == {"id": 1, "c": "é" * 900, "b": b"x" * 5000, "i": 7, "v": 2, "s": 3}
    assert changes[1:3] == [
        {"id": 2, "c": "short", "b": b"", "i": 7, "v": 3, "s": 4},
        {"id": 3, "c": "", "b": None, "i": 7, "v": 4, "s": 5},
    ]
    assert changes[3] == {"id": 1, "c": "u", "b": b"x" * 5000, "i": 7, "v": 2, "s": 3}
