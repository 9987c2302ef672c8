"""Which flow is at which process of its application (Wormhole 3, 4.4.3): attaches flows, moves them, takes them back.

The strategy (balance.py) says where a flow shall be; `coordinated` is asked about the flows of all publishers of the application, which
say where theirs are (about.py), so that all together are even. With it a flow stays where an operator, or the process that had it, wished
it to be, for as long as that process is connected and does not give it back; the others make up for it.

A flow that is somewhere else is closed first: nothing more is sent, the process finishes what it has begun, acknowledges it, and says
Closed; only then, or when its connection is gone, or when it did not answer for `close_s_max`, the flow is attached elsewhere, from its
datamarker on. Runs on the event loop; blocks nowhere.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from roskva.capture import wire
from roskva.capture.actions import Action
from roskva.capture.balance import Subscriber, coordinated, strategy
from roskva.capture.core import Core
from roskva.capture.flows import Stream
from roskva.capture.ownership import FlowName
from roskva.capture.publisher.connection import SubscriberConnection
from roskva.capture.publisher.settings import PublisherSettings
from roskva.errors import MemberConnected, RoskvaError
from roskva.model import rendezvous

log = logging.getLogger(__name__)

MOVING: Final = "it moves to another process"
REST_S_MAX: Final = 3600.0
NAMESAKE_S: Final = 60.0  # a process that was refused for its name is a problem for so long: it comes again all the time
WINDOW_BYTES_MIN: Final = 2**16


@dataclass(slots=True)
class _Closing:
    connection: int
    since_s: float
    then: Callable[[], None] | None  # instead of attaching it elsewhere


class Placing:
    def __init__(self, core: Core, settings: PublisherSettings, perform: Callable[[list[Action]], None]) -> None:
        self.settings = settings
        self.connections: dict[int, SubscriberConnection] = {}  # those that have shown their key
        self.paused: dict[FlowName, str] = {}  # by an operator, and why
        self.windows_bytes: dict[FlowName, int] = {}  # that attached flows were given
        self.moves = 0
        self.elsewhere: Mapping[str, Mapping[int, str]] = {}  # of each application: flows of other publishers, and which process has each
        self._core = core
        self._perform = perform
        self._owned: dict[str, set[int]] = {}
        self._attached: dict[FlowName, int] = {}  # the connection
        self._streams: dict[FlowName, int] = {}  # the number of the stream there
        self._closing: dict[FlowName, _Closing] = {}
        self._resting: dict[tuple[FlowName, str], float] = {}  # not at this member until then
        self.elsewhere_wished: Mapping[str, Mapping[int, str]] = {}  # of these, those that were wished to be there
        self._wished: dict[FlowName, str] = {}  # the member that shall have it, by the word of an operator or of another member
        self._namesakes: dict[tuple[str, str], float] = {}  # application and member that were refused, and when the last time
        self._dice = random.Random()
        self._due_s = float("inf")

    # What the owner says.

    def owned(self, flow: FlowName, now_s: float) -> None:
        """The core has it, unattached."""
        self._owned.setdefault(flow.application, set()).add(flow.shard)
        self._forget(flow)
        self._perform(self._core.pause(flow, self.paused[flow]) if flow in self.paused else self._core.resume(flow))
        self.due(now_s)

    def pause(self, flow: FlowName, why: str) -> None:
        self.paused[flow] = why
        if flow not in self._closing:
            self._perform(self._core.pause(flow, why))

    def resume(self, flow: FlowName) -> None:
        self.paused.pop(flow, None)
        if flow not in self._closing:
            self._perform(self._core.resume(flow))

    def pause_only(self, paused: Mapping[FlowName, str]) -> None:
        """By the notes, which an operator may have left at another publisher."""
        for flow in self.paused.keys() - paused.keys():
            self.resume(flow)
        for flow in paused.keys() - self.paused.keys():
            self.pause(flow, paused[flow])

    def disowned(self, flow: FlowName) -> None:
        """The core does not have it any more, and has told its subscriber."""
        self._owned.get(flow.application, set()).discard(flow.shard)
        self._wished.pop(flow, None)
        self._forget(flow)

    def take_back(self, flow: FlowName, why: str, then: Callable[[], None], now_s: float) -> None:
        """Close it, and call `then` when no process has it any more, instead of what was to be called then before; it is not attached
        again until it is `owned` again."""
        closing = self._closing.get(flow)
        if closing is not None:
            closing.then = then
        elif flow in self._attached:
            self._close(flow, why, then, now_s)
        else:
            self._owned.get(flow.application, set()).discard(flow.shard)
            then()

    def placed(self) -> dict[str, dict[int, str]]:
        """Of each application: its flows here, and which process has each."""
        found: dict[str, dict[int, str]] = {}
        for flow in self._attached:
            at = self.where(flow)
            if at is not None:
                found.setdefault(flow.application, {})[flow.shard] = at.member
        return found

    def wished(self) -> dict[str, dict[int, str]]:
        """Of each application: its flows here that are where they were wished to be."""
        placed = self.placed()
        found: dict[str, dict[int, str]] = {}
        for flow, member in self._wished.items():
            if placed.get(flow.application, {}).get(flow.shard) == member:
                found.setdefault(flow.application, {})[flow.shard] = member
        return found

    def stays(self, flow: FlowName) -> bool:
        """Since it was wished to be where it is."""
        at = self.where(flow)
        return at is not None and self._wished.get(flow) == at.member

    def where(self, flow: FlowName) -> SubscriberConnection | None:
        return self.connections.get(self._attached.get(flow, -1))

    def members(self, application: str) -> list[str]:
        """Its processes that are connected."""
        return sorted({c.member for c in self.connections.values() if c.application == application and not c.closing})

    def problems(self, now_s: float) -> list[RoskvaError]:
        """Processes that came lately, and were refused."""
        self._namesakes = {name: since_s for name, since_s in self._namesakes.items() if now_s - since_s < NAMESAKE_S}
        return [MemberConnected(member, application) for application, member in sorted(self._namesakes)]

    # What subscribers do.

    def joined(self, connection: SubscriberConnection, now_s: float) -> None:
        """Raises MemberConnected if another process has its name: they would take each other's flows away for ever."""
        for other in list(self.connections.values()):
            if (other.application, other.member) == (connection.application, connection.member):
                if not other.closing and other.silent_s < wire.PING_S:
                    self._namesakes[connection.application, connection.member] = now_s
                    raise MemberConnected(connection.member, connection.application)
                other.abort()  # a process that lost its connection and came again before we saw that
        self.connections[connection.number] = connection
        self.due(now_s)

    def left(self, connection: SubscriberConnection, now_s: float) -> None:
        if self.connections.pop(connection.number, None) is not None:
            for flow, _ in list(connection.flows.values()):
                self._is_closed(flow, connection.number)
            connection.flows.clear()
            self.due(now_s)

    def closed(self, connection: SubscriberConnection, frame: wire.Closed, now_s: float) -> None:
        found = connection.flows.pop(frame.flow, None)
        if found is None:
            return
        flow = found[0]
        if frame.after_s > 0:
            self._resting[flow, connection.member] = now_s + min(REST_S_MAX, frame.after_s)
        if frame.to:
            self._wish(flow, frame.to)
        if self._streams.get(flow) == frame.flow:  # not a stream of before, whose end was not waited for
            self._is_closed(flow, connection.number)
            self.due(now_s)

    def opened(self, flow: FlowName, connection: SubscriberConnection, stream: Stream) -> None:
        connection.flows[stream.number] = (flow, stream)
        self._streams[flow] = stream.number

    # Time, and operators.

    def due(self, now_s: float) -> None:
        """Look soon: somebody came or went, and perhaps others do, too."""
        self._due_s = min(self._due_s, now_s + self.settings.settle_s)

    def tick(self, now_s: float) -> None:
        for flow, closing in list(self._closing.items()):
            if now_s - closing.since_s > self.settings.close_s_max:
                self._is_closed(flow, closing.connection)
                self.due(now_s)
        if now_s >= self._due_s:
            self._due_s = now_s + self.settings.balance_s
            self._resting = {key: until_s for key, until_s in self._resting.items() if until_s > now_s}
            for application in self.settings.applications:
                self._balance(application, now_s)
            if self._resting:
                self._due_s = min(self._due_s, max(now_s, min(self._resting.values())))

    def reassign(self, flow: FlowName, member: str, now_s: float) -> bool:
        """To the named process, or to any other than the one that has it."""
        at = self.where(flow)
        if flow in self._closing:
            return False
        if not member and at is not None:
            member = rendezvous(flow.shard, (name for name in self.members(flow.application) if name != at.member)) or ""
        if member:
            self._wish(flow, member)
        if at is not None and member not in ("", at.member):
            self._close(flow, MOVING, None, now_s)
        self.due(now_s)
        return True

    def leave_to_the_balance(self, flow: FlowName, now_s: float) -> bool:
        """Wherever it was wished to be."""
        self._wished.pop(flow, None)
        self.due(now_s)
        return True

    # How it is done.

    def _wish(self, flow: FlowName, member: str) -> None:
        self._wished[flow] = member
        self._resting.pop((flow, member), None)

    def _balance(self, application: str, now_s: float) -> None:
        members = {c.member: c for c in self.connections.values() if c.application == application and not c.closing}
        shards = self._owned.get(application, set())
        if not shards:
            return
        if not members:
            self._wished = {flow: member for flow, member in self._wished.items() if flow.application != application}
            return
        placed = {}
        for shard in shards:
            at = self.where(FlowName(application, shard))
            if at is not None:
                placed[shard] = at.member
        subscribers = [Subscriber(c.member, c.weight, c.load) for c in members.values()]
        wanted: Mapping[int, str]
        try:
            chosen = strategy(self.settings.applications[application].balance)
            fixed = self._fixed(application, placed, members, chosen is coordinated)
            if chosen is coordinated:
                others, others_fixed = (
                    {shard: member for shard, member in of.get(application, {}).items() if shard not in shards}
                    for of in (self.elsewhere, self.elsewhere_wished)
                )
                wanted = coordinated(shards | others.keys(), others | placed, subscribers, self._dice.random, others_fixed | fixed)
            else:
                wanted = dict(chosen(shards, placed, subscribers, self._dice.random))
        except Exception:
            log.exception("The strategy of application %s raised: its flows are spread evenly.", application)
            wanted = coordinated(shards, placed, subscribers, self._dice.random)
        for shard in sorted(shards):
            flow = FlowName(application, shard)
            if flow not in self._closing:
                self._place(flow, wanted.get(shard, ""), members, now_s)

    def _fixed(self, application: str, placed: Mapping[int, str], members: Collection[str], keeps: bool) -> dict[int, str]:
        """Where flows were wished to be. What cannot be so is forgotten, and what is so, unless the strategy keeps it."""
        found: dict[int, str] = {}
        for shard in self._owned[application]:
            flow = FlowName(application, shard)
            member = self._wished.get(flow)
            if member is None:
                continue
            if member not in members or (placed.get(shard) == member and not keeps):
                del self._wished[flow]
            else:
                found[shard] = member
        return found

    def _place(self, flow: FlowName, member: str, members: Mapping[str, SubscriberConnection], now_s: float) -> None:
        at = self.where(flow)
        member = self._wished.get(flow, member)
        if (flow, member) in self._resting:
            if at is not None:
                return
            member = rendezvous(flow.shard, (name for name in members if (flow, name) not in self._resting)) or ""
        if member not in members or (at is not None and at.member == member):
            return
        if at is not None:
            self.moves += 1
            self._close(flow, MOVING, None, now_s)
        else:
            self._attach(flow, members[member], now_s)

    def _attach(self, flow: FlowName, connection: SubscriberConnection, now_s: float) -> None:
        self._attached[flow] = connection.number
        if self._wished.get(flow) != connection.member:
            self._wished.pop(flow, None)
        # Half of the memory is for what is under way: with many flows each has less of it.
        share = max(WINDOW_BYTES_MIN, self.settings.memory_mib_max * 2**19 // sum(map(len, self._owned.values())))
        self.windows_bytes[flow] = min(connection.window_bytes, share)
        self._perform(self._core.attached(flow, connection.number, self.windows_bytes[flow], now_s))

    def _close(self, flow: FlowName, why: str, then: Callable[[], None] | None, now_s: float) -> None:
        connection = self.connections[self._attached[flow]]
        self._closing[flow] = _Closing(connection.number, now_s, then)
        self._perform(self._core.pause(flow, why))
        for number, (other, _) in connection.flows.items():
            if other == flow:
                connection.send(wire.Close(number, why))
        connection.flush()

    def _is_closed(self, flow: FlowName, connection: int) -> None:
        """No process has it now."""
        if self._attached.get(flow) != connection:
            return
        del self._attached[flow]
        self._streams.pop(flow, None)
        self.windows_bytes.pop(flow, None)
        self._perform(self._core.detached(flow, connection))
        closing = self._closing.pop(flow, None)
        if closing is not None and closing.then is not None:
            self._owned.get(flow.application, set()).discard(flow.shard)
            closing.then()
        elif closing is not None and flow not in self.paused:
            self._perform(self._core.resume(flow))
        elif closing is not None:
            self._perform(self._core.pause(flow, self.paused[flow]))

    def _forget(self, flow: FlowName) -> None:
        self._attached.pop(flow, None)
        self._streams.pop(flow, None)
        self.windows_bytes.pop(flow, None)
        self._closing.pop(flow, None)
