"""Marks lead to what others left for a client, and no reader takes them from another (traps 25 and 40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UPDATE, ClientId
from roskva.propagation.blind import write_blindly
from roskva.table.interface import Mutation, RowKey
from tests.registrar.place import Clock, Place, serving, told
from tests.registrar.test_recovery import a_round, calm_down, settled_client

CLIENT = ClientId("somebody")


@pytest.fixture
async def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
async def calm_place(settings: Settings, clock: Clock) -> AsyncIterator[Place]:
    """The looks at all rows that follow a start are over, and the clock stands still: only marks lead to a row."""
    async with serving(Place(settings, clock=clock)) as place:
        await calm_down(place, clock)
        yield place


@pytest.fixture
async def readers(settings: Settings) -> AsyncIterator[tuple[Place, Place]]:
    both = Place(settings, "m1"), Place(settings, "m2")
    for place in both:
        place.registrar.members_changed()
        await place.registrar.recovery.newly_marked()
    yield both
    for place in both:
        await place.close()


async def test_trap_25_a_blind_write_for_an_online_client_is_found_by_its_mark_alone(calm_place: Place, clock: Clock) -> None:
    """Nothing in the Registrar's memory says that this client is owed something, and no scan would look at it."""
    channel, _, event = await settled_client(calm_place)
    await a_round(calm_place)
    await asyncio.to_thread(write_blindly, calm_place.engine, calm_place.settings, [told(event, OUTCOME_UPDATE, 9)])
    clock.now_s += calm_place.settings.mark_poll_s
    message = await channel.until(lambda m: m.notify)
    assert message.notify[0].version == "9"


async def test_trap_40_a_mark_that_one_reader_followed_is_there_for_the_next(readers: tuple[Place, Place]) -> None:
    one, other = readers
    await one.registrar.recovery.mark([CLIENT])
    late = Place(one.settings, "m3")
    late.registrar.members_changed()
    try:
        assert await other.registrar.recovery.newly_marked() == [CLIENT]
        assert await other.registrar.recovery.newly_marked() == [], "to each reader once"
        assert await late.registrar.recovery.newly_marked() == [CLIENT], "whoever owns the partition next needs it too"
    finally:
        await late.close()


async def test_trap_40_every_mark_has_a_name_of_its_own(readers: tuple[Place, Place]) -> None:
    """Under one name the second mark of a client would be the first, which was seen, or deleted: dead on arrival."""
    one, other = readers
    for _ in range(3):
        await one.registrar.recovery.mark([CLIENT])
        assert await other.registrar.recovery.newly_marked() == [CLIENT]


async def test_trap_40_a_mark_in_a_row_that_was_deleted_is_seen(readers: tuple[Place, Place]) -> None:
    """Rows of old marks are forgotten whole. A delete in a mark's place, at the same timestamp, would win over the mark that comes late."""
    one, other = readers
    await one.registrar.recovery.mark([CLIENT])
    ((row, cells),) = [
        (RowKey("marks", partition, key), list(cells.values()))
        for partition in range(one.settings.partitions)
        for key, cells in one.engine.scan("marks", partition)
        if any(cell.value == CLIENT.encode() for cell in cells.values())
    ]
    one.engine.delete_rows([row])
    assert await other.registrar.recovery.newly_marked() == []
    one.engine.write([Mutation(row, cells)])  # of a writer that was held up
    assert await other.registrar.recovery.newly_marked() == [CLIENT]
