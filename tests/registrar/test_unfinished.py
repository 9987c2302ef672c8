"""Work that is left to a Registrar: nothing of it is forgotten when a write or a read fails, and nothing stays for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.model import OUTCOME_COVERED, OUTCOME_UPDATE, SETTLED, ClientId, Registration, object_key, seqno_of
from roskva.propagation.blind import write_blindly
from roskva.protocol.messages import ClientMessage, Register
from roskva.registrar.cells import Pending, client_row, registration_cells, seqno_cell
from roskva.registrar.core import blind
from roskva.registrar.counters import Counters
from roskva.registrar.recovery import Recovery
from roskva.table import TableLanes
from roskva.table.interface import Mutation
from roskva.table.marks import MARKS, bucket_row, marks_for
from tests.registrar.place import KEYRING, Clock, HeldChannel, Place, told
from tests.registrar.test_recovery import calm_place, clock, settled_client, until

__all__ = ["calm_place", "clock"]


def mark(place: Place, unique: bytes, *clients: str) -> None:
    partitions = place.settings.partitions
    names = [ClientId(client) for client in clients]
    place.engine.write(marks_for(names, dict.fromkeys(range(partitions), 0), partitions, unique))


async def test_marks_that_were_read_survive_a_head_that_cannot_be_raised(calm_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place, now_s = calm_place, [0.0]
    recovery = place.registrar.recovery
    monkeypatch.setattr(place.registrar.rounds, "_follow_marks", lambda: asyncio.sleep(0))  # the test makes its own rounds
    monkeypatch.setattr(recovery, "_clock", lambda: now_s[0])
    recovery.reread(place.registrar.owned)
    await recovery.newly_marked()
    mark(place, b"a", *(f"client-{number}" for number in range(50)))
    await recovery.newly_marked()
    now_s[0] += 61.0  # every bucket has marks, and is old enough
    mark(place, b"b", "somebody")
    write = place.table_lanes.write

    async def failing(mutations: Sequence[Mutation]) -> None:
        if mutations and mutations[0].row.table == MARKS:
            raise PartitionUnavailable("The partition is busy.", "marks-0")
        await write(mutations)

    monkeypatch.setattr(place.table_lanes, "write", failing)
    assert "somebody" in await recovery.newly_marked()


async def test_what_somebody_else_finished_for_an_absent_client_is_forgotten(calm_place: Place, clock: Clock) -> None:
    place, channel = calm_place, HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "a")
    place.registrar.closed(channel)
    assert write_blindly(place.engine, place.settings, [told(event, OUTCOME_COVERED)]) == [SETTLED]
    assert place.client(token) in place.registrar.recovery.unfinished
    for _ in range(8):
        clock.now_s += 10.0
        await asyncio.sleep(0.3)
    assert not place.registrar.recovery.unfinished


async def test_a_look_at_everybody_is_made_up_for_if_rows_could_not_be_read(
    calm_place: Place, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that had not heard of the change stored without a mark, and both looks find the partition busy."""
    place, refused = calm_place, 0
    channel, token, event = await settled_client(place)
    read = place.table_lanes.read

    async def busy(rows: Sequence[Any], *more: Any, **named: Any) -> Any:
        nonlocal refused
        if any(row.table == "registrar" for row in rows):
            refused += 1
            raise PartitionUnavailable("The partition is busy.", "registrar-0")
        return await read(rows, *more, **named)

    place.engine.delete_rows([bucket_row(partition, 0) for partition in range(place.settings.partitions)])  # it registered long ago
    place.registrar.members_changed()
    decision = blind(place.row(token), told(event, OUTCOME_UPDATE, 7))
    place.engine.write([Mutation(client_row(place.client(token), place.settings.partitions), decision.cells)])
    monkeypatch.setattr(place.table_lanes, "read", busy)
    clock.now_s += 30.0  # both looks are due
    await until(lambda: refused >= 2)
    await asyncio.sleep(0.5)
    monkeypatch.undo()
    for _ in range(20):
        clock.now_s += 5.0
        await asyncio.sleep(0.2)
    assert any(message.notify for message in channel.received)


async def test_nothing_is_repeated_for_a_row_that_is_gone(calm_place: Place, clock: Clock) -> None:
    """A registration landed in a partition that was lost a moment before: the row has no `created`, and every answer is void."""
    place, client = calm_place, ClientId("lost")
    mark(place, b"u", client)
    cells = registration_cells(object_key("demo", 0, b"a"), seqno_of(1, 1), True, Pending())
    place.engine.write([Mutation(client_row(client, place.settings.partitions), cells)])
    for _ in range(6):
        clock.now_s += 70.0
        await asyncio.sleep(0.3)
    assert [event for event in place.events() if event.client == client] == []


async def test_an_operation_of_a_twin_that_waited_for_its_turn_does_nothing(place: Place) -> None:
    """Of two sessions of one number, what the superseded one asked for is not done in the name of the other."""
    first, second = HeldChannel(), HeldChannel()
    token = await place.start_client(first)
    claims = place.claims(token)
    cell = seqno_cell(seqno_of(claims.session, 0), b"~" * 8)  # of another owner's grant, which the table kept
    place.engine.write([Mutation(client_row(claims.client, place.settings.partitions), [cell])])
    twin = KEYRING.sign(claims._replace(tag="~" * 8))
    async with place.registrar._orders.turn(claims.client):
        place.say(second, ClientMessage(token=twin))
        await asyncio.sleep(0.05)
        place.say(first, ClientMessage(token=token, register=[Register(op=1, object="mine")]))
        await asyncio.sleep(0.05)
    await second.until(lambda message: message.token == twin)
    await asyncio.sleep(0.3)
    assert place.registrar.sessions[claims.client].token == twin
    assert place.events() == []


def test_only_clients_that_are_due_are_looked_at(tmp_path: Path) -> None:
    now_s = [1_000.0]
    table = cast(TableLanes, None)
    recovery = Recovery(Settings(data=tmp_path), table, "m1", lambda: now_s[0], Counters())

    class NotWalked(dict[ClientId, Any]):
        """Tens of thousands may be on their way."""

        def items(self) -> Any:
            raise AssertionError("all of them were walked over")

        values = __iter__ = items

    recovery._unfinished = NotWalked()
    early = [ClientId(f"early-{number}") for number in range(700)]
    late = [ClientId(f"late-{number}") for number in range(10)]
    keys = [object_key("demo", 0, b"%d" % number) for number in range(2)]
    recovery.appended([Registration(client, keys[0], 1, True, "d") for client in early])
    now_s[0] += 3.0
    recovery.appended([Registration(client, key, 1, True, "d") for client in [*late, early[0]] for key in keys])
    assert recovery.overdue() == []
    now_s[0] += 2.0
    first, second = recovery.overdue(), recovery.overdue()
    assert len(first) == 500  # some at a time
    assert sorted([*first, *second]) == sorted(early[1:])  # the first one was appended again, and is not due before 10 s
    assert recovery.overdue() == []
    recovery.settled(late[0], keys[0])
    recovery.forget(late[1])
    recovery.postpone(late[2:4])
    now_s[0] += 3.0
    assert sorted(recovery.overdue()) == sorted([late[0], *late[4:], early[0]])
    now_s[0] += 4.0
    # Whatever became of the look at them: as long as they are on their way, they are looked at again; and those that were postponed.
    assert sorted([*recovery.overdue(), *recovery.overdue()]) == sorted([*early[1:], *late[2:4]])
    for client in [*early, *late]:
        recovery.forget(client)
    now_s[0] += 100.0
    assert recovery.overdue() == []
    assert not len(recovery._due)
