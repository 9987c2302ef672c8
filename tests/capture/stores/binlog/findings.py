"""What tests look for in findings."""

from __future__ import annotations

from typing import Any

from roskva.capture.interface import Finding
from roskva.capture.stores.binlog.store import BinlogStore
from tests.capture.stores.servers_binlog import BinlogServer


def wrong(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


def check_that_it_is_named(server: BinlogServer, store: BinlogStore[Any, Any], variable: str, bad: str, good: str) -> None:
    """A setting of the server, with the statement that mends it."""
    server.run(f"SET GLOBAL {variable} = {bad}")
    try:
        (finding,) = wrong(store.check())
    finally:
        server.run(f"SET GLOBAL {variable} = {good}")
    assert finding.what == f"{variable} = {bad.strip(chr(39))}"
    assert f"SET GLOBAL {variable} = {good}" in finding.do
    assert finding.means
