"""A process notices that the one which started it is gone, by kill -9 too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roskva.parent import when_parent_is_gone

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHILD = """
import os, sys, time
from pathlib import Path
from roskva.parent import when_parent_is_gone
when_parent_is_gone(lambda: (Path(sys.argv[1]).write_text("orphan"), os._exit(0)))
print("watching", flush=True)
time.sleep(30)
"""
PARENT = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(40)
def test_an_orphan_acts_when_its_parent_is_killed_and_not_before(tmp_path: Path) -> None:
    noticed = tmp_path / "noticed"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(noticed)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        try:
            assert parent.stdout.readline() == "watching\n"
            time.sleep(1.2)
            assert not noticed.exists()
        finally:
            parent.kill()
            parent.wait(10)
        wait_for(noticed)


def test_a_parent_that_was_gone_before_the_watch_began_is_noticed(tmp_path: Path) -> None:
    noticed = tmp_path / "noticed"
    when_parent_is_gone(noticed.touch, parent=0)
    wait_for(noticed)
