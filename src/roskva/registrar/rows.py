"""Client rows in memory: a bounded, write-through cache over the table that may be dropped at any moment (Thialfi 4.2.2).

Every durable write of this process is given to `apply`; one that lands while the row is being read is not lost to the cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from roskva.errors import Unavailable
from roskva.model import ClientId
from roskva.registrar.cells import CREATED, client_row, read_created
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell, RowKey
from roskva.table.lanes import TableLanes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Cached:
    row: ClientRow
    used_s: float


@dataclass(slots=True)
class _Loading:
    readers: int = 0
    void: bool = False  # dropped meanwhile
    meanwhile: list[Cell] = field(default_factory=list)


class Rows:
    def __init__(
        self,
        table: TableLanes,
        partitions: int,
        cached_max: int,
        clock: Callable[[], float],
        epoch_of: Callable[[str], int],
    ) -> None:
        self._table = table
        self._partitions = partitions
        self._cached_max = cached_max
        self._clock = clock
        self._epoch_of = epoch_of
        self._cached: OrderedDict[ClientId, _Cached] = OrderedDict()  # those that were used longest ago first
        self._loading: dict[ClientId, _Loading] = {}

    def key(self, client: ClientId) -> RowKey:
        return client_row(client, self._partitions)

    def __len__(self) -> int:
        return len(self._cached)

    def peek(self, client: ClientId) -> ClientRow | None:
        cached = self._cached.get(client)
        return None if cached is None else cached.row

    async def get(self, client: ClientId, fresh: bool = False) -> ClientRow:
        """The client's row. Raises Unavailable when it cannot be read."""
        return await self._one(client, fresh, keep=True)

    async def look(self, client: ClientId) -> ClientRow:
        """The row as the table has it now, for one look. It is not kept for that: of those who are only there, there may be a million."""
        return await self._one(client, fresh=True, keep=False)

    async def _one(self, client: ClientId, fresh: bool, keep: bool) -> ClientRow:
        if not fresh and (cached := self._cached.get(client)) is not None:
            cached.used_s = self._clock()
            self._cached.move_to_end(client)
            return cached.row
        key = self.key(client)
        self._begin_loading(client)
        try:
            return self._take(client, (await self._table.read([key])).get(key, {}).values(), keep)
        finally:
            self._end_loading(client)

    async def get_many(
        self, clients: Iterable[ClientId], fresh: bool = False, keep: bool = True
    ) -> tuple[dict[ClientId, ClientRow], Unavailable | None]:
        """The rows, from memory where allowed. Those of a partition that cannot be read are absent, and the failure is answered.

        `keep`: in memory, from now on; those that are there already stay there.
        """
        now_s = self._clock()
        found: dict[ClientId, ClientRow] = {}
        missing: list[ClientId] = []
        for client in set(clients):
            cached = None if fresh else self._cached.get(client)
            if cached is None:
                missing.append(client)
            else:
                cached.used_s = now_s
                self._cached.move_to_end(client)
                found[client] = cached.row
        failure: Unavailable | None = None
        if missing:
            loaded, failure = await self._load(missing, keep)
            found.update(loaded)
        return found, failure

    async def _load(self, clients: Sequence[ClientId], keep: bool) -> tuple[dict[ClientId, ClientRow], Unavailable | None]:
        for client in clients:
            self._begin_loading(client)
        failure: Unavailable | None = None
        loaded: dict[ClientId, ClientRow] = {}
        try:
            by_partition: dict[int, list[ClientId]] = {}
            for client in clients:
                by_partition.setdefault(self.key(client).partition, []).append(client)
            groups = list(by_partition.values())
            reads = [self._table.read([self.key(client) for client in group]) for group in groups]
            for group, read in zip(groups, await asyncio.gather(*reads, return_exceptions=True), strict=True):
                if isinstance(read, Unavailable):
                    failure = read
                elif isinstance(read, BaseException):
                    raise read
                else:
                    for client in group:
                        loaded[client] = self._take(client, read.get(self.key(client), {}).values(), keep)
        finally:
            for client in clients:
                self._end_loading(client)
        return loaded, failure

    def _begin_loading(self, client: ClientId) -> None:
        loading = self._loading.get(client)
        if loading is None:
            loading = self._loading[client] = _Loading()
        loading.readers += 1

    def _end_loading(self, client: ClientId) -> None:
        loading = self._loading[client]
        loading.readers -= 1
        if loading.readers == 0:
            del self._loading[client]

    def _take(self, client: ClientId, cells: Iterable[Cell], keep: bool) -> ClientRow:
        try:
            by_name = {cell.name: cell for cell in cells}
            created = read_created(by_name.get(CREATED))
            row = ClientRow(client, by_name.values(), 0 if created is None else self._epoch_of(created.application))
            row.apply(self._loading[client].meanwhile)
        except Exception:
            # Cells that nobody can read are lost: the client of such a row starts anew, and nobody else is held up.
            log.exception("the row of client %s cannot be read; it counts as lost", client)
            return ClientRow(client)
        if self._loading[client].void:
            return row  # somebody dropped the row while it was read: what came may be older than what made them
        if not keep and client not in self._cached:
            return row
        self._cached[client] = _Cached(row, self._clock())
        self._cached.move_to_end(client)
        while len(self._cached) > self._cached_max:
            self._cached.popitem(last=False)
        return row

    def apply(self, client: ClientId, cells: Sequence[Cell]) -> None:
        """These cells of the client's row are durable now."""
        cached = self._cached.get(client)
        if cached is not None:
            cached.row.apply(cells)
        loading = self._loading.get(client)
        if loading is not None:
            loading.meanwhile += cells

    def drop(self, client: ClientId) -> None:
        self._cached.pop(client, None)
        if client in self._loading:
            self._loading[client].void = True

    def drop_all(self) -> None:
        self._cached.clear()
        for loading in self._loading.values():
            loading.void = True

    def drop_epochs_before(self, epoch: int, application: str) -> None:
        """The application was reset. A row that is being read gets its epoch when it has come."""
        outdated = (one.row for one in self._cached.values() if one.row.epoch < epoch)
        for client in [row.client for row in outdated if row.created is not None and row.created.application == application]:
            self.drop(client)

    def evict_idle(self, idle_s: float) -> None:
        before_s = self._clock() - idle_s
        while self._cached and next(iter(self._cached.values())).used_s < before_s:
            self._cached.popitem(last=False)
