"""What is unfinished, and how it is found again: marks in the table, and the registrations that wait for the Matcher's answer.

A mark is written before the row that it points to, so a crash at any point leaves either nothing, or a mark that leads to the row. Marks
are never cleared by readers; each reader keeps a cursor, and old ones expire. What stays unfinished for longer is marked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.model import ClientId, ObjectKey, Registration
from roskva.registrar.row import ClientRow
from roskva.table.lanes import TableLanes
from roskva.table.marks import MarkReader, head_in, head_row, marks_for, partitions_of

log = logging.getLogger(__name__)

_REPEAT_AFTER_S: Final = 5.0  # a registration usually comes back within a second
_REPEAT_PAUSE_MAX_S: Final = 60.0
_CLIENTS_AT_A_TIME: Final = 500


@dataclass(slots=True)
class _Appended:
    """A registration that was appended to the feed by this process, and has not come back."""

    due_s: float  # when to append it again, if it is still pending then
    pause_s: float


@dataclass(slots=True)
class _Unfinished:
    marked_s: float
    registrations: dict[ObjectKey, _Appended]


class Recovery:
    def __init__(self, settings: Settings, table: TableLanes, member: str, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._table = table
        self._clock = clock
        self._count = 0
        self._own = member.encode() + b"."
        self._owned: frozenset[int] = frozenset()
        self._reader = MarkReader(settings.mark_bucket_s, settings.mark_retention_s, own=self._own)
        self._unfinished: dict[ClientId, _Unfinished] = {}

    @property
    def unfinished(self) -> Collection[ClientId]:
        """Whose registrations are on their way, as far as this process appended them."""
        return self._unfinished.keys()

    # Marks.

    async def mark(self, clients: Iterable[ClientId]) -> None:
        """Durably note that these clients' rows are about to hold something unfinished."""
        clients = list(clients)
        if not clients:
            return
        self._count += 1
        unique = self._own + self._count.to_bytes(8, "big")
        heads = await self._heads(partitions_of(clients, self._settings.partitions))
        await self._table.write(marks_for(clients, heads, self._settings.partitions, unique))

    async def _heads(self, partitions: Iterable[int]) -> dict[int, int]:
        """As this process saw them in its last round, or else from the table."""
        known = {partition: self._reader.head(partition) for partition in partitions}
        unknown = [head_row(partition) for partition, head in known.items() if head is None]
        rows = await self._table.read(unknown)
        return {partition: head_in(rows[head_row(partition)]) if head is None else head for partition, head in known.items()}

    def reread(self, owned: frozenset[int]) -> None:
        """Ownership changed: look again at every mark of the partitions that are ours now."""
        for partition in self._owned | owned:
            self._reader.forget(partition)
        self._owned = owned

    async def newly_marked(self) -> list[ClientId]:
        """Clients of ours that others marked since the last look. A partition that cannot be read hides nobody else's marks."""
        unknown = [partition for partition in sorted(self._owned) if self._reader.unknown(partition)]
        await self._read_marks(unknown)
        clients = await self._read_marks(sorted(self._owned))
        due = self._reader.to_raise(self._clock())
        try:
            await self._table.write([mutation for mutation in due if mutation.row.partition in self._owned])
        except Unavailable as error:
            log.warning("heads of marks cannot be raised now: %s", error)  # the next round tries again; what was read counts
        return clients

    async def _read_marks(self, partitions: Iterable[int]) -> list[ClientId]:
        plans = [self._reader.plan(partition, self._clock()) for partition in partitions]
        reads = await asyncio.gather(*(self._table.read(plan.rows) for plan in plans), return_exceptions=True)
        clients: dict[ClientId, None] = {}
        for plan, read in zip(plans, reads, strict=True):
            if isinstance(read, Unavailable):
                log.warning("marks cannot be read now: %s", read)
            elif isinstance(read, Exception):
                log.error("marks cannot be read", exc_info=read)
            elif isinstance(read, BaseException):
                raise read
            elif plan.partition in self._owned:
                clients |= dict.fromkeys(self._reader.take(plan, read))
        return list(clients)

    async def refresh(self) -> None:
        """Mark again what is unfinished for long, and delete the marks that have expired."""
        settings = self._settings
        now_s = self._clock()
        aged = [client for client, one in self._unfinished.items() if now_s - one.marked_s > settings.mark_retention_s / 2]
        await self.mark(aged)
        for client in aged:
            if client in self._unfinished:
                self._unfinished[client].marked_s = now_s
        rows = [row for row in self._reader.expired() if row.partition in self._owned]
        if rows:
            await asyncio.to_thread(self._table.table.delete_rows, rows)
            self._reader.deleted(rows)

    # Registrations on their way.

    def appended(self, events: Sequence[Registration]) -> None:
        now_s = self._clock()
        for event in events:
            unfinished = self._unfinished.setdefault(event.client, _Unfinished(now_s, {}))
            known = unfinished.registrations.get(event.object)
            pause_s = _REPEAT_AFTER_S if known is None else min(known.pause_s * 2, _REPEAT_PAUSE_MAX_S)
            unfinished.registrations[event.object] = _Appended(now_s + pause_s, pause_s)

    def not_appended(self, events: Iterable[Registration]) -> None:
        for event in events:
            unfinished = self._unfinished.get(event.client)
            if unfinished is not None and event.object in unfinished.registrations:
                unfinished.registrations[event.object].due_s = self._clock() + 1.0

    def settled(self, client: ClientId, key: ObjectKey) -> None:
        """The Matcher answered, and the answer is durable."""
        unfinished = self._unfinished.get(client)
        if unfinished is not None:
            unfinished.registrations.pop(key, None)
            if not unfinished.registrations:
                del self._unfinished[client]

    def forget(self, client: ClientId) -> None:
        self._unfinished.pop(client, None)

    def finished(self, row: ClientRow) -> list[ObjectKey]:
        """What this process appended and the row shows as done: the answer came to another process, by a blind write say."""
        unfinished = self._unfinished.get(row.client)
        if unfinished is None:
            return []
        pending = {key for key, _, _ in row.pending()}
        finished = [key for key in unfinished.registrations if key not in pending]
        for key in finished:
            self.settled(row.client, key)
        return finished

    def due(self, client: ClientId, events: Iterable[Registration]) -> list[Registration]:
        """Of what the row shows as pending, that which this process did not append, or so long ago that it should again."""
        unfinished = self._unfinished.get(client)
        if unfinished is None:
            return list(events)
        now_s = self._clock()
        return [event for event in events if (known := unfinished.registrations.get(event.object)) is None or known.due_s <= now_s]

    def postpone(self, clients: Iterable[ClientId]) -> None:
        """Their rows cannot be read now: others first."""
        due_s = self._clock() + _REPEAT_AFTER_S
        for client in clients:
            if client in self._unfinished:
                for known in self._unfinished[client].registrations.values():
                    known.due_s = max(known.due_s, due_s)

    def overdue(self) -> list[ClientId]:
        """Clients with registrations that should have come back by now. Their rows tell what to repeat."""
        now_s = self._clock()
        late = (
            client
            for client, unfinished in self._unfinished.items()
            if any(known.due_s <= now_s for known in unfinished.registrations.values())
        )
        return [client for client, _ in zip(late, range(_CLIENTS_AT_A_TIME), strict=False)]
