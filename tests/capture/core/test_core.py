"""What the core of a publisher does, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roskva.capture.actions import Close, Confirm, DataLoss, Ended, Notice, Open, Pace, Send, Store, Token
from roskva.capture.core import Core
from roskva.capture.flows import State, Stream, Terms
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.errors import BadRequest
from tests.capture.core.stage import LIMITS, ONE_MIB, Stage, at, of, row


def test_a_flow_at_the_logs_end_is_sent_what_its_filter_lets_pass_and_nothing_else() -> None:
    stage = Stage()
    one, other, elsewhere = stage.flow("a"), stage.flow("b"), stage.flow("a", shard=1)
    stage.write(row(1), row(2, applications=("b",)), row(3, shard=1), row(4))
    actions = stage.read()
    assert stage.sent(one) == [1, 4]
    assert stage.sent(other) == [1, 2, 4]
    assert stage.sent(elsewhere) == [3]
    assert len(of(actions, Send)) == 3  # one per flow and batch, not one per update


def test_a_flow_that_has_missed_something_rides_further_back_and_changes_over_when_it_has_caught_up() -> None:
    stage = Stage(end=10)
    stage.log = [row(number) for number in range(1, 11)]
    behind, current = stage.flow("a", marker=3), stage.flow("b", marker=10)
    assert stage.status(behind).state == State.WAITING
    assert stage.status(current).caravan == stage.lead
    opened = of(stage.tick(), Open)
    assert [(one.after, one.lead) for one in opened] == [(at(3), False)]
    stage.write(row(11))
    stage.read()  # the lead goes on
    stage.read(opened[0].caravan, rows_max=4)
    assert stage.status(behind).caravan == opened[0].caravan
    stage.read(opened[0].caravan)
    assert stage.status(behind).caravan == stage.lead
    assert opened[0].caravan not in stage.open
    stage.write(row(12))
    stage.read()
    assert stage.sent(behind) == list(range(4, 13))
    assert stage.sent(current) == [11, 12]


def test_a_full_buffer_is_discarded_and_read_again_and_nobody_else_waits() -> None:
    stage = Stage()
    slow, quick = stage.flow("a", window=250), stage.flow("b")
    stage.write(*(row(number) for number in range(1, 31)))
    for _ in range(10):
        stage.read(rows_max=3)
    assert stage.sent(quick) == list(range(1, 31))
    assert stage.sent(slow) == [1, 2, 3]  # the last goes beyond the credit
    status = stage.status(slow)
    assert (status.state, status.falls, status.buffered) == (State.CHOKED, 1, 0)
    assert status.sent == status.taken
    stage.tick(1.0)
    assert len(stage.open) == 1  # nobody reads for a flow that can take nothing
    for _ in range(40):
        stage.grant(slow, 100)
        stage.read_all()
    assert stage.sent(slow) == list(range(1, 31))  # each once: what was sent over a connection that lives is not sent again
    assert stage.status(slow).caravan == stage.lead


def test_a_lagging_caravan_whose_flows_all_wait_for_credit_stands_instead_of_reading_twice() -> None:
    stage = Stage(end=20)
    stage.log = [row(number) for number in range(1, 21)]
    slow = stage.flow("a", window=100)
    stage.tick()
    caravan = stage.status(slow).caravan
    assert caravan is not None
    stage.read(caravan, rows_max=6)
    assert stage.done[-1] == Pace(caravan, 0.0)
    for _ in range(10):
        actions = stage.grant(slow, 100)
    assert of(actions, Pace) == []
    assert stage.status(slow).falls == 0
    assert any(action.bytes_per_s > 0 for action in of(stage.done, Pace)[-1:])


def test_a_subscriber_that_takes_nothing_for_long_gives_buffer_and_seat_back() -> None:
    stage = Stage(choke_max_s=10.0)
    stuck = stage.flow("a", window=100)
    stage.write(*(row(number) for number in range(1, 8)))
    stage.read()
    assert stage.status(stuck).buffered == 6
    stage.tick(9.0)
    assert stage.status(stuck).buffered == 6
    stage.tick(2.0)
    assert (stage.status(stuck).buffered, stage.status(stuck).state) == (0, State.CHOKED)


def test_all_buffers_together_are_bounded_and_the_largest_pays() -> None:
    stage = Stage(buffers_bytes_max=1_000, buffer_bytes_max=100_000, buffer_updates_max=1_000)
    small, large = stage.flow("a", window=1), stage.flow("b", window=1)
    stage.write(*(row(number, applications=("a", "b") if number < 4 else ("b",)) for number in range(1, 13)))
    stage.read()
    assert (stage.status(small).buffered, stage.status(large).buffered) == (2, 0)
    assert stage.status(large).falls == 1


def test_a_connection_that_is_lost_takes_the_flow_back_to_its_datamarker() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(*(row(number) for number in range(1, 6)))
    stage.read()
    stage.store(stage.acknowledge(flow, row(2).position))
    stage.perform(stage.core.detached(flow, 7))
    assert stage.status(flow).state == State.ALONE
    stage.attach(flow, connection=8)
    assert stage.done[-1] == Notice(flow, 8, Stream(1, stage.streams[flow].number), row(2).position)
    stage.read_all()
    assert stage.sent(flow) == [1, 2, 3, 4, 5, 3, 4, 5]


def test_the_end_of_another_connection_changes_nothing() -> None:
    stage = Stage()
    flow = stage.flow("a")
    assert stage.core.detached(flow, 6) == []
    assert stage.core.detached(FlowName("nobody", 0), 7) == []
    assert stage.status(flow).state == State.RIDING


def test_a_datamarker_moves_forward_only_and_never_beyond_what_was_sent() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1), row(2), row(3))
    stage.read()
    assert stage.acknowledge(flow, row(2).position) == [Store(flow, row(2).position, 1)]
    assert stage.acknowledge(flow, row(2).position) == []
    assert stage.acknowledge(flow, row(1).position) == []
    assert stage.acknowledge(flow, row(4).position) == []
    assert stage.core.acknowledged(flow, Stream(1, 999), row(3).position) == []
    assert stage.status(flow).datamarker == row(2).position
    assert stage.status(flow).refused == 2


def test_tokens_are_sent_periodically_and_only_for_what_is_new() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1))
    stage.read()
    assert of(stage.tick(2.0), Token) == []
    (token,) = of(stage.tick(2.0), Token)  # the first of a stream comes soon
    assert token.position == at(1)
    assert of(stage.tick(60.0), Token) == []  # it was asked for, and the connection loses nothing
    stage.write(row(9))
    stage.read()
    (token,) = of(stage.tick(31.0), Token)
    stage.write(row(10))
    stage.read()
    assert of(stage.tick(29.0), Token) == []
    assert len(of(stage.tick(3.0), Token)) == 1
    stage.acknowledge(flow, token.position)
    stage.write(row(12))
    stage.read()
    assert [token.position for token in of(stage.tick(60.0), Token)] == [at(12)]


def test_a_subscriber_that_never_lives_for_a_period_gets_further_all_the_same() -> None:
    stage = Stage()
    flow = stage.flow("a")
    for life in range(1, 6):
        stage.write(row(life))
        stage.tick(1.0)
        stage.read()
        for token in of(stage.tick(9.0), Token):
            stage.store(stage.acknowledge(flow, token.position))
        stage.perform(stage.core.detached(flow, stage.status(flow).connection or 0))
        assert stage.status(flow).stored == at(life)
        stage.attach(flow)


def test_a_token_names_only_what_was_sent() -> None:
    stage = Stage()
    flow = stage.flow("a", window=200)
    stage.write(*(row(number) for number in range(1, 5)))
    stage.read()
    assert stage.status(flow).buffered == 2
    assert [token.position for token in of(stage.tick(31.0), Token)] == [row(2).position]


def test_a_flow_that_is_sent_nothing_does_not_hold_the_log() -> None:
    stage = Stage()
    quiet = stage.flow("quiet")
    stage.write(*(row(number) for number in range(1, 100)))
    stage.read()
    actions = stage.tick(31.0)
    assert of(actions, Store) == [Store(quiet, at(99), 1)]
    assert of(actions, Token) == []
    assert stage.core.confirmable() == at(0)
    stage.store(actions)
    assert of(stage.tick(), Confirm) == [Confirm(at(99))]


def test_a_flow_with_something_outstanding_is_asked_before_its_datamarker_follows() -> None:
    stage = Stage()
    stage.flow("a")
    stage.write(row(1), *(row(number, applications=()) for number in range(2, 50)))
    stage.read()
    actions = stage.tick(31.0)
    assert of(actions, Store) == []
    assert [token.position for token in of(actions, Token)] == [at(49)]


def test_what_is_confirmed_is_what_every_flow_has_stored() -> None:
    stage = Stage()
    one, other = stage.flow("a"), stage.flow("b")
    elsewhere = FlowName("c", 0)
    stage.core.watch(elsewhere, at(3))
    stage.write(*(row(number) for number in range(1, 9)))
    stage.read()
    stage.store(stage.acknowledge(one, at(5)._replace(index=1)))
    waiting = stage.acknowledge(other, row(7).position)
    assert stage.core.confirmable() == at(0)  # acknowledged is not durable
    stage.store(waiting)
    assert stage.core.confirmable() == at(3)  # a flow that another publisher owns: this one may have to take over
    stage.core.watch(elsewhere, at(8))
    assert of(stage.tick(), Confirm) == [Confirm(row(5).position)]
    assert of(stage.tick(), Confirm) == []
    stage.core.unwatch(elsewhere)
    stage.perform(stage.core.remove(one))
    assert stage.core.confirmable() == row(7).position


def test_nothing_is_sent_before_it_is_durable_where_the_flow_begins() -> None:
    stage = Stage()
    flow = FlowName("a", 0)
    actions = stage.perform(stage.core.add(flow, Terms(), at(0), 4, False, 0.0))
    assert actions == [Store(flow, at(0), 4)]
    stage.attach(flow)
    stage.write(row(1))
    stage.read()
    stage.tick(2.0)
    assert stage.status(flow).state == State.NEW
    assert stage.sent(flow) == []
    stage.store(actions)
    stage.read_all()
    assert stage.sent(flow) == [1]


def test_a_log_that_was_cut_is_told_with_its_range_after_what_was_still_in_the_buffer() -> None:
    stage = Stage(end=20)
    stage.log = [row(number) for number in range(1, 21)]
    flow, ahead = stage.flow("a", marker=2, window=100), stage.flow("b", marker=15)
    stage.core.configure(replace(LIMITS, caravans_max=2))
    stage.tick()
    caravan = stage.status(flow).caravan
    assert caravan is not None
    assert stage.status(ahead).caravan == caravan
    stage.read(caravan, rows_max=3)
    stage.oldest = at(12)
    actions = stage.perform(stage.core.cut(caravan, at(12), stage.now_s))
    assert [type(action) for action in actions if not isinstance(action, Pace)] == [Close, Open, Send, DataLoss]
    assert of(actions, DataLoss) == [DataLoss(flow, 7, stage.streams[flow], row(5).position, at(12))]
    assert stage.sent(flow) == [3, 4, 5]
    for _ in range(20):
        stage.grant(flow, 100)
        stage.read_all()
    assert stage.sent(flow) == [3, 4, 5, *range(13, 21)]
    assert stage.sent(ahead) == list(range(16, 21))
    assert (stage.status(flow).losses, stage.status(ahead).losses) == (1, 0)


def test_a_loss_that_was_not_acknowledged_is_told_again() -> None:
    stage = Stage(end=20)
    flow = stage.flow("a", marker=2)
    stage.tick()
    first = stage.status(flow).caravan
    assert first is not None
    stage.perform(stage.core.cut(first, at(12), 0.0))
    stage.perform(stage.core.detached(flow, 7))
    assert stage.status(flow).datamarker == at(2)
    stage.attach(flow)
    stage.tick(0.1)
    second = stage.status(flow).caravan
    assert second is not None
    assert stage.open[second].after == at(2)


def test_a_subscriber_that_grants_more_than_its_window_is_sent_no_more_than_that() -> None:
    stage = Stage()
    flow = stage.flow("a", window=50)
    stage.grant(flow, 2**40)
    stage.write(*(row(number) for number in range(1, 30)))
    stage.read()
    assert sum(update.size for action in of(stage.done, Send) for update in action.updates) <= 50 + stage.log[0].size
    assert stage.sent(flow) == [1]


def test_a_real_time_flow_never_falls_back() -> None:
    stage = Stage(end=5)
    stage.log = [row(number) for number in range(1, 6)]
    flow = stage.flow("a", marker=0, window=100, terms=Terms(realtime=True))
    assert stage.status(flow).caravan == stage.lead
    stage.write(*(row(number) for number in range(6, 40)))
    for _ in range(10):
        stage.read(rows_max=4)
        stage.tick(1.0)
    assert stage.status(flow).caravan == stage.lead
    assert stage.status(flow).discarded > 0
    assert len(stage.open) == 1
    for _ in range(20):
        stage.grant(flow, 100)
    stage.write(row(40))
    stage.read()
    assert stage.sent(flow)[0] == 6
    assert stage.sent(flow)[-1] == 40
    assert stage.sent(flow) == sorted(stage.sent(flow))
    assert of(stage.tick(100.0), Token | Store) == []  # type: ignore[arg-type]
    assert stage.core.confirmable() == at(40)  # nobody needs the past, so the log is not held


def test_updates_that_are_too_old_are_left_out_and_counted() -> None:
    stage = Stage()
    flow = stage.flow("a", terms=Terms(age_max_s=10.0))
    stage.now_s = 30.0
    stage.write(*(row(number) for number in range(15, 25)))  # committed at second 15 to 24
    stage.read()
    assert stage.sent(flow) == [20, 21, 22, 23, 24]
    assert stage.status(flow).too_old == 5


def test_updates_that_may_be_stale_go_together() -> None:
    stage = Stage(buffer_updates_max=100)
    flow = stage.flow("a", terms=Terms(staleness_max_s=5.0))
    for number in range(1, 5):
        stage.write(row(number))
        stage.read()
        stage.tick(1.0)
    assert stage.sent(flow) == []
    (sent,) = of(stage.tick(1.0), Send)
    assert len(sent.updates) == 4


def test_a_paused_flow_is_neither_read_for_nor_sent_to_and_goes_on_where_it_was() -> None:
    stage = Stage()
    flow, other = stage.flow("a"), stage.flow("b")
    stage.write(row(1))
    stage.read()
    stage.perform(stage.core.pause(flow, "by hand"))
    assert (stage.status(flow).state, stage.status(flow).why) == (State.PAUSED, "by hand")
    stage.write(row(2), row(3))
    stage.read()
    stage.tick(2.0)
    assert (stage.sent(flow), stage.sent(other)) == ([1], [1, 2, 3])
    assert len(stage.open) == 1
    stage.perform(stage.core.resume(flow))
    stage.read_all()
    assert stage.sent(flow) == [1, 2, 3]


def test_a_flow_is_rewound_in_a_stream_of_its_own() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(*(row(number) for number in range(1, 6)))
    stage.read()
    stage.store(stage.acknowledge(flow, row(5).position))
    old = stage.streams[flow]
    assert stage.perform(stage.core.rewind(flow, at(2), 2)) == [Ended(flow, 7, old)]
    stage.attach(flow)
    stage.read_all()
    assert stage.sent(flow) == [1, 2, 3, 4, 5, 3, 4, 5]
    assert stage.core.acknowledged(flow, old, row(5).position) == []  # it was said of the first time
    assert stage.core.stored(flow, row(5).position, 1) == []
    assert stage.core.confirmable() == at(2)
    assert stage.streams[flow].epoch == 2


def test_a_flow_that_goes_to_another_connection_ends_at_the_first() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1))
    stage.read()
    old = stage.streams[flow]
    actions = stage.perform(stage.core.attached(flow, 9, ONE_MIB, 0.0))
    assert actions[0] == Ended(flow, 7, old)
    assert isinstance(actions[1], Notice)
    stage.read_all()
    assert [action.connection for action in of(stage.done, Send)] == [7, 9]


def test_who_was_fenced_sends_and_stores_nothing_more_and_keeps_the_log() -> None:
    stage = Stage()
    flow = stage.flow("a")
    stage.write(row(1))
    stage.read()
    (wanted,) = of(stage.acknowledge(flow, row(1).position), Store)
    assert stage.core.fenced(flow, 0) == []  # of an ownership before this one
    assert stage.perform(stage.core.fenced(flow, wanted.epoch)) == [Ended(flow, 7, stage.streams[flow])]
    assert stage.core.times_fenced == 1
    stage.write(row(2))
    assert of(stage.read(), Send) == []
    assert stage.core.acknowledged(flow, stage.streams[flow], row(1).position) == []
    assert stage.core.stored(flow, row(1).position, 1) == []
    assert stage.core.confirmable() == at(0)
    assert stage.core.fenced(flow, 1) == []


def test_what_comes_for_a_flow_or_a_caravan_that_is_gone_is_ignored() -> None:
    stage = Stage()
    nobody = FlowName("nobody", 3)
    core = stage.core
    assert core.attached(nobody, 1, 1, 0.0) == []
    assert core.granted(nobody, Stream(1, 1), 1, 0.0) == []
    assert core.acknowledged(nobody, Stream(1, 1), at(1)) == []
    assert core.pause(nobody, "") == core.resume(nobody) == core.remove(nobody) == core.rewind(nobody, at(1), 2) == []
    assert core.read(99, at(0), [row(1)], at(1), 100, 0.0, 0) == []
    assert core.cut(99, at(1), 0.0) == []
    assert core.position_of(99) is None


def test_a_batch_that_does_not_follow_the_last_one_is_a_bug_of_the_caller() -> None:
    stage = Stage(end=5)
    with pytest.raises(AssertionError, match="was brought what comes after"):
        stage.core.read(stage.lead, at(6), [row(7)], at(7), 100, 0.0, 0)


def test_credit_of_another_stream_does_not_count() -> None:
    stage = Stage()
    flow = stage.flow("a", window=0)
    assert stage.core.granted(flow, Stream(1, 999), 100, 0.0) == []
    assert stage.status(flow).credit_bytes == 0
    assert stage.status(flow).state == State.CHOKED
    stage.grant(flow, 100)
    assert stage.status(flow).caravan == stage.lead


def test_one_update_that_is_larger_than_any_window_gets_through() -> None:
    stage = Stage(buffer_bytes_max=200_000)
    flow = stage.flow("a", window=10)
    stage.write(row(1, size=100_000), row(2))
    stage.read()
    assert stage.sent(flow) == [1]
    stage.grant(flow, 100_000)
    assert stage.sent(flow) == [1, 2]


def test_limits_change_while_it_runs() -> None:
    stage = Stage(end=100, close_share=0.0)
    stage.log = [row(number) for number in range(1, 101)]
    flows = [stage.flow(name, marker=marker, window=1) for name, marker in (("a", 10), ("b", 40), ("c", 80))]
    stage.tick()
    assert len(stage.open) == 4
    for flow in flows:
        caravan = stage.status(flow).caravan
        assert caravan is not None
        stage.read(caravan, rows_max=6)
    assert [stage.status(flow).buffered for flow in flows] == [5, 5, 5]
    stage.perform(stage.core.configure(replace(stage.core.limits, caravans_max=2, buffer_updates_max=4)))
    assert len(stage.open) <= 2
    assert [stage.status(flow).buffered for flow in flows] == [0, 0, 0]
    with pytest.raises(BadRequest, match="cluster or fewest"):
        stage.core.configure(replace(LIMITS, policy="best"))
    assert stage.core.limits.caravans_max == 2


@pytest.mark.parametrize(
    "wrong", [{"caravans_max": 0}, {"catch_up_factor": 1.0}, {"close_share": 2.0}, {"buffer_bytes_max": 0}, {"policy": "x"}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        Core(replace(Limits(), **wrong))  # type: ignore[arg-type]


def test_a_commit_in_several_batches_is_resumed_in_its_middle() -> None:
    stage = Stage()
    flow = stage.flow("a")
    rows = [row(5, index=number) for number in range(1, 8)]
    stage.write(*rows)
    stage.read(rows_max=3)
    stage.store(stage.acknowledge(flow, Position(1, 5, 2)))
    stage.perform(stage.core.detached(flow, 7))
    stage.attach(flow)
    stage.read_all(rows_max=2)
    sent = [update.position.index for action in of(stage.done, Send) for update in action.updates]
    assert sent == [1, 2, 3, 3, 4, 5, 6, 7]
