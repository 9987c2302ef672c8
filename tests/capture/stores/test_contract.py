"""The contract of datastores, kept by one that has its log in memory, and broken in ways that its tests must find."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from roskva.capture.interface import Batch, Datastore, Finding, Reader, Retained
from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.updates import Change, Operation, Value
from roskva.errors import DatastoreUnavailable, LogCut, WrongHistory
from tests.capture.stores import contract
from tests.capture.stores.contract import Contracted, DatastoreContract, Row


class Log:
    """What is left when every datastore is closed."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.commits = 0
        self.cut_at = 0
        self.grown = threading.Condition()

    @property
    def end(self) -> Position:
        return Position(0, self.commits)


class MemoryReader:
    def __init__(self, store: MemoryDatastore, position: Position) -> None:
        self.store = store
        self.at = position

    def next_changes(self, changes_max: int) -> list[Change]:
        return [change for change in self.store.log.changes if change.position > self.at][:changes_max]

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        log = self.store.log
        with log.grown:
            log.grown.wait_for(lambda: self.store.closed or self.next_changes(1), timeout_s)
            self.store.still_open()
            changes = self.next_changes(changes_max)
            self.at = self.reached(changes)
            return Batch(changes, self.at, len(changes))

    def reached(self, changes: Sequence[Change]) -> Position:
        return changes[-1].position if changes else max(self.at, self.store.log.end)

    def close(self) -> None: ...


class MemoryDatastore:
    identity: str = "memory"
    Reading = MemoryReader

    def __init__(self, log: Log) -> None:
        self.log = log
        self.closed = False

    def retained(self) -> Retained:
        return Retained(Position(0, self.log.cut_at), self.log.end)

    def read_after(self, position: Position) -> Reader:
        self.still_open()
        if position.sequence > self.log.commits:
            raise WrongHistory(position, "it is not there yet")
        if position < Position(0, self.log.cut_at):
            raise LogCut(position, Position(0, self.log.cut_at))
        return self.Reading(self, position)

    def at_time(self, time_s: float) -> Position:
        before = [change.position.sequence for change in self.log.changes if change.committed_us < time_s * 1e6]
        return Position(0, max(before, default=self.log.cut_at))

    def confirm(self, position: Position) -> None: ...

    def prepare(self) -> None: ...

    def check(self) -> list[Finding]:
        return [Finding("memory", True)]

    def close(self) -> None:
        with self.log.grown:
            self.closed = True
            self.log.grown.notify_all()

    def still_open(self) -> None:
        if self.closed:
            raise DatastoreUnavailable("closed")


class MemoryContracted:
    values: Sequence[Value] = [None, True, 0, -(2**63), 0.5, "", "Þjálfi \x00", b"", b"\x00\xff" * 1000]

    def __init__(self, make: Callable[[Log], MemoryDatastore] = MemoryDatastore) -> None:
        self.log = Log()
        self.make = make

    def open(self) -> Datastore:
        return self.make(self.log)

    def commit(self, rows: Sequence[Row]) -> None:
        with self.log.grown:
            sequence = self.log.commits + 1
            self.log.changes += [
                Change(Position(0, sequence, index), time.time_ns() // 1000, Operation.INSERT, "m", "t", {"k": row.key}, {"v": row.value})
                for index, row in enumerate(rows, 1)
            ]
            self.log.commits = sequence
            self.log.grown.notify_all()

    def row_of(self, change: Change) -> Row | None:
        key = change.key["k"]
        assert isinstance(key, int)
        return Row(key, change.columns["v"])

    def restart(self) -> None: ...

    def cut(self) -> None:
        self.log.cut_at = self.log.commits
        self.log.changes.clear()

    def never_had(self) -> Position:
        return Position(0, self.log.commits + 1000)


class TestMemory(DatastoreContract):
    @pytest.fixture
    def contracted(self) -> Contracted:
        return MemoryContracted()


class SkipsTheRestOfACommit(MemoryDatastore):
    def read_after(self, position: Position) -> Reader:
        return super().read_after(Position(0, position.sequence))


class BeginsACommitAgain(MemoryDatastore):
    def read_after(self, position: Position) -> Reader:
        return super().read_after(position if position.index == WHOLE else Position(0, position.sequence, 0))


class ReachesWhatItDidNotReturn(MemoryDatastore):
    class Reading(MemoryReader):
        def read(self, changes_max: int, timeout_s: float) -> Batch:
            return super().read(changes_max, timeout_s)._replace(reached=self.store.log.end)


class ReachesLessThanItReturned(MemoryDatastore):
    class Reading(MemoryReader):
        def read(self, changes_max: int, timeout_s: float) -> Batch:
            began = self.at
            return super().read(changes_max, timeout_s)._replace(reached=began)


class ReturnsAllThereIs(MemoryDatastore):
    class Reading(MemoryReader):
        def next_changes(self, changes_max: int) -> list[Change]:
            return super().next_changes(1_000_000)


class TurnsTheOrder(MemoryDatastore):
    class Reading(MemoryReader):
        def read(self, changes_max: int, timeout_s: float) -> Batch:
            batch = super().read(changes_max, timeout_s)
            return batch._replace(changes=batch.changes[::-1])


class SaysTheLastOneTwice(MemoryDatastore):
    class Reading(MemoryReader):
        def read(self, changes_max: int, timeout_s: float) -> Batch:
            batch = super().read(changes_max, timeout_s)
            return batch._replace(changes=[*batch.changes, *batch.changes[-1:]])


class PassesOverWhatWasCut(MemoryDatastore):
    def read_after(self, position: Position) -> Reader:
        return super().read_after(max(position, self.retained().oldest))


class KnowsNoPlaceToGoOnFrom(MemoryDatastore):
    def read_after(self, position: Position) -> Reader:
        try:
            return super().read_after(position)
        except LogCut:
            raise LogCut(position, BEGINNING) from None


class TakesAnyHistory(MemoryDatastore):
    def read_after(self, position: Position) -> Reader:
        return super().read_after(min(position, self.log.end))


class LeavesReadersWaiting(MemoryDatastore):
    def close(self) -> None:
        self.closed = True  # and wakes nobody


class MakesTextOfEverything(MemoryDatastore):
    class Reading(MemoryReader):
        def next_changes(self, changes_max: int) -> list[Change]:
            found = super().next_changes(changes_max)
            return [change._replace(columns={"v": str(change.columns["v"])}) for change in found]


class HasOneCursorForAll(MemoryDatastore):
    shared: MemoryReader | None = None

    def read_after(self, position: Position) -> Reader:
        reader = super().read_after(position)
        assert isinstance(reader, MemoryReader)
        if self.shared is None:
            self.shared = reader
        self.shared.at = position
        return self.shared


class LooksOnlyBack(MemoryDatastore):
    def at_time(self, time_s: float) -> Position:
        return self.log.end


class IsAnotherEachTime(MemoryDatastore):
    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.identity = f"memory {id(self)}"


@pytest.mark.parametrize(
    ("fault", "finder"),
    [
        (SkipsTheRestOfACommit, DatastoreContract.test_after_every_single_position_comes_exactly_the_rest),
        (BeginsACommitAgain, DatastoreContract.test_after_every_single_position_comes_exactly_the_rest),
        (ReachesWhatItDidNotReturn, DatastoreContract.test_after_every_reached_position_comes_exactly_the_rest),
        (ReachesLessThanItReturned, DatastoreContract.test_changes_come_in_the_order_of_their_commits),
        (ReturnsAllThereIs, DatastoreContract.test_a_large_commit_comes_in_parts),
        (TurnsTheOrder, DatastoreContract.test_changes_come_in_the_order_of_their_commits),
        (SaysTheLastOneTwice, DatastoreContract.test_a_reader_gets_what_is_committed_while_it_waits),
        (PassesOverWhatWasCut, DatastoreContract.test_what_was_cut_is_a_loss_with_a_place_to_go_on_from),
        (KnowsNoPlaceToGoOnFrom, DatastoreContract.test_what_was_cut_is_a_loss_with_a_place_to_go_on_from),
        (TakesAnyHistory, DatastoreContract.test_a_position_of_another_history_is_refused),
        (LeavesReadersWaiting, DatastoreContract.test_closing_ends_a_reader_that_waits),
        (MakesTextOfEverything, DatastoreContract.test_values_of_every_kind_survive),
        (HasOneCursorForAll, DatastoreContract.test_readers_at_different_positions_do_not_disturb_each_other),
        (LooksOnlyBack, DatastoreContract.test_all_that_was_committed_since_a_time_comes_after_its_position),
        (IsAnotherEachTime, DatastoreContract.test_positions_mean_the_same_after_a_restart),
    ],
)
def test_the_contract_finds(
    fault: type[MemoryDatastore], finder: Callable[[DatastoreContract, Contracted], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "PATIENCE_S", 0.3)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        finder(DatastoreContract(), MemoryContracted(fault))
