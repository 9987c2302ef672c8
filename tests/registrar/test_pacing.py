"""Intervals: one client hears of one object at most once in so long, always of the latest version, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.config import ApplicationSettings, Settings
from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, OUTCOME_VERSION, SETTLED, Registration, Update
from roskva.protocol.messages import Ack, ClientMessage, Register, Unregister
from tests.registrar.place import Clock, HeldChannel, Place, acknowledging, serving, told

INTERVAL_MS = 60_000
INTERVAL_S = INTERVAL_MS / 1000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    demo = ApplicationSettings(notify_interval_ms=INTERVAL_MS, resend_min_s=1_000, resend_max_s=1_000, offline_s=1e6, heartbeat_s=1e6)
    return Settings(data=tmp_path, settling_s=0.0, applications={"demo": demo})


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
async def place(settings: Settings, clock: Clock) -> AsyncIterator[Place]:
    async with serving(Place(settings, clock=clock)) as one:
        yield one


async def following(place: Place, interval_ms: int | None = None) -> tuple[HeldChannel, str, Registration]:
    """A client that acknowledges at once, and whose registration yielded version 1 an interval ago."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    place.say(channel, ClientMessage(token=token, register=[Register(op=1, object="x", notify_interval_ms=interval_ms)]))
    await until(lambda: place.events())
    event = place.events()[-1]
    acknowledging(place, channel, token)
    assert await place.registrar.propagate([told(event, OUTCOME_VERSION, 1)]) == [SETTLED]
    return channel, token, event


async def until(wanted: Callable[[], object]) -> None:
    async with asyncio.timeout(15):
        while not wanted():
            await asyncio.sleep(0.005)


def versions(channel: HeldChannel) -> list[str | None]:
    return [one.version for message in channel.received for one in message.notify]


def pass_interval(place: Place, clock: Clock, times: float = 1.0) -> None:
    clock.now_s += times * INTERVAL_S
    place.registrar.unacknowledged.tell_held_back()


async def told_by_pipeline(place: Place, event: Registration, version: int) -> None:
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)]) == [SETTLED]


async def test_the_first_goes_at_once_then_the_newest_when_the_interval_ends(place: Place, clock: Clock) -> None:
    channel, _, event = await following(place)
    pass_interval(place, clock)
    for version in range(2, 100):
        place.registrar.fast.updated([Update(event.object, version, "")])
        clock.now_s += 0.001
    assert versions(channel) == ["1", "2"]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "2", "99"]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "2", "99"], "nothing was held back in the second interval"
    place.registrar.fast.updated([Update(event.object, 100, "")])
    assert versions(channel)[-1] == "100", "after a quiet interval at once"


async def test_what_the_pipeline_brings_is_durable_before_it_is_answered(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    await told_by_pipeline(place, event, 7)
    assert versions(channel) == ["1"]
    assert [one.version for one in place.row(token).waiting()] == [7]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "7"]
    await until(lambda: not place.row(token).waits)


async def test_fast_path_and_pipeline_hold_back_the_same_one(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    await told_by_pipeline(place, event, 7)
    place.registrar.fast.updated([Update(event.object, 8, "")])
    pass_interval(place, clock)
    assert versions(channel) == ["1", "8"]
    await until(lambda: not place.row(token).waits)
    await told_by_pipeline(place, event, 8)
    pass_interval(place, clock)
    assert versions(channel) == ["1", "8"], "it was acknowledged before the pipeline came"


async def test_what_was_held_back_in_memory_only_the_pipeline_still_tells(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    place.registrar.closed(channel)
    assert not place.row(token).waits
    await told_by_pipeline(place, event, 7)
    assert [one.version for one in place.row(token).waiting()] == [7]


async def test_a_new_connection_is_told_at_once_what_was_held_back(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    await told_by_pipeline(place, event, 7)
    place.registrar.closed(channel)
    again = HeldChannel()
    place.say(again, ClientMessage(token=token))
    await again.until(lambda message: message.notify)
    assert versions(again) == ["7"]
    assert len(place.registrar.unacknowledged.pacing) >= 1


async def test_a_look_at_the_row_does_not_end_an_interval(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    await told_by_pipeline(place, event, 7)
    session = place.registrar.sessions[place.client(token)]
    await place.registrar.reread(session)
    assert versions(channel) == ["1"]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "7"]


async def test_what_a_registration_yields_and_unknown_are_never_held_back(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="x")]))
    place.say(channel, ClientMessage(token=token, register=[Register(op=3, object="x")]))
    await until(lambda: len(place.events()) == 3)
    event = place.events()[-1]
    assert await place.registrar.propagate([told(event, OUTCOME_VERSION, 2)]) == [SETTLED]
    assert versions(channel) == ["1", "2"]
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=4, object="x")]))
    place.say(channel, ClientMessage(token=token, register=[Register(op=5, object="x")]))
    await until(lambda: len(place.events()) == 5)
    assert await place.registrar.propagate([told(place.events()[-1], OUTCOME_UNKNOWN)]) == [SETTLED]
    assert versions(channel) == ["1", "2", None]


async def test_a_repeat_is_not_held_back_and_what_waits_does_not_wait_for_it(place: Place, clock: Clock) -> None:
    channel, _, event = await following(place)
    pass_interval(place, clock)
    channel.on_message = None  # from now on it does not answer
    place.registrar.fast.updated([Update(event.object, 2, "")])
    place.registrar.fast.updated([Update(event.object, 3, "")])
    session = next(iter(place.registrar.sessions.values()))
    session.settings = replace(session.settings, resend_min_s=0.01, resend_max_s=0.01)
    for entry in session.outstanding.values():
        entry.due_s = clock.now_s
    place.registrar.unacknowledged.resend_due()
    assert versions(channel) == ["1", "2", "2"]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "2", "2", "3"], "at the end of the first interval, not of one that the repeat began"


async def test_the_larger_of_application_s_and_registration_s_counts(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place, interval_ms=2 * INTERVAL_MS)
    await told_by_pipeline(place, event, 7)
    pass_interval(place, clock)
    assert versions(channel) == ["1"]
    pass_interval(place, clock)
    assert versions(channel) == ["1", "7"]
    assert place.row(token).interval_ms(event.object) == 2 * INTERVAL_MS


async def test_a_registration_s_interval_outlives_its_gateway(settings: Settings, clock: Clock) -> None:
    settings = replace(settings, applications={"demo": replace(settings.applications["demo"], notify_interval_ms=0)})
    async with serving(Place(settings, clock=clock)) as first:
        _, token, event = await following(first, interval_ms=INTERVAL_MS)
    async with serving(Place(settings, clock=clock)) as second:
        channel = HeldChannel()
        second.say(channel, ClientMessage(token=token))
        await channel.until(lambda message: message.summary)
        acknowledging(second, channel, token)
        await told_by_pipeline(second, event, 7)
        await told_by_pipeline(second, event, 8)
        assert versions(channel) == ["7"]


async def test_another_interval_makes_the_registration_anew_and_none_leaves_it(place: Place) -> None:
    channel, token, event = await following(place, interval_ms=70_000)
    place.say(channel, ClientMessage(token=token, register=[Register(op=2, object="x", notify_interval_ms=70_000)]))
    place.say(channel, ClientMessage(token=token, register=[Register(op=3, object="x")]))
    await until(lambda: sum(bool(message.status) for message in channel.received) >= 3)
    assert place.events() == [event]
    assert place.row(token).interval_ms(event.object) == 70_000
    place.say(channel, ClientMessage(token=token, register=[Register(op=4, object="x", notify_interval_ms=0)]))
    await until(lambda: len(place.events()) == 2)
    assert place.row(token).interval_ms(event.object) == 0
    assert place.row(token).digest.count == 1


async def test_unregistered_while_it_was_held_back(place: Place, clock: Clock) -> None:
    channel, token, event = await following(place)
    await told_by_pipeline(place, event, 7)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="x")]))
    await until(lambda: len(place.events()) == 2)
    pass_interval(place, clock)
    assert versions(channel) == ["1"]


async def test_beyond_the_limit_nothing_is_held_back(settings: Settings, clock: Clock) -> None:
    async with serving(Place(replace(settings, outstanding_max=1), clock=clock)) as place:
        channel, token, event = await following(place)
        place.say(channel, ClientMessage(token=token, register=[Register(op=2, object="y")]))
        await until(lambda: len(place.events()) == 2)
        other = next(one for one in place.events() if one.object != event.object)
        assert await place.registrar.propagate([told(other, OUTCOME_VERSION, 1)]) == [SETTLED]
        await told_by_pipeline(place, other, 2)
        await told_by_pipeline(place, other, 3)
        assert versions(channel) == ["1", "1", "2", "3"]
        assert len(place.registrar.unacknowledged.pacing) == 1


async def test_an_object_that_changes_all_the_time_costs_a_message_for_each_interval(settings: Settings) -> None:
    """With the timer, in real time: what matters is that the last version comes, and how few there were."""
    settings = replace(settings, applications={"demo": replace(settings.applications["demo"], notify_interval_ms=100)})
    async with serving(Place(settings)) as place:
        channel, token, event = await following(place)
        started_s = time.monotonic()
        for version in range(2, 302):
            place.registrar.fast.updated([Update(event.object, version, "")])
            await asyncio.sleep(0.001)
        took_s = time.monotonic() - started_s
        await channel.until(lambda message: any(one.version == "301" for one in message.notify))
        assert len(versions(channel)) <= 3 + took_s / 0.1
        place.say(channel, ClientMessage(token=token, acks=[Ack(object="x", seqno=str(event.seqno), version="301")]))
        await told_by_pipeline(place, event, 301)
        assert not place.row(token).waits


async def test_ended_sessions_do_not_stay_in_the_heap(place: Place, clock: Clock) -> None:
    """Clients that come and go while the interval is long."""
    pacing = place.registrar.unacknowledged.pacing
    _, _, event = await following(place)
    session = next(iter(place.registrar.sessions.values()))
    for _ in range(5_000):
        entry = place.registrar.unacknowledged.entry(session, event.object, event.seqno, 2, clock.now_s)
        place.registrar.unacknowledged.sent(session, entry, clock.now_s)
        pacing.forget(session)
    assert len(pacing) < 2_500
