"""The scan that finds again what was dropped from memory, by the marks that lead to it (Thialfi 4.2.5).

"A server aborts in-progress propagations, evicts items from its pending operation set, and schedules a future scan to recover." What is
dropped has a mark, written before the row that it points to. The scan goes over the buckets of marks from the first that may hold one of
them, some clients at a time, while there is room; whoever is found is looked at, and what its row shows as unfinished is repeated and
marked again. Until the scan has passed a bucket, that bucket does not expire: so nothing that was dropped can be forgotten.

One pass over a partition begins at most once in `pause_s`; what is dropped during a pass waits for the next. A pass ends at the head
that it sees, so it ends. Pure: the caller has the clock and the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roskva.model import ClientId
from roskva.table.interface import Row, RowKey
from roskva.table.marks import LATE_BUCKETS, bucket_row

BUCKETS_AT_A_TIME: Final = 8  # in one step of a pass, of one partition
UNKNOWN_AGE_S: Final = math.inf  # of a mark that somebody else wrote


@dataclass(slots=True)
class _Pass:
    bucket: int
    after: bytes = b""  # the last name that was taken from this bucket


class Scan:
    def __init__(self, bucket_s: float, retention_s: float, pause_s: float) -> None:
        self._bucket_s = bucket_s
        self._kept = max(LATE_BUCKETS + 1, round(retention_s / bucket_s))
        self._pause_s = pause_s
        self._wanted: dict[int, int] = {}  # by partition: the first bucket that the next pass must read
        self._passes: dict[int, _Pass] = {}
        self._began_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._wanted or self._passes)

    def dropped(self, partition: int, head: int | None, age_s: float) -> None:
        """Something of this partition left the memory; its mark was written so long ago. No head: all marks are yet to be read."""
        if head is None:
            return
        oldest = max(0, head - self._kept)
        # The head is raised at most once per `bucket_s`; a mark may have come late; and one more, since ages are rounded.
        first = oldest if age_s == UNKNOWN_AGE_S else max(oldest, head - LATE_BUCKETS - 1 - math.ceil(age_s / self._bucket_s))
        self._wanted[partition] = min(first, self._wanted.get(partition, first))

    def forget(self) -> None:
        """Every mark of every partition is about to be read anyway."""
        self._wanted.clear()
        self._passes.clear()

    def needs(self, partition: int) -> int | None:
        """The first bucket that must not expire yet. None: none."""
        needed = [bucket for bucket in (self._wanted.get(partition),) if bucket is not None]
        if partition in self._passes:
            needed.append(self._passes[partition].bucket)
        return min(needed, default=None)

    def holds_head(self, partition: int, head: int) -> bool:
        """With the next bucket, one that is still needed would leave those that are kept."""
        needed = self.needs(partition)
        return needed is not None and head + 1 - self._kept > needed

    def is_behind(self, partition: int, head: int | None) -> bool:
        """Half of the time that marks are kept for is over, and the scan had no room: no new work should come."""
        needed = self.needs(partition)
        return needed is not None and head is not None and head - needed > max(LATE_BUCKETS + 1, self._kept // 2)

    def plan(self, partition: int, head: int, now_s: float) -> list[RowKey]:
        """The rows to read now: the next buckets of this partition's pass. Give what was read to `take`."""
        if partition not in self._passes and partition in self._wanted:
            if now_s - self._began_s.get(partition, -math.inf) < self._pause_s:
                return []
            self._began_s[partition] = now_s
            self._passes[partition] = _Pass(self._wanted.pop(partition))
        under_way = self._passes.get(partition)
        if under_way is None:
            return []
        last = min(under_way.bucket + BUCKETS_AT_A_TIME - 1, head + 1)
        if last < under_way.bucket:  # the partition was lost and counts from 0 again
            del self._passes[partition]
        return [bucket_row(partition, bucket) for bucket in range(under_way.bucket, last + 1)]

    def take(self, rows: Sequence[RowKey], read: Mapping[RowKey, Row], head: int, limit: int) -> list[ClientId]:
        """Up to `limit` clients of what was read, in order; the pass goes on behind the last of them."""
        if not rows or rows[0].partition not in self._passes:
            return []  # ownership changed meanwhile
        under_way = self._passes[rows[0].partition]
        clients: dict[ClientId, None] = {}
        for row in rows:
            for name in sorted(read.get(row, {})):
                if name <= under_way.after:
                    continue
                if len(clients) >= limit:
                    return list(clients)
                clients[ClientId((read[row][name].value or b"").decode())] = None
                under_way.after = name
            under_way.bucket += 1
            under_way.after = b""
        if under_way.bucket > head + 1:
            del self._passes[rows[0].partition]
        return list(clients)
