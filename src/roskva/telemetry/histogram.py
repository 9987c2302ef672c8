"""Times by their order of magnitude: a histogram with buckets that grow with the value, for microseconds to hours. Pure.

Each power of two is cut into sixteen, so a value is known to a sixteenth, however large it is, and the whole has some 600 buckets at most.
Two histograms add up to the one that both would have been: of several gateways, of several minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

_CUT: Final = 4  # bits of a value below its highest that count
_EACH: Final = 1 << _CUT
VALUE_MAX: Final = (1 << 40) - 1  # twelve days in microseconds; what is longer counts as that
BUCKETS_MAX: Final = (40 - _CUT) * _EACH + _EACH


def bucket_of(value: int) -> int:
    """The number of a value's bucket: small values have one each."""
    if value < _EACH:
        return value
    shift = value.bit_length() - 1 - _CUT
    return (shift << _CUT) + (value >> shift)


def bound_of(bucket: int) -> int:
    """The largest value of a bucket."""
    if bucket < _EACH:
        return bucket
    shift = (bucket >> _CUT) - 1
    return ((_EACH + bucket % _EACH + 1) << shift) - 1


class LogHistogram:
    """Counts of whole numbers, none below 0, by bucket; only those that hold something take room."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.largest = 0

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        return self.total / self.count if self.counts else 0.0

    def observe(self, value: int) -> None:
        value = min(value, VALUE_MAX)
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += value
        self.largest = max(self.largest, value)

    def add(self, other: Self) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def since(self, earlier: Self) -> LogHistogram:
        """What came after an earlier look at the same. The largest of it is only known to its bucket."""
        later = LogHistogram()
        later.counts = {bucket: count - earlier.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        later.counts = {bucket: count for bucket, count in later.counts.items() if count > 0}
        later.total = max(0, self.total - earlier.total)
        later.largest = min(self.largest, max(map(bound_of, later.counts), default=0))
        return later

    def quantile(self, part: float) -> int:
        """A value that this part of all is not above; known to its bucket. Of nothing, 0."""
        wanted, running = part * self.count, 0
        for bucket, count in sorted(self.counts.items()):
            running += count
            if running >= wanted:
                return min(bound_of(bucket), self.largest)
        return self.largest

    def share_up_to(self, value: int) -> float:
        """The part of all whose bucket ends at this value or before it."""
        count = self.count
        return sum(n for bucket, n in self.counts.items() if min(bound_of(bucket), self.largest) <= value) / count if count else 0.0

    def distribution(self) -> list[tuple[int, float]]:
        """The cumulative distribution: (value, part of all that is not above it), where anything is."""
        points: list[tuple[int, float]] = []
        running, count = 0, self.count
        for bucket, n in sorted(self.counts.items()):
            running += n
            points.append((min(bound_of(bucket), self.largest), running / count))
        return points

    def below(self, bounds: Sequence[int]) -> list[int]:
        """How many values are below each bound, exactly if it is a power of two; bounds grow."""
        ordered, found, running, place = sorted(self.counts.items()), [], 0, 0
        for bound in bounds:
            while place < len(ordered) and bound_of(ordered[place][0]) < bound:
                running += ordered[place][1]
                place += 1
            found.append(running)
        return found

    def document(self) -> dict[str, Any]:
        """For JSON. Buckets go by the largest value that they hold, so that a reader needs to know nothing of this."""
        buckets = [[bound_of(bucket), count] for bucket, count in sorted(self.counts.items())]
        return {"count": self.count, "sum_us": self.total, "max_us": self.largest, "buckets": buckets}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """From such a document. Raises KeyError, TypeError or ValueError for another one."""
        found = cls()
        pairs: Iterable[Any] = document["buckets"]
        for bound, count in pairs:
            bucket = bucket_of(min(int(bound), VALUE_MAX))
            found.counts[bucket] = found.counts.get(bucket, 0) + int(count)
        found.total, found.largest = int(document["sum_us"]), int(document["max_us"])
        return found
