"""`roskva conformance` as a person types it. What it finds is tested in tests/conformance and tests/gateway."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.cli import main
from roskva.conformance.transcripts import load

DRIVER = Path(__file__).parents[2] / "examples" / "conformance" / "driver.py"


def test_the_transcripts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [one.name for one in load()]
    assert main(["conformance", "--list", "--json", "--only", "04"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "04-notification"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "one of them"),
        (["http://127.0.0.1:9", "--serve", "0"], "one of them"),
        (["http://127.0.0.1:9"], "cannot be reached"),
        (["nonsense"], "not the address of a service"),
        (["http://127.0.0.1:9", "--only", "99"], "no transcript"),
        (["http://127.0.0.1:9", "--application", "Ü"], "application"),
        (["--serve", "99999"], "not a port"),
    ],
)
def test_misuse_is_one_line_and_status_1(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["conformance", "--serve", str(taken.getsockname()[1])]) == 1
    assert "cannot be opened" in capsys.readouterr().err


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "roskva", "conformance", "--serve", "0", "--only", "02"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().split()[1]
    yield process, url
    process.kill()
    process.communicate()


def test_a_client_is_judged(served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    driven = subprocess.run([sys.executable, str(DRIVER), url], capture_output=True, text=True, check=True, timeout=60)
    assert "'passed': 1" in driven.stdout
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines() == ["passed  02-known-version", "", "1 passed, 0 failed"]
