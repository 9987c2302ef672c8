"""The Matcher's task: what one Spark task does with its records of a micro-batch (Thialfi 4.1.3 and 4.1.4, Matcher).

Accept, write, read, match, propagate, in this order (`matcher.core` says why). Side effects live here and not in a sink: Spark commits
the batch when all tasks are done, so a task returns only when nothing is owed for its records. It never raises for data, a row or a
Registrar: what is malformed becomes a dead letter, what cannot be written keeps the batch open, the other partitions go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa

from roskva.config import Settings
from roskva.errors import FeedFull, Unavailable
from roskva.feed.interface import DEAD_LETTERS, UPDATES, Entry, Feed
from roskva.matcher.cells import VERSION
from roskva.matcher.core import Batch, accept, collapse, drop_copies, match
from roskva.matcher.forms import Malformed
from roskva.model import ObjectKey, Propagation, partition_of
from roskva.pipeline.bridge import form_of
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.events import COLUMNS, Events, dead_letter, read_events
from roskva.pipeline.patience import Backoff, persist
from roskva.table.interface import Table
from roskva.table.manifest import COMPLETE, Manifest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What a task did; one row of these leaves it, and the query sums them into its health."""

    updates: int = 0
    registrations: int = 0
    dead_letters: int = 0
    propagations: int = 0
    blind_writes: int = 0
    dropped_copies: int = 0
    retries: int = 0


COUNTS: Final = tuple(item.name for item in fields(Counts))
COUNTS_SCHEMA: Final = ", ".join(f"{name} long" for name in COUNTS)
_COUNTS_ARROW: Final = pa.schema([(name, pa.int64()) for name in COUNTS])


class MatchTask:
    """The function for `mapInArrow`. Pickled by reference: its connections live in the worker's modules."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_memory("matcher")
        rows = [row for batch in batches for row in _rows(batch)]
        if not rows:
            return
        counts = persist("opening feed and table", lambda: Task(connections(self._settings))).run(rows)
        columns = [pa.array([getattr(counts, name)], pa.int64()) for name in COUNTS]
        yield pa.RecordBatch.from_arrays(columns, schema=_COUNTS_ARROW)


def _rows(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


class _RowsUnavailable(Exception):
    """Rows of this part could not be written or read now; they may be later."""


class Task:
    def __init__(self, connected: Connections) -> None:
        self._settings = connected.settings
        self._feed: Feed = connected.feed
        self._table: Table = connected.table
        self._manifest: Manifest = connected.manifest
        self._links = connected.links
        self._incarnations: dict[ObjectKey, int] = {}
        self.counts = Counts()

    def run(self, rows: Iterable[tuple[Any, ...]]) -> Counts:
        forms = {name: form_of(application) for name, application in self._settings.applications.items()}
        epoch_of = _remembered(lambda application: persist("reading the epoch", lambda: self._manifest.epoch(application)))
        events = read_events(rows, forms, epoch_of)
        self.counts.updates = len(events.updates)
        self.counts.registrations = len(events.registrations)
        self._bury(events.letters)
        self._incarnations = {update.object: origin.incarnation for update, origin in events.updates}
        self._settle(self._parts(events), events)
        return self.counts

    def _parts(self, events: Events) -> list[Batch]:
        """One batch per partition of the table: a partition that fails holds up no other."""
        partition = _remembered(lambda key: partition_of(key, self._settings.partitions))
        numbers = {partition(update.object) for update, _ in events.updates}
        numbers |= {partition(registration.object) for registration, _ in events.registrations}
        return [
            collapse(
                (update for update, _ in events.updates if partition(update.object) == number),
                (registration for registration, _ in events.registrations if partition(registration.object) == number),
            )
            for number in sorted(numbers)
        ]

    def _settle(self, waiting: list[Batch], events: Events) -> None:
        """Until nothing is owed: decide on what can be written and read, tell, and come back for the rest."""
        backoff = Backoff("writing the Matcher's rows")
        while waiting:
            propagations: list[Propagation] = []
            unavailable: list[Batch] = []
            reason: object = None
            parts = list(waiting)
            while parts:
                part = parts.pop(0)
                try:
                    propagations += self._decide(part)
                except _RowsUnavailable as error:
                    unavailable.append(part)
                    reason = error
                except Exception as error:
                    parts += self._isolate(part, events, error)
            self._tell(propagations)
            waiting = unavailable
            if waiting:
                self.counts.retries += 1
                backoff.pause(reason)

    def _decide(self, part: Batch) -> list[Propagation]:
        """Write, then read, then match."""
        partitions = self._settings.partitions
        accepted = accept(part, partitions, self._incarnations.__getitem__)
        known = _remembered(self._known_incarnation)
        try:
            self._table.write(accepted.writes)
            rows = self._table.read(accepted.read_whole)
            rows |= self._table.read(accepted.read_version, prefix=VERSION)
            for registration in part.registrations.values():
                known(registration.object)
        except (ValueError, TypeError):
            raise  # the table refuses what it was given, and would again
        except Exception as error:
            if not isinstance(error, (Unavailable, OSError)):
                log.exception("unexpected error of the table")
            raise _RowsUnavailable(str(error)) from error
        return match(part, rows, partitions, known)

    def _known_incarnation(self, key: ObjectKey) -> int | None:
        """The feed incarnation whose versions count as known; None while anything that could hold one is incomplete."""
        partition = partition_of(key, self._settings.partitions)
        feed = self._manifest.record("feed", UPDATES, partition)
        if feed.state != COMPLETE or not self._table.complete("matcher", partition):
            return None
        return feed.incarnation

    def _isolate(self, part: Batch, events: Events, error: Exception) -> list[Batch]:
        """Something in this part cannot be decided on, now or ever: find the object, bury its records, go on with the others."""
        objects = {*part.changes, *(key for _, key in part.registrations)}
        if len(objects) > 1:
            return [
                Batch(
                    {key: change for key, change in part.changes.items() if key == one},
                    {key: registration for key, registration in part.registrations.items() if key[1] == one},
                )
                for one in objects
            ]
        log.error("an object cannot be matched; its records go to the dead letters", exc_info=error)
        why = Malformed("internal", f"The Matcher failed on this object: {type(error).__name__}: {error}.")
        origins = [origin for update, origin in events.updates if update.object in objects]
        origins += [origin for registration, origin in events.registrations if registration.object in objects]
        self._bury([dead_letter(origin, why) for origin in origins])
        return []

    def _tell(self, propagations: list[Propagation]) -> None:
        if not propagations:
            return
        told = self._links.propagate(propagations)
        self.counts.propagations += len(propagations)
        self.counts.blind_writes += told.blind_writes
        self.counts.retries += told.retries
        drops = drop_copies(propagations, told.verdicts, self._settings.partitions)
        if not drops:
            return
        try:
            self._table.write(drops)
            self.counts.dropped_copies += len(drops)
        except Unavailable as error:
            log.warning("copies of dead registrations stay until the object changes again: %s", error)

    def _bury(self, letters: list[Entry]) -> None:
        if not letters:
            return

        def append() -> None:
            try:
                self._feed.append_once(DEAD_LETTERS, letters)
            except FeedFull as error:
                # What is unusable must not hold up what is usable. The log still says what it was.
                log.error("%s The dead letters: %s", error, [letter.value[:500] for letter in letters[:20]])

        persist("writing dead letters", append)
        self.counts.dead_letters += len(letters)


def _remembered(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Ask once per task and key."""
    answers: dict[Any, Any] = {}

    def ask(key: Any) -> Any:
        if key not in answers:
            answers[key] = function(key)
        return answers[key]

    return ask
