"""A caravan: a reader of the log, and the flows that ride on it; and how fast each may read (Wormhole 3.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from roskva.capture.flows import Flow
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position

STANDING: Final = 0.0
_SMOOTHING: Final = 0.5  # of the lead's rate, from one measurement to the next


class CaravanStatus(NamedTuple):
    """For `capture status`, and for metrics."""

    caravan: int
    lead: bool
    position: Position
    flows: int
    waiting: int  # of them, for the caravan to come to where they are
    bytes_per_s_max: float
    standing: bool  # all that ride on it wait for their subscribers
    bytes_read: int
    updates_read: int


@dataclass(eq=False, slots=True)
class Caravan:
    """The state of one. Changed by the core alone."""

    number: int
    position: Position
    riders: dict[FlowName, Flow] = field(default_factory=dict)
    of_shard: dict[int, tuple[Flow, ...]] = field(default_factory=dict)  # the same, for reading
    ahead: dict[FlowName, Flow] = field(default_factory=dict)  # those that wait until it is where they are
    pace: float = STANDING  # that was last told
    bytes_read: int = 0
    updates_read: int = 0
    measured: int = 0  # of bytes_read

    def board(self, flow: Flow) -> None:
        # The rule of caravans: what the flow still needs is not behind the reader.
        assert self.position <= flow.taken, f"{flow.name} needs what comes after {flow.taken}; caravan {self.number} is at {self.position}"
        assert flow.caravan is None
        assert flow.name not in self.riders
        flow.caravan = self.number
        self.riders[flow.name] = flow
        self.of_shard[flow.name.shard] = (*self.of_shard.get(flow.name.shard, ()), flow)
        flow.ahead = flow.taken > self.position
        if flow.ahead:
            self.ahead[flow.name] = flow

    def leave(self, flow: Flow) -> None:
        flow.taken = self.taken(flow)
        flow.caravan = None
        flow.ahead = False
        self.ahead.pop(flow.name, None)
        del self.riders[flow.name]
        left = tuple(other for other in self.of_shard[flow.name.shard] if other is not flow)
        if left:
            self.of_shard[flow.name.shard] = left
        else:
            del self.of_shard[flow.name.shard]

    def taken(self, flow: Flow) -> Position:
        return max(flow.taken, self.position)

    def reach(self, position: Position) -> None:
        assert position >= self.position, f"caravan {self.number} is at {self.position} and cannot go back to {position}"
        self.position = position
        if self.ahead:
            for flow in [flow for flow in self.ahead.values() if flow.taken <= position]:
                flow.ahead = False
                del self.ahead[flow.name]

    def stands(self, limits: Limits) -> bool:
        """Whether nobody would take what it reads: then it reads nothing, instead of reading it twice. Never asked of the lead."""
        return bool(self.riders) and all(flow.choked(limits) for flow in self.riders.values())

    def status(self, lead: bool) -> CaravanStatus:
        standing = self.pace == STANDING
        return CaravanStatus(
            self.number, lead, self.position, len(self.riders), len(self.ahead), self.pace, standing, self.bytes_read, self.updates_read
        )

    def measure(self, seconds: float, before: float) -> float:
        """Bytes per second that it read since it was last asked, smoothed."""
        read, self.measured = self.bytes_read - self.measured, self.bytes_read
        return before + _SMOOTHING * (read / seconds - before)


class Rates(NamedTuple):
    lead: float
    lagging: float  # each


def rates(limits: Limits, lead_bytes_per_s: float, lagging: int) -> Rates:
    """How fast each may read. Lagging caravans catch up with the lead, within the limits; where those are too narrow for all, everybody
    reads slower, and the lagging ones are still faster than the lead."""
    share = limits.caravans_rate_total_max / (1.0 + limits.catch_up_factor * lagging)
    wanted = max(limits.catch_up_factor * lead_bytes_per_s, limits.caravan_rate_min)
    each = min(wanted, limits.caravan_rate_max, limits.catch_up_factor * share)
    return Rates(min(limits.caravan_rate_max, limits.caravans_rate_total_max - each * lagging), each)


def rearmost(flows: Iterable[Flow]) -> Position | None:
    """The smallest datamarker that is durable; of a flow that has none, where it begins. Real-time flows need nothing of the past."""
    return min((flow.stored or flow.datamarker for flow in flows if not flow.terms.realtime), default=None)
