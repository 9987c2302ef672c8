"""A datastore's log, as capture reads it. The contract that every datastore keeps.

Datastores: stores/postgres, mariadb, mysql, rocksdb.py, files.py. Contract tests: tests/capture/stores/contract.py. Calls
block, and are made from threads; a datastore is safe from several, a reader belongs to one. Nothing here is told of applications,
shards, filters or flows: whoever reads gets everything, once for all who want it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from roskva.capture.positions import Position
from roskva.capture.updates import Change


class Batch(NamedTuple):
    """What a reader found, in the log's order."""

    changes: Sequence[Change]
    # All up to here was read: at least the position of the last change; further, where the log went on without any.
    reached: Position
    bytes_read: int


class Retained(NamedTuple):
    """How much of the log there is."""

    oldest: Position  # what comes after this can be read; all before may be gone
    end: Position  # of the last commit
    bytes_behind: int | None = None  # of log between what was confirmed and the end; None: the datastore cannot tell
    bytes_max: int | None = None  # that it keeps for us; None: no limit but the disk
    # Of a log that goes further back than what was confirmed, since nothing keeps it for us, or lets it go for us: what was confirmed, and
    # bytes of the whole log. None: `oldest` is what was confirmed.
    confirmed: Position | None = None
    bytes_kept: int | None = None
    # Whether it is a standby's, and so may be behind what was read elsewhere. None: the datastore cannot tell.
    follows: bool | None = None
    # Whether it is of one and the same log, however often it is asked for: then the end never goes back, unless something was taken back.
    # False: it may be that of another copy each time.
    same_log: bool = False


class Finding(NamedTuple):
    """One thing that `capture check` has looked at."""

    what: str
    ok: bool
    means: str = ""  # what follows from it
    do: str = ""  # the exact command or setting that mends it


class Malformed(NamedTuple):
    """What of the log could not be read."""

    lines: int  # since the datastore was opened
    last: str  # where the last one is, and why; empty: there was none


class Reader(Protocol):
    """Reads the log from one position on. Belongs to one caravan."""

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        """The next changes, as soon as there are any; none after `timeout_s`. Parts of a commit may come in several batches, so that a
        transaction of a million rows needs no more memory than any other.

        Raises LogCut if what comes next is gone, DatastoreUnavailable if the datastore does not answer, WrongHistory if the log is another
        one now, CaptureRefused if it may not be read or holds what cannot be: then this reader is of no use any more, and another one is
        opened.
        """
        ...

    def close(self) -> None: ...


class Datastore(Protocol):
    @property
    def identity(self) -> str:
        """Of the data, the same at every replica: a datamarker of another identity means nothing here."""
        ...

    def retained(self) -> Retained: ...

    def read_after(self, position: Position) -> Reader:
        """A reader whose first change is the one after this position, even in the middle of a commit.

        Raises LogCut if that change is gone, or was undone by the promotion of a replica that never had it; WrongHistory if the position
        is one that this replica has never had and can say nothing of.
        """
        ...

    def at_time(self, time_s: float) -> Position:
        """All that was committed since then comes after this position; some of before may, too. Raises LogCut if it is gone."""
        ...

    def confirm(self, position: Position) -> None:
        """Nobody needs anything up to this position any more: the datastore may drop it. Never called with an earlier one."""
        ...

    def prepare(self) -> None:
        """Create what reading needs and is not there (publication, slot). Idempotent, and called every ten seconds. Drops nothing."""
        ...

    def check(self) -> list[Finding]:
        """What this needs of the datastore, and whether it is so. Changes nothing."""
        ...

    def close(self) -> None:
        """Ends every reader, too. What was prepared stays."""
        ...


class Memory(Protocol):
    """A few bytes that all publishers of the data share, durably, beside the datamarkers. Both calls block, and raise Unavailable."""

    def recall(self) -> bytes: ...

    def swap(self, before: bytes, after: bytes) -> bool:
        """In one step, if it is still what it was before. False: it is not, or this publisher owns no flow and must leave it alone."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A datastore that must know more of the past than its log says. What it knows it keeps in a memory that it is given, before anything
    else is asked of it."""

    def remember_in(self, memory: Memory) -> None: ...

    def keep(self) -> None:
        """What was read until now. Called before datamarkers are stored, and every second. Raises Unavailable."""
        ...


@runtime_checkable
class Lenient(Protocol):
    """A datastore that passes over what it cannot read, and hands it out as a change that says so (updates.MALFORMED)."""

    def malformed(self) -> Malformed: ...


@runtime_checkable
class Signing(Protocol):
    """A datastore that writes words of its own into the log, where other users of the database could write the same."""

    def sign_with(self, secret: Callable[[], str]) -> None:
        """Before anything else is asked of it: what its own words are known by, the same for all publishers of the data, for as long as
        there are datamarkers. To ask for it blocks, and raises Unavailable."""
        ...
