"""Where flows begin that have no datamarker yet (Wormhole 3.3.1)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.publisher.beginning import Beginning, beginnings
from roskva.capture.publisher.settings import Start
from roskva.errors import BadRequest, CaptureRefused, DatastoreUnavailable, RoskvaError
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

APPLICATIONS = {"new": ApplicationSettings(KEY), "old": ApplicationSettings(KEY, start=5.0), "older": ApplicationSettings(KEY, start=5.0)}
FLOWS = [FlowName(name, shard) for name in (*APPLICATIONS, "gone") for shard in range(3)]


@pytest.mark.parametrize(
    ("problem", "begin"),
    [
        (None, {"new", "old", "older"}),
        (DatastoreUnavailable("It does not answer."), set()),  # who begins at the end would let go of what the others will begin with
        (CaptureRefused("It may not be read."), {"new"}),
        (BadRequest("It is beyond the end."), {"new"}),
    ],
)
async def test_each_place_is_looked_for_once_and_who_cannot_begin_holds_up_the_others_only_if_that_may_pass(
    problem: RoskvaError | None, begin: set[str]
) -> None:
    looked: list[Start] = []

    async def find(start: Start) -> Position:
        looked.append(start)
        if start == 5.0 and problem is not None:
            raise problem
        return Position(0, 9)

    begins, problems = await beginnings(FLOWS, APPLICATIONS, find)
    assert looked == ["end", 5.0]
    assert begins == {flow: Position(0, 9) for flow in FLOWS if flow.application in begin}
    assert problems.keys() == (set() if problem is None else {"old", "older"})


class SlowLog(NumberLog):
    """To look for a time takes as long as the test wants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.searches = 0
        self.found = threading.Event()

    def at_time(self, time_s: float) -> Position:
        self.searches += 1
        assert self.found.wait(30.0)
        return Position(0, int(time_s))


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowLog]:
    log = SlowLog(tmp_path / "numbers")
    yield log
    log.found.set()
    log.close()


async def test_nothing_waits_for_the_search_of_a_time_but_those_that_begin_there(tmp_path: Path, slow: SlowLog) -> None:
    applications = {"watch": ApplicationSettings(KEY, start="oldest")}
    watching = Watching(1)
    async with publishing(tmp_path, slow, applications=applications) as publisher, subscriber(publisher, watching):
        slow.append(10)
        await until(lambda: watching.has_all(10))
        late = {name: ApplicationSettings(KEY, start=5.0) for name in ("late", "later")}
        publisher.configure(replace(publisher.settings, applications=applications | late))
        await until(lambda: slow.searches == 1)
        async with asyncio.timeout(1.0):
            await publisher.owning.look()
            assert await command(tmp_path, command="pause", application="watch") == ["watch/0"]
            assert await command(tmp_path, command="resume", application="watch") == ["watch/0"]
            before = publisher.owning.peers.read().members["publisher:p1"].counter
            await until(lambda: publisher.owning.peers.read().members["publisher:p1"].counter > before + 3, what="it shows that it lives")
        assert {flow.application for flow in publisher.owning.held} == {"watch"}
        slow.found.set()
        await until(lambda: len(publisher.owning.held) == 3)
        begins = {status.flow.application: status.datamarker for status in publisher.core.flows()}
        assert (begins["late"], begins["later"]) == (Position(0, 5), Position(0, 5))
        assert slow.searches == 1, "once for all that begin at that time"


async def test_a_publisher_that_stops_waits_for_no_search(tmp_path: Path, slow: SlowLog, nothing_is_left_running: None) -> None:
    applications = {"late": ApplicationSettings(KEY, start=5.0)}
    async with publishing(tmp_path, slow, applications=applications) as publisher:
        await until(lambda: slow.searches == 1)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 2.0
    assert publisher.owning.held == {}


async def test_what_was_found_counts_once_and_for_the_settings_for_which_it_was_looked_for() -> None:
    ended = asyncio.Event()
    places: dict[Start, Position] = {"end": Position(0, 9), 5.0: Position(0, 5), "oldest": Position(0, 1)}

    async def find(start: Start) -> Position:
        return places[start]

    beginning = Beginning(find, ended.set)
    flows = [flow for flow in FLOWS if flow.application in APPLICATIONS]
    for _ in range(2):
        assert beginning.of(flows, APPLICATIONS) == {}
        await ended.wait()
        ended.clear()
        others = APPLICATIONS | {"older": ApplicationSettings(KEY, start="oldest")}
        found = beginning.of([*flows[1:], FlowName("unknown", 0)], others)
        assert found == {flow: places[APPLICATIONS[flow.application].start] for flow in flows[1:] if flow.application != "older"}
