"""The TypeScript client and its publisher against a real service: clients/typescript/test/real-service.ts tells what it does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients.stdio import NODE, PACKAGE

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CHANNELS = ("websocket as websocket", "long-poll as long-poll", "long-poll as auto")
EACH = ("told", "told after the connection was cut", "the same client after a restart", "forgotten")
TABS = ("three of them over one connection", "another leads when the first is closed", "one signs out, and all have ended")


def test_every_channel_cut_connections_restarts_signing_out_and_tabs(service: Service, tmp_path: Path) -> None:
    done = subprocess.run(
        [NODE, PACKAGE / "test" / "real-service.ts", service.url, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.splitlines() == [f"{channel}: {what}" for channel in CHANNELS for what in EACH] + [f"tabs: {what}" for what in TABS]
