"""A client with very many registrations pays for what its row costs: nobody else waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import RateLimited
from roskva.model import ClientId, name_of, object_key
from roskva.protocol.messages import ClientMessage, Sync
from roskva.protocol.summaries import SetDigest, bucket_of
from roskva.registrar.cells import Pending, registration_cells
from roskva.registrar.core import compared
from roskva.registrar.large import ENTRIES_AT_ONCE, ENTRIES_PER_S, LargeRows
from roskva.registrar.row import ClientRow
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


def test_a_statement_of_some_buckets_costs_what_is_in_them() -> None:
    """Or a client with 50,000 registrations, which states them in some eighty messages, has spent its budget before it is through."""
    keys = [object_key("demo", 0, b"object-%d" % number) for number in range(2_560)]
    row = ClientRow(ANN, (cell for key in keys for cell in registration_cells(key, 1, True, Pending())))
    in_bucket = sum(bucket_of(name_of(key)) == 7 for key in keys)
    assert 0 < compared(row, Sync(op=1, objects=[], buckets=[7])) == in_bucket < 50
    assert compared(row, Sync(op=1, summaries=[])) == len(keys)
    assert compared(row, Sync(op=1, objects=[])) == len(keys)


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
