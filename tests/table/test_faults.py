"""Failure injection: without rules it is the table itself; with them exactly what they name fails, and they change under way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roskva.config import Settings
from roskva.errors import InvalidSetting, PartitionUnavailable
from roskva.table import SqliteTable, open_table
from roskva.table import faults as faults_module
from roskva.table.faults import FaultyTable
from roskva.table.interface import Cell, Mutation, RowKey, Table
from roskva.table.manifest import Manifest
from tests.table.contract import TableContract
from tests.table.test_sqlite import open_at


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return write_rules(tmp_path / "faults.json")


def write_rules(path: Path, *rules: dict[str, Any], seed: int = 1) -> Path:
    """By a rename, as whoever changes them under a running service must."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"seed": seed, "rules": rules}))
    new.rename(path)
    return path


@pytest.fixture
def table(tmp_path: Path, rules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyTable]:
    monkeypatch.setattr(faults_module, "_LOOK_EVERY_S", 0.0)
    engine = open_at(tmp_path / "data")
    yield FaultyTable(engine, rules)
    engine.close()
    engine.manifest.close()


class TestContract(TableContract):
    """Without rules."""

    @pytest.fixture
    def engine(self, table: FaultyTable) -> Table:
        return table

    @pytest.fixture
    def second(self, tmp_path: Path, rules: Path) -> Iterator[Callable[[], Table]]:
        opened: list[SqliteTable] = []

        def open_again() -> Table:
            opened.append(open_at(tmp_path / "data"))
            return FaultyTable(opened[-1], rules)

        yield open_again
        for one in opened:
            one.close()
            one.manifest.close()


def row(key: bytes, table: str = "matcher", partition: int = 0) -> RowKey:
    return RowKey(table, partition, key)


def put(table: Table, *rows: RowKey) -> None:
    table.write([Mutation(one, [Cell(b"x", 1, b"value")]) for one in rows])


@pytest.mark.parametrize(
    ("rule", "fails", "works"),
    [
        ({"table": "matcher"}, row(b"a", partition=1), row(b"a", "registrar")),
        ({"table": "matcher", "partitions": [1]}, row(b"a", partition=1), row(b"a")),
        ({"table": "matcher", "prefix": "app\x00"}, row(b"app\x00name"), row(b"apple")),
        ({"table": "matcher", "start": "b", "end": "c"}, row(b"bzz"), row(b"c")),
        ({"table": "matcher", "start": "b"}, row(b"\xff"), row(b"azz")),
    ],
)
def test_exactly_what_a_rule_names_fails(table: FaultyTable, rules: Path, rule: dict[str, Any], fails: RowKey, works: RowKey) -> None:
    write_rules(rules, rule)
    put(table, works)
    assert table.read([works])[works]
    for call in (
        lambda: put(table, works, fails),
        lambda: table.read([works, fails]),
        lambda: table.delete_rows([fails]),
        lambda: table.forget([Mutation(fails, [Cell(b"x", 1, b"value")])]),
    ):
        with pytest.raises(PartitionUnavailable):
            call()
    write_rules(rules)
    assert table.read([fails])[fails] == {}, "nothing of a call that failed was done"
    put(table, fails)
    write_rules(rules, rule)
    with pytest.raises(PartitionUnavailable):
        table.scan(fails.table, fails.partition)


def test_operations_fail_apart(table: FaultyTable, rules: Path) -> None:
    write_rules(rules, {"table": "matcher", "operations": ["read"]})
    put(table, row(b"a"))
    with pytest.raises(PartitionUnavailable):
        table.read([row(b"a")])
    write_rules(rules, {"table": "matcher", "operations": ["write"]})
    assert table.read([row(b"a")])[row(b"a")]
    with pytest.raises(PartitionUnavailable):
        put(table, row(b"a"))


def outcomes(table: FaultyTable) -> list[bool]:
    found = []
    for _ in range(200):
        try:
            table.read([row(b"a")])
        except PartitionUnavailable:
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_rate_is_kept_and_repeats_by_its_seed(table: FaultyTable, rules: Path) -> None:
    runs = []
    for seed in (1, 2, 1):
        write_rules(rules, {"table": "matcher", "rate": 0.3}, seed=seed)
        runs.append(outcomes(table))
    assert runs[0] == runs[2] != runs[1]
    assert 30 < runs[0].count(False) < 90


def test_a_slow_rule_sleeps_and_need_not_fail(table: FaultyTable, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("roskva.table.faults.time.sleep", slept.append)
    write_rules(rules, {"table": "matcher", "slow_s": 0.5, "fail": False})
    put(table, row(b"a"))
    assert table.read([row(b"a")])[row(b"a")]
    assert slept == [0.5, 0.5]


def test_a_file_that_cannot_be_used_leaves_the_rules_as_they_were(
    table: FaultyTable, rules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rules(rules, {"table": "matcher"})
    with pytest.raises(PartitionUnavailable):
        table.read([row(b"a")])
    rules.write_text('{"rules": [{"tabel": "matcher"}]}')
    with pytest.raises(PartitionUnavailable):
        table.read([row(b"a")])
    assert "tabel" in caplog.text
    rules.unlink()
    with pytest.raises(PartitionUnavailable):
        table.read([row(b"a")])


def test_a_service_does_not_start_over_a_file_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="ROSKVA_TEST_FAULTS"):
        FaultyTable(open_at(tmp_path / "data"), tmp_path / "absent")


def test_a_service_without_the_variable_has_the_engine_itself(tmp_path: Path, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(open_table(Settings(data=tmp_path / "one"))) is SqliteTable
    monkeypatch.setenv("ROSKVA_TEST_FAULTS", str(rules))
    injected: Any = open_table(Settings(data=tmp_path / "two"))
    assert type(injected) is FaultyTable
    assert isinstance(injected.manifest, Manifest)
    check = "import sys, roskva.table, roskva.table.opening; print('roskva.table.faults' in sys.modules)"
    without = {name: value for name, value in os.environ.items() if name != "ROSKVA_TEST_FAULTS"}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, env=without)
    assert done.stdout.strip() == "False"
