"""Simulated subscriber processes and their connections: slow, stuck, forgetful, dying; they remember nothing of a flow (Wormhole 3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

from roskva.capture.actions import DataLoss, Ended, Notice, Send, Token
from roskva.capture.flows import Routed, Stream
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.simulation.capture_checkers import Broken, Checkers
from roskva.simulation.capture_log import ROW_BYTES_MAX

Down: TypeAlias = Notice | Send | Token | DataLoss | Ended


class Acknowledgement(NamedTuple):
    flow: FlowName
    stream: Stream
    position: Position


class Credit(NamedTuple):
    flow: FlowName
    stream: Stream
    bytes: int


class GivenBack(NamedTuple):
    """The process does not want the flow any more."""

    flow: FlowName
    stream: Stream


Up: TypeAlias = Acknowledgement | Credit | GivenBack


@dataclass(eq=False)
class Link:
    """A connection: what is said arrives in order, or not at all once it is broken."""

    number: int
    publisher: str
    process: Process
    down: deque[Down] = field(default_factory=deque)
    up: deque[Up] = field(default_factory=deque)
    silent_until_s: float = 0.0  # what the subscriber says is under way until then
    broken: bool = False  # the subscriber knows; the publisher learns it later

    def break_now(self) -> None:
        self.broken = True
        self.down.clear()
        self.up.clear()
        self.process.forget(self)


@dataclass(eq=False)
class Inbox:
    """A stream at its subscriber."""

    link: Link
    stream: Stream
    flow: FlowName
    items: deque[Routed | Token | DataLoss] = field(default_factory=deque)
    room_bytes: int = 0  # that the publisher may still send; one update may go beyond
    owed_bytes: int = 0  # dealt with, and not granted again yet


@dataclass(eq=False)
class Process:
    name: str
    application: str
    window_bytes: int
    grants_first: bool  # before anything is sent; else the publisher knows its window
    takes: float  # the chance to deal with what waits, when its turn comes: 0 is stuck
    acknowledges: bool
    inboxes: dict[tuple[int, Stream], Inbox] = field(default_factory=dict)
    epochs: dict[FlowName, int] = field(default_factory=dict)

    def forget(self, link: Link) -> None:
        for key in [key for key, inbox in self.inboxes.items() if inbox.link is link]:
            del self.inboxes[key]

    def receive(self, link: Link, message: Down, checkers: Checkers, today_us: int) -> None:
        key = (link.number, message.stream)
        if isinstance(message, Notice):
            if message.stream.epoch < self.epochs.get(message.flow, 0):
                link.up.append(GivenBack(message.flow, message.stream))  # its publisher was succeeded
                return
            self.epochs[message.flow] = message.stream.epoch
            self.inboxes[key] = Inbox(link, message.stream, message.flow, room_bytes=self.window_bytes)
            checkers.noticed(link.number, message.stream, message.flow, message.after, today_us)
            if self.grants_first:
                link.up.append(Credit(message.flow, message.stream, self.window_bytes))
            return
        inbox = self.inboxes.get(key)
        if inbox is None:
            return
        if isinstance(message, Ended):
            del self.inboxes[key]
        elif isinstance(message, Send):
            inbox.items += message.updates
            inbox.room_bytes -= sum(update.size for update in message.updates)
            if inbox.room_bytes < -ROW_BYTES_MAX and not checkers.cut_by_force:
                raise Broken("bounded", f"{message.flow} was sent {-inbox.room_bytes} bytes beyond its credit")
        else:
            inbox.items.append(message)

    def work(self, dice: Random, checkers: Checkers, forced: dict[str, Position], today_us: int) -> bool:
        """Deal with one thing of one stream. False: there was nothing, or no wish to."""
        busy = [inbox for inbox in self.inboxes.values() if inbox.items]
        if not busy or dice.random() >= self.takes:
            return False
        inbox = dice.choice(busy)
        item = inbox.items.popleft()
        link, stream, flow = inbox.link, inbox.stream, inbox.flow
        if isinstance(item, Token):
            if self.acknowledges:
                link.up += [Acknowledgement(flow, stream, item.position)] * dice.choice((1, 1, 2))
        elif isinstance(item, DataLoss):
            checkers.lost(link.number, stream, flow, item.lost_after, item.lost_to, forced[link.publisher])
        else:
            checkers.dealt(link.number, stream, flow, item, today_us)
            inbox.owed_bytes += item.size
            if dice.random() < 0.1 and self.acknowledges:
                link.up.append(Acknowledgement(flow, stream, item.position))  # by itself
        if inbox.owed_bytes and (not inbox.items or dice.random() < 0.3):
            link.up.append(Credit(flow, stream, inbox.owed_bytes))
            inbox.room_bytes += inbox.owed_bytes
            inbox.owed_bytes = 0
        return True

    def give_back(self, dice: Random) -> None:
        if self.inboxes:
            key = dice.choice(list(self.inboxes))
            inbox = self.inboxes.pop(key)
            inbox.link.up.append(GivenBack(inbox.flow, inbox.stream))
