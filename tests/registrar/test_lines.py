"""The keepalive of a line that carries many clients (registrar/lines.py): it stands for all that are confirmed, and is true of each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from roskva.model import ObjectKey
from roskva.protocol.messages import ServerMessage
from roskva.registrar.sessions import OnLine, Session
from tests.registrar.place import HeldChannel, Place

KEEPALIVE_S = 50.0  # the default


class HeldLine:
    """Everything that the other side would read, in order."""

    def __init__(self) -> None:
        self.closed = False
        self.said: list[str] = []
        self.missed: list[OnLine] = []

    def take_missed(self) -> Sequence[OnLine]:
        missed, self.missed = self.missed, []
        return missed

    def tell_settled(self, channels: Sequence[OnLine]) -> None:
        self.said.append("= " + " ".join(str(channel._number) for channel in channels if isinstance(channel, HeldOnLine)))

    def keep_alive(self) -> None:
        self.said.append("+")


class HeldOnLine(HeldChannel, OnLine):
    def __init__(self, line: HeldLine, number: int) -> None:
        super().__init__()
        self._line = line
        self._number = number
        self.on_message = self._noted

    def _noted(self, message: ServerMessage) -> None:
        self._line.said.append(f"{self._number} unsettled {message.unsettled}")

    @property
    def keeper(self) -> HeldLine:
        return self._line

    def confirmed(self) -> None:
        self._line.said.append(f"+{self._number}")

    def unconfirmed(self) -> None:
        self._line.said.append(f"-{self._number}")


async def online(place: Place, count: int) -> tuple[HeldLine, list[HeldOnLine], list[Session], float]:
    """So many clients on a line, spoken to; the rounds are the test's."""
    await place.registrar.stop()
    line = HeldLine()
    channels = [HeldOnLine(line, number) for number in range(count)]
    tokens = [await place.start_client(channel, device=f"d{number}") for number, channel in enumerate(channels)]
    now_s = time.monotonic()
    await rounds(place, now_s + 1.0)
    for number in range(count):
        assert f"+{number}" in line.said
    line.said.clear()
    return line, channels, [place.registrar.sessions[place.client(token)] for token in tokens], now_s


async def rounds(place: Place, now_s: float) -> None:
    await place.registrar.rounds._keep_alive(now_s)
    await place.registrar.lines.keep_alive(now_s)


async def test_one_keepalive_stands_for_all_of_the_line(place: Place) -> None:
    line, _, sessions, now_s = await online(place, 20)
    for after_s in (10.0, 45.0, 51.0, 60.0, 102.0, 153.0):
        await rounds(place, now_s + after_s)
    assert line.said == ["+", "+", "+"]
    line.closed = True
    await rounds(place, now_s + 300.0)
    assert line.said == ["+", "+", "+"]
    assert len(sessions) == 20


async def test_who_left_is_told_so_and_who_was_silent_for_too_long_leaves(place: Place) -> None:
    line, channels, sessions, now_s = await online(place, 3)
    place.registrar.closed(channels[1])
    assert line.said == ["-1"]
    sessions[2].heard_s = now_s
    sessions[0].heard_s = now_s - sessions[0].settings.offline_s
    await rounds(place, now_s + 5 * KEEPALIVE_S + 2.0)
    assert line.said == ["-1", "-0", "+"]
    assert channels[0].closed_with == "offline"


async def test_what_changed_without_a_word_is_told_before_the_keepalive(place: Place) -> None:
    line, _, sessions, now_s = await online(place, 4)
    place.registrar.unacknowledged.owe_more(sessions[1])
    sessions[2].pending = 1
    place.registrar.rounds.pending[sessions[2].client] = None
    row = place.row(sessions[3].token)
    row.digest.add(b"what another gateway wrote")
    place.registrar.take_in(sessions[3], row)
    assert line.said == []
    await rounds(place, now_s + 51.0)
    assert sorted(line.said[:-1]) == ["1 unsettled 1", "2 unsettled 1", "3 unsettled 0"]
    assert line.said[-1] == "+"
    line.said.clear()
    await rounds(place, now_s + 102.0)
    assert line.said == ["+"]  # they know


async def test_what_the_line_dropped_is_said_again_before_the_keepalive(place: Place) -> None:
    line, channels, _, now_s = await online(place, 3)
    place.registrar.closed(channels[0])
    line.said.clear()
    line.missed = [channels[0], channels[2]]
    await rounds(place, now_s + 51.0)
    assert line.said == ["-0", "+2", "2 unsettled 0", "+"]


async def test_a_notification_is_sent_to_its_client_as_ever(place: Place) -> None:
    line, channels, sessions, now_s = await online(place, 2)
    entry = place.registrar.unacknowledged.entry(sessions[0], ObjectKey(b"demo\0\0\0\0\0x"), 1, 7, now_s)
    place.registrar.speak(sessions[0], notify=[place.registrar.unacknowledged.sent(sessions[0], entry, now_s)])
    assert line.said == ["0 unsettled 1"]
    await rounds(place, now_s + 51.0)
    assert line.said == ["0 unsettled 1", "+"]
    assert channels[0].received[-1].notify[0].version == "7"


async def test_those_for_whom_all_is_settled_are_told_together(place: Place) -> None:
    line, _, sessions, now_s = await online(place, 3)
    for session in sessions:
        session.pending = 1
        place.registrar.speak(session)
        session.pending = 0
    place.registrar.lines.changed(sessions[1])
    place.registrar.rounds._tell_settled(now_s + 2.0)
    assert line.said[3:] in (["1 unsettled 0", "= 0 2"], ["1 unsettled 0", "= 2 0"])  # whose summary changed is told that, too
    assert [session.told_unsettled for session in sessions] == [0, 0, 0]
