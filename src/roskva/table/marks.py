"""Marks of unfinished work: who left something undone for which client, found without a scan (docs/architecture.md, tables).

Whoever writes a client's row in its owner's stead, or leaves a registration pending, first writes a mark: a uniquely named cell in a
bucket of the client's partition, its value the client's id. Readers never clear marks, as another reader may need them: each keeps a
cursor, and whole buckets expire. A mark that is seen twice costs one more look at the client's row.

Buckets are numbered, not dated: clocks of machines may be hours apart. The row `head` holds the number of the present bucket. Writers
read it before they mark; owners of the partition raise it, each by its own clock, once the bucket has marks and is old enough. A writer
may be late by a few buckets: `LATE_BUCKETS` are read in every round, all that are kept in a full pass.
Pure: the caller has the clock, the randomness and the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from roskva.model import ClientId, client_partition
from roskva.probes import reached
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey

MARKS: Final = "marks"
LATE_BUCKETS: Final = 2  # a mark may come into a bucket so far behind the head
FULL_PASS_S: Final = 60.0  # all buckets that are kept are read again so often, for what came later than that
_BUCKET: Final = b"bucket"


def head_row(partition: int) -> RowKey:
    return RowKey(MARKS, partition, b"head")


def head_in(row: Row) -> int:
    """The number of the present bucket, by the row `head`. Nobody raised it yet: 0."""
    cell = row.get(_BUCKET)
    return 0 if cell is None else cell.timestamp


def raise_head(partition: int, bucket: int) -> Mutation:
    return Mutation(head_row(partition), [Cell(_BUCKET, bucket, b"")])


def bucket_row(partition: int, bucket: int) -> RowKey:
    return RowKey(MARKS, partition, bucket.to_bytes(8, "big"))


def bucket_of(row: RowKey) -> int:
    return int.from_bytes(row.key, "big")


def partitions_of(clients: Iterable[ClientId], partitions: int) -> list[int]:
    """Whose heads a writer needs in order to mark these clients."""
    return sorted({client_partition(client, partitions) for client in clients})


def marks_for(clients: Iterable[ClientId], heads: Mapping[int, int], partitions: int, unique: bytes) -> list[Mutation]:
    """The mutations that mark these clients, to be written before the rows that they point to. `heads`: by partition, read just now.

    `unique` names this call among all calls of all processes (random bytes, say): equal names would hide each other's marks.
    """
    by_partition: dict[int, list[Cell]] = {}
    for number, client in enumerate(dict.fromkeys(clients)):
        cell = Cell(unique + number.to_bytes(4, "big"), 0, client.encode())
        by_partition.setdefault(client_partition(client, partitions), []).append(cell)
    return [
        Mutation(bucket_row(partition, heads[partition]), cells[start : start + CELLS_PER_WRITE_MAX])
        for partition, cells in by_partition.items()
        for start in range(0, len(cells), CELLS_PER_WRITE_MAX)
    ]


def came_in_time(before: Mapping[int, int], after: Mapping[int, int]) -> bool:
    """Whether marks that were written between these two looks at the heads lie where readers still look; else: mark again.

    A head that went back is of a partition that was lost, with the marks in it.
    """
    return all(0 <= after[partition] - head <= LATE_BUCKETS for partition, head in before.items())


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """What one round reads of a partition: its head, and the buckets from `first` to `last`. `full`: they are all that is kept."""

    partition: int
    first: int
    last: int
    full: bool
    now_s: float

    @property
    def rows(self) -> list[RowKey]:
        return [head_row(self.partition), *(bucket_row(self.partition, bucket) for bucket in range(self.first, self.last + 1))]


@dataclass(slots=True)
class _Cursor:
    """How far one partition was read."""

    head: int
    since_s: float  # when it was first seen to be that
    read_to: int = 0  # the bucket up to which everything was read
    full_at_s: float | None = None  # when all buckets were last read
    expired_to: int | None = None  # the bucket before which everything was deleted
    filled: bool = False  # whether the present bucket has marks


class MarkReader:
    """One reader's cursor over the marks of the partitions that it looks after.

    Duties of the caller, each round and partition: `plan`, read the plan's rows, `take` what was read. A round whose read failed is not
    taken, and the next one covers it. A partition that is `unknown` needs two rounds: the first finds its head. `forget` a partition
    that is no longer ours: if it comes back, all its marks are new. `to_raise` and `expired` tell what an owner has to write.
    Marks whose names begin with `own` are this reader's own: what it marked itself it also remembers, until it forgets.
    """

    def __init__(self, bucket_s: float, retention_s: float, full_pass_s: float = FULL_PASS_S, own: bytes | None = None) -> None:
        self._own = own
        self._bucket_s = bucket_s
        self._kept = max(LATE_BUCKETS + 1, round(retention_s / bucket_s))  # buckets behind the head
        self._full_pass_s = full_pass_s
        self._cursors: dict[int, _Cursor] = {}
        self._seen: dict[RowKey, set[bytes]] = {}  # the names seen in recent buckets
        self._counts: dict[RowKey, int] = {}  # of older ones only how many: names of an hour would fill the memory

    def unknown(self, partition: int) -> bool:
        return partition not in self._cursors

    def head(self, partition: int) -> int | None:
        """As it was last seen."""
        cursor = self._cursors.get(partition)
        return None if cursor is None else cursor.head

    def plan(self, partition: int, now_s: float) -> MarkPlan:
        cursor = self._cursors.get(partition)
        if cursor is None:
            return MarkPlan(partition, 0, -1, False, now_s)
        full = cursor.full_at_s is None or now_s - cursor.full_at_s >= self._full_pass_s
        first = cursor.head - self._kept if full else min(cursor.read_to, cursor.head) - LATE_BUCKETS
        return MarkPlan(partition, max(0, first), cursor.head + 1, full, now_s)

    def take(self, plan: MarkPlan, rows: Mapping[RowKey, Row]) -> list[ClientId]:
        """The clients of marks not seen before, each once."""
        partition = plan.partition
        head = head_in(rows.get(head_row(partition), {}))
        cursor = self._cursors.get(partition)
        if cursor is not None and head < cursor.head:
            reached("marks: a lost partition begins again")
        if cursor is None or head < cursor.head:
            self.forget(partition)
            self._cursors[partition] = _Cursor(head, plan.now_s)
            return []
        if head > cursor.head:
            cursor.head, cursor.since_s = head, plan.now_s
        clients: dict[ClientId, None] = {}
        for bucket in range(plan.first, plan.last + 1):
            row = bucket_row(partition, bucket)
            cells = rows.get(row, {})
            clients |= dict.fromkeys(self._new_in(row, cells, cursor.full_at_s is not None))
            self._remember(row, cells, bucket >= head - LATE_BUCKETS)
        cursor.read_to = min(plan.last, head)
        cursor.filled = bool(rows.get(bucket_row(partition, head)))
        if plan.full:
            cursor.full_at_s = plan.now_s
            self._drop_expired(partition, head - self._kept)
        return list(clients)

    def forget(self, partition: int) -> None:
        self._cursors.pop(partition, None)
        self._seen = {row: names for row, names in self._seen.items() if row.partition != partition}
        self._counts = {row: count for row, count in self._counts.items() if row.partition != partition}

    def to_raise(self, now_s: float) -> list[Mutation]:
        """The heads that are due: their bucket has marks, and is old enough by this clock."""
        return [
            raise_head(partition, cursor.head + 1)
            for partition, cursor in self._cursors.items()
            if cursor.filled and now_s - cursor.since_s >= self._bucket_s
        ]

    def expired(self) -> list[RowKey]:
        """The rows of buckets that are no longer kept: for `delete_rows`, whether they exist or not, and then `deleted`."""
        rows: list[RowKey] = []
        for partition, cursor in self._cursors.items():
            end = cursor.head - self._kept
            first = end - self._kept if cursor.expired_to is None else cursor.expired_to
            rows += [bucket_row(partition, bucket) for bucket in range(max(0, first), end)]
        return rows

    def deleted(self, rows: Iterable[RowKey]) -> None:
        for row in rows:
            cursor = self._cursors.get(row.partition)
            if cursor is not None:
                cursor.expired_to = max(cursor.expired_to or 0, bucket_of(row) + 1)

    def _new_in(self, row: RowKey, cells: Row, knows_own: bool) -> list[ClientId]:
        counted = self._counts.get(row)
        if counted == len(cells):
            return []
        seen = self._seen.get(row, set()) if counted is None else set()  # something came late: look at all of this bucket once more
        own = self._own if knows_own else None
        return [
            ClientId((cell.value or b"").decode())
            for name, cell in cells.items()
            if name not in seen and not (own is not None and name.startswith(own))
        ]

    def _remember(self, row: RowKey, cells: Row, is_recent: bool) -> None:
        if is_recent:
            self._counts.pop(row, None)
            if cells:
                self._seen[row] = set(cells)
        else:
            self._seen.pop(row, None)
            self._counts[row] = len(cells)

    def _drop_expired(self, partition: int, oldest: int) -> None:
        for row in [row for row in (*self._seen, *self._counts) if row.partition == partition and bucket_of(row) < oldest]:
            self._seen.pop(row, None)
            self._counts.pop(row, None)
