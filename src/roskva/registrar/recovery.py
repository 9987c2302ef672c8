"""What is unfinished, and how it is found again: marks in the table, and the registrations that wait for the Matcher's answer.

A mark is written before the row that it points to, so a crash at any point leaves either nothing, or a mark that leads to the row. Marks
are never cleared by readers; each reader keeps a cursor, and old ones expire. What stays unfinished for longer is marked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.model import ClientId, ObjectKey, Registration
from roskva.registrar.row import ClientRow
from roskva.table.lanes import TableLanes
from roskva.table.marks import MarkReader, expired_rows, marks_for

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
    def __init__(
        self, settings: Settings, table: TableLanes, member: str, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._table = table
        self._clock = clock
        self._wall_clock = wall_clock
        self._count = 0
        self._own = member.encode() + b"."
        self._owned: frozenset[int] = frozenset()
        self._reader = MarkReader(settings.mark_bucket_s, settings.mark_retention_s, own=self._own)
        self._expired_s = wall_clock() - 2 * settings.mark_retention_s
        self._unfinished: dict[ClientId, _Unfinished] = {}

    # Marks.

    async def mark(self, clients: Iterable[ClientId]) -> None:
        """Durably note that these clients' rows are about to hold something unfinished."""
        settings = self._settings
        self._count += 1
        unique = self._own + self._count.to_bytes(8, "big")
        await self._table.write(marks_for(clients, self._wall_clock(), settings.mark_bucket_s, settings.partitions, unique))

    def reread(self, owned: frozenset[int]) -> None:
        """Ownership changed: look again at every mark of the partitions that are ours now."""
        for partition in self._owned | owned:
            self._reader.forget(partition)
        self._owned = owned

    async def newly_marked(self) -> list[ClientId]:
        """Clients of ours that others marked since the last look. A partition that cannot be read hides nobody else's marks."""
        now_s = self._wall_clock()
        plans = [self._reader.plan([partition], now_s) for partition in sorted(self._owned)]
        reads = await asyncio.gather(*(self._table.read(plan.rows) for plan in plans), return_exceptions=True)
        clients: dict[ClientId, None] = {}
        for plan, read in zip(plans, reads, strict=True):
            if isinstance(read, Unavailable):
                log.warning("marks cannot be read now: %s", read)
            elif isinstance(read, BaseException):
                raise read
            else:
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
        wall_s = self._wall_clock()
        rows = expired_rows(sorted(self._owned), self._expired_s, wall_s, settings.mark_bucket_s, settings.mark_retention_s)
        if rows:
            await asyncio.to_thread(self._table.table.delete_rows, rows)
        self._expired_s = wall_s

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
