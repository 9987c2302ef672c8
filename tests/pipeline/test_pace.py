"""When the next micro-batch may begin (pipeline/pace.py). No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.feed.interface import Position
from roskva.pipeline.offsets import FAN_OUT, MATCHING, Place, Stream
from roskva.pipeline.pace import Pace

START: dict[Place, Position] = {("updates", 0): Position(1, 5), ("updates", 1): Position(1, 0), ("registrations", 0): Position(1, 7)}


def pace(work_s: float, stream: Stream = MATCHING, fast_path: bool = True, rest_ms: int = 1_000, delay_ms: int = 0) -> Pace:
    """That of somebody whose last batch took so long, and ended at 100 s."""
    one = Pace(Settings(data=Path("/nowhere"), fast_path=fast_path, batch_rest_ms=rest_ms, batch_delay_ms=delay_ms), stream)
    one.asked(50.0)
    one.began(100.0 - work_s)
    one.asked(100.0)
    return one


def end(changed: dict[Place, Position]) -> dict[Place, Position]:
    return START | changed


UPDATES = end({("updates", 0): Position(1, 9)})


def test_updates_alone_wait_four_times_as_long_as_the_last_batch_took() -> None:
    assert pace(0.1).rest_s(START, UPDATES, 100.0) == pytest.approx(0.4)
    assert pace(0.1).rest_s(START, UPDATES, 100.3) == pytest.approx(0.1)
    assert pace(0.1).rest_s(START, UPDATES, 100.5) == 0.0


def test_nobody_rests_for_longer_than_the_limit() -> None:
    assert pace(20.0).rest_s(START, UPDATES, 100.0) == pytest.approx(1.0)
    assert pace(20.0, rest_ms=0).rest_s(START, UPDATES, 100.0) == 0.0


@pytest.mark.parametrize(
    "what",
    [
        {("registrations", 0): Position(1, 8)},
        {("updates", 0): Position(1, 6), ("registrations", 0): Position(1, 8)},
        {("updates", 1): Position(1, 10_000)},
        {("updates", 0): Position(2, 1)},
        {("updates", 2): Position(1, 1)},
    ],
    ids=["a registration", "a registration beside updates", "a backlog", "a lost partition", "a partition that is new"],
)
def test_what_does_not_wait(what: dict[Place, Position]) -> None:
    assert pace(0.1).rest_s(START, end(what), 100.0) == 0.0


def test_the_first_batch_waits_for_nothing() -> None:
    one = Pace(Settings(data=Path("/nowhere")), MATCHING)
    one.asked(100.0)
    assert one.rest_s(START, UPDATES, 100.0) == 0.0


def test_without_the_fast_path_everybody_waits_for_the_batch_so_it_does_not_rest() -> None:
    assert pace(0.1, fast_path=False).rest_s(START, UPDATES, 100.0) == 0.0
    assert pace(0.1, FAN_OUT).rest_s(START, UPDATES, 100.0) == 0.0


def test_batches_begin_as_far_apart_as_was_wished_for_with_the_fast_path_and_without() -> None:
    assert pace(0.1, fast_path=False, delay_ms=500).rest_s(START, UPDATES, 100.0) == pytest.approx(0.4)
    assert pace(0.1, fast_path=False, delay_ms=500).rest_s(START, UPDATES, 100.4) == 0.0
    assert pace(0.6, fast_path=False, delay_ms=500).rest_s(START, UPDATES, 100.0) == 0.0, "it took longer than that"
    assert pace(0.01, delay_ms=500).rest_s(START, UPDATES, 100.0) == pytest.approx(0.49), "the longer of the two"
    assert pace(0.1, fast_path=False, delay_ms=500).rest_s(START, end({("registrations", 0): Position(1, 8)}), 100.0) == 0.0
