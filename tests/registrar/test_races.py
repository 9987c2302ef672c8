"""Interleavings at the Registrar that once lost something, or might: each was found by reading the code as an enemy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import DROP_COPY, OUTCOME_COVERED, OUTCOME_UNKNOWN, OUTCOME_UPDATE, OUTCOME_VERSION, SETTLED, UNAVAILABLE, Registration
from roskva.propagation.blind import write_blindly
from roskva.protocol.messages import Ack, ClientMessage, Init, Register, Unregister
from roskva.protocol.summaries import SetDigest
from roskva.registrar.cells import CREATED, client_row
from roskva.table.interface import Cell, Mutation, Row, RowKey
from tests.registrar.place import HeldChannel, Place, acknowledging, serving, told


async def registered(place: Place) -> tuple[HeldChannel, str, Registration]:
    """A client that registered for an object, knows its version 1, and is owed nothing."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    acknowledging(place, channel, token)
    event = await place.register(channel, token, "o")
    assert await place.registrar.propagate([told(event, OUTCOME_VERSION, 1)]) == [SETTLED]
    await channel.until(lambda m: m.status)
    channel.on_message = None
    return channel, token, event


async def test_what_is_stored_while_the_session_begins_is_sent_to_it(place: Place) -> None:
    channel, token, event = await registered(place)
    place.registrar.closed(channel)
    write, gate = place.table_lanes.write, asyncio.Event()

    async def held_back(mutations: Sequence[Mutation]) -> None:
        await gate.wait()
        await write(mutations)

    place.table_lanes.write = held_back  # type: ignore[method-assign]
    storing = asyncio.create_task(place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]))
    await asyncio.sleep(0.05)
    back = HeldChannel()
    place.say(back, ClientMessage(token=token))
    await back.until(lambda m: m.token == token)
    gate.set()
    assert await storing == [SETTLED]
    place.table_lanes.write = write  # type: ignore[method-assign]
    message = await back.until(lambda m: m.notify)
    assert message.notify[0].version == "7"
    assert message.unsettled == 1


async def test_what_waits_for_an_answer_while_the_channel_changes_is_sent_to_the_new_one(place: Place) -> None:
    _, token, event = await registered(place)
    storing = asyncio.create_task(place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]))
    await asyncio.sleep(0.005)
    back = HeldChannel()
    place.say(back, ClientMessage(token=token))
    assert await storing == [SETTLED]
    message = await back.until(lambda m: m.notify)
    assert message.notify[0].version == "7"


async def test_a_mark_is_done_with_only_when_its_row_was_read(place: Place) -> None:
    """Traps 25 and 40: one read that fails must not hide a blind write from its client."""
    channel, _, event = await registered(place)
    read = place.table_lanes.read
    failures = 0

    async def failing(rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None) -> dict[RowKey, Row]:
        nonlocal failures
        if rows and rows[0].table == "registrar":
            failures += 1
            raise PartitionUnavailable("Busy.", "registrar-0")
        return await read(rows, prefix, limit)

    place.table_lanes.read = failing  # type: ignore[method-assign]
    await asyncio.to_thread(write_blindly, place.engine, place.settings, [told(event, OUTCOME_UPDATE, 9)])
    async with asyncio.timeout(5):
        while failures == 0:
            await asyncio.sleep(0.02)
    place.table_lanes.read = read  # type: ignore[method-assign]
    await channel.until(lambda m: any(n.version == "9" for n in m.notify))


async def test_pending_done_and_its_notification_land_together_however_many_there_are(place: Place) -> None:
    """Trap 15: a write that is cut into several must not clear a marker and lose what it stood for."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    for first in (0, 350):
        place.say(channel, ClientMessage(token=token, register=[Register(op=1 + n, object=f"o{n}") for n in range(first, first + 350)]))
    async with asyncio.timeout(10):
        while len(place.events()) < 700:
            await asyncio.sleep(0.02)
    events = place.events()
    place.registrar.closed(channel)
    tuples = [told(events[0], OUTCOME_COVERED), *(told(event, OUTCOME_UNKNOWN) for event in events[1:])]
    write, failed = place.engine.write, False

    def first_part_only(mutations: Sequence[Mutation]) -> None:
        nonlocal failed
        large = [mutation for mutation in mutations if len(mutation.cells) > 300]
        if large and not failed:
            failed = True
            write(large[:1])
            raise PartitionUnavailable("Busy.", "registrar-0")
        write(mutations)

    place.engine.write = first_part_only  # type: ignore[method-assign]
    try:
        assert UNAVAILABLE in await place.registrar.propagate(tuples)
        assert set(await place.registrar.propagate(tuples)) == {SETTLED}
    finally:
        del place.engine.write
    waiting = {one.object for one in place.row(token).waiting()}
    assert waiting == {event.object for event in events[1:]}
    assert place.row(token).pending_count == 0


async def test_a_client_that_never_answers_does_not_hold_up_every_call(place: Place) -> None:
    """Trap 27, counted in calls, not in time: after some unanswered notifications nobody waits for this client."""
    _, token, event = await registered(place)
    session = place.registrar.sessions[place.client(token)]
    for version in range(2, 12):
        await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)])
    assert session.answer_ms > place.settings.ack_wait_ms


async def test_a_channel_that_closes_while_its_session_is_admitted_leaves_no_ghost(place: Place) -> None:
    channel, token, _ = await registered(place)
    place.registrar.closed(channel)
    back = HeldChannel()
    place.say(back, ClientMessage(token=token))
    await asyncio.sleep(0)
    place.registrar.closed(back)
    await asyncio.sleep(0.3)
    assert place.client(token) not in place.registrar.sessions


async def test_an_operation_of_a_superseded_session_that_waited_for_its_turn_does_nothing(place: Place) -> None:
    channel, token, event = await registered(place)
    later = HeldChannel()
    place.say(later, ClientMessage(init=Init(nonce="n", application="demo", device="d1", prior=token)))
    granted = await later.until(lambda m: m.grant)
    read, gate = place.table_lanes.read, asyncio.Event()

    async def held_back(rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None) -> dict[RowKey, Row]:
        await gate.wait()
        return await read(rows, prefix, limit)

    place.table_lanes.read = held_back  # type: ignore[method-assign]
    place.say(later, ClientMessage(token=granted.token))
    await asyncio.sleep(0.02)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="o")]))
    await asyncio.sleep(0.02)
    gate.set()
    place.table_lanes.read = read  # type: ignore[method-assign]
    await later.until(lambda m: m.token == granted.token and not m.grant)
    await asyncio.sleep(0.2)
    assert place.row(token).standing(event.object) == (event.seqno, True)


async def test_an_announcement_does_not_take_the_session_from_the_channel_that_speaks(place: Place) -> None:
    channel, token, _ = await registered(place)
    stale = HeldChannel()
    place.registrar.announce(stale, place.claims(token), token)
    await asyncio.sleep(0.2)
    assert place.registrar.sessions[place.client(token)].channel is channel


async def test_an_acknowledgement_that_comes_while_its_notification_is_being_written_is_written_too(place: Place) -> None:
    channel, token, event = await registered(place)
    write, begun, gate = place.table_lanes.write, asyncio.Event(), asyncio.Event()

    async def held_back(mutations: Sequence[Mutation]) -> None:
        begun.set()
        await gate.wait()
        await write(mutations)

    place.table_lanes.write = held_back  # type: ignore[method-assign]
    storing = asyncio.create_task(place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]))
    await asyncio.wait_for(begun.wait(), 5)  # nobody answered in time
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="o", seqno=str(event.seqno), version="7")]))
    gate.set()
    assert await storing == [SETTLED]
    async with asyncio.timeout(5):
        while list(place.row(token).waiting()):
            await asyncio.sleep(0.02)
    assert place.row(token).logged(event.object, event.seqno) is not None


async def test_an_acknowledgement_over_a_stored_lower_version_is_written(place: Place) -> None:
    channel, token, event = await registered(place)
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 5)])  # unanswered: stored
    acknowledging(place, channel, token)
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 6)])
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="o", seqno=str(event.seqno), version="6")]))
    began_s = time.monotonic()
    while list(place.row(token).waiting()):
        assert time.monotonic() - began_s < 5
        await asyncio.sleep(0.02)


async def test_inits_that_come_while_a_grant_is_made_are_one_session_and_the_last_is_answered(place: Place) -> None:
    """A client that waits too long for a busy server asks again with a new nonce: it must neither make it busier nor miss the answer."""
    channel = HeldChannel()
    for nonce in ("first", "second", "third"):
        place.say(channel, ClientMessage(init=Init(nonce=nonce, application="demo", device="d1")))
    granted = await channel.until(lambda m: m.grant)
    await asyncio.sleep(0.1)
    assert [message.grant.nonce for message in channel.received if message.grant] == ["third"]
    assert granted.grant is not None
    assert place.registrar.counters.handshakes == 1
    place.say(channel, ClientMessage(token=granted.grant.token, summary=SetDigest().summary()))
    await channel.until(lambda m: not m.grant and not m.start_anew)


async def test_a_late_copy_of_an_earlier_init_takes_no_answer_away(place: Place) -> None:
    channel = HeldChannel()
    for nonce in ("first", "second", "first"):
        place.say(channel, ClientMessage(init=Init(nonce=nonce, application="demo", device="d1")))
    await channel.until(lambda m: m.grant)
    place.say(channel, ClientMessage(init=Init(nonce="first", application="demo", device="d1")))
    await asyncio.sleep(0.1)
    assert [message.grant.nonce for message in channel.received if message.grant] == ["second"]


async def test_an_init_with_another_wish_is_not_answered_by_the_grant_of_the_first(place: Place) -> None:
    channel = HeldChannel()
    for device in ("d1", "d2"):
        place.say(channel, ClientMessage(init=Init(nonce=device, application="demo", device=device)))
    async with asyncio.timeout(5):
        while len(channel.received) < 2:
            await asyncio.sleep(0.01)
    assert sorted(message.grant.nonce for message in channel.received if message.grant) == ["d1", "d2"]


async def test_a_client_told_to_start_anew_under_a_living_connection_is_one_session_too(place: Place) -> None:
    """The note of the session that ended must not hide that a grant is being made."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    place.registrar.dismiss(next(iter(place.registrar.sessions.values())), "token-elsewhere", keep=True)
    before = place.registrar.counters.handshakes
    for nonce in ("one", "two"):
        place.say(channel, ClientMessage(init=Init(nonce=nonce, application="demo", device="d1", prior=token)))
    await channel.until(lambda m: m.grant and m.grant.nonce == "two")
    assert place.registrar.counters.handshakes == before + 1


async def test_a_session_that_left_and_came_back_still_knows_its_own_init(place: Place) -> None:
    """Else a late copy of it makes a second grant, and the living client is superseded by itself."""
    channel = HeldChannel()
    init = ClientMessage(init=Init(nonce="mine", application="demo", device="d1"))
    place.say(channel, init)
    granted = await channel.until(lambda m: m.grant)
    hello = ClientMessage(token=granted.token, summary=SetDigest().summary())
    place.say(channel, hello)
    await channel.until(lambda m: not m.grant)
    place.registrar.leave(next(iter(place.registrar.sessions.values())))
    place.say(channel, hello)
    await channel.until(lambda m: not m.grant)
    before = place.registrar.counters.handshakes
    place.say(channel, init)
    await asyncio.sleep(0.1)
    assert place.registrar.counters.handshakes == before


async def test_an_init_that_the_channel_repeats_is_one_session(place: Place) -> None:
    """Found by the simulator (seed 24): two grants of one init, each superseding the other, until the client gave up."""
    channel = HeldChannel()
    first = await place.start_client(channel)
    place.registrar.closed(channel)
    back = HeldChannel()
    init = ClientMessage(init=Init(nonce="again", application="demo", device="d1", prior=first))
    for _ in range(3):
        place.say(back, init)
    granted = await back.until(lambda m: m.grant)
    place.say(back, init)
    async with asyncio.timeout(5):
        while len(back.received) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert [message.grant for message in back.received] == [granted.grant] * 2
    assert granted.grant is not None
    place.say(back, ClientMessage(token=granted.grant.token, summary=SetDigest().summary()))
    await back.until(lambda m: not m.grant and not m.start_anew)
    assert not any(message.start_anew for message in back.received)


async def test_a_late_repeat_of_an_init_supersedes_nobody(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    nonce = next(message.grant.nonce for message in channel.received if message.grant)
    granted = place.row(token).seqno
    place.say(channel, ClientMessage(init=Init(nonce=nonce, application="demo", device="d1", prior=token)))
    await asyncio.sleep(0.1)
    assert place.row(token).seqno == granted
    assert sum(message.grant is not None for message in channel.received) == 1


async def test_what_a_blind_write_left_is_sent_before_the_registration_is_confirmed(place: Place) -> None:
    """Else the client is in sync for a moment, though it has not heard what its registration yielded."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    write_blindly(place.engine, place.settings, [told(event, OUTCOME_VERSION, 7)])
    await channel.until(lambda m: m.status)
    words = [("notify" if message.notify else "status") for message in channel.received if message.notify or message.status]
    assert words[:2] == ["notify", "status"]


async def test_what_comes_late_through_a_channel_that_the_session_left_does_not_take_it_back(place: Place) -> None:
    old, new = HeldChannel(), HeldChannel()
    token = await place.start_client(old)
    event = await place.register(old, token, "hello")
    words = ClientMessage(token=token, summary=SetDigest([b"hello"]).summary())
    place.say(new, words)
    await new.until(lambda m: m.token == token)
    place.say(old, words)  # held back by the network until now
    await asyncio.sleep(0.1)
    place.registrar.closed(old)
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)])
    await new.until(lambda m: m.notify)


async def test_a_registration_whose_row_cannot_be_read_after_it_was_written_is_repeated(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roskva.registrar.recovery._REPEAT_AFTER_S", 0.3)
    place = Place(replace(settings, settling_s=60.0))
    await place.registrar.start()
    channel = HeldChannel()
    token = await place.start_client(channel)
    original = place.registrar.rows.get
    written = asyncio.Event()
    write = place.table_lanes.write

    async def spy(mutations: Sequence[Mutation]) -> None:
        await write(mutations)
        if any(cell.name.startswith(b"reg:") for mutation in mutations for cell in mutation.cells):
            written.set()

    async def get(client: Any, fresh: bool = False) -> Any:
        if written.is_set():
            written.clear()
            raise PartitionUnavailable("busy", "registrar-0")
        return await original(client, fresh)

    monkeypatch.setattr(place.table_lanes, "write", spy)
    monkeypatch.setattr(place.registrar.rows, "get", get)
    event = await place.register(channel, token, "hello")
    assert place.row(token).is_pending(event.object, event.seqno)
    await place.close()


async def test_marks_of_a_partition_that_cannot_be_read_hide_nobody_else_s(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    mine = client_row(place.client(token), place.settings.partitions).partition
    read = place.table_lanes.read

    async def fail(rows: Any, *more: Any, **named: Any) -> Any:
        if any(row.table == "marks" and row.partition != mine for row in rows):
            raise PartitionUnavailable("busy", "marks")
        return await read(rows, *more, **named)

    monkeypatch.setattr(place.table_lanes, "read", fail)
    write_blindly(place.engine, place.settings, [told(event, OUTCOME_VERSION, 7)])
    await channel.until(lambda m: m.notify)


async def test_a_row_that_nobody_can_read_counts_as_lost_and_holds_up_nobody(place: Place) -> None:
    good, bad = HeldChannel(), HeldChannel()
    good_token, bad_token = await place.start_client(good, "d1"), await place.start_client(bad, "d2")
    await place.register(good, good_token, "hello")
    await place.register(bad, bad_token, "hello")
    by_client = {event.client: event for event in place.events()}
    events = [by_client[place.client(token)] for token in (good_token, bad_token)]
    key = client_row(place.client(bad_token), place.settings.partitions)
    place.engine.write([Mutation(key, [Cell(CREATED, 1, b"\xc1")])])  # of no version of the service
    place.registrar.rows.drop_all()
    acknowledging(place, good, good_token)
    verdicts = await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7) for event in events])
    assert verdicts == [SETTLED, DROP_COPY]
    assert any(notify.version == "7" for message in good.received for notify in message.notify)
    place.say(bad, ClientMessage(token=bad_token, register=[Register(op=2, object="other")]))
    await bad.until(lambda m: m.start_anew)


async def test_a_row_that_was_dropped_while_it_was_read_is_not_kept(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)
    place.registrar.rows.drop(client)
    reading = asyncio.ensure_future(place.registrar.rows.get(client))
    await asyncio.sleep(0)
    place.registrar.rows.drop(client)
    await reading
    assert place.registrar.rows.peek(client) is None


async def test_an_unregistration_whose_write_failed_but_landed_ends_the_resends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator (seed 302): what the registration had yielded was resent for ever, and the client never in sync."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)])
    session = place.registrar.sessions[place.client(token)]
    assert session.outstanding
    write = place.table_lanes.write
    failures = iter([True])

    async def land_and_fail(mutations: Sequence[Mutation]) -> None:
        await write(mutations)
        if any(cell.name.startswith(b"reg:") for mutation in mutations for cell in mutation.cells) and next(failures, False):
            raise PartitionUnavailable("busy", "registrar-0")

    monkeypatch.setattr(place.table_lanes, "write", land_and_fail)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="hello")]))
    async with asyncio.timeout(10):
        while session.outstanding:
            await asyncio.sleep(0.05)
    assert next(failures, None) is None


async def test_of_two_processes_with_one_state_one_is_told_whoever_granted_their_sessions(settings: Settings) -> None:
    """Trap 37: two Registrars take themselves for the owner, and grant the same number to two copies of one state at the same moment."""
    async with serving(Place(settings, "m1")) as one, serving(Place(settings, "m2")) as two, serving(Place(settings, "m3")) as later:
        prior = await one.start_client(HeldChannel())
        both_have_read = asyncio.Barrier(2)
        granting = [_granted_behind(place, both_have_read, prior) for place in (one, two)]
        tokens = await asyncio.gather(*granting)
        claims = [one.claims(token) for token in tokens]
        assert claims[0].client == claims[1].client
        assert claims[0].session == claims[1].session
        channels = HeldChannel(), HeldChannel()
        for token, channel in zip(tokens, channels, strict=True):
            later.say(channel, ClientMessage(token=token))
            await channel.until(lambda m: m.start_anew or m.summary)
            later.registrar.closed(channel)  # nothing but the row remembers who spoke
        refused = [m.start_anew for channel in channels for m in channel.received if m.start_anew]
        assert [(start.code, start.keep) for start in refused] == [("session-superseded", True)]


async def _granted_behind(place: Place, barrier: asyncio.Barrier, prior: str) -> str:
    write = place.table_lanes.write

    async def held_back(mutations: Sequence[Mutation]) -> None:
        await barrier.wait()
        await write(mutations)

    place.table_lanes.write = held_back  # type: ignore[method-assign]
    channel = HeldChannel()
    place.say(channel, ClientMessage(init=Init(nonce="n", application="demo", device="d1", prior=prior)))
    message = await channel.until(lambda m: m.grant)
    place.table_lanes.write = write  # type: ignore[method-assign]
    assert message.grant is not None
    return message.grant.token
