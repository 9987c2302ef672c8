"""Letting go much of the log at once: in steps that count, beside everything else, within a rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from roskva.capture.positions import Position
from roskva.capture.stores.postgres import advancing
from roskva.capture.stores.postgres.slots import advance
from roskva.errors import DatastoreUnavailable, InvalidSetting
from tests.capture.stores.postgres.place import WITHIN_S, Place

STEP = 1 << 20
MUCH = "INSERT INTO documents SELECT n, repeat('x', 1000) FROM generate_series(%s, %s) n"


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The LSNs to which the slot was moved in longer ways."""
    moved: list[int] = []

    def recorded(cursor: Any, settings: Any, lsn: int) -> None:
        advance(cursor, settings, lsn)
        moved.append(lsn)

    monkeypatch.setattr(advancing, "STEP_BYTES", STEP)
    monkeypatch.setattr(advancing, "RETRY_S", 0.2)
    monkeypatch.setattr(advancing, "advance", recorded)
    return moved


def write_much(place: Place) -> Position:
    """Some 10 MB of log, in many commits; the answer: its end. After a checkpoint a slot need not hold what was before it."""
    for start in range(0, 9_000, 1_000):
        place.transaction((MUCH, (start, start + 999)))
        place.execute("CHECKPOINT")
    return place.store.retained().end


def until(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not done():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_a_long_way_is_gone_in_steps_and_nobody_waits_for_it(place: Place, short_steps: list[int]) -> None:
    end = write_much(place)
    begin = place.store.retained().oldest
    assert end.sequence - begin.sequence > 8 * STEP
    store = place.open(advance_bytes_per_s=5.0 * STEP)
    began_s = time.monotonic()
    store.confirm(end)
    assert time.monotonic() - began_s < advancing.PATIENCE_S + 0.4
    between = store.retained().oldest  # answered at once, while the slot is on its way
    assert begin < between < end
    until(lambda: store.retained().oldest >= end)
    took_s = time.monotonic() - began_s
    assert short_steps == sorted(short_steps)
    assert len(short_steps) >= 7
    read = store._advancing.bytes_read
    assert took_s > (read - 2 * STEP) / (5.0 * STEP)  # the last step is not waited for
    assert read <= 3 * (end.sequence - begin.sequence)
    place.execute("INSERT INTO documents VALUES (100000, 'after')")
    assert place.changes(1)[0].key == {"id": 100_000}


def test_what_was_gone_is_not_lost_when_the_connection_is(place: Place, short_steps: list[int]) -> None:
    end = write_much(place)
    store = place.open(advance_bytes_per_s=8.0 * STEP)
    store.confirm(end)
    assert short_steps
    kept = store.retained().oldest
    place.server.execute("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{place.name}'")
    count = len(short_steps)
    assert store.retained().oldest >= kept
    until(lambda: store.retained().oldest >= end)
    assert short_steps[count] > kept.sequence  # it went on where it was
    assert short_steps == sorted(set(short_steps))


def test_what_goes_wrong_on_a_long_way_is_told_to_whoever_confirms_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    end = write_much(place)

    def fails(*_: object) -> None:
        raise DatastoreUnavailable("The disk is asleep.")

    with monkeypatch.context() as broken:
        broken.setattr(advancing, "advance", fails)
        with pytest.raises(DatastoreUnavailable, match="asleep"):
            place.store.confirm(end)
    until(lambda: place.store.retained().oldest >= end)  # and it is tried again


def test_a_transaction_that_stays_open_does_not_have_all_read_again_for_every_step(place: Place, short_steps: list[int]) -> None:
    begin = place.store.retained().oldest
    with closing(psycopg2.connect(place.server.dsn(place.name))) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO documents VALUES (-1, 'not yet committed')")
        end = write_much(place)
        store = place.open(advance_bytes_per_s=500.0 * STEP)
        store.confirm(end)
        until(lambda: store.retained().oldest >= end)
        assert store._advancing.bytes_read <= 3 * (end.sequence - begin.sequence) + 2 * STEP
        assert len(short_steps) < 8
        other.commit()
    assert [change.key for change in place.changes(1)] == [{"id": -1}]


def test_a_store_that_is_closed_stops_on_the_way(place: Place, short_steps: list[int]) -> None:
    end = write_much(place)
    store = place.open(advance_bytes_per_s=1.0 * STEP)
    store.confirm(end)
    began_s = time.monotonic()
    store.close()
    assert time.monotonic() - began_s < 2.0
    count = len(short_steps)
    time.sleep(0.3)
    assert len(short_steps) == count
    assert place.store.retained().oldest < end


def test_a_rate_of_nothing_is_refused(place: Place) -> None:
    with pytest.raises(InvalidSetting, match="advance_bytes_per_s"):
        place.open(advance_bytes_per_s=0.0)
