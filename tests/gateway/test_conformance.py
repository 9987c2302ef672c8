"""`roskva conformance` at a real gateway, over its channels: it passes, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from roskva.conformance.outcome import FAILED, PASSED, SKIPPED, table
from roskva.conformance.service import LONG_POLL, WEBSOCKET, check
from roskva.conformance.transcripts import load, select
from roskva.errors import ServiceUnreachable
from roskva.gateway.service import Gateway
from roskva.table import open_table
from tests.gateway.conftest import Start
from tests.gateway.matching import run_matcher


@pytest.fixture
async def matched(start: Start) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Starts a gateway with a Matcher."""
    running: list[asyncio.Task[None]] = []

    async def begin(**changes: object) -> Gateway:
        gateway = await start(**changes)
        running.append(asyncio.create_task(run_matcher(gateway)))
        return gateway

    yield begin
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_the_gateway_passes(matched: Callable[..., Awaitable[Gateway]]) -> None:
    gateway = await matched()
    outcomes = await check(gateway.url, load(), application="demo", channel=WEBSOCKET, patience_s=15.0)
    not_passed = {one.name: one.result for one in outcomes if one.result != PASSED}
    assert not_passed == {"12-permanent-failure": SKIPPED, "13-heartbeat": SKIPPED}, table(outcomes)
    assert len(outcomes) == len(load())
    table_of = open_table(gateway.settings)
    rows = [row for partition in range(gateway.settings.partitions) for _, row in table_of.scan("registrar", partition)]
    assert not any(b"created" in row for row in rows), "the player left clients behind"


async def test_it_passes_over_long_polls(matched: Callable[..., Awaitable[Gateway]]) -> None:
    gateway = await matched()
    some = select(load(), ["02", "14"])
    outcomes = await check(gateway.url, some, application="demo", channel=LONG_POLL, patience_s=15.0)
    assert [one.result for one in outcomes] == [PASSED] * 2, table(outcomes)


async def test_a_service_that_is_configured_so_is_asked_for_its_limit(matched: Callable[..., Awaitable[Gateway]]) -> None:
    gateway = await matched(registrations_per_client_max=1)
    outcomes = await check(gateway.url, select(load(), ["12"]), application="demo", channel=WEBSOCKET, patience_s=15.0)
    assert [one.result for one in outcomes] == [PASSED], table(outcomes)


async def test_an_application_that_is_not_there_is_told(matched: Callable[..., Awaitable[Gateway]]) -> None:
    gateway = await matched()
    (outcome,) = await check(gateway.url, select(load(), ["01"]), application="none", channel=WEBSOCKET, patience_s=5.0)
    assert outcome.result == FAILED
    assert "unknown-application" in outcome.why


async def test_a_service_that_is_not_there_is_told() -> None:
    with pytest.raises(ServiceUnreachable, match="cannot be reached"):
        await check("http://127.0.0.1:9", load(), application="demo", channel=WEBSOCKET, patience_s=5.0)
