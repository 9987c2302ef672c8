"""The fan-out: tells the registered clients of objects that have many, in a query of its own, so that nobody else waits for them.
Invalidations are walked here too: of an object, or of all whose names begin alike.

The Matcher's task wrote the version, saw that the row is large, and left the update in the feed "fan-outs". Here the row is read page
by page, after that write: a registration that the pages miss was written later, and has read the version itself. Objects take turns,
page by page. Updates of one object that meet here collapse, as in the Matcher: whoever is told is told the row's version, so a hot
object costs one walk at a time, however often it changes.

An invalidation tells everyone in the rows that they are to be registered anew, which yields "unknown". Those that are being registered at
this moment may be missed: they are not registered yet. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.feed.known import UNPROVEN
from roskva.matcher.cells import REG, VERSION, object_row
from roskva.matcher.core import Change, collapse, tell_invalidated, tell_registered
from roskva.matcher.events import Invalidation, decode_fan_out
from roskva.matcher.forms import Malformed, stamps_of
from roskva.matcher.scratch import Homeless, Unwalked, homeless_cell, unwalked_cell
from roskva.model import ObjectKey, Propagation, Stamps, Update, partition_of
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.events import Origin, dead_letter
from roskva.pipeline.health import count_round
from roskva.pipeline.scratch import put
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.propagation.patience import Backoff, persist
from roskva.table.interface import Cell, Row, RowKey, Table

log = logging.getLogger(__name__)

# Small enough that a gateway turns to others between two calls, large enough that a call's fixed price does not count.
PAGE_CELLS: Final = 1_000
ROWS_AT_A_TIME: Final = 500  # at most, of those that begin alike
_COUNT_EVERY_S: Final = 1.0


@dataclass(slots=True)
class _Records:
    """What a batch holds, and where each came from."""

    updates: list[Update] = field(default_factory=list)
    origins_of: dict[ObjectKey, list[Origin]] = field(default_factory=dict)
    sampled: dict[ObjectKey, Stamps] = field(default_factory=dict)  # those of its highest version
    invalidations: dict[tuple[Invalidation, int], list[Origin]] = field(default_factory=dict)  # by what and by partition


class FanOutTask:
    """The function for `mapInArrow`. Pickled by reference: its connections live in the worker's modules."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_memory("fan-out")
        columns = ((batch.column(name).to_pylist() for name in Origin._fields) for batch in batches)
        origins = [Origin._make(row) for batch in columns for row in zip(*batch, strict=True)]
        if not origins:
            return
        yield from persist("opening feed and table", lambda: FanOut(connections(self._settings))).run(origins).as_arrow()


class _Walk:
    """One object on its way through its row, for a change of it, or without one for an invalidation."""

    def __init__(
        self, key: ObjectKey, change: Change | None, partitions: int, origins: Sequence[Origin] = (), rounds: int = 0, after: bytes = b""
    ) -> None:
        self.origins = origins
        self.failing_since_s: float | None = None
        self.row = object_row(key, partitions)
        self._key = key
        self._change = change
        self._rounds = rounds
        self._version: Row | None = None if change is not None else {}
        self._after = after
        self.done = False
        self.sampled: Stamps | None = None
        self._pages = 0

    @property
    def is_update(self) -> bool:
        return self._change is not None

    def stamps(self, now_us: int) -> list[Stamps]:
        """Of a sampled update, for the page that is told now: of few pages, from the first to the last, and its hops with the first."""
        if self.sampled is None or self._pages & (self._pages - 1):
            return []
        if self._pages > 1:
            return [self.sampled._replace(picked_us=0, read_us=0, bridged_us=0)]
        return [self.sampled._replace(matched_us=now_us)]

    def aside(self) -> Cell:
        """What stands in scratch for the rest of this walk. The version is in the row, or was when this began."""
        if self._change is None:
            return unwalked_cell(Unwalked(Invalidation(self._key, after=self._after), self.row.partition))
        return homeless_cell(Homeless(self._key, self._change.version, UNPROVEN, self._rounds))

    def read(self, table: Table) -> Row:
        """The next page, with the version. The walk stays where it is."""
        if self._version is None:
            self._version = table.read([self.row], prefix=VERSION)[self.row]
        page = table.read([self.row], prefix=REG, limit=PAGE_CELLS, after=self._after)[self.row]
        self._pages += 1
        return {**page, **self._version}

    def told_of(self, page: Row) -> list[Propagation]:
        if self._change is None:
            return tell_invalidated(self._key, page)
        return list(tell_registered(self._key, self._change, page))

    def go_on(self, page: Row) -> list[_Walk]:
        """Everyone on the page was told. Answers other walks that it leads to: none."""
        names = [name for name in page if name.startswith(REG)]
        self._after = max(names, default=self._after)
        self.done = len(names) < PAGE_CELLS
        return []


_Rows = list[tuple[ObjectKey, Row]]


class _PrefixWalk:
    """An invalidation on its way through the rows of one partition whose keys are longer than a prefix and begin with it."""

    is_update: Final = False

    def stamps(self, now_us: int) -> list[Stamps]:
        return []

    def __init__(self, prefix: bytes, partition: int, partitions: int, origins: Sequence[Origin], after: bytes = b"") -> None:
        self.origins = origins
        self.failing_since_s: float | None = None
        self._prefix = prefix
        self._partition = partition
        self._partitions = partitions
        self._after = after or prefix
        self.done = False

    @property
    def row(self) -> RowKey:
        """The one that it comes to next, or one before it: for what is remembered of the partition."""
        return RowKey("matcher", self._partition, self._after)

    def aside(self) -> Cell:
        return unwalked_cell(Unwalked(Invalidation(self._prefix, prefix=True, after=self._after), self._partition))

    def read(self, table: Table) -> _Rows:
        """The next rows, up to about PAGE_CELLS cells. The walk stays where it is."""
        page: _Rows = []
        cells = 0
        for key, row in table.scan("matcher", self._partition, self._after, ROWS_AT_A_TIME):
            if not key.startswith(self._prefix) or cells >= PAGE_CELLS:
                break
            page.append((ObjectKey(key), row))
            cells += len(row)
        return page

    def told_of(self, page: _Rows) -> list[Propagation]:
        return [told for key, row in page if len(row) <= PAGE_CELLS for told in tell_invalidated(key, row)]

    def go_on(self, page: _Rows) -> list[_Walk]:
        """Everyone on the page was told, but those of large rows: each of these is a walk of its own."""
        self.done = not page
        if page:
            self._after = page[-1][0]
        return [_Walk(key, None, self._partitions, self.origins) for key, row in page if len(row) > PAGE_CELLS]


class FanOut:
    def __init__(self, connected: Connections) -> None:
        self._around = connected.around
        self._table = connected.table
        self._breaker = connected.breaker
        self._partitions = connected.settings.partitions
        self._patience_s = connected.settings.scratch_after_s
        self.counts = Counts()
        self._teller = Teller(connected, self.counts)
        self._counted_s = float("-inf")

    def _now_us(self) -> int:
        return int(self._around.wall_clock() * 1_000_000)

    def run(self, origins: Iterable[Origin]) -> Counts:
        walks = deque(self._begun(self._read(origins)))
        backoff = Backoff("reading the registrations of large objects", self._around)
        while walks:
            walk = walks.popleft()
            try:
                page: Any = walk.read(self._table)
            except Exception as error:
                if not isinstance(error, (Unavailable, OSError)):
                    log.exception("unexpected error of the table")
                reached("fan-out: a page cannot be read now")
                self.counts.retries += 1
                if not self._put_aside(walk):
                    walks.append(walk)
                    backoff.pause(error)
                continue
            walk.failing_since_s = None
            try:
                told = walk.told_of(page)
            except Exception as error:
                log.exception("an object cannot be fanned out; its updates go to the dead letters")
                why = Malformed("internal", f"The fan-out of this object failed: {type(error).__name__}: {error}.")
                self._teller.bury([dead_letter(origin, why) for origin in walk.origins])
                continue
            settled = self._teller.tell(told, walk.stamps(self._now_us()))
            if not walk.is_update:
                self.counts.invalidated += settled
            self._count_round()
            walks += walk.go_on(page)
            if not walk.done:
                walks.append(walk)
        return self.counts

    def _put_aside(self, walk: _Walk | _PrefixWalk) -> bool:
        """A row that cannot be read for a while holds up nobody: a sweep brings the rest of the walk back to here."""
        now_s = self._around.clock()
        if walk.failing_since_s is None:
            walk.failing_since_s = now_s
        hurried = self._breaker.failing(walk.row) or self._breaker.hurried(walk.row)
        if not hurried and now_s - walk.failing_since_s < self._patience_s:
            return False
        if put(self._table, [walk.aside()], self._partitions):
            return False
        self.counts.scratched += 1
        self._breaker.put_aside([walk.row])
        return True

    def _begun(self, records: _Records) -> Iterator[_Walk | _PrefixWalk]:
        """One walk for each object that changed, however often, and one for each invalidation, however often it was ordered."""
        self.counts.fan_outs = sum(len(origins) for origins in (*records.origins_of.values(), *records.invalidations.values()))
        rounds: dict[ObjectKey, int] = {}
        for update in records.updates:
            rounds[update.object] = max(update.rounds, rounds.get(update.object, 0))
        for key, change in collapse(records.updates, ()).changes.items():
            walk = _Walk(key, change, self._partitions, records.origins_of[key], rounds[key])
            walk.sampled = records.sampled.get(key)
            yield walk
        for (invalidation, partition), origins in records.invalidations.items():
            key, after = ObjectKey(invalidation.invalidate), invalidation.after
            if not invalidation.prefix:
                yield _Walk(key, None, self._partitions, origins, after=after)
                continue
            reached("fan-out: an invalidation of all that begin alike")
            if not after and partition_of(key, self._partitions) == partition:
                yield _Walk(key, None, self._partitions, origins)
            yield _PrefixWalk(key, partition, self._partitions, origins, after)

    def _read(self, origins: Iterable[Origin]) -> _Records:
        records = _Records()
        letters = []
        for origin in origins:
            try:
                record = decode_fan_out(origin.value)
            except msgspec.DecodeError as error:
                letters.append(dead_letter(origin, Malformed("malformed-message", f"The record is not what this topic holds: {error}.")))
                continue
            if isinstance(record, Invalidation):
                records.invalidations.setdefault((record, origin.partition), []).append(origin)
            else:
                records.updates.append(record)
                stamps = stamps_of(record.object, record.version, origin.headers)
                if stamps is not None and record.version >= max(one.version for one in records.updates if one.object == record.object):
                    records.sampled[record.object] = stamps._replace(bridged_us=self._now_us(), fanned_out=True)
                records.origins_of.setdefault(record.object, []).append(origin)
        self._teller.bury(letters)
        return records

    def _count_round(self) -> None:
        """A walk may take longer than a batch should: say that it moves, so that nobody ends it."""
        now_s = self._around.clock()
        if now_s - self._counted_s >= _COUNT_EVERY_S:
            self._counted_s = now_s
            try:
                count_round(self._table)
            except Unavailable as error:
                log.warning("the fan-out cannot tell its progress now: %s", error)
