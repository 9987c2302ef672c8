"""The Matcher: which registered clients must learn of which version (Thialfi 4.1.3 steps 3 and 4, 4.1.4 steps 3 to 5).

Theory of operation. A task takes a batch of events of some objects, in three steps whose order is the whole proof:

1. `accept(batch)` says what to write: for each object its highest version, and the copy of each registration.
2. The caller makes those writes durable, and only then reads the rows that `accept` names, in a new snapshot, from no cache.
3. `match(batch, rows)` decides on what was read: whom to tell.

An update writes its version and then reads registrations; a registration writes itself and then reads the version. Whichever write
lands second, its read sees the other, so nobody is missed however the two interleave. Everything may be repeated: a version equal
to the one in the row is told again, since the batch that wrote it may have died before it told anybody.

Pure: no clock, no store, no Spark. The same functions run in Spark's tasks and in the models that test them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from roskva.matcher.cells import object_row, read_copies, read_version, registration_cell, version_cell
from roskva.model import (
    DROP_COPY,
    OUTCOME_COVERED,
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    Update,
)
from roskva.probes import reached
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey

_NOBODY: Final = ""


@dataclass(frozen=True, slots=True)
class Change:
    """The updates of one object in a batch, collapsed to the highest version (Thialfi 2.3: a queue collapses to one message)."""

    version: int
    source: str
    sole_source: bool  # every update in it came from `source`, on its first pass: that device may be left out


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one task, collapsed by object, and by client and object."""

    changes: Mapping[ObjectKey, Change]
    registrations: Mapping[tuple[ClientId, ObjectKey], Registration]

    @property
    def empty(self) -> bool:
        return not self.changes and not self.registrations

    @property
    def objects(self) -> dict[ObjectKey, None]:
        """What it is about, each once, always in the same order."""
        return dict.fromkeys((*self.changes, *(key for _, key in self.registrations)))

    def only(self, objects: frozenset[ObjectKey]) -> Batch:
        return Batch(
            {key: change for key, change in self.changes.items() if key in objects},
            {key: registration for key, registration in self.registrations.items() if key[1] in objects},
        )

    def without(self, objects: frozenset[ObjectKey]) -> Batch:
        return self.only(frozenset(self.objects) - objects)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the caller must do next: write these, then read those."""

    writes: list[Mutation]
    read_whole: list[RowKey]  # rows of updated objects: version and registrations
    read_version: list[RowKey]  # rows where only a registration happened: the cell `version` is enough


def collapse(updates: Iterable[Update], registrations: Iterable[Registration]) -> Batch:
    """The highest version of each object wins; of registrations of one client and object, the highest seqno."""
    changes: dict[ObjectKey, Change] = {}
    for update in updates:
        source = _NOBODY if update.again else update.source
        known = changes.get(update.object)
        if known is None:
            changes[update.object] = Change(update.version, source, source != _NOBODY)
            continue
        sole = known.sole_source and source == known.source
        if known.sole_source and not sole:
            reached("matcher: updates of two sources collapse")
        latest = known if known.version >= update.version else None
        changes[update.object] = Change(latest.version if latest else update.version, latest.source if latest else source, sole)
    latest_registrations: dict[tuple[ClientId, ObjectKey], Registration] = {}
    for registration in registrations:
        key = (registration.client, registration.object)
        earlier = latest_registrations.get(key)
        if earlier is None or registration.seqno >= earlier.seqno:
            latest_registrations[key] = registration
    return Batch(changes, latest_registrations)


def accept(batch: Batch, partitions: int, incarnation_of: Callable[[ObjectKey], int]) -> Accepted:
    """What to write first, and what to read after those writes returned.

    `incarnation_of` tells what an object's version cell names: since when nothing was lost that may have held a later version.
    """
    cells: dict[ObjectKey, list[Cell]] = {}
    for key, change in batch.changes.items():
        source = change.source if change.sole_source else _NOBODY
        cells.setdefault(key, []).append(version_cell(change.version, source, incarnation_of(key)))
    for registration in batch.registrations.values():
        cell = registration_cell(registration.client, registration.seqno, registration.device, registration.registered)
        cells.setdefault(registration.object, []).append(cell)
    writes = [
        Mutation(object_row(key, partitions), row_cells[start : start + CELLS_PER_WRITE_MAX])
        for key, row_cells in cells.items()
        for start in range(0, len(row_cells), CELLS_PER_WRITE_MAX)
    ]
    return Accepted(
        writes=writes,
        read_whole=[object_row(key, partitions) for key in batch.changes],
        read_version=[object_row(key, partitions) for key in cells if key not in batch.changes],
    )


def hand_over(batch: Batch, rows: Mapping[RowKey, Row], partitions: int, above: int) -> tuple[Batch, list[Update]]:
    """Take out the changes of objects with more than `above` registrations: they are fanned out apart, so that nobody waits for them.

    `rows` were read after the writes of `accept` returned, `cells_to_read(above)` cells of each. Answers what stays, and what must be
    durable in the feed "fan-outs" before the batch is done. Whoever takes it from there reads the row once more: later, so a
    registration that was written meanwhile is either seen then or has read the version itself.
    """
    large = {key for key in batch.changes if len(rows[object_row(key, partitions)]) >= cells_to_read(above)}
    if not large:
        return batch, []
    reached("matcher: handed over to the fan-out")
    updates = [
        Update(key, change.version, change.source if change.sole_source else _NOBODY, again=not change.sole_source)
        for key, change in batch.changes.items()
        if key in large
    ]
    staying = {key: change for key, change in batch.changes.items() if key not in large}
    return Batch(staying, batch.registrations), updates


def cells_to_read(above: int) -> int:
    """So many cells of a row tell whether it has more than `above` registrations, gone ones included: one of them is the version."""
    return above + 2


def match(
    batch: Batch,
    rows: Mapping[RowKey, Row],
    partitions: int,
    known_incarnation: Callable[[ObjectKey], int | None],
) -> list[Propagation]:
    """Whom to tell what, decided on rows that were read after the writes of `accept` returned.

    `known_incarnation` tells what a version cell must name to count as known, or None while a partition that could hold a later one is
    incomplete: then nothing is known, and registrations yield unknown.
    """
    propagations: list[Propagation] = []
    for key, change in batch.changes.items():
        propagations += tell_registered(key, change, rows[object_row(key, partitions)])
    for registration in batch.registrations.values():
        row = rows[object_row(registration.object, partitions)]
        propagations.append(_answer_registration(registration, row, known_incarnation(registration.object)))
    return propagations


def tell_registered(key: ObjectKey, change: Change, row: Row) -> Iterable[Propagation]:
    """Whom to tell of a change, of those in the row; a page of it is enough, if the version is with it."""
    known = read_version(row)
    version = change.version
    source = change.source if change.sole_source else _NOBODY
    if known is not None and known.version > version:
        # A later version is there: it is told instead, to everyone, since its own pass may have died (and named another source).
        reached("matcher: a later version is told instead")
        version, source = known.version, _NOBODY
    for copy in read_copies(row):
        if source == _NOBODY or copy.device != source:
            yield Propagation(copy.client, key, copy.seqno, OUTCOME_UPDATE, version)


def tell_invalidated(key: ObjectKey, row: Row) -> list[Propagation]:
    """Everyone in the row, or in a page of it, is registered anew: what comes of that is always unknown."""
    return [Propagation(copy.client, key, copy.seqno, OUTCOME_LOST, 0) for copy in read_copies(row)]


def _answer_registration(registration: Registration, row: Row, incarnation: int | None) -> Propagation:
    def answer(outcome: int, version: int = 0) -> Propagation:
        return Propagation(registration.client, registration.object, registration.seqno, outcome, version)

    if not registration.registered:
        return answer(OUTCOME_UNREGISTERED)
    known = read_version(row)
    if registration.repair:
        reached("matcher: a repair yields unknown")
    if registration.repair or known is None or incarnation is None or known.incarnation != incarnation:
        return answer(OUTCOME_UNKNOWN)
    if registration.held is not None and known.version <= registration.held:
        reached("matcher: the client holds what there is")
        return answer(OUTCOME_COVERED)
    return answer(OUTCOME_VERSION, known.version)


def drop_copies(propagations: Sequence[Propagation], verdicts: Sequence[int], partitions: int) -> list[Mutation]:
    """The writes that forget copies of registrations which the Registrar says are gone: dead clients must not pile up."""
    return [
        Mutation(object_row(told.object, partitions), [registration_cell(told.client, told.seqno, "", registered=False)])
        for told, verdict in zip(propagations, verdicts, strict=True)
        if verdict == DROP_COPY
    ]
