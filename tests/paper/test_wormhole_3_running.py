"""Wormhole, section 3 and Table 1: real publishers and subscribers, over a log that has nothing but capture's interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from roskva.capture import wire
from roskva.capture.datamarkers import Claim, SqliteDatamarkers
from roskva.capture.filtering import for_updates
from roskva.capture.filters import parse_filter
from roskva.capture.interface import Datastore
from roskva.capture.ownership import Duty, FlowName, Reach, decide, fit_for
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.publisher.about import about_of
from roskva.capture.publisher.peers import Peers
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import LIMITS, command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

ABLE = about_of(Reach(BEGINNING, 1), {}, ["a"])
APPLICATION = ApplicationSettings(KEY, start="oldest")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NumberLog]:
    log = NumberLog(tmp_path / "numbers")
    yield log
    log.close()


async def test_3_it_is_easy_to_add_support_for_a_new_kind_of_log(tmp_path: Path, log: NumberLog) -> None:
    """ "It has pluggable datastore support": a publisher reads whatever has the few methods of the interface; here a file of numbers."""
    interface = [name for name in vars(Datastore) if not name.startswith("_")]
    assert sorted(interface) == ["at_time", "check", "close", "confirm", "identity", "prepare", "read_after", "retained"]
    came: list[Update] = []

    class Listing(Callbacks):
        def on_update(self, update: Update) -> None:
            came.append(update)

    log.append(3)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, Listing()):
        await until(lambda: len(came) == 3)
    assert [update.change.columns for update in came] == [{"number": 0}, {"number": 1}, {"number": 2}]


async def test_3_the_shards_of_a_publisher_are_divided_among_the_subscribers_of_an_application(tmp_path: Path, log: NumberLog) -> None:
    """ "It then divides all the shards to be sent to the application among all of the application's subscribers, eventually calling
    onShardNotice()": each shard is at one of them."""
    watching = [Watching(8) for _ in range(2)]
    async with publishing(tmp_path, log, 8) as publisher:
        first, second = (subscriber(publisher, one, member=f"m{number}") for number, one in enumerate(watching))
        async with first, second:
            await until(lambda: len(first.shards) == len(second.shards) == 4)
            assert {shard.number for shard in (*first.shards, *second.shards)} == set(range(8))
            for one, process in zip(watching, (first, second), strict=True):
                assert {shard.number for shard in process.shards} <= set(one.notices)


async def test_3_shards_of_different_publishers_may_be_processed_by_one_subscriber(tmp_path: Path, log: NumberLog) -> None:
    """ "Shards belonging to different publishers might be processed by same subscriber": here of two datasets."""
    other = NumberLog(tmp_path / "others")
    other.identity = "others"
    came: dict[Shard, int] = {}

    class Counting(Callbacks):
        def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
            came[shard] = came.get(shard, 0) + len(updates)

    log.append(10)
    other.append(20)
    async with (
        publishing(tmp_path, log) as one,
        publishing(tmp_path, other, name="p2", store=SqliteDatamarkers(tmp_path / "other datamarkers", other.identity)) as two,
        Subscriber("watch", KEY, [one.address, two.address], Counting()),
    ):
        await until(lambda: came == {Shard("numbers", 0): 10, Shard("others", 0): 20})
    other.close()


async def test_3_all_flows_to_one_subscriber_share_one_connection(tmp_path: Path, log: NumberLog) -> None:
    """ "Publishers save on connection overhead by multiplexing all flows associated with the same subscriber"; none of them is held up by
    another one."""
    watching = Watching(16)
    log.append(1_600)
    async with publishing(tmp_path, log, 16) as publisher:
        # Its address is given twice, as a list of publishers may have it.
        async with Subscriber("watch", KEY, [publisher.address] * 2, watching, "m1"):
            await until(lambda: watching.has_all(1_600))
            (connection,) = publisher.placing.connections.values()
            assert {flow for flow, _ in connection.flows.values()} == {FlowName("watch", shard) for shard in range(16)}
        assert publisher._connections == 1, "also before"
    assert (sorted(watching.notices), watching.skipped) == (list(range(16)), [])


async def test_3_subscribers_are_stateless(tmp_path: Path, log: NumberLog) -> None:
    """ "They don't need to keep track of the state of the flow": one that knows nothing goes on after what another one acknowledged."""
    before, after = Watching(1), Watching(1, from_the_first=False)
    log.append(50)
    async with publishing(tmp_path, log) as publisher:
        async with subscriber(publisher, before, member="m1"):
            await until(lambda: before.has_all(50))
        log.append(50)
        async with subscriber(publisher, after, member="m2"):
            await until(lambda: after.has_all(100))
    assert (after.first, after.total) == ({0: [50]}, 50)


async def test_3_limits_are_changed_while_it_runs(tmp_path: Path, log: NumberLog) -> None:
    """ "allows configurations to be changed on the fly": here rates and limits, as `roskva capture set` does; flows stay where they are."""
    watching = Watching(2)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        log.append(10)
        await until(lambda: watching.has_all(10))
        answer = await command(tmp_path, command="set", caravans_max=2, policy="fewest")
        assert (answer["caravans_max"], answer["policy"]) == (2, "fewest")
        assert publisher.core.limits == replace(LIMITS, caravans_max=2, policy="fewest")
        log.append(10)
        await until(lambda: watching.has_all(20))
    assert sorted(watching.notices) == [0, 1]
    assert (watching.total, watching.skipped) == (20, [])


async def test_3_an_application_is_added_or_deleted_and_its_flows_with_it(tmp_path: Path, log: NumberLog) -> None:
    """ "The configuration can be changed dynamically, for example adding a new application or deleting an old application." Here other
    settings than limits hold after a restart; whoever was there goes on at its datamarker, and nothing comes twice."""
    stays, added = Watching(2), Watching(2, from_the_first=False)
    log.append(10)
    before = {"watch": APPLICATION, "old": APPLICATION}
    async with publishing(tmp_path, log, 2, applications=before) as publisher, subscriber(publisher, stays):
        await until(lambda: stays.has_all(10))
    log.append(10)
    after = {"watch": APPLICATION, "new": ApplicationSettings(KEY, start=Position(0, 15))}
    async with (
        publishing(tmp_path, log, 2, applications=after) as publisher,
        subscriber(publisher, stays),
        subscriber(publisher, added, "new", "m2"),
    ):
        await until(lambda: stays.has_all(20) and added.has_all(20))
        assert {status.flow.application for status in publisher.core.flows()} == {"watch", "new"}
    assert (stays.total, stays.skipped, added.first) == (20, [], {0: [16], 1: [15]})


async def test_3_subscribers_balance_load_by_redirecting_flows_to_others(tmp_path: Path, log: NumberLog) -> None:
    """ "If some subscribers get heavily loaded, they redirect some flows to lightly loaded subscribers": a process hands a flow over, and
    updates go on there."""
    heavy, light = Watching(1), Watching(1, from_the_first=False)
    applications = {"watch": replace(APPLICATION, balance=lambda shards, placed, *_: {0: placed.get(0, "heavy")})}
    async with (
        publishing(tmp_path, log, applications=applications) as publisher,
        subscriber(publisher, heavy, member="heavy") as first,
        subscriber(publisher, light, member="light"),
    ):
        log.append(10)
        await until(lambda: heavy.has_all(10) and len(publisher.placing.connections) == 2)
        assert first.hand_over(Shard("numbers", 0), "light")
        log.append(10)
        await until(lambda: light.has_all(20))
    assert heavy.total + light.total == 20


async def test_3_2_filters_run_at_the_publisher_and_save_network_bandwidth(tmp_path: Path, log: NumberLog) -> None:
    """ "The publisher only delivers updates that pass the supplied filters": what does not is not sent, and the flow goes on past it."""
    filters = {"few": "[number in 0..9]", "all": "[number exists]"}
    applications = {name: replace(APPLICATION, passes=for_updates(parse_filter(text))) for name, text in filters.items()}
    few, everything = Watching(1), Watching(1)
    log.append(500)
    async with (
        publishing(tmp_path, log, applications=applications) as publisher,
        subscriber(publisher, few, "few"),
        subscriber(publisher, everything, "all"),
    ):
        await until(lambda: {status.stored for status in publisher.core.flows()} == {Position(0, 500)})
        sent = {connection.application: connection.bytes_sent for connection in publisher.placing.connections.values()}
    assert (few.total, everything.total) == (10, 500)
    assert sent["few"] < 0.2 * sent["all"]


def test_3_3_1_a_datamarker_is_small() -> None:
    """ "The average size of datamarkers is less than 100 bytes", with the question and its answer."""
    position = Position(2**31, 2**62, 2**31 - 1)
    for frame in (wire.Token(2**31, position), wire.Acknowledge(2**31, position)):
        assert len(wire.framed(frame)) < 100
    assert len(msgspec.msgpack.encode(position)) < 100


async def test_3_3_1_acknowledged_datamarkers_survive_the_publisher(tmp_path: Path, log: NumberLog) -> None:
    """ "The acknowledged datamarkers are stored on the publisher side in persistent storage": the next publisher goes on from there."""
    log.append(100)
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: [status.stored for status in publisher.core.flows()] == [Position(0, 100)])
    async with publishing(tmp_path, log) as publisher:
        await until(lambda: [status.datamarker for status in publisher.core.flows()] == [Position(0, 100)])


def test_3_3_2_a_peer_that_watches_takes_over_when_the_owner_fails(tmp_path: Path) -> None:
    """ "All other peers keep track of the owner [...] and take over the ownership if the owner fails." Here a peer is taken for dead when
    its counter, beside the datamarkers, has stood still for `takeover_s`; an owner that returns is fenced."""
    store, flow, order = SqliteDatamarkers(tmp_path / "datamarkers", "numbers"), FlowName("a", 0), ("p1", "p2")
    owner, watcher = (Peers(store, name, 8.0, 5.0) for name in order)
    assert store.take([Claim(flow, 0)], "p1") == {flow: 1}
    duties = []
    for second in range(30):
        for peer in (watcher, owner) if second <= 12 else (watcher,):
            peer.beat(ABLE)
        watcher.observe(watcher.read(), float(second))
        record = store.records()[flow]
        duties.append(decide("p2", 0, record, order, watcher.live, fit_for(record, watcher.able), watcher.steady))
    assert duties == [Duty.NOTHING] * 20 + [Duty.TAKE] * 10
    assert store.take([Claim(flow, 1)], "p2") == {flow: 2}
    assert decide("p1", 1, store.records()[flow], order, set(order), set(order), set(order)) == Duty.STOP
    store.close()


async def test_table_1_the_library_calls_what_an_application_implements(tmp_path: Path, log: NumberLog) -> None:
    """onShardNotice, then onUpdate, onToken when it is asked how far it is, onDataLoss when the datastore has dropped some of its log."""
    called: list[str] = []

    class Calls(Watching):
        def on_shard_notice(self, shard: Shard) -> None:
            called.append("notice")
            super().on_shard_notice(shard)

        def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
            called.append("update")
            super().on_updates(shard, updates)

        def on_token(self, shard: Shard, datamarker: Position) -> bool:
            called.append("token")
            return super().on_token(shard, datamarker)

        def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
            called.append("loss")
            super().on_data_loss(shard, after, upto)

    calls = Calls(1)
    log.append(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, calls):
        await until(lambda: [status.stored for status in publisher.core.flows()] == [Position(0, 1)])
    first, called[:] = list(called), []
    log.append(9)
    log.cut(5)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, calls):
        await until(lambda: calls.has_all(10))
    assert first[:3] == ["notice", "update", "token"]
    assert called[:3] == ["notice", "loss", "update"]
    assert calls.losses == [(0, Position(0, 1), Position(0, 5))]


async def test_table_1_a_datamarker_is_passed_back_only_when_all_before_it_was_processed(tmp_path: Path, log: NumberLog) -> None:
    """ "When the subscriber has processed all updates up to the supplied datamarker, it is passed back to the publisher": not before."""
    watching = Watching(1, acknowledges=False)
    log.append(10)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching) as running:
        await until(lambda: Position(0, 10) in watching.tokens)
        (status,) = publisher.core.flows()
        assert status.stored == Position(0, 0)
        assert running.acknowledge(Shard("numbers", 0), Position(0, 10))
        await until(lambda: [status.stored for status in publisher.core.flows()] == [Position(0, 10)])
