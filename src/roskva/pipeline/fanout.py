"""The fan-out: tells the registered clients of objects that have many, in a query of its own, so that nobody else waits for them.

The Matcher's task wrote the version, saw that the row is large, and left the update in the feed "fan-outs". Here the row is read page
by page, after that write: a registration that the pages miss was written later, and has read the version itself. Objects take turns,
page by page. Updates of one object that meet here collapse, as in the Matcher: whoever is told is told the row's version, so a hot
object costs one walk at a time, however often it changes. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.matcher.cells import REG, VERSION, object_row
from roskva.matcher.core import Change, collapse, tell_registered
from roskva.matcher.events import decode_update
from roskva.matcher.forms import Malformed
from roskva.model import ObjectKey, Propagation, Update
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.events import Origin, dead_letter
from roskva.pipeline.health import count_round
from roskva.pipeline.patience import Backoff, persist
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.table.interface import Row, Table

log = logging.getLogger(__name__)

# Small enough that a gateway turns to others between two calls, large enough that a call's fixed price does not count.
PAGE_CELLS: Final = 1_000
_COUNT_EVERY_S: Final = 1.0


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
    """One object on its way through its row."""

    def __init__(self, key: ObjectKey, change: Change, partitions: int) -> None:
        self.key = key
        self._change = change
        self._row = object_row(key, partitions)
        self._version: Row | None = None
        self._after = b""
        self.done = False

    def read(self, table: Table) -> Row:
        """The next page, with the version. The walk stays where it is."""
        if self._version is None:
            self._version = table.read([self._row], prefix=VERSION)[self._row]
        page = table.read([self._row], prefix=REG, limit=PAGE_CELLS, after=self._after)[self._row]
        return {**page, **self._version}

    def told_of(self, page: Row) -> list[Propagation]:
        return list(tell_registered(self.key, self._change, page))

    def go_on(self, page: Row) -> None:
        """Everyone on the page was told."""
        names = [name for name in page if name.startswith(REG)]
        self._after = max(names, default=self._after)
        self.done = len(names) < PAGE_CELLS


class FanOut:
    def __init__(self, connected: Connections) -> None:
        self._around = connected.around
        self._table = connected.table
        self._partitions = connected.settings.partitions
        self.counts = Counts()
        self._teller = Teller(connected, self.counts)
        self._counted_s = float("-inf")

    def run(self, origins: Iterable[Origin]) -> Counts:
        updates, origins_of = self._read(origins)
        self.counts.fan_outs = len(updates)
        changes = collapse(updates, ()).changes
        walks = deque(_Walk(key, change, self._partitions) for key, change in changes.items())
        backoff = Backoff("reading the registrations of large objects", self._around)
        while walks:
            walk = walks.popleft()
            try:
                page = walk.read(self._table)
            except Exception as error:
                if not isinstance(error, (Unavailable, OSError)):
                    log.exception("unexpected error of the table")
                reached("fan-out: a page cannot be read now")
                self.counts.retries += 1
                walks.append(walk)
                backoff.pause(error)
                continue
            try:
                told = walk.told_of(page)
            except Exception as error:
                log.exception("an object cannot be fanned out; its updates go to the dead letters")
                why = Malformed("internal", f"The fan-out of this object failed: {type(error).__name__}: {error}.")
                self._teller.bury([dead_letter(origin, why) for origin in origins_of[walk.key]])
                continue
            self._teller.tell(told)
            self._count_round()
            walk.go_on(page)
            if not walk.done:
                walks.append(walk)
        return self.counts

    def _read(self, origins: Iterable[Origin]) -> tuple[list[Update], dict[ObjectKey, list[Origin]]]:
        updates: list[Update] = []
        origins_of: dict[ObjectKey, list[Origin]] = {}
        letters = []
        for origin in origins:
            try:
                update = decode_update(origin.value)
            except msgspec.DecodeError as error:
                letters.append(dead_letter(origin, Malformed("malformed-message", f"The record is not what this topic holds: {error}.")))
                continue
            updates.append(update)
            origins_of.setdefault(update.object, []).append(origin)
        self._teller.bury(letters)
        return updates, origins_of

    def _count_round(self) -> None:
        """A walk may take longer than a batch should: say that it moves, so that nobody ends it."""
        now_s = self._around.clock()
        if now_s - self._counted_s >= _COUNT_EVERY_S:
            self._counted_s = now_s
            try:
                count_round(self._table)
            except Unavailable as error:
                log.warning("the fan-out cannot tell its progress now: %s", error)
