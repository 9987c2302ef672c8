"""What the tasks of both queries have in common: they tell Registrars, bury what is malformed, and count what they did.

Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import pyarrow as pa

from roskva.errors import FeedFull, Unavailable
from roskva.feed.interface import DEAD_LETTERS, Entry
from roskva.matcher.core import drop_copies
from roskva.model import Propagation
from roskva.pipeline.connections import Connections
from roskva.pipeline.patience import persist

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

    def tell(self, propagations: Sequence[Propagation]) -> None:
        """Returns when nothing is owed for any of them."""
        if not propagations:
            return
        links = self._connected.links
        told = persist("telling Registrars", lambda: links.propagate(propagations), self._connected.around)
        self._counts.propagations += len(propagations)
        self._counts.blind_writes += told.blind_writes
        self._counts.retries += told.retries
        drops = drop_copies(propagations, told.verdicts, self._connected.settings.partitions)
        if not drops:
            return
        try:
            self._connected.table.write(drops)
            self._counts.dropped_copies += len(drops)
        except Unavailable as error:
            log.warning("copies of dead registrations stay until the object changes again: %s", error)

    def bury(self, letters: Sequence[Entry]) -> None:
        if not letters:
            return

        def append() -> None:
            try:
                self._connected.feed.append_once(DEAD_LETTERS, letters)
            except FeedFull as error:
                # What is unusable must not hold up what is usable. The log still says what it was.
                log.error("%s The dead letters: %s", error, [letter.value[:500] for letter in letters[:20]])

        persist("writing dead letters", append, self._connected.around)
        self._counts.dead_letters += len(letters)
