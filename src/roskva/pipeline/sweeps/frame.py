"""What all sweeps share: how one is asked for, how its task looks, how it counts, and the list of them (docs/sweeps.md).

A sweep passes over all rows of a table, partition by partition, beside the service that goes on. Its task proposes, and the owner of
each row does it or refuses; so a sweep that is cut short has left every row either as it was or as it should be, and is begun again.
A task looks like this, and is named in KINDS:

    class Collection:
        def __init__(self, connected: Connections, request: Request, told: Progress) -> None: ...
        def run(self, partition: int) -> Swept: ...

It never raises for a row: what cannot be read or written now is counted (`left`) and is there for the next time. With `dry_run` it
looks and counts (`looked_at`, `proposed`), and neither proposes nor writes anything. Imports no Spark.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.model import DAY_S
from roskva.pipeline.connections import Connections
from roskva.propagation.patience import Backoff
from roskva.table.interface import Row, Table

ROWS_AT_A_TIME: Final = 500
DAY_MS: Final = 1_000 * DAY_S
_TOLD_EVERY_S: Final = 1.0
_READ_TRIES_MAX: Final = 8  # some five seconds


class Swept(msgspec.Struct):
    """What a sweep did. Names of its own go into `counts`."""

    looked_at: int = 0  # rows
    proposed: int = 0  # what was found to be due; in a dry run: would have been proposed
    done: int = 0
    refused: int = 0  # by the owner of the row: it knows better
    left: int = 0  # could not be read or written now: there for the next time
    counts: dict[str, int] = msgspec.field(default_factory=dict)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def add(self, other: Swept) -> None:
        self.looked_at += other.looked_at
        self.proposed += other.proposed
        self.done += other.done
        self.refused += other.refused
        self.left += other.left
        for name, number in other.counts.items():
            self.count(name, number)

    def plus(self, other: Swept) -> Swept:
        total = msgspec.structs.replace(self, counts=dict(self.counts))
        total.add(other)
        return total


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a sweep. It crosses to Spark's workers."""

    sweep: str
    now_ms: int  # of the driver's clock, when the sweep began
    dry_run: bool = False
    lost: frozenset[int] = frozenset()  # for `repair`: the partitions that were lost before it began
    newest: int = (1 << 63) - 1  # for `repair`: the incarnation of the last of these losses; without it no row is left out

    @property
    def today(self) -> int:
        """As the `seen` cells of clients' rows count days."""
        return self.now_ms // DAY_MS


class Progress:
    """Takes word of how far a task has come, and passes it on at most once a second. Without `note` nobody listens."""

    def __init__(self, note: Callable[[Swept], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._note = note
        self._clock = clock
        self._noted_s = float("-inf")

    def so_far(self, swept: Swept) -> None:
        """Call it after every page, with what was done of this partition so far."""
        if self._note is not None and (now_s := self._clock()) - self._noted_s >= _TOLD_EVERY_S:
            self._noted_s = now_s
            self._note(swept)


class Task(Protocol):
    """One sweep in one worker; called for one partition after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None: ...

    def run(self, partition: int) -> Swept:
        """Returns when all rows of this partition were looked at, and what was decided for them is durable."""
        ...


class Kind(NamedTuple):
    """One of the sweeps."""

    name: str
    does: str  # for help and status
    task: str  # module:class
    every: str = ""  # the setting that says how often it runs, in seconds; 0: only by hand. Empty: not by time
    only_if: str = ""  # module:function(table, settings) -> bool; when it is due and this says no, there is nothing to do
    then: str = ""  # by hand, this one follows; on schedule it has its own time


# In the order in which those that are due at the same moment run.
_ALL: Final = (
    Kind(
        "collect",
        "collect clients that were not seen for client_retention_days; then zombies",
        "roskva.pipeline.sweeps.collection:Collection",
        every="collect_every_s",
        then="zombies",
    ),
    Kind(
        "zombies",
        "remove rows of collected or lost clients, and the Matcher's copies of what they registered",
        "roskva.pipeline.sweeps.zombies:Zombies",
        every="zombies_every_s",
    ),
    Kind(
        "purge",
        "remove closed cells that nothing can replay any more: unregistered, done, acknowledged, of epochs before a reset",
        "roskva.pipeline.sweeps.purge:Purge",
        every="purge_every_s",
    ),
    Kind(
        "objects",
        "forget versions of objects that nobody registers and nobody updated for object_retention_days",
        "roskva.pipeline.sweeps.objects:Objects",
        every="objects_every_s",
    ),
    Kind(
        "compare",
        "compare the two views of all registrations: register anew what the Matcher lacks, drop its copies of what is gone",
        "roskva.pipeline.sweeps.comparison:Comparison",
        every="compare_every_s",
    ),
    Kind(
        "scratch",
        "bring home what was put aside because a row could not be written",
        "roskva.pipeline.sweeps.scratched:ScratchSweep",
        every="scratch_every_s",
        only_if="roskva.pipeline.scratch:waiting",
    ),
    Kind(
        "repair",
        "register anew what lost partitions held",
        "roskva.pipeline.sweeps.repairs:RepairSweep",
    ),
)
KINDS: Final = {kind.name: kind for kind in _ALL}


def task_of(name: str) -> type[Task]:
    found: type[Task] = _found(KINDS[name].task)
    return found


def wanted(kind: Kind, table: Table, settings: Settings) -> bool:
    """Whether there is anything to do for a sweep that is due."""
    return not kind.only_if or bool(_found(kind.only_if)(table, settings))


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def pages(connected: Connections, table: str, partition: int, swept: Swept, told: Progress) -> Iterator[list[tuple[bytes, Row]]]:
    """All rows of a partition, page by page. If it cannot be read for some seconds, the rest is left for the next time."""
    after = b""
    while page := _read(connected, partial(_page, connected, table, partition, after)):
        swept.looked_at += len(page)
        yield page
        told.so_far(swept)
        after = page[-1][0]
    if page is None:
        swept.left += 1
        swept.count("partitions_not_read")


def _page(connected: Connections, table: str, partition: int, after: bytes) -> list[tuple[bytes, Row]]:
    return list(connected.table.scan(table, partition, after, ROWS_AT_A_TIME))


def _read(connected: Connections, read: Callable[[], list[tuple[bytes, Row]]]) -> list[tuple[bytes, Row]] | None:
    backoff = Backoff("reading rows for a sweep", connected.around)
    while True:
        try:
            return read()
        except (Unavailable, OSError) as error:
            if backoff.rounds >= _READ_TRIES_MAX:
                return None
            backoff.pause(error)
