"""The gateway as a process: what it says, how it stops, and what it refuses (gateway/service.py)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import roskva
from roskva.keys import administration

PROGRAM = """
import sys
import time
from pathlib import Path
from roskva.config import Settings
from roskva.gateway.service import run
told = dict(pair.split("=") for pair in sys.argv[3:])
sys.exit(run(Settings(data=Path(sys.argv[1]), listen=sys.argv[2], share_port=bool(told), gateway_name=told.get("name", ""),
    partitions=int(told.get("partitions", "4")))))
"""


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def begin(processes: list[subprocess.Popen[str]], data: Path, listen: str = "127.0.0.1:0", *told: str) -> subprocess.Popen[str]:
    source = Path(__file__).parents[2] / "src"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data), listen, *told],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    processes.append(process)
    return process


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("gateway: listening on http://127.0.0.1:"), line
    return line.removeprefix("gateway: listening on ").strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_listens_and_stops_cleanly(processes: list[subprocess.Popen[str]], tmp_path: Path, number: signal.Signals) -> None:
    process = begin(processes, tmp_path)
    url = url_of(process)
    with urllib.request.urlopen(url + "/healthz", timeout=10) as answer:
        assert answer.status == 200
    idle = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))  # must not hold up the stop
    process.send_signal(number)
    output, errors = process.communicate(timeout=15)
    assert process.returncode == 0, errors
    assert "gateway: stopped" in output
    assert "Traceback" not in errors
    idle.close()


def test_port_in_use_is_said_clearly(processes: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = begin(processes, tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "listens on" in errors
    assert "--listen" in errors
    assert "Traceback" not in errors
    assert "listening" not in output


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "no.such.host.invalid:80"])
def test_bad_address_is_said_clearly(processes: list[subprocess.Popen[str]], tmp_path: Path, listen: str) -> None:
    process = begin(processes, tmp_path, listen)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert listen in errors
    assert "Traceback" not in errors


def test_two_processes_on_one_data_directory_know_each_other(processes: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    urls = [url_of(process) for process in [begin(processes, tmp_path), begin(processes, tmp_path)]]

    deadline_s = time.monotonic() + 15
    counts: list[int] = []
    while time.monotonic() < deadline_s and counts != [2, 2]:
        counts = []
        for url in urls:
            request = urllib.request.Request(url + "/v1/status", headers=administration(tmp_path))
            with urllib.request.urlopen(request, timeout=10) as answer:
                counts.append(len(json.load(answer)["members"]))
        time.sleep(0.2)
    assert counts == [2, 2]


async def test_two_processes_share_a_port_and_what_one_accepts_clients_of_the_other_hear(
    processes: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """By the fast path: there is no pipeline. 40 clients, 32 partitions: all of them at one of the two, once in 10^9 runs."""
    many = "partitions=32"  # whose id is drawn may own none of four
    url = url_of(begin(processes, tmp_path, "127.0.0.1:0", "name=one", many))
    assert url_of(begin(processes, tmp_path, url.removeprefix("http://"), "name=two", many)) == url

    def status() -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(url + "/v1/status", headers=administration(tmp_path)), timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    async with asyncio.timeout(60), AsyncExitStack() as stack:
        while len((await asyncio.to_thread(status))["gateways"]) < 2:
            await asyncio.sleep(0.1)
        clients = [await stack.enter_async_context(roskva.Client(url, application="demo")) for _ in range(40)]
        for client in clients:
            await client.register("hello")
        while (held := await asyncio.to_thread(status))["pending"]["registrations"] < 40:  # the pipeline is to confirm them
            await asyncio.sleep(0.1)
        assert all(one["connections"] > 0 and one["sessions"] > 0 for one in held["gateways"].values()), held["gateways"]
        hearing = [asyncio.ensure_future(anext(aiter(client))) for client in clients]
        async with roskva.Publisher(url, application="demo") as publisher:
            for version in itertools.count(7):  # what is not written yet is not told of, and there is no pipeline to tell it later
                await publisher.publish("hello", version)
                await asyncio.wait(hearing, timeout=0.5)
                if all(one.done() for one in hearing):
                    break
        assert all((one.result().version or 0) >= 7 for one in hearing)
