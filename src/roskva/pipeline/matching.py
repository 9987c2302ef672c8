"""The Matcher's task: what one Spark task does with its records of a micro-batch (Thialfi 4.1.3 and 4.1.4, Matcher).

Accept, write, read, match, propagate, in this order (`matcher.core` says why). Side effects live here and not in a sink: Spark commits
the batch when all tasks are done, so a task returns only when nothing is owed for its records. It never raises for data, a row or a
Registrar: what is malformed becomes a dead letter, what cannot be written keeps the batch open, the other partitions go on. Objects with
many registrations are handed over to `fanout`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.feed.interface import FAN_OUTS, UPDATES, Entry, Feed
from roskva.matcher.cells import VERSION, object_row
from roskva.matcher.core import Batch, accept, cells_to_read, collapse, hand_over, match
from roskva.matcher.events import encode_update
from roskva.matcher.forms import Malformed, form_of
from roskva.model import ObjectKey, Propagation, Update, partition_of
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.events import COLUMNS, Events, dead_letter, read_events
from roskva.pipeline.patience import Backoff, persist
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.table.interface import Table
from roskva.table.manifest import COMPLETE, Manifest

log = logging.getLogger(__name__)


class MatchTask:
    """The function for `mapInArrow`. Pickled by reference: its connections live in the worker's modules."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_memory("matcher")
        rows = [row for batch in batches for row in _rows(batch)]
        if not rows:
            return
        yield from persist("opening feed and table", lambda: Task(connections(self._settings))).run(rows).as_arrow()


def _rows(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


class _RowsUnavailable(Exception):
    """Rows of this part could not be written or read now; they may be later."""


class Task:
    def __init__(self, connected: Connections) -> None:
        self._settings = connected.settings
        self._around = connected.around
        self._feed: Feed = connected.feed
        self._table: Table = connected.table
        self._manifest: Manifest = connected.manifest
        self._incarnations: dict[ObjectKey, int] = {}
        self.counts = Counts()
        self._teller = Teller(connected, self.counts)

    def run(self, rows: Iterable[tuple[Any, ...]]) -> Counts:
        forms = {name: form_of(application) for name, application in self._settings.applications.items()}
        epoch_of = _remembered(lambda application: persist("reading the epoch", lambda: self._manifest.epoch(application), self._around))
        events = read_events(rows, forms, epoch_of)
        self.counts.updates = len(events.updates)
        self.counts.registrations = len(events.registrations)
        self._teller.bury(events.letters)
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
        backoff = Backoff("writing the Matcher's rows", self._around)
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
            self._teller.tell(propagations)
            waiting = unavailable
            if waiting:
                reached("matching: rows cannot be written now")
                self.counts.retries += 1
                backoff.pause(reason)

    def _decide(self, part: Batch) -> list[Propagation]:
        """Write, then read, then match."""
        partitions, above = self._settings.partitions, self._settings.fan_out_above
        accepted = accept(part, partitions, self._incarnations.__getitem__)
        known = _remembered(self._known_incarnation)
        try:
            self._table.write(accepted.writes)
            rows = self._table.read(accepted.read_whole, limit=cells_to_read(above))
            part, large = hand_over(part, rows, partitions, above)
            self._hand_over(large)
            read_version = accepted.read_version + [object_row(update.object, partitions) for update in large]
            rows |= self._table.read(read_version, prefix=VERSION)
            for registration in part.registrations.values():
                known(registration.object)
        except (ValueError, TypeError):
            raise  # the table refuses what it was given, and would again
        except Exception as error:
            if not isinstance(error, (Unavailable, OSError)):
                log.exception("unexpected error of the table")
            raise _RowsUnavailable(str(error)) from error
        return match(part, rows, partitions, known)

    def _hand_over(self, updates: list[Update]) -> None:
        if updates:
            self._feed.append(FAN_OUTS, [Entry(update.object, encode_update(update)) for update in updates])
            self.counts.fan_outs += len(updates)

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
        self._teller.bury([dead_letter(origin, why) for origin in origins])
        return []


def _remembered(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Ask once per task and key."""
    answers: dict[Any, Any] = {}

    def ask(key: Any) -> Any:
        if key not in answers:
            answers[key] = function(key)
        return answers[key]

    return ask
