"""The public names, what importing them costs, and the examples in their documentation."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import roskva
from roskva.client import actions
from tests.client.gateway import GatewayThread

PURE = [
    "actions",
    "choice",
    "core",
    "credential",
    "desired",
    "following",
    "freshness",
    "handover",
    "handshake",
    "limits",
    "operations",
    "outbox",
    "state",
    "syncing",
    "waking",
]


def test_the_public_names() -> None:
    names = [
        "BlockingLiveCache",
        "BlockingPublisher",
        "Channel",
        "Client",
        "LiveCache",
        "Notification",
        "Publisher",
        "SqliteStore",
        "errors",
    ]
    assert roskva.__all__ == names
    for name in roskva.__all__:
        assert getattr(roskva, name) is not None
        assert name in dir(roskva)
    with pytest.raises(AttributeError):
        roskva.Nothing  # noqa: B018


def _imported_by(statement: str, watched: set[str]) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split()) & watched


def test_importing_roskva_imports_nothing_heavy() -> None:
    assert _imported_by("import roskva", {"pyspark", "picows", "aiohttp", "asyncio", "msgspec"}) == set()


def test_the_pure_parts_import_no_io() -> None:
    statement = "import " + ", ".join(f"roskva.client.{name}" for name in PURE)
    assert _imported_by(statement, {"asyncio", "aiohttp", "socket", "sqlite3", "pyspark", "logging"}) == set()


def test_examples_of_actions() -> None:
    assert doctest.testmod(actions).failed == 0


def test_examples_that_need_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    from roskva import publisher
    from roskva.client import livecache, livecache_blocking, shell

    with GatewayThread() as gateway:
        monkeypatch.setenv("ROSKVA_URL", gateway.url)
        for module in (shell, publisher, livecache, livecache_blocking):
            outcome = doctest.testmod(module)
            assert outcome.attempted > 0
            assert outcome.failed == 0
