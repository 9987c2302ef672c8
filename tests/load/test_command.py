"""`roskva load` as a person runs it, in a process of its own, against a gateway here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from roskva.cli.load import _Run, plan_of, progress
from roskva.cli.main import build_parser
from roskva.errors import BadRequest
from roskva.gateway.service import Gateway
from roskva.load.measuring import Counts, Latencies, Report
from roskva.load.plan import Plan
from tests.gateway.test_channels import until

ROOT = Path(__file__).resolve().parents[2]


async def begun(gateway: Gateway, *options: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROSKVA_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roskva", "load", "--url", gateway.url, "--data", str(gateway.settings.data), *options),
        cwd=gateway.settings.data.parent,
        env=environment | {"PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    try:
        async with asyncio.timeout(60.0):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode(), err.decode()


def test_what_came_while_the_last_were_waited_for_is_in_no_rate() -> None:
    run = _Run(Plan(1), seconds=10.0)
    run._measured_from = (0.0, Counts())
    run._take(Report(Counts(published=90, notified=60), Latencies(), Latencies()), 10.0, draining=False)
    run._take(Report(Counts(published=100, notified=100), Latencies(), Latencies()), 15.0, draining=True)
    document = run.document()
    assert (document["published"], document["notified"]) == (100, 100)
    assert (document["seconds"], document["published_per_s"], document["notified_per_s"]) == (10.0, 9.0, 6.0)


async def test_it_shows_progress_and_ends_with_json_and_returns_with_its_state(gateway: Gateway, tmp_path: Path) -> None:
    state = tmp_path / "crowd.state"
    options = ("--clients", "20", "--fan-out", "4", "--processes", "2", "--lines", "1", "--rate", "100", "--batch", "2")
    status, out, err = await ended(await begun(gateway, *options, "--seconds", "1", "--state", str(state), "--json"))
    document = json.loads(out)
    assert (status, document["in_sync"], document["registrations"], document["missing"]) == (0, 20, 100, 0), err
    assert document["published"] > 20
    assert document["notified"] > document["published"]
    assert document["latency_ms"]["p50"] > 0
    assert "all 20 clients are in sync" in err
    assert "notifications/s" in err
    assert len(state.read_text().split("\n")) == 21
    registrations = gateway.registrar.counters.registrations
    status, out, err = await ended(await begun(gateway, "--clients", "20", "--fan-out", "4", "--seconds", "0.1", "--state", str(state)))
    assert status == 0, err
    assert "20 of 20 in sync" in out
    assert gateway.registrar.counters.registrations == registrations


async def test_ctrl_c_ends_it_with_the_table_and_no_process_is_left(gateway: Gateway) -> None:
    process = await begun(gateway, "--clients", "10", "--rate", "50", "--lines", "1", "--processes", "2")
    await until(lambda: len(gateway.registrar.sessions) == 10, 30.0)
    await asyncio.sleep(1.0)
    process.send_signal(signal.SIGINT)
    status, out, err = await ended(process)
    assert status == 0, err
    assert "10 of 10 in sync" in out
    assert "Traceback" not in err
    await until(lambda: not gateway.port.lines)


async def test_a_wrong_key_is_one_line_of_words(gateway: Gateway) -> None:
    status, out, err = await ended(await begun(gateway, "--clients", "10", "--key", "wrong"))
    assert (status, out) == (1, "")
    assert "roskva: The service does not take this key" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("wrong", [["--objects", "9", "--fan-out", "2"], ["--rate", "1", "--update-every-s", "2"], ["--clients", "2"]])
def test_options_that_contradict_each_other_are_refused(wrong: list[str]) -> None:
    with pytest.raises(BadRequest):
        plan_of(build_parser().parse_args(["load", *wrong]))


def test_the_options_make_the_plan() -> None:
    asked = ["load", "--clients", "100", "--fan-out", "5", "--drop", "0.01", "--prefix", "x", "--update-every-s", "480", "--batch", "7"]
    plan = plan_of(build_parser().parse_args(asked))
    assert (plan.objects, plan.fan_out, plan.drop, plan.batch, plan.update_every_s) == (100, 5.0, 0.01, 7, 480.0)
    assert (plan.name(3), plan.device(4)) == ("x/3", "x-4")


def test_a_line_of_progress_is_of_the_last_seconds() -> None:
    plan = plan_of(build_parser().parse_args(["load"]))
    recent = [(0.0, Counts(published=10), Latencies()), (2.0, Counts(arrived=7, in_sync=5, published=30, notified=100), Latencies())]
    recent[1][2].note(12_000)
    line = progress(plan, recent, 65.0)
    for part in ("7 of 1,000 clients", "5 in sync", "10 publishes/s", "50 notifications/s", "p99 12"):
        assert part in line
    recent[1][1].errors["overloaded"] += 3
    recent[1][1].said = "Later."
    assert "3 errors, the last: Later." in progress(plan, recent, 65.0)
