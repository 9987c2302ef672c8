"""What the garbage collector walks through (gateway/collecting.py)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from roskva.gateway.collecting import SESSIONS_MIN, Collecting


class Thing:
    other: object = None


@pytest.fixture
def sessions() -> list[int]:
    return [0]


@pytest.fixture
async def collecting(sessions: list[int]) -> AsyncIterator[Collecting]:
    frozen = gc.get_freeze_count()
    collecting = Collecting(lambda: sessions[0])
    collecting.start()
    yield collecting
    collecting.stop()
    assert gc.get_freeze_count() <= frozen


async def test_what_stays_is_frozen_as_sessions_grow(collecting: Collecting, sessions: list[int]) -> None:
    before = gc.get_freeze_count()
    kept = [Thing() for _ in range(1_000)]
    sessions[0] = SESSIONS_MIN
    collecting.look()
    assert gc.get_freeze_count() == before, "so few need it not"
    sessions[0] = 2 * SESSIONS_MIN
    collecting.look()
    assert gc.get_freeze_count() >= before + len(kept)
    collecting.look()
    assert collecting.longest_ms > 0


async def test_garbage_that_was_frozen_is_found_when_most_have_left(collecting: Collecting, sessions: list[int]) -> None:
    one, other = Thing(), Thing()
    one.other, other.other = other, one
    gone = weakref.ref(one)
    sessions[0] = 4 * SESSIONS_MIN
    collecting.look()
    del one, other
    gc.collect()
    assert gone() is not None, "a circle is not found among what is frozen"
    sessions[0] = SESSIONS_MIN // 2
    collecting.look()
    assert gone() is None


async def test_what_is_frozen_and_in_no_circle_goes_at_once(collecting: Collecting, sessions: list[int]) -> None:
    one = Thing()
    gone = weakref.ref(one)
    sessions[0] = 4 * SESSIONS_MIN
    collecting.look()
    del one
    assert gone() is None
