"""Columns of every kind, compared with what the database itself says of them."""

from __future__ import annotations

import random

from roskva.capture.stores.mariadb import MariadbStore
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_mariadb import MariadbServer

ROWS = 120


def test_numbers_keep_their_sign_and_their_size(server: MariadbServer, store: MariadbStore, database: str) -> None:
    kinds = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
    columns = [f"s{kind} {kind}" for kind in kinds] + [f"u{kind} {kind} UNSIGNED" for kind in kinds]
    server.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(columns)}, y YEAR, b BIT(13), d DOUBLE, f FLOAT)", database=database)
    begin = store.retained().end
    lowest = [-(2 ** (bits - 1)) for bits in (8, 16, 24, 32, 64)]
    highest = [2**bits - 1 for bits in (8, 16, 24, 32, 64)]
    values = ", ".join(map(str, lowest + highest))
    server.run(f"INSERT INTO t VALUES (1, {values}, 2155, b'1000000000001', -2.5e-300, 0.1)", database=database)
    server.run(f"INSERT INTO t VALUES (2, {', '.join(['-1'] * 5 + ['0'] * 5)}, 0, 0, 1e300, 16777216)", database=database)
    server.run("INSERT INTO t (id, f) VALUES (3, 3.4028234e38), (4, -1.17549435e-38), (5, 123456.789)", database=database)
    changes = read_to(store, begin)
    assert list(changes[0].columns.values())[1:] == [*lowest, *highest, 2155, 0b1000000000001, -2.5e-300, 0.1]
    assert list(changes[1].columns.values())[1:] == [*[-1] * 5, *[0] * 5, 0, 0, 1e300, 16777216.0]
    assert [change.columns["f"] for change in changes[2:]] == [3.4028235e38, -1.1754944e-38, 123456.79]
    assert changes[2].columns["sINT"] is None


def test_decimals_and_times_are_written_as_the_database_writes_them(server: MariadbServer, store: MariadbStore, database: str) -> None:
    precisions = ((65, 30), (65, 0), (10, 2), (18, 9), (9, 9), (30, 1), (1, 0), (38, 38), (19, 0))
    decimals = [f"d{precision}_{scale} DECIMAL({precision},{scale})" for precision, scale in precisions]
    times = [f"{kind.lower()}{digits} {kind}({digits}) NULL" for kind in ("TIME", "DATETIME", "TIMESTAMP") for digits in range(7)]
    server.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(decimals + times)}, d DATE)", database=database)
    begin = store.retained().end
    seeded = random.Random(7)
    rows = [f"({number}, {', '.join(_values(seeded, precisions))})" for number in range(ROWS)]
    server.run(
        "SET time_zone = '+00:00'",
        f"INSERT INTO t VALUES {', '.join(rows)}",
        "INSERT INTO t (id, d) VALUES (-1, '0000-00-00')",
        database=database,
    )
    changes = read_to(store, begin)
    names = list(changes[0].columns)
    columns = ", ".join(f"CAST({name} AS CHAR)" for name in names[1:])
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT id, {columns} FROM t ORDER BY id")
        told = {row[0]: list(row) for row in cursor.fetchall()}
    assert len(changes) == ROWS + 1
    for change in changes:
        assert list(change.columns.values()) == told[change.key["id"]]


def _values(seeded: random.Random, precisions: tuple[tuple[int, int], ...]) -> list[str]:
    found = []
    for precision, scale in precisions:
        digits = str(seeded.randrange(10 ** seeded.randrange(precision + 1))).rjust(scale + 1, "0")
        found.append(seeded.choice(("", "-")) + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits))
    found += [f"'{seeded.choice(('', '-'))}{seeded.randrange(838)}:{_clock(seeded, places)}'" for places in range(7)]
    for years in ((1000, 9999), (1971, 2037)):
        found += [f"'{_day(seeded, *years)} {seeded.randrange(24)}:{_clock(seeded, places)}'" for places in range(7)]
    return [*found, f"'{_day(seeded, 1, 9999)}'"]


def _clock(seeded: random.Random, digits: int) -> str:
    return f"{seeded.randrange(60)}:{seeded.randrange(60)}" + (f".{seeded.randrange(10**digits):0{digits}d}" if digits else "")


def _day(seeded: random.Random, first_year: int, last_year: int) -> str:
    return f"{seeded.randint(first_year, last_year):04d}-{seeded.randint(1, 12)}-{seeded.randint(1, 28)}"


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
