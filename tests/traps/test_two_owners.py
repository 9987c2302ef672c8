"""Two Registrars take themselves for the owner of one client: what each has in memory may be behind the table (traps 3 and 4).

No rounds run here: nothing but the calls of a test refreshes what a Registrar remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UPDATE, SETTLED, object_key
from roskva.protocol.messages import ClientMessage, Register, Unregister
from roskva.protocol.summaries import SetDigest
from roskva.table.interface import Mutation
from tests.registrar.place import HeldChannel, Place, told

X = object_key("demo", 0, b"x")


async def two_places(settings: Settings) -> AsyncIterator[tuple[Place, Place]]:
    both = Place(settings, "m1"), Place(settings, "m2")
    for place in both:
        place.registrar.members_changed()
    yield both
    for place in both:
        await place.close()


@pytest.fixture
async def long_after(settings: Settings) -> AsyncIterator[tuple[Place, Place]]:
    """The change of members was long ago, and the first Registrar has not heard of it."""
    async for both in two_places(replace(settings, settling_s=0.0)):
        yield both


@pytest.fixture
async def settling(settings: Settings) -> AsyncIterator[tuple[Place, Place]]:
    """The change of members was a moment ago."""
    async for both in two_places(replace(settings, settling_s=60.0)):
        yield both


async def done(place: Place) -> None:
    """Until the Registrar has dealt with all that it was told."""
    async with asyncio.timeout(5):
        while place.registrar._tasks:
            await asyncio.sleep(0.005)


async def move(place: Place, token: str) -> HeldChannel:
    """The client speaks here now."""
    channel = HeldChannel()
    place.say(channel, ClientMessage(token=token))
    await channel.until(lambda m: m.token == token)
    await done(place)
    return channel


async def operate(place: Place, channel: HeldChannel, token: str, *operations: Register | Unregister) -> None:
    register = [one for one in operations if isinstance(one, Register)]
    unregister = [one for one in operations if isinstance(one, Unregister)]
    place.say(channel, ClientMessage(token=token, register=register, unregister=unregister))
    await done(place)


async def test_trap_03_a_deposed_gateway_asks_the_table_before_it_drops_a_tuple(long_after: tuple[Place, Place]) -> None:
    """By its memory the client is not registered. Dropped, the update would be done with, and nobody would be told."""
    deposed, owner = long_after
    channel = HeldChannel()
    token = await deposed.start_client(channel)
    deposed.registrar.closed(channel)
    row = await deposed.registrar.rows.get(deposed.client(token))
    assert deposed.registrar.rows.peek(deposed.client(token)) is row, "it remembers the row without a registration"
    event = await owner.register(await move(owner, token), token, "x")
    assert await deposed.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    assert [one.version for one in owner.row(token).waiting()] == [7], "the owner finds it in the row"


async def unregistered_at_both(settling: tuple[Place, Place]) -> tuple[HeldChannel, HeldChannel, str]:
    """x was registered and unregistered at the first; the second has the client now, and knows the row as it is."""
    first, second = settling
    channel = HeldChannel()
    token = await first.start_client(channel)
    await operate(first, channel, token, Register(op=1, object="x"))
    await operate(first, channel, token, Unregister(op=2, object="x"))
    return channel, await move(second, token), token


async def register_and_unregister(second: Place, channel: HeldChannel, token: str) -> None:
    await operate(second, channel, token, Register(op=3, object="x"))
    await operate(second, channel, token, Unregister(op=4, object="x"))


async def test_trap_04_a_seqno_is_taken_after_a_fresh_look_while_members_settle(settling: tuple[Place, Place]) -> None:
    """By its memory it would number as the second did: its registration would lose against the other's unregistration of that number."""
    first, second = settling
    channel, moved, token = await unregistered_at_both(settling)
    await register_and_unregister(second, moved, token)
    taken = second.row(token).seqno
    await operate(first, channel, token, Register(op=5, object="y"), Register(op=6, object="x"))
    standing = first.row(token).standing(X)
    assert standing is not None
    assert standing.registered
    assert standing.seqno > taken


async def test_trap_04_what_counts_after_a_write_is_what_the_table_kept(settling: tuple[Place, Place]) -> None:
    """Both numbered alike, and this one's write lost: told "x is registered", the client would be in sync and hear nothing, for ever."""
    first, second = settling
    channel, moved, token = await unregistered_at_both(settling)
    write, reached, gate = first.table_lanes.write, asyncio.Event(), asyncio.Event()

    async def held_back(mutations: Sequence[Mutation]) -> None:
        if any(mutation.row.table == "registrar" for mutation in mutations):
            reached.set()
            await gate.wait()
        await write(mutations)

    first.table_lanes.write = held_back  # type: ignore[method-assign]
    first.say(channel, ClientMessage(token=token, register=[Register(op=5, object="y"), Register(op=6, object="x")]))
    await asyncio.wait_for(reached.wait(), 5)
    await register_and_unregister(second, moved, token)
    gate.set()
    await done(first)
    standing = first.row(token).standing(X)
    assert standing is not None
    assert not standing.registered, "both took one number: the unregistration wins"
    session = first.registrar.sessions[first.client(token)]
    assert session.summary == SetDigest([b"y"]).summary(), "so the client sees the difference, and syncs"
