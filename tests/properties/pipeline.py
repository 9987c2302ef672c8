"""The pipeline of the model: batches of the feed's records, cut into tasks that move step by step, and may die between any two.

A task mirrors pipeline/matching.py: write, then read, then match, then tell the Registrar (or write in its stead), then drop copies. The
batch's offsets are committed when all its tasks are done. A driver that died repeats the range that it had begun, or begins at the oldest
record; its workers may live on for a while as orphans, with what they had read long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from roskva.errors import Unavailable
from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.matcher.core import Accepted, Batch, accept, collapse, drop_copies, match
from roskva.matcher.forms import Form, Malformed, check, extract
from roskva.model import UNAVAILABLE, ClientId, ObjectKey, Propagation, Registration, Update, partition_of
from roskva.registrar.cells import client_row
from roskva.registrar.core import blind
from roskva.registrar.events import decode_registration
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell, Mutation, Row, RowKey, wins
from tests.properties.registrar import Call, RegistrarShell
from tests.properties.service import ServiceCall, ServiceShell
from tests.properties.store import PARTITIONS, ModelFeed, ModelTable, Steps

AnyRegistrar = RegistrarShell | ServiceShell

APPLICATION = "demo"
FEED_INCARNATION = 1


class Stage(Enum):
    WRITE = "write"
    READ = "read"
    TELL = "tell"
    WAIT = "wait for the Registrar"
    DONE = "done"


@dataclass(slots=True)
class Task:
    batch: Batch
    stage: Stage = Stage.WRITE
    rows: dict[RowKey, Row] = field(default_factory=dict)
    untold: list[Propagation] = field(default_factory=list)
    asked: list[Propagation] = field(default_factory=list)
    call: Call | ServiceCall | None = None
    asked_whom: AnyRegistrar | None = None


def read_update(value: bytes) -> Update:
    """Through the Bridge's own rules: the feed holds what the backend published, not what the Matcher wishes for."""
    fields = extract(value, Form())
    assert not isinstance(fields, Malformed)
    update = check(APPLICATION, 0, fields)
    assert not isinstance(update, Malformed)
    return update


class PipelineShell:
    def __init__(self, table: ModelTable, feed: ModelFeed, steps: Steps) -> None:
        self.table = table
        self.feed = feed
        self.steps = steps
        self.begun: dict[str, int] | None = None  # the ends of the batch in progress: a restart repeats the same range
        self.tasks: list[Task] = []
        self.orphans: list[Task] = []

    # Batches.

    def begin(self, ends: dict[str, int] | None = None, apart: bool = True) -> None:
        """Take the records up to `ends` (none: all there are). `apart`: updates and registrations go to different tasks."""
        if self.tasks:
            return
        if self.begun is None:
            self.begun = ends or self.feed.ends()
        updates = [read_update(value) for value in self._range(UPDATES)]
        registrations = [decode_registration(value) for value in self._range(REGISTRATIONS)]
        self.tasks = [Task(collapse(part[0], part[1])) for part in self._cut(updates, registrations, apart)]
        if not self.tasks:
            self._commit()

    def _range(self, topic: str) -> list[bytes]:
        assert self.begun is not None
        return self.feed.topics[topic][self.feed.committed[topic] : self.begun[topic]]

    @staticmethod
    def _cut(updates: list[Update], registrations: list[Registration], apart: bool) -> Iterator[tuple[list[Update], list[Registration]]]:
        for partition in range(PARTITIONS):
            some = [update for update in updates if partition_of(update.object, PARTITIONS) == partition]
            others = [one for one in registrations if partition_of(one.object, PARTITIONS) == partition]
            if apart:
                yield from ((part, []) for part in [some] if part)
                yield from (([], part) for part in [others] if part)
            elif some or others:
                yield some, others

    def die(self, orphans: bool = False, checkpoint_lost: bool = False) -> None:
        """The driver is gone. Its workers go on for a while, or not; the range that was begun is repeated, or all records are."""
        if orphans:
            self.orphans += self.tasks
        self.tasks = []
        if checkpoint_lost:
            self.begun = None
            self.feed.committed = dict.fromkeys(self.feed.committed, 0)

    def _commit(self) -> None:
        assert self.begun is not None
        for topic, end in self.begun.items():
            self.feed.committed[topic] = max(self.feed.committed[topic], end)
        self.begun = None

    # Steps.

    def step(self, task: Task, registrar: AnyRegistrar | None) -> bool:
        """Move a task by one step; answers whether it moved. Without a Registrar, it writes in its stead."""
        try:
            moved = self._step(task, registrar)
        except Unavailable:
            moved = True  # what cannot be written keeps the batch open, and is tried again
        if self.tasks and all(one.stage is Stage.DONE for one in self.tasks):
            self.tasks = []
            self._commit()
        self.orphans = [one for one in self.orphans if one.stage is not Stage.DONE]
        return moved

    def _step(self, task: Task, registrar: AnyRegistrar | None) -> bool:
        if task.stage is Stage.DONE:
            return False
        if task.stage is Stage.WRITE:
            self.table.write(self._accepted(task).writes, self.steps)
            task.stage = Stage.READ
        elif task.stage is Stage.READ:
            accepted = self._accepted(task)
            task.rows = {**self.table.read(accepted.read_whole), **self.table.read(accepted.read_version, prefix=b"version")}
            task.untold = match(task.batch, task.rows, PARTITIONS, lambda key: FEED_INCARNATION)
            task.stage = Stage.TELL if task.untold else Stage.DONE
        elif task.stage is Stage.TELL:
            self._tell(task, registrar)
        elif task.stage is Stage.WAIT:
            return self._collect(task, registrar)
        return True

    def _accepted(self, task: Task) -> Accepted:
        return accept(task.batch, PARTITIONS, lambda key: FEED_INCARNATION)

    def _tell(self, task: Task, registrar: AnyRegistrar | None) -> None:
        task.asked = task.untold
        if registrar is None:
            self._answered(task, [self._blindly(told) for told in task.asked])
        else:
            task.asked_whom, task.call = registrar, registrar.begin(task.asked)
            task.stage = Stage.WAIT

    def _collect(self, task: Task, registrar: AnyRegistrar | None) -> bool:
        """The answer of the call, if it is there. A Registrar that is gone answers nothing: the call is made again."""
        assert task.call is not None
        if registrar is not task.asked_whom:
            task.stage = Stage.TELL
        elif registrar is not None:
            if not task.call.answered() and registrar.clock() < task.call.until_s:
                return False
            self._answered(task, registrar.finish(task.call))  # type: ignore[arg-type]
        return True

    def _answered(self, task: Task, verdicts: Sequence[int]) -> None:
        """Only what was unavailable is asked again. Dropping dead copies may fail: they are found at the next change."""
        task.untold = [told for told, verdict in zip(task.asked, verdicts, strict=True) if verdict == UNAVAILABLE]
        task.stage = Stage.TELL if task.untold else Stage.DONE
        drops = drop_copies(task.asked, verdicts, PARTITIONS)
        if drops:
            self.table.write(drops, self.steps)

    def _blindly(self, told: Propagation) -> int:
        key = client_row(told.client, PARTITIONS)
        decision = blind(ClientRow(told.client, self.table.read([key])[key].values()), told)
        if not decision.cells:
            return decision.verdict
        try:
            self.table.mark([told.client], self.steps)
            self.table.write([Mutation(key, decision.cells)], self.steps)
            self.table.mark([told.client], self.steps)
        except Unavailable:
            return UNAVAILABLE
        return decision.verdict

    def waiting_until(self) -> float | None:
        """When the next wait for acknowledgements is over."""
        return min((task.call.until_s for task in [*self.tasks, *self.orphans] if task.call and task.stage is Stage.WAIT), default=None)


def live_cells(cells: Sequence[Cell]) -> dict[bytes, Cell]:
    """The winners of a sequence of writes of one row."""
    row: dict[bytes, Cell] = {}
    for cell in cells:
        if cell.name not in row or wins(cell, row[cell.name]):
            row[cell.name] = cell
    return row


def copies_of(table: ModelTable, key: ObjectKey) -> dict[ClientId, int]:
    """Who is registered for the object by the Matcher's table, and with which seqno."""
    from roskva.matcher.cells import object_row, read_copies

    row = object_row(key, PARTITIONS)
    return {copy.client: copy.seqno for copy in read_copies(table.read([row])[row])}
