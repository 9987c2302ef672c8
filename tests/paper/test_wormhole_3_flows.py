"""Wormhole 2, 3 and 5: what the publisher's core alone shows of flows, datamarkers and caravans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roskva.capture.actions import Confirm, DataLoss, Notice, Open, Pace, Send, Store, Token
from roskva.capture.caravans import rates
from roskva.capture.core import Core
from roskva.capture.flows import Terms
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.policies import POLICIES
from roskva.capture.positions import Position
from tests.capture.core.stage import Stage, at, of, row


def test_2_a_slow_application_does_not_hold_up_data_delivery_to_a_fast_one() -> None:
    """Challenge 1: "A slow application that synchronously processes updates should not hold up data delivery to a fast one." """
    stage = Stage()
    slow, fast = stage.flow("a", window=100), stage.flow("b")
    for number in range(1, 51):
        stage.write(row(number))
        stage.read()
        stage.tick(0.1)
        assert stage.sent(fast)[-1] == number
    assert stage.sent(slow) == [1]


def test_2_all_updates_are_delivered_at_least_once() -> None:
    """Challenge 2: through a lost connection and a publisher that begins again with nothing but its datamarkers."""
    stage = Stage()
    flow = stage.flow("a")
    stage.write(*(row(number) for number in range(1, 11)))
    stage.read(rows_max=6)
    (wanted,) = of(stage.acknowledge(flow, row(4).position), Store)

    again = Stage(end=10)
    again.log = stage.log
    again.perform(again.core.add(flow, Terms(), wanted.position, 2, True, 0.0))
    again.attach(flow)
    again.read_all()
    assert stage.sent(flow) + again.sent(flow) == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10]


def test_2_when_an_update_is_received_all_prior_ones_have_been_received() -> None:
    """Challenge 3: in-order delivery of new updates, whichever caravans a flow rides on."""
    stage = Stage()
    flow = stage.flow("a", window=150)
    for number in range(1, 101):
        stage.write(row(number))
        stage.read()
        if number % 7 == 0:
            stage.grant(flow, 400)
            stage.read_all(rounds=3)
    for _ in range(100):
        stage.grant(flow, 1_000)
        stage.read_all()
    assert stage.status(flow).falls > 0
    assert stage.sent(flow) == list(range(1, 101))


def test_3_there_is_one_flow_for_each_application_and_shard() -> None:
    """ "constructing one flow for each (application, shard) pair"; flows are added and deleted while it runs."""
    stage = Stage()
    flows = [stage.flow(application, shard) for application in "ab" for shard in range(3)]
    stage.write(*(row(number, shard=number % 3) for number in range(1, 7)))
    stage.read()
    assert [stage.sent(flow) for flow in flows] == [[3, 6], [1, 4], [2, 5]] * 2
    stage.perform(stage.core.remove(flows[0]))
    stage.write(row(9, shard=0))
    stage.read()
    assert stage.sent(flows[0]) == [3, 6]
    assert stage.sent(flows[3]) == [3, 6, 9]


def test_3_in_steady_state_one_reader_serves_all_flows() -> None:
    """ "Wormhole uses one reader to get the updates, and sends them to all interested flows." """
    stage = Stage()
    flows = [stage.flow(application, 0) for application in "abc"]
    for number in range(1, 40):
        stage.write(row(number))
        stage.read()
        stage.tick(1.0)
    assert len(of(stage.done, Open)) == 1
    assert [len(stage.sent(flow)) for flow in flows] == [39, 39, 39]
    assert sum(caravan.updates_read for caravan in stage.core.caravans()) == 39


def test_3_a_new_application_starts_where_it_asks_to() -> None:
    """ "it is typically specified which point in the past it wants to start getting updates from" """
    stage = Stage(end=10)
    stage.log = [row(number) for number in range(1, 11)]
    flow = FlowName("a", 0)
    stage.store(stage.perform(stage.core.add(flow, Terms(), at(6), 1, False, 0.0)))
    stage.attach(flow)
    stage.read_all()
    assert of(stage.done, Notice)[0].after == at(6)
    assert stage.sent(flow) == [7, 8, 9, 10]


def test_3_recovering_flows_are_clustered_and_each_cluster_has_one_reader() -> None:
    """ "Wormhole clusters flows and creates a reader for each cluster instead, which results in significant I/O savings." """
    stage = Stage(end=1_000)
    stage.log = [row(number, shard=number % 20) for number in range(1, 1_001)]
    for shard in range(20):
        stage.flow("a", shard, marker=100 + shard if shard < 10 else 600 + shard)
    opened = of(stage.tick(), Open)
    assert [one.after for one in opened] == [at(100), at(610)]


def test_3_1_the_datamarkers_of_all_flows_on_a_caravan_are_at_least_its_position() -> None:
    """ "The datamarkers of all flows assigned to a caravan must be at least as large as the position of the caravan": asserted whenever a
    flow boards."""
    stage = Stage(end=100, caravans_max=2)
    stage.log = [row(number) for number in range(1, 101)]
    flows = [stage.flow(name, marker=marker) for name, marker in (("a", 90), ("b", 20), ("c", 50))]
    stage.tick()
    caravans = {caravan.caravan: caravan.position for caravan in stage.core.caravans()}
    for status in stage.core.flows():
        assert status.caravan is not None
        assert status.datamarker >= caravans[status.caravan]
    convoy = stage.core._convoy
    found = convoy.flows[flows[1]]
    convoy.caravans[found.caravan or 0].leave(found)
    with pytest.raises(AssertionError, match="needs what comes after"):
        convoy.lead.board(found)


def test_3_1_with_few_caravans_flows_that_are_ahead_wait_for_those_behind() -> None:
    """ "If we allow very few caravans, flows with very different datamarkers get assigned to the same caravan" """
    reads, waited = {}, {}
    for most in (1, 2, 4):
        stage = Stage(end=300, caravans_max=most, buffer_updates_max=1_000, buffer_bytes_max=1_000_000)
        stage.log = [row(number) for number in range(1, 301)]
        flows = [stage.flow(name, marker=marker) for name, marker in (("a", 0), ("b", 150), ("c", 250))]
        reads[most] = waited[most] = 0
        while any(not stage.sent(flow) or stage.sent(flow)[-1] < 300 for flow in flows):
            reads[most] += stage.read_all(rows_max=10, rounds=1)
            waited[most] += sum(not stage.sent(flow) for flow in flows)
    assert reads[1] <= reads[2] < reads[4]
    assert waited[1] >= waited[2] > waited[4]


def test_3_1_a_caravan_is_split_and_two_that_are_close_are_merged() -> None:
    """ "Caravans are periodically split and merged based on the datamarkers of the flows." """
    stage = Stage(end=1_000, caravans_max=2)
    stage.log = [row(number) for number in range(1, 1_001)]
    rear, front = stage.flow("a", marker=100), stage.flow("b", marker=600)
    stage.tick()
    assert stage.status(rear).caravan == stage.status(front).caravan
    stage.perform(stage.core.configure(replace(stage.core.limits, caravans_max=3)))
    assert stage.status(rear).caravan != stage.status(front).caravan
    caravan = stage.status(rear).caravan
    assert caravan is not None
    for _ in range(10):
        stage.read(caravan, rows_max=49)
        stage.tick(1.0)
    assert stage.status(rear).caravan == stage.status(front).caravan == caravan


def test_3_1_caravans_that_lag_read_1_25_to_2_times_faster_than_the_lead() -> None:
    """ "Forced to read updates at a rate that is faster than the rate of the lead caravan (typically 1.25 to 2 times faster)" """
    limits = Limits(catch_up_factor=1.25, caravan_rate_min=1.0)
    assert rates(limits, 1_000_000.0, 2).lagging == 1_250_000.0
    assert rates(replace(limits, catch_up_factor=2.0), 1_000_000.0, 2).lagging == 2_000_000.0


def test_3_1_there_is_a_maximum_of_caravans_of_each_ones_rate_and_of_all_together() -> None:
    """ "The maximum number of caravans, the maximum rate at which a caravan is allowed to read updates, and a maximum cumulative rate" """
    stage = Stage(end=1_000, caravans_max=3, caravan_rate_max=1_000.0, caravans_rate_total_max=1_500.0, close_share=0.0)
    stage.log = [row(number) for number in range(1, 1_001)]
    for shard in range(6):
        stage.flow("a", shard, marker=150 * shard)
    stage.tick()
    assert len(stage.open) == 3
    paces = {pace.caravan: pace.bytes_per_s for pace in of(stage.done, Pace)}
    assert max(paces.values()) <= 1_000.0
    assert sum(paces.values()) <= 1_500.0


def test_3_1_a_flow_that_cannot_keep_up_is_moved() -> None:
    """ "If a caravan has a flow which is not able to keep up with the speed of the caravan [...] we can move the flow." """
    stage = Stage()
    slow, fast = stage.flow("a", window=100), stage.flow("b")
    stage.write(*(row(number) for number in range(1, 41)))
    for _ in range(10):
        stage.read(rows_max=4)
    stage.grant(slow, 100)
    stage.tick()
    assert stage.status(slow).caravan not in (None, stage.lead)
    assert stage.status(fast).caravan == stage.lead


def test_3_1_a_flow_that_is_far_ahead_of_its_caravan_is_moved_to_another_one() -> None:
    """ "Or whose datamarker is far ahead (and can better served by another caravan), we can move the flow": as soon as there is one."""
    stage = Stage(end=1_000, caravans_max=3)
    stage.log = [row(number) for number in range(1, 1_001)]
    rear, middle, ahead = (stage.flow(name, marker=marker) for name, marker in (("a", 0), ("b", 300), ("c", 900)))
    stage.tick()
    assert stage.status(rear).caravan == stage.status(middle).caravan != stage.status(ahead).caravan, "the widest gap is between these"
    stage.perform(stage.core.pause(ahead, "makes room"))
    stage.tick(1.0)
    assert stage.status(middle).caravan not in (None, stage.lead, stage.status(rear).caravan)
    stage.perform(stage.core.resume(ahead))
    stage.read_all(rows_max=40)
    assert [stage.sent(flow)[-1] for flow in (rear, middle, ahead)] == [1_000] * 3


def test_3_1_the_allocation_policy_is_chosen_by_its_name() -> None:
    """Section 3: "a configurable flow-clustering algorithm"; section 7: "easy to swap in and out"."""
    assert len(POLICIES) >= 2
    for name in POLICIES:
        assert Core(Limits(policy=name)).limits.policy == name


def test_3_3_1_a_datamarker_is_sent_periodically_among_the_updates_and_stored_when_acknowledged() -> None:
    """ "for every flow, a publisher periodically sends a datamarker (current position in the datastore log) interspersed with updates" """
    stage = Stage()
    flow = stage.flow("a")
    tokens = []
    for number in range(1, 121):  # a row per second, for two minutes
        stage.write(row(number))
        stage.read()
        tokens += of(stage.tick(1.0), Token)
    assert 3 <= len(tokens) <= 4  # of 120 updates: no acknowledgement for each
    assert Limits().datamarker_period_s == 30.0
    assert stage.acknowledge(flow, tokens[-1].position) == [Store(flow, tokens[-1].position, 1)]


def test_3_3_1_some_updates_come_again_after_a_recovery_and_fewer_if_the_subscriber_acknowledges_by_itself() -> None:
    """ "Wormhole also provides an interface to allow subscribers to send datamarkers to publishers in order to reduce the probability of
    duplicate delivery." """
    repeated = {}
    for every in (1_000, 10):
        stage = Stage()
        flow = stage.flow("a")
        for number in range(1, 96):
            stage.write(row(number))
            stage.read()
            stage.tick(0.1)
            if number % every == 0:
                stage.acknowledge(flow, row(number).position)
        stage.perform(stage.core.detached(flow, 7))
        stage.attach(flow)
        stage.read_all()
        repeated[every] = len(stage.sent(flow)) - 95
    assert repeated == {1_000: 95, 10: 5}


def test_3_3_1_only_real_time_data_needs_no_caravan_for_old_updates() -> None:
    """ "Applications can choose to get only real time data (hence not requiring caravans for old updates)" """
    stage = Stage(end=50)
    stage.log = [row(number) for number in range(1, 51)]
    flow = stage.flow("a", terms=Terms(realtime=True))
    stage.tick()
    assert len(stage.open) == 1
    stage.write(row(51))
    stage.read()
    assert stage.sent(flow) == [51]


def test_3_3_1_data_that_is_at_most_a_certain_time_old() -> None:
    """Or "data that is at most a certain time old"; what is older is skipped, and here counted."""
    stage = Stage()
    flow = stage.flow("a", terms=Terms(age_max_s=5.0))
    stage.now_s = 20.0
    stage.write(row(10), row(16))
    stage.read()
    assert stage.sent(flow) == [16]
    assert stage.status(flow).too_old == 1


def test_3_3_2_another_publisher_goes_on_where_the_failed_one_stopped() -> None:
    """ "MCRD is SCRD with publisher failover": the datamarker is a logical position, and means the same beside another replica."""
    first, second = Stage(), Stage()
    flow = first.flow("a")
    second.core.watch(flow, at(0))
    rows = [row(5, index=index) for index in range(1, 9)]
    for stage in (first, second):
        stage.write(*rows)
    first.read(rows_max=5)
    (wanted,) = of(first.acknowledge(flow, Position(1, 5, 3)), Store)  # in the middle of a commit
    second.read()
    second.tick(1.0)
    assert {confirmed.position for confirmed in of(second.done, Confirm)} <= {at(0)}  # its own log is kept for that
    second.perform(second.core.add(flow, Terms(), wanted.position, 2, True, 1.0))
    second.attach(flow)
    second.read_all()
    assert [update.position.index for action in of(second.done, Send) for update in action.updates] == [4, 5, 6, 7, 8]


def test_3_3_2_only_the_owner_records_datamarkers() -> None:
    """One peer owns a flow; who has lost it is fenced by the epoch under which it stores."""
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1))
    stage.read()
    (wanted,) = of(stage.acknowledge(flow, row(1).position), Store)
    stage.perform(stage.core.fenced(flow, wanted.epoch))
    stage.write(row(2))
    stage.read()
    assert of(stage.tick(100.0), Store) == []
    assert stage.sent(flow) == [1]


def test_table_1_the_subscriber_is_told_of_a_shard_its_updates_tokens_and_losses() -> None:
    """The publisher's part of onShardNotice, onUpdate, onToken and onDataLoss, in that order on this stage."""
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1))
    stage.read()
    stage.tick(31.0)
    stage.perform(stage.core.pause(flow, "to fall behind"))
    stage.write(row(2), row(9))
    stage.read()
    stage.perform(stage.core.resume(flow))
    stage.tick(1.0)
    caravan = stage.status(flow).caravan
    assert caravan is not None
    stage.perform(stage.core.cut(caravan, at(5), stage.now_s))
    told = [action for action in stage.done if isinstance(action, Notice | Send | Token | DataLoss)]
    assert [type(action) for action in told] == [Notice, Send, Token, DataLoss]
    loss = told[-1]
    assert isinstance(loss, DataLoss)
    assert (loss.lost_after, loss.lost_to) == (at(1), at(5))


def test_5_all_flows_are_reassigned_to_caravans_by_a_command() -> None:
    """ "Override some decisions manually (e.g., reassign all flows to caravans in order to improve I/O utilization)": here by another
    policy, with `roskva capture set`, which holds at once."""
    stage = Stage(end=1_000)
    stage.log = [row(number) for number in range(1, 1_001)]
    flows = [stage.flow(name, marker=marker) for name, marker in (("a", 100), ("b", 600))]
    stage.tick()
    assert len({stage.status(flow).caravan for flow in flows} - {None, stage.lead}) == 2
    stage.perform(stage.core.configure(replace(stage.core.limits, policy="fewest")))
    assert len({stage.status(flow).caravan for flow in flows} - {None, stage.lead}) == 1
    stage.read_all(rows_max=40)
    assert [stage.sent(flow)[-1] for flow in flows] == [1_000] * 2
