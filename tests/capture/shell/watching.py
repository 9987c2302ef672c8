"""A subscriber that writes down all that it gets, and finds out by itself whether anything is missing or out of order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from roskva.capture.positions import Position
from roskva.capture.subscriber import Callbacks, Shard
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import number_of

WAIT_S = 20.0


class Watching(Callbacks):
    def __init__(self, shards: int, acknowledges: bool = True, from_the_first: bool = True) -> None:
        self.shards = shards
        self.acknowledges = acknowledges
        self.from_the_first = from_the_first  # number that was ever written; otherwise it begins wherever it is told
        self.highest: dict[int, int] = {}  # of each shard
        self.total = 0
        self.repeated = 0
        self.skipped: list[tuple[int, int, int]] = []
        self.notices: list[int] = []
        self.closed: list[int] = []
        self.first: dict[int, list[int]] = {}  # of each shard: the first number after each notice
        self.losses: list[tuple[int, Position, Position]] = []
        self.tokens: list[Position] = []
        self._expected: dict[int, int | None] = {}

    def on_shard_notice(self, shard: Shard) -> None:
        self.notices.append(shard.number)
        self._expected[shard.number] = None

    def on_shard_closed(self, shard: Shard) -> None:
        self.closed.append(shard.number)

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        for update in updates:
            number = number_of(update.change)
            assert update.shard == number % self.shards == shard.number
            expected = self._expected[shard.number]
            if expected is None:
                self.first.setdefault(shard.number, []).append(number)
                # It may go back to the datamarker, and never ahead.
                begins = shard.number - self.shards if self.from_the_first else number
                if number > self.highest.get(shard.number, begins) + self.shards:
                    self.skipped.append((shard.number, self.highest.get(shard.number, -1), number))
            elif number != expected:
                self.skipped.append((shard.number, expected, number))
            self._expected[shard.number] = number + self.shards
            self.repeated += number <= self.highest.get(shard.number, -1)
            self.highest[shard.number] = max(number, self.highest.get(shard.number, -1))
        self.total += len(updates)

    def on_token(self, shard: Shard, datamarker: Position) -> bool:
        self.tokens.append(datamarker)
        return self.acknowledges

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.losses.append((shard.number, after, upto))
        self._expected[shard.number] = None
        self.highest[shard.number] = max(self.highest.get(shard.number, -1), upto.sequence - 1)

    def has_all(self, count: int) -> bool:
        """The last number of every shard below count."""
        return all(self.highest.get(shard, -1) >= count - 1 - (count - 1 - shard) % self.shards for shard in range(min(self.shards, count)))


async def until(condition: Callable[[], bool], wait_s: float = WAIT_S, what: str = "") -> None:
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, f"it did not become so within {wait_s} s: {what}"
        await asyncio.sleep(0.005)
