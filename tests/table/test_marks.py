"""Marks of unfinished work, against a table in memory: found once, by every reader, and no clock but the reader's own counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from roskva.model import ClientId, client_partition
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey, wins
from roskva.table.marks import (
    FULL_PASS_S,
    LATE_BUCKETS,
    MarkReader,
    bucket_row,
    came_in_time,
    head_in,
    head_row,
    marks_for,
    partitions_of,
    raise_head,
)

BUCKET_S = 60.0
RETENTION_S = 3_600.0
KEPT = 60
PARTITIONS = 2


class Rows:
    """A table in memory that counts what is read."""

    def __init__(self) -> None:
        self.cells: dict[RowKey, dict[bytes, Cell]] = {}
        self.reads = 0

    def write(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            row = self.cells.setdefault(mutation.row, {})
            for cell in mutation.cells:
                if cell.name not in row or wins(cell, row[cell.name]):
                    row[cell.name] = cell

    def read(self, rows: Sequence[RowKey]) -> Mapping[RowKey, Row]:
        self.reads += len(rows)
        return {row: self.cells.get(row, {}) for row in rows}

    def heads(self) -> dict[int, int]:
        return {partition: head_in(self.cells.get(head_row(partition), {})) for partition in range(PARTITIONS)}

    def raise_heads(self, bucket: int) -> None:
        self.write([raise_head(partition, bucket) for partition in range(PARTITIONS)])


def mark(rows: Rows, unique: bytes, *clients: str, bucket: int | None = None) -> None:
    heads = rows.heads() if bucket is None else dict.fromkeys(range(PARTITIONS), bucket)
    rows.write(marks_for([ClientId(client) for client in clients], heads, PARTITIONS, unique))


def round_of(reader: MarkReader, rows: Rows, now_s: float) -> set[str]:
    """As an owner does it: what is unknown is looked at twice, and heads are raised."""
    found: set[str] = set()
    for partition in range(PARTITIONS):
        for _ in range(2 if reader.unknown(partition) else 1):
            plan = reader.plan(partition, now_s)
            found |= set(reader.take(plan, rows.read(plan.rows)))
    rows.write(reader.to_raise(now_s))
    return found


def new_reader() -> MarkReader:
    return MarkReader(BUCKET_S, RETENTION_S)


def test_marks_lie_in_the_partition_of_their_client() -> None:
    clients = [ClientId(f"client-{number}") for number in range(20)]
    mutations = marks_for([*clients, clients[0]], {0: 7, 1: 9}, PARTITIONS, b"u")
    found = {cell.value: mutation.row for mutation in mutations for cell in mutation.cells}
    places = {client: client_partition(client, PARTITIONS) for client in clients}
    assert found == {client.encode(): bucket_row(place, {0: 7, 1: 9}[place]) for client, place in places.items()}
    assert sum(len(mutation.cells) for mutation in mutations) == 20
    assert len({cell.name for mutation in mutations for cell in mutation.cells}) == 20
    assert partitions_of(clients, PARTITIONS) == [0, 1]


def test_many_marks_are_split_into_writes_that_engines_take() -> None:
    mutations = marks_for([ClientId(f"{number}") for number in range(5_000)], {0: 0, 1: 0}, PARTITIONS, b"u")
    assert max(len(mutation.cells) for mutation in mutations) <= CELLS_PER_WRITE_MAX
    assert sum(len(mutation.cells) for mutation in mutations) == 5_000


def test_a_mark_is_reported_once_to_every_reader() -> None:
    """Trap 40: no reader takes a mark away from another."""
    rows, first, second = Rows(), new_reader(), new_reader()
    mark(rows, b"1", "a", "b")
    assert round_of(first, rows, 0) == {"a", "b"}
    assert round_of(first, rows, 1) == set()
    mark(rows, b"2", "b")
    assert round_of(first, rows, 2) == {"b"}
    assert round_of(second, rows, 2) == {"a", "b"}


def test_the_first_round_reads_all_that_is_kept_later_ones_only_what_is_recent() -> None:
    rows, reader = Rows(), new_reader()
    rows.raise_heads(500)
    mark(rows, b"1", "old", bucket=500 - KEPT)
    mark(rows, b"2", "expired", bucket=500 - KEPT - 1)
    assert round_of(reader, rows, 0) == {"old"}
    first, rows.reads = rows.reads, 0
    round_of(reader, rows, 1)
    assert rows.reads <= PARTITIONS * (LATE_BUCKETS + 3) < first


@given(clocks_s=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2), seconds=st.lists(st.integers(0, 400), max_size=30))
def test_owners_whose_clocks_are_days_apart_find_every_mark_in_their_next_round(clocks_s: list[float], seconds: list[int]) -> None:
    """Seed 56 of the simulator, when buckets were dated: a gateway whose clock was a day off never saw what the pipeline had marked."""
    rows, readers = Rows(), (new_reader(), new_reader())
    now_s = 0
    for number, pause_s in enumerate(seconds):
        now_s += pause_s
        mark(rows, b"%d" % number, f"client-{number}")
        for reader, clock_s in zip(readers, clocks_s, strict=True):
            assert f"client-{number}" in round_of(reader, rows, clock_s + now_s)


def test_a_mark_that_comes_late_is_found_by_a_full_pass() -> None:
    rows, reader = Rows(), new_reader()
    rows.raise_heads(50)
    mark(rows, b"1", "early", bucket=30)
    found = []
    for second in range(200):
        found.append(round_of(reader, rows, second))
        if second == 100:
            mark(rows, b"2", "late", bucket=30)
    assert found[0] == {"early"}
    assert sum("late" in clients for clients in found) == 1
    assert sum("early" in clients for clients in found) <= 2  # its bucket was looked at once more


def test_a_writer_that_was_stopped_for_long_marks_again() -> None:
    """Between its look at the head and its write, the head went on: nobody reads that bucket any more."""
    assert came_in_time({0: 5}, {0: 5})
    assert came_in_time({0: 5}, {0: 5 + LATE_BUCKETS})
    assert not came_in_time({0: 5, 1: 5}, {0: 5, 1: 6 + LATE_BUCKETS})
    assert not came_in_time({0: 5}, {0: 0}), "the partition was lost, and the mark with it"


def test_a_stalled_reader_misses_nothing() -> None:
    """Another owner raised the head meanwhile, bucket by bucket, each with marks."""
    rows, reader = Rows(), new_reader()
    round_of(reader, rows, 0)
    for bucket in range(1, 30):
        mark(rows, b"%d" % bucket, f"client-{bucket}")
        rows.raise_heads(bucket)
    found = round_of(reader, rows, 1) | round_of(reader, rows, 2)
    assert found == {f"client-{bucket}" for bucket in range(1, 30)}


def test_a_failed_round_is_covered_by_the_next() -> None:
    rows, reader = Rows(), new_reader()
    round_of(reader, rows, 0)
    mark(rows, b"1", "a")
    for partition in range(PARTITIONS):
        reader.plan(partition, 1)  # its read raised: never taken
    assert round_of(reader, rows, 2) == {"a"}


def test_a_partition_that_comes_back_is_read_in_full() -> None:
    rows, reader = Rows(), new_reader()
    mark(rows, b"1", *(f"client-{number}" for number in range(10)))
    everyone = round_of(reader, rows, 0)
    reader.forget(1)
    again = round_of(reader, rows, 1)
    assert again == {client for client in everyone if client_partition(ClientId(client), PARTITIONS) == 1}


def test_a_partition_that_was_lost_begins_again() -> None:
    rows, reader = Rows(), new_reader()
    rows.raise_heads(500)
    round_of(reader, rows, 0)
    rows.cells.clear()
    mark(rows, b"1", "a")
    assert round_of(reader, rows, 1) | round_of(reader, rows, 2) == {"a"}


def test_own_marks_are_passed_over_until_the_partition_was_forgotten() -> None:
    rows, reader = Rows(), MarkReader(BUCKET_S, RETENTION_S, own=b"me")
    round_of(reader, rows, 0)
    mark(rows, b"me-1", *(f"mine-{number}" for number in range(10)))
    mark(rows, b"other", "theirs")
    assert round_of(reader, rows, 1) == {"theirs"}
    reader.forget(0)
    assert round_of(reader, rows, 2) == {
        client for client in ["theirs", *(f"mine-{number}" for number in range(10))] if client_partition(ClientId(client), PARTITIONS) == 0
    }


def test_an_idle_partition_is_not_written_to() -> None:
    rows, reader = Rows(), new_reader()
    for minute in range(100):
        round_of(reader, rows, 60 * minute)
    assert rows.cells == {}


def test_memory_and_rows_stay_bounded() -> None:
    rows, reader = Rows(), new_reader()
    for minute in range(200):
        mark(rows, b"%d" % minute, *(f"{number}" for number in range(50)))
        assert len(round_of(reader, rows, 60 * minute)) == 50
        expired = reader.expired()
        for row in expired:
            rows.cells.pop(row, None)
        reader.deleted(expired)
        assert reader.expired() == []
    assert set(rows.heads().values()) == {100}, "each is seen a minute before it is old enough"
    assert sum(len(names) for names in reader._seen.values()) <= 2 * 50 * (LATE_BUCKETS + 1)
    assert len(reader._counts) <= PARTITIONS * (KEPT + FULL_PASS_S / BUCKET_S + 1)
    assert len(rows.cells) <= PARTITIONS * (KEPT + 3)


def test_expired_rows_are_those_that_no_reader_reads_any_more() -> None:
    rows, reader = Rows(), new_reader()
    rows.raise_heads(500)
    round_of(reader, rows, 0)
    reader.deleted(reader.expired())
    rows.raise_heads(620)
    round_of(reader, rows, 1)
    expired = reader.expired()
    assert bucket_row(0, 500) in expired
    assert len(expired) == PARTITIONS * 120
    fresh = new_reader()
    for partition in range(PARTITIONS):
        fresh.take(plan := fresh.plan(partition, 2), rows.read(plan.rows))
        assert not set(expired) & set(fresh.plan(partition, 2).rows)
