"""A log of numbers, and a look at what was left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.capture.shell.numberlog import NumberLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NumberLog]:
    log = NumberLog(tmp_path / "numbers")
    yield log
    log.close()


@pytest.fixture
async def nothing_is_left_running() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done() and task is not asyncio.current_task()]
    assert left == []
