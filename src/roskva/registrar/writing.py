"""Durable writes of several clients' rows at once, through to the rows in memory (Thialfi 4.2.2).

A write counts when it returned; until then nobody may act on it, and after a failure nothing in memory may be trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from roskva.errors import Unavailable
from roskva.model import ClientId
from roskva.registrar.cells import packed
from roskva.registrar.counters import Counters
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import Session
from roskva.table.interface import Cell, Mutation
from roskva.table.lanes import TableLanes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowWriter:
    table: TableLanes
    rows: Rows
    sessions: Mapping[ClientId, Session]
    counters: Counters
    settling: Callable[[], bool]
    mark: Callable[[Iterable[ClientId]], Awaitable[None]]

    async def write(self, cells_of: Mapping[ClientId, list[list[Cell]]]) -> set[ClientId]:
        """Write cells of several clients' rows, each group of them whole; answers the clients whose write failed.

        While members settle, another gateway may own the client: a mark before, for a crash, and one after, for a reader in between.
        """
        if not cells_of:
            return set()
        absent = [client for client in cells_of if client not in self.sessions] if self.settling() else []
        if not await self._marked(absent):
            return set(cells_of)
        by_partition: dict[int, list[tuple[ClientId, list[list[Cell]]]]] = {}
        for client, groups in cells_of.items():
            by_partition.setdefault(self.rows.key(client).partition, []).append((client, packed(groups)))
        failures = await asyncio.gather(*(self._write_partition(clients) for clients in by_partition.values()))
        if not await self._marked(absent):
            return set(cells_of)
        return set().union(*failures)

    async def _marked(self, clients: list[ClientId]) -> bool:
        try:
            if clients:
                await self.mark(clients)
        except Unavailable as error:
            log.warning("marks of %d clients could not be written: %s", len(clients), error)
            return False
        return True

    async def _write_partition(self, clients: list[tuple[ClientId, list[list[Cell]]]]) -> set[ClientId]:
        try:
            await self.table.write([Mutation(self.rows.key(client), cells) for client, writes in clients for cells in writes])
        except BaseException as error:
            # Whatever was raised, these rows may or may not have landed: nothing in memory may be trusted.
            for client, _ in clients:
                self.rows.drop(client)
            if not isinstance(error, Unavailable):
                raise
            log.warning("rows of %d clients could not be written: %s", len(clients), error)
            self.counters.failed_writes += 1
            return {client for client, _ in clients}
        for client, writes in clients:
            for cells in writes:
                self.rows.apply(client, cells)
        return set()
