"""A real log for these tests: a file of numbers 0, 1, 2, ..., each a change of its own, read by any number of processes.

The number is in shard `number % shards`, so that whoever receives them sees at once whether one is missing. What is confirmed is really
gone: a publisher that confirms too early loses updates, and its subscribers are told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from roskva.capture.interface import Batch, Finding, Retained
from roskva.capture.positions import Position
from roskva.capture.updates import Change, Operation
from roskva.errors import DatastoreUnavailable, LogCut

WIDTH = 8
KEY = b"a key of thirty-two bytes, no less"


def position_of(number: int) -> Position:
    return Position(0, number + 1)


def number_of(change: Change) -> int:
    value = change.columns["number"]
    assert isinstance(value, int)
    return value


class NumberShards:
    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.misplaced: dict[str, int] = {}

    def shards_of(self, change: Change) -> tuple[int, ...]:
        return (number_of(change) % self.shards,)


class NumberLog:
    """`replica`: each has its own idea of what is gone."""

    def __init__(self, path: Path, replica: str = "") -> None:
        self.path = path
        self.identity = "numbers"
        self.confirmed = 0
        self.fails = False  # as long as this is set, nothing can be read
        self.follows: bool | None = None  # whether it is a standby's
        self.same_log = False
        self._cut = path.with_suffix(f".cut{replica}")
        path.touch()
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND)

    def append(self, count: int) -> None:
        first = self.count
        os.write(self._descriptor, b"".join(number.to_bytes(WIDTH, "big") for number in range(first, first + count)))

    @property
    def count(self) -> int:
        return os.fstat(self._descriptor).st_size // WIDTH

    @property
    def gone(self) -> int:
        """So many of the first numbers."""
        try:
            return int(self._cut.read_text() or 0)
        except FileNotFoundError:
            return 0

    def take_back(self, count: int) -> None:
        """All but so many: as if it were restored."""
        os.ftruncate(self._descriptor, count * WIDTH)

    def cut(self, count: int) -> None:
        fresh = self._cut.with_suffix(".fresh")
        fresh.write_text(str(count))
        fresh.replace(self._cut)

    def retained(self) -> Retained:
        if self.fails:
            raise DatastoreUnavailable("The numbers do not answer.")
        return Retained(
            Position(0, self.gone), Position(0, self.count), (self.count - self.gone) * WIDTH, follows=self.follows, same_log=self.same_log
        )

    def read_after(self, position: Position) -> NumberReader:
        return NumberReader(self, position.sequence if position.index > 0 else position.sequence - 1)

    def at_time(self, time_s: float) -> Position:
        return Position(0, self.gone)

    def confirm(self, position: Position) -> None:
        assert position.sequence >= self.confirmed, "never an earlier one"
        self.confirmed = position.sequence
        self.cut(max(self.gone, position.sequence))

    def prepare(self) -> None: ...

    def check(self) -> list[Finding]:
        return []

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, first: int, count: int) -> Sequence[int]:
        data = os.pread(self._descriptor, count * WIDTH, first * WIDTH)
        return [int.from_bytes(data[at : at + WIDTH], "big") for at in range(0, len(data) - WIDTH + 1, WIDTH)]


class NumberReader:
    def __init__(self, log: NumberLog, after: int) -> None:
        self._log = log
        self._at = after  # so many were read

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        deadline_s = time.monotonic() + timeout_s
        while True:
            if self._log.fails:
                raise DatastoreUnavailable("The numbers do not answer.")
            if self._at < self._log.gone:
                raise LogCut(Position(0, self._at), Position(0, self._log.gone))
            numbers = self._log.read(self._at, changes_max)
            if numbers or time.monotonic() >= deadline_s:
                break
            time.sleep(0.002)
        now_us = time.time_ns() // 1000
        changes = [
            Change(Position(0, number + 1, 1), now_us, Operation.INSERT, "db", "numbers", {"number": number}, {"number": number})
            for number in numbers
        ]
        self._at += len(numbers)
        return Batch(changes, Position(0, self._at), len(numbers) * WIDTH)

    def close(self) -> None: ...
