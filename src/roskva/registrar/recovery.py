"""What is unfinished, and how it is found again: marks in the table, and the registrations that wait for the Matcher's answer.

A mark is written before the row that it points to, so a crash at any point leaves either nothing, or a mark that leads to the row. Marks
are never cleared by readers; each reader keeps a cursor, and old ones expire. What stays unfinished for longer is marked again.

At `unfinished_max` what comes is not kept in memory: it is shed, and a scan of the marks finds it again (scanning.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.model import ClientId, ObjectKey, Registration, client_partition
from roskva.registrar.counters import Counters
from roskva.registrar.row import ClientRow
from roskva.registrar.scanning import UNKNOWN_AGE_S, Scan
from roskva.registrar.wheel import SLOT_S, Wheel
from roskva.table.lanes import TableLanes
from roskva.table.marks import MarkReader, head_in, head_row, marks_for, partitions_of

log = logging.getLogger(__name__)

_REPEAT_AFTER_S: Final = 5.0  # a registration usually comes back within a second
_REPEAT_PAUSE_MAX_S: Final = 60.0
_CLIENTS_AT_A_TIME: Final = 500
_MARKED_AT_A_TIME: Final = 1_000


@dataclass(slots=True)
class _Appended:
    """A registration that was appended to the feed by this process, and has not come back."""

    due_s: float  # when to append it again, if it is still pending then
    pause_s: float
    since_s: float  # when it was first appended


@dataclass(slots=True)
class _Unfinished:
    marked_s: float
    registrations: dict[ObjectKey, _Appended]
    visit: int | None = None  # the slot of time in which to look whether one of them is overdue


class Recovery:
    def __init__(self, settings: Settings, table: TableLanes, member: str, clock: Callable[[], float], counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._table = table
        self._clock = clock
        self._count = 0
        self._own = member.encode() + b"."
        self._owned: frozenset[int] = frozenset()
        self._reader = MarkReader(settings.mark_bucket_s, settings.mark_retention_s, own=self._own)
        self._unfinished: dict[ClientId, _Unfinished] = {}
        self.on_their_way = 0  # registrations in `_unfinished`
        self._due: Wheel[ClientId] = Wheel()
        self._turn = 0  # of the scan
        self._scan = Scan(settings.mark_bucket_s, settings.mark_retention_s, settings.scan_s)
        self._taking_over: dict[int, float] = {}  # partitions whose marks were not all read since they are ours, and when that began
        self.taken_over: dict[int, float] = {}  # those of which all were: whoever looks at their clients takes them out

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
        self._taking_over = dict.fromkeys(owned - self._owned, self._clock())
        self.taken_over.clear()
        self._owned = owned
        self._scan.forget()

    async def newly_marked(self, room: int | None = None) -> list[ClientId]:
        """Clients of ours that others marked since the last look. A partition that cannot be read hides nobody else's marks.

        No more than `room` of them: the others are shed.
        """
        unknown = [partition for partition in sorted(self._owned) if self._reader.unknown(partition)]
        await self._read_marks(unknown)
        clients = await self._read_marks(sorted(self._owned))
        due = [mutation for mutation in self._reader.to_raise(self._clock()) if self._may_raise(mutation.row.partition)]
        try:
            await self._table.write(due)
        except Unavailable as error:
            log.warning("heads of marks cannot be raised now: %s", error)  # the next round tries again; what was read counts
        except Exception:
            log.exception("heads of marks cannot be raised")  # as above: marks that were read are not read again
        if room is not None and len(clients) > room:
            self.shed_marked(clients[room:])
            del clients[room:]
        return clients

    def _may_raise(self, partition: int) -> bool:
        head = self._reader.head(partition)
        return partition in self._owned and head is not None and not self._scan.holds_head(partition, head)

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
                if plan.full and plan.partition in self._taking_over:
                    self.taken_over[plan.partition] = self._taking_over.pop(plan.partition)
        return list(clients)

    async def refresh(self) -> None:
        """Mark again what is unfinished for long, and delete the marks that have expired."""
        settings = self._settings
        now_s = self._clock()
        held = {partition for partition in self._owned if not self._may_raise(partition)}
        aged = [
            client
            for client, one in self._unfinished.items()
            if now_s - one.marked_s > settings.mark_retention_s / 2
            # While the scan holds the head, no mark comes nearer to its end; to mark again would only make its bucket grow.
            and (math.isinf(one.marked_s) or client_partition(client, settings.partitions) not in held)
        ]
        for start in range(0, len(aged), _MARKED_AT_A_TIME):
            some = aged[start : start + _MARKED_AT_A_TIME]
            await self.mark(some)
            for client in some:
                if client in self._unfinished:
                    self._unfinished[client].marked_s = now_s
        rows = [row for row in self._reader.expired() if row.partition in self._owned and self._scan.needs(row.partition) is None]
        if rows:
            await asyncio.to_thread(self._table.table.delete_rows, rows)
            self._reader.deleted(rows)

    # What was shed.

    def shed_marked(self, clients: Sequence[ClientId]) -> None:
        """Whose marks were seen, and whose rows nobody will look at now."""
        self._counters.shed += len(clients)
        for client in clients:
            self._dropped(client, UNKNOWN_AGE_S)

    def shed_unfinished(self) -> None:
        """Give back the memory. What settles without us settles; the scan finds the rest."""
        now_s = self._clock()
        self._counters.shed += self.on_their_way
        for client, unfinished in self._unfinished.items():
            self._dropped(client, now_s - unfinished.marked_s)
        self._unfinished = {}
        self.on_their_way = 0

    def _dropped(self, client: ClientId, age_s: float) -> None:
        partition = client_partition(client, self._settings.partitions)
        self._scan.dropped(partition, self._reader.head(partition), age_s)

    def is_behind(self, partition: int) -> bool:
        """What was shed long ago is still not found again, since there is no room: registrations must wait."""
        return self._scan.is_behind(partition, self._reader.head(partition))

    async def found_again(self, room: int) -> list[ClientId]:
        """Some of the clients whose work was shed, when half of the room for it is free: the others are found in later rounds."""
        if not self._scan or self.on_their_way > self._settings.unfinished_max // 2:
            return []
        clients: list[ClientId] = []
        self._turn += 1
        for partition in self._in_turn():
            head = self._reader.head(partition)
            left = min(room, _CLIENTS_AT_A_TIME) - len(clients)
            rows = [] if head is None or left <= 0 else self._scan.plan(partition, head, self._clock())
            if rows and head is not None:
                try:
                    read = await self._table.read(rows)
                except Unavailable as error:
                    log.warning("marks cannot be scanned now: %s", error)
                    continue
                except Exception:
                    log.exception("marks cannot be scanned")  # the scan is past those of the others: they are not given up
                    continue
                clients += self._scan.take(rows, read, head, left)
        for client in clients:
            # Its mark may be about to expire, now that the scan is past it: what is still unfinished is marked again soon.
            if client in self._unfinished:
                self._unfinished[client].marked_s = -math.inf
        self._counters.scanned += len(clients)
        return clients

    def _in_turn(self) -> list[int]:
        """Another one first in each round: one whose rows cannot be read is scanned over and over, and must not hold up the others."""
        partitions = self._settings.partitions
        return sorted(self._owned, key=lambda partition: (partition + self._turn) % partitions)

    # Registrations on their way.

    def appended(self, events: Sequence[Registration], marked: bool = True) -> None:
        """These were appended to the feed, or are about to be. `marked`: just now, by us; else who knows when."""
        now_s = self._clock()
        for event in events:
            unfinished = self._unfinished.get(event.client)
            known = None if unfinished is None else unfinished.registrations.get(event.object)
            if known is None and self.on_their_way >= self._settings.unfinished_max:
                self._counters.shed += 1
                self._dropped(event.client, UNKNOWN_AGE_S if not marked else 0.0 if unfinished is None else now_s - unfinished.marked_s)
                continue
            if unfinished is None:
                unfinished = self._unfinished[event.client] = _Unfinished(now_s if marked else -math.inf, {})
            pause_s = _REPEAT_AFTER_S if known is None else min(known.pause_s * 2, _REPEAT_PAUSE_MAX_S)
            self.on_their_way += known is None
            unfinished.registrations[event.object] = _Appended(now_s + pause_s, pause_s, now_s if known is None else known.since_s)
            self._look_at(event.client, unfinished, now_s + pause_s)

    def _look_at(self, client: ClientId, unfinished: _Unfinished, due_s: float) -> None:
        """Then, unless a look is planned before that."""
        if unfinished.visit is None or due_s < unfinished.visit * SLOT_S:
            unfinished.visit = self._due.put(client, due_s)

    def not_appended(self, events: Iterable[Registration]) -> None:
        for event in events:
            unfinished = self._unfinished.get(event.client)
            if unfinished is not None and event.object in unfinished.registrations:
                due_s = unfinished.registrations[event.object].due_s = self._clock() + 1.0
                self._look_at(event.client, unfinished, due_s)

    def settled(self, client: ClientId, key: ObjectKey) -> None:
        """The Matcher answered, and the answer is durable."""
        unfinished = self._unfinished.get(client)
        if unfinished is not None:
            if unfinished.registrations.pop(key, None) is not None:
                self.on_their_way -= 1
            if not unfinished.registrations:
                del self._unfinished[client]

    def since_s(self, client: ClientId, key: ObjectKey) -> float | None:
        """When this process first sent a registration on its way, by its own clock. None: it did not, or does not remember."""
        unfinished = self._unfinished.get(client)
        known = None if unfinished is None else unfinished.registrations.get(key)
        return None if known is None else known.since_s

    def forget(self, client: ClientId) -> None:
        unfinished = self._unfinished.pop(client, None)
        if unfinished is not None:
            self.on_their_way -= len(unfinished.registrations)

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
        late: list[ClientId] = []
        for slot, client in self._due.take(now_s + SLOT_S):
            unfinished = self._unfinished.get(client)
            if unfinished is None or unfinished.visit != slot:
                continue  # it settled, or is looked at in another one
            unfinished.visit = None
            due_s = min(known.due_s for known in unfinished.registrations.values())
            if due_s > now_s:
                self._look_at(client, unfinished, due_s)
                continue
            self._look_at(client, unfinished, now_s + _REPEAT_AFTER_S)  # whatever comes of the look at its row
            late.append(client)
            if len(late) == _CLIENTS_AT_A_TIME:
                break
        return late
