"""Memory for unacknowledged notifications is short: those who do not answer make room for those who do, and nobody loses anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from roskva.config import ApplicationSettings, Settings
from roskva.model import OUTCOME_UPDATE, SETTLED, ClientId, ObjectKey, Propagation, object_key
from roskva.protocol.messages import Notify
from roskva.registrar.cells import REG, REGISTERED, WAITING, log_cell
from roskva.registrar.counters import Counters
from roskva.registrar.row import ClientRow, Waiting
from roskva.registrar.sessions import Outstanding, Session, Wave
from roskva.registrar.unacknowledged import READ_AT_A_TIME, Unacknowledged
from roskva.table.interface import Cell
from tests.registrar.crowd import Caller, Crowd, Line

DEMO = ApplicationSettings(retry_min_s=0.5, retry_max_s=20.0)  # the other times are those of service: silence is noticed after 80 minutes
SOON_S = 12.0  # seven first pauses until a client counts as silent, and a few rounds


def settings(**changes: object) -> Settings:
    given = {"data": Path("unused"), "partitions": 2, "settling_s": 0.0, "applications": {"demo": DEMO}, **changes}
    return Settings(**given)  # type: ignore[arg-type]


def of_its_own(number: int) -> list[bytes]:
    return [b"%d/%d" % (number, one) for one in range(5)]


def vanish(caller: Caller) -> Line:
    """A half-open connection: nothing arrives any more, in either direction, and the gateway does not know."""
    line = caller.line
    assert line is not None
    line.open = False
    return line


async def silenced(crowd: Crowd, count: int) -> list[Caller]:
    """So many clients that have vanished, and for each of which five notifications are owed."""
    silent = crowd.gather(count, of_its_own)
    await crowd.until(crowd.all_told)
    for caller in silent:
        vanish(caller)
    for caller in silent:
        for name in caller.core.desired:
            crowd.matching.publish(name, 1)
    return silent


def test_a_large_call_leaves_turns_of_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fan-out to very many: each turn looks at some of them, and the verdicts are those of all."""
    crowd = Crowd(settings())
    looked: list[tuple[int, int]] = []
    ticks: list[None] = []

    async def tick() -> None:
        """Somebody else, who wants a turn of the loop again and again. Virtual time stands still meanwhile."""
        while len(looked) < 5:
            ticks.append(None)
            await asyncio.sleep(0)

    async def work() -> None:
        callers = crowd.gather(1_000, lambda number: [b"news"])
        await crowd.until(crowd.all_told)
        registrar = crowd.registrar
        judge = registrar.delivery._judge

        async def counted(told: Sequence[tuple[int, Propagation]], rows: dict[ClientId, ClientRow]) -> list[Any]:
            looked.append((len(told), len(ticks)))
            return await judge(told, rows)

        monkeypatch.setattr(registrar.delivery, "_judge", counted)
        key = object_key("demo", 0, b"news")
        tuples = [
            Propagation(session.client, key, standing.seqno, OUTCOME_UPDATE, 7)
            for session in registrar.sessions.values()
            if (row := registrar.rows.peek(session.client)) is not None and (standing := row.standing(key)) is not None
        ]
        assert len(tuples) == 1_000
        ticker = asyncio.create_task(tick())
        assert await registrar.propagate(tuples) == [SETTLED] * 1_000
        await ticker
        await asyncio.sleep(1.0)
        assert [caller.known[b"news"] for caller in callers] == [7] * 1_000

    crowd.run(work())
    assert [count for count, _ in looked] == [200] * 5
    turns = [turn for _, turn in looked]
    assert turns == sorted(set(turns)), "between any two of them others had a turn"


def test_a_healthy_client_is_told_soon_although_silent_ones_fill_the_memory() -> None:
    crowd = Crowd(settings(outstanding_max=10))

    async def work() -> None:
        (healthy,) = crowd.gather(1, lambda number: [b"news"])
        silent = await silenced(crowd, 4)
        unacknowledged = crowd.registrar.unacknowledged
        await crowd.until(lambda: unacknowledged.count == 10)
        began_s = crowd.loop.time()
        crowd.matching.publish(b"news", 1)
        await crowd.until(lambda: crowd.all_told([healthy]))
        assert crowd.loop.time() - began_s < SOON_S
        assert crowd.registrar.counters.let_go >= 5
        await asyncio.sleep(30.0)  # now all were found to be silent
        for version in range(2, 40):  # for minutes, while the silent ones are tried in their turns
            await asyncio.sleep(7.0)
            began_s = crowd.loop.time()
            crowd.matching.publish(b"news", version)
            for caller in silent:
                crowd.matching.publish(next(iter(caller.core.desired)), version)
            while healthy.known[b"news"] != version:
                await asyncio.sleep(0.05)
            assert crowd.loop.time() - began_s < 0.5, "half of the room is for those who answer"
            assert unacknowledged.count <= 5
        assert len(crowd.registrar.sessions) == 5, "nobody was taken for offline meanwhile"

    crowd.run(work())


@pytest.mark.parametrize("returns", ["through another connection", "through the same one"])
def test_who_was_let_go_of_gets_everything_when_it_speaks_again(returns: str) -> None:
    crowd = Crowd(settings(outstanding_max=10))

    async def work() -> None:
        silent = await silenced(crowd, 4)
        await crowd.until(lambda: all(session.more for session in crowd.registrar.sessions.values()))
        await asyncio.sleep(100.0)
        began_s = crowd.loop.time()
        for caller in silent:
            if returns == "through another connection":
                caller.line = None
                caller.connect()
            else:
                assert caller.line is not None
                caller.line.open = True
        await crowd.until(crowd.all_told)
        assert crowd.loop.time() - began_s < 2 * DEMO.resend_max_s
        await crowd.until(lambda: not crowd.registrar.unacknowledged.sessions)
        assert crowd.registrar.unacknowledged.count == 0
        assert not any(session.unsettled for session in crowd.registrar.sessions.values())

    crowd.run(work())


def test_a_client_that_is_merely_slow_is_believed_after_it_was_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgements come when nothing of it is in memory: they clear what the row says is waiting."""
    crowd = Crowd(settings(outstanding_max=4))

    async def work() -> None:
        (slow,) = crowd.gather(1, of_its_own)
        await crowd.until(crowd.all_told)
        acknowledge = slow._acknowledge
        monkeypatch.setattr(slow, "_acknowledge", lambda told: asyncio.get_running_loop().call_later(15.0, acknowledge, told))
        for version in range(1, 4):
            for name in of_its_own(0):
                crowd.matching.publish(name, version)
            await asyncio.sleep(1.0)
            await crowd.until(crowd.all_told)
            await crowd.until(lambda: not crowd.registrar.unacknowledged.sessions)
        assert crowd.registrar.counters.let_go > 0

    crowd.run(work())


class Highest(dict[bytes, int | None]):
    """What a client knows of its objects: an old "unknown" that is told late takes nothing away."""

    def __setitem__(self, name: bytes, version: int | None) -> None:
        if version is not None or name not in self:
            super().__setitem__(name, version)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_while_clients_come_and_go_and_writes_fail(seed: int) -> None:
    """Memory for three: everybody is let go of again and again, before, while and after what it is owed is written."""
    crowd = Crowd(settings(outstanding_max=3, scan_s=1e6), seed)  # no scan helps

    async def work() -> None:
        crowd.stores.conditions.delay_max_s = 0.5
        crowd.stores.conditions.fail = 0.02
        for caller in crowd.gather(5, of_its_own):
            caller.known = Highest()
        for version in range(1, 60):
            caller = crowd.chance.choice(crowd.callers)
            if caller.line is not None:
                caller.line.open = not caller.line.open
            for number in range(5):
                crowd.matching.publish(b"%d/%d" % (number, version % 5), version)
            await asyncio.sleep(crowd.chance.uniform(0.0, 6.0))
        crowd.stores.conditions.fail = 0.0
        for caller in crowd.callers:
            caller.connect()
        await crowd.until(crowd.all_told)
        assert crowd.registrar.counters.let_go > 0

    crowd.run(work())


class _Everybody:
    """May hear everything."""

    def may_hear(self, session: Session, key: ObjectKey) -> bool:
        return True

    def is_held(self, session: Session) -> bool:
        return False


class Hall:
    """Only the memory: sessions by the thousand, a clock that is turned by hand, and rows that are read at once."""

    def __init__(self, outstanding_max: int) -> None:
        self.now_s = 1_000.0
        self.counters = Counters()
        self.told: dict[Session, int] = {}
        self.memory = Unacknowledged(
            settings(outstanding_max=outstanding_max), self.counters, lambda: self.now_s, self._speak, _Everybody()
        )
        self.rows: dict[Session, ClientRow] = {}

    def _speak(self, session: Session, notify: Sequence[Notify]) -> None:
        self.told[session] = self.told.get(session, 0) + len(notify)

    def session(self, number: int, waiting: int = 1) -> Session:
        client = ClientId(f"c{number}")
        session = Session(client, 0, "demo", "d1", DEMO, "", 1, _Deaf())
        session.heard(self.now_s)
        keys = [object_key("demo", 0, b"%d/%d" % (number, one)) for one in range(waiting)]
        cells = [(Cell(REG + key, 1, REGISTERED), log_cell(key, 1, 7, WAITING)) for key in keys]
        self.rows[session] = ClientRow(client, [cell for both in cells for cell in both])
        return session

    def round(self) -> list[Session]:
        self.now_s += 0.25
        drained = self.memory.resend_due()
        for session in drained:
            session.read_s = self.now_s
            self.memory.resume(session, self.rows[session])
        assert self.memory.count == sum(len(session.outstanding) for session in self.rows)
        return drained

    def acknowledge_all(self, session: Session) -> None:
        session.heard(self.now_s)
        for name in list(session.outstanding):
            self.memory.remove(session, name).release()
        self.rows[session] = ClientRow(session.client)


class _Deaf:
    session: object | None = None

    def send(self, data: bytes) -> None: ...

    def close(self, code: str) -> None: ...


def test_what_a_call_waits_for_is_released_when_it_is_let_go_of_and_counted() -> None:
    hall = Hall(2)
    session = hall.session(0, waiting=0)
    wave = Wave(lambda: hall.now_s)
    keys = [object_key("demo", 0, b"%d" % one) for one in range(2)]
    entries: list[Outstanding] = []
    for key in keys:
        entries.append(hall.memory.entry(session, key, 1, 7, hall.now_s))
        entries[-1].waves = (wave,)
        wave.join()
    assert not hall.memory.has_room(session, hall.now_s)
    for _ in range(4 * 7):
        hall.round()
    assert not session.outstanding
    assert not any(entry.waves or entry.acknowledged for entry in entries)
    asyncio.run(asyncio.wait_for(wave.wait(1e6), 5.0))  # at once: nobody is waited for
    assert session.more
    assert session in hall.memory.sessions
    assert hall.counters.let_go == 2
    assert not hall.memory.take_up(session, Waiting(keys[0], 1, 8), hall.now_s, []), "not at once"


def test_nobody_is_let_go_of_while_there_is_room() -> None:
    hall = Hall(100)
    silent = [hall.session(number) for number in range(49)]
    for session in silent:
        hall.memory.resume(session, hall.rows[session])
    for _ in range(4 * 600):
        hall.round()
    assert hall.memory.count == 49
    assert hall.counters.let_go == 0


def test_who_answers_keeps_its_place_however_long_it_takes() -> None:
    hall = Hall(20)
    steady = hall.session(0, waiting=20)
    hall.memory.resume(steady, hall.rows[steady])
    for _ in range(15):
        for _ in range(4 * 6):
            hall.round()
        name = next(iter(steady.outstanding))
        hall.memory.remove(steady, name).release()
        steady.busy.awaited_s = hall.now_s
        steady.heard(hall.now_s)
    assert hall.counters.let_go == 0


def test_an_object_that_changes_all_the_time_does_not_keep_a_silent_client_in_memory() -> None:
    """Each version is sent at once, and the pauses before it is sent again begin anew: silence is not measured by them."""
    hall = Hall(1)
    silent = hall.session(0, waiting=0)
    for version in range(20):
        if hall.memory.has_room(silent, hall.now_s) or silent.outstanding:
            entry = hall.memory.entry(silent, object_key("demo", 0, b"hot"), 1, version, hall.now_s)
            hall.memory.sent(silent, entry, hall.now_s)
        for _ in range(4):
            hall.round()
    assert hall.counters.let_go > 0


def test_ten_thousand_silent_clients_have_their_turns_and_leave_half_of_the_room() -> None:
    count, room = 10_000, 2_000
    hall = Hall(room)
    silent = [hall.session(number) for number in range(count)]
    for session in silent:
        hall.memory.resume(session, hall.rows[session])
    assert hall.memory.count == room
    while not all(session.is_let_go for session in silent):
        assert len(hall.round()) <= READ_AT_A_TIME
        assert hall.now_s < 1_000.0 + 60.0
    assert len(hall.told) == count, "each was told"
    before = dict(hall.told)
    for number in range(count, count + 4 * 70):  # the longest pause is a minute
        assert len(hall.round()) <= READ_AT_A_TIME
        assert hall.memory.count <= room // 2
        healthy = hall.session(number)
        hall.memory.resume(healthy, hall.rows[healthy])
        assert len(healthy.outstanding) == 1
        hall.acknowledge_all(healthy)
    assert sum(hall.told[session] > before[session] for session in silent) == count, "and told again, in its turn"
    late = Random(1).sample(silent, 500)  # they are back
    for session in late:
        session.heard(hall.now_s)
    hall.round()
    assert all(session.outstanding for session in late), "before all that are silent"
    for session in late:
        hall.acknowledge_all(session)
    hall.round()
    assert not any(session in hall.memory.sessions for session in late)


def test_an_unregistration_does_not_end_the_turns_of_who_was_let_go_of() -> None:
    hall = Hall(2)
    session = hall.session(0, waiting=2)
    hall.memory.resume(session, hall.rows[session])
    for _ in range(4 * 7):
        hall.round()
    assert session.is_let_go
    assert session in hall.memory.sessions
    hall.memory.forget(session, object_key("demo", 0, b"elsewhere"))
    assert session in hall.memory.sessions
    hall.memory.forget(session)
    assert not hall.memory.sessions


def test_a_later_version_is_sent_again_as_soon_as_a_first_one() -> None:
    hall = Hall(100)
    session = hall.session(0)
    hall.memory.resume(session, hall.rows[session])
    while hall.now_s < 1_000.0 + 70 * DEMO.resend_min_s:  # its pauses have grown to a minute by now
        hall.round()
    entry = next(iter(session.outstanding.values()))
    entry.version = 8
    hall.memory.sent(session, entry, hall.now_s)
    hall.told.clear()
    sent_s = hall.now_s
    while not hall.told:
        hall.round()
    assert hall.now_s - sent_s <= DEMO.resend_min_s + 0.5


def test_who_is_due_beside_a_failure_is_told_in_a_later_round(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(100)
    sessions = [hall.session(number) for number in range(3)]
    for session in sessions:
        hall.memory.resume(session, hall.rows[session])
    hall.round()
    hall.told.clear()
    speak = hall.memory._speak
    failed: list[Session] = []

    def fail_once(session: Session, notify: Sequence[Notify]) -> None:
        if not failed:
            failed.append(session)
            raise RuntimeError("a defect")
        speak(session, notify=notify)

    monkeypatch.setattr(hall.memory, "_speak", fail_once)
    for _ in range(int(8 * DEMO.resend_min_s / 0.25)):
        try:
            hall.round()
        except RuntimeError:
            assert failed
    assert failed
    assert set(hall.told) == set(sessions)


def test_a_round_looks_only_at_those_who_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(10_000)
    sessions = [hall.session(number) for number in range(50)]
    for session in sessions:
        hall.memory.resume(session, hall.rows[session])
    looked: list[Session] = []
    resend = hall.memory._resend

    def noted(session: Session, now_s: float) -> None:
        looked.append(session)
        resend(session, now_s)

    monkeypatch.setattr(hall.memory, "_resend", noted)
    hall.round()
    assert looked == sessions  # they are new here
    hall.told.clear()
    began_s = hall.now_s
    looks: list[int] = []
    late = hall.session(50)
    while hall.now_s < began_s + 10 * DEMO.resend_min_s:
        looked.clear()
        if hall.now_s == began_s + 0.5:
            hall.memory.resume(late, hall.rows[late])  # somebody new, long before the others are due again
        hall.round()
        looks.append(len(looked))
    assert hall.told == dict.fromkeys(sessions, 3) | {late: 4}  # after 1, 2 and 4 pauses; one more of who came later
    assert sum(looks) <= 4 * 51
    assert looks.count(0) > len(looks) // 2
    for session in [*sessions, late]:
        hall.acknowledge_all(session)
    for _ in range(int(20 * DEMO.resend_min_s / 0.25)):
        hall.round()
    assert not hall.memory.sessions
    assert not hall.memory._visits
    assert not len(hall.memory._due)
