"""Which flow rides on which caravan: the allocation policies (Wormhole 3.1). Pure: a policy is a function, and chosen by its name.

A policy sees where the caravans are and what each flow needs, and answers with the whole plan: caravans that it names go on, those that it
does not are closed, those without a number are opened. `check` says what every plan must keep; the core asserts it of each.

- `cluster`: flows whose positions are near each other share a caravan, those that are apart have their own, as far as `caravans_max`
  allows: the widest gaps of the log are between caravans. Short waits, more reading.
- `fewest`: one caravan for all that lag, which begins where the one does that lags most. Least reading, and who is ahead waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position


class Rider(NamedTuple):
    """A flow that can ride. One that cannot (no subscriber, no credit, paused) is not in view."""

    flow: FlowName
    taken: Position  # it needs what comes after this
    caravan: int | None  # on which it rides now
    realtime: bool = False  # rides on the lead alone, wherever that is


class Reader(NamedTuple):
    caravan: int
    position: Position


class View(NamedTuple):
    lead: Reader
    others: Sequence[Reader]
    riders: Sequence[Rider]
    oldest: Position  # of the retained log
    end: Position

    @property
    def lagging(self) -> list[Rider]:
        """Those that need what the lead has read already, in the order of the log."""
        found = [rider for rider in self.riders if not rider.realtime and rider.taken < self.lead.position]
        return sorted(found, key=lambda rider: (rider.taken, rider.flow))


class Seat(NamedTuple):
    """A caravan of the plan, and who rides on it."""

    caravan: int | None  # None: to be opened
    after: Position  # where it is, or is opened
    flows: tuple[FlowName, ...]


class Plan(NamedTuple):
    seats: tuple[Seat, ...]  # the lead first


Policy: TypeAlias = Callable[[View, Limits], Plan]


def cluster(view: View, limits: Limits) -> Plan:
    """Split where datamarkers form more than one tight cluster, merge what is close, move a flow to where it is served best."""
    lagging = view.lagging
    if limits.caravans_max == 1:
        return _alone(view, lagging)
    close = limits.close_share * max(view.end.sequence - view.oldest.sequence, 0)
    gaps = []
    for index in range(1, len(lagging)):
        one, other = lagging[index - 1], lagging[index]
        gap = other.taken.sequence - one.taken.sequence
        # Who rides together parts at twice the distance at which others join, so that nobody goes to and fro.
        together = one.caravan is not None and one.caravan == other.caravan
        if gap > close * (2 if together else 1):
            gaps.append((gap, index))
    widest = sorted(gaps, reverse=True)[: limits.caravans_max - 2]
    bounds = [0, *sorted(index for _, index in widest), len(lagging)]
    groups = [lagging[start:stop] for start, stop in pairwise(bounds) if start < stop]
    free = sorted(view.others, key=lambda reader: reader.position)
    seats = [_seat(group, free, close) for group in groups]
    return Plan((_lead(view), *seats))


def fewest(view: View, limits: Limits) -> Plan:
    """All that lag ride on one caravan."""
    lagging = view.lagging
    if limits.caravans_max == 1:
        return _alone(view, lagging)
    if not lagging:
        return Plan((_lead(view),))
    free = sorted(view.others, key=lambda reader: reader.position)
    close = limits.close_share * max(view.end.sequence - view.oldest.sequence, 0)
    return Plan((_lead(view), _seat(lagging, free, close)))


POLICIES: Final[Mapping[str, Policy]] = {"cluster": cluster, "fewest": fewest}


def check(view: View, plan: Plan, limits: Limits) -> None:
    """What every plan keeps, whatever the policy."""
    wanted = {rider.flow: rider for rider in view.riders}
    known = {reader.caravan: reader.position for reader in (view.lead, *view.others)}
    placed = [flow for seat in plan.seats for flow in seat.flows]
    assert sorted(placed) == sorted(wanted), "every flow that can ride has one seat"
    assert 1 <= len(plan.seats) <= limits.caravans_max
    named = [seat.caravan for seat in plan.seats if seat.caravan is not None]
    assert len(set(named)) == len(named), "a caravan stands in the plan once"
    lead = plan.seats[0]
    assert lead.caravan == view.lead.caravan or limits.caravans_max == 1, "the lead stays at the log's end"
    for seat in plan.seats:
        assert seat.caravan is None or known[seat.caravan] == seat.after, "a caravan is where it is"
        assert seat is lead or (seat.after < lead.after and seat.flows), "the lead is the farthest, and nobody reads for nobody"
        for flow in seat.flows:
            rider = wanted[flow]
            assert rider.taken >= seat.after or (rider.realtime and seat is lead), "nobody boards a caravan that is past what it needs"


def _lead(view: View) -> Seat:
    flows = tuple(rider.flow for rider in view.riders if rider.realtime or rider.taken >= view.lead.position)
    return Seat(view.lead.caravan, view.lead.position, flows)


def _alone(view: View, lagging: Sequence[Rider]) -> Plan:
    """There is but one caravan: all wait for the flow that lags most."""
    everybody = tuple(rider.flow for rider in view.riders)
    if not lagging:
        return Plan((Seat(view.lead.caravan, view.lead.position, everybody),))
    return Plan((Seat(None, lagging[0].taken, everybody),))


def _seat(group: Sequence[Rider], free: list[Reader], close: float) -> Seat:
    """The caravan that comes from behind and is nearest; a new one, if none is near. Takes it out of `free`."""
    first = group[0].taken
    flows = tuple(rider.flow for rider in group)
    fitting = [reader for reader in free if reader.position <= first]
    if fitting and first.sequence - fitting[-1].position.sequence <= close:
        free.remove(fitting[-1])
        return Seat(fitting[-1].caravan, fitting[-1].position, flows)
    return Seat(None, first, flows)
