"""What every datastore must do, as capture/interface.py promises it. No datastore is named here.

A datastore plugs in with two things: a class that is a `Contracted` (how to commit, restart and cut), and a class of tests:

    class TestPostgres(DatastoreContract):
        @pytest.fixture
        def contracted(self, server: Server) -> Contracted:
            return PostgresContracted(server)

Nothing is asked that needs an empty log: a server may serve all tests, one after the other, and each begins where the log ends. One
datastore is open at a time. What a reader finds beside the rows of the contract (other tables, heartbeats) has no row (`row_of` says None)
and is passed over, but its position counts. That these tests find what they are for is shown by test_contract.py.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import pytest

from roskva.capture.interface import Batch, Datastore, Reader
from roskva.capture.positions import WHOLE, Position
from roskva.capture.publisher.status import lag_bytes
from roskva.capture.updates import Change, Operation, Value
from roskva.errors import DatastoreUnavailable, LogCut, WrongHistory

PATIENCE_S = 30.0  # for what must come; nothing that passes waits for it
QUIET_S = 0.05  # for what must not come
_keys = itertools.count(1)


class Row(NamedTuple):
    key: int
    value: Value


class Contracted(Protocol):
    """A datastore and its producer."""

    values: Sequence[Value]  # of every kind that a column of it can hold, and those that are hard: empty, NUL, not UTF-8, long

    def open(self) -> Datastore:
        """On the same data each time, prepared. The test closes it before it opens another one."""
        ...

    def commit(self, rows: Sequence[Row]) -> None:
        """Insert the rows, whose keys are new, in this order and in one transaction, where there are such."""
        ...

    def row_of(self, change: Change) -> Row | None: ...

    def restart(self) -> None:
        """Of the database, as an operator does it; with no datastore open."""
        ...

    def cut(self) -> None:
        """The log loses all that was committed so far, as if it were past retention; with no datastore open."""
        ...

    def never_had(self) -> Position:
        """A position that this data has never had."""
        ...


def fresh(count: int) -> list[Row]:
    return [Row(key, f"value of {key}") for key in itertools.islice(_keys, count)]


@contextlib.contextmanager
def opened(contracted: Contracted) -> Iterator[Datastore]:
    store = contracted.open()
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def reading(store: Datastore, position: Position) -> Iterator[Reader]:
    reader = store.read_after(position)
    try:
        yield reader
    finally:
        reader.close()


class Drained(NamedTuple):
    rows: list[Row]
    changes: list[Change]  # of the rows
    batches: list[Batch]


def drain(contracted: Contracted, reader: Reader, count: int, after: Position, changes_max: int = 100) -> Drained:
    """Read until there are `count` rows, and for a moment more; what holds of every batch is asserted on the way."""
    found = Drained([], [], [])
    last = reached = after
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        enough = len(found.rows) >= count
        batch = reader.read(changes_max, QUIET_S if enough else min(1.0, PATIENCE_S))
        found.batches.append(batch)
        assert len(batch.changes) <= changes_max
        for change in batch.changes:
            assert change.position > last, "positions grow from change to change"
            assert change.position > reached, "what was said to be reached had passed a change that was not returned"
            assert 1 <= change.position.index < WHOLE
            last = change.position
            row = contracted.row_of(change)
            if row is not None:
                found.rows.append(row)
                found.changes.append(change)
        assert batch.reached >= last, "reached is never behind the last change"
        assert batch.reached >= reached, "nor goes it back"
        assert batch.bytes_read >= 0
        reached = batch.reached
        if not batch.changes and enough:
            return found
        assert time.monotonic() < deadline_s, f"{len(found.rows)} of {count} rows came"


def rest_after(contracted: Contracted, store: Datastore, position: Position, count: int, changes_max: int = 100) -> list[Row]:
    with reading(store, position) as reader:
        return drain(contracted, reader, count, position, changes_max).rows


class DatastoreContract:
    @pytest.fixture
    def contracted(self) -> Contracted:
        raise NotImplementedError

    def test_changes_come_in_the_order_of_their_commits(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            commits = [fresh(size) for size in (1, 3, 1, 5)]
            for commit in commits:
                contracted.commit(commit)
            with reading(store, start) as reader:
                found = drain(contracted, reader, 10, start)
            assert found.rows == [row for commit in commits for row in commit]
            assert {change.operation for change in found.changes} == {Operation.INSERT}
            assert all(change.position.history == found.changes[0].position.history for change in found.changes)

    def test_a_reader_gets_what_is_committed_while_it_waits(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(3)
            with reading(store, start) as reader:
                assert [change for change in reader.read(10, QUIET_S).changes if contracted.row_of(change)] == []

                def commit_each() -> None:
                    for row in rows:
                        contracted.commit([row])

                late = threading.Timer(QUIET_S, commit_each)
                late.start()
                try:
                    assert drain(contracted, reader, 3, start).rows == rows
                finally:
                    late.join()

    def test_with_nothing_new_a_read_ends_with_an_empty_batch(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            contracted.commit(fresh(2))
            end = store.retained().end
            with reading(store, end) as reader:
                for timeout_s in (0.0, 0.01, QUIET_S):
                    batch = reader.read(10, timeout_s)
                    assert [change for change in batch.changes if contracted.row_of(change)] == []
                    assert batch.reached >= end

    @pytest.mark.parametrize("changes_max", [1, 2, 7])
    def test_no_batch_has_more_changes_than_asked_for(self, contracted: Contracted, changes_max: int) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(17)
            contracted.commit(rows[:11])
            contracted.commit(rows[11:])
            assert rest_after(contracted, store, start, 17, changes_max) == rows

    def test_a_large_commit_comes_in_parts(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(3_000)
            contracted.commit(rows)
            with reading(store, start) as reader:
                found = drain(contracted, reader, 3_000, start, changes_max=100)
            assert found.rows == rows
            assert len(found.batches) > 30

    def test_after_every_single_position_comes_exactly_the_rest(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(6)
            for commit in (rows[:1], rows[1:4], rows[4:]):
                contracted.commit(commit)
            with reading(store, start) as reader:
                positions = [change.position for change in drain(contracted, reader, 6, start).changes]
            for number, position in enumerate(positions, 1):
                assert rest_after(contracted, store, position, 6 - number) == rows[number:]

    def test_index_0_is_before_the_commit_and_no_index_behind_it(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(6)
            for commit in (rows[:2], rows[2:5], rows[5:]):
                contracted.commit(commit)
            with reading(store, start) as reader:
                positions = [change.position for change in drain(contracted, reader, 6, start).changes]
            for sequence in {position.sequence for position in positions[2:5]}:
                before = [row for row, position in zip(rows, positions, strict=True) if position.sequence >= sequence]
                behind = [row for row, position in zip(rows, positions, strict=True) if position.sequence > sequence]
                history = positions[0].history
                assert rest_after(contracted, store, Position(history, sequence, 0), len(before)) == before
                assert rest_after(contracted, store, Position(history, sequence), len(behind)) == behind

    def test_after_every_reached_position_comes_exactly_the_rest(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(5)
            contracted.commit(rows[:4])
            contracted.commit(rows[4:])
            with reading(store, start) as reader:
                batches = drain(contracted, reader, 5, start, changes_max=2).batches
            seen = 0
            for batch in batches[:5]:
                seen += sum(contracted.row_of(change) is not None for change in batch.changes)
                assert rest_after(contracted, store, batch.reached, 5 - seen) == rows[seen:]

    def test_what_follows_the_end_is_what_was_committed_since(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            contracted.commit(fresh(3))
            end = store.retained().end
            assert end > start
            with reading(store, start) as reader:
                assert drain(contracted, reader, 3, start).batches[-1].reached >= end
            later = fresh(2)
            contracted.commit(later)
            assert rest_after(contracted, store, end, 2) == later
            assert store.retained().oldest <= end

    def test_positions_mean_the_same_after_a_restart(self, contracted: Contracted) -> None:
        rows = fresh(7)
        with opened(contracted) as store:
            start = store.retained().end
            identity = store.identity
            contracted.commit(rows[:3])
            contracted.commit(rows[3:5])
            with reading(store, start) as reader:
                positions = [change.position for change in drain(contracted, reader, 5, start).changes]
        contracted.restart()
        with opened(contracted) as store:
            assert store.identity == identity
            contracted.commit(rows[5:])
            for number in (2, 3, 5):
                assert rest_after(contracted, store, positions[number - 1], 7 - number) == rows[number:]
            with reading(store, start) as reader:
                found = drain(contracted, reader, 7, start)
            assert found.rows == rows
            assert [change.position for change in found.changes][:5] == positions

    def test_readers_at_different_positions_do_not_disturb_each_other(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(8)
            contracted.commit(rows[:4])
            with reading(store, start) as reader:
                middle = drain(contracted, reader, 4, start).changes[1].position
            with reading(store, start) as one, reading(store, middle) as other:
                assert drain(contracted, one, 4, start, changes_max=3).rows == rows[:4]
                contracted.commit(rows[4:])
                assert drain(contracted, other, 6, middle).rows == rows[2:]
                other.close()
                assert drain(contracted, one, 4, start).rows == rows[4:]

    def test_values_of_every_kind_survive(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = [Row(row.key, value) for row, value in zip(fresh(len(contracted.values)), contracted.values, strict=True)]
            assert rows, "a datastore without values tells nothing"
            contracted.commit(rows)
            with reading(store, start) as reader:
                found = drain(contracted, reader, len(rows), start).rows
            assert found == rows
            assert [type(row.value) for row in found] == [type(row.value) for row in rows]

    def test_commit_times_are_the_clocks(self, contracted: Contracted) -> None:
        """Roughly: clocks of file systems tick slowly, and a datastore that keeps no time says what it has."""
        with opened(contracted) as store:
            start, began_us = store.retained().end, time.time_ns() // 1000
            contracted.commit(fresh(2))
            with reading(store, start) as reader:
                found = drain(contracted, reader, 2, start)
            for change in found.changes:
                assert began_us - 1_000_000 <= change.committed_us <= time.time_ns() // 1000 + 1_000_000

    def test_all_that_was_committed_since_a_time_comes_after_its_position(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            first, second = fresh(2), fresh(3)
            contracted.commit(first)
            time.sleep(0.05)  # the clock of the database or its files may tick slowly
            since_s = time.time()
            contracted.commit(second)
            position = store.at_time(since_s)
            with reading(store, position) as reader:
                found = drain(contracted, reader, 3, position).rows
                while second[-1] not in found:
                    found += drain(contracted, reader, 1, position).rows
            assert found[-3:] == second
            assert store.at_time(time.time() + 3600) >= position

    def test_what_was_confirmed_hinders_nobody_who_reads_on_from_there(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start = store.retained().end
            rows = fresh(5)
            contracted.commit(rows[:3])
            with reading(store, start) as reader:
                position = drain(contracted, reader, 3, start).changes[1].position
            store.confirm(position)
            store.confirm(position)
            contracted.commit(rows[3:])
            assert rest_after(contracted, store, position, 3) == rows[2:]
            retained = store.retained()
            assert retained.bytes_behind is None or retained.bytes_behind > 0
            confirmed = retained.oldest if retained.confirmed is None else retained.confirmed
            assert lag_bytes(confirmed, retained) == retained.bytes_behind

    def test_what_was_cut_is_a_loss_with_a_place_to_go_on_from(self, contracted: Contracted) -> None:
        lost, kept = fresh(4), fresh(2)
        with opened(contracted) as store:
            start = store.retained().end
            contracted.commit(lost)
            with reading(store, start) as reader:
                position = drain(contracted, reader, 4, start).changes[1].position
        contracted.cut()
        with opened(contracted) as store:
            contracted.commit(kept[:1])
            for gone in (start, position):
                with pytest.raises(LogCut) as raised, reading(store, gone) as reader:
                    reader.read(10, PATIENCE_S)
                assert isinstance(raised.value.oldest, Position)
                assert raised.value.oldest > gone
                oldest = raised.value.oldest
            assert store.retained().oldest >= oldest
            with reading(store, oldest) as reader:
                contracted.commit(kept[1:])
                found = drain(contracted, reader, 1, oldest).rows
            assert found in (kept, kept[1:]), "nothing is left out of what comes after the oldest position"

    def test_a_position_of_another_history_is_refused(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            contracted.commit(fresh(1))
            with pytest.raises(WrongHistory):
                store.read_after(contracted.never_had())

    def test_closing_ends_a_reader_that_waits(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            end = store.retained().end
            reader = store.read_after(end)
            ended: list[object] = []

            def wait() -> None:
                try:
                    while True:  # a batch without any changes may come in between
                        reader.read(10, 10 * PATIENCE_S)
                except DatastoreUnavailable as error:
                    ended.append(error)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            time.sleep(QUIET_S)
            assert thread.is_alive()
            store.close()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
            assert len(ended) == 1
            with pytest.raises(DatastoreUnavailable):
                reader.read(10, 0.0)
            with pytest.raises(DatastoreUnavailable):
                store.read_after(end)
            store.close()

    def test_preparing_again_changes_nothing_and_all_is_found_well(self, contracted: Contracted) -> None:
        with opened(contracted) as store:
            start, identity = store.retained().end, store.identity
            rows = fresh(2)
            contracted.commit(rows)
            store.prepare()
            store.prepare()
            assert store.identity == identity
            assert rest_after(contracted, store, start, 2) == rows
            findings = store.check()
            assert findings
            assert [finding for finding in findings if not finding.ok] == []
