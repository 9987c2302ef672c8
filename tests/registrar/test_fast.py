"""The fast path: accepted updates reach who is online at once, and what is acknowledged then the pipeline neither writes nor sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UNREGISTERED, OUTCOME_UPDATE, OUTCOME_VERSION, SETTLED, ObjectKey, Registration, Update
from roskva.protocol.messages import Ack, ClientMessage, Unregister
from roskva.registrar.cells import Pending, registration_cells, seqno_cell
from roskva.registrar.fast import Bounds
from tests.registrar.place import HeldChannel, Place, acknowledging, serving, told


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as one:
        yield one


async def following(place: Place, name: str = "x", device: str = "d1") -> tuple[HeldChannel, str, Registration]:
    channel = HeldChannel()
    token = await place.start_client(channel, device)
    await place.register(channel, token, name)
    event = next(one for one in place.events() if one.client == place.client(token))
    acknowledging(place, channel, token)
    assert await place.registrar.propagate([told(event, OUTCOME_VERSION, 1)]) == [SETTLED]
    channel.on_message = None
    return channel, token, event


def versions(channel: HeldChannel) -> list[str | None]:
    return [one.version for message in channel.received for one in message.notify]


async def test_who_is_online_hears_at_once_and_the_pipeline_adds_nothing(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    writes = place.registrar.counters.stored
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert versions(channel) == ["1", "7"], "before anything else happens"
    await asyncio.sleep(0.05)
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    await asyncio.sleep(0.05)
    assert versions(channel) == ["1", "7"]
    assert place.registrar.counters.stored == writes
    assert not place.row(token).waits
    assert place.registrar.counters.sent_at_once == 1


async def test_for_what_was_acknowledged_no_row_is_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    await asyncio.sleep(0.05)
    place.registrar.rows.drop_all()

    async def no_row(*_: object, **__: object) -> None:
        raise AssertionError("the row was asked for")

    with monkeypatch.context() as patched:
        patched.setattr(place.registrar.rows, "get_many", no_row)
        assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
        with pytest.raises(AssertionError):
            await place.registrar.propagate([told(event, OUTCOME_UPDATE, 8)])


async def test_what_is_not_acknowledged_the_pipeline_makes_durable(place: Place) -> None:
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    assert place.row(token).waits
    assert versions(channel) == ["1", "7"], "it was sent a moment ago"


async def test_a_later_version_of_the_pipeline_is_told(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    await asyncio.sleep(0.05)
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 8)]) == [SETTLED]
    assert versions(channel) == ["1", "7", "8"]


async def test_an_older_version_does_not_follow_a_newer_one(place: Place) -> None:
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    place.registrar.fast.updated([Update(event.object, 6, "")])
    acknowledging(place, channel, token)
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="x", seqno=str(event.seqno), version="7")]))
    await asyncio.sleep(0.05)
    place.registrar.fast.updated([Update(event.object, 5, ""), Update(event.object, 7, "")])
    assert versions(channel) == ["1", "7"]


async def test_trap_35_what_was_acknowledged_for_one_registration_covers_nothing_of_the_next(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    place.registrar.fast.updated([Update(event.object, 8, "")])
    await asyncio.sleep(0.05)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="x")]))
    async with asyncio.timeout(10):
        while len(place.events()) < 2:
            await asyncio.sleep(0.005)
    ended = max(place.events(), key=lambda one: one.seqno)
    assert await place.registrar.propagate([told(ended, OUTCOME_UNREGISTERED)]) == [SETTLED]
    again = await place.register(channel, token, "x", op=3)
    before = len(versions(channel))
    assert await place.registrar.propagate([told(again, OUTCOME_VERSION, 8)]) == [SETTLED]
    assert versions(channel)[before:] == ["8"]


async def test_whoever_made_the_change_is_left_out(place: Place) -> None:
    mine, _, event = await following(place, device="d1")
    other, _, _ = await following(place, device="d2")
    place.registrar.fast.updated([Update(event.object, 7, "d1")])
    assert versions(mine) == ["1"]
    assert versions(other) == ["1", "7"]


async def test_who_unregistered_or_left_hears_nothing(place: Place) -> None:
    channel, token, event = await following(place)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="x")]))
    async with asyncio.timeout(10):
        while len(place.events()) < 2:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert versions(channel) == ["1"]
    other, _, second = await following(place, "y", "d2")
    place.registrar.closed(other)
    place.registrar.fast.updated([Update(second.object, 7, "")])
    assert versions(other) == ["1"]
    assert len(place.registrar.fast) == 0, "nobody is left in the index"


async def test_an_object_that_is_registered_again_and_again_is_listed_once(place: Place) -> None:
    channel, token, event = await following(place)
    session = place.registrar.sessions[place.client(token)]
    row = place.row(token)
    seqno = event.seqno
    for _ in range(500):
        for registered in (False, True):
            seqno += 1
            row.apply(registration_cells(event.object, seqno, registered, Pending()))
            row.apply([seqno_cell(seqno)])
            place.registrar.fast.operated(session, row, [Registration(session.client, event.object, seqno, registered, "d1", None)])
    assert len(session.followed) < 200
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert versions(channel) == ["1", "7"]
    assert [one.seqno for message in channel.received for one in message.notify][-1] == str(seqno)
    place.registrar.closed(channel)
    assert len(place.registrar.fast) == 0


async def test_a_session_that_ended_meanwhile_is_not_listed_again(place: Place) -> None:
    channel, token, event = await following(place)
    session = place.registrar.sessions[place.client(token)]
    place.registrar.closed(channel)
    place.registrar.fast.follow(session, place.row(token))
    place.registrar.fast.operated(session, place.row(token), [event])
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert versions(channel) == ["1"]
    assert len(place.registrar.fast) == 0


async def test_another_epoch_is_another_object(place: Place) -> None:
    channel, _, event = await following(place)
    later = ObjectKey(event.object.replace(b"\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x01", 1))
    place.registrar.fast.updated([Update(later, 7, "")])
    assert versions(channel) == ["1"]


async def test_a_crowd_is_told_in_turns_and_of_the_newest(tmp_path: Path) -> None:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as place:
        place.registrar.fast.bounds = Bounds(crowd=2, told_per_turn=2)
        crowd = [await following(place, device=f"d{one}") for one in range(5)]
        event = crowd[0][2]
        place.registrar.fast.updated([Update(event.object, 7, "")])
        assert all(versions(channel) == ["1"] for channel, _, _ in crowd), "others first"
        place.registrar.fast.updated([Update(event.object, 9, ""), Update(event.object, 8, "")])
        async with asyncio.timeout(5):
            while not all("9" in versions(channel) for channel, _, _ in crowd):
                await asyncio.sleep(0.005)
        assert all("8" not in versions(channel) for channel, _, _ in crowd)


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with serving(Place(replace(Settings(data=tmp_path, settling_s=0.0), fast_path=False))) as place:
        channel, _, event = await following(place)
        place.registrar.fast.updated([Update(event.object, 7, "")])
        assert versions(channel) == ["1"]


async def test_a_turn_looks_at_so_many_followers_and_the_others_come_again(place: Place) -> None:
    place.registrar.fast.bounds = Bounds(looked_at_per_turn=4)
    everyone = [await following(place, device=f"d{number}") for number in range(3)]
    other, _, alone = await following(place, "y", "d9")
    updates = [Update(everyone[0][2].object, 7, ""), Update(alone.object, 7, ""), Update(everyone[0][2].object, 8, "")]
    assert place.registrar.fast.updated(updates) == 2
    assert versions(other) == ["1"], "nothing is sent before all were looked at"
    assert place.registrar.fast.updated(updates[2:]) == 1
    assert versions(other) == ["1", "7"]
    assert all(versions(channel) == ["1", "8"] for channel, _, _ in everyone), "and of one object the newest only"


async def test_what_a_client_is_told_of_in_several_turns_shares_a_message(place: Place) -> None:
    channel, token, x = await following(place)
    await place.register(channel, token, "y")
    y = next(one for one in place.events() if one.object != x.object)
    assert await place.registrar.propagate([told(y, OUTCOME_VERSION, 1)]) == [SETTLED]
    heard = len(channel.received)
    assert place.registrar.fast.updated([Update(x.object, 7, "")], more=True) == 1
    assert len(channel.received) == heard
    assert place.registrar.fast.updated([Update(y.object, 8, "")]) == 1
    assert [[one.version for one in message.notify] for message in channel.received[heard:]] == [["7", "8"]]


async def test_so_much_is_gathered_at_most(place: Place) -> None:
    place.registrar.fast.bounds = Bounds(gathered_max=3)
    everyone = [await following(place, device=f"d{number}") for number in range(3)]
    other, _, alone = await following(place, "y", "d9")
    place.registrar.fast.updated([Update(alone.object, 7, "")], more=True)
    assert versions(other) == ["1"]
    place.registrar.fast.updated([Update(everyone[0][2].object, 7, "")], more=True)
    assert all(versions(channel) == ["1", "7"] for channel in (other, *(channel for channel, _, _ in everyone)))


async def test_what_ended_before_it_was_sent_is_not_sent(place: Place) -> None:
    gone, going, _ = await following(place, device="d1")
    other, staying, event = await following(place, device="d2")
    place.registrar.fast.updated([Update(event.object, 7, "")], more=True)
    place.registrar.unacknowledged.forget(place.registrar.sessions[place.client(going)], event.object)
    place.registrar.fast.updated([])
    assert versions(gone) == ["1"]
    assert versions(other) == ["1", "7"]
    assert place.registrar.sessions[place.client(staying)].outstanding


async def test_crowds_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as place:
        place.registrar.fast.bounds = Bounds(crowd=1, told_per_turn=1)
        crowds = {name: [await following(place, name, f"{name}{one}") for one in range(3)] for name in ("x", "y")}
        told_in_turn: list[int] = []
        tell_some = place.registrar.fast._tell_some

        def counted(crowd: Any) -> bool:
            before = place.registrar.counters.sent_at_once
            left = tell_some(crowd)
            told_in_turn.append(place.registrar.counters.sent_at_once - before)
            return left

        monkeypatch.setattr(place.registrar.fast, "_tell_some", counted)
        place.registrar.fast.updated([Update(crowd[0][2].object, 7, "") for crowd in crowds.values()])
        async with asyncio.timeout(5):
            while place.registrar.fast._crowds:
                await asyncio.sleep(0)
        assert all(versions(channel) == ["1", "7"] for crowd in crowds.values() for channel, _, _ in crowd)
        assert told_in_turn == [1] * 6


async def test_crowds_that_come_while_others_were_just_told_are_told_by_the_same_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as place:
        place.registrar.fast.bounds = Bounds(crowd=1)
        crowds = {name: [await following(place, name, f"{name}{one}") for one in range(2)] for name in ("x", "y", "z")}
        fast, tasks = place.registrar.fast, []
        monkeypatch.setattr(fast, "_spawn", lambda coroutine: tasks.append(asyncio.create_task(coroutine)))
        x, y, z = (Update(crowd[0][2].object, 7, "") for crowd in crowds.values())
        fast.updated([x])
        await asyncio.sleep(0)
        assert not fast._crowds, "it is told, and the task rests"
        fast.updated([y, z])
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)
        assert len(tasks) == 1
        assert all(versions(channel) == ["1", "7"] for crowd in crowds.values() for channel, _, _ in crowd)
        fast.updated([x._replace(version=8)])
        await asyncio.gather(*tasks)
        assert all(versions(channel) == ["1", "7", "8"] for channel, _, _ in crowds["x"]), "and another one later"


async def test_of_a_crowd_who_unregistered_half_way_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as place:
        place.registrar.fast.bounds = Bounds(crowd=2, told_per_turn=1)
        crowd = [await following(place, device=f"d{one}") for one in range(3)]
        fast = place.registrar.fast
        tell_some = fast._tell_some

        def last_one_unregisters(told: Any) -> bool:
            left = tell_some(told)
            _, token, event = crowd[-1]
            session = place.registrar.sessions[place.client(token)]
            place.registrar.unacknowledged.forget(session, event.object)
            fast._index.remove(session, event.object)
            return left

        monkeypatch.setattr(fast, "_tell_some", last_one_unregisters)
        fast.updated([Update(crowd[0][2].object, 7, "")])
        async with asyncio.timeout(5):
            while fast._crowds:
                await asyncio.sleep(0)
        assert [versions(channel) for channel, _, _ in crowd] == [["1", "7"], ["1", "7"], ["1"]]
        assert not place.registrar.sessions[place.client(crowd[-1][1])].outstanding


async def test_what_shares_a_message_is_counted(place: Place) -> None:
    channel, token, x = await following(place)
    await place.register(channel, token, "y")
    y = next(one for one in place.events() if one.object != x.object)
    assert await place.registrar.propagate([told(y, OUTCOME_VERSION, 1)]) == [SETTLED]
    fast = place.registrar.fast
    fast.updated([Update(x.object, 7, ""), Update(y.object, 7, "")])
    assert (fast.notified, fast.messages) == (2, 1)
    fast.updated([Update(x.object, 8, "")])
    assert (fast.notified, fast.messages) == (3, 2)


async def test_an_earlier_version_acknowledged_settles_what_tells_of_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that changes faster than its client answers is written no more often than one that does not."""
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    place.registrar.fast.updated([Update(event.object, 8, "")])
    stored = place.registrar.counters.stored
    place.say(channel, ClientMessage(token=token, acks=[Ack("x", str(event.seqno), "7")]))
    await asyncio.sleep(0.02)
    session = place.registrar.sessions[place.client(token)]
    with monkeypatch.context() as patched:
        patched.setattr(place.registrar.rows, "get_many", None)  # no row is needed for it
        assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    answer_ms = session.answer_ms

    async def acknowledge_meanwhile() -> None:
        await asyncio.sleep(0.01)
        place.registrar.fast.updated([Update(event.object, 9, "")])
        place.say(channel, ClientMessage(token=token, acks=[Ack("x", str(event.seqno), "8")]))

    began_s = time.monotonic()
    verdicts, _ = await asyncio.gather(place.registrar.propagate([told(event, OUTCOME_UPDATE, 8)]), acknowledge_meanwhile())
    assert verdicts == [SETTLED]
    assert place.registrar.counters.stored == stored, "acknowledged in time: nothing is written"
    assert session.answer_ms == answer_ms, "and its client is not slow"
    assert place.registrar.unacknowledged.count == 1, "the last is still owed"
    assert time.monotonic() - began_s < 10
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 9)]) == [SETTLED]
    assert place.registrar.counters.stored == stored + 1, "and written, since nobody answered"


async def test_a_hint_that_comes_after_the_pipeline_is_not_told_again(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [SETTLED]
    place.registrar.fast.updated([Update(event.object, 7, "")])
    assert versions(channel) == ["1", "7"]
    place.registrar.fast.updated([Update(event.object, 8, "")])
    assert versions(channel) == ["1", "7", "8"]


async def test_a_call_whose_tuples_are_settled_leaves_turns_to_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.registrar.delivery._SORTED_PER_TURN", 1)
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    place.registrar.fast.updated([Update(event.object, 7, "")])
    await asyncio.sleep(0.05)
    turns = 0
    call = asyncio.create_task(place.registrar.propagate([told(event, OUTCOME_UPDATE, version) for version in (4, 5, 6, 6, 7)]))
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    assert await call == [SETTLED] * 5
    assert turns >= 5
    assert place.registrar.counters.stored == 0
