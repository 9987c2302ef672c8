"""Thialfi 4.2.5: under pressure a Registrar drops work in progress, and a scan finds it again. Held at each limit for minutes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from roskva.config import ApplicationSettings, Settings
from roskva.feed.interface import REGISTRATIONS
from roskva.model import ClientId, client_partition, object_key
from roskva.protocol.messages import ClientMessage, Init, Register
from roskva.registrar.cells import REG, WAITING, client_row, log_cell
from roskva.registrar.service import Registrar
from roskva.simulation.loop import VirtualLoop
from roskva.table.interface import Mutation
from roskva.table.marks import MARKS, head_in, head_row, marks_for, raise_head
from tests.registrar.crowd import Caller, Crowd, Line

MINUTES = 5


def settings(**changes: object) -> Settings:
    demo = ApplicationSettings(retry_min_s=0.5, retry_max_s=20.0, keepalive_s=10.0)
    given = {"data": Path("unused"), "partitions": 2, "settling_s": 0.0, "scan_s": 10.0, "applications": {"demo": demo}, **changes}
    return Settings(**given)  # type: ignore[arg-type]


def names(number: int) -> list[bytes]:
    return [b"shared", *(b"%d/%d" % (number, one) for one in range(9))]


class Watch:
    """The largest that each bounded thing of a Registrar ever was."""

    def __init__(self) -> None:
        self.on_their_way = self.marked = self.waiting = self.rows = self.outstanding = 0

    def look(self, registrar: Registrar) -> None:
        recovery = registrar.recovery
        assert recovery.on_their_way == sum(len(one.registrations) for one in recovery._unfinished.values())
        self.on_their_way = max(self.on_their_way, recovery.on_their_way)
        self.marked = max(self.marked, len(registrar.rounds.marked))
        self.waiting = max(self.waiting, registrar.room.waiting)
        self.rows = max(self.rows, len(registrar.rows))
        self.outstanding = max(self.outstanding, registrar.unacknowledged.count)


@asynccontextmanager
async def watched(crowd: Crowd) -> AsyncIterator[Watch]:
    watch = Watch()

    async def look() -> None:
        while True:
            watch.look(crowd.registrar)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(look())
    yield watch
    task.cancel()


def refuse_registrations(crowd: Crowd, refuse: bool) -> None:
    places = {(REGISTRATIONS, partition) for partition in range(crowd.settings.partitions)}
    crowd.stores.refusing = crowd.stores.refusing | places if refuse else crowd.stores.refusing - places


def test_registrations_that_nobody_answers_for_minutes_stay_within_their_limit_and_are_all_done() -> None:
    """The pipeline is down while clients come and register. Those that it served before go on being served afterwards."""
    crowd = Crowd(settings(unfinished_max=20, rows_cached_max=10, outstanding_max=15))

    async def work() -> None:
        early = crowd.gather(5, names)
        await crowd.until(lambda: crowd.all_told(early))
        async with watched(crowd) as watch:
            crowd.matching.stopped = True
            for _ in range(MINUTES):
                crowd.gather(4, names)
                await asyncio.sleep(60.0)
            assert crowd.registrar.counters.shed > 0
            crowd.matching.stopped = False
            for version in range(1, 10):
                crowd.matching.publish(b"shared", version)
                await asyncio.sleep(1.0)
            await crowd.until(crowd.all_told)
            await crowd.until(lambda: not crowd.registrar.recovery.unfinished and not crowd.registrar.recovery._scan)
        assert watch.on_their_way == 20
        assert watch.marked <= 20
        assert watch.rows <= 10
        assert watch.outstanding <= 15

    crowd.run(work())


@pytest.mark.parametrize("retention_s", [3_600.0, 60.0])
def test_what_was_shed_is_found_by_its_marks_although_no_client_returns(retention_s: float) -> None:
    """Nothing reaches the feed, and the clients leave: only rows and marks know. For longer than marks are kept, in the second case."""
    crowd = Crowd(settings(unfinished_max=20, mark_bucket_s=10.0, mark_retention_s=retention_s))

    async def work() -> None:
        (witness,) = crowd.gather(1, lambda number: [b"witness"])
        await crowd.until(lambda: crowd.all_told([witness]))
        refuse_registrations(crowd, True)
        for minute in range(MINUTES):
            some = crowd.gather(6, names)
            await asyncio.sleep(20.0)
            crowd.matching.publish(b"witness", minute)
            await crowd.until(lambda: crowd.all_told([witness]))  # while all the others wait
            for caller in some:
                caller.hang_up()
            await asyncio.sleep(40.0)
        left = crowd.pending()
        assert left > 100
        assert crowd.registrar.counters.shed > 0
        async with watched(crowd) as watch:
            refuse_registrations(crowd, False)
            await crowd.until(lambda: crowd.pending() == 0)
        assert watch.on_their_way <= 20
        assert crowd.registrar.counters.scanned > 0
        await crowd.until(lambda: not crowd.registrar.recovery._scan)
        for caller in crowd.callers[1:]:
            caller.connect()
        await crowd.until(crowd.all_told)

    crowd.run(work())


def test_while_the_scan_cannot_go_on_registrations_are_refused_and_updates_are_not() -> None:
    crowd = Crowd(settings(unfinished_max=5, mark_bucket_s=5.0, mark_retention_s=30.0))

    async def work() -> None:
        early = crowd.gather(2, names)
        await crowd.until(lambda: crowd.all_told(early))
        refuse_registrations(crowd, True)
        crowd.gather(3, names)
        await asyncio.sleep(120.0)
        late = crowd.gather(3, names)
        await crowd.until(lambda: any(caller.overloaded for caller in late))
        buckets = {key for key in crowd.stores.rows if key.table == "marks"}
        crowd.matching.publish(b"shared", 7)
        await crowd.until(lambda: all(caller.known[b"shared"] == 7 for caller in early))
        await asyncio.sleep(300.0)
        assert crowd.stores.rows.keys() >= buckets, "nothing expires before the scan has passed it"
        refuse_registrations(crowd, False)
        await crowd.until(crowd.all_told)

    crowd.run(work())


def test_an_heir_with_little_room_finds_everything_some_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(settings(unfinished_max=10, mark_bucket_s=20.0))

    async def work() -> None:
        refuse_registrations(crowd, True)
        crowd.gather(40, names)
        await crowd.until(lambda: crowd.pending() == 400)
        crowd.stores.conditions.delay_max_s = 0.3  # so that whoever watches sees what is marked
        with caplog.at_level(logging.INFO, "roskva.registrar.rounds"):
            await crowd.boot("m2")
            async with watched(crowd) as watch:
                await asyncio.sleep(MINUTES * 60.0)
                refuse_registrations(crowd, False)
                await crowd.until(lambda: crowd.pending() == 0)
        assert watch.on_their_way <= 10
        assert watch.marked <= 10
        told = [record.getMessage().rsplit(" in ", 1)[0] for record in caplog.records if "unfinished of" in record.getMessage()]
        assert sorted(line.rsplit(" ", 1)[1] for line in told) == ["0", "1"], "once for each partition"
        for caller in crowd.callers:
            caller.connect()
        await crowd.until(crowd.all_told)

    crowd.run(work())


async def leave_marks(crowd: Crowd) -> None:
    """Others go on marking, so that buckets fill and old ones would expire."""
    for number in range(1_000):
        await asyncio.sleep(4.0)
        partitions = range(crowd.settings.partitions)
        heads = {partition: head_in(crowd.stores.rows.get(head_row(partition), {})) for partition in partitions}
        some = [ClientId(f"nobody-{one}") for one in range(6)]
        crowd.stores.land(marks_for(some, heads, len(partitions), b"other-%d" % number), whole=True)


def heads(crowd: Crowd) -> list[int]:
    return [head_in(crowd.stores.rows.get(head_row(partition), {})) for partition in range(crowd.settings.partitions)]


@pytest.mark.parametrize("raised_by_another", [False, True])
def test_no_bucket_expires_before_the_scan_has_passed_it(raised_by_another: bool) -> None:
    crowd = Crowd(settings(unfinished_max=5, mark_bucket_s=5.0, mark_retention_s=30.0))

    async def work() -> None:
        refuse_registrations(crowd, True)
        crowd.gather(6, names)
        await crowd.until(lambda: crowd.pending() == 60)
        for caller in crowd.callers:
            caller.hang_up()
        marking = asyncio.create_task(leave_marks(crowd))
        await asyncio.sleep(2.0)
        if raised_by_another:
            crowd.stores.land([raise_head(partition, 8) for partition in range(2)], whole=True)
        await asyncio.sleep(120.0)
        assert raised_by_another or all(head <= 7 for head in heads(crowd))
        refuse_registrations(crowd, False)
        await crowd.until(lambda: crowd.pending() == 0)
        await asyncio.sleep(60.0)
        assert raised_by_another or all(head > 7 for head in heads(crowd)), "then they go on"
        marking.cancel()

    crowd.run(work())


def test_while_the_scan_holds_the_head_its_bucket_does_not_grow() -> None:
    """What is unfinished is marked again only when its mark could expire."""
    crowd = Crowd(settings(unfinished_max=5, mark_bucket_s=5.0, mark_retention_s=30.0))

    def marks() -> int:
        return sum(len(cells) for key, cells in crowd.stores.rows.items() if key.table == MARKS)

    async def work() -> None:
        refuse_registrations(crowd, True)
        crowd.gather(6, names)
        await crowd.until(lambda: crowd.pending() == 60)
        for caller in crowd.callers:
            caller.hang_up()
        await asyncio.sleep(300.0)
        before = heads(crowd), marks()
        await asyncio.sleep(3_000.0)
        assert (heads(crowd), marks()) == before
        assert crowd.registrar.recovery.on_their_way == 5
        await crowd.boot("m2")
        refuse_registrations(crowd, False)
        await crowd.until(lambda: crowd.pending() == 0)

    crowd.run(work())


def of_partition(crowd: Crowd, partition: int) -> list[ClientId]:
    """Who has a row there."""
    return [ClientId(key.key.decode()) for key in crowd.stores.rows if key.table == "registrar" and key.partition == partition]


def test_a_partition_that_cannot_be_read_does_not_hide_the_marks_of_the_others() -> None:
    """Its marked clients wait for their rows, more of them than there is room for. What was left for others is found within minutes."""
    crowd = Crowd(settings(unfinished_max=20))

    async def work() -> None:
        callers = crowd.gather(8, lambda number: [b"shared"])
        await crowd.until(crowd.all_told)
        (client, *_), key = of_partition(crowd, 0), object_key("demo", 0, b"shared")
        row = client_row(client, 2)
        crowd.stores.refusing.add(("registrar", 1))
        many = [ClientId(f"somebody-{number}") for number in range(200)]
        waiting = [one for one in many if client_partition(one, 2) == 1]
        crowd.stores.land(marks_for(waiting, dict(enumerate(heads(crowd))), 2, b"a"), whole=True)
        await asyncio.sleep(120.0)
        left = log_cell(key, crowd.stores.rows[row][REG + key].timestamp, 7, WAITING)  # as a task writes blindly
        crowd.stores.land(marks_for([client], dict(enumerate(heads(crowd))), 2, b"b"), whole=True)
        crowd.stores.land([Mutation(row, [left])], whole=True)
        began_s = crowd.loop.time()
        await crowd.until(lambda: any(caller.known[b"shared"] == 7 for caller in callers))
        assert crowd.loop.time() - began_s < 300.0, "by its mark; the next heartbeat is later"  # of virtual time
        assert len(crowd.registrar.rounds.marked) <= 20
        crowd.stores.heal()
        await crowd.until(lambda: not crowd.registrar.rounds.marked and not crowd.registrar.recovery._scan)

    crowd.run(work())


def test_an_heir_marks_again_what_it_found_and_cannot_finish() -> None:
    """Else the mark that led it there would expire, and its own heir would find nothing."""
    crowd = Crowd(settings(mark_bucket_s=5.0, mark_retention_s=50.0))

    async def work() -> None:
        crowd.matching.stopped = True
        crowd.gather(6, names)
        await crowd.until(lambda: crowd.pending() == 60)
        for heir, head in (("m2", 8), ("m3", 14)):  # ten buckets are kept
            for caller in crowd.callers:
                caller.hang_up()
            crowd.process.kill()
            crowd.stores.land([raise_head(partition, head) for partition in range(2)], whole=True)
            await crowd.boot(heir)
            await asyncio.sleep(15.0)
        assert len(crowd.registrar.recovery.unfinished) == 6
        crowd.matching.stopped = False
        await crowd.until(lambda: crowd.pending() == 0)

    crowd.run(work())


def test_a_take_over_says_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(settings(partitions=1))

    async def work() -> None:
        crowd.gather(3, names)
        await crowd.until(crowd.all_told)
        crowd.matching.stopped = True
        crowd.gather(4, names)
        await crowd.until(lambda: crowd.pending() == 40)
        with caplog.at_level(logging.INFO, "roskva.registrar.rounds"):
            await crowd.boot("m2")
            await asyncio.sleep(30.0)
        (told,) = [record.getMessage() for record in caplog.records if "unfinished of" in record.getMessage()]
        assert told.startswith("found 4 unfinished of partition 0 in ")

    crowd.run(work())


def test_operations_above_the_limit_are_refused_and_everything_is_registered_in_the_end() -> None:
    """A table that takes its time, fifty clients that come at once, and one that does not listen to "overloaded"."""
    crowd = Crowd(settings(operations_waiting_max=60))

    async def flood(line: Line) -> None:
        init = ClientMessage(init=Init(nonce="n", application="demo", device="flood"))
        crowd.say(line, init)
        await crowd.until(lambda: crowd.granted)
        for op in range(1, 20_000, 20):
            registrations = [Register(op=op + one, object=f"flood/{(op + one) % 500}") for one in range(20)]
            crowd.say(line, ClientMessage(token=crowd.granted, register=registrations))
            await asyncio.sleep(0.02)

    async def work() -> None:
        crowd.stores.conditions.delay_max_s = 0.1
        line = Line(lambda line, data: crowd.note_grant(data))
        flooding = asyncio.create_task(flood(line))
        async with watched(crowd) as watch:
            crowd.gather(50, names)
            await asyncio.sleep(2.0)
            await crowd.until(crowd.all_told)
        flooding.cancel()
        assert 20 < watch.waiting <= 60
        assert crowd.registrar.counters.overloaded > 0
        assert sum(caller.overloaded > 0 for caller in crowd.callers) > 0

    crowd.run(work())


def test_acknowledgements_and_heartbeats_of_sessions_pass_while_nothing_new_may_begin() -> None:
    crowd = Crowd(settings())

    async def work() -> None:
        early = crowd.gather(5, names)
        await crowd.until(crowd.all_told)
        crowd.registrar.room.pressed = "The gateway uses too much memory."
        newcomers = crowd.gather(5, names)
        for version in range(1, 30):
            crowd.matching.publish(b"shared", version)
            crowd.registrar.relieve()
            await asyncio.sleep(2.0)
            assert crowd.all_told(early)
        assert all(caller.overloaded > 2 and not caller.known for caller in newcomers)
        assert not crowd.registrar.unacknowledged.count
        crowd.registrar.room.pressed = ""
        await crowd.until(crowd.all_told)

    crowd.run(work())


class Forgetful(VirtualLoop):
    """Between any two steps of any task, the Registrar may lose its caches, or all that it may drop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = Random(seed)
        self.crowd: Crowd | None = None
        self.drops = 0

    def _run_once(self) -> None:
        registrar = getattr(self.crowd, "registrar", None)
        if registrar is not None and self.dice.random() < 0.2:
            self.drops += 1
            registrar.rows.drop_all()
            if self.dice.random() < 0.02:
                registrar.relieve()
        super()._run_once()


@pytest.mark.parametrize("seed", range(8))
def test_caches_may_be_dropped_between_any_two_steps_and_nothing_is_lost(seed: int) -> None:
    loop = Forgetful(seed)
    crowd = loop.crowd = Crowd(settings(unfinished_max=8, operations_waiting_max=40), seed, loop)

    async def work() -> None:
        crowd.stores.conditions.delay_max_s = 0.02
        crowd.stores.conditions.fail = 0.02
        crowd.gather(6, names)
        for version in range(1, 60):
            crowd.matching.publish(b"shared", version)
            crowd.matching.publish(b"%d/%d" % (version % 6, version % 9), version)
            caller: Caller = crowd.chance.choice(crowd.callers)
            if version % 7 == 0:
                caller.connect()
            if version % 20 == 0:
                await crowd.boot(f"m{version}")
                for one in crowd.callers:
                    one.connect()
            await asyncio.sleep(crowd.chance.uniform(0.0, 2.0))
        crowd.stores.conditions.fail = 0.0
        await crowd.until(crowd.all_told)
        assert loop.drops > 100

    crowd.run(work())
