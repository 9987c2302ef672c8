"""Table, feed and manifest as tasks in fibers see them: blocking calls, over the same stores that gateways use (`stores`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from roskva.feed.interface import Entry, Position, Record
from roskva.model import partition_of
from roskva.simulation.fibers import block
from roskva.simulation.processes import Process
from roskva.simulation.stores import Place, Stores
from roskva.table.interface import Mutation, Row, RowKey, check_mutation
from roskva.table.manifest import COMPLETE, Address, PartitionRecord


def _places(mutations: Sequence[Mutation]) -> list[Place]:
    return list(dict.fromkeys((mutation.row.table, mutation.row.partition) for mutation in mutations))


class BlockingTable:
    """The table as a task in a fiber sees it (table.interface.Table)."""

    def __init__(self, stores: Stores, process: Process) -> None:
        self._stores = stores
        self._process = process

    def write(self, mutations: Sequence[Mutation]) -> None:
        for mutation in mutations:
            check_mutation(mutation)
        if mutations:
            effect = lambda whole: self._stores.land(mutations, whole)  # noqa: E731
            block(self._stores.call(self._process, _places(mutations), effect, write=True, rows=[one.row for one in mutations]))

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        if not rows:
            return {}
        places = list(dict.fromkeys((row.table, row.partition) for row in rows))
        effect = lambda _: self._stores.look(rows, prefix, limit, after)  # noqa: E731
        return dict(block(self._stores.call(self._process, places, effect, write=False, rows=rows)))

    def scan(self, table: str, partition: int, after: bytes = b"", limit: int = 1_000) -> Iterator[tuple[bytes, Row]]:
        keys = sorted(row for row in self._stores.rows if row[:2] == (table, partition) and row.key > after)[:limit]
        found = self.read(keys)
        return iter([(key.key, found[key]) for key in keys if found[key]])

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        for row in rows:
            self._stores.rows.pop(row, None)

    def forget(self, mutations: Sequence[Mutation]) -> None:
        if mutations:
            effect = lambda whole: self._stores.forget(mutations, whole)  # noqa: E731
            block(self._stores.call(self._process, _places(mutations), effect, write=True, rows=[one.row for one in mutations]))

    def incarnation(self, table: str, partition: int) -> int:
        return self._stores.incarnations[Address("table", table, partition)].incarnation

    def complete(self, table: str, partition: int) -> bool:
        return self._stores.incarnations[Address("table", table, partition)].state == COMPLETE

    def close(self) -> None:
        pass


class BlockingFeed:
    """The feed as a task in a fiber sees it: what of feed.interface.Feed tasks use."""

    def __init__(self, stores: Stores, process: Process) -> None:
        self._stores = stores
        self._process = process
        self.partitions = stores.partitions

    def append(self, topic: str, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        answers = []
        for partition in range(self.partitions):
            group = [entry for entry in entries if partition_of(entry.key, self.partitions) == partition]
            if group:
                answers += [(partition, offset) for offset in self.append_to(topic, partition, group)]
        return answers

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        effect = lambda whole: self._stores.append(topic, partition, entries, whole, self._process.wall_clock())  # noqa: E731
        return list(block(self._stores.call(self._process, [(topic, partition)], effect, write=True)))

    def append_once(self, topic: str, entries: Sequence[Entry]) -> None:
        new = []
        for entry in entries:
            seen = self._stores.once[topic, partition_of(entry.key, self.partitions)]
            if entry.key not in seen:
                new.append(entry)
        if new:
            self.append(topic, new)
        for entry in new:
            self._stores.once[topic, partition_of(entry.key, self.partitions)].add(entry.key)

    def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        effect = lambda _: self._stores.read_log(topic, partition, start, end)  # noqa: E731
        return list(block(self._stores.call(self._process, [(topic, partition)], effect, write=False)))

    def oldest(self, topic: str) -> dict[int, Position]:
        return self._everywhere(topic, self._stores.oldest)

    def newest(self, topic: str) -> dict[int, Position]:
        return self._everywhere(topic, self._stores.newest)

    def _everywhere(self, topic: str, look: Callable[[str], dict[int, Position]]) -> dict[int, Position]:
        places = [(topic, partition) for partition in range(self.partitions)]
        return dict(block(self._stores.call(self._process, places, lambda _: look(topic), write=False)))


class SimulatedManifest:
    """What tasks ask the manifest."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def epoch(self, application: str) -> int:
        return self._stores.epochs.get(application, 0)

    def record(self, kind: str, name: str, partition: int) -> PartitionRecord:
        return self._stores.incarnations[Address(kind, name, partition)]
