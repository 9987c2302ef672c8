"""Runs the real `roskva up` with stand-ins for gateway and pipeline, and less patience than in earnest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roskva.cli import main, up

if __name__ == "__main__":
    pytest.MonkeyPatch().setattr(up, "GATEWAY_SILENCE_S", 2.0)
    stand_in = Path(__file__).with_name("stand_in.py")
    up.up.__defaults__ = ((sys.executable, str(stand_in)),)
    sys.exit(main(["up", *sys.argv[1:]]))
