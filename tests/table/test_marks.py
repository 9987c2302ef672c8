"""Marks of unfinished work, against a table in memory: found once, by every reader, whatever the clocks say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from roskva.model import ClientId, client_partition
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey
from roskva.table.marks import SKEW_BUCKETS, MarkReader, bucket_row, expired_rows, marks_for

BUCKET_S = 60.0
RETENTION_S = 3_600.0
PARTITIONS = 2
NOON_S = 1_700_000_000.0


class Rows:
    """A table in memory that counts what is read."""

    def __init__(self) -> None:
        self.cells: dict[RowKey, dict[bytes, Cell]] = {}
        self.reads = 0

    def write(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            self.cells.setdefault(mutation.row, {}).update({cell.name: cell for cell in mutation.cells})

    def read(self, rows: Sequence[RowKey]) -> Mapping[RowKey, Row]:
        self.reads += len(rows)
        return {row: self.cells.get(row, {}) for row in rows}


def mark(rows: Rows, now_s: float, unique: bytes, *clients: str) -> None:
    rows.write(marks_for([ClientId(client) for client in clients], now_s, BUCKET_S, PARTITIONS, unique))


def round_of(reader: MarkReader, rows: Rows, now_s: float) -> set[str]:
    plan = reader.plan(range(PARTITIONS), now_s)
    return set(reader.take(plan, rows.read(plan.rows)))


def new_reader() -> MarkReader:
    return MarkReader(BUCKET_S, RETENTION_S)


def test_marks_lie_in_the_partition_of_their_client() -> None:
    clients = [ClientId(f"client-{number}") for number in range(20)]
    mutations = marks_for([*clients, clients[0]], NOON_S, BUCKET_S, PARTITIONS, b"u")
    found = {cell.value: mutation.row for mutation in mutations for cell in mutation.cells}
    assert found == {client.encode(): bucket_row(client_partition(client, PARTITIONS), int(NOON_S // BUCKET_S)) for client in clients}
    assert sum(len(mutation.cells) for mutation in mutations) == 20
    assert len({cell.name for mutation in mutations for cell in mutation.cells}) == 20


def test_many_marks_are_split_into_writes_that_engines_take() -> None:
    mutations = marks_for([ClientId(f"{number}") for number in range(5_000)], NOON_S, BUCKET_S, PARTITIONS, b"u")
    assert max(len(mutation.cells) for mutation in mutations) <= CELLS_PER_WRITE_MAX
    assert sum(len(mutation.cells) for mutation in mutations) == 5_000


def test_a_mark_is_reported_once_to_every_reader() -> None:
    """Trap 40: no reader takes a mark away from another."""
    rows, first, second = Rows(), new_reader(), new_reader()
    mark(rows, NOON_S, b"1", "a", "b")
    assert round_of(first, rows, NOON_S) == {"a", "b"}
    assert round_of(first, rows, NOON_S + 1) == set()
    mark(rows, NOON_S + 1, b"2", "b")
    assert round_of(first, rows, NOON_S + 2) == {"b"}
    assert round_of(second, rows, NOON_S + 2) == {"a", "b"}


def test_the_first_round_reads_all_that_has_not_expired_later_ones_only_what_is_recent() -> None:
    rows, reader = Rows(), new_reader()
    mark(rows, NOON_S - RETENTION_S + BUCKET_S, b"1", "old")
    mark(rows, NOON_S - RETENTION_S - 2 * BUCKET_S, b"2", "expired")
    assert round_of(reader, rows, NOON_S) == {"old"}
    first, rows.reads = rows.reads, 0
    round_of(reader, rows, NOON_S + 1)
    assert rows.reads <= PARTITIONS * (2 * SKEW_BUCKETS + 2) < first


@given(skew_s=st.floats(-SKEW_BUCKETS * BUCKET_S, SKEW_BUCKETS * BUCKET_S), after_s=st.integers(0, 300))
def test_a_writer_with_another_clock_is_found_in_the_next_round(skew_s: float, after_s: int) -> None:
    rows, reader = Rows(), new_reader()
    for second in range(after_s):
        round_of(reader, rows, NOON_S + second)
    mark(rows, NOON_S + after_s + skew_s, b"1", "a")
    assert round_of(reader, rows, NOON_S + after_s) == {"a"}


def test_a_mark_written_later_than_that_is_found_by_a_full_pass() -> None:
    rows, reader = Rows(), new_reader()
    mark(rows, NOON_S - 1_000, b"1", "early")
    found = []
    for second in range(200):
        found.append(round_of(reader, rows, NOON_S + second))
        if second == 100:
            mark(rows, NOON_S - 1_000, b"2", "late")
    assert found[0] == {"early"}
    assert sum("late" in clients for clients in found) == 1
    assert sum("early" in clients for clients in found) <= 2  # its bucket was looked at once more


def test_a_stalled_reader_misses_nothing() -> None:
    rows, reader = Rows(), new_reader()
    round_of(reader, rows, NOON_S)
    mark(rows, NOON_S + 300, b"1", "a")
    assert round_of(reader, rows, NOON_S + 1_500) == {"a"}


def test_a_failed_round_is_covered_by_the_next() -> None:
    rows, reader = Rows(), new_reader()
    mark(rows, NOON_S - 1_000, b"1", "a")
    reader.plan(range(PARTITIONS), NOON_S)  # its read raised: never taken
    assert round_of(reader, rows, NOON_S + 1) == {"a"}


def test_a_partition_that_comes_back_is_read_in_full() -> None:
    rows, reader = Rows(), new_reader()
    mark(rows, NOON_S - 1_000, b"1", *(f"client-{number}" for number in range(10)))
    everyone = round_of(reader, rows, NOON_S)
    reader.forget(1)
    again = round_of(reader, rows, NOON_S + 1)
    assert again == {client for client in everyone if client_partition(ClientId(client), PARTITIONS) == 1}


def test_own_marks_are_passed_over_until_the_partition_was_forgotten() -> None:
    rows, reader = Rows(), MarkReader(BUCKET_S, RETENTION_S, own=b"me")
    round_of(reader, rows, NOON_S)
    mark(rows, NOON_S, b"me-1", *(f"mine-{number}" for number in range(10)))
    mark(rows, NOON_S, b"other", "theirs")
    assert round_of(reader, rows, NOON_S + 1) == {"theirs"}
    reader.forget(0)
    assert round_of(reader, rows, NOON_S + 2) == {
        client for client in ["theirs", *(f"mine-{number}" for number in range(10))] if client_partition(ClientId(client), PARTITIONS) == 0
    }


def test_a_clock_that_goes_back_costs_a_full_pass_and_nothing_more() -> None:
    rows, reader = Rows(), new_reader()
    round_of(reader, rows, NOON_S)
    mark(rows, NOON_S - 2_000, b"1", "a")
    assert round_of(reader, rows, NOON_S - 2_000) == {"a"}


def test_memory_stays_bounded() -> None:
    rows, reader = Rows(), new_reader()
    for minute in range(200):
        now_s = NOON_S + 60 * minute
        mark(rows, now_s, b"%d" % minute, *(f"{number}" for number in range(50)))
        assert len(round_of(reader, rows, now_s)) == 50
    assert sum(len(names) for names in reader._seen.values()) <= 50 * (SKEW_BUCKETS + 1)
    assert len(reader._counts) <= PARTITIONS * (RETENTION_S / BUCKET_S + 1)


def test_expired_rows_are_those_that_no_reader_reads_any_more() -> None:
    reader = new_reader()
    later_s = NOON_S + 7_200
    expired = expired_rows(range(PARTITIONS), NOON_S, later_s, BUCKET_S, RETENTION_S)
    assert not set(expired) & set(reader.plan(range(PARTITIONS), later_s).rows)
    assert bucket_row(0, int(NOON_S // BUCKET_S)) in expired
    assert len(expired) == PARTITIONS * 7_200 / BUCKET_S
    assert expired_rows(range(PARTITIONS), later_s, later_s, BUCKET_S, RETENTION_S) == []
