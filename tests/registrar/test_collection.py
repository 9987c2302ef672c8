"""Collecting clients: what the row decides, and what the Registrar does about it in the client's turn (Thialfi 4.2.4)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import (
    DROP_COPY,
    OUTCOME_COLLECT,
    OUTCOME_UNKNOWN,
    OUTCOME_UPDATE,
    OUTCOME_ZOMBIE,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
)
from roskva.propagation.blind import write_blindly
from roskva.protocol.messages import ClientMessage, Init
from roskva.registrar.cells import CREATED, Created, client_row, created_cell, seen_cell, seqno_cell
from roskva.registrar.core import blind
from roskva.registrar.core_collection import COLLECTED, answer
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell, Mutation
from tests.registrar.place import Clock, HeldChannel, Place, serving, told

CLIENT = ClientId("c1")
DAY = 20_000


def collect(client: ClientId = CLIENT, day: int = DAY) -> Propagation:
    return Propagation(client, ObjectKey(b""), 0, OUTCOME_COLLECT, day)


def zombie(client: ClientId = CLIENT) -> Propagation:
    return Propagation(client, ObjectKey(b""), 0, OUTCOME_ZOMBIE, 0)


def a_row(*more: Cell, seen: int = DAY) -> ClientRow:
    return ClientRow(CLIENT, [created_cell(Created("demo", "d1")), seqno_cell(1 << 32), seen_cell(seen), *more])


def test_a_client_that_was_not_seen_since_is_collected() -> None:
    assert answer(a_row(), collect(), online=False) == (found := answer(a_row(seen=DAY - 1), collect(), online=False))
    assert (found.verdict, found.cells) == (DROP_COPY, [COLLECTED])


def test_a_client_that_was_seen_since_is_refused() -> None:
    found = answer(a_row(seen=DAY + 1), collect(), online=False)
    assert (found.verdict, found.cells) == (SETTLED, [])


def test_a_client_that_is_online_is_refused_whatever_its_row_says() -> None:
    found = answer(a_row(seen=DAY - 100), collect(), online=True)
    assert (found.verdict, found.cells) == (SETTLED, [])


@pytest.mark.parametrize("question", [collect(), zombie()])
@pytest.mark.parametrize("online", [True, False])
def test_what_has_no_created_is_gone_already(question: Propagation, online: bool) -> None:
    found = answer(ClientRow(CLIENT, [seen_cell(DAY + 9)]), question, online)
    assert (found.verdict, found.cells) == (DROP_COPY, [])


def test_a_row_with_created_is_no_zombie() -> None:
    assert answer(a_row(), zombie(), online=False).verdict == SETTLED


def test_a_collected_id_never_comes_back_to_life() -> None:
    """A `created` that was on its way loses, whenever it lands."""
    row = a_row()
    row.apply(answer(row, collect(), online=False).cells)
    row.apply([created_cell(Created("demo", "d1"))])
    assert row.created is None


def test_a_blind_write_makes_the_same_judgement() -> None:
    assert blind(a_row(), collect()).cells == [COLLECTED]
    assert blind(a_row(), collect()).verdict == DROP_COPY
    assert (blind(a_row(seen=DAY + 1), collect()).cells, blind(a_row(seen=DAY + 1), collect()).verdict) == ([], SETTLED)
    assert (blind(a_row(), zombie()).cells, blind(a_row(), zombie()).verdict) == ([], SETTLED)


def write_row(place: Place, client: ClientId, *cells: Cell) -> None:
    place.engine.write([Mutation(client_row(client, place.settings.partitions), cells)])


def write_client(place: Place, client: ClientId, seen: int = DAY) -> None:
    write_row(place, client, created_cell(Created("demo", "d1")), seqno_cell(1 << 32), seen_cell(seen))


def stored(place: Place, client: ClientId) -> dict[bytes, Cell]:
    key = client_row(client, place.settings.partitions)
    return dict(place.engine.read([key])[key])


async def test_the_owner_collects_many_in_one_call(place: Place) -> None:
    clients = [ClientId(f"c{number}") for number in range(50)]
    for number, client in enumerate(clients):
        write_client(place, client, DAY + number % 2)
    verdicts = await place.registrar.propagate([collect(client) for client in clients])
    assert verdicts == [DROP_COPY, SETTLED] * 25
    assert [CREATED in stored(place, client) for client in clients] == [False, True] * 25
    assert place.registrar.counters.collected == 25


async def test_a_session_here_is_not_collected(place: Place) -> None:
    """The sweep saw the row before the client came back, and the write of `seen` is still under way."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)
    assert await place.registrar.propagate([collect(client, day=10**6)]) == [SETTLED]
    assert CREATED in stored(place, client)


@pytest.mark.parametrize("first", ["the handshake", "the sweep"])
async def test_a_handshake_and_a_collection_take_turns(settings: Settings, first: str) -> None:
    """Whoever comes first: the client keeps its id and its row, or loses both."""
    wall = Clock(DAY * 86_400.0)
    async with serving(Place(settings, wall_clock=wall)) as place:
        for number in range(5):
            channel = HeldChannel()
            token = await place.start_client(channel, device=f"d{number}")
            client, seen = place.client(token), place.row(token).seen_day
            place.registrar.closed(channel)
            wall.now_s += 100 * 86_400.0
            back, init = HeldChannel(), Init(nonce="n", application="demo", device=f"d{number}", prior=token)
            if first == "the handshake":
                place.say(back, ClientMessage(init=init))
                await asyncio.sleep(0)
            asked = asyncio.create_task(place.registrar.propagate([collect(client, seen)]))
            if first == "the sweep":
                for _ in range(number):
                    await asyncio.sleep(0)
                place.say(back, ClientMessage(init=init))
            (verdict,) = await asked
            granted = (await back.until(lambda m: m.grant)).grant
            assert granted is not None
            assert (verdict == SETTLED) == (place.client(granted.token) == client) == (CREATED in stored(place, client))


async def test_a_client_that_returns_after_it_was_collected_starts_anew_and_is_told_unknown(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)
    event = await place.register(channel, token, "hello")
    place.registrar.closed(channel)
    assert await place.registrar.propagate([collect(client, day=place.row(token).seen_day)]) == [DROP_COPY]
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)]) == [DROP_COPY], "what was registered is void"

    back = HeldChannel()
    place.say(back, ClientMessage(token=token))
    refused = (await back.until(lambda m: m.start_anew)).start_anew
    assert refused is not None
    assert not refused.keep
    again = await place.start_client(back, prior=token)
    assert place.client(again) != client
    await place.register(back, again, "hello")
    (renewed,) = [event for event in place.events() if event.client == place.client(again)]
    asked = asyncio.create_task(place.registrar.propagate([told(renewed, OUTCOME_UNKNOWN)]))
    notified = await back.until(lambda m: m.notify)
    assert [one.version for one in notified.notify] == [None]
    assert await asked == [SETTLED]


async def test_a_zombie_that_is_online_is_told_to_start_anew(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)
    write_row(place, client, COLLECTED)  # another owner did it
    assert await place.registrar.propagate([zombie(client)]) == [DROP_COPY]
    refused = (await channel.until(lambda m: m.start_anew)).start_anew
    assert refused is not None
    assert not refused.keep
    assert client not in place.registrar.sessions


async def test_a_blind_collection_leads_the_owner_to_the_row(place: Place) -> None:
    """It hung while the sweep asked: its session is told to start anew when it follows the mark."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)
    verdicts = await asyncio.to_thread(write_blindly, place.engine, place.settings, [collect(client, day=place.row(token).seen_day)])
    assert verdicts == [DROP_COPY]
    refused = (await channel.until(lambda m: m.start_anew)).start_anew
    assert refused is not None
    assert not refused.keep


async def test_a_row_that_cannot_be_read_or_written_is_unavailable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_client(place, CLIENT)

    def fails(*arguments: object) -> None:
        raise PartitionUnavailable("It is broken.", "registrar-0")

    with monkeypatch.context() as patched:
        patched.setattr(place.engine, "write", fails)
        assert await place.registrar.propagate([collect()]) == [UNAVAILABLE]
        patched.setattr(place.engine, "read", fails)
        assert await place.registrar.propagate([collect(), zombie()]) == [UNAVAILABLE] * 2
    assert CREATED in stored(place, CLIENT)
    assert await place.registrar.propagate([collect()]) == [DROP_COPY]


async def test_a_client_that_signs_out_is_collected_at_once_and_told_so(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    await place.register(channel, token, "hello")
    place.say(channel, ClientMessage(token=token, forget=True))
    answer = await channel.until(lambda message: message.start_anew)
    assert answer.start_anew is not None
    assert (answer.token, answer.start_anew.keep) == (token, False)
    assert place.row(token).created is None
    assert place.registrar.counters.collected == 1
    # Whoever kept a copy of its token is somebody else from now on.
    again = await place.start_client(HeldChannel(), prior=token)
    assert place.client(again) != place.client(token)


async def test_a_client_whose_row_cannot_be_written_is_not_told_that_it_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    client = place.client(token)

    async def fails(cells: object) -> set[ClientId]:
        return {client}

    with monkeypatch.context() as broken:
        broken.setattr(type(place.registrar._writer), "write", lambda self, cells: fails(cells))
        collection = dataclasses.replace(place.registrar.collection, write=fails)
        broken.setattr(place.registrar, "collection", collection)
        place.say(channel, ClientMessage(token=token, forget=True))
        answer = await channel.until(lambda message: message.error)
    assert answer.error is not None
    assert answer.error.transient
    assert place.row(token).created is not None
