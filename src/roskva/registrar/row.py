"""A client's row in memory: its cells, and what is derived from them step by step.

The row takes cells in any order and keeps the winners, by the table's own rule, so a cache that applied every durable write equals the
table. Derived and kept current: the digest of the registrations, what is pending, what waits for an acknowledgement. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from roskva.model import ClientId, ObjectKey, epoch_of, name_of
from roskva.protocol.messages import BUCKETS
from roskva.protocol.summaries import SetDigest, bucket_of
from roskva.registrar.cells import (
    CREATED,
    LOG,
    PENDING,
    REG,
    REGISTERED,
    SEEN,
    SEQNO,
    UNKNOWN,
    Created,
    Pending,
    interval_ms_of,
    is_registered,
    is_waiting,
    log_name,
    read_created,
    read_log_name,
    read_pending,
)
from roskva.table.interface import Cell, wins

_LARGE_ABOVE: Final = 1_000  # registrations; to walk over fewer costs little


class Standing(NamedTuple):
    """Where a registration stands: the seqno of the last operation on it, and whether that registered or unregistered."""

    seqno: int
    registered: bool


class Waiting(NamedTuple):
    """A stored notification that its client has not acknowledged."""

    object: ObjectKey
    seqno: int
    version: int | None  # None: unknown


def _mark(names: dict[bytes, None], name: bytes, present: bool) -> None:
    if present:
        names[name] = None
    else:
        names.pop(name, None)


class ClientRow:
    __slots__ = ("_by_bucket", "_cells", "_pending", "_waiting", "client", "created", "digest", "epoch", "intervals")

    def __init__(self, client: ClientId, cells: Iterable[Cell] = (), epoch: int = 0) -> None:
        self.client = client
        self.epoch = epoch  # of the application: registrations of an older one no longer count
        self.created: Created | None = None  # absent: collected or lost
        self.digest = SetDigest()
        self.intervals: dict[ObjectKey, int] | None = None  # in ms, of the registrations that have one
        self._cells: dict[bytes, Cell] = {}
        # Sets of names, mostly empty: an empty dictionary takes a third of the memory of an empty set.
        self._pending: dict[bytes, None] = {}
        self._waiting: dict[bytes, None] = {}
        self._by_bucket: list[dict[ObjectKey, None]] | None = None  # of a large row that is being synced
        self.apply(cells)

    def apply(self, cells: Iterable[Cell]) -> None:
        """Take in cells that are durable. The order does not matter, nor do repeats."""
        for cell in cells:
            old = self._cells.get(cell.name)
            if old is None or wins(cell, old):
                self._cells[cell.name] = cell
                self._derive(old, cell)

    def _derive(self, old: Cell | None, new: Cell) -> None:
        name = new.name
        if name.startswith(REG):
            key = ObjectKey(name[len(REG) :])
            if epoch_of(key) != self.epoch:
                return
            was, now = old is not None and is_registered(old), is_registered(new)
            if now and not was:
                self.digest.add(name_of(key))
                if self._by_bucket is not None:
                    self._by_bucket[bucket_of(name_of(key))][key] = None
            elif was and not now:
                self.digest.remove(name_of(key))
                if self._by_bucket is not None:
                    self._by_bucket[bucket_of(name_of(key))].pop(key, None)
            self._note_interval(key, interval_ms_of(new))
        elif name.startswith(PENDING):
            if read_pending(new) is None:  # as nearly all are
                self._pending.pop(name, None)
            elif not self.outdated(ObjectKey(name[len(PENDING) :])):
                self._pending[name] = None
        elif name.startswith((LOG, UNKNOWN)):
            if self.epoch == 0 or not self.outdated(read_log_name(new).object):
                _mark(self._waiting, name, is_waiting(new))
        elif name == CREATED:
            self.created = read_created(new)

    def _note_interval(self, key: ObjectKey, interval_ms: int) -> None:
        if interval_ms:
            if self.intervals is None:
                self.intervals = {}
            self.intervals[key] = interval_ms
        elif self.intervals is not None:
            self.intervals.pop(key, None)

    def interval_ms(self, key: ObjectKey) -> int:
        """At most one notification of this object in so long; 0: as its application has it."""
        return 0 if self.intervals is None else self.intervals.get(key, 0)

    def outdated(self, key: ObjectKey) -> bool:
        """Of an epoch before the last reset: nothing is owed for it. A later epoch than ours means that we have not heard of a reset."""
        return self.epoch != 0 and epoch_of(key) < self.epoch

    def _live(self, name: bytes) -> Cell | None:
        """A deleted cell is kept, since it still wins over older ones, and reads as absent."""
        cell = self._cells.get(name)
        return None if cell is None or cell.value is None else cell

    @property
    def seqno(self) -> int:
        cell = self._live(SEQNO)
        return 0 if cell is None else cell.timestamp

    @property
    def session_tag(self) -> bytes:
        """Of the session that was granted last."""
        cell = self._live(SEQNO)
        return b"" if cell is None or cell.value is None else cell.value

    @property
    def seen_day(self) -> int:
        cell = self._live(SEEN)
        return 0 if cell is None else cell.timestamp

    @property
    def empty(self) -> bool:
        return not any(cell.value is not None for cell in self._cells.values())

    @property
    def size(self) -> int:
        """Cells, whatever they say."""
        return len(self._cells)

    @property
    def large(self) -> bool:
        return self.digest.count > _LARGE_ABOVE

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def waits(self) -> bool:
        """Whether any notification is stored here that its client has not acknowledged."""
        return bool(self._waiting)

    def registration(self, key: ObjectKey) -> Cell | None:
        """The last operation on this registration: registered or unregistered, at its seqno."""
        return self._live(REG + key)

    def standing(self, key: ObjectKey) -> Standing | None:
        cell = self._cells.get(REG + key)
        return None if cell is None or cell.value is None else Standing(cell.timestamp, is_registered(cell))

    def registered(self) -> Iterator[ObjectKey]:
        """The registrations of the present epoch."""
        for name, cell in self._cells.items():
            if cell.value is not None and cell.value[:1] == REGISTERED and name.startswith(REG):
                key = ObjectKey(name[len(REG) :])
                if epoch_of(key) == self.epoch:
                    yield key

    def registered_in(self, buckets: set[int]) -> list[ObjectKey]:
        """The registrations of the present epoch whose names are in these buckets.

        A large client states its buckets in many messages, and each costs what it names: not a walk over all registrations.
        """
        if not self.large:
            return [key for key in self.registered() if bucket_of(name_of(key)) in buckets]
        if self._by_bucket is None:
            self._by_bucket = [{} for _ in range(BUCKETS)]
            for key in self.registered():
                self._by_bucket[bucket_of(name_of(key))][key] = None
        return [key for bucket in sorted(buckets) if 0 <= bucket < BUCKETS for key in self._by_bucket[bucket]]

    def standings(self) -> Iterator[tuple[ObjectKey, int]]:
        """The same, each with its seqno."""
        for name, cell in self._cells.items():
            if cell.value is not None and cell.value[:1] == REGISTERED and name.startswith(REG):
                key = ObjectKey(name[len(REG) :])
                if epoch_of(key) == self.epoch:
                    yield key, cell.timestamp

    def objects(self) -> Iterator[ObjectKey]:
        """Every object that the client ever registered for, as far as the row remembers."""
        return (ObjectKey(name[len(REG) :]) for name, cell in self._cells.items() if name.startswith(REG) and cell.value is not None)

    def pending(self) -> list[tuple[ObjectKey, int, Pending]]:
        """What is on its way to the Matcher, of the present epoch."""
        found = []
        for name in self._pending:
            cell = self._cells[name]
            pending = read_pending(cell)
            if pending is not None:
                found.append((ObjectKey(name[len(PENDING) :]), cell.timestamp, pending))
        return found

    def is_pending(self, key: ObjectKey, seqno: int) -> bool:
        name = PENDING + key
        return name in self._pending and self._cells[name].timestamp == seqno

    def owes_unknown(self, key: ObjectKey, seqno: int) -> bool:
        """Whether this registration is being repaired, or yielded an "unknown" that its client has not acknowledged."""
        if self.is_pending(key, seqno):
            pending = read_pending(self._cells[PENDING + key])
            if pending is not None and pending.repair:
                return True
        unknown = self.unknown(key)
        return unknown is not None and unknown.timestamp == seqno and is_waiting(unknown)

    def logged(self, key: ObjectKey, seqno: int) -> Cell | None:
        """The notification stored for a registration, waiting or acknowledged."""
        return self._live(log_name(key, seqno))

    def unknown(self, key: ObjectKey) -> Cell | None:
        return self._live(UNKNOWN + key)

    def waiting(self) -> Iterator[Waiting]:
        """What must be sent to the client: stored, unacknowledged, of the present epoch and of a registration that still stands."""
        for stored in self._waiting:
            cell = self._cells[stored]
            key, seqno, unknown = read_log_name(cell)
            if self.standing(key) == (seqno, True):
                yield Waiting(key, seqno, None if unknown else cell.timestamp)
