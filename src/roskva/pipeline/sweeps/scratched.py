"""The sweep `scratch`: brings home what was put aside, now that it can be written or told again (Thialfi 4.2.6).

A version whose object's row failed is first tried there: while the row still fails, the version stays where it is, and an outage
of hours costs one try per object and sweep. Then it is appended to the feed: only the Matcher's task knows whom to tell (trap 14).
A client that was not told is told from here, it alone: all others have heard. An invalidation goes back to the fan-out. Last, exactly
the cell that was dealt with is forgotten. Whoever dies in between leaves it, and a repeat does no harm; what is put aside again
meanwhile is another cell. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from roskva.errors import FeedFull, Unavailable
from roskva.feed.interface import FAN_OUTS, UPDATES, Entry
from roskva.feed.known import UNPROVEN
from roskva.matcher.cells import object_row, version_cell
from roskva.matcher.events import encode_invalidation
from roskva.matcher.forms import Stamp
from roskva.matcher.scratch import SCRATCH, Homeless, Unwalked, read_cell
from roskva.model import PUT_ASIDE, Propagation, name_to_text, split_object_key
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.frame import ROWS_AT_A_TIME, Progress, Request, Swept, pages
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.propagation.breaker import Pieces
from roskva.table.interface import Cell, Mutation, RowKey

log = logging.getLogger(__name__)

# For each page, in search of what fails: enough to find every single row, if the table answers quickly.
_CALLS_MAX: Final = 2 * ROWS_AT_A_TIME
_TRIED_S: Final = 2.0

T = TypeVar("T")


class _Found(NamedTuple):
    row: RowKey
    cell: Cell
    stands_for: Homeless | Propagation | Unwalked


class ScratchSweep:
    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._partitions = connected.settings.partitions
        self._dry_run = request.dry_run
        self._told = told
        self._teller = Teller(connected, Counts())

    def run(self, partition: int) -> Swept:
        swept = Swept()
        for page in pages(self._connected, SCRATCH, partition, swept, self._told):
            found = [one for key, row in page for cell in row.values() if (one := _read(RowKey(SCRATCH, partition, key), cell))]
            swept.proposed += len(found)
            if not self._dry_run:
                homeless = [one for one in found if isinstance(one.stands_for, Homeless)]
                untold = [one for one in found if isinstance(one.stands_for, Propagation)]
                unwalked = [one for one in found if isinstance(one.stands_for, Unwalked)]
                done = self._forgotten(self._brought_home(homeless)) + self._forgotten(self._told_now(untold))
                done += self._forgotten(self._in_pieces(unwalked, self._walk_on))
                swept.done += done
                swept.left += len(found) - done
        return swept

    def _brought_home(self, found: Sequence[_Found]) -> list[_Found]:
        """Those that are in the feed again."""
        by_partition: dict[int, list[_Found]] = {}
        for one in found:
            if isinstance(one.stands_for, Homeless):
                by_partition.setdefault(object_row(one.stands_for.object, self._partitions).partition, []).append(one)
        return [one for some in by_partition.values() for one in self._in_pieces(some, self._write_home)]

    def _write_home(self, found: Sequence[_Found]) -> None:
        """Raises if any of their rows still fails, or if the feed takes no more."""
        homeless = [one.stands_for for one in found if isinstance(one.stands_for, Homeless)]
        self._connected.table.write(
            # The Matcher's task, which it comes to again, decides whether it counts as known.
            [Mutation(object_row(one.object, self._partitions), [version_cell(one.version, "", UNPROVEN)]) for one in homeless]
        )
        self._connected.feed.append(UPDATES, [as_entry(one) for one in homeless])
        reached("scratch: brought home")

    def _walk_on(self, found: Sequence[_Found]) -> None:
        """Back to the fan-out, each from where it was."""
        for one in found:
            if isinstance(one.stands_for, Unwalked):
                invalidation, partition = one.stands_for
                entry = Entry(invalidation.invalidate, encode_invalidation(invalidation))
                self._connected.feed.append_to(FAN_OUTS, partition, [entry])

    def _told_now(self, found: Sequence[_Found]) -> list[_Found]:
        """Those of clients that have heard by now, or need not hear any more."""
        verdicts = self._teller.offer([one.stands_for for one in found if isinstance(one.stands_for, Propagation)], patient=False)
        return [one for one, verdict in zip(found, verdicts, strict=True) if verdict != PUT_ASIDE]

    def _forgotten(self, found: Sequence[_Found]) -> int:
        by_partition = [Mutation(one.row, [one.cell]) for one in found]
        return len(self._in_pieces(by_partition, self._connected.table.forget))

    def _in_pieces(self, items: Sequence[T], work: Callable[[Sequence[T]], None]) -> list[T]:
        """Those for which it worked. What fails is there for the next sweep."""
        search = Pieces(self._connected.around.clock, _CALLS_MAX, _TRIED_S)
        pieces = deque([items] if items else [])
        done: list[T] = []
        while pieces and not search.over():
            piece = pieces.popleft()
            try:
                work(piece)
                done += piece
            except FeedFull as error:
                log.warning("what was put aside stays there: %s", error)
                return done
            except (Unavailable, OSError) as error:
                log.warning("what was put aside cannot be brought home now: %s", error)
                pieces += search.halves(piece)
        return done


def as_entry(homeless: Homeless) -> Entry:
    """A record of the feed "updates": in the standard form, without a source, and marked as brought back once more."""
    application, epoch, name = split_object_key(homeless.object)
    stamp = Stamp(application, epoch, again=True, since=homeless.since, rounds=homeless.rounds + 1)
    value = msgspec.json.encode({"object": name_to_text(name), "version": homeless.version})
    return Entry(homeless.object, value, stamp.encode())


def _read(row: RowKey, cell: Cell) -> _Found | None:
    try:
        return _Found(row, cell, read_cell(cell))
    except ValueError as error:
        log.error("what was put aside cannot be read, and stays there: %s", error)  # perhaps of a later version of the service
        return None
