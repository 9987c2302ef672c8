"""A reset raises the application's epoch: nothing of an older one counts, is repeated or is sent, and clients state anew what they wish."""

from __future__ import annotations

import asyncio

import pytest

from roskva.errors import PartitionUnavailable
from roskva.model import (
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    ClientId,
    Propagation,
    object_key,
)
from roskva.protocol.messages import ClientMessage, ServerMessage, Sync, SyncObject
from roskva.protocol.summaries import SetDigest
from roskva.registrar.cells import WAITING, Created, Pending, created_cell, log_cell, registration_cells, unknown_cell
from roskva.registrar.core import blind, judge
from roskva.registrar.row import ClientRow, Waiting
from tests.registrar.place import HeldChannel, Place, acknowledging, told

CLIENT = ClientId("client-1")
OLD, NEW = object_key("demo", 0, b"hello"), object_key("demo", 1, b"hello")
NOTHING = SetDigest().summary()


def row_of(epoch: int) -> ClientRow:
    """Registered, pending and told before a reset, and registered again after it."""
    cells = [created_cell(Created("demo", "phone"))]
    for key, seqno, version in ((OLD, 5, 100), (NEW, 6, 5)):
        cells += registration_cells(key, seqno, registered=True, pending=Pending())
        cells += [log_cell(key, seqno, version, WAITING), unknown_cell(key, seqno, WAITING)]
    return ClientRow(CLIENT, cells, epoch)


def test_nothing_of_an_older_epoch_is_pending_or_waits() -> None:
    row = row_of(epoch=1)
    assert [key for key, _, _ in row.pending()] == [NEW]
    assert row.pending_count == 1
    assert set(row.waiting()) == {Waiting(NEW, 6, 5), Waiting(NEW, 6, None)}
    later = row_of(epoch=2)
    assert (later.pending_count, later.waits, list(later.waiting())) == (0, False, [])


def test_a_registrar_that_has_not_heard_of_the_reset_owes_what_is_of_the_new_epoch_too() -> None:
    row = row_of(epoch=0)
    assert row.pending_count == 2
    assert len(list(row.waiting())) == 4
    assert row.is_pending(NEW, 6), "else its unknown would count as acknowledged"


@pytest.mark.parametrize("outcome", [OUTCOME_UPDATE, OUTCOME_VERSION, OUTCOME_UNKNOWN, OUTCOME_LOST])
@pytest.mark.parametrize("seqno", [4, 5, 7])
def test_what_the_matcher_tells_of_an_older_epoch_is_void(outcome: int, seqno: int) -> None:
    judged = judge(row_of(epoch=1), Propagation(CLIENT, OLD, seqno, outcome, 100))
    assert (judged.verdict, judged.reissue) == (SETTLED, False)
    assert blind(row_of(epoch=1), Propagation(CLIENT, OLD, seqno, outcome, 100)).cells == []


async def reset(place: Place) -> None:
    await asyncio.to_thread(place.engine.manifest.raise_epoch, "demo", 0)


def empty(message: ServerMessage) -> bool:
    return message.summary == NOTHING and not message.grant


async def registered_client(place: Place, device: str = "d1") -> tuple[HeldChannel, str]:
    """Registered for "hello", and told of version 100."""
    channel = HeldChannel()
    token = await place.start_client(channel, device)
    acknowledging(place, channel, token)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_VERSION, 100)])
    await channel.until(lambda m: m.status)
    channel.received.clear()
    return channel, token


async def test_an_online_client_sees_an_empty_summary_states_its_registrations_and_gets_unknown(place: Place) -> None:
    """Trap 17: after a backend went back from 100 to 5, the 5 counts."""
    channel, token = await registered_client(place)
    await reset(place)
    await channel.until(empty)
    before = len(place.events())
    place.say(channel, ClientMessage(token=token, sync=Sync(op=2, objects=[SyncObject(object="hello", version="100", epoch=0)])))
    async with asyncio.timeout(15):
        while len(place.events()) == before:
            await asyncio.sleep(0.005)
    event = max(place.events(), key=lambda event: event.seqno)
    assert (event.object, event.held) == (NEW, None), "a version of another epoch says nothing"
    await place.registrar.propagate([told(event, OUTCOME_UNKNOWN)])
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 5)])
    told_of = [(n.version, n.epoch) for message in channel.received for n in message.notify]
    assert told_of == [(None, 1), ("5", 1)]


async def test_a_client_that_was_offline_finds_nothing_registered(place: Place) -> None:
    channel, token = await registered_client(place)
    place.registrar.closed(channel)
    await reset(place)
    again = HeldChannel()
    await place.start_client(again, prior=token)
    await again.until(empty)


async def test_what_was_owed_before_the_reset_is_forgotten(place: Place) -> None:
    """A registration that nobody answered, and a notification that nobody acknowledged: neither is repeated or counted."""
    channel, token = await registered_client(place)
    channel.on_message = None
    event = place.events()[0]
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 101)]) == [SETTLED]
    await place.register(channel, token, "other", op=2)
    session = place.registrar.sessions[place.client(token)]
    assert session.unsettled == 2
    await reset(place)
    answer = await channel.until(empty)
    assert (answer.unsettled, session.unsettled) == (0, 0)
    channel.received.clear()
    events = len(place.events())
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 102)]) == [SETTLED]
    await place.registrar.rounds._look_at([place.client(token)])
    assert len(place.events()) == events
    assert [n for message in channel.received for n in message.notify] == []
    assert not any(message.status for message in channel.received), "nothing of the old epoch is confirmed"


async def test_rows_that_cannot_be_read_at_the_reset_are_looked_at_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, _ = await registered_client(place)
    original = place.table_lanes.read
    failures = iter([True, True, True])

    async def read(rows: list[object], *more: object, **named: object) -> object:
        if any(row.table == "registrar" for row in rows) and next(failures, False):  # type: ignore[attr-defined]
            raise PartitionUnavailable("busy", "table/registrar-0")
        return await original(rows, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(place.table_lanes, "read", read)
    await reset(place)
    await channel.until(empty)
    assert next(failures, None) is None


async def test_the_other_applications_are_left_alone(place: Place) -> None:
    _, token = await registered_client(place)
    await asyncio.to_thread(place.engine.manifest.raise_epoch, "other", 0)
    place.registrar.rows.drop_epochs_before(7, "other")
    assert place.registrar.rows.peek(place.client(token)) is not None
    place.registrar.rows.drop_epochs_before(1, "demo")
    assert place.registrar.rows.peek(place.client(token)) is None
