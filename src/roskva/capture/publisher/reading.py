"""A caravan's reader: one thread that reads, filters, places and encodes, at the pace that the core set (Wormhole 3.1).

The thread does all that costs time per change, and hands whole batches to the event loop: one at a time, so that a busy loop slows reading
and nothing piles up in between. It reads the next batch while the last one is dealt with. A reader that fails is opened again where the
core says; `Opening` makes again what that needs, if it can be made.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from roskva.capture.flows import Routed
from roskva.capture.interface import Batch, Datastore, Reader
from roskva.capture.positions import Position
from roskva.capture.publisher.settings import Shards
from roskva.capture.rows import Row, Schemas
from roskva.capture.updates import Change, Update
from roskva.capture.wire import FRAME_BYTES_MAX
from roskva.errors import DatastoreUnavailable, LogCut, RoskvaError

log = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 0.2  # after which a reader looks whether it shall close
REOPEN_S: Final = 0.1
REOPEN_S_MAX: Final = 10.0
ROW_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024  # a larger change cannot be sent: it is told as lost
TOO_LARGE: Final = Row(-1, b"")
SETS_MAX: Final = 1_024  # combinations of applications that are kept, to have each once; at the limit all are forgotten
BURST_S: Final = 0.1  # of its pace, that a reader which stood still may read at once
CUTS_MAX: Final = 8  # one after the other, with no reader opened in between: then the log cannot be read where it says that it begins
TELL_S: Final = 10.0  # flows are told of a loss at most so often while nothing can be read

Answer = TypeVar("Answer")


class Routing(NamedTuple):
    """Who wants what. A new one replaces it when the settings change."""

    shards: Shards
    filters: Mapping[str, Callable[[Update], bool] | None]


class Router:
    """Makes of changes what the core takes. Safe from several threads.

    When the settings change, a batch may be on its way that was routed by those before: it would not name a new application, whose flow may
    already ride. So whoever takes a batch looks whether its routing is still the one, and routes it again if not.
    """

    def __init__(self, routing: Routing, schemas: Schemas) -> None:
        self.routing = routing
        self.failures = 0  # filters that raised: what they were asked about was let pass
        self._schemas = schemas
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def route(self, changes: Sequence[Change], routing: Routing) -> list[Routed]:
        shards, filters = routing
        all_of = frozenset(name for name, passes in filters.items() if passes is None)
        some = [(name, passes) for name, passes in filters.items() if passes is not None]
        encoded, shards_of = self._schemas.encoded, shards.shards_of
        routed: list[Routed] = []
        add, new = routed.append, tuple.__new__
        for change in changes:
            row: Row | None = None
            for shard in shards_of(change):
                wanted = all_of if not some else self._wanted(all_of, some, Update(shard, change))
                if not wanted:
                    continue
                if row is None:
                    row = encoded(change)
                    if len(row.data) > ROW_BYTES_MAX:
                        row = TOO_LARGE
                add(new(Routed, (change.position, shard, wanted, len(row.data), change.committed_us, row)))
        return routed

    def _wanted(self, all_of: frozenset[str], some: Sequence[tuple[str, Callable[[Update], bool]]], update: Update) -> frozenset[str]:
        passed = []
        for name, passes in some:
            try:
                if passes(update):
                    passed.append(name)
            except Exception:
                self.failures += 1
                passed.append(name)  # at least once is promised: better too much than too little
        if not passed:
            return all_of
        found = all_of.union(passed)
        known = self._sets.get(found)
        if known is None:
            if len(self._sets) >= SETS_MAX:
                self._sets = {}
            known = self._sets.setdefault(found, found)
        return known


class Opening:
    """Opens readers, of a datastore whose slot may vanish. Safe from several threads.

    The log was cut: flows are told what they lost (`LogCut`), and reading goes on where the log begins now. That works if there is
    something that keeps the log from there on. Somebody may have dropped the slot, and then there is not: `prepare` makes a new one, as
    the next start would. The server may have given the slot up, and nothing is dropped unasked: then readers are told what `prepare`
    says, which names the statement that mends it, and wait, instead of losing whatever is committed from one attempt to the next.
    """

    def __init__(self, datastore: Datastore, clock: Callable[[], float] = time.monotonic) -> None:
        self._datastore = datastore
        self._clock = clock
        self._lock = threading.Lock()
        self._cuts = 0
        self._told_s = float("-inf")

    def read_after(self, position: Position) -> Reader:
        try:
            reader = self._datastore.read_after(position)
        except LogCut as cut:
            raise self._meaning(cut) from None
        with self._lock:
            self._cuts = 0
        return reader

    def _meaning(self, cut: LogCut) -> RoskvaError:
        trouble: RoskvaError | None = None
        try:
            self._datastore.prepare()
        except RoskvaError as error:
            trouble = error
        with self._lock:
            self._cuts += 1
            if trouble is None and self._cuts > CUTS_MAX:
                trouble = DatastoreUnavailable(f"The log begins after {cut.oldest}, and cannot be read from there.")
            now_s = self._clock()
            if trouble is not None and now_s - self._told_s < TELL_S:
                return trouble
            self._told_s = now_s
        return cut


class Taking(Protocol):
    """What a reader needs of the publisher, on its event loop."""

    def taken(self, caravan: int, after: Position, routed: list[Routed], reached: Position, bytes_read: int) -> None: ...

    def cut(self, caravan: int, oldest: Position) -> None: ...

    def position_of(self, caravan: int) -> Position | None: ...


class _Closed(Exception):
    """In the thread alone: it shall end."""


class Reading:
    """The thread of one caravan. Made and closed on the event loop."""

    def __init__(self, caravan: int, after: Position, opening: Opening, router: Router, changes_max: int, taking: Taking) -> None:
        self.caravan = caravan
        self.router = router
        self.changes_max = changes_max
        self.problem: RoskvaError | None = None  # why it does not read now
        self._fails = False  # and did not succeed since
        self._well_s = time.monotonic()  # when it last did
        self.reopened = 0
        self._position = after
        self._opening = opening
        self._taking = taking
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._moving = threading.Event()
        self._bytes_per_s = 0.0  # the last pace above 0
        self._may_read_s = 0.0
        self._pause_s = REOPEN_S
        self._free = threading.Semaphore(1)  # held while a batch waits for the loop
        self._thread = threading.Thread(target=self._run, name=f"caravan {caravan}", daemon=True)

    @property
    def well_s(self) -> float:
        """When it last read, by time.monotonic, if it fails since then; now, if it does not."""
        return self._well_s if self._fails else time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def pace(self, bytes_per_s: float) -> None:
        """0: stand, after the batch that is being read; that is charged by the pace before."""
        if bytes_per_s > 0:
            self._bytes_per_s = bytes_per_s
            self._moving.set()
        else:
            self._moving.clear()

    def close(self) -> None:
        """Returns at once; the thread ends within READ_TIMEOUT_S, or when the datastore answers."""
        self._closed.set()
        self._moving.set()

    def join(self, timeout_s: float) -> bool:
        """Blocks. False: it has not ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                self._read_until_it_fails()
                self.reopened += 1
                if self._closed.wait(self._pause_s):
                    return
                self._pause_s = min(REOPEN_S_MAX, self._pause_s * 2)
                position = self._on_the_loop(lambda: self._taking.position_of(self.caravan))
                if position is None:
                    return
                self._position = position
        except _Closed:
            return

    def _read_until_it_fails(self) -> None:
        try:
            reader = self._opening.read_after(self._position)
            try:
                self.problem = None
                while True:
                    self._wait_for_pace()
                    self._step(reader)
            finally:
                reader.close()
        except LogCut as error:
            oldest = cast(Position, error.oldest)
            self._on_the_loop(lambda: self._taking.cut(self.caravan, oldest))
        except RoskvaError as error:
            if self._closed.is_set():
                raise _Closed from None
            self.problem, self._fails = error, True
            log.warning("Caravan %d cannot read on, and tries again in %.1f s: %s", self.caravan, self._pause_s, error)
        except _Closed:
            raise
        except Exception as error:
            if self._closed.is_set():
                raise _Closed from None
            self.problem, self._fails = RoskvaError(f"Reading the log failed: {type(error).__name__} {error}."), True
            log.exception("Caravan %d cannot read on, and tries again in %.1f s.", self.caravan, self._pause_s)

    def _step(self, reader: Reader) -> None:
        changes, reached, bytes_read = reader.read(self.changes_max, READ_TIMEOUT_S)
        now_s = time.monotonic()
        self._fails, self._well_s = False, now_s
        self._may_read_s = max(self._may_read_s, now_s - BURST_S) + bytes_read / self._bytes_per_s
        if not changes and reached <= self._position:
            return
        routing = self.router.routing
        routed = self.router.route(changes, routing)
        self._pause_s = REOPEN_S
        while not self._free.acquire(timeout=READ_TIMEOUT_S):
            self._end_if_closed()
        self._end_if_closed()
        after, self._position = self._position, reached
        self._loop.call_soon_threadsafe(self._deliver, after, Batch(changes, reached, bytes_read), routing, routed)

    def _deliver(self, after: Position, batch: Batch, routing: Routing, routed: list[Routed]) -> None:
        try:
            if not self._closed.is_set():
                if routing is not self.router.routing:
                    routed = self.router.route(batch.changes, self.router.routing)
                self._taking.taken(self.caravan, after, routed, batch.reached, batch.bytes_read)
        finally:
            self._free.release()

    def _wait_for_pace(self) -> None:
        self._moving.wait()
        self._end_if_closed()
        while (wait_s := self._may_read_s - time.monotonic()) > 0:
            if self._closed.wait(min(wait_s, READ_TIMEOUT_S)):
                raise _Closed

    def _end_if_closed(self) -> None:
        if self._closed.is_set():
            raise _Closed

    def _on_the_loop(self, ask: Callable[[], Answer]) -> Answer:
        """After everything that was delivered before."""
        answer: Future[Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        while True:
            try:
                return answer.result(READ_TIMEOUT_S)
            except TimeoutError:
                self._end_if_closed()
