"""Flows that were wished to be at some process, by an operator or the one that had them: with the default balance they stay there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roskva.capture.ownership import FlowName
from roskva.capture.subscriber import Shard, Subscriber, flow
from tests.capture.shell.numberlog import NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

BALANCE_S = 0.02
ROUNDS_S = 0.5  # many rounds of the balance


def at(one: Subscriber) -> set[int]:
    return {shard.number for shard in one.shards}


@pytest.mark.parametrize("to", ["m1", None])
async def test_a_flow_that_is_reassigned_stays_there_and_the_others_make_up_for_it(tmp_path: Path, log: NumberLog, to: str | None) -> None:
    shards = 4
    one, other = Watching(shards, from_the_first=False), Watching(shards, from_the_first=False)
    async with (
        publishing(tmp_path, log, shards, balance_s=BALANCE_S) as publisher,
        subscriber(publisher, one, member="m1") as first,
        subscriber(publisher, other, member="m2") as second,
    ):
        await until(lambda: len(at(first)) == len(at(second)) == 2)
        shard = min(at(second))
        assert await command(tmp_path, command="reassign", application="watch", shard=shard, member=to) == [f"watch/{shard}"]
        await until(lambda: shard in at(first) and len(at(first)) == len(at(second)) == 2, what="it is there, and all are even")
        await asyncio.sleep(ROUNDS_S)
        assert shard in at(first)
        assert [each["shard"] for each in await command(tmp_path, command="flows") if each["stays"]] == [shard]
        log.append(100)
        await until(lambda: one.total + other.total == 100)


async def test_it_stays_until_another_wish_or_until_its_process_is_gone(tmp_path: Path, log: NumberLog) -> None:
    one, other = Watching(2), Watching(2)
    async with publishing(tmp_path, log, 2, balance_s=BALANCE_S) as publisher, subscriber(publisher, other, member="m2") as second:
        async with subscriber(publisher, one, member="m1") as first:
            await until(lambda: len(at(first)) == len(at(second)) == 1)
            for _ in range(2):  # the second time they are there already
                assert await _reassigned(tmp_path, member="m1") == ["watch/0", "watch/1"]
                await until(lambda: at(first) == {0, 1})
                await asyncio.sleep(ROUNDS_S)
                assert (at(first), at(second)) == ({0, 1}, set())
            assert await _reassigned(tmp_path, back=True) == ["watch/0", "watch/1"]
            await until(lambda: len(at(first)) == len(at(second)) == 1)
            await _reassigned(tmp_path, member="m1")
            await until(lambda: at(first) == {0, 1})
        await until(lambda: at(second) == {0, 1})
        async with subscriber(publisher, one, member="m1") as again:
            await until(lambda: len(at(again)) == len(at(second)) == 1)


async def _reassigned(folder: Path, **given: Any) -> object:
    return await command(folder, command="reassign", application="watch", **given)


async def test_a_flow_that_was_handed_over_to_a_process_stays_there(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "GIVEN_S", 0.1)
    async with (
        publishing(tmp_path, log, 2, balance_s=BALANCE_S) as publisher,
        subscriber(publisher, Watching(2), member="m1") as first,
        subscriber(publisher, Watching(2), member="m2") as second,
    ):
        await until(lambda: len(at(first)) == len(at(second)) == 1)
        (shard,) = second.shards
        assert second.hand_over(shard, "m1")
        await until(lambda: (at(first), at(second)) == ({shard.number}, {1 - shard.number}))
        await asyncio.sleep(ROUNDS_S)
        assert at(first) == {shard.number}


async def test_a_flow_that_was_handed_over_to_nobody_does_not_jump_when_somebody_of_that_name_comes(tmp_path: Path, log: NumberLog) -> None:
    async with (
        publishing(tmp_path, log, balance_s=BALANCE_S) as publisher,
        subscriber(publisher, Watching(1), member="m1") as first,
    ):
        await until(lambda: at(first) == {0})
        async with subscriber(publisher, Watching(1), member="m2") as second:
            await until(lambda: publisher.placing.members("watch") == ["m1", "m2"])
            first.hand_over(Shard(log.identity, 0), "m3")
            await until(lambda: at(second) == {0})
            async with subscriber(publisher, Watching(1), member="m3"):
                await until(lambda: publisher.placing.members("watch") == ["m1", "m2", "m3"])
                await asyncio.sleep(ROUNDS_S)
                assert at(second) == {0}


async def test_a_flow_whose_callback_raises_is_not_kept_where_it_was_wished_to_be(tmp_path: Path, log: NumberLog) -> None:
    class Broken(Watching):
        def on_updates(self, shard: object, updates: object) -> None:
            raise ValueError("a defect of the application")

    other = Watching(1)
    async with (
        publishing(tmp_path, log, balance_s=BALANCE_S) as publisher,
        subscriber(publisher, other, member="m2") as second,
    ):
        await until(lambda: at(second) == {0})
        async with subscriber(publisher, Broken(1), member="m1") as first:
            await until(lambda: publisher.placing.members("watch") == ["m1", "m2"])
            await _reassigned(tmp_path, shard=0, member="m1")
            await until(lambda: at(first) == {0})
            log.append(10)
            await until(lambda: other.has_all(10))
            assert not publisher.placing.stays(FlowName("watch", 0))
