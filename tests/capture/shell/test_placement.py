"""Which subscriber process gets which flows, and what happens while they move (Wormhole 3.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from roskva.capture import wire
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Update
from roskva.errors import BadRequest
from tests.capture.shell.numberlog import KEY, NumberLog, number_of
from tests.capture.shell.serving import publishing, subscriber
from tests.capture.shell.watching import Watching, until

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


class Collecting(Watching):
    """Several processes put what they get into one set."""

    def __init__(self, shards: int, numbers: set[int]) -> None:
        super().__init__(shards)
        self.numbers = numbers

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        super().on_updates(shard, updates)
        self.numbers.update(number_of(update.change) for update in updates)


async def test_flows_are_spread_over_processes_and_move_without_loss(tmp_path: Path, log: NumberLog) -> None:
    """Processes come and go while numbers are written; one goes without a word."""
    shards = 12
    numbers: set[int] = set()
    everyone = [Collecting(shards, numbers) for _ in range(3)]

    def has_all(count: int) -> bool:
        return all(any(one.highest.get(shard, -1) >= count - shards for one in everyone) for shard in range(shards))

    async with publishing(tmp_path, log, shards) as publisher:
        first, second, third = (subscriber(publisher, one, member=f"m{n}") for n, one in enumerate(everyone))

        def counts() -> list[int]:
            return sorted(len(one.shards) for one in (first, second, third))

        await first.start()
        log.append(1200)
        await until(lambda: counts() == [0, 0, 12])
        await second.start()
        await third.start()
        await until(lambda: counts() == [4, 4, 4], what="spread by one at most")
        log.append(1200)
        await until(lambda: has_all(2400))
        for connection in list(second._connections.values()):
            connection.broken(BadRequest("the cable was pulled"))
        log.append(1200)
        await until(lambda: has_all(3600))
        await second.stop()
        log.append(1200)
        await until(lambda: has_all(4800) and counts() == [0, 6, 6])
        await first.stop()
        await until(lambda: counts() == [0, 0, 12])
        await third.stop()
    assert numbers == set(range(4800))
    assert [one.losses for one in everyone] == [[], [], []]


class Ledger(Watching):
    """Shared by several processes: what they get together must be without a gap, and none may begin before the other has ended."""

    def __init__(self, shards: int, running: dict[int, str], name: str, highest: dict[int, int]) -> None:
        super().__init__(shards)
        self.running, self.name, self.highest = running, name, highest

    def on_shard_notice(self, shard: Shard) -> None:
        assert shard.number not in self.running, "two processes have it"
        self.running[shard.number] = self.name
        super().on_shard_notice(shard)

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
        await asyncio.sleep(0.001)
        assert self.running[shard.number] == self.name
        super().on_updates(shard, updates)

    def on_shard_closed(self, shard: Shard) -> None:
        del self.running[shard.number]
        super().on_shard_closed(shard)


async def test_a_flow_that_moves_ends_at_one_process_before_it_begins_at_the_other(tmp_path: Path, log: NumberLog) -> None:
    shards, running, highest = 6, dict[int, str](), dict[int, int]()
    one, other = (Ledger(shards, running, name, highest) for name in ("one", "other"))
    async with (
        publishing(tmp_path, log, shards) as publisher,
        subscriber(publisher, one, member="one", window_bytes=5000) as first,
        subscriber(publisher, other, member="other", window_bytes=5000) as second,
    ):
        await until(lambda: len(running) == shards)
        for turn in range(30):
            log.append(600)
            giver, taker = (first, "other") if turn % 2 else (second, "one")
            for shard in list(giver.shards)[:2]:
                giver.hand_over(shard, taker)
            await asyncio.sleep(0.03)
        await until(lambda: all(highest.get(shard, -1) == log.count - shards + shard for shard in range(shards)))
        assert publisher.placing.moves + len(one.closed) + len(other.closed) > 20
    assert one.skipped == other.skipped == []
    assert one.total + other.total - one.repeated - other.repeated == 18_000
    assert one.repeated + other.repeated == 0, "what was dealt with is acknowledged when a flow is closed"


async def test_a_second_process_of_the_same_name_is_refused_while_the_first_is_heard(
    tmp_path: Path, log: NumberLog, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Watching(1), Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, one) as first:
        await until(lambda: one.notices == [0])
        async with subscriber(publisher, other) as second:
            await until(lambda: [error.code for error in second.problems.values()] == ["member-connected"])
            log.append(10)
            await until(lambda: one.has_all(10))
            assert "'m1' of 'watch' is connected, and another one comes under that name" in str(publisher.status()["problems"])
            told = {record.name.split(".")[2] for record in caplog.records if "under that name" in record.message}
            assert told == {"publisher", "subscriber"}, "on both sides"
            assert (one.notices, first.problems) == ([0], {})
            await first.stop()
            await until(lambda: 0 in other.notices)
            await until(lambda: second.problems == {})
    assert (one.repeated, other.repeated) == (0, 0)


async def test_a_process_that_was_not_heard_lately_gives_way_to_one_of_its_name(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lost its connection, and came again before anybody saw that."""
    monkeypatch.setattr(wire, "PING_S", 0.2)
    one, other = Watching(1), Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, one, beat_s=60.0, reconnect_s_max=60.0):
        await until(lambda: one.notices == [0])
        async with subscriber(publisher, other):
            await until(lambda: other.notices == [0])
            log.append(10)
            await until(lambda: other.has_all(10))


@pytest.mark.parametrize("balance", ["weighted", lambda shards, placed, subscribers, dice: dict.fromkeys(shards, "m2")])
async def test_other_strategies_place_flows(tmp_path: Path, log: NumberLog, balance: str) -> None:
    applications = {"watch": ApplicationSettings(KEY, start="oldest", balance=balance)}
    one, other = Watching(8), Watching(8)
    log.append(80)
    async with (
        publishing(tmp_path, log, 8, applications=applications, settle_s=0.2) as publisher,
        subscriber(publisher, one, member="m1") as first,
        subscriber(publisher, other, member="m2") as second,
    ):
        await until(lambda: one.total + other.total == 80)
        assert len(first.shards) + len(second.shards) == 8
        assert len(second.shards) == 8 or balance == "weighted"


@pytest.mark.parametrize("answer", [None, 7, {0: "nobody"}])
async def test_a_strategy_of_the_users_own_that_answers_nonsense_harms_nobody(tmp_path: Path, log: NumberLog, answer: object) -> None:
    applications = {
        "watch": ApplicationSettings(KEY, start="oldest"),
        "odd": ApplicationSettings(KEY, balance=lambda *_: answer),  # type: ignore[arg-type]
    }
    watching, odd = Watching(2), Watching(2)
    log.append(20)
    async with (
        publishing(tmp_path, log, 2, applications=applications) as publisher,
        subscriber(publisher, odd, "odd"),
        subscriber(publisher, watching),
    ):
        await until(lambda: watching.has_all(20))
