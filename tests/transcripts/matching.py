"""The Matcher of the transcripts: named tasks that take records of the feed and move one step at a time, in any order.

The steps are those of `matcher.core`: write, read, match, tell. Which records a task takes, and when it moves, the scenario says; so two
tasks may interleave in every way in which those of Spark may. A task that dies leaves its records to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roskva.errors import Unavailable
from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.matcher.core import Batch, accept, collapse, drop_copies, match
from roskva.model import UNAVAILABLE, Propagation, Registration, Update, name_of
from roskva.registrar.cells import client_row
from roskva.registrar.core import blind
from roskva.registrar.events import decode_registration
from roskva.registrar.row import ClientRow
from roskva.table.interface import Mutation, Row, RowKey
from tests.properties.pipeline import read_update
from tests.properties.registrar import Call, RegistrarShell
from tests.properties.store import PARTITIONS, ModelFeed, ModelTable, Steps
from tests.transcripts.words import VERDICTS, batch_text, cell_text, propagation_text, row_name, some

Place = tuple[str, int]  # topic and offset


@dataclass
class Task:
    name: str
    places: list[Place]
    batch: Batch
    rows: dict[RowKey, Row] = field(default_factory=dict)
    untold: list[Propagation] | None = None  # None: not matched yet
    asked: list[Propagation] = field(default_factory=list)
    call: Call | None = None
    asked_whom: RegistrarShell | None = None


class Matching:
    def __init__(self, table: ModelTable, feed: ModelFeed, steps: Steps, say: Callable[[str], None]) -> None:
        self.table = table
        self.feed = feed
        self.steps = steps
        self.say = say
        self.feed_incarnation = 1
        self.deposed: RegistrarShell | None = None  # a Registrar that is no longer the owner, and still answers
        self.by_name: dict[str, Task] = {}
        self._done: set[Place] = set()

    @property
    def tasks(self) -> list[Task]:
        return list(self.by_name.values())

    # Records.

    def open_records(self) -> dict[Place, Update | Registration]:
        """What is in the feed, not committed, and not in the hands of a task."""
        taken = {place for task in self.tasks for place in task.places} | self._done
        found: dict[Place, Update | Registration] = {}
        for topic, read in ((UPDATES, read_update), (REGISTRATIONS, decode_registration)):
            for offset in range(self.feed.committed[topic], len(self.feed.topics[topic])):
                if (topic, offset) not in taken:
                    found[topic, offset] = read(self.feed.topics[topic][offset])
        return found

    def take(self, name: str, topic: str | None, object_name: bytes | None) -> Task | None:
        chosen = {
            place: record
            for place, record in self.open_records().items()
            if topic in (None, place[0]) and (object_name is None or name_of(record.object) == object_name)
        }
        if not chosen:
            self.say("the feed has nothing more")
            return None
        assert name not in self.by_name, f"there is a task {name} already"
        updates = [one for one in chosen.values() if isinstance(one, Update)]
        registrations = [one for one in chosen.values() if isinstance(one, Registration)]
        task = self.by_name[name] = Task(name, list(chosen), collapse(updates, registrations))
        self.say(f"{name} takes {batch_text(task.batch)}")
        return task

    def die(self, name: str) -> None:
        del self.by_name[name]
        self.say(f"{name} is gone; its records are not committed")

    def forget(self) -> None:
        """The feed was lost: offsets begin anew."""
        self.by_name.clear()
        self._done.clear()

    # Steps.

    def write(self, task: Task) -> bool:
        """False: a row cannot be written now; the task stays where it is, and its records stay uncommitted."""
        self.steps.process = task.name
        try:
            self.table.write(accept(task.batch, PARTITIONS, lambda key: self.feed_incarnation).writes, self.steps)
        except Unavailable:
            self.say(f"{task.name} cannot write: its batch stays open")
            return False
        return True

    def read(self, task: Task) -> bool:
        accepted = accept(task.batch, PARTITIONS, lambda key: self.feed_incarnation)
        try:
            task.rows = {**self.table.read(accepted.read_whole), **self.table.read(accepted.read_version, prefix=b"version")}
        except Unavailable:
            self.say(f"{task.name} cannot read: its batch stays open")
            return False
        for key, row in task.rows.items():
            self.say(f"{task.name} reads {row_name(key)}: {some(cell_text(key, cell) for cell in row.values()) or 'nothing'}")
        return True

    def match(self, task: Task) -> None:
        task.untold = match(task.batch, task.rows, PARTITIONS, lambda key: self.feed_incarnation)
        self.say(f"{task.name} must tell {some(map(propagation_text, task.untold)) or 'nobody'}")

    def tell(self, task: Task, registrar: RegistrarShell | None) -> None:
        """Ask the Registrar, or write in its stead. An answer that needs acknowledgements comes by itself: see `move`."""
        assert task.untold is not None, f"{task.name} has not matched yet"
        task.asked = task.untold
        self.steps.process = task.name
        if registrar is None:
            self.say("nobody answers: blind writes")
            self._answered(task, [self._blindly(told) for told in task.asked])
        else:
            task.asked_whom = registrar
            task.call = registrar.begin(task.asked)

    def move(self, registrar: RegistrarShell | None) -> bool:
        """Take the answers that are there."""
        for task in self.tasks:
            if task.call is None or task.asked_whom is None:
                continue
            whom = task.asked_whom
            if whom is not registrar and whom is not self.deposed:
                self.say(f"{task.name} gets no answer: it must tell again")
                task.call = None
            elif task.call.answered() or whom.clock() >= task.call.until_s:
                call, task.call = task.call, None
                self._answered(task, whom.finish(call))
            else:
                continue
            return True
        return False

    def waiting_until(self) -> float | None:
        return min((task.call.until_s for task in self.tasks if task.call is not None), default=None)

    def _answered(self, task: Task, verdicts: Sequence[int]) -> None:
        notable = [(told, verdict) for told, verdict in zip(task.asked, verdicts, strict=True) if verdict != 0]
        for told, verdict in notable:
            self.say(f"answer to {task.name}: {propagation_text(told)}: {VERDICTS[verdict]}")
        task.untold = [told for told, verdict in notable if verdict == UNAVAILABLE]
        drops = drop_copies(task.asked, verdicts, PARTITIONS)
        if drops:
            self.steps.process = task.name
            self.table.write(drops, self.steps)
        if task.untold:
            self.say(f"{task.name} has more to tell: its batch stays open")
        else:
            self._finish(task)

    def _finish(self, task: Task) -> None:
        del self.by_name[task.name]
        self._done.update(task.places)
        for topic, offset in self.feed.committed.items():
            while (topic, offset) in self._done:
                offset += 1
            self.feed.committed[topic] = offset
        self.say(f"{task.name} is done" + (f"; {self.feed.lag()} records are not committed" if self.feed.lag() else ""))

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
