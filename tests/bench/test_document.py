"""docs/performance.md: its table of aims says what the kept results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import document
from bench.__main__ import NAMES, SHORTER, whole_run
from bench.report import RESULTS, SMALLER
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
    assert document.tables() in document.PAGE.read_text(), "run: python -c 'from bench import document; document.write()'"


def test_the_pages_have_the_hops_and_the_figures_beside_others_of_the_kept_results() -> None:
    assert document.hops() in document.PAGE.read_text(), "run: python -c 'from bench import document; document.write()'"
    assert document.beside_peers() in document.PEERS.read_text(), "run: python -c 'from bench import document; document.write()'"


def test_what_was_not_measured_in_full_size_is_not_beside_others(tmp_path: Path) -> None:
    rows = document.beside_peers(tmp_path).splitlines()[2:]
    assert len(rows) == 5
    assert all(row.endswith("| not measured in full size | - |") for row in rows)
    figures = {"publish_to_client_ms": {"p50": 2.03, "p95": 4.63, "p99": 7.23}}
    (tmp_path / "latency.json").write_text(json.dumps(result(figures=figures)))
    assert document.beside_peers(tmp_path).splitlines()[2].endswith("| 2.0 / 4.6 / 7.2 | `latency`, 2026-11-17 03:27 |")


def test_single_publishes_stand_beside_single_publishes(tmp_path: Path) -> None:
    def steps(p50_ms: float, p99_ms: float) -> dict[str, Any]:
        return {"steps": [{"offered_per_s": 10_000.0, "p50_ms": p50_ms, "p99_ms": p99_ms}], "highest_per_s": 12_000.0}

    fans = {
        "5, single publishes": steps(101.0, 384.2),
        "5, batches of 50": steps(7.8, 35.1),
        "5, single calls of the Publisher": steps(54.7, 443.0),
    }
    figures = {"fan_outs": fans, "cpu_s_per_10_000_deliveries_at_10_000_per_s": {}}
    settings = {"registrations_per_client": {"5, single publishes": 25}}
    (tmp_path / "throughput.json").write_text(json.dumps(result(name="throughput", figures=figures, settings=settings)))
    row = document.beside_peers(tmp_path).splitlines()[3]
    assert "| 101 / 384; 55 / 443 in calls of its library | `throughput`, 2026-11-17 03:27, 25 registrations for each client |" in row
    busy = {"publish_to_client_ms": {"p50": 2.3, "p95": 6.8, "p99": 11.2}, "kept_up": True}
    quiet = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    latency = result(figures={"publish_to_client_ms": quiet, "at_10,000_deliveries_per_s": busy})
    (tmp_path / "latency.json").write_text(json.dumps(latency))
    assert "; p50 2.3 / p95 6.8 in requests of ten |" in document.beside_peers(tmp_path).splitlines()[3]


def test_a_whole_run_says_how_long_it_took(tmp_path: Path) -> None:
    whole_run({"latency": 1_000.0, "idle": 1_460.0}).write(tmp_path)
    assert (
        "| `all` | all, one after the other | time for all of `make bench` | 41 min | <= 40 min | **missed** |"
        in document.table_of_smaller(tmp_path)
    )


def test_hops_are_in_the_order_of_the_way(tmp_path: Path) -> None:
    def hop(name: str) -> dict[str, Any]:
        return {"hop": name, "mean_ms": 1.0, "share": 0.5}

    figures = {
        "fast_path": [hop("received to durable"), hop("durable to sent")],
        "pipeline_alone": [hop("received to durable"), hop("durable to picked up"), hop("told to sent")],
        "mean_ms": {"fast path": 2.0, "pipeline alone": 3.0},
    }
    (tmp_path / "figure9.json").write_text(json.dumps(result(figures=figures)))
    rows = [row.split("|")[1].strip() for row in document.hops(tmp_path).splitlines()[2:]]
    assert rows == ["received to durable", "durable to sent", "durable to picked up", "told to sent", "**all**"]
    assert "| durable to sent | 1 ms, 50 % |  |" in document.hops(tmp_path)


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


def test_a_smaller_form_has_a_table_of_its_own_and_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(json.dumps(result()))
    full = document.table(tmp_path)
    assert document.tables(tmp_path) == full
    (tmp_path / "smaller").mkdir()
    (tmp_path / "smaller" / "latency.json").write_text(json.dumps(result(form="30,000 clients, 8 s")))
    first, _, second = document.tables(tmp_path).partition("\n\nIn smaller forms")
    assert first == full, "the full size keeps its rows"
    assert "| `latency` | 30,000 clients, 8 s | p50 | 2.71 ms | <= 3 ms | met | 2026-11-17 | 10 % |" in second


def test_a_result_without_an_aim_is_in_the_table_too_and_a_plot_is_linked(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(json.dumps(result(aims=[], settings={"load": "little"})))
    assert document.table(tmp_path).endswith("| `latency` | little | - | none | | 2026-11-17 | 10 % |")
    (tmp_path / "latency.svg").touch()
    assert f"/{tmp_path.name}/latency.svg) | little |" in document.table(tmp_path)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_what_is_kept_is_where_its_form_belongs(path: Path) -> None:
    form = json.loads(path.read_text()).get("form", "")
    assert bool(form) == (path.parent == SMALLER), "python -m bench writes a smaller form beside the full size, never over it"


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
