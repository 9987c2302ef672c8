"""A real gateway, as in tests/gateway, with the pipeline's work done in its process, and a crowd that is simulated against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from roskva.gateway.service import Gateway
from tests.gateway.conftest import Start, pytest_asyncio_loop_factories, settings, start
from tests.gateway.matching import run_matcher
from tests.gateway.test_channels import QUICK

__all__ = ["pytest_asyncio_loop_factories", "settings", "start"]


@pytest.fixture
async def gateway(start: Start) -> AsyncIterator[Gateway]:
    begun = await start(applications={"demo": QUICK})
    matching = asyncio.create_task(run_matcher(begun))
    yield begun
    matching.cancel()
    await asyncio.gather(matching, return_exceptions=True)
