"""What every engine of the table must do. A later engine subclasses TableContract and gives the two fixtures; nothing else.

No engine is named here, and nothing is asked that the weakest of them could not give.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roskva.table.interface import CELLS_PER_WRITE_MAX, TABLES, TIMESTAMP_MAX, Cell, Mutation, RowKey, Table, wins

_fresh = itertools.count()

CELLS = st.builds(
    Cell,
    st.just(b"cell"),
    st.sampled_from([0, 1, 2, TIMESTAMP_MAX]),
    st.none() | st.sampled_from([b"", b"\x00", b"a", b"aa", b"b", b"\xff"]),
)


def fresh_row(table: str = "registrar", partition: int = 0) -> RowKey:
    """A row that no other example has touched: engines may be slow to make anew."""
    return RowKey(table, partition, b"row-%06d" % next(_fresh))


def names_of(engine: Table, row: RowKey, prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> list[bytes]:
    return list(engine.read([row], prefix, limit, after)[row])


class TableContract:
    @pytest.fixture
    def engine(self) -> Table:
        """An empty table of at least two partitions."""
        raise NotImplementedError

    @pytest.fixture
    def second(self) -> Callable[[], Table]:
        """Opens the same table once more, as another process would."""
        raise NotImplementedError

    def test_what_was_written_is_read(self, engine: Table) -> None:
        row, other = fresh_row(), fresh_row("matcher", 1)
        engine.write([Mutation(row, [Cell(b"b", 2, b"two"), Cell(b"a", 1, b"")]), Mutation(other, [Cell(b"c", 3, b"three")])])
        found = engine.read([row, other])
        assert found == {
            row: {b"a": Cell(b"a", 1, b""), b"b": Cell(b"b", 2, b"two")},
            other: {b"c": Cell(b"c", 3, b"three")},
        }
        assert list(found[row]) == [b"a", b"b"]
        assert isinstance(found[row][b"a"], Cell)

    def test_an_unknown_row_is_empty(self, engine: Table) -> None:
        row = fresh_row()
        assert engine.read([row]) == {row: {}}
        assert engine.read([]) == {}

    def test_rows_of_one_key_in_other_tables_and_partitions_are_others(self, engine: Table) -> None:
        rows = [RowKey(table, partition, b"same") for table in TABLES for partition in (0, 1)]
        engine.write([Mutation(row, [Cell(b"x", number, b"%d" % number)]) for number, row in enumerate(rows)])
        found = engine.read(rows)
        assert [found[row][b"x"].timestamp for row in rows] == list(range(len(rows)))

    @given(cells=st.lists(CELLS, min_size=1, max_size=6), cuts=st.sets(st.integers(1, 5)))
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
    def test_the_winner_does_not_depend_on_the_order_of_arrival(self, engine: Table, cells: list[Cell], cuts: set[int]) -> None:
        """Trap 29: two values at one timestamp must have the same winner in every engine."""
        winner = cells[0]
        for cell in cells[1:]:
            winner = cell if wins(cell, winner) else winner
        row = fresh_row()
        for start, end in itertools.pairwise([0, *sorted(cut for cut in cuts if cut < len(cells)), len(cells)]):
            engine.write([Mutation(row, [cell]) for cell in cells[start:end]])
        expected = {} if winner.value is None else {b"cell": winner}
        assert engine.read([row]) == {row: expected}

    def test_a_deleted_cell_stays_dead_against_what_is_older(self, engine: Table) -> None:
        row = fresh_row()
        engine.write([Mutation(row, [Cell(b"x", 5, None)])])
        engine.write([Mutation(row, [Cell(b"x", 5, b"late"), Cell(b"y", 1, b"here")])])
        assert names_of(engine, row) == [b"y"]
        engine.write([Mutation(row, [Cell(b"x", 6, b"new")])])
        assert names_of(engine, row) == [b"x", b"y"]

    def test_prefix_and_limit(self, engine: Table) -> None:
        row = fresh_row()
        names = [b"a", b"log:", b"log:1", b"log:\xff", b"log:\xff\xff", b"log;", b"z", b"\xff", b"\xff\xff1"]
        engine.write([Mutation(row, [Cell(name, 1, b"v") for name in names])])
        engine.write([Mutation(row, [Cell(b"log:0", 1, None)])])
        assert names_of(engine, row, b"log:") == [b"log:", b"log:1", b"log:\xff", b"log:\xff\xff"]
        assert names_of(engine, row, b"log:\xff") == [b"log:\xff", b"log:\xff\xff"]
        assert names_of(engine, row, b"\xff") == [b"\xff", b"\xff\xff1"]
        assert names_of(engine, row, b"log:", 2) == [b"log:", b"log:1"]
        assert names_of(engine, row, b"", 3) == [b"a", b"log:", b"log:1"]
        assert names_of(engine, row, b"none") == []

    def test_a_large_row_is_read_page_by_page(self, engine: Table) -> None:
        row, other = fresh_row(), fresh_row()
        names = [b"reg:%03d" % number for number in range(25)]
        engine.write([Mutation(key, [Cell(name, 1, b"v") for name in [b"a", *names, b"version"]]) for key in (row, other)])
        engine.write([Mutation(row, [Cell(b"reg:010", 2, None)])])
        live = [name for name in names if name != b"reg:010"]
        pages, after = [], b""
        while page := list(engine.read([row], b"reg:", 10, after)[row]):
            pages.append(page)
            after = page[-1]
        assert pages == [live[:10], live[10:20], live[20:]]
        assert names_of(engine, row, after=b"reg:0225") == [b"reg:023", b"reg:024", b"version"]
        assert names_of(engine, row, b"reg:", after=b"a") == live, "what is before the prefix does not count"
        assert [list(page) for page in engine.read([row, other], b"reg:", 2, b"reg:009").values()] == [
            [b"reg:011", b"reg:012"],
            [b"reg:010", b"reg:011"],
        ]

    def test_a_limit_holds_for_small_and_large_rows_in_one_call(self, engine: Table) -> None:
        sizes = [1, 5, 3_000, 7, 0, 2_000, 40, 2]
        rows = [fresh_row() for _ in sizes]
        for row, size in zip(rows, sizes, strict=True):
            for start in range(0, size, CELLS_PER_WRITE_MAX):
                cells = [Cell(b"%05d" % number, 1, b"") for number in range(start, min(size, start + CELLS_PER_WRITE_MAX))]
                engine.write([Mutation(row, cells)])
        for limit in (1, 6, 100, 2_500):
            found = engine.read(rows, limit=limit)
            assert [list(found[row]) for row in rows] == [[b"%05d" % number for number in range(min(size, limit))] for size in sizes]

    @pytest.mark.parametrize("count", [1, 3, 4, 31, 33, 300, 1_500])
    def test_many_rows_in_one_call(self, engine: Table, count: int) -> None:
        rows = [fresh_row() for _ in range(count)]
        engine.write([Mutation(row, [Cell(b"n", number, b"%d" % number), Cell(b"o", 1, b"")]) for number, row in enumerate(rows)])
        absent = fresh_row()
        found = engine.read([*reversed(rows), absent, rows[0]])
        assert [found[row][b"n"].value for row in rows] == [b"%d" % number for number in range(count)]
        assert all(len(found[row]) == 2 for row in rows)
        assert found[absent] == {}

    def test_limits_are_named_and_nothing_lands(self, engine: Table) -> None:
        row = fresh_row()
        good = Mutation(row, [Cell(b"good", 1, b"v")])
        wrong: Sequence[Mutation] = [
            Mutation(row, [Cell(b"%d" % number, 1, b"") for number in range(CELLS_PER_WRITE_MAX + 1)]),
            Mutation(row, [Cell(b"x", -1, b"")]),
            Mutation(row, [Cell(b"x", TIMESTAMP_MAX + 1, b"")]),
            Mutation(RowKey("no such table", 0, b"k"), [Cell(b"x", 1, b"")]),
            Mutation(RowKey("registrar", 99, b"k"), [Cell(b"x", 1, b"")]),
        ]
        for mutation in wrong:
            with pytest.raises(ValueError, match=r"allowed|timestamp|no partition"):
                engine.write([good, mutation])
        assert engine.read([row]) == {row: {}}
        engine.write([Mutation(row, [Cell(b"%04d" % number, 1, b"") for number in range(CELLS_PER_WRITE_MAX)])])
        assert len(engine.read([row])[row]) == CELLS_PER_WRITE_MAX

    def test_scan_walks_rows_in_order_of_their_keys(self, engine: Table) -> None:
        keys = [b"s%03d" % number for number in range(25)]
        engine.write([Mutation(RowKey("scratch", 1, key), [Cell(b"a", 1, key), Cell(b"b", 2, b"")]) for key in keys])
        engine.write([Mutation(RowKey("scratch", 1, b"s010"), [Cell(b"a", 9, None), Cell(b"b", 9, None)])])
        live = [key for key in keys if key != b"s010"]
        assert [key for key, _ in engine.scan("scratch", 1)] == live
        assert [key for key, _ in engine.scan("scratch", 1, after=b"s004", limit=7)] == live[5:12]
        assert dict(engine.scan("scratch", 1, after=b"s023")) == {b"s024": {b"a": Cell(b"a", 1, b"s024"), b"b": Cell(b"b", 2, b"")}}
        assert list(engine.scan("scratch", 0)) == []
        assert list(engine.scan("scratch", 1, limit=0)) == []

    def test_scan_gives_large_rows_whole(self, engine: Table) -> None:
        sizes = {b"1": 3, b"2": 5_000, b"3": 4_096, b"4": 1, b"5": 2_000}
        for key, size in sizes.items():
            for start in range(0, size, CELLS_PER_WRITE_MAX):
                cells = [Cell(b"%05d" % number, 1, b"") for number in range(start, min(size, start + CELLS_PER_WRITE_MAX))]
                engine.write([Mutation(RowKey("scratch", 0, key), cells)])
        assert [(key, len(row)) for key, row in engine.scan("scratch", 0)] == list(sizes.items())

    def test_a_mutation_is_never_seen_in_half(self, engine: Table, second: Callable[[], Table]) -> None:
        row = fresh_row()
        cells = 50
        stop = threading.Event()

        def write() -> None:
            for timestamp in range(1, 10_000):
                if stop.is_set():
                    return
                engine.write([Mutation(row, [Cell(b"%d" % number, timestamp, b"%d" % timestamp) for number in range(cells)])])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            other = second()
            seen: set[int] = set()
            deadline_s = time.monotonic() + 20
            while len(seen) < 10 and time.monotonic() < deadline_s:
                stamps = {cell.timestamp for cell in other.read([row])[row].values()}
                assert len(stamps) <= 1
                seen |= stamps
                scanned = {cell.timestamp for key, found in other.scan(row.table, 0) if key == row.key for cell in found.values()}
                assert len(scanned) <= 1
        finally:
            stop.set()
            writer.join()
        assert len(seen) >= 10

    def test_a_read_after_a_write_sees_it_from_elsewhere(self, engine: Table, second: Callable[[], Table]) -> None:
        row = fresh_row()
        other = second()
        for timestamp in range(1, 20):
            engine.write([Mutation(row, [Cell(b"x", timestamp, b"")])])
            assert other.read([row])[row][b"x"].timestamp == timestamp
            other.write([Mutation(row, [Cell(b"y", timestamp, b"")])])
            assert engine.read([row])[row][b"y"].timestamp == timestamp

    def test_a_deleted_row_is_forgotten_with_its_deletes(self, engine: Table) -> None:
        row, kept = fresh_row("marks"), fresh_row("marks")
        engine.write([Mutation(row, [Cell(b"x", 9, None), Cell(b"y", 9, b"")]), Mutation(kept, [Cell(b"z", 1, b"")])])
        engine.delete_rows([row, fresh_row("marks")])
        assert engine.read([row, kept]) == {row: {}, kept: {b"z": Cell(b"z", 1, b"")}}
        engine.write([Mutation(row, [Cell(b"x", 1, b"seen again")])])
        assert names_of(engine, row) == [b"x"]

    def test_what_is_forgotten_is_exactly_what_was_named(self, engine: Table) -> None:
        row = fresh_row()
        cells = [
            Cell(b"a", 5, b"as given"),
            Cell(b"b", 5, b"as given"),
            Cell(b"c", 5, b"as given"),
            Cell(b"d", 5, None),
            Cell(b"e", 5, b"kept"),
        ]
        engine.write([Mutation(row, cells)])
        engine.write([Mutation(row, [Cell(b"b", 6, b"later"), Cell(b"c", 5, b"larger")])])
        engine.forget([Mutation(row, cells[:4]), Mutation(fresh_row(), cells)])
        assert engine.read([row])[row] == {b"b": Cell(b"b", 6, b"later"), b"c": Cell(b"c", 5, b"larger"), b"e": cells[4]}

    def test_what_is_forgotten_wins_over_nothing(self, engine: Table) -> None:
        row = fresh_row()
        gone = [Cell(b"value", 9, b"x"), Cell(b"delete", 9, None)]
        engine.write([Mutation(row, gone)])
        engine.forget([Mutation(row, gone)])
        engine.write([Mutation(row, [Cell(b"value", 1, b"older"), Cell(b"delete", 1, b"older")])])
        assert names_of(engine, row) == [b"delete", b"value"]
        engine.forget([])

    def test_many_cells_are_forgotten(self, engine: Table) -> None:
        row = fresh_row()
        cells = [Cell(b"%05d" % number, 1, b"") for number in range(4_500)]
        writes = [Mutation(row, cells[start : start + CELLS_PER_WRITE_MAX]) for start in range(0, len(cells), CELLS_PER_WRITE_MAX)]
        engine.write(writes)
        engine.forget([Mutation(row, cells[:-1])])
        assert names_of(engine, row) == [cells[-1].name]

    def test_several_threads_write_at_once(self, engine: Table) -> None:
        row = fresh_row()
        errors: list[Exception] = []

        def write(thread: int) -> None:
            try:
                for number in range(20):
                    engine.write([Mutation(row, [Cell(b"%d-%d" % (thread, number), 1, b"")])])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(engine.read([row])[row]) == 80

    def test_a_new_table_is_complete_and_its_incarnation_stays(self, engine: Table, second: Callable[[], Table]) -> None:
        other = second()
        for table in TABLES:
            assert engine.complete(table, 0)
            first = engine.incarnation(table, 0)
            engine.write([Mutation(fresh_row(table), [Cell(b"x", 1, b"")])])
            assert engine.incarnation(table, 0) == first == other.incarnation(table, 0)

    def test_what_was_written_outlives_the_engine(self, engine: Table, second: Callable[[], Table]) -> None:
        row = fresh_row()
        engine.write([Mutation(row, [Cell(b"x", 1, b"kept")])])
        engine.close()
        assert names_of(second(), row) == [b"x"]
