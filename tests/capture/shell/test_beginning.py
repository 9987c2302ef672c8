"""Where flows begin that have no datamarker yet (Wormhole 3.3.1)."""

from __future__ import annotations

import pytest

from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.publisher.beginning import beginnings
from roskva.capture.publisher.settings import Start
from roskva.errors import BadRequest, CaptureRefused, DatastoreUnavailable, RoskvaError
from tests.capture.shell.numberlog import KEY

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
