"""Marks of unfinished work: who left something undone for which client, found without a scan (docs/architecture.md, tables).

Whoever writes a client's row in its owner's stead, or leaves a registration pending, first writes a mark: a uniquely named
cell in the row (partition of the client, time bucket), its value the client's id. Readers never clear marks, as another reader
may need them: each keeps a cursor, and whole buckets expire. A mark that is seen twice costs one more look at the client's row.
Pure: the caller has the clock, the randomness and the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from roskva.model import ClientId, client_partition
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey

MARKS: Final = "marks"
SKEW_BUCKETS: Final = 2  # clocks of writers may differ by so many buckets, and a write may come so late
FULL_PASS_S: Final = 60.0  # all unexpired buckets are read again so often, for what came later than that


def bucket_row(partition: int, bucket: int) -> RowKey:
    return RowKey(MARKS, partition, bucket.to_bytes(8, "big"))


def bucket_of(row: RowKey) -> int:
    return int.from_bytes(row.key, "big")


def marks_for(clients: Iterable[ClientId], now_s: float, bucket_s: float, partitions: int, unique: bytes) -> list[Mutation]:
    """The mutations that mark these clients, to be written before the rows that they point to.

    `unique` names this call among all calls of all processes (random bytes, say): equal names would hide each other's marks.
    """
    bucket = int(now_s // bucket_s)
    by_partition: dict[int, list[Cell]] = {}
    for number, client in enumerate(dict.fromkeys(clients)):
        cell = Cell(unique + number.to_bytes(4, "big"), 0, client.encode())
        by_partition.setdefault(client_partition(client, partitions), []).append(cell)
    return [
        Mutation(bucket_row(partition, bucket), cells[start : start + CELLS_PER_WRITE_MAX])
        for partition, cells in by_partition.items()
        for start in range(0, len(cells), CELLS_PER_WRITE_MAX)
    ]


def expired_rows(partitions: Iterable[int], since_s: float, now_s: float, bucket_s: float, retention_s: float) -> list[RowKey]:
    """The rows of the buckets that expired between `since_s` and `now_s`: for `delete_rows`, whether they exist or not.

    A caller remembers the `now_s` of its last call; the first time it may go back as far as it likes.
    """
    first = max(0, _oldest_bucket(since_s, bucket_s, retention_s))
    end = max(0, _oldest_bucket(now_s, bucket_s, retention_s))
    return [bucket_row(partition, bucket) for partition in partitions for bucket in range(first, end)]


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """What one round reads. `full` are the partitions of which it reads every unexpired bucket."""

    rows: tuple[RowKey, ...]
    full: frozenset[int]
    now_s: float


class MarkReader:
    """One reader's cursor over the marks of the partitions that it looks after.

    Duties of the caller, each round: `plan`, read the plan's rows, `take` what was read. A round whose read failed is not
    taken, and the next one covers it. `forget` a partition that is no longer ours: if it comes back, all its marks are new.
    Marks whose names begin with `own` are this reader's own: what it marked itself it also remembers, until it forgets.
    """

    def __init__(self, bucket_s: float, retention_s: float, full_pass_s: float = FULL_PASS_S, own: bytes | None = None) -> None:
        self._own = own
        self._bucket_s = bucket_s
        self._retention_s = retention_s
        self._full_pass_s = full_pass_s
        self._full_at_s: dict[int, float] = {}  # when each partition was last read in full
        self._seen: dict[RowKey, set[bytes]] = {}  # the names seen in recent buckets
        self._oldest = 0  # the bucket before which everything was forgotten
        self._counts: dict[RowKey, int] = {}  # of older ones only how many: names of an hour would fill the memory

    def plan(self, partitions: Iterable[int], now_s: float) -> MarkPlan:
        present = int(now_s // self._bucket_s)
        last = present + SKEW_BUCKETS
        rows: list[RowKey] = []
        full: set[int] = set()
        for partition in partitions:
            read_at_s = self._full_at_s.get(partition)
            if read_at_s is None or not 0 <= now_s - read_at_s < self._full_pass_s:
                full.add(partition)
                first = max(0, _oldest_bucket(now_s, self._bucket_s, self._retention_s))
            else:
                # Also what a stalled reader missed since its last full pass; never more than that pass would read.
                first = max(0, min(present, int(read_at_s // self._bucket_s)) - SKEW_BUCKETS)
            rows.extend(bucket_row(partition, bucket) for bucket in range(first, last + 1))
        return MarkPlan(tuple(rows), frozenset(full), now_s)

    def take(self, plan: MarkPlan, rows: Mapping[RowKey, Row]) -> list[ClientId]:
        """The clients of marks not seen before, each once."""
        recent = int(plan.now_s // self._bucket_s) - SKEW_BUCKETS
        clients: dict[ClientId, None] = {}
        for row in plan.rows:
            cells = rows.get(row, {})
            counted = self._counts.get(row)
            if counted is not None:
                if len(cells) == counted:
                    continue
                seen: set[bytes] = set()  # something came late: look at all of this bucket once more
            else:
                seen = self._seen.get(row, set())
            own = self._own if row.partition in self._full_at_s else None
            for name, cell in cells.items():
                if name not in seen and not (own is not None and name.startswith(own)):
                    clients[ClientId((cell.value or b"").decode())] = None
            self._remember(row, cells, bucket_of(row) >= recent)
        for partition in plan.full:
            self._full_at_s[partition] = plan.now_s
        self._expire(plan.now_s)
        return list(clients)

    def forget(self, partition: int) -> None:
        self._full_at_s.pop(partition, None)
        self._seen = {row: names for row, names in self._seen.items() if row.partition != partition}
        self._counts = {row: count for row, count in self._counts.items() if row.partition != partition}

    def _remember(self, row: RowKey, cells: Row, is_recent: bool) -> None:
        if is_recent:
            self._counts.pop(row, None)
            if cells:
                self._seen[row] = set(cells)
        else:
            self._seen.pop(row, None)
            self._counts[row] = len(cells)

    def _expire(self, now_s: float) -> None:
        oldest = _oldest_bucket(now_s, self._bucket_s, self._retention_s)
        if oldest == self._oldest:
            return
        self._oldest = oldest
        for row in [row for row in (*self._seen, *self._counts) if bucket_of(row) < oldest]:
            self._seen.pop(row, None)
            self._counts.pop(row, None)


def _oldest_bucket(now_s: float, bucket_s: float, retention_s: float) -> int:
    """The oldest bucket that has not expired: all of it is older than the retention only in the next."""
    return int((now_s - retention_s) // bucket_s)
