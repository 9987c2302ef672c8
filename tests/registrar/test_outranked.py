"""A session beside a later grant that nobody uses: its seqnos after the sweep `purge`, and that it does not go on for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from roskva.config import Settings
from roskva.model import Registration
from roskva.protocol.messages import ClientMessage, Init, Register, Unregister
from roskva.registrar.cells import REG, client_row
from roskva.registrar.sessions import OUTRANKED_S_MAX
from roskva.table.interface import Mutation
from tests.registrar.place import Clock, HeldChannel, Place, serving


async def grant_that_nobody_uses(place: Place, token: str) -> None:
    late = HeldChannel()
    place.say(late, ClientMessage(init=Init(nonce="late", application="demo", device="d1", prior=token)))
    await late.until(lambda m: m.grant)


async def unregistered(place: Place, channel: HeldChannel, token: str) -> Registration:
    await place.register(channel, token, "hello", op=1)
    place.say(channel, ClientMessage(token=token, unregister=[Unregister(op=2, object="hello")]))
    async with asyncio.timeout(15):
        while len(place.events()) < 2:
            await asyncio.sleep(0.01)
    return max(place.events(), key=lambda event: event.seqno)


def purge(place: Place, token: str) -> None:
    """What a sweep does that finds the unregistration stamped long ago."""
    row = client_row(place.client(token), place.settings.partitions)
    gone = [cell for name, cell in place.engine.read([row])[row].items() if name.startswith(REG)]
    assert gone
    place.engine.forget([Mutation(row, gone)])
    place.registrar.rows.drop_all()


@pytest.mark.parametrize("moves", [False, True])
async def test_seqnos_go_on_after_what_was_purged(settings: Settings, moves: bool) -> None:
    """Also through another channel, though the row no longer shows how far this session was."""
    async with serving(Place(settings)) as place:
        channel = HeldChannel()
        token = await place.start_client(channel)
        event = await unregistered(place, channel, token)
        await grant_that_nobody_uses(place, token)
        purge(place, token)
        if moves:
            channel = HeldChannel()
            place.say(channel, ClientMessage(token=token))
            await channel.until(lambda m: m.summary)
        again = await place.register(channel, token, "hello", op=3)
        assert again.seqno == event.seqno + 1


@pytest.mark.parametrize("outranked_s", [OUTRANKED_S_MAX / 2, OUTRANKED_S_MAX + 1])
async def test_after_an_hour_beside_a_later_grant_a_session_must_handshake_again(settings: Settings, outranked_s: float) -> None:
    clock = Clock(time.monotonic())
    async with serving(Place(settings, clock=clock)) as place:
        channel = HeldChannel()
        token = await place.start_client(channel)
        await grant_that_nobody_uses(place, token)
        clock.now_s += outranked_s
        place.say(channel, ClientMessage(token=token, register=[Register(op=1, object="hello")]))
        if outranked_s < OUTRANKED_S_MAX:
            async with asyncio.timeout(15):
                while not place.events():
                    await asyncio.sleep(0.01)
            assert not any(message.start_anew for message in channel.received)
            return
        answer = await channel.until(lambda m: m.start_anew)
        assert answer.start_anew is not None
        assert (answer.start_anew.code, answer.start_anew.keep) == ("session-superseded", True)
        assert place.events() == []
        anew = await place.start_client(HeldChannel(), prior=token)
        assert place.client(anew) == place.client(token)
