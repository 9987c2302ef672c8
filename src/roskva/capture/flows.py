"""A flow: the updates of one shard on their way to one application (Wormhole 3). Pure.

Theory of operation. A flow stands at four positions of the log, and always

    stored <= datamarker <= sent <= taken

- `datamarker`: its subscriber has dealt with all up to here; `stored`: so far that is durable.
- `sent`: all up to here was handed to its present connection.
- `taken`: all up to here was handed to the connection, or is in the buffer, or was not wanted. What comes next must be read. While the flow
  rides, its caravan carries this forward: it is the larger of what stands here and the caravan's position.

A connection that lives loses nothing and changes no order: a flow whose buffer was discarded goes on from `sent`. One whose connection is
lost goes on from `datamarker`, since subscribers remember nothing (Wormhole 3): what was sent since then comes again.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position


class Stream(NamedTuple):
    """One run of a flow over one connection. Everything that a subscriber says of a flow belongs to one; what belongs to an earlier one is
    ignored."""

    epoch: int  # of the publisher's ownership of the flow (Wormhole 3.3.2)
    number: int  # within the publisher's process, never used again


class Terms(NamedTuple):
    """What an application asked for."""

    realtime: bool = False  # only what is new: never read for again; what its buffer cannot hold is discarded, and counted
    age_max_s: float | None = None  # updates that are older when they are read are left out, and counted
    staleness_max_s: float = 0.0  # updates may wait so long for more, to go together


class Routed(NamedTuple):
    """An update as the core sees it: where it stands, and who wants it."""

    position: Position
    shard: int
    applications: Container[str]  # whose filters let it pass: best a frozenset that many updates share
    size: int  # bytes on the wire: what credit and buffers are counted in
    committed_us: int
    payload: object  # the shell's own


class State(StrEnum):
    NEW = "new"  # where it begins is not durable yet
    ALONE = "alone"  # no subscriber has it
    PAUSED = "paused"  # by an operator
    CHOKED = "choked"  # it rides nowhere, and waits for its subscriber's credit
    WAITING = "waiting"  # for a caravan that comes from far enough back
    RIDING = "riding"


class FlowStatus(NamedTuple):
    """For `capture status`, and for metrics."""

    flow: FlowName
    state: State
    why: str  # it is paused
    epoch: int
    stream: Stream | None
    stored: Position | None
    datamarker: Position
    sent: Position
    taken: Position
    caravan: int | None
    connection: int | None
    credit_bytes: int
    buffered: int
    buffered_bytes: int
    updates_sent: int
    bytes_sent: int
    tokens_sent: int
    falls: int  # how often its buffer was discarded, to be read again
    discarded: int  # updates of a real-time flow, for good
    too_old: int
    losses: int
    refused: int  # acknowledgements and credit of another stream, or beyond what was sent


@dataclass(eq=False, slots=True)
class Flow:
    """The state of one flow, and its arithmetic. Changed by the core alone."""

    name: FlowName
    terms: Terms
    epoch: int
    datamarker: Position
    sent: Position
    taken: Position  # see above: behind the caravan's position while it rides, unless `ahead`
    stored: Position | None = None  # None: nothing is durable
    connection: int | None = None
    stream: Stream | None = None
    credit_bytes: int = 0
    window_bytes: int = 0  # the most credit that it may have; 0: its subscriber will say
    caravan: int | None = None
    ahead: bool = False  # of its caravan: updates up to `taken` are not for it
    paused: str | None = None  # why
    fallen: bool = False
    buffer: list[Routed] = field(default_factory=list)
    buffered_bytes: int = 0
    buffered_since_s: float = 0.0
    moved_s: float = 0.0  # when its buffer last got shorter or began to fill
    token_s: float = 0.0  # when it was last looked at
    asked: Position | None = None  # the last token of this stream
    updates_sent: int = 0
    bytes_sent: int = 0
    tokens_sent: int = 0
    falls: int = 0
    discarded: int = 0
    too_old: int = 0
    losses: int = 0
    refused: int = 0

    @property
    def ready(self) -> bool:
        """Whether it may ride: something can be sent, and after a fall enough of it, so that reading is worth while."""
        if self.connection is None or self.paused is not None or (self.stored is None and not self.terms.realtime):
            return False
        return self.credit_bytes > 0 and (not self.fallen or 2 * self.credit_bytes >= self.window_bytes)

    @property
    def state(self) -> State:
        if self.caravan is not None:
            return State.RIDING
        if self.paused is not None:
            return State.PAUSED
        if self.stored is None and not self.terms.realtime:
            return State.NEW
        if self.connection is None:
            return State.ALONE
        return State.WAITING if self.ready else State.CHOKED

    def full(self, limits: Limits) -> bool:
        return self.buffered_bytes > limits.buffer_bytes_max or len(self.buffer) > limits.buffer_updates_max

    def choked(self, limits: Limits) -> bool:
        """Half full: early enough that the batch which is under way still finds room."""
        return 2 * self.buffered_bytes > limits.buffer_bytes_max or 2 * len(self.buffer) > limits.buffer_updates_max

    def due(self, limits: Limits, now_s: float) -> bool:
        """Whether what waits in the buffer, for more to go with it, may wait no longer."""
        if not self.terms.staleness_max_s or now_s - self.buffered_since_s >= self.terms.staleness_max_s:
            return True
        return 4 * self.buffered_bytes > limits.buffer_bytes_max or 4 * len(self.buffer) > limits.buffer_updates_max

    def hand_over(self, within_credit: bool) -> list[Routed]:
        """What goes to the connection now: what there is credit for, or all of it. The last update may go beyond the credit."""
        if not within_credit or self.credit_bytes >= self.buffered_bytes:
            handed, self.buffer = self.buffer, []
            size = self.buffered_bytes
        else:
            size = count = 0
            while size < self.credit_bytes:
                size += self.buffer[count].size
                count += 1
            handed, self.buffer = self.buffer[:count], self.buffer[count:]
        self.credit_bytes -= size
        self.buffered_bytes -= size
        self.bytes_sent += size
        self.updates_sent += len(handed)
        if handed:
            self.sent = handed[-1].position
        return handed

    def status(self, taken: Position) -> FlowStatus:
        return FlowStatus(
            self.name,
            self.state,
            self.paused or "",
            self.epoch,
            self.stream,
            self.stored,
            self.datamarker,
            self.sent,
            taken,
            self.caravan,
            self.connection,
            self.credit_bytes,
            len(self.buffer),
            self.buffered_bytes,
            self.updates_sent,
            self.bytes_sent,
            self.tokens_sent,
            self.falls,
            self.discarded,
            self.too_old,
            self.losses,
            self.refused,
        )

    def check(self, taken: Position, limits: Limits) -> None:
        """What must be true of it, the long way."""
        assert self.stored is None or self.stored <= self.datamarker, self.name
        assert self.datamarker <= self.sent <= taken, self.name
        assert self.buffered_bytes == sum(update.size for update in self.buffer), self.name
        assert not self.full(limits), self.name
        places = [self.sent, *(update.position for update in self.buffer), taken]
        assert places == sorted(places), self.name
        assert self.connection is not None or not self.buffer, self.name
        assert self.caravan is None or (self.connection is not None and self.paused is None), self.name
