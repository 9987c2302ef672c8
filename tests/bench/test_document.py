"""docs/performance.md: its table of aims says what the kept results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import document
from bench.__main__ import NAMES, SHORTER
from bench.world import Options


def result(**changes: Any) -> dict[str, Any]:
    aim = {"what": "p50", "unit": "ms", "aim": 3.0, "measured": 2.714, "larger_is_better": False, "met": True}
    return {
        "name": "latency",
        "aims": [aim, {**aim, "unit": "/s", "aim": 30_000.0, "measured": 14_321.6, "larger_is_better": True, "met": False}],
        "measured_at": "2026-11-17 03:27:17 +0000",
        "cpu_seconds": {"others on this machine": 6.0},
        "cpu_window_s": 30.0,
        "machine": {"cores": 2},
        **changes,
    }


def test_the_page_has_the_table_of_the_kept_results() -> None:
    assert document.table() in document.PAGE.read_text(), "run: python -c 'from bench import document; document.write()'"


def test_a_row_for_each_aim(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(json.dumps(result()))
    rows = document.table(tmp_path).splitlines()[2:]
    assert rows == [
        "| `latency` | p50 | 2.71 ms | <= 3 ms | met | 2026-11-17 | 10 % |",
        "| `latency` | p50 | 14,322/s | >= 30,000/s | **missed** | 2026-11-17 | 10 % |",
    ]
    behind = result()["aims"][0] | {"met": False, "kept_up": False}
    (tmp_path / "latency.json").write_text(json.dumps(result(aims=[behind])))
    assert "| **missed**: did not keep up |" in document.table(tmp_path)


def test_a_result_without_a_window_says_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(json.dumps(result(cpu_window_s=0.0)))
    assert document.table(tmp_path).endswith("| 2026-11-17 | - |")


def test_only_the_table_is_replaced() -> None:
    page = f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n"
    once = document.replaced(page, "| new |")
    assert once == f"before\n{document.BEGIN}\n\n| new |\n\n{document.END}\nafter\n"
    assert document.replaced(once, "| new |") == once


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        document.replaced("before\nafter\n", "| new |")


def test_all_makes_smaller_only_what_there_is() -> None:
    assert set(SHORTER) <= set(NAMES)
    for changes in SHORTER.values():
        Options(**changes)
