"""The wait for acknowledgements, and the visits to idle sessions, while the event loop has other things to do."""

from __future__ import annotations

import asyncio
import time

import pytest

from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, SETTLED
from roskva.protocol.messages import Ack, ClientMessage, ServerMessage
from roskva.registrar.sessions import IDLE, Outstanding, Session, Wave
from tests.registrar.place import HeldChannel, Place, told


async def test_a_wave_ends_at_its_limit_when_nobody_answers() -> None:
    wave = Wave(time.monotonic)
    wave.join()
    began_s = time.monotonic()
    await wave.wait(0.05)
    assert 0.045 <= time.monotonic() - began_s < 0.2


async def test_a_wave_ends_with_the_last_answer() -> None:
    wave = Wave(time.monotonic)
    wave.join()
    wave.join()
    asyncio.get_running_loop().call_later(0.01, wave.answered)
    asyncio.get_running_loop().call_later(0.02, wave.answered)
    async with asyncio.timeout(2):
        await wave.wait(10.0)


async def test_a_wave_lasts_longer_by_as_much_as_the_loop_was_late() -> None:
    wave = Wave(time.monotonic)
    wave.join()
    answers: list[float] = []

    def busy() -> None:
        time.sleep(0.15)  # the loop itself, not a client
        asyncio.get_running_loop().call_later(0.02, answer)

    def answer() -> None:
        answers.append(time.monotonic())
        wave.answered()

    asyncio.get_running_loop().call_soon(busy)
    await wave.wait(0.05)
    assert answers, "the wave was over before an answer could be read"


async def test_a_loop_that_is_always_late_does_not_keep_a_wave_open_for_ever() -> None:
    wave = Wave(time.monotonic)
    wave.join()
    turns = 0
    turns_max = 100

    def busy() -> None:
        nonlocal turns
        turns += 1
        time.sleep(0.03)
        if turns < turns_max:
            asyncio.get_running_loop().call_soon(busy)

    busy()
    await wave.wait(0.05)
    ended_at, turns = turns, turns_max
    assert ended_at < turns_max, "the wave ended only when the loop was no longer busy"


async def test_clients_are_not_slow_for_what_kept_the_loop_busy(place: Place) -> None:
    """Their notifications would be written at once from then on, which would keep the loop still busier."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")

    def answer_after_other_work(message: ServerMessage) -> None:
        acks = [Ack(object=n.object, seqno=n.seqno, version=n.version, epoch=n.epoch) for n in message.notify]
        if acks:
            asyncio.get_running_loop().call_soon(time.sleep, 0.08)
            asyncio.get_running_loop().call_later(0.002, place.say, channel, ClientMessage(token=token, acks=acks))

    channel.on_message = answer_after_other_work
    assert await place.registrar.propagate([told(event, OUTCOME_UNKNOWN)]) == [SETTLED]
    for version in range(1, 15):
        assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)]) == [SETTLED]
    assert place.registrar.counters.stored == 0
    assert place.registrar.counters.acknowledged_in_time == 15


async def test_a_client_that_never_answers_is_not_waited_for_again_and_again(place: Place) -> None:
    """Trap 27, also while the loop is busy."""
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    channel.on_message = lambda message: (asyncio.get_running_loop().call_soon(time.sleep, 0.03), None)[1]
    for version in range(1, 12):
        await place.registrar.propagate([told(event, OUTCOME_UPDATE, version)])
    channel.on_message = None
    waves = [wave for session in place.registrar.sessions.values() for one in session.outstanding.values() for wave in one.waves]
    assert waves == []
    session = next(iter(place.registrar.sessions.values()))
    assert session.answer_ms > place.settings.ack_wait_ms


async def test_a_session_is_visited_when_its_keepalive_is_due_and_not_before(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.registrar.stop()  # the rounds are the test's
    rounds = place.registrar.rounds
    channels = [HeldChannel() for _ in range(10)]
    tokens = [await place.start_client(channel, device=f"d{number}") for number, channel in enumerate(channels)]
    for channel in channels:
        channel.received.clear()
    visited: list[str] = []
    visit = rounds._visit

    def noted(session: Session, at_s: float) -> None:
        visited.append(session.client)
        visit(session, at_s)

    monkeypatch.setattr(rounds, "_visit", noted)
    now_s = time.monotonic()
    await rounds._keep_alive(now_s + 1.0)  # to welcome whoever has heard nothing yet
    assert sum(len(channel.received) for channel in channels) == 0
    visited.clear()
    await rounds._keep_alive(now_s + 10.0)
    assert visited == []
    place.registrar.closed(channels[0])
    place.registrar.sessions[place.client(tokens[1])].sent_s = now_s + 30.0  # it was told something
    await rounds._keep_alive(now_s + 51.0)
    assert [len(channel.received) for channel in channels] == [0, 0] + [1] * 8
    assert len(visited) == 9
    await rounds._keep_alive(now_s + 81.0)
    assert len(channels[1].received) == 1


async def test_a_client_that_came_again_is_visited_once(place: Place) -> None:
    await place.registrar.stop()
    channel = HeldChannel()
    token = await place.start_client(channel)
    for _ in range(3):
        place.registrar.closed(channel)
        channel = HeldChannel()
        place.say(channel, ClientMessage(token=token))
        await channel.until(lambda message: message.summary is not None)
    channel.received.clear()
    await place.registrar.rounds._keep_alive(time.monotonic() + 51.0)
    assert len(channel.received) == 1


async def test_a_session_at_rest_has_nothing_that_only_a_busy_one_needs(place: Place) -> None:
    channel = HeldChannel()
    token = await place.start_client(channel)
    event = await place.register(channel, token, "hello")
    await place.registrar.propagate([told(event, OUTCOME_UPDATE, 1)])
    session = place.registrar.sessions[place.client(token)]
    assert not session.rest(0.0), "something is owed to it"
    place.say(channel, ClientMessage(token=token, acks=[Ack(object="hello", seqno=str(event.seqno), version="1")]))
    assert session.rest(0.0)
    assert session.busy is IDLE
    assert not IDLE.outstanding
    with pytest.raises(TypeError):
        IDLE.outstanding[event.object, False] = Outstanding(event.object, 1, 1)  # nobody changes what all of them share


async def test_a_session_knows_its_device_by_its_token(place: Place) -> None:
    token = await place.start_client(HeldChannel(), device="a phone")
    session = place.registrar.sessions[place.client(token)]
    assert session.device == "a phone"
    assert session.is_of("a phone")
    assert not any(session.is_of(f"phone {number}") for number in range(1_000))


async def test_who_was_told_of_unsettled_work_is_looked_at_when_a_second_is_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.registrar.stop()  # the rounds are the test's
    channels = [HeldChannel() for _ in range(10)]
    tokens = [await place.start_client(channel, device=f"d{number}") for number, channel in enumerate(channels)]
    sessions = [place.registrar.sessions[place.client(token)] for token in tokens]
    now_s = time.monotonic()
    looked: list[Session] = []
    unsettled: dict[Session, int] = dict.fromkeys(sessions, 1)

    def look(session: Session) -> int:
        looked.append(session)
        return unsettled[session]

    monkeypatch.setattr(Session, "unsettled", property(look))
    for session in sessions:
        place.registrar.speak(session)
    for session in sessions[1:]:
        unsettled[session] = 0
    place.registrar.leave(sessions[2])
    for channel in channels:
        channel.received.clear()
    looked.clear()
    for after_s in (0.25, 0.5, 0.75):
        place.registrar.rounds._tell_settled(now_s + after_s)
    assert looked == []
    place.registrar.rounds._tell_settled(now_s + 1.25)
    assert [len(channel.received) for channel in channels] == [0, 1, 0] + [1] * 7
    looked.clear()
    for tick in range(120):
        place.registrar.rounds._tell_settled(now_s + 1.5 + tick / 4)
    assert set(looked) == {sessions[0]}
    assert 30 <= len(looked) < 60  # once a second, after some
    unsettled[sessions[0]] = 0
    place.registrar.rounds._tell_settled(now_s + 33.0)
    assert [message.unsettled for message in channels[0].received] == [0]
    assert not place.registrar.unsettled_told
