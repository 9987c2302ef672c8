"""Table, feed and manifest of the simulated world: what their contracts promise, and nothing more, with faults.

A call takes time before and after it takes effect. It may be refused, fail without an effect, or fail although it landed, in part or as a
whole; a process may be killed between the effect and the answer. The same store is seen through asyncio by gateways (`TableFront`,
`FeedFront`) and through blocking calls by tasks in fibers (`blocking`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from roskva.errors import PartitionUnavailable
from roskva.feed.interface import TOPICS, Entry, Position, Record
from roskva.feed.lanes import Appended
from roskva.model import partition_of
from roskva.simulation.loop import VirtualLoop
from roskva.simulation.processes import Process
from roskva.table.interface import TABLES, Cell, Mutation, Row, RowKey, check_mutation, wins
from roskva.table.manifest import COMPLETE, RECOVERING, Address, PartitionRecord

Place = tuple[str, int]  # table or topic, and partition
_SPREAD: Final = 16


class RowRange(NamedTuple):
    """Some rows of a table: those whose keys hash into a range of sixteenths."""

    table: str
    first: int
    width: int
    writes_only: bool

    def holds(self, row: RowKey) -> bool:
        return row.table == self.table and (zlib.crc32(row.key) - self.first) % _SPREAD < self.width


class Observer(Protocol):
    """Is told what becomes of cells; may raise."""

    def landed(self, row: RowKey, cells: Mapping[bytes, Cell], cell: Cell) -> None:
        """A cell is about to land in a row that holds these."""
        ...

    def forgotten(self, row: RowKey, cells: Mapping[bytes, Cell], cell: Cell) -> None:
        """A cell that a row holds is about to be forgotten."""
        ...

    def lost(self, table: str, partition: int) -> None: ...


@dataclass
class StoreConditions:
    """How bad it is at the moment."""

    delay_max_s: float = 0.002
    slow: float = 0.0  # the part of calls that take much longer
    slow_max_s: float = 3.0
    fail: float = 0.0  # the part of writes that fail, half of them although they landed
    kill: float = 0.0  # the part of writes in which their process dies, half of them when they landed


class Stores:
    """All durable state of one data center."""

    def __init__(self, loop: VirtualLoop, chance: Random, partitions: int) -> None:
        self.loop = loop
        self.partitions = partitions
        self.conditions = StoreConditions()
        self.refusing: set[Place] = set()  # partitions that cannot be reached now
        self.refusing_rows: list[RowRange] = []  # rows that cannot be read or written now
        self.observers: list[Observer] = []
        self.counts: Counter[str] = Counter()
        self.rows: dict[RowKey, dict[bytes, Cell]] = {}
        self.logs: dict[Place, list[Record]] = {(topic, p): [] for topic in TOPICS for p in range(partitions)}
        self.next_offsets: dict[Place, int] = dict.fromkeys(self.logs, 0)
        self.once: dict[Place, set[bytes]] = {place: set() for place in self.logs}
        self.incarnations: dict[Address, PartitionRecord] = {
            **{Address("table", table, p): PartitionRecord(1, COMPLETE, True) for table in TABLES for p in range(partitions)},
            **{Address("feed", topic, p): PartitionRecord(1, COMPLETE, True) for topic in TOPICS for p in range(partitions)},
        }
        self.epochs: dict[str, int] = {}
        self.epochs_lost = False
        self.epoch_raised: Callable[[], None] = lambda: None
        self.appended = asyncio.Event()  # something came into the feed
        self._chance = chance

    # Loss.

    def lose(self, kind: str, name: str, partition: int) -> None:
        """A partition's file is gone; whoever looks finds a new one, which the manifest knows as recovering."""
        self.counts[f"lost {kind}"] += 1
        address = Address(kind, name, partition)
        newest = max(record.incarnation for record in self.incarnations.values())
        self.incarnations[address] = PartitionRecord(newest + 1, RECOVERING, True)
        if kind == "table":
            for row in [row for row in self.rows if row[:2] == (name, partition)]:
                del self.rows[row]
            for observer in self.observers:
                observer.lost(name, partition)
        else:
            place = (name, partition)
            self.logs[place], self.next_offsets[place], self.once[place] = [], 0, set()

    def mark_complete(self, address: Address, incarnation: int) -> None:
        if self.incarnations[address].incarnation == incarnation:
            self.incarnations[address] = PartitionRecord(incarnation, COMPLETE, True)

    def lose_everything(self) -> None:
        """The manifest too: applications count their epochs from below again."""
        self.epochs_lost = self.epochs_lost or bool(self.epochs)
        self.epochs.clear()
        for kind, name, partition in sorted(self.incarnations, key=lambda address: address.name == "registrar"):  # as `roskva drop`
            self.lose(kind, name, partition)

    def raise_epoch(self, application: str, seen: int) -> int:
        if self.epochs.get(application, 0) == seen:
            self.epochs[application] = seen + 1
            self.epoch_raised()
        return self.epochs.get(application, 0)

    def heal(self) -> None:
        self.conditions = StoreConditions()
        self.refusing.clear()
        self.refusing_rows.clear()

    # Calls.

    async def call(
        self, process: Process, places: Sequence[Place], effect: Callable[[bool], Any], write: bool, rows: Sequence[RowKey] = ()
    ) -> Any:
        """Time passes, the effect happens or not, time passes. `effect(whole)` with False lands a part of it.

        A read takes time before or after it: between two reads of one caller, others may do all that they could if it did both.
        """
        before = write or self._chance.random() < 0.5
        if before:
            await self._pause(process)
        for place in places:
            if place in self.refusing:
                self.counts["refused"] += 1
                raise PartitionUnavailable("The partition is busy.", f"{place[0]}-{place[1]}")
        for some in self.refusing_rows:
            if (write or not some.writes_only) and any(some.holds(row) for row in rows):
                self.counts["refused rows"] += 1
                raise PartitionUnavailable("Some of these rows cannot be reached.", some.table)
        result = self._take_effect(process, places, effect) if write else effect(True)
        if write or not before:
            await self._pause(process)
        return result

    def _take_effect(self, process: Process, places: Sequence[Place], effect: Callable[[bool], Any]) -> Any:
        chance, conditions = self._chance, self.conditions
        if conditions.kill and chance.random() < conditions.kill:
            self.counts["killed in a write"] += 1
            if chance.random() < 0.5:
                effect(True)
            process.kill()
            raise asyncio.CancelledError
        if conditions.fail and chance.random() < conditions.fail:
            landed = chance.choice(("nothing", "a part", "all"))
            self.counts[f"failed, {landed} landed"] += 1
            if landed != "nothing":
                effect(landed == "all")
            raise PartitionUnavailable("The write failed.", f"{places[0][0]}-{places[0][1]}" if places else "")
        return effect(True)

    async def _pause(self, process: Process) -> None:
        chance, conditions = self._chance, self.conditions
        most_s = conditions.slow_max_s if conditions.slow and chance.random() < conditions.slow else conditions.delay_max_s
        await asyncio.sleep(chance.uniform(0, most_s))
        await process.breathe()

    # Effects.

    def land(self, mutations: Sequence[Mutation], whole: bool) -> None:
        for mutation in mutations:
            if not whole and self._chance.random() < 0.5:
                continue
            row = self.rows.setdefault(mutation.row, {})
            for cell in mutation.cells:
                old = row.get(cell.name)
                if old is None or wins(cell, old):
                    for observer in self.observers:
                        observer.landed(mutation.row, row, cell)
                    row[cell.name] = cell

    def forget(self, mutations: Sequence[Mutation], whole: bool) -> None:
        """Exactly what is still as given goes."""
        for mutation in mutations:
            if not whole and self._chance.random() < 0.5:
                continue
            row = self.rows.get(mutation.row, {})
            for cell in mutation.cells:
                if row.get(cell.name) == cell:
                    for observer in self.observers:
                        observer.forgotten(mutation.row, row, cell)
                    del row[cell.name]
            if not row:
                self.rows.pop(mutation.row, None)

    def look(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        found: dict[RowKey, Row] = {}
        for key in rows:
            cells = self.rows.get(key)
            if not cells:
                found[key] = {}
                continue
            names = sorted(name for name, cell in cells.items() if cell.value is not None and name.startswith(prefix) and name > after)
            found[key] = {name: cells[name] for name in names[:limit]}
        return found

    def append(self, topic: str, partition: int, entries: Sequence[Entry], whole: bool, time_s: float) -> list[int]:
        """The entries of one partition land together or not at all. The time is that of whoever appends."""
        if not whole:
            return []
        place = (topic, partition)
        first = self.next_offsets[place]
        time_ms = int(time_s * 1000)
        self.logs[place] += [
            Record(partition, first + index, time_ms, entry.key, entry.headers, entry.value) for index, entry in enumerate(entries)
        ]
        self.next_offsets[place] += len(entries)
        self.appended.set()
        return list(range(first, first + len(entries)))

    def appended_to(self, topic: str) -> int:
        """How many records it ever got, in its present incarnations."""
        return sum(self.next_offsets[topic, p] for p in range(self.partitions))

    def read_log(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        return [record for record in self.logs[topic, partition] if start <= record.offset < end]

    def oldest(self, topic: str) -> dict[int, Position]:
        return {
            p: Position(
                self.incarnations[Address("feed", topic, p)].incarnation,
                self.logs[topic, p][0].offset if self.logs[topic, p] else self.next_offsets[topic, p],
            )
            for p in range(self.partitions)
        }

    def newest(self, topic: str) -> dict[int, Position]:
        return {
            p: Position(self.incarnations[Address("feed", topic, p)].incarnation, self.next_offsets[topic, p])
            for p in range(self.partitions)
        }

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Retention: what every subscription has consumed may go."""
        place = (topic, partition)
        self.logs[place] = [record for record in self.logs[place] if record.offset >= before]


class Epochs:
    """The applications' epochs as one gateway last saw them: whoever writes, or looks for losses, has looked at the manifest."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.look()

    def look(self) -> dict[str, int]:
        self._seen = dict(self._stores.epochs)
        return self._seen

    def of(self, application: str) -> int:
        return self._seen.get(application, 0)


class TableFront:
    """The table as a gateway's lanes give it."""

    def __init__(self, stores: Stores, process: Process, epochs: Epochs | None = None) -> None:
        self._stores = stores
        self._process = process
        self._epochs = epochs or Epochs(stores)
        self.table = self  # for what the Registrar asks of the engine itself
        self.partitions = stores.partitions

    async def write(self, mutations: Sequence[Mutation]) -> None:
        if not mutations:
            return
        for mutation in mutations:
            check_mutation(mutation)
        stores = self._stores
        groups: dict[Place, list[Mutation]] = {}
        for mutation in mutations:
            groups.setdefault(mutation.row[:2], []).append(mutation)
        calls = [
            stores.call(
                self._process,
                [place],
                lambda whole, group=group: stores.land(group, whole),  # type: ignore[misc]
                write=True,
                rows=[one.row for one in group],
            )
            for place, group in groups.items()
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        self._epochs.look()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None) -> dict[RowKey, Row]:
        if not rows:
            return {}
        places = list(dict.fromkeys((row.table, row.partition) for row in rows))
        found = await self._stores.call(self._process, places, lambda _: self._stores.look(rows, prefix, limit), write=False, rows=rows)
        return dict(found)

    async def incarnation_of(self, table: str, partition: int) -> int:
        self._epochs.look()
        return self._stores.incarnations[Address("table", table, partition)].incarnation  # a look at a directory: no time passes

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        for row in rows:
            self._stores.rows.pop(row, None)


class FeedFront:
    """The feed as a gateway's lanes give it."""

    def __init__(self, stores: Stores, process: Process, epochs: Epochs | None = None) -> None:
        self._stores = stores
        self._process = process
        self._epochs = epochs or Epochs(stores)
        self.feed = self
        self.partitions = stores.partitions

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]:
        return asyncio.ensure_future(self._append(topic, partition, entries))

    async def _append(self, topic: str, partition: int, entries: Sequence[Entry]) -> Appended:
        stores = self._stores
        effect = lambda whole: stores.append(topic, partition, entries, whole, self._process.wall_clock())  # noqa: E731
        offsets = await stores.call(self._process, [(topic, partition)], effect, write=True)
        return Appended(offsets, self._epochs.look())

    async def append(self, topic: str, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        groups: dict[int, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(partition_of(entry.key, self.partitions), []).append(entry)
        outcomes = await asyncio.gather(*(self._append(topic, p, group) for p, group in groups.items()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return []
