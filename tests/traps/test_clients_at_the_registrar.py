"""What a Registrar says to one client, and for whom it waits (traps 10, 23, 27 and 34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_COVERED, OUTCOME_UPDATE, SETTLED, object_key
from roskva.protocol.messages import ClientMessage, Sync, SyncObject
from roskva.protocol.summaries import SetDigest
from tests.registrar.place import Clock, HeldChannel, Place, acknowledging, told

NOTHING = SetDigest().summary()
HELLO = SetDigest([b"hello"]).summary()


@pytest.fixture
async def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
async def still(settings: Settings, clock: Clock) -> AsyncIterator[Place]:
    """A Registrar that does nothing by itself, on a clock that only the test moves."""
    place = Place(settings, clock=clock)
    place.registrar.members_changed()
    yield place
    await place.close()


async def test_trap_10_a_row_that_was_collected_under_its_session_is_missed_at_a_heartbeat(still: Place, clock: Clock) -> None:
    """In memory all is well, and so the client would be in sync with a row that nobody has, and hear nothing."""
    channel = HeldChannel()
    token = await still.start_client(channel)
    event = await still.register(channel, token, "hello")
    assert await still.registrar.propagate([told(event, OUTCOME_COVERED)]) == [SETTLED]
    still.engine.delete_rows([still.registrar.rows.key(event.client)])
    clock.now_s += still.settings.applications["demo"].heartbeat_s
    still.say(channel, ClientMessage(token=token, summary=HELLO))
    message = await channel.until(lambda m: m.start_anew)
    assert message.start_anew is not None
    assert not message.start_anew.keep, "under its old id the Matcher's later cells would win over what it registers now"
    assert event.client not in still.registrar.sessions


async def test_trap_23_no_sync_is_asked_for_while_registrations_are_on_their_way(still: Place) -> None:
    """What is on its way explains why the summaries differ; asked all the same, each side would correct the other without end."""
    channel = HeldChannel()
    token = await still.start_client(channel)
    event = await still.register(channel, token, "hello")
    heard = len(channel.received)
    still.say(channel, ClientMessage(token=token, summary=NOTHING))
    assert len(channel.received) > heard
    assert not any(message.sync_request for message in channel.received)
    assert await still.registrar.propagate([told(event, OUTCOME_COVERED)]) == [SETTLED]
    still.say(channel, ClientMessage(token=token, summary=NOTHING))
    assert channel.received[-1].sync_request is not None, "with nothing on its way, it is"


async def test_trap_27_nobody_waits_for_a_client_that_is_known_to_be_slow(settings: Settings) -> None:
    place = Place(replace(settings, ack_wait_ms=30_000.0))
    place.registrar.members_changed()
    try:
        slow, prompt = HeldChannel(), HeldChannel()
        tokens = {name: await place.start_client(channel, name) for name, channel in (("slow", slow), ("prompt", prompt))}
        acknowledging(place, prompt, tokens["prompt"])
        events = [await place.register(channel, tokens[name], name) for name, channel in (("slow", slow), ("prompt", prompt))]
        event_of = {event.device: event for event in (*events, *place.events())}
        place.registrar.sessions[place.client(tokens["slow"])].answer_ms = 60_000  # as it usually answered
        async with asyncio.timeout(10):
            assert await place.registrar.propagate([told(event_of[name], OUTCOME_UPDATE, 7) for name in tokens]) == [SETTLED] * 2
        assert any(message.notify for message in slow.received), "it is sent like any other"
        assert [one.version for one in place.row(tokens["slow"]).waiting()] == [7], "and written at once"
    finally:
        await place.close()


async def test_trap_34_after_a_reset_the_registrations_of_before_no_longer_count(still: Place, clock: Clock) -> None:
    channel = HeldChannel()
    token = await still.start_client(channel)
    before = await still.register(channel, token, "hello")
    assert await still.registrar.propagate([told(before, OUTCOME_COVERED)]) == [SETTLED]
    still.registrar.rows._epoch_of = lambda application: 1  # the application was reset
    clock.now_s += still.settings.applications["demo"].heartbeat_s
    still.say(channel, ClientMessage(token=token, summary=HELLO))
    session = still.registrar.sessions[before.client]
    async with asyncio.timeout(5):
        while session.summary != NOTHING:
            await asyncio.sleep(0.01)
    still.say(channel, ClientMessage(token=token, sync=Sync(op=2, objects=[SyncObject(object="hello")])))
    async with asyncio.timeout(5):
        while len(still.events()) < 2:
            await asyncio.sleep(0.01)
    after = max(still.events(), key=lambda event: event.seqno)
    assert after.object == object_key("demo", 1, b"hello")
    assert await still.registrar.propagate([told(after, OUTCOME_UPDATE, 5)]) == [SETTLED]
    message = await channel.until(lambda m: m.notify)
    assert [(told.epoch, told.version) for told in message.notify] == [(1, "5")]
