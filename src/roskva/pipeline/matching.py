"""The Matcher's task: what one Spark task does with its records of a micro-batch (Thialfi 4.1.3 and 4.1.4, Matcher).

Accept, write, read, match, propagate, in this order (`matcher.core` says why). Side effects live here and not in a sink: Spark commits
the batch when all tasks are done, so a task returns only when nothing is owed for its records. It never raises for data, a row or a
Registrar: what is malformed becomes a dead letter; what cannot be written is tried for a moment and then put aside into the table
"scratch", from where a sweep brings it back (Thialfi 4.2.6). Only what cannot even be put aside keeps the batch open. Objects with many
registrations are handed over to `fanout`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.feed.interface import FAN_OUTS, Entry, Feed
from roskva.feed.known import known_since, since_of
from roskva.matcher.cells import VERSION, object_row
from roskva.matcher.core import Batch, accept, cells_to_read, collapse, hand_over, match
from roskva.matcher.events import encode_update
from roskva.matcher.forms import Malformed, Stamp, form_of, handed_over, stamps_of
from roskva.matcher.scratch import Homeless, homeless_cell
from roskva.model import ObjectKey, Propagation, Stamps, Update, partition_of
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.events import COLUMNS, Events, dead_letter, read_events
from roskva.pipeline.scratch import put
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.propagation.breaker import Pieces
from roskva.propagation.patience import Backoff, persist
from roskva.table.interface import RowKey, Table
from roskva.table.manifest import Manifest

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


class _Came(NamedTuple):
    """How the highest version of an object came, of those in a batch."""

    version: int
    since: int  # for its cell (`feed.known`), as it was when it first came: its way through scratch makes nothing known (trap 32)
    rounds: int  # times that it was brought home from scratch, this one included


@dataclass(slots=True)
class _Tried:
    propagations: list[Propagation] = field(default_factory=list)
    failed: list[Batch] = field(default_factory=list)
    reason: object = None


class Task:
    def __init__(self, connected: Connections) -> None:
        self._settings = connected.settings
        self._around = connected.around
        self._feed: Feed = connected.feed
        self._table: Table = connected.table
        self._manifest: Manifest = connected.manifest
        self._breaker = connected.breaker
        self._came: dict[ObjectKey, _Came] = {}
        self._sampled: dict[ObjectKey, Stamps] = {}
        self.counts = Counts()
        self._teller = Teller(connected, self.counts)

    def run(self, rows: Iterable[tuple[Any, ...]]) -> Counts:
        began_us = self._now_us()
        forms = {name: form_of(application) for name, application in self._settings.applications.items()}
        epoch_of = _remembered(lambda application: persist("reading the epoch", lambda: self._manifest.epoch(application), self._around))
        events = read_events(rows, forms, epoch_of)
        self.counts.updates = len(events.updates)
        self.counts.registrations = len(events.registrations)
        self._teller.bury(events.letters)
        self._came = _came(events, _remembered(self._since))
        self._sampled = _sampled(events, began_us)
        # Their rows work again: the sweep that brought them home has written there.
        self._breaker.served(self._row(key) for key, came in self._came.items() if came.rounds)
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

    def _settle(self, parts: list[Batch], events: Events) -> None:
        """Until nothing is owed: decide on what can be written and read, and tell; try the rest again for a while, then put it aside."""
        waiting, hurried, aside = self._sorted(parts)
        tried = _Tried()
        for part in hurried:
            began_s = self._around.clock()
            before = len(tried.failed)
            self._try_in_pieces(part, events, tried)
            for row in self._rows(tried.failed[before:]):
                self._breaker.tried_in_vain(row, began_s)
        self._breaker.put_aside(self._rows(tried.failed))
        first = self._try(waiting, events)
        self._teller.tell(tried.propagations + first.propagations, self._matched())
        waiting = first.failed + self._put_aside(aside + tried.failed)
        patience_until_s = self._around.clock() + self._settings.scratch_after_s
        backoff = Backoff("writing the Matcher's rows", self._around)
        while waiting:
            reached("matching: rows cannot be written now")
            self.counts.retries += 1
            backoff.pause(tried.reason or first.reason)
            tried = self._try(waiting, events)
            self._teller.tell(tried.propagations, self._matched())
            waiting = tried.failed
            if self._around.clock() >= patience_until_s:
                self._breaker.put_aside(self._rows(waiting))
                waiting = self._put_aside(waiting)

    def _sorted(self, parts: list[Batch]) -> tuple[list[Batch], list[Batch], list[Batch]]:
        """What is tried with patience, what is tried once, apart from the others, and what is put aside untried."""
        patient: list[Batch] = []
        hurried: list[Batch] = []
        aside: list[Batch] = []
        for part in parts:
            failing: frozenset[ObjectKey] = frozenset()
            if self._breaker.any_failing:
                failing = frozenset(key for key in part.objects if self._breaker.failing(self._row(key)))
            for piece in (part.without(failing), part.only(failing)) if failing else (part,):
                if piece.empty:
                    continue
                row = self._row(next(iter(piece.objects)))
                if not self._breaker.failing(row) and not self._breaker.hurried(row):
                    patient.append(piece)
                elif self._breaker.may_try(row):
                    hurried.append(piece)
                else:
                    aside.append(piece)
        return patient, hurried, aside

    def _try(self, parts: Iterable[Batch], events: Events) -> _Tried:
        tried = _Tried()
        for part in parts:
            self._try_in_pieces(part, events, tried)
        return tried

    def _try_in_pieces(self, part: Batch, events: Events, tried: _Tried) -> None:
        """Rows of a partition may fail while others of it work: what fails together is tried in halves."""
        search = Pieces(self._around.clock)
        pieces = deque([part])
        while pieces:
            piece = pieces.popleft()
            if search.over():
                tried.failed.append(piece)
                continue
            try:
                tried.propagations += self._decide(piece)
                if self._breaker.any_failing:
                    self._breaker.served(map(self._row, piece.objects))
            except _RowsUnavailable as error:
                tried.reason = error
                halves = search.halves(list(piece.objects))
                pieces += [piece.only(frozenset(half)) for half in halves]
                if not halves:
                    tried.failed.append(piece)
            except Exception as error:
                pieces += self._isolate(piece, events, error)

    def _put_aside(self, parts: Sequence[Batch]) -> list[Batch]:
        """So that the batch is done and the feed moves on. Answers what scratch does not take either: its batch stays open.

        Registrations are not put aside: each is in its client's row with a pending marker, whose owner appends it to the feed again
        until it was answered (`registrar/recovery.py`).
        """
        if not parts:
            return []
        reached("scratch: an object's row cannot be written")
        homeless = (Homeless(key, *self._came[key]) for part in parts for key in part.changes)
        cells = {homeless_cell(one): one.object for one in homeless}
        left = put(self._table, cells, self._settings.partitions)
        self.counts.scratched += len(cells) - len(left)
        self.counts.left_pending += sum(len(part.registrations) for part in parts)
        kept = frozenset(cells[cell] for cell in left)
        changes = [{key: change for key, change in part.changes.items() if key in kept} for part in parts]
        return [Batch(some, {}) for some in changes if some]

    def _matched(self) -> list[Stamps]:
        """The sampled updates, now that rows were written and read."""
        now_us = self._now_us() if self._sampled else 0
        return [one._replace(matched_us=now_us) for one in self._sampled.values()]

    def _now_us(self) -> int:
        return int(self._around.wall_clock() * 1_000_000)

    def _rows(self, parts: Iterable[Batch]) -> list[RowKey]:
        return [self._row(key) for part in parts for key in part.objects]

    def _row(self, key: ObjectKey) -> RowKey:
        return object_row(key, self._settings.partitions)

    def _decide(self, part: Batch) -> list[Propagation]:
        """Write, then read, then match."""
        partitions, above = self._settings.partitions, self._settings.fan_out_above
        accepted = accept(part, partitions, lambda key: self._came[key].since)
        known = _remembered(self._known_since)
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
            counted = (update._replace(rounds=self._came[update.object].rounds) for update in updates)
            self._feed.append(FAN_OUTS, [Entry(update.object, encode_update(update), self._headers(update)) for update in counted])
            self.counts.fan_outs += len(updates)

    def _headers(self, update: Update) -> bytes:
        """Of a record that is handed over."""
        sampled = self._sampled.get(update.object)
        return handed_over(update.object, sampled if sampled is not None and sampled.version == update.version else None)

    def _since(self, came: tuple[int, int]) -> int:
        """By partition and incarnation of the record that brought a version. What is lost after this look is newer than what it finds."""
        look = partial(since_of, self._manifest.record, came[0], self._settings.partitions, came[1])
        return persist("reading the manifest", look, self._around)

    def _known_since(self, key: ObjectKey) -> int | None:
        partition = partition_of(key, self._settings.partitions)
        if not self._table.complete("matcher", partition):
            return None
        return known_since(self._manifest.record, partition, self._settings.partitions)

    def _isolate(self, part: Batch, events: Events, error: Exception) -> list[Batch]:
        """Something in this part cannot be decided on, now or ever: find the object, bury its records, go on with the others."""
        objects = part.objects
        if len(objects) > 1:
            return [part.only(frozenset({one})) for one in objects]
        log.error("an object cannot be matched; its records go to the dead letters", exc_info=error)
        why = Malformed("internal", f"The Matcher failed on this object: {type(error).__name__}: {error}.")
        origins = [origin for update, origin in events.updates if update.object in objects]
        origins += [origin for registration, origin in events.registrations if registration.object in objects]
        self._teller.bury([dead_letter(origin, why) for origin in origins])
        return []


def _came(events: Events, since: Callable[[tuple[int, int]], int]) -> dict[ObjectKey, _Came]:
    came: dict[ObjectKey, _Came] = {}
    for update, origin in events.updates:
        if update.again:
            stamp = Stamp.decode(origin.headers)
            one = _Came(update.version, stamp.since, stamp.rounds)
        else:
            one = _Came(update.version, since((origin.partition, origin.incarnation)), 0)
        came[update.object] = max(came.get(update.object, one), one)
    return came


def _sampled(events: Events, bridged_us: int) -> dict[ObjectKey, Stamps]:
    """The stamps of sampled updates; of an object, those of its highest version. Not of what a sweep brought back."""
    sampled: dict[ObjectKey, Stamps] = {}
    for update, origin in events.updates:
        stamps = None if update.again else stamps_of(update.object, update.version, origin.headers)
        if stamps is not None and (update.object not in sampled or sampled[update.object].version < update.version):
            sampled[update.object] = stamps._replace(bridged_us=bridged_us)
    return sampled


def _remembered(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Ask once per task and key."""
    answers: dict[Any, Any] = {}

    def ask(key: Any) -> Any:
        if key not in answers:
            answers[key] = function(key)
        return answers[key]

    return ask
