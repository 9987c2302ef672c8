"""When something was long enough ago that nothing older can follow: the one rule by which sweeps forget (docs/sweeps.md).

Cells carry no clock. A sweep stamps what it finds closed or idle with the day, and a later sweep forgets what was stamped long enough ago.
What could bring an older cell back, and would no longer lose against the forgotten one?

- A record of the feed, read again after a checkpoint was lost. Records that are in the feed now are asked for their day: nothing is
  forgotten that was stamped on the day of the oldest of them, or later. So this holds whatever a clock or an outage did.
- A process that stood still with a write or a call in its hands: a gateway, a Spark worker. `outage_days_max` says for how long one
  may, and still be let go on.

A stamp says only that the cell was there on that day; the cell itself is older, and so is what it won over.

A clock that was ahead leaves stamps of the future. They wait until that day has come: nothing is forgotten too early. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from roskva.errors import Unavailable
from roskva.feed.interface import FAN_OUTS, REGISTRATIONS, UPDATES, Feed
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.frame import DAY_MS, Progress, Request, Swept, pages
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Mutation, Row, RowKey

log = logging.getLogger(__name__)

_REPLAYED: Final = (UPDATES, REGISTRATIONS, FAN_OUTS)


@dataclass(frozen=True, slots=True)
class Ages:
    """What a sweep knows of time."""

    today: int
    replay_days: int  # as the settings have it
    oldest_record_day: int | None  # of what is in the feed; None: it is empty

    def over(self, day: int, days: int = 0) -> bool:
        """Whether that day is over by so many days, and everything that was written until its end can no longer be replayed."""
        if self.oldest_record_day is not None and day >= self.oldest_record_day:
            return False
        return self.today - day > max(days, self.replay_days)


def ages(connected: Connections, request: Request, swept: Swept) -> Ages:
    """While the feed does not tell, everything counts as young: the sweep stamps, and forgets nothing."""
    try:
        oldest_day = oldest_record_day(connected.feed)
    except (Unavailable, OSError) as error:
        log.warning("the feed does not tell what is in it; nothing is forgotten this time: %s", error)
        swept.count("feed_not_read")
        oldest_day = 0
    return Ages(request.today, connected.settings.replay_days, oldest_day)


def oldest_record_day(feed: Feed) -> int | None:
    """The day of the oldest record that the pipeline could read again."""
    times_ms = [time_ms for topic in _REPLAYED for time_ms in _oldest_ms(feed, topic)]
    return min(times_ms) // DAY_MS if times_ms else None


def _oldest_ms(feed: Feed, topic: str) -> Iterator[int]:
    newest = feed.newest(topic)
    for partition, position in feed.oldest(topic).items():
        if position.offset < newest[partition].offset:
            records = feed.read(topic, partition, position.offset, position.offset + 1)
            yield records[0].time_ms if records else 0  # it was trimmed a moment ago: what follows it is not known


def epochs(connected: Connections) -> Callable[[str], int]:
    """The epoch of an application, as it was when it was first asked for: a reset that comes meanwhile is for the next sweep."""
    return cache(connected.manifest.epoch)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep does with one row: write these stamps, forget those cells."""

    stamps: Sequence[Cell] = ()
    forgets: Sequence[Cell] = ()


Plans = Sequence[tuple[RowKey, Plan]]


class Editor:
    """Makes plans and carries them out: many rows in one call, and what fails is left for the next time."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._dry_run = request.dry_run
        self._told = told

    def planned(self, table: str, partition: int, plan: Callable[[bytes, Row], Plan], swept: Swept) -> Iterable[Plans]:
        """Of all rows of a partition, page by page, those with which something is to be done."""
        for page in pages(self._connected, table, partition, swept, self._told):
            plans = ((RowKey(table, partition, key), plan(key, row)) for key, row in page)
            yield [(row, plan) for row, plan in plans if plan.stamps or plan.forgets]

    def carry_out(self, plans: Plans, swept: Swept) -> None:
        """A stamp proves nothing until another sweep has read it back; so neither the order nor half of it matters."""
        stamps = [mutation for row, plan in plans for mutation in _mutations(row, plan.stamps)]
        forgets = [mutation for row, plan in plans for mutation in _mutations(row, plan.forgets)]
        stamped, forgotten = (sum(len(one.cells) for one in some) for some in (stamps, forgets))
        swept.count("stamped", stamped)
        swept.proposed += forgotten
        if self._dry_run or not plans:
            return
        try:
            self._connected.table.write(stamps)
            self._connected.table.forget(forgets)
            swept.done += forgotten
        except (Unavailable, OSError) as error:
            log.warning("%d rows stay as they are until the next time: %s", len(plans), error)
            swept.left += len(plans)


def _mutations(row: RowKey, cells: Sequence[Cell]) -> list[Mutation]:
    return [Mutation(row, cells[start : start + CELLS_PER_WRITE_MAX]) for start in range(0, len(cells), CELLS_PER_WRITE_MAX)]
