"""What the tasks of both queries have in common: they tell Registrars, bury what is malformed, and count what they did.

Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import pyarrow as pa

from roskva.errors import FeedFull, Unavailable
from roskva.feed.interface import DEAD_LETTERS, Entry
from roskva.matcher.core import drop_copies
from roskva.matcher.scratch import untold_cell
from roskva.model import OUTCOME_LOST, OUTCOME_UPDATE, PUT_ASIDE, SETTLED, Propagation, Stamps, are_private
from roskva.pipeline.connections import Connections
from roskva.pipeline.events import decode_dead_letter
from roskva.pipeline.scratch import put
from roskva.probes import reached
from roskva.propagation.patience import Backoff, persist

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What a task did; one row of these leaves it, and the query sums them into its health."""

    updates: int = 0
    registrations: int = 0
    fan_outs: int = 0
    dead_letters: int = 0
    propagations: int = 0
    blind_writes: int = 0
    dropped_copies: int = 0
    retries: int = 0
    scratched: int = 0  # versions, and clients not told, that were put aside
    left_pending: int = 0  # registrations that were left to their owners to repeat
    invalidated: int = 0  # registrations that an invalidation had made anew; what was put aside, or no longer lives, is none of them

    def as_arrow(self) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([getattr(self, name)], pa.int64()) for name in COUNTS]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


COUNTS: Final = tuple(item.name for item in fields(Counts))
COUNTS_SCHEMA: Final = ", ".join(f"{name} long" for name in COUNTS)
_ARROW: Final = pa.schema([(name, pa.int64()) for name in COUNTS])


class Teller:
    def __init__(self, connected: Connections, counts: Counts) -> None:
        self._connected = connected
        self._counts = counts

    def tell(self, propagations: Sequence[Propagation], stamps: Sequence[Stamps] = ()) -> int:
        """Returns when nothing is owed for any of them: told, or put aside for a sweep. Answers how many Registrars have settled.

        Not among those: what was put aside, and registrations of which nothing lives any more.
        """
        backoff = Backoff("putting aside what cannot be told", self._connected.around)
        settled = 0
        while propagations:
            verdicts = self.offer(propagations, stamps=stamps)
            settled += sum(verdict == SETTLED for verdict in verdicts)
            propagations = self._put_aside(propagations, verdicts)
            if propagations:
                backoff.pause(f"neither {len(propagations):,} clients' rows nor scratch can be written")
        return settled

    def offer(self, propagations: Sequence[Propagation], patient: bool = True, stamps: Sequence[Stamps] = ()) -> Sequence[int]:
        """The verdict of each: whoever calls this must see to what is PUT_ASIDE. With the stamps of sampled updates among them."""
        if not propagations:
            return []
        links = self._connected.links
        more: dict[str, Any] = {"stamps": stamps} if stamps else {}
        if not patient:
            more["patient"] = False
        told = persist("telling Registrars", partial(links.propagate, propagations, **more), self._connected.around)
        self._counts.propagations += len(propagations)
        self._counts.blind_writes += told.blind_writes
        self._counts.retries += told.retries
        drops = drop_copies(propagations, told.verdicts, self._connected.settings.partitions)
        try:
            if drops:
                self._connected.table.write(drops)
                self._counts.dropped_copies += len(drops)
        except (Unavailable, OSError) as error:
            log.warning("copies of dead registrations stay until the object changes again: %s", error)
        return told.verdicts

    def _put_aside(self, propagations: Sequence[Propagation], verdicts: Sequence[int]) -> list[Propagation]:
        """Answers those that scratch does not take either."""
        aside = [told for told, verdict in zip(propagations, verdicts, strict=True) if verdict == PUT_ASIDE]
        if not aside:
            return []
        reached("scratch: a client's row cannot be written")
        # What a registration yields is not put aside: its pending marker is in the row that cannot be written, and its owner repeats it.
        cells = {untold_cell(told): told for told in aside if told.outcome in (OUTCOME_UPDATE, OUTCOME_LOST)}
        left = put(self._connected.table, cells, self._connected.settings.partitions)
        self._counts.left_pending += len(aside) - len(cells)
        self._counts.scratched += len(cells) - len(left)
        return [cells[cell] for cell in left]

    def bury(self, letters: Sequence[Entry]) -> None:
        if not letters:
            return

        def append() -> None:
            try:
                self._connected.feed.append_once(DEAD_LETTERS, letters)
            except FeedFull as error:
                # What is unusable must not hold up what is usable. The log still says what it was.
                log.error("%s The dead letters: %s", error, "; ".join(self._logged(letter) for letter in letters[:20]))

        persist("writing dead letters", append, self._connected.around)
        self._counts.dead_letters += len(letters)

    def _logged(self, entry: Entry) -> str:
        """The letter, or where its record is if that must not be in a log."""
        letter = decode_dead_letter(entry.value)
        if are_private(letter.application, self._connected.settings.applications):
            return f"{letter.application} {letter.topic}/{letter.partition}@{letter.offset} {letter.code}"
        return entry.value[:500].decode(errors="replace")
