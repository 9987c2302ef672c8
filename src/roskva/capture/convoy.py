"""All caravans of a publisher and the flows that ride on them: the steps that the core's events are made of (Wormhole 3.1). Pure.

Knows nothing of datamarkers but that a flow without a connection goes back to its own. The core (core.py) decides when; here is how.
Actions are appended to the list that each step is given, in the order in which they must happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roskva.capture.actions import Action, Close, DataLoss, Ended, Open, Pace, Send
from roskva.capture.caravans import STANDING, Caravan, rates
from roskva.capture.flows import Flow, Routed
from roskva.capture.interface import Retained
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.policies import POLICIES, Reader, Rider, View, check
from roskva.capture.positions import Position
from roskva.errors import BadRequest

_PACE_CHANGE: Final = 0.05  # by less nobody is made faster; slower at once, so that all together never read too much


class Convoy:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.flows: dict[FlowName, Flow] = {}
        self.caravans: dict[int, Caravan] = {}
        self.buffered_bytes = 0  # of all flows
        self._lead: Caravan | None = None
        self._number = 0
        self._lead_bytes_per_s = 0.0
        self.configure(limits, None, [])

    @property
    def lead(self) -> Caravan:
        assert self._lead is not None, "the core was not started"
        return self._lead

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def configure(self, limits: Limits, retained: Retained | None, actions: list[Action]) -> None:
        """Buffers and caravans beyond the new limits are given up at once."""
        if limits.policy not in POLICIES:
            raise BadRequest(f"There is no policy {limits.policy!r} for caravans: {' or '.join(POLICIES)} is expected.")
        self.limits = limits
        for flow in [flow for flow in self.flows.values() if flow.full(limits)]:
            self.fall(flow, actions)
        self.keep_to_the_total(actions)
        if retained is not None:
            self.allocate(retained, actions)
        if self._lead is not None:
            self.tell_paces(actions)

    def start(self, end: Position, actions: list[Action]) -> None:
        assert self._lead is None, "started twice"
        self._lead = self.open(end, True, actions)
        self.tell_paces(actions)

    # Caravans open, close and join.

    def open(self, after: Position, lead: bool, actions: list[Action]) -> Caravan:
        caravan = Caravan(self.next_number(), after)
        self.caravans[caravan.number] = caravan
        actions.append(Open(caravan.number, after, lead))
        return caravan

    def close(self, caravan: Caravan, actions: list[Action]) -> None:
        assert not caravan.riders
        del self.caravans[caravan.number]
        actions.append(Close(caravan.number))

    def join_if_caught_up(self, caravan: Caravan, actions: list[Action]) -> None:
        """A lagging caravan that is as far as the lead has done its work: who rides on it needs nothing that the lead has read already."""
        lead = self.lead
        if caravan is lead or caravan.number not in self.caravans or caravan.position < lead.position:
            return
        for flow in list(caravan.riders.values()):
            caravan.leave(flow)
            lead.board(flow)
        self.close(caravan, actions)

    # Flows board and leave.

    def taken(self, flow: Flow) -> Position:
        return flow.taken if flow.caravan is None else self.caravans[flow.caravan].taken(flow)

    def board(self, flow: Flow, caravan: Caravan) -> None:
        if flow.terms.realtime:
            flow.taken = max(flow.taken, caravan.position)  # what it missed is not for it
        caravan.board(flow)
        flow.fallen = False

    def board_lead_if_it_fits(self, flow: Flow) -> None:
        """At once, and not at the next allocation: it has missed nothing."""
        if flow.caravan is None and flow.ready and (flow.terms.realtime or flow.taken >= self.lead.position):
            self.board(flow, self.lead)

    def leave(self, flow: Flow, actions: list[Action]) -> None:
        """Nobody reads for nobody: a lagging caravan that the last flow leaves is closed."""
        if flow.caravan is not None:
            caravan = self.caravans[flow.caravan]
            caravan.leave(flow)
            if not caravan.riders and caravan is not self.lead:
                self.close(caravan, actions)

    def fall(self, flow: Flow, actions: list[Action]) -> None:
        """Its buffer is discarded, and it leaves: it holds up nobody, and what was not sent is read again when its subscriber has room. A
        real-time flow stays where it is, and misses what was in the buffer. What there is credit for goes first, due or not: else a flow
        whose updates wait for more of them might fall for ever."""
        if flow.buffer and flow.credit_bytes > 0:
            self._hand_over(flow, True, actions)
            if not flow.buffer:
                return
        if flow.terms.realtime:
            flow.discarded += self._drop(flow)
            return
        self.leave(flow, actions)
        if self._drop(flow):
            flow.taken = flow.sent
        flow.fallen = True
        flow.falls += 1

    def pause(self, flow: Flow, actions: list[Action]) -> None:
        self.leave(flow, actions)
        if self._drop(flow):
            flow.taken = flow.sent

    def end(self, flow: Flow, tell: bool, actions: list[Action]) -> None:
        """Nothing goes to its connection any more. Without one, only the datamarker counts."""
        self.leave(flow, actions)
        if tell and flow.connection is not None and flow.stream is not None:
            actions.append(Ended(flow.name, flow.connection, flow.stream))
        self._drop(flow)
        flow.sent = flow.taken = flow.datamarker
        flow.connection = flow.stream = flow.asked = None
        flow.credit_bytes = flow.window_bytes = 0
        flow.fallen = False

    def _drop(self, flow: Flow) -> int:
        count = len(flow.buffer)
        self.buffered_bytes -= flow.buffered_bytes
        flow.buffer = []
        flow.buffered_bytes = 0
        return count

    # Updates go from the reader to the buffer, and from there to the connection.

    def deal(self, caravan: Caravan, updates: Sequence[Routed], actions: list[Action], now_s: float, today_us: int) -> list[Flow]:
        """Every update into the buffer of each flow that rides and wants it. The answer: flows that may have something to send now.

        This runs per update and flow. The caravan stands before the batch until all of it is dealt: nobody leaves here with a buffer.
        """
        filled: list[Flow] = []
        limits = self.limits
        of_shard = caravan.of_shard
        for update in updates:
            for flow in of_shard.get(update.shard, ()):
                if flow.name.application not in update.applications or (flow.ahead and update.position <= flow.taken):
                    continue
                if flow.terms.age_max_s is not None and today_us - update.committed_us > flow.terms.age_max_s * 1_000_000:
                    flow.too_old += 1
                    continue
                if not flow.buffer:
                    flow.buffered_since_s = flow.moved_s = now_s
                    filled.append(flow)
                elif flow.terms.staleness_max_s:
                    filled.append(flow)  # it may have credit all the same
                flow.buffer.append(update)
                flow.buffered_bytes += update.size
                self.buffered_bytes += update.size
                if flow.full(limits):
                    self.pump(flow, actions, now_s)
                    if flow.full(limits):
                        self.fall(flow, actions)
        return filled

    def pump(self, flow: Flow, actions: list[Action], now_s: float) -> None:
        """Hand over what there is credit for."""
        if flow.buffer and flow.credit_bytes > 0 and flow.due(self.limits, now_s):
            self._hand_over(flow, True, actions)
            flow.moved_s = now_s

    def _hand_over(self, flow: Flow, within_credit: bool, actions: list[Action]) -> None:
        assert flow.connection is not None
        assert flow.stream is not None
        before = flow.buffered_bytes
        updates = flow.hand_over(within_credit)
        self.buffered_bytes -= before - flow.buffered_bytes
        actions.append(Send(flow.name, flow.connection, flow.stream, updates))

    def keep_to_the_total(self, actions: list[Action]) -> None:
        """The largest buffers pay for what all hold together."""
        while self.buffered_bytes > self.limits.buffers_bytes_max:
            self.fall(max(self.flows.values(), key=lambda flow: flow.buffered_bytes), actions)

    # The log was cut.

    def cut(self, caravan: Caravan, oldest: Position, actions: list[Action], now_s: float) -> None:
        """Another reader takes its place, after `oldest`: who needed more has lost it."""
        riders = list(caravan.riders.values())
        for flow in riders:
            caravan.leave(flow)
        after = max(oldest, caravan.position)
        self.close(caravan, actions)
        fresh = self.open(after, caravan is self._lead, actions)
        if caravan is self._lead:
            self._lead = fresh
        for flow in riders:
            if flow.taken < after:
                self._lose(flow, after, actions, now_s)
            self.board(flow, fresh)
        self.join_if_caught_up(fresh, actions)
        self.tell_paces(actions)

    def _lose(self, flow: Flow, oldest: Position, actions: list[Action], now_s: float) -> None:
        assert flow.connection is not None
        assert flow.stream is not None
        if flow.buffer:
            # What is in the buffer is gone from the log, too: it goes to the subscriber now, credit or not.
            self._hand_over(flow, False, actions)
            flow.moved_s = now_s
        flow.losses += 1
        if not flow.terms.realtime:
            actions.append(DataLoss(flow.name, flow.connection, flow.stream, flow.taken, oldest))
        flow.sent = flow.taken = oldest

    # The policy, and paces.

    def view(self, retained: Retained) -> View:
        """What the policy sees: all that ride, and all that could."""
        lead = self.lead
        return View(
            Reader(lead.number, lead.position),
            [Reader(caravan.number, caravan.position) for caravan in self.caravans.values() if caravan is not lead],
            [
                Rider(flow.name, self.taken(flow), flow.caravan, flow.terms.realtime)
                for flow in self.flows.values()
                if flow.caravan is not None or flow.ready
            ],
            retained.oldest,
            max(retained.end, lead.position),
        )

    def allocate(self, retained: Retained, actions: list[Action]) -> None:
        """Ask the policy, and do what it says. What is not needed any more closes before anything opens: `caravans_max` always holds."""
        view = self.view(retained)
        plan = POLICIES[self.limits.policy](view, self.limits)
        check(view, plan, self.limits)
        moves = [
            (self.flows[name], seat)
            for seat in plan.seats
            for name in seat.flows
            if seat.caravan is None or self.flows[name].caravan != seat.caravan
        ]
        for flow, _ in moves:
            if flow.caravan is not None:
                self.caravans[flow.caravan].leave(flow)
        kept = {seat.caravan for seat in plan.seats}
        for caravan in [caravan for caravan in self.caravans.values() if caravan.number not in kept]:
            self.close(caravan, actions)
        seated = {
            seat: self.caravans[seat.caravan] if seat.caravan is not None else self.open(seat.after, seat is plan.seats[0], actions)
            for seat in plan.seats
        }
        self._lead = seated[plan.seats[0]]
        for flow, seat in moves:
            self.board(flow, seated[seat])

    def measure(self, seconds: float) -> None:
        """How fast the lead reads."""
        self._lead_bytes_per_s = self.lead.measure(seconds, self._lead_bytes_per_s)

    def tell_paces(self, actions: list[Action]) -> None:
        allowed = rates(self.limits, self._lead_bytes_per_s, len(self.caravans) - 1)
        for caravan in self.caravans.values():
            self._tell(caravan, allowed.lead if caravan is self._lead else allowed.lagging, actions)

    def tell_pace(self, caravan: Caravan, actions: list[Action]) -> None:
        """Whether one that lags must stand, or may go on."""
        if caravan is not self._lead and caravan.number in self.caravans:
            self._tell(caravan, rates(self.limits, self._lead_bytes_per_s, len(self.caravans) - 1).lagging, actions)

    def _tell(self, caravan: Caravan, pace: float, actions: list[Action]) -> None:
        if caravan is not self._lead and caravan.stands(self.limits):
            pace = STANDING
        if pace < caravan.pace or pace > caravan.pace * (1.0 + _PACE_CHANGE):
            caravan.pace = pace
            actions.append(Pace(caravan.number, pace))

    def check(self) -> None:
        """All that must be true of flows and caravans, the long way."""
        assert self.buffered_bytes == sum(flow.buffered_bytes for flow in self.flows.values())
        assert len(self.caravans) <= self.limits.caravans_max
        for flow in self.flows.values():
            flow.check(self.taken(flow), self.limits)
            assert flow.caravan is not None or not flow.buffer, flow.name
            assert flow.caravan is None or self.caravans[flow.caravan].riders[flow.name] is flow
        for caravan in self.caravans.values():
            assert caravan is self._lead or (caravan.riders and caravan.position < self.lead.position), "nobody reads for nobody"
            assert sorted(flow.name for flows in caravan.of_shard.values() for flow in flows) == sorted(caravan.riders)
            for flow in caravan.riders.values():
                assert flow.caravan == caravan.number
                assert flow.ahead == (flow.taken > caravan.position) == (flow.name in caravan.ahead)
