"""Whatever the flows and caravans, every policy's plan is one that the core may follow; and how the two differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roskva.capture.caravans import rates
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.policies import POLICIES, Plan, Reader, Rider, Seat, View, check, cluster, fewest
from roskva.capture.positions import BEGINNING, Position
from tests.capture.core.stage import LIMITS, Stage, at, row

positions = st.builds(Position, st.integers(1, 2), st.integers(0, 60), st.sampled_from((1, 2, at(0).index)))


@st.composite
def views(draw: st.DrawFn) -> View:
    lead = Reader(1, draw(positions))
    lagging = draw(st.lists(positions.filter(lambda position: position < lead.position), max_size=4, unique=True))
    readers = [Reader(number, position) for number, position in enumerate(lagging, 2)]
    riders = []
    for number in range(draw(st.integers(0, 8))):
        realtime = draw(st.booleans()) and draw(st.booleans())
        on = draw(st.sampled_from([None, lead, *readers]))
        taken = draw(positions)
        if on is not None:
            taken = max(taken, on.position)
        riders.append(Rider(FlowName("a", number), taken, None if on is None else on.caravan, realtime))
    return View(lead, readers, riders, BEGINNING, max([lead.position, *(rider.taken for rider in riders)]))


limits = st.builds(
    lambda most, close: Limits(caravans_max=most, close_share=close), st.integers(1, 5), st.sampled_from((0.0, 0.02, 0.3, 1.0))
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=300, deadline=None)
@given(view=views(), limits=limits)
def test_every_plan_is_valid(policy: str, view: View, limits: Limits) -> None:
    plan = POLICIES[policy](view, limits)
    check(view, plan, limits)
    assert plan == POLICIES[policy](view, limits)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=300, deadline=None)
@given(view=views(), limits=limits)
def test_a_plan_that_was_followed_stays(policy: str, view: View, limits: Limits) -> None:
    """Nobody goes to and fro while nothing moves."""
    plan = POLICIES[policy](view, limits)
    numbers = {seat: seat.caravan if seat.caravan is not None else 100 + index for index, seat in enumerate(plan.seats)}
    riding = {flow: numbers[seat] for seat in plan.seats for flow in seat.flows}
    lead, *others = [Reader(numbers[seat], seat.after) for seat in plan.seats]
    after = View(
        lead,
        others,
        [
            rider._replace(caravan=riding[rider.flow], taken=max(rider.taken, lead.position if rider.realtime else rider.taken))
            for rider in view.riders
        ],
        view.oldest,
        view.end,
    )
    again = POLICIES[policy](after, limits)
    assert {flow: seat.caravan for seat in again.seats for flow in seat.flows} == riding


def flows(*sequences: int, riding: int | None = None) -> list[Rider]:
    return [Rider(FlowName("a", number), at(sequence), riding) for number, sequence in enumerate(sequences)]


def groups(plan: Plan) -> list[list[int]]:
    return [[flow.shard for flow in seat.flows] for seat in plan.seats]


def test_two_tight_clusters_on_one_caravan_are_split() -> None:
    view = View(Reader(1, at(1000)), [Reader(2, at(100))], flows(100, 105, 700, 704, riding=2), BEGINNING, at(1000))
    plan = cluster(view, LIMITS)
    assert groups(plan) == [[], [0, 1], [2, 3]]
    assert [seat.caravan for seat in plan.seats] == [1, 2, None]
    assert plan.seats[2].after == at(700)


def test_caravans_that_are_close_are_merged() -> None:
    riders = [*flows(100, riding=2), Rider(FlowName("a", 1), at(110), 3)]
    plan = cluster(View(Reader(1, at(1000)), [Reader(2, at(100)), Reader(3, at(110))], riders, BEGINNING, at(1000)), LIMITS)
    assert groups(plan) == [[], [0, 1]]
    assert plan.seats[1].caravan == 2


def test_who_rides_together_parts_later_than_strangers_join() -> None:
    together = View(Reader(1, at(1000)), [Reader(2, at(100))], flows(100, 130, riding=2), BEGINNING, at(1000))
    apart = together._replace(riders=flows(100, 130))
    assert groups(cluster(together, LIMITS)) == [[], [0, 1]]
    assert groups(cluster(apart, LIMITS)) == [[], [0], [1]]


def test_with_too_few_caravans_the_widest_gaps_are_kept() -> None:
    view = View(Reader(1, at(1000)), [], flows(100, 200, 500, 560), BEGINNING, at(1000))
    assert groups(cluster(view, replace(LIMITS, caravans_max=3))) == [[], [0, 1], [2, 3]]
    assert groups(cluster(view, replace(LIMITS, caravans_max=2))) == [[], [0, 1, 2, 3]]


def test_fewest_has_one_caravan_for_all_that_lag() -> None:
    view = View(Reader(1, at(1000)), [Reader(2, at(300))], [*flows(100), *flows(300, 900, riding=2)[1:]], BEGINNING, at(1000))
    plan = fewest(view, LIMITS)
    assert [(seat.caravan, seat.after) for seat in plan.seats] == [(1, at(1000)), (None, at(100))]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_caravan_waits_for_the_flow_that_lags_most(policy: str) -> None:
    alone = replace(LIMITS, caravans_max=1)
    view = View(Reader(1, at(1000)), [], flows(100, 1000), BEGINNING, at(1000))
    assert POLICIES[policy](view, alone).seats == (Seat(None, at(100), (FlowName("a", 0), FlowName("a", 1))),)


def catch_up(policy: str) -> tuple[float, int]:
    """Six flows, scattered over a log of 300 rows: how many rounds of reading their updates wait on average, and how many rows are read."""
    stage = Stage(end=300, policy=policy, caravans_max=5, buffer_updates_max=1_000, buffer_bytes_max=1_000_000)
    stage.log = [row(number, applications="abcdef") for number in range(1, 301)]
    names = dict(zip("abcdef", (0, 5, 90, 95, 200, 205), strict=True))
    found = {name: stage.flow(name, marker=marker) for name, marker in names.items()}
    waited = read = 0
    for _ in range(200):
        read += stage.read_all(rows_max=10, rounds=1)
        missing = sum(300 - names[name] - len(stage.sent(found[name])) for name in names)
        waited += missing
        if not missing:
            break
    assert missing == 0
    return waited / sum(300 - marker for marker in names.values()), read


def test_clusters_wait_less_and_fewest_reads_less() -> None:
    """Wormhole 3.1: "The trade-off between I/O-load and latency"."""
    (cluster_waited, cluster_read), (fewest_waited, fewest_read) = catch_up("cluster"), catch_up("fewest")
    assert cluster_waited < fewest_waited
    assert fewest_read < cluster_read
    assert fewest_read == 300


@settings(max_examples=300, deadline=None)
@given(
    lead=st.floats(0, 1e9),
    lagging=st.integers(0, 20),
    factor=st.floats(1.25, 2.0),
    each=st.floats(1.0, 1e9),
    total=st.floats(1.0, 1e9),
    least=st.floats(1.0, 1e8),
)
def test_rates_keep_to_their_limits_and_whoever_lags_is_faster(
    lead: float, lagging: int, factor: float, each: float, total: float, least: float
) -> None:
    limits = Limits(catch_up_factor=factor, caravan_rate_max=each, caravans_rate_total_max=total, caravan_rate_min=least)
    found = rates(limits, lead, lagging)
    assert 0 < found.lead <= each
    assert 0 < found.lagging <= each
    if lagging:
        assert found.lead + lagging * found.lagging <= total * 1.000001
        # Faster than the lead is, unless a single caravan may not be: then no one can.
        assert found.lagging >= min(factor * lead, each, factor * total / (1 + factor * lagging)) * 0.999999
