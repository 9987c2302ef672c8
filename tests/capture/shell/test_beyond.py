"""Flows whose datamarker lies beyond the log's end: of a database that was restored, or of a standby that is behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roskva.capture.datamarkers import Claim, Mark, SqliteDatamarkers
from roskva.capture.ownership import FlowName, Peer
from roskva.capture.positions import Position
from tests.capture.shell.numberlog import NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

FLOW = FlowName("watch", 0)


@pytest.fixture
def store(tmp_path: Path, log: NumberLog) -> SqliteDatamarkers:
    """With a flow that has dealt with 50 numbers, of a log that has ten."""
    log.append(10)
    store = SqliteDatamarkers(tmp_path / "datamarkers", log.identity)
    assert store.take([Claim(FLOW, 0)], "p1") == {FLOW: 1}
    assert store.store([Mark(FLOW, Position(0, 50), 1)]) == []
    store.release([FLOW], "p1")
    return store


async def status_of(folder: Path) -> tuple[list[str], str, str]:
    status = await command(folder, command="status")
    flows = status["flows"]
    return status["problems"], flows[0]["state"] if flows else "", flows[0]["why"] if flows else ""


@pytest.mark.parametrize(("follows", "behind_s_max"), [(False, 30.0), (None, 0.3)])
async def test_what_was_taken_back_stops_a_flow_until_an_operator_rewinds_it(
    tmp_path: Path, log: NumberLog, store: SqliteDatamarkers, follows: bool | None, behind_s_max: float
) -> None:
    """Also if the log has come past it by the time of a restart: nothing else would show that numbers 10 to 49 are new ones."""
    log.follows = follows
    given: dict[str, Any] = {"behind_s_max": behind_s_max}
    watching = Watching(1, from_the_first=False)
    async with publishing(tmp_path, log, store=store, **given) as publisher, subscriber(publisher, watching):
        await until(lambda: FLOW in publisher.placing.paused)
        problems, state, why = await status_of(tmp_path)
        assert len(problems) == 1
        assert "The position 0/50 is not of this log: it was beyond its end." in problems[0]
        assert "`roskva capture rewind watch/0 PLACE`" in problems[0]
        assert (state, why) == ("paused", "it had come to 0/50, beyond the log's end 0/10: rewind it")
        log.append(100)
        await asyncio.sleep(0.3)
        assert watching.total == 0
    async with publishing(tmp_path, log, **given) as publisher, subscriber(publisher, watching):
        await until(lambda: bool(publisher.owning.held) and watching.notices != [])
        await asyncio.sleep(0.3)
        assert await command(tmp_path, command="resume", application="watch") == ["watch/0"]
        problems, state, _ = await status_of(tmp_path)
        assert (len(problems), state, watching.total) == (1, "paused", 0)
        assert await command(tmp_path, command="rewind", application="watch", to="0/10") == {"watch/0": "0/10"}
        await until(lambda: watching.has_all(110))
        assert watching.total == 100
        await until(lambda: publisher.placing.paused == {})
        assert (await status_of(tmp_path))[::2] == ([], "")
    assert (watching.skipped, watching.losses) == ([], [])


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize(("same_log", "peers"), [(True, ()), (False, ()), (True, (Peer("p1"), Peer("p2")))])
async def test_a_log_that_was_seen_to_go_back_stops_a_flow_before_it_comes_there_again(
    tmp_path: Path, log: NumberLog, same_log: bool, peers: tuple[Peer, ...], acknowledges: bool
) -> None:
    """Written past it at once: nobody waits for capture. What may be another copy, or is one of several publishers', is waited for."""
    log.same_log = same_log
    watching = Watching(1, acknowledges)
    async with publishing(tmp_path, log, peers=peers) as publisher, subscriber(publisher, watching):
        log.append(50)
        await until(lambda: watching.has_all(50) and (not acknowledges or publisher.core.flows()[0].datamarker.sequence == 50))
        log.take_back(10)
        await until(lambda: publisher.beyond.waits_for(FLOW) != "" or publisher.owning.stopped != {})
        log.append(100)
        if same_log and not peers:
            await until(lambda: FLOW in publisher.placing.paused)
            await asyncio.sleep(0.3)
            assert watching.total == 50
            assert await command(tmp_path, command="rewind", application="watch", to="0/10") == {"watch/0": "0/10"}
        await until(lambda: watching.has_all(110))
        assert watching.repeated == (40 if same_log and not peers else 0)


@pytest.mark.parametrize(("follows", "peers"), [(True, ()), (None, (Peer("p1"), Peer("p2")))])
async def test_a_log_that_may_be_behind_is_waited_for_and_status_says_so(
    tmp_path: Path, log: NumberLog, store: SqliteDatamarkers, follows: bool | None, peers: tuple[Peer, ...]
) -> None:
    log.follows = follows
    watching = Watching(1, from_the_first=False)
    async with publishing(tmp_path, log, store=store, peers=peers, behind_s_max=0.5) as publisher, subscriber(publisher, watching):
        await until(lambda: publisher.beyond.waits_for(FLOW) != "")
        problems, _, why = await status_of(tmp_path)
        assert (problems, why) == ([], "waits for the log, which ends at 0/10, to come to where it is")
        await until(lambda: publisher.beyond.problems() != [])
        problems, _, _ = await status_of(tmp_path)
        assert len(problems) == 1
        assert "The position 0/50 is not of this log: it ends at 0/10, and does not come there." in problems[0]
        log.append(50)
        await until(lambda: watching.has_all(60))
        await until(lambda: publisher.beyond.problems() == [])
        assert (await status_of(tmp_path))[::2] == ([], "")
    assert (watching.total, watching.skipped, watching.losses) == (10, [], []), "what it had dealt with is not sent again"


async def test_a_flow_that_is_ahead_of_what_was_known_of_the_log_is_none_of_these(tmp_path: Path, log: NumberLog) -> None:
    """The log's end is asked for now and then; a flow may have dealt with more by then."""
    log.follows = False
    watching = Watching(1)
    async with publishing(tmp_path, log, look_s=0.01) as publisher, subscriber(publisher, watching):
        for count in range(20, 220, 20):
            log.append(20)
            await until(lambda count=count: watching.has_all(count))  # type: ignore[misc]
            assert publisher.beyond.waits_for(FLOW) == ""
        assert publisher.owning.stopped == {}
