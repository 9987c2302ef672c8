"""Columns whose form in the log is the same in MariaDB and MySQL, compared with what the database itself says of them."""

from __future__ import annotations

import random
from typing import Any

from roskva.capture.stores.binlog.store import BinlogStore
from tests.capture.stores.binlog.reading import read_to
from tests.capture.stores.servers_binlog import BinlogServer

ROWS = 120


class ColumnsOfBoth:
    scale_max = 30  # of a DECIMAL

    def test_numbers_keep_their_sign_and_their_size(self, server: BinlogServer, store: BinlogStore[Any, Any], database: str) -> None:
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

    def test_decimals_and_times_are_written_as_the_database_writes_them(
        self, server: BinlogServer, store: BinlogStore[Any, Any], database: str
    ) -> None:
        precisions = ((65, 30), (65, 0), (10, 2), (18, 9), (9, 9), (30, 1), (1, 0), (self.scale_max, self.scale_max), (19, 0))
        decimals = [f"d{precision}_{scale} DECIMAL({precision},{scale})" for precision, scale in precisions]
        times = [f"{kind.lower()}{digits} {kind}({digits}) NULL" for kind in ("TIME", "DATETIME", "TIMESTAMP") for digits in range(7)]
        server.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(decimals + times)}, d DATE)", database=database)
        begin = store.retained().end
        seeded = random.Random(7)
        rows = [f"({number}, {', '.join(_values(seeded, precisions))})" for number in range(ROWS)]
        server.run(
            "SET time_zone = '+00:00', sql_mode = ''",
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
