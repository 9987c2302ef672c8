"""The room for messages of which only a part has arrived (gateway/unfinished.py)."""

from __future__ import annotations

from roskva.gateway.unfinished import Unfinished
from roskva.telemetry.metrics import Metrics


class Holder:
    def __init__(self) -> None:
        self.closed = ""

    def close(self, code: str) -> None:
        self.closed = code


def test_whoever_grew_longest_ago_makes_room() -> None:
    metrics = Metrics()
    unfinished = Unfinished(metrics, bytes_max=100_000)
    slow, steady, quick = holders = [Holder() for _ in range(3)]
    unfinished.grew(slow, 30_000)
    unfinished.grew(steady, 20_000)
    unfinished.grew(slow, 30_100)  # a little now and then keeps nobody
    unfinished.grew(steady, 33_000)
    assert unfinished.bytes == 32_768 + 65_536
    unfinished.grew(quick, 9_000)
    assert [holder.closed for holder in holders] == ["overloaded", "", ""]
    assert unfinished.bytes == 65_536 + 16_384
    assert metrics.limited_messages == 1


def test_one_alone_is_never_too_large_and_what_is_complete_takes_nothing() -> None:
    unfinished, holder = Unfinished(Metrics(), bytes_max=1_000), Holder()
    unfinished.grew(holder, 1 << 20)
    assert not holder.closed
    unfinished.done(holder)
    unfinished.done(holder)
    assert (unfinished.bytes, len(unfinished)) == (0, 0)
