"""What all tests share: a Java that Spark can run on, and nothing of the developer's own settings."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from roskva.config import ENVIRONMENT_PREFIX, OTHER_PREFIXES
from roskva.errors import RoskvaError
from roskva.feed import opening as feeds
from roskva.pipeline.session import find_java_home
from roskva.table import opening as tables

ROOT = Path(__file__).parents[1]
KEPT = "ROSKVA_CI_RUN"
_WORLDS = ("tests/simulation/mutants/test_mutants.py", "tests/simulation/test_seeds.py")


# How long one example takes says something of the machine and its load, and nothing of the code.
settings.register_profile("roskva", deadline=None, print_blob=True)
settings.load_profile("roskva")


def pytest_configure(config: pytest.Config) -> None:
    # A developer's ROSKVA_DATA must never meet a test, here or in a process that a test starts.
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(OTHER_PREFIXES) and name != KEPT:
            del os.environ[name]
    # The first Java in the path may be one that Spark does not run on. Without any, the tests that need it say so themselves.
    with suppress(RoskvaError):
        os.environ["JAVA_HOME"] = str(find_java_home())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid)[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`make test` runs in two processes. One has all that starts the real service or a browser, one after the other, so that they share
    what they start and never meet; then both have the rest, file by file; the simulator's worlds, which take both cores, come last.
    """
    from xdist.scheduler import LoadFileScheduling

    class Turns(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return _turn(nodeid)[1]

    return Turns(config, log)


@cache
def _turn_of_file(file: str) -> tuple[int, str]:
    if re.search(r"\bmark\.(e2e|browser)\b", (ROOT / file).read_text()):
        return 0, "service"
    return (2, "worlds") if file in _WORLDS else (1, file)


def _turn(nodeid: str) -> tuple[int, str]:
    return _turn_of_file(nodeid.partition("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """A process opens a data directory once, and keeps it open. In a test run of thousands, each with its own, nobody would close them."""
    result = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None:
        opened: list[dict[Any, Any]] = [feeds._feeds, tables._tables, tables._manifests]
        for engines in opened:
            for deployment in [deployment for deployment in engines if deployment[0].startswith(str(folder))]:
                engines.pop(deployment).close()
    return result
