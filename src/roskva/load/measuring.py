"""What a run counts: numbers that add up over processes and subtract over time, and latencies in narrow buckets. Pure."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

_WIDTH: Final = 1.02  # each bucket is 2 % wider than the one before it
_PER_LOG: Final = 1.0 / math.log(_WIDTH)
_BUCKETS: Final = 1_200  # up to some six hours, in microseconds


class Latencies:
    """How often which latency was seen: a percentile is right to 1 %, whatever their number."""

    __slots__ = ("buckets", "count", "max_us", "total_us")

    def __init__(self) -> None:
        self.buckets = array("Q", [0]) * _BUCKETS
        self.count = 0
        self.total_us = 0
        self.max_us = 0

    def note(self, us: int) -> None:
        us = max(us, 1)
        self.buckets[min(_BUCKETS - 1, int(math.log(us) * _PER_LOG))] += 1
        self.count += 1
        self.total_us += us
        if us > self.max_us:
            self.max_us = us

    def add(self, other: Latencies) -> None:
        for place, count in enumerate(other.buckets):
            if count:
                self.buckets[place] += count
        self.count += other.count
        self.total_us += other.total_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_ms(self, part: float) -> float:
        """The latency that `part` of all did not exceed; of none, 0."""
        left = math.ceil(part * self.count)
        for place, count in enumerate(self.buckets):
            left -= count
            if left <= 0 < self.count:
                return float(min(_WIDTH ** (place + 0.5), self.max_us)) / 1000.0
        return 0.0

    def summary(self) -> dict[str, float]:
        parts = {f"p{round(100 * part)}": round(self.percentile_ms(part), 2) for part in (0.5, 0.95, 0.99)}
        return parts | {"max": round(self.max_us / 1000.0, 2)}


@dataclass(slots=True)
class Counts:
    """Since the start, of one process or of all."""

    arrived: int = 0
    in_sync: int = 0  # now
    registered: int = 0  # registrations of those in sync, now
    sent: int = 0  # messages of clients
    received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    dropped: int = 0  # messages, on purpose, in either direction
    overflowed: int = 0  # messages for which the line had no room
    notified: int = 0  # of a version that this run published, each client and version once
    told_earlier: int = 0  # of a version that an earlier run published
    unknown: int = 0
    repeated: int = 0
    heartbeats: int = 0
    retries: int = 0
    syncs: int = 0
    started_anew: int = 0  # handshakes that the service asked for
    interrupted: int = 0  # lines that broke
    published: int = 0  # updates that were accepted
    publish_refused: int = 0
    publish_lost: int = 0  # without an answer: it may have landed or not
    publish_skipped: int = 0  # not even sent, since too many waited for an answer
    missing: int = 0  # accepted versions that a client in sync does not know, when it was last looked
    errors: Counter[str] = field(default_factory=Counter)  # by code, as the service said them
    said: str = ""  # the last of them, in words

    def add(self, other: Counts) -> None:
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors += other.errors
        self.said = other.said or self.said


NUMBERS: Final = tuple(one.name for one in fields(Counts) if one.type == "int")


@dataclass(slots=True)
class Report:
    """What one process tells each second. Latencies are of the time since its last report."""

    counts: Counts
    latencies: Latencies
    answers: Latencies  # of publish requests
    line_down: str = ""  # why a line is not connected just now


def merged(reports: Sequence[Report]) -> Report:
    whole = Report(Counts(), Latencies(), Latencies())
    for report in reports:
        whole.counts.add(report.counts)
        whole.latencies.add(report.latencies)
        whole.answers.add(report.answers)
        whole.line_down = whole.line_down or report.line_down
    return whole
