"""`roskva sweep`: what it prints, how it ends. Stand-ins for Spark, except in one test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roskva.cli import main
from roskva.cli.commands_running import SWEEPS
from roskva.cli.status import status_lines
from roskva.cli.sweep import summary
from roskva.config import Settings
from roskva.model import ClientId
from roskva.pipeline.sweeps import KINDS, Request, Swept, by_hand
from roskva.pipeline.sweeps.by_hand import OwnSession
from roskva.pipeline.sweeps.record import DONE, FAILED, STOPPED, Record, read_record, read_records
from roskva.pipeline.sweeps.run import Job
from roskva.registrar.cells import Created, client_row, created_cell, seen_cell
from roskva.table import open_manifest, open_table
from roskva.table.interface import Mutation
from roskva.table.manifest import Address

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A data directory with one client that was not seen since 1970."""
    settings = Settings(data=tmp_path)
    client = ClientId("old")
    cells = [created_cell(Created("demo", "d")), seen_cell(1)]
    open_table(settings).write([Mutation(client_row(client, settings.partitions), cells)])
    return settings


@pytest.fixture
def spark_stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Job], threading.Event]:
    """Puts a job in Spark's place; answers what is set when the job is cancelled."""

    def put(job: Job) -> threading.Event:
        cancelled = threading.Event()

        @contextmanager
        def own_session(settings: Settings) -> Iterator[OwnSession]:
            yield OwnSession(job, cancelled.set)

        monkeypatch.setattr(by_hand, "own_session", own_session)
        return cancelled

    return put


def test_the_command_knows_every_sweep() -> None:
    assert sorted(SWEEPS) == sorted(KINDS)


def test_a_misspelled_sweep_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "colect"])
    assert ended.value.code == 2
    assert "'colect'" in capsys.readouterr().err


def test_without_a_data_directory_there_is_nothing_to_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "collect", "--data", str(tmp_path / "elsewhere")]) == 2
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists(), "nor is one made"


def test_when_nothing_is_lost_a_repair_starts_no_spark(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "repair", "--data", str(settings.data)]) == 0
    assert capsys.readouterr().out == "repair: there is nothing to do\n"
    assert main(["sweep", "repair", "--json", "--data", str(settings.data)]) == 0
    assert json.loads(capsys.readouterr().out) == {"sweep": "repair", "state": "nothing to do"}


def test_a_repair_names_what_the_manifest_says_is_lost(settings: Settings, spark_stand_in: Callable[[Job], threading.Event]) -> None:
    address, manifest = Address("table", "matcher", 2), open_manifest(settings)
    manifest.record_lost(*address, manifest.record(*address).incarnation)
    manifest.create(address, manifest.record(*address).incarnation, lambda: None)
    asked: list[Request] = []

    def job(request: Request, record: Record, partition: int) -> Swept:
        asked.append(request)
        return Swept()

    spark_stand_in(job)
    assert main(["sweep", "repair", "--data", str(settings.data)]) == 0
    assert {request.lost for request in asked} == {frozenset({2})}


def test_collect_goes_on_with_zombies_and_sums_up(
    settings: Settings, spark_stand_in: Callable[[Job], threading.Event], capsys: pytest.CaptureFixture[str]
) -> None:
    spark_stand_in(lambda request, record, partition: Swept(1_000, 5, 4, 1, counts={"without_owner": 2}))
    assert main(["sweep", "collect", "--data", str(settings.data)]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^(\w+): done in [\d.]+ s$", printed, re.MULTILINE) == ["collect", "zombies"]
    assert printed.count("  looked at  4,000 rows\n  proposed   20\n  done       16\n  refused    4 by the owners of the rows\n") == 2
    assert main(["sweep", "collect", "--json", "--dry-run", "--data", str(settings.data)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["sweep"], line["state"], line["dry_run"], line["swept"]["proposed"]) for line in lines] == [
        ("collect", DONE, True, 20),
        ("zombies", DONE, True, 20),
    ]


def test_what_was_left_shows_in_the_exit_status(settings: Settings, spark_stand_in: Callable[[Job], threading.Event]) -> None:
    spark_stand_in(lambda request, record, partition: Swept(left=1))
    assert main(["sweep", "zombies", "--data", str(settings.data)]) == 1


def test_a_sweep_that_fails_says_why_in_one_line(
    settings: Settings, spark_stand_in: Callable[[Job], threading.Event], capsys: pytest.CaptureFixture[str]
) -> None:
    def job(request: Request, record: Record, partition: int) -> Swept:
        raise RuntimeError("the worker died\nat a place\nand another")

    spark_stand_in(job)
    assert main(["sweep", "collect", "--data", str(settings.data)]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert said.startswith("roskva: The sweep collect failed: RuntimeError: the worker died")
    records = read_records(open_table(settings))
    assert records["collect"].state == FAILED
    assert "zombies" not in records, "what should follow does not"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_is_cancelled_and_says_so(
    settings: Settings, spark_stand_in: Callable[[Job], threading.Event], capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def job(request: Request, record: Record, partition: int) -> Swept:
        os.kill(os.getpid(), number)
        assert cancelled.wait(30)
        raise RuntimeError("Job 0 cancelled")

    cancelled = spark_stand_in(job)
    before = signal.getsignal(number)
    assert main(["sweep", "collect", "--data", str(settings.data)]) == 1
    assert signal.getsignal(number) is before
    err = capsys.readouterr().err
    assert "interrupted" in err
    assert "Traceback" not in err
    record = read_record(open_table(settings), "collect")
    assert record is not None
    assert (record.state, record.partition) == (STOPPED, 0)


def test_a_summary_leaves_out_what_did_not_happen() -> None:
    lines = summary(Record("objects", DONE, 1_000, 3_500, dry_run=True, swept=Swept(10, 2)))
    assert lines == ["objects (dry run: nothing was changed): done in 2.5 s", "  looked at  10 rows", "  proposed   2"]


def test_the_status_shows_the_last_sweep_of_each_kind() -> None:
    swept = {"looked_at": 1_000, "done": 7, "refused": 1, "left": 2}
    lines = status_lines(
        {
            "sweeps": {
                "collect": {"state": "done", "ended_ms": 1_700_000_000_000, "swept": swept},
                "compare": {"state": "running", "partition": 1, "partitions": 4, "swept": {"looked_at": 5}},
                "purge": {"state": "failed", "ended_ms": 1_700_000_000_000, "error": "RuntimeError: no"},
            }
        }
    )
    shown = [line for line in lines if line.startswith("sweep")]
    assert shown[0].startswith("sweep      collect: done 2023-11-1")
    assert shown[0].endswith(", looked at 1,000 rows, 7 done, 1 refused, 2 left for the next time")
    assert shown[1] == "sweep      compare: running, partition 2 of 4, looked at 5 rows, 0 done, 0 refused"
    assert shown[2].endswith("0 refused: RuntimeError: no")


@pytest.mark.spark
def test_it_runs_by_itself_on_spark_without_a_service(settings: Settings) -> None:
    """The whole way: a session of its own, the tasks in its workers, the record, the summary, and no process left behind."""
    command = [sys.executable, "-m", "roskva", "sweep", "collect", "--data", str(settings.data), "--set", "pipeline_memory=512m"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^collect: done in .*\n  looked at  1 rows\n  proposed   1\n  done       1\n", done.stdout)
    assert "zombies: done" in done.stdout
    row = client_row(ClientId("old"), settings.partitions)
    assert open_table(settings).read([row])[row] == {}
    records = read_records(open_table(settings))
    assert {name: (record.state, record.swept.done) for name, record in records.items()} == {"collect": (DONE, 1), "zombies": (DONE, 1)}
