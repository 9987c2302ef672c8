"""The core of a publisher: flows, caravans, datamarkers (Wormhole 3, 3.1, 3.3). One per datastore host.

Theory of operation. A caravan is a reader of the log with flows riding on it; flows.py says at which positions a flow stands. The lead
follows the log's end. A flow that cannot take what is read for it leaves: its buffer is discarded, nobody waits for it, and once its
subscriber has made room it rides on a caravan further back, which is faster than the lead; when that has come as far as the lead, its flows
change over. The policy (policies.py) says which flow rides where. The one rule, asserted whenever a flow boards:

    a flow boards a caravan only if it has taken all up to the caravan's position:    caravan.position <= flow.taken

That is the paper's "datamarkers of all flows assigned to a caravan must be at least as large as the position of the caravan": a flow that
has just got a connection has taken what its datamarker says. It stays true: both move together, and a flow that goes back leaves first.

Pure: no clock, no thread, no datastore, no socket. `now_s` is any clock that does not go back. Each call returns what must be done.

The caller's duties, in this order:

1. `start` with the log's end. Then `add` each flow that this publisher owns, with the datamarker that is stored for it and the epoch of the
   ownership, or with its first position if none is (`Datastore.retained`, `Datastore.at_time`); `watch` each flow that another publisher of
   the same data owns, again whenever its stored datamarker has moved: the log is kept for it.
2. Perform the actions of every call in the order in which they stand, those of an earlier call before those of a later one. One thread
   calls.
3. For each Open, a reader, which stands until its first Pace. Each batch that it reads goes to `read`, in order, each once, with what the
   filters say of each update: `after` is where the reader stood before. At most one batch of a caravan is under way when its Pace says 0.
   After Close nothing more is read. LogCut: `cut`. DatastoreUnavailable: a new reader at `position_of`, and what the old one may still
   bring is thrown away.
4. Notice, Send, Token, DataLoss and Ended go to the connection they name, and are forgotten if it is gone; then `detached` for each of its
   flows. After `rewind` a flow has no connection: `attached` again, to the same or another.
5. Store: make it durable first, then call `stored`. If a later epoch has stored one: `fenced`. The core confirms to the datastore nothing
   that is not durable, if `stored` is called only when it is true.
6. What subscribers say goes to `acknowledged` and `granted`, with the stream that they name.
7. `tick` some times per second.
8. After a crash: begin at 1. Nothing but the datamarkers must survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roskva.capture.actions import Action, CaravanId, Confirm, Connection, Notice, Store, Token
from roskva.capture.caravans import CaravanStatus, rearmost
from roskva.capture.convoy import Convoy
from roskva.capture.flows import Flow, FlowStatus, Routed, Stream, Terms
from roskva.capture.interface import Retained
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, Position

_LOOKS_PER_PERIOD: Final = 16  # at all flows, to see whose token is due
# Of the period, after which a new stream is first asked: else one whose subscriber or publisher never lives as long as that would begin at
# the same place each time, for ever.
_FIRST_TOKEN: Final = 0.1


class Core:
    def __init__(self, limits: Limits) -> None:
        self._convoy = Convoy(limits)
        self._watched: dict[FlowName, Position] = {}
        self._allocated_s = self._looked_s = self._measured_s = 0.0
        self._retained: Retained | None = None  # at the last tick
        self._confirmed = BEGINNING
        self.times_fenced = 0

    @property
    def limits(self) -> Limits:
        return self._convoy.limits

    def start(self, end: Position, now_s: float) -> list[Action]:
        """Opens the lead after `end`. Once, before everything else."""
        actions: list[Action] = []
        self._allocated_s = self._looked_s = self._measured_s = now_s
        self._convoy.start(end, actions)
        return actions

    def configure(self, limits: Limits) -> list[Action]:
        """Other limits, from now on: what is beyond them, buffers and caravans, is given up at once. BadRequest: nothing has changed."""
        actions: list[Action] = []
        self._convoy.configure(limits, self._retained, actions)
        return actions

    # Flows come and go.

    def add(self, flow: FlowName, terms: Terms, datamarker: Position, epoch: int, stored: bool, now_s: float) -> list[Action]:
        """This publisher owns the flow from now on. `stored`: the datamarker is durable; otherwise it is where the flow begins, and is made
        durable before anything is sent. A flow that is there already is taken out first (another epoch, other terms)."""
        actions = self.remove(flow)
        self._watched.pop(flow, None)
        durable = datamarker if stored else None
        self._convoy.flows[flow] = Flow(flow, terms, epoch, datamarker, datamarker, datamarker, durable, token_s=now_s)
        if not stored and not terms.realtime:
            actions.append(Store(flow, datamarker, epoch))
        return actions

    def ask_anew(self, flow: FlowName, terms: Terms, now_s: float) -> list[Action]:
        """Its application asks for something else: it begins anew after what is durable; what was acknowledged since comes again. Of a flow
        that has these terms, or an unknown one: nothing."""
        found = self._convoy.flows.get(flow)
        if found is None or found.terms == terms:
            return []
        begins = found.datamarker if found.stored is None else found.stored
        return self.add(flow, terms, begins, found.epoch, found.stored is not None, now_s)

    def remove(self, flow: FlowName) -> list[Action]:
        """The flow is not this publisher's any more: nothing is sent or stored for it. Unless it is watched, the log is not kept for it."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is not None:
            self._convoy.end(found, True, actions)
            del self._convoy.flows[flow]
        return actions

    def fenced(self, flow: FlowName, epoch: int) -> list[Action]:
        """What this publisher wanted to store under `epoch` was refused: another one owns the flow. As `remove`, and counted; the log is
        kept for that one from where this one was, until `watch` says how far it is. Of another epoch than the flow has here: nothing."""
        found = self._convoy.flows.get(flow)
        if found is None or found.epoch != epoch:
            return []
        self.times_fenced += 1
        if not found.terms.realtime:
            self._watched[flow] = found.stored or found.datamarker
        return self.remove(flow)

    def watch(self, flow: FlowName, datamarker: Position) -> None:
        """Another publisher of the same data owns this flow and has stored this. The log is kept from there on, to take over."""
        if flow not in self._convoy.flows:
            self._watched[flow] = datamarker

    def unwatch(self, flow: FlowName) -> None:
        """Nobody has this flow any more."""
        self._watched.pop(flow, None)

    def attached(self, flow: FlowName, connection: Connection, window_bytes: int, now_s: float) -> list[Action]:
        """A subscriber takes the flow, and has room for so many bytes (0: it will say so, `granted`). It goes on after its datamarker. If
        another connection had it, that one is told that it ended (reassign). An unknown flow: nothing."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is None:
            return actions
        self._convoy.end(found, True, actions)
        found.connection = connection
        found.stream = Stream(found.epoch, self._convoy.next_number())
        found.credit_bytes = found.window_bytes = window_bytes
        found.token_s = now_s - (1.0 - _FIRST_TOKEN) * self.limits.datamarker_period_s
        if found.terms.realtime:
            found.datamarker = found.sent = found.taken = max(found.datamarker, self._convoy.lead.position)
        actions.append(Notice(flow, connection, found.stream, found.datamarker))
        self._convoy.board_lead_if_it_fits(found)
        return actions

    def detached(self, flow: FlowName, connection: Connection) -> list[Action]:
        """The connection is gone, or does not want the flow any more. Of another connection than the flow's: nothing."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is not None and found.connection == connection:
            self._convoy.end(found, False, actions)
        return actions

    def pause(self, flow: FlowName, why: str) -> list[Action]:
        """Nothing more is read for it or sent, until `resume`. It stays attached; the log is kept."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is not None:
            found.paused = why
            self._convoy.pause(found, actions)
        return actions

    def resume(self, flow: FlowName) -> list[Action]:
        found = self._convoy.flows.get(flow)
        if found is not None:
            found.paused = None
            self._convoy.board_lead_if_it_fits(found)
        return []

    def rewind(self, flow: FlowName, position: Position, epoch: int) -> list[Action]:
        """By an operator's word alone: the datamarker is this now, back or forward, and was stored so, under a new epoch. Its stream ends;
        the flow waits for `attached`."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is not None:
            self._convoy.end(found, True, actions)
            found.epoch = epoch
            found.datamarker = found.stored = found.sent = found.taken = position
        return actions

    # What subscribers say, and the place that keeps datamarkers.

    def acknowledged(self, flow: FlowName, stream: Stream, position: Position) -> list[Action]:
        """All up to here was dealt with: asked for or not. Again or late, it changes nothing. Of another stream, or beyond what was sent:
        refused, and counted."""
        found = self._convoy.flows.get(flow)
        if found is None:
            return []
        if found.stream != stream or position > found.sent:
            found.refused += 1
            return []
        return self._mark(found, position) if position > found.datamarker else []

    def granted(self, flow: FlowName, stream: Stream, more_bytes: int, now_s: float) -> list[Action]:
        """The subscriber has room for so much more, but in all for no more than the window that it was given: the first word of one that
        was given none is its window. The last update may go beyond: one larger than any window gets through."""
        actions: list[Action] = []
        found = self._convoy.flows.get(flow)
        if found is None:
            return actions
        if found.stream != stream:
            found.refused += 1
            return actions
        found.window_bytes = found.window_bytes or more_bytes
        found.credit_bytes = min(found.credit_bytes + more_bytes, found.window_bytes)
        self._convoy.pump(found, actions, now_s)
        if found.caravan is None:
            self._convoy.board_lead_if_it_fits(found)
        else:
            self._convoy.tell_pace(self._convoy.caravans[found.caravan], actions)
        return actions

    def stored(self, flow: FlowName, position: Position, epoch: int) -> list[Action]:
        """This datamarker is durable. Of another epoch than the flow's: nothing."""
        found = self._convoy.flows.get(flow)
        if found is not None and found.epoch == epoch and position <= found.datamarker:
            found.stored = position if found.stored is None else max(found.stored, position)
            self._convoy.board_lead_if_it_fits(found)
        return []

    # What readers bring.

    def read(
        self,
        caravan: CaravanId,
        after: Position,
        updates: Sequence[Routed],
        reached: Position,
        bytes_read: int,
        now_s: float,
        today_us: int,
    ) -> list[Action]:
        """All that the log has after `after`, up to and with `reached`, in its order. Updates that no application wants may be left out.

        `today_us`: microseconds since 1970, for `age_max_s`. A caravan that is closed: nothing.
        """
        actions: list[Action] = []
        found = self._convoy.caravans.get(caravan)
        if found is None:
            return actions
        assert after == found.position, f"caravan {caravan} is at {found.position}, and was brought what comes after {after}"
        assert not updates or (after < updates[0].position and updates[-1].position <= reached)
        found.bytes_read += bytes_read
        found.updates_read += len(updates)
        filled = self._convoy.deal(found, updates, actions, now_s, today_us)
        found.reach(reached)
        for flow in filled:
            self._convoy.pump(flow, actions, now_s)
        self._convoy.keep_to_the_total(actions)
        self._convoy.join_if_caught_up(found, actions)
        self._convoy.tell_pace(found, actions)
        return actions

    def cut(self, caravan: CaravanId, oldest: Position, now_s: float) -> list[Action]:
        """The reader raised LogCut: the log begins after `oldest`. Flows that needed more are told what they lost, and go on from there, on
        another caravan in this one's place."""
        actions: list[Action] = []
        found = self._convoy.caravans.get(caravan)
        if found is not None:
            self._convoy.cut(found, oldest, actions, now_s)
        return actions

    def position_of(self, caravan: CaravanId) -> Position | None:
        """Where another reader must begin if this caravan's fails. None: it is closed."""
        found = self._convoy.caravans.get(caravan)
        return None if found is None else found.position

    # Time.

    def tick(self, now_s: float, retained: Retained) -> list[Action]:
        """Tokens, what has waited long enough, paces, what may be confirmed; every `allocation_period_s` the policy."""
        actions: list[Action] = []
        self._retained = retained
        limits = self.limits
        homeless = False
        look = now_s - self._looked_s >= limits.datamarker_period_s / _LOOKS_PER_PERIOD
        for flow in self._convoy.flows.values():
            if flow.buffer:
                self._convoy.pump(flow, actions, now_s)
            if now_s - flow.moved_s >= limits.choke_max_s:
                if flow.choked(limits):
                    self._convoy.fall(flow, actions)
                elif flow.credit_bytes > 0:
                    flow.fallen = False  # its subscriber gives little, but gives
            if look and now_s - flow.token_s >= limits.datamarker_period_s:
                flow.token_s = now_s
                self._ask(flow, actions)
            homeless = homeless or (flow.caravan is None and flow.ready)
        if look:
            self._looked_s = now_s
        if now_s - self._measured_s >= limits.allocation_period_s:
            self._convoy.measure(now_s - self._measured_s)
            self._measured_s = now_s
        if homeless or now_s - self._allocated_s >= limits.allocation_period_s:
            self._allocated_s = now_s
            self._convoy.allocate(retained, actions)
        self._convoy.tell_paces(actions)
        confirmable = self.confirmable()
        if confirmable is not None and confirmable > self._confirmed:
            self._confirmed = confirmable
            actions.append(Confirm(confirmable))
        return actions

    def _ask(self, flow: Flow, actions: list[Action]) -> None:
        """Wormhole 3.3.1: now and then, a datamarker among the updates. Where nothing is outstanding there is nobody to ask: the datamarker
        of a flow that is sent nothing follows its caravan, so that it does not hold the log."""
        if flow.connection is None or flow.stream is None or flow.terms.realtime:
            return
        position = flow.sent if flow.buffer else self._convoy.taken(flow)
        if position == flow.datamarker or position == flow.asked:
            return
        if flow.sent == flow.datamarker:
            flow.sent = position
            actions += self._mark(flow, position)
            return
        flow.sent = flow.asked = position
        flow.tokens_sent += 1
        actions.append(Token(flow.name, flow.connection, flow.stream, position))

    def _mark(self, flow: Flow, position: Position) -> list[Action]:
        assert flow.datamarker < position <= flow.sent
        flow.datamarker = position
        return [] if flow.terms.realtime else [Store(flow.name, position, flow.epoch)]

    # Questions.

    def confirmable(self) -> Position | None:
        """The smallest stored datamarker of all flows, owned and watched: what comes up to it may be dropped. Where all are real-time ones,
        nobody needs anything of the past. None: there are no flows."""
        if not self._convoy.flows and not self._watched:
            return None
        owned = rearmost(self._convoy.flows.values())
        return min([*self._watched.values(), *([] if owned is None else [owned])], default=self._convoy.lead.position)

    def flows(self) -> list[FlowStatus]:
        return [flow.status(self._convoy.taken(flow)) for flow in self._convoy.flows.values()]

    def caravans(self) -> list[CaravanStatus]:
        lead = self._convoy.lead
        return [caravan.status(caravan is lead) for caravan in self._convoy.caravans.values()]

    def check(self) -> None:
        """All that must be true of the state, the long way. For tests and the simulator."""
        self._convoy.check()
        for flow in self._convoy.flows.values():
            assert flow.name not in self._watched
