"""Rows for a log in files: one that is there before anybody reads, and one that grows at a steady rate.

Row number n has the key {"id": n}: whoever receives the rows sees at once whether one is missing, and which came before. A row takes about
500 bytes of log, the paper's "average size of updates" (Wormhole 4.3). Copies of a log are written with the same bytes, one after the
other: they stand for replicas, in which a position is the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from bench.service import BenchFailed
from roskva.capture.positions import Position
from roskva.capture.stores.file_lines import Entry, line_of
from roskva.capture.stores.file_log import IDENTITY, FileLog
from roskva.capture.updates import Operation

TABLE: Final = "documents"
ROW_BYTES: Final = 500
TURN_S: Final = 0.01  # a steady writer commits so often
_AT_ONCE: Final = 2_000  # rows of a log that is filled
_LATE_S_MAX: Final = 5.0  # a writer that is later than this does not keep its rate


def row(number: int, committed_us: int) -> bytes:
    return line_of(Entry(Operation.UPDATE, TABLE, {"id": number}, {"body": _BODY}), committed_us)


_BODY: Final = "x" * (ROW_BYTES - len(line_of(Entry(Operation.UPDATE, TABLE, {"id": 10**6}, {"body": ""}), 10**15)))


class Filled(NamedTuple):
    rows: int
    bytes: int
    ended_s: float  # when its last row was committed, as it says itself
    marks: list[tuple[int, Position]]  # where each part begins: its first row, and the position before it


def fill(folder: Path, rows: int, parts: int, span_s: float) -> Filled:
    """A log whose commits say that they were spread evenly over the last `span_s`, divided into parts of equal length."""
    ended_s = time.time()
    marks: list[tuple[int, Position]] = []
    bounds = [rows * part // parts for part in range(parts + 1)]
    end = Position(0, 0)
    with FileLog(folder) as log:
        for begin, stop in pairwise(bounds):
            marks.append((begin, end))
            for first in range(begin, stop, _AT_ONCE):
                numbers = range(first, min(stop, first + _AT_ONCE))
                lines = b"".join(row(n, round((ended_s - span_s * (1 - (n + 1) / rows)) * 1e6)) for n in numbers)
                end = log.append_lines(lines)
    return Filled(rows, end.sequence, ended_s, marks)


class Writer(threading.Thread):
    """Commits rows at a steady rate, also after a delay; each commit is durable, and says when it was made."""

    def __init__(self, folders: Sequence[Path], rows_per_s: float) -> None:
        super().__init__(name="writer", daemon=True)
        self.rows_per_s = rows_per_s
        self.rows = 0  # numbers below this are in the log
        self.bytes = 0
        self._logs = [FileLog(folders[0])]
        for copy in folders[1:]:
            copy.mkdir(parents=True, exist_ok=True)
            (copy / IDENTITY).write_text(f"{self._logs[0].identity}\n")
            self._logs.append(FileLog(copy))
        self._stopped = threading.Event()
        self._failed: Exception | None = None

    def run(self) -> None:
        began_s = time.monotonic()
        try:
            while not self._stopped.wait(TURN_S):
                due = int((time.monotonic() - began_s) * self.rows_per_s)
                if due - self.rows > self.rows_per_s * _LATE_S_MAX:
                    raise BenchFailed(f"The log cannot be written at {self.rows_per_s:,.0f} rows/s.")
                self._append(due - self.rows)
        except Exception as error:
            self._failed = error

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """What was written stays; no more comes."""
        self._stopped.set()
        if self.ident is not None:
            self.join(10.0)
        for log in self._logs:
            log.close()

    def _append(self, count: int) -> None:
        if count <= 0:
            return
        now_us = time.time_ns() // 1000
        lines = b"".join(row(number, now_us) for number in range(self.rows, self.rows + count))
        for log in self._logs:
            log.append_lines(lines)
        self.bytes += len(lines)
        self.rows += count
