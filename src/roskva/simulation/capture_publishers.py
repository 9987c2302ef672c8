"""The simulated shell around capture's core: one publisher beside one replica, and the place where all of them keep datamarkers.

It keeps the caller's duties that stand at the top of capture/core.py, as late and as much apart as they allow, and may die between any two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from roskva.capture.actions import Action, Close, Confirm, DataLoss, Ended, Notice, Open, Pace, Send, Store, Token
from roskva.capture.core import Core
from roskva.capture.flows import FlowStatus, Routed, State, Stream
from roskva.capture.interface import Retained
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import LogCut
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_log import Replica
from roskva.simulation.capture_subscribers import Acknowledgement, Credit, Link

_ROUNDING = 1.000001


class Record(NamedTuple):
    position: Position | None  # None: nothing was stored yet
    epoch: int
    owner: str


class Datamarkers:
    """Durable, replicated, and ordered by epochs."""

    def __init__(self, checkers: Checkers) -> None:
        self.records: dict[FlowName, Record] = {}
        self._checkers = checkers

    def store(self, wanted: Store, today_us: int) -> bool:
        """False: a later epoch owns it."""
        record = self.records[wanted.flow]
        if wanted.epoch < record.epoch:
            return False
        if record.position is None or wanted.position > record.position:
            self._checkers.durable(wanted.flow, wanted.position, today_us)
            self.records[wanted.flow] = record._replace(position=wanted.position)
        return True


@dataclass(eq=False)
class Reader:
    position: Position
    pace: float = 0.0
    batch: tuple[Position, list[Routed], Position] | None = None  # on its way to the core


class Aboard(NamedTuple):
    """Who rides on the lead."""

    lead: Position
    flows: dict[FlowName, FlowStatus]


@dataclass(eq=False)
class Publisher:
    name: str
    replica: Replica
    datamarkers: Datamarkers
    checkers: Checkers
    counts: Counter[str]
    limits: Limits
    core: Core | None = None  # None: it is dead
    readers: dict[int, Reader] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    attached: dict[FlowName, tuple[int, Stream]] = field(default_factory=dict)
    late: list[tuple[int, Reader]] = field(default_factory=list)  # closed, with a batch on its way
    stores: list[Store] = field(default_factory=list)  # wanted, not durable yet
    told: list[Store] = field(default_factory=list)  # durable, and the core does not know
    fenced: set[tuple[FlowName, int]] = field(default_factory=set)
    aboard: Aboard | None = None

    def die(self) -> None:
        self.core = None
        for link in self.links.values():
            link.break_now()
        for container in (self.readers, self.links, self.attached):
            container.clear()
        for waiting in (self.late, self.stores, self.told):
            waiting.clear()
        self.fenced.clear()
        self.aboard = None

    def live(self, now_s: float) -> Core:
        self.core = Core(self.limits)
        self.do(self.core.start(self.replica.end, now_s))
        return self.core

    def do(self, actions: list[Action], configured: bool = False) -> None:
        """Perform what the core wants, and look whether it keeps its promises."""
        for action in actions:
            self._perform(action)
        assert self.core is not None
        self.core.check()
        self._look(configured)

    def _perform(self, action: Action) -> None:
        match action:
            case Open():
                self.readers[action.caravan] = Reader(action.after)
                if len(self.readers) > self.limits.caravans_max:
                    raise Broken("bounded", f"{self.name} has {len(self.readers)} caravans, of {self.limits.caravans_max}")
            case Close():
                closed = self.readers.pop(action.caravan)
                if closed.batch is not None:
                    self.late.append((action.caravan, closed))
            case Pace():
                self.readers[action.caravan].pace = action.bytes_per_s
            case Store():
                self.stores.append(action)
            case Confirm():
                self._confirm(action.position)
            case Notice() | Send() | Token() | DataLoss() | Ended():
                self._tell(action)

    def _confirm(self, position: Position) -> None:
        for flow, record in self.datamarkers.records.items():
            if record.position is not None and record.position < position and not self.checkers.tracks[flow].terms.realtime:
                raise Broken("kept", f"{self.name} confirms {position}, and {flow} is stored at {record.position}")
        self.replica.cut(position, False)

    def _tell(self, message: Notice | Send | Token | DataLoss | Ended) -> None:
        if isinstance(message, Send | Token) and (message.flow, message.stream.epoch) in self.fenced:
            raise Broken("fenced", f"{self.name} sends {message.flow} under epoch {message.stream.epoch}")
        if isinstance(message, Notice):
            self.attached[message.flow] = (message.connection, message.stream)
        elif isinstance(message, Ended):
            self.attached.pop(message.flow, None)
        link = self.links.get(message.connection)
        if link is not None and not link.broken:
            link.down.append(message)

    def _look(self, configured: bool) -> None:
        assert self.core is not None
        lead = next(caravan for caravan in self.core.caravans() if caravan.lead)
        paces = [reader.pace for reader in self.readers.values()]
        if max(paces) > self.limits.caravan_rate_max or sum(paces) > self.limits.caravans_rate_total_max * _ROUNDING:
            raise Broken("bounded", f"{self.name} reads at {paces}")
        flows = {status.flow: status for status in self.core.flows()}
        before, self.aboard = (
            self.aboard,
            Aboard(lead.position, {name: flow for name, flow in flows.items() if flow.caravan == lead.caravan}),
        )
        if before is None or configured or self.limits.caravans_max == 1:
            return
        if lead.position < before.lead or not lead.bytes_per_s_max:
            raise Broken("harmless", f"{self.name}: the lead went from {before.lead} to {lead.position}")
        for name, was in before.flows.items():
            status = flows.get(name)
            if status is None or status.stream != was.stream or status.state == State.PAUSED:
                continue
            fell = status.falls > was.falls
            if fell and status.credit_bytes > 0:
                raise Broken("harmless", f"{name} had credit for {status.credit_bytes} bytes and fell")
            if not fell and status.caravan != lead.caravan:
                raise Broken("harmless", f"{name} was taken from the lead")

    # What happens to it, in the order of the world's choosing.

    def fetch(self, dice: Random, rows_max: int, now_s: float) -> bool:
        """A reader brings something nearer. False: none may, or can."""
        assert self.core is not None
        able = [(number, reader) for number, reader in self.readers.items() if reader.pace > 0 and reader.batch is None]
        if not able:
            return False
        number, reader = dice.choice(able)
        try:
            found, reached = self.replica.read_after(reader.position, dice.randint(1, rows_max))
        except LogCut:
            self.counts["log cut"] += 1
            self.do(self.core.cut(number, self.replica.oldest, now_s))
            return True
        if reached == reader.position:
            return False
        reader.batch = (reader.position, found, reached)
        reader.position = reached
        return True

    def bring(self, dice: Random, now_s: float, today_us: int) -> bool:
        """A batch arrives at the core."""
        assert self.core is not None
        loaded = [(number, reader) for number, reader in (*self.readers.items(), *self.late) if reader.batch is not None]
        self.late.clear()
        if not loaded:
            return False
        number, reader = dice.choice(loaded)
        assert reader.batch is not None
        (after, found, reached), reader.batch = reader.batch, None
        size = sum(update.size for update in found) + 8
        self.do(self.core.read(number, after, found, reached, size, now_s, today_us))
        self.counts["read"] += len(found)
        return True

    def fail_reader(self, dice: Random) -> None:
        """The datastore did not answer: another reader, where the core says."""
        assert self.core is not None
        number = dice.choice(list(self.readers))
        position = self.core.position_of(number)
        assert position is not None
        self.readers[number] = Reader(position, self.readers[number].pace)

    def hear(self, dice: Random, now_s: float) -> bool:
        """One thing that a subscriber said, or that its connection is gone."""
        assert self.core is not None
        speaking = [link for link in self.links.values() if link.broken or (link.up and now_s >= link.silent_until_s)]
        if not speaking:
            return False
        link = dice.choice(speaking)
        if link.broken:
            del self.links[link.number]
            for flow in [flow for flow, (number, _) in self.attached.items() if number == link.number]:
                del self.attached[flow]
                self.do(self.core.detached(flow, link.number))
            return True
        message = link.up.popleft()
        if isinstance(message, Acknowledgement):
            self.do(self.core.acknowledged(message.flow, message.stream, message.position))
        elif isinstance(message, Credit):
            self.do(self.core.granted(message.flow, message.stream, message.bytes, now_s))
        elif self.attached.get(message.flow) == (link.number, message.stream):
            del self.attached[message.flow]
            self.do(self.core.detached(message.flow, link.number))
        return True

    def store(self, dice: Random, today_us: int) -> bool:
        """One step on the way of a datamarker: it becomes durable, or the core learns that it is."""
        assert self.core is not None
        if self.told and dice.random() < 0.5:
            known = self.told.pop(0)
            self.do(self.core.stored(known.flow, known.position, known.epoch))
            return True
        if not self.stores:
            return False
        wanted = self.stores.pop(0)
        if self.datamarkers.store(wanted, today_us):
            self.told.append(wanted)
        else:
            self.counts["fenced"] += 1
            self.do(self.core.fenced(wanted.flow, wanted.epoch))
            self.fenced.add((wanted.flow, wanted.epoch))
        return True

    def tick(self, now_s: float) -> None:
        assert self.core is not None
        self.do(self.core.tick(now_s, Retained(self.replica.oldest, self.replica.end)))

    def watch(self) -> None:
        """Look at the records: whom others own is watched, so that the log is kept for taking over."""
        assert self.core is not None
        for flow, record in self.datamarkers.records.items():
            track = self.checkers.tracks[flow]
            if record.owner != self.name and not track.terms.realtime:
                self.core.watch(flow, track.start if record.position is None else record.position)
