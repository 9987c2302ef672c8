"""How far a flow is behind, in bytes of log and in seconds, as `capture status` says it (Wormhole 5)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roskva.capture.interface import Retained
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher import Publisher
from roskva.capture.publisher.status import ASKED_MAX, Statistics, behind_share, lag_bytes
from roskva.capture.watching import lags
from tests.capture.shell.numberlog import NumberLog
from tests.capture.shell.serving import publishing, subscriber
from tests.capture.shell.test_flows import Held
from tests.capture.shell.watching import Watching, until

MIB = 2**20


def at(sequence: int, history: int = 0) -> Position:
    return Position(history, sequence)


def test_a_log_that_is_kept_for_us_begins_where_the_last_flow_is() -> None:
    retained = Retained(at(100), at(200), 10 * MIB)
    assert [lag_bytes(at(number), retained) for number in (100, 150, 200, 201)] == [10 * MIB, 5 * MIB, 0, 0]


def test_a_log_that_goes_back_further_than_what_was_confirmed_is_counted_from_there() -> None:
    """Whoever was confirmed last is behind by all that is behind, and not by a part of it."""
    retained = Retained(at(0), at(1000), 8 * MIB, 10 * MIB, at(200), 10 * MIB)
    assert lag_bytes(at(200), retained) == 8 * MIB
    assert lag_bytes(at(600), retained) == 4 * MIB
    assert lag_bytes(at(100), retained) == 9 * MIB, "it was rewound"
    assert lag_bytes(at(0), retained) == 10 * MIB


def test_before_anything_is_confirmed_the_whole_log_counts_if_it_is_known() -> None:
    assert lag_bytes(at(50), Retained(at(0), at(100), None, None, None, 4 * MIB)) == 2 * MIB
    assert lag_bytes(at(50), Retained(at(0), at(100))) is None


@pytest.mark.parametrize(("datamarker", "share"), [(at(7000, 1), 1.0), (at(9000, 2), 0.3333), (at(9500, 2), 0.1667)])
def test_a_new_history_goes_on_with_the_numbers_of_the_old(datamarker: Position, share: float) -> None:
    """As a Postgres does that was promoted: counted from 0, a flow would seem to be at the end."""
    retained = Retained(at(7000, 1), at(10_000, 2), 6 * MIB)
    assert behind_share(datamarker, retained) == share
    assert lag_bytes(datamarker, retained) == pytest.approx(share * 6 * MIB, rel=0.001)


def seconds(publisher: Publisher) -> float:
    return max((lag.seconds or 0.0 for lag in lags(publisher.status())), default=0.0)


async def test_who_was_sent_everything_and_deals_with_nothing_falls_behind_by_the_second(tmp_path: Path, log: NumberLog) -> None:
    held = Held(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, held):
        log.append(10)
        await until(lambda: seconds(publisher) > 0.3, what="it is at the log's end, its buffer is empty, and it is behind")
        before = seconds(publisher)
        log.append(10)
        await until(lambda: seconds(publisher) > before + 0.2, what="further questions do not make it less")
        held.go_on.set()
        await until(lambda: seconds(publisher) == 0.0)
        assert held.has_all(20)


async def test_who_deals_with_everything_is_not_behind_between_two_questions(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        for _ in range(20):
            log.append(10)
            await asyncio.sleep(0.01)
        await until(lambda: watching.has_all(200))
        await until(lambda: publisher.core.flows()[0].datamarker == at(200))
        assert seconds(publisher) == 0.0


def test_questions_that_nobody_answers_take_no_more_room_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics, flow = Statistics(), FlowName("search", 0)
    now_s = 100.0
    monkeypatch.setattr("roskva.capture.publisher.status.time.monotonic", lambda: now_s)
    for number in range(1, 1001):
        now_s += 1.0
        statistics.asked(flow, at(number))
    assert len(statistics._asked[flow]) == ASKED_MAX
    assert statistics.unanswered_s(flow, at(0)) == 999.0
    assert statistics.unanswered_s(flow, at(4)) == 995.0, "one after the other is answered"
    assert statistics.unanswered_s(flow, at(999)) > 900.0, "about, of those that are one"
    assert statistics.unanswered_s(flow, at(1000)) == 0.0
    assert statistics._asked == {}
