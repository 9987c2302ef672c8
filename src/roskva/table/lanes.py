"""Lanes: the asyncio front end of a blocking table, with group commit off the event loop.

Theory of operation. A lane is one thread per table and partition. Calls gather on the event loop; at the end of the loop's
turn, if the lane is idle, everything that gathered goes to its thread as one batch: one transaction, one fsync. What comes
while it works goes together in the next. So the disk's speed sets the size of the batches, a lone call waits for nobody, and
the loop is interrupted once per batch. Where a batch costs more than it carries, lanes rest between the beginnings of two; lanes
that share their rounds begin together, so that a call which has parts in several waits for one rest, not for the longest of them.
Reads have threads of their own and never wait behind an fsync. Knows only the contract of `Table`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from roskva.errors import Overloaded, Unavailable
from roskva.table.interface import Mutation, Row, RowKey, Table, check_mutation

QUEUED_CELLS_MAX: Final = 50_000  # of one lane, in the queue and under way; a call that comes at the limit is refused
BATCH_CELLS_MAX: Final = 2_000  # of one transaction, a larger single call aside
QUEUED_READS_MAX: Final = 50_000
BATCH_ROWS_MAX: Final = 1_024
READERS: Final = 2
MANY_CALLS: Final = 16  # in one batch

# A thread of a lane hands the interpreter's lock over some ten times per batch, and beside a busy event loop waits this long
# to get it back each time. With Python's own 5 ms a first read was measured at 0.8 s; with 0.3 ms, at 8 ms. With this, the slowest of a
# hundred appends beside a loop that is busy for 60 % of the time took 4.4 to 5.6 ms instead of 7.5 to 12.
SWITCH_INTERVAL_S: Final = 0.0001

Item = TypeVar("Item")
Result = TypeVar("Result")


class Answer(asyncio.Future[Result]):
    """Of a lane. Who sets `at_once` is called within the turn that brings the answer; all others one turn later, as by any future."""

    at_once: Callable[[], None] | None = None


class Rounds:
    """When lanes that rest begin: all that have something to do together, at the end of a turn of the loop, if it is about `rest_s` since
    they did so last. Less after calls that came alone, which wait for nobody; more after many. Belongs to the running event loop."""

    def __init__(self, rest_s: float) -> None:
        self.rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._due: list[Lane[Any, Any]] = []
        self._rests_until_s = 0.0
        self._waited = False  # whether those that are due have to wait for a rest

    def join(self, lane: Lane[Any, Any]) -> None:
        """Once until it is begun."""
        self._due.append(lane)
        if len(self._due) == 1:
            wait_s = self._rests_until_s - self._loop.time() if self.rest_s else 0.0
            self._waited = wait_s > 0
            if self._waited:
                self._loop.call_later(wait_s, self._begin)
            else:
                self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        due, self._due = self._due, []
        calls = max(lane.begin() for lane in due)
        if calls and self.rest_s:
            self._rests_until_s = self._loop.time() + self.rest_s * _rest_after(calls, self._waited)


class Lane(Generic[Item, Result]):
    """Does in one go what was asked for while it was busy. Belongs to the event loop it was made on.

    `work` runs in a thread: it takes the items of a batch and answers, for each in order, a result or the exception that its
    caller shall get. It must not raise.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[Item]], list[Result | Exception]],
        batch_max: int,
        queue_max: int,
        threads: int = 1,
        rounds: Rounds | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Without `rounds` it never rests. `after` is called on the loop when the callers of a batch have their answers."""
        self._name = name
        self._after = after
        self._work = work
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Item, int, Answer[Result]]] = []
        self._weight = 0
        self._idle = threads
        self._rounds = Rounds(0.0) if rounds is None else rounds
        self._is_due = False
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None
        self._batches: SimpleQueue[list[tuple[Item, int, Answer[Result]]] | None] = SimpleQueue()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        self._threads = [threading.Thread(target=self._run, name=f"lane {name}", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def full(self) -> bool:
        return self._weight >= self._queue_max

    def submit(self, item: Item, weight: int) -> Answer[Result]:
        if self._closed:
            raise Unavailable("The service is stopping.")
        if self._weight >= self._queue_max:
            raise Overloaded(f"{self._name} has {self._weight:,} operations waiting, which is the limit.")
        future: Answer[Result] = Answer(loop=self._loop)
        self._waiting.append((item, weight, future))
        self._weight += weight
        if self._idle and not self._is_due:
            self._is_due = True
            self._rounds.join(self)
        return future

    async def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        self._closed = True
        if self._weight or self._waiting:
            self._emptied = self._loop.create_future()
            await self._emptied
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            await self._loop.run_in_executor(None, thread.join)

    def begin(self) -> int:
        """Its threads get what waits; answers how many calls are in the largest batch."""
        self._is_due = False
        most = 0
        while self._idle and self._waiting:
            total = count = 0
            for _, weight, _ in self._waiting:
                if count and total + weight > self._batch_max:
                    break
                total += weight
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._idle -= 1
            most = max(most, count)
            self._batches.put(batch)
        return most

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                outcomes = self._work([item for item, _, _ in batch])
            except Exception as error:  # a defect of `work`; its callers must hear of it all the same
                outcomes = [error] * len(batch)
            try:
                self._loop.call_soon_threadsafe(self._done, batch, outcomes)
            except RuntimeError:  # the loop was closed without us
                return

    def _done(self, batch: list[tuple[Item, int, Answer[Result]]], outcomes: list[Result | Exception]) -> None:
        self._idle += 1
        for (_, weight, future), outcome in zip(batch, outcomes, strict=True):
            self._weight -= weight
            if future.done():
                continue  # its caller was cancelled
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
            if future.at_once is not None:
                future.at_once()
        if not self._rounds.rest_s:
            self.begin()
        elif self._waiting and not self._is_due:
            self._is_due = True
            self._rounds.join(self)
        if self._emptied is not None and not self._waiting and not self._weight and not self._emptied.done():
            self._emptied.set_result(None)
        self._after()


def _rest_after(calls: int, waited: bool) -> float:
    """Half of it after one that came alone, and in no rest, so that those which come a little further apart than that wait for nobody."""
    return 2.0 if calls >= MANY_CALLS else 1.0 if waited or calls > 1 else 0.5


async def all_of(futures: Sequence[asyncio.Future[Result]]) -> list[Result]:
    """The results of all, when the last is there; else the first exception, when nothing is under way any more."""
    try:
        if len(futures) > 1:
            await asyncio.wait(futures)
        return [await future for future in futures]
    finally:
        for future in futures:
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen: one exception is enough for the caller


class TableLanes:
    """Writes and reads of a blocking `Table` for an event loop. Make it inside the running loop."""

    def __init__(self, table: Table, partitions: int, rest_s: float = 0.0) -> None:
        """`rest_s`: so far apart do two commits of one partition begin."""
        self.table = table
        self.partitions = partitions
        self._rest_s = rest_s
        self._writers: dict[tuple[str, int], Lane[Sequence[Mutation], None]] = {}
        self._reader: Lane[tuple[Sequence[RowKey], bytes, int | None], dict[RowKey, Row]] = Lane(
            "reads of the table", self._read_batch, BATCH_ROWS_MAX, QUEUED_READS_MAX, READERS
        )
        self._checker: Lane[tuple[str, int], int] = Lane("checks of the table", self._check_batch, BATCH_ROWS_MAX, QUEUED_READS_MAX)

    async def write(self, mutations: Sequence[Mutation]) -> None:
        """Like `Table.write`. An exception reaches exactly the callers whose mutations were in the partition that failed."""
        if not mutations:
            return
        for mutation in mutations:
            check_mutation(mutation)  # here, so that a wrong one harms nobody else's batch
        place = mutations[0].row[:2]
        if all(mutation.row[:2] == place for mutation in mutations):
            await self._writer(place).submit(mutations, _weight(mutations))
            return
        groups: dict[tuple[str, int], list[Mutation]] = {}
        for mutation in mutations:
            groups.setdefault(mutation.row[:2], []).append(mutation)
        lanes = [(self._writer(place), group) for place, group in groups.items()]
        if any(lane.full for lane, _ in lanes):  # all or nothing: the caller will come again with all
            raise Overloaded("A partition of the table has as many writes waiting as allowed.")
        await all_of([lane.submit(group, _weight(group)) for lane, group in lanes])

    async def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None) -> dict[RowKey, Row]:
        """Like `Table.read`."""
        if not rows:
            return {}
        return await self._reader.submit((rows, prefix, limit), len(rows))

    async def incarnation_of(self, table: str, partition: int) -> int:
        """Like `Table.incarnation`, by a look that began after this call: it may have to wait for whoever writes the manifest."""
        return await self._checker.submit((table, partition), 1)

    async def close(self) -> None:
        """Finish what was asked for. The table itself stays open."""
        await asyncio.gather(self._reader.close(), self._checker.close(), *(lane.close() for lane in self._writers.values()))

    def _writer(self, place: tuple[str, int]) -> Lane[Sequence[Mutation], None]:
        lane = self._writers.get(place)
        if lane is None:
            name = f"{place[0]}-{place[1]}"
            rounds = Rounds(self._rest_s)
            lane = self._writers[place] = Lane(name, self._write_batch, BATCH_CELLS_MAX, QUEUED_CELLS_MAX, rounds=rounds)
        return lane

    def _write_batch(self, calls: list[Sequence[Mutation]]) -> list[Exception | None]:
        try:
            self.table.write([mutation for mutations in calls for mutation in mutations])
        except Unavailable as error:
            return [error] * len(calls)
        except Exception as error:
            if len(calls) == 1:
                return [error]
            # One call was wrong in a way that the checks did not see: find out whose.
            return [self._write_batch([mutations])[0] for mutations in calls]
        return [None] * len(calls)

    def _check_batch(self, places: list[tuple[str, int]]) -> list[int | Exception]:
        found: dict[tuple[str, int], int | Exception] = {}
        for place in set(places):
            try:
                found[place] = self.table.incarnation(*place)
            except Exception as error:
                found[place] = error
        return [found[place] for place in places]

    def _read_batch(self, calls: list[tuple[Sequence[RowKey], bytes, int | None]]) -> list[dict[RowKey, Row] | Exception]:
        outcomes: list[dict[RowKey, Row] | Exception] = [{}] * len(calls)
        groups: dict[tuple[bytes, int | None], list[int]] = {}
        for index, (_, prefix, limit) in enumerate(calls):
            groups.setdefault((prefix, limit), []).append(index)
        for (prefix, limit), indexes in groups.items():
            try:
                found = self.table.read([row for index in indexes for row in calls[index][0]], prefix, limit)
            except Exception as error:
                if len(calls) == 1:
                    return [error]
                for index in indexes:
                    outcomes[index] = self._read_batch([calls[index]])[0]
            else:
                for index in indexes:
                    outcomes[index] = {row: found[row] for row in calls[index][0]}
        return outcomes


def _weight(mutations: Sequence[Mutation]) -> int:
    return sum(len(mutation.cells) for mutation in mutations) or 1
