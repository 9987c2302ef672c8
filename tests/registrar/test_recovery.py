"""What the Registrar finds again and keeps up by itself: after a change of owners, over months, and after writes that failed in part."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import OUTCOME_COVERED, OUTCOME_UNREGISTERED, OUTCOME_UPDATE, SETTLED, UNAVAILABLE, Registration, client_partition
from roskva.protocol.messages import Ack, ClientMessage, Register, ServerMessage, Unregister
from roskva.registrar.cells import SEEN
from roskva.table.interface import Mutation
from tests.registrar.place import Clock, HeldChannel, Place, acknowledging, serving, told

DAY_S = 86_400
FIRST_DAY = 20_000
SPEAKS_S = 3_600  # longer than the interval of heartbeats, after which a row is read again, and not yet offline


async def until(holds: Callable[[], Any], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)


async def a_round(place: Place) -> None:
    """Wait until the Registrar went through a whole round of its own work that began after this call."""
    resend_due, begun = place.registrar.unacknowledged.resend_due, 0

    def counting() -> Any:
        nonlocal begun
        begun += 1
        return resend_due()

    place.registrar.unacknowledged.resend_due = counting  # type: ignore[method-assign]
    await until(lambda: begun == 2)
    place.registrar.unacknowledged.resend_due = resend_due  # type: ignore[method-assign]


@pytest.fixture
async def clock() -> Clock:
    return Clock(1_000.0)


async def calm_down(place: Place, clock: Clock) -> None:
    """Let the Registrar be done with the looks at marks and rows that follow its start."""
    clock.now_s += 30.0
    await a_round(place)
    await a_round(place)


@pytest.fixture
async def calm_place(settings: Settings, clock: Clock) -> AsyncIterator[Place]:
    async with serving(Place(settings, clock=clock)) as place:
        await calm_down(place, clock)
        yield place


async def settled_client(place: Place, device: str = "d1") -> tuple[HeldChannel, str, Registration]:
    """An online client that registered for an object of its device's name, and is owed nothing."""
    channel = HeldChannel()
    token = await place.start_client(channel, device)
    await place.register(channel, token, device)
    event = next(one for one in place.events() if one.device == device)
    assert await place.registrar.propagate([told(event, OUTCOME_COVERED)]) == [SETTLED]
    await channel.until(lambda m: m.status and m.unsettled == 0)
    return channel, token, event


@contextmanager
def landing_and_failing(place: Place, fails: Callable[[Mutation], bool]) -> Iterator[None]:
    """Writes that contain such a mutation become durable and raise all the same: what the caller knows is that they may have."""
    write = place.engine.write

    def land(mutations: Sequence[Mutation]) -> None:
        write(mutations)
        if any(fails(mutation) for mutation in mutations):
            raise PartitionUnavailable("Busy.", "registrar")

    place.engine.write = land  # type: ignore[method-assign]
    try:
        yield
    finally:
        del place.engine.write


def tells(version: int) -> Callable[[ServerMessage], bool]:
    return lambda message: any(notify.version == str(version) for notify in message.notify)


async def test_what_a_former_owner_writes_after_the_first_look_is_found_by_the_second(
    place: Place, settings: Settings, clock: Clock
) -> None:
    """It has the session still, so it leaves no mark; and here the client is settled, so no scan reads its row."""
    _, token, event = await settled_client(place)  # the former owner, which does not hear of the change
    async with serving(Place(dataclasses.replace(settings, settling_s=120.0), member="m2", clock=clock)) as heir:
        channel = HeldChannel()
        acknowledging(heir, channel, token)
        heir.say(channel, ClientMessage(token=token))
        await channel.until(lambda m: m.token == token)
        session = heir.registrar.sessions[event.client]
        await a_round(heir)  # which follows the marks of the registration, once
        for version, looked_at_s in ((7, clock() + 3.5), (8, clock() + 123.5)):
            assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)]) == [SETTLED]
            clock.now_s = looked_at_s - 1.0
            await a_round(heir)
            assert not any(map(tells(version), channel.received))
            clock.now_s = looked_at_s
            await channel.until(tells(version))
            await until(lambda: session.unsettled == 0)


async def connected_for_days(settings: Settings, days: int, speak: Callable[[Place, HeldChannel, str], Awaitable[None]]) -> list[int]:
    """A client that speaks now and then; answers what was written as `seen` after its handshake on the first day."""
    clock, wall_clock = Clock(1_000.0), Clock(FIRST_DAY * DAY_S + 60.0)
    async with serving(Place(settings, clock=clock, wall_clock=wall_clock)) as place:
        await calm_down(place, clock)
        channel, token, event = await settled_client(place)
        seen: list[int] = []
        write = place.table_lanes.write

        async def noting(mutations: Sequence[Mutation]) -> None:
            seen.extend(cell.timestamp for mutation in mutations for cell in mutation.cells if cell.name == SEEN)
            await write(mutations)

        place.table_lanes.write = noting  # type: ignore[method-assign]
        session = place.registrar.sessions[event.client]
        for _ in range(days * DAY_S // SPEAKS_S):
            clock.now_s += SPEAKS_S
            wall_clock.now_s += SPEAKS_S
            await speak(place, channel, token)
            await until(lambda: session.read_s == clock.now_s)
            await until(lambda: place.row(token).seen_day == wall_clock.now_s // DAY_S)
        return seen


async def test_a_client_that_stays_connected_is_seen_at_its_heartbeats_and_once_a_day(settings: Settings) -> None:
    """Trap 10: online for 40 days without a write, it would look 40 days old."""

    async def heartbeat(place: Place, channel: HeldChannel, token: str) -> None:
        place.say(channel, ClientMessage(token=token))

    assert await connected_for_days(settings, 3, heartbeat) == [FIRST_DAY + 1, FIRST_DAY + 2, FIRST_DAY + 3]


async def test_a_client_that_only_registers_and_unregisters_is_seen_too(settings: Settings) -> None:
    """Every message is a heartbeat: a client that always has something to say sends no other."""
    ops = iter(range(2, 1_000))

    async def operate(place: Place, channel: HeldChannel, token: str) -> None:
        op = next(ops)
        if op % 2:
            place.say(channel, ClientMessage(token=token, register=[Register(op=op, object="d1", version="1")]))
        else:
            place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=op, object="d1")]))
        await until(lambda: len(place.events()) == op)
        event = max(place.events(), key=lambda one: one.seqno)
        outcome = OUTCOME_COVERED if event.registered else OUTCOME_UNREGISTERED
        assert await place.registrar.propagate([told(event, outcome)]) == [SETTLED]

    assert await connected_for_days(settings, 1, operate) == [FIRST_DAY + 1]


async def registering_900_of_which_800_landed(place: Place) -> tuple[HeldChannel, str]:
    """Three writes of one client's row: the first is durable, the second is and raised, the third was not made."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    writes: list[Mutation] = []

    def second(mutation: Mutation) -> bool:
        if mutation.row.table == "registrar":
            writes.append(mutation)
        return len(writes) == 2

    with landing_and_failing(place, second):
        place.say(channel, ClientMessage(token=token, register=[Register(op=1 + n, object=f"o{n}") for n in range(900)]))
        refused = await channel.until(lambda m: m.error)
    assert refused.error is not None
    assert refused.error.transient
    assert (len(writes), place.row(token).pending_count, place.events()) == (2, 800, [])
    return channel, token


async def test_registrations_that_may_have_landed_are_repeated_under_the_seqnos_that_they_have(calm_place: Place, clock: Clock) -> None:
    place = calm_place
    channel, token = await registering_900_of_which_800_landed(place)
    landed = {key: seqno for key, seqno, _ in place.row(token).pending()}
    assert place.registrar.rows.peek(place.client(token)) is None
    again = [Register(op=1_000 + n, object=f"o{900 - n}") for n in range(1, 901)]  # in another order than before
    place.say(channel, ClientMessage(token=token, register=again))
    other = HeldChannel()
    place.say(other, ClientMessage(token=await place.start_client(other, "d2"), register=[Register(op=1, object="o")]))
    await until(lambda: len(place.events()) == 101)  # what is new; and others are served
    clock.now_s += 2.0
    await until(lambda: len(place.events()) >= 901)
    events = {one.object: one.seqno for one in place.events() if one.client == place.client(token)}
    assert len(place.events()) == 901
    assert len(set(events.values())) == 900
    assert events.items() >= landed.items()
    assert events == {key: seqno for key, seqno, _ in place.row(token).pending()}


async def test_registrations_that_may_have_landed_have_a_mark_that_leads_an_heir_to_them(place: Place, settings: Settings) -> None:
    _, token = await registering_900_of_which_800_landed(place)
    await place.registrar.stop()
    async with serving(Place(settings, member="m2")) as heir:
        await until(lambda: len(heir.events()) >= 800)
    assert {(one.object, one.seqno) for one in place.events()} == {(key, seqno) for key, seqno, _ in place.row(token).pending()}


async def test_a_group_write_that_fails_for_one_partition_costs_only_its_clients_and_may_have_landed(place: Place) -> None:
    channel, token, event = await settled_client(place)
    partition = client_partition(event.client, place.settings.partitions)
    for number in range(2, 100):
        other_channel, other_token, other = await settled_client(place, f"d{number}")
        if client_partition(other.client, place.settings.partitions) != partition:
            break
    updates = [told(event, OUTCOME_UPDATE, 7), told(other, OUTCOME_UPDATE, 7)]
    with landing_and_failing(place, lambda mutation: mutation.row[:2] == ("registrar", partition)):
        assert await place.registrar.propagate(updates) == [UNAVAILABLE, SETTLED]
    assert place.registrar.rows.peek(event.client) is None
    assert place.registrar.rows.peek(other.client) is not None
    for one in (channel, other_channel):
        await one.until(lambda m: any(n.version == "7" for n in m.notify))
    # The answer to what may be stored is written too: it was, and would be sent again for ever.
    assert [waiting.version for waiting in place.row(token).waiting()] == [7]
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="d1", seqno=str(event.seqno), version="7")]))
    await until(lambda: not list(place.row(token).waiting()))
    assert [waiting.version for waiting in place.row(other_token).waiting()] == [7]


async def test_a_reissue_that_may_have_landed_is_repeated(calm_place: Place, clock: Clock) -> None:
    """The Matcher's second try finds the row ahead of it and rests its case on the reissued registration's own read."""
    _, token, event = await settled_client(calm_place)
    ahead = told(event, OUTCOME_UPDATE, 3)._replace(seqno=event.seqno + 10)
    with landing_and_failing(calm_place, lambda mutation: mutation.row.table == "registrar"):
        assert await calm_place.registrar.propagate([ahead]) == [UNAVAILABLE]
    assert calm_place.row(token).pending_count == 1
    assert await calm_place.registrar.propagate([ahead]) == [SETTLED]
    clock.now_s += 90.0  # marks are looked at, and what is unfinished is scanned
    await until(lambda: any(one.repair for one in calm_place.events()))


async def test_what_many_clients_left_pending_is_repeated_in_one_append(place: Place, settings: Settings) -> None:
    clients = 25
    for number in range(clients):
        channel = HeldChannel()
        await place.register(channel, await place.start_client(channel, f"d{number}"), "o")
    await place.registrar.stop()
    heir = Place(settings, member="m2")
    append, sizes = heir.feed_lanes.append, list[int]()

    async def counting(topic: str, entries: Sequence[Any]) -> Any:
        sizes.append(len(entries))
        return await append(topic, entries)

    heir.feed_lanes.append = counting  # type: ignore[method-assign]
    async with serving(heir):
        await until(lambda: len(heir.events()) >= 2 * clients)
        await a_round(heir)
    assert sizes == [clients]
