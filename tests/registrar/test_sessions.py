"""The wait for acknowledgements, and the visits to idle sessions, while the event loop has other things to do."""

from __future__ import annotations

import asyncio
import time

from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, SETTLED
from roskva.protocol.messages import Ack, ClientMessage, ServerMessage
from roskva.registrar.sessions import Wave
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


async def test_every_session_is_visited_for_its_keepalive_though_no_second_visits_all(place: Place) -> None:
    await place.registrar.stop()  # the rounds are the test's
    channels = [HeldChannel() for _ in range(10)]
    for number, channel in enumerate(channels):
        await place.start_client(channel, device=f"d{number}")
    for channel in channels:
        channel.received.clear()
    later_s = time.monotonic() + 51.0
    spoken: list[int] = []
    for second in range(5):
        place.registrar.rounds._keep_alive(later_s + second)
        spoken.append(sum(len(channel.received) for channel in channels))
    assert [len(channel.received) for channel in channels] == [1] * 10
    assert 0 < spoken[0] < 10
