"""A client with very many registrations pays for what its row costs: nobody else waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import RateLimited
from roskva.model import ClientId
from roskva.protocol.messages import ClientMessage, Sync
from roskva.protocol.summaries import SetDigest
from roskva.registrar.large import ENTRIES_AT_ONCE, ENTRIES_PER_S, LargeRows
from tests.registrar.place import Clock, HeldChannel, Place, serving

ANN, BOB = ClientId("ann"), ClientId("bob")


def test_what_was_spent_comes_back_with_time() -> None:
    clock = Clock(0.0)
    rows = LargeRows(clock)
    for _ in range(10):
        rows.check(ANN)
        rows.did(ANN, int(ENTRIES_AT_ONCE / 8))
        if clock.now_s == 0.0 and rows._budgets.wait_s(ANN, 0.0) > 0:
            break
    with pytest.raises(RateLimited) as refused:
        rows.check(ANN)
    rows.check(BOB)
    clock.now_s += refused.value.retry_after_s + 0.001
    rows.check(ANN)
    assert refused.value.retry_after_s == pytest.approx(ENTRIES_AT_ONCE / 8 / ENTRIES_PER_S)


def test_rows_of_the_usual_size_are_free() -> None:
    rows = LargeRows(Clock(0.0))
    for _ in range(100_000):
        rows.did(ANN, 1_000)
    rows.check(ANN)
    assert len(rows._budgets) == 0


async def test_syncs_and_starts_of_who_has_spent_its_budget_are_told_to_wait(tmp_path: Path) -> None:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as place:
        channel = HeldChannel()
        token = await place.start_client(channel)
        place.registrar.large.did(place.client(token), int(2 * ENTRIES_AT_ONCE))
        place.say(channel, ClientMessage(token=token, sync=Sync(op=1, summaries=[])))
        refused = await channel.until(lambda m: m.error)
        assert refused.error is not None
        assert (refused.error.code, refused.error.transient) == (RateLimited.code, True)
        other = HeldChannel()
        place.say(other, ClientMessage(token=token, summary=SetDigest().summary()))
        moved = await other.until(lambda m: m.error)
        assert moved.error is not None
        assert moved.error.code == RateLimited.code
        await place.start_client(HeldChannel(), "d2")
