"""What a profile's samples are made of (bench/profile.py), without a service."""

from __future__ import annotations

from bench.accounting import per_10_000
from bench.profile import Share, in_engines, read, table, top

RAW = """main (a.py:1);send (b.py:2) 6
main (a.py:1);send (b.py:9) 2
lane (roskva/table/lanes.py:9);write (roskva/table/files.py:4);commit (c.py:1) 2
"""


def test_lines_of_one_function_count_together() -> None:
    assert top(read(RAW), 1) == [Share(0.8, "send (b.py)")]


def test_what_is_called_by_an_engine_is_in_it() -> None:
    assert in_engines(read(RAW)) == 0.2


def test_the_table_names_shares() -> None:
    assert table("who", [Share(0.8, "send (b.py)")])[2] == "| 80.0 % | `send (b.py)` |"


def test_no_samples_are_no_shares() -> None:
    assert (top(read("")), in_engines(read(""))) == ([], 0.0)


def test_the_cpu_of_10_000_deliveries_is_told_apart() -> None:
    cost = per_10_000({"gateway": 2.0, "Spark JVM": 0.5, "Python workers": 0.5, "load generator": 9.0}, 20_000)
    assert cost == {"gateway": 1.0, "Spark": 0.5, "service": 1.5, "load generator": 4.5}
