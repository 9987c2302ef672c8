"""A core on a stage: a small log, one line per event, and what the core wanted done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from roskva.capture.actions import Action, Close, Notice, Open, Send, Store
from roskva.capture.core import Core
from roskva.capture.flows import FlowStatus, Routed, Stream, Terms
from roskva.capture.interface import Retained
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, Position

ONE_MIB = 1024 * 1024
LIMITS = Limits(buffer_updates_max=8, buffer_bytes_max=8_000, datamarker_period_s=30.0, allocation_period_s=1.0, close_share=0.02)
Kind = TypeVar("Kind", bound=Action)


def at(sequence: int) -> Position:
    """After a whole commit."""
    return Position(1, sequence)


def row(sequence: int, shard: int = 0, size: int = 100, applications: Iterable[str] = ("a", "b", "c"), index: int = 1) -> Routed:
    return Routed(Position(1, sequence, index), shard, frozenset(applications), size, sequence * 1_000_000, f"row {sequence}")


class Stage:
    def __init__(self, limits: Limits = LIMITS, end: int = 0, **changes: object) -> None:
        self.core = Core(replace(limits, **changes))  # type: ignore[arg-type]
        self.now_s = 0.0
        self.oldest, self.end = BEGINNING, at(end)
        self.log: list[Routed] = []
        self.done: list[Action] = []
        self.open: dict[int, Open] = {}
        self.streams: dict[FlowName, Stream] = {}
        self.perform(self.core.start(self.end, self.now_s))

    def perform(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Open):
                self.open[action.caravan] = action
            elif isinstance(action, Close):
                del self.open[action.caravan]
            elif isinstance(action, Notice):
                self.streams[action.flow] = action.stream
        self.done += actions
        self.core.check()
        return actions

    def flow(self, application: str, shard: int = 0, marker: int = 0, window: int = ONE_MIB, terms: Terms | None = None) -> FlowName:
        """Owned, stored, attached."""
        name = FlowName(application, shard)
        self.perform(self.core.add(name, terms or Terms(), at(marker), 1, True, self.now_s))
        self.attach(name, window)
        return name

    def attach(self, name: FlowName, window: int = ONE_MIB, connection: int = 7) -> None:
        self.perform(self.core.attached(name, connection, window, self.now_s))

    def write(self, *rows: Routed) -> None:
        self.log += rows
        self.end = max(self.end, rows[-1].position._replace(index=at(0).index))

    def read(self, caravan: int | None = None, rows_max: int = 1_000) -> list[Action]:
        """One batch for a caravan; for the lead, if none is named."""
        number = self.lead if caravan is None else caravan
        after = self.core.position_of(number)
        assert after is not None
        found = [entry for entry in self.log if entry.position > after][:rows_max]
        more = bool(found) and found[-1] is not self.log[-1]
        reached = found[-1].position if more else max(after, self.end)
        size = sum(entry.size for entry in found)
        return self.perform(self.core.read(number, after, found, reached, size, self.now_s, int(self.now_s * 1_000_000)))

    def read_all(self, rows_max: int = 4, rounds: int = 200) -> int:
        """Every caravan in turn, until all are at the end. The answer: rows that were read."""
        read = 0
        for _ in range(rounds):
            self.tick(0.25)
            behind = [caravan for caravan in self.core.caravans() if caravan.position < self.end and not caravan.standing]
            if not behind:
                break
            for caravan in behind:
                count = len([entry for entry in self.log if entry.position > caravan.position][:rows_max])
                if self.core.position_of(caravan.caravan) is not None:
                    self.read(caravan.caravan, rows_max)
                    read += count
        return read

    def tick(self, seconds: float = 0.0) -> list[Action]:
        self.now_s += seconds
        return self.perform(self.core.tick(self.now_s, Retained(self.oldest, self.end)))

    def grant(self, name: FlowName, more_bytes: int) -> list[Action]:
        return self.perform(self.core.granted(name, self.streams[name], more_bytes, self.now_s))

    def acknowledge(self, name: FlowName, position: Position) -> list[Action]:
        return self.perform(self.core.acknowledged(name, self.streams[name], position))

    def store(self, actions: list[Action]) -> None:
        """All of them become durable."""
        for wanted in of(actions, Store):
            self.perform(self.core.stored(wanted.flow, wanted.position, wanted.epoch))

    @property
    def lead(self) -> int:
        return next(caravan.caravan for caravan in self.core.caravans() if caravan.lead)

    def status(self, name: FlowName) -> FlowStatus:
        return next(status for status in self.core.flows() if status.flow == name)

    def sent(self, name: FlowName) -> list[int]:
        """Sequences, in the order in which they were handed to the connection."""
        return [update.position.sequence for action in of(self.done, Send) if action.flow == name for update in action.updates]


def of(actions: Iterable[Action], kind: type[Kind]) -> list[Kind]:
    return [action for action in actions if isinstance(action, kind)]
