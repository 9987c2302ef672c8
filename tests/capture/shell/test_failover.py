"""Flows go to a publisher that can read, and never to one whose log lacks something that they need (Wormhole 3.3.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roskva.capture.datamarkers import Claim, Mark, SqliteDatamarkers
from roskva.capture.ownership import FlowName, Peer, Reach
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings, Publisher
from roskva.capture.publisher.about import PLACED_MAX, WISHED, about_of, applications_of, elsewhere_of, reach_from
from roskva.capture.publisher.peers import Peers
from roskva.capture.publisher.storing import RETRY_S
from roskva.capture.subscriber import Subscriber
from roskva.errors import Unavailable
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command, publishing
from tests.capture.shell.watching import Watching, until

PEERS = (Peer("p1"), Peer("p2"))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[dict[str, NumberLog]]:
    """The same numbers, at each publisher with a file of its own that says what is gone."""
    logs = {name: NumberLog(tmp_path / "numbers", name) for name in ("p1", "p2")}
    yield logs
    for log in logs.values():
        log.close()


@asynccontextmanager
async def publisher(folder: Path, logs: dict[str, NumberLog], name: str, shards: int = 2) -> AsyncIterator[Publisher]:
    async with publishing(folder, logs[name], shards, name, peers=PEERS, takeover_s=0.6, steady_s=0.2) as running:
        yield running


def subscriber(folder: Path, watching: Watching) -> Subscriber:
    return Subscriber("watch", KEY, [f"unix:{folder / peer.name}" for peer in PEERS], watching, "m1", reconnect_s_max=0.1)


async def test_a_publisher_whose_datastore_fails_gives_its_flows_away_and_gets_them_back(
    tmp_path: Path, logs: dict[str, NumberLog]
) -> None:
    watching = Watching(2)
    async with publisher(tmp_path, logs, "p1") as first, publisher(tmp_path, logs, "p2") as second, subscriber(tmp_path, watching):
        logs["p1"].append(100)
        await until(lambda: watching.has_all(100) and len(first.owning.held) == 2)
        logs["p1"].fails = True
        logs["p1"].append(100)
        await until(lambda: len(second.owning.held) == 2 and watching.has_all(200), what="it can be read at p2")
        assert first.owning.held == {}
        assert watching.repeated == 0, "it was handed over, not lost"
        logs["p1"].fails = False
        await until(lambda: len(first.owning.held) == 2, what="p1 can read again")
        logs["p1"].append(100)
        await until(lambda: watching.has_all(300))
    assert (watching.skipped, watching.losses) == ([], [])


async def test_a_publisher_keeps_its_flows_though_it_cannot_read_if_nobody_else_can(tmp_path: Path, logs: dict[str, NumberLog]) -> None:
    watching = Watching(2)
    async with publisher(tmp_path, logs, "p1") as first, publisher(tmp_path, logs, "p2"), subscriber(tmp_path, watching):
        logs["p1"].append(10)
        await until(lambda: watching.has_all(10) and len(first.owning.held) == 2 and "p2" in first.owning.peers.able)
        held = dict(first.owning.held)
        logs["p2"].fails = True
        await until(lambda: "p2" not in first.owning.peers.able, what="p1 knows that p2 cannot read")
        logs["p1"].fails = True
        await until(lambda: first._reach() is None)
        rounds = first.owning._beaten_s
        await until(lambda: first.owning._beaten_s > rounds + 0.3, what="some rounds")
        logs["p1"].fails = False
        logs["p1"].append(10)
        await until(lambda: watching.has_all(20))
        assert first.owning.held == held


async def test_a_primary_that_returns_with_a_log_that_begins_too_late_waits_until_it_lacks_nothing(
    tmp_path: Path, logs: dict[str, NumberLog]
) -> None:
    """As a server that was built anew, with a slot of its own that is as old as it is."""
    watching = Watching(2, acknowledges=False)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(subscriber(tmp_path, watching))
        second = await stack.enter_async_context(publisher(tmp_path, logs, "p2"))
        logs["p2"].append(100)
        await until(lambda: watching.has_all(100) and len(second.owning.held) == 2)
        logs["p1"].cut(90)
        first = await stack.enter_async_context(publisher(tmp_path, logs, "p1"))
        await until(lambda: "p1" in second.owning.peers.steady, what="p1 has lived for a while")
        rounds = second.owning._beaten_s
        await until(lambda: second.owning._beaten_s > rounds + 0.3, what="some rounds")
        assert first.owning.held == {}
        assert len(second.owning.held) == 2
        watching.acknowledges = True
        logs["p2"].append(100)  # so that it is asked again
        await until(lambda: len(first.owning.held) == 2, what="all datamarkers are past what p1 lacks")
        logs["p1"].append(100)
        await until(lambda: watching.has_all(300))
    assert (watching.skipped, watching.losses) == ([], [])


async def test_if_nobody_who_lives_has_all_of_it_the_rest_is_sent_and_what_is_lost_is_told(
    tmp_path: Path, logs: dict[str, NumberLog]
) -> None:
    watching = Watching(2, acknowledges=False)
    async with subscriber(tmp_path, watching):
        async with publisher(tmp_path, logs, "p1") as first:
            logs["p1"].append(100)
            await until(lambda: watching.has_all(100) and len(first.owning.held) == 2)
        logs["p2"].append(100)
        logs["p2"].cut(150)
        async with publisher(tmp_path, logs, "p2") as second:
            await until(lambda: watching.has_all(200) and len(second.owning.held) == 2)
    assert {shard for shard, _, _ in watching.losses} == {0, 1}


class Failing(SqliteDatamarkers):
    """Away, as long as that is set."""

    away = False

    def beat(self, member: str, about: bytes) -> None:
        if self.away:
            raise Unavailable("The datamarkers are away.")
        super().beat(member, about)

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        if self.away:
            raise Unavailable("The datamarkers are away.")
        return super().store(marks)


async def test_a_publisher_that_nobody_saw_for_too_long_drops_its_flows_and_takes_them_anew(
    tmp_path: Path, logs: dict[str, NumberLog]
) -> None:
    """With datamarkers on their way that could not be stored any more."""
    watching = Watching(2)
    store = Failing(tmp_path / "datamarkers", logs["p1"].identity)
    given = {"peers": PEERS, "takeover_s": 0.6, "steady_s": 0.2}
    async with publishing(tmp_path, logs["p1"], 2, "p1", store, **given) as first, subscriber(tmp_path, watching):
        logs["p1"].append(100)
        await until(lambda: watching.has_all(100) and len(first.owning.held) == 2)
        before = dict(first.owning.held)
        store.away = True
        logs["p1"].append(100)
        await until(lambda: first.owning.held == {}, what="another one may have them")
        await asyncio.sleep(2 * RETRY_S)  # it tries to store what it has no more
        store.away = False
        await until(lambda: len(first.owning.held) == 2 and watching.has_all(200))
        assert all(epoch > before[flow] for flow, epoch in first.owning.held.items())
        logs["p1"].append(100)
        await until(lambda: watching.has_all(300))
    assert (watching.skipped, watching.losses) == ([], [])


async def test_an_application_is_not_removed_while_another_publisher_has_it(tmp_path: Path, logs: dict[str, NumberLog]) -> None:
    """That one would begin anew at the end of the log, and skip what lies between."""
    applications = {name: ApplicationSettings(KEY, start="oldest") for name in ("watch", "old")}
    given: dict[str, Any] = {"peers": PEERS, "takeover_s": 2.0, "steady_s": 0.2}
    without = {"watch": applications["watch"]}
    async with (
        publishing(tmp_path, logs["p1"], 2, "p1", applications=applications, **given) as first,
        publishing(tmp_path, logs["p2"], 2, "p2", applications=without, **given) as second,
    ):
        logs["p1"].append(10)
        await until(lambda: len(first.owning.held) == 4 and len(second.owning.foreign) == 4)
        assert await command(tmp_path, "p1", command="pause", application="old", shard=1) == ["old/1"]
        assert await command(tmp_path, "p1", command="move", application="old", to="p1") != "bad-request"
        held = dict(first.owning.held)
        assert await command(tmp_path, "p2", command="remove", application="old") == "bad-request"
        await first.owning.look()
        assert first.owning.held == held
        first.configure(replace(first.settings, applications=without))
        await until(lambda: len(first.owning.held) == 2)
        await first.owning.look()  # it says so
        assert await command(tmp_path, "p2", command="remove", application="old") == ["old/0", "old/1"]
        seen = second.owning.peers.read()
        assert {flow.application for flow in seen.records} == {"watch"}
        assert not [name for name in seen.notes if "old" in name], "if it comes back, it is neither paused nor moved"


def test_who_owns_flows_and_lives_has_the_application_though_it_does_not_say_so(tmp_path: Path) -> None:
    """As one of an earlier version."""
    store = SqliteDatamarkers(tmp_path / "datamarkers", "numbers")
    flow, peers = FlowName("old", 0), Peers(store, "p2", 8.0, 5.0)
    store.beat("publisher:p1", b"{}")
    assert store.take([Claim(flow, 0)], "p1") == {flow: 1}
    peers.beat(b"{}")
    peers.observe(peers.read(), 0.0)
    assert peers.having("old", store.records()) == ["p1"]
    assert peers.having("other", store.records()) == []
    for now_s in (4.0, 8.0):
        peers.beat(b"{}")
        peers.observe(peers.read(), now_s)
    assert peers.having("old", store.records()) == [], "it is dead"
    store.beat("publisher:p1", b"{}")
    peers.observe(peers.read(), 9.0)
    assert peers.having("old", store.records()) == ["p1"]
    store.release([flow], "p1")
    assert peers.having("old", store.records()) == []
    store.close()


async def test_a_publisher_that_was_added_after_a_move_goes_on_when_the_others_are_gone(tmp_path: Path, logs: dict[str, NumberLog]) -> None:
    watching = Watching(2)
    async with publisher(tmp_path, logs, "p2") as second:
        logs["p2"].append(10)
        await until(lambda: len(second.owning.held) == 2)
        assert (await command(tmp_path, "p2", command="move", application="watch", to="p2"))["order"] == ["p2", "p1"]
    peers = (*PEERS, Peer("p3"))
    async with (
        publishing(tmp_path, logs["p1"], 2, "p3", peers=peers, takeover_s=0.6) as third,
        Subscriber("watch", KEY, [third.address], watching, "m1", reconnect_s_max=0.1),
    ):
        await until(lambda: len(third.owning.held) == 2 and watching.has_all(10))
    assert watching.skipped == []


async def test_coordinated_evens_out_over_all_publishers_of_an_application(tmp_path: Path, logs: dict[str, NumberLog]) -> None:
    """Three shards at each of two publishers, for two processes: three for each, and not two of each publisher's for the same one."""
    shards = 6
    peers = (Peer("p1", "north"), Peer("p2", "south"))
    regions = {shard: "north" if shard < 3 else "south" for shard in range(shards)}
    given: dict[str, Any] = {
        "peers": peers,
        "applications": {"watch": ApplicationSettings(KEY, start="oldest", regions=regions)},
        "steady_s": 0.2,
    }
    watching = {member: Watching(shards, from_the_first=False) for member in ("m1", "m2")}
    addresses = [f"unix:{tmp_path / name}" for name in ("p1", "p2")]
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(publishing(tmp_path, logs[name], shards, name, takeover_s=2.0, **given))
            for name in ("p1", "p2")
        ]
        await until(lambda: all(len(one.owning.held) == 3 for one in both), what="each has the shards of its region")
        subscribers = [
            await stack.enter_async_context(Subscriber("watch", KEY, addresses, callbacks, member, reconnect_s_max=0.1))
            for member, callbacks in watching.items()
        ]
        await until(lambda: all(len(one.shards) == 3 for one in subscribers), what="three for each")
        moves = sum(one.placing.moves for one in both)
        await asyncio.sleep(1.0)  # several times balance_s and beat_s
        assert [len(one.shards) for one in subscribers] == [3, 3]
        assert sum(one.placing.moves for one in both) == moves, "nothing moves any more"
        await command(tmp_path, "p2", command="reassign", application="watch", member="m1")
        for one, has in zip(subscribers, ({3, 4, 5}, {0, 1, 2}), strict=True):
            await until(lambda one=one, has=has: {shard.number for shard in one.shards} == has, what="the other publisher makes up for it")  # type: ignore[misc]


def test_what_publishers_say_of_themselves_is_read_back_and_what_nobody_understands_is_left_out() -> None:
    reach, placed = Reach(Position(1, 7, 3), 2), {"search": {0: "m1", 1: "m2", 5: "m1"}, "other": {0: "m1"}}
    assert reach_from(about_of(reach, placed, [])) == reach
    assert applications_of(about_of(None, placed, ["search", "other"])) == {"search", "other"}
    assert elsewhere_of([about_of(None, placed, []), about_of(reach, {"search": {9: "m3"}}, [])]) == {
        "search": {0: "m1", 1: "m2", 5: "m1", 9: "m3"}, "other": {0: "m1"},
    }  # fmt: skip
    wished = {"search": {5: "m1"}}
    assert elsewhere_of([about_of(None, placed, [], wished)], WISHED) == wished
    assert elsewhere_of([about_of(None, placed, [])], WISHED) == elsewhere_of([b'{"placed": {}}'], WISHED) == {}
    many = {"search": dict.fromkeys(range(PLACED_MAX + 1), "m1")}
    assert elsewhere_of([about_of(reach, many, [])]) == {}
    assert reach_from(about_of(None, many, [])) is None
    for nonsense in (
        b"",
        b"null",
        b"5",
        b'{"oldest": 5, "history": 1}',
        b'{"placed": [], "oldest": "x"}',
        b"\xff",
        b'{"placed": {"a": 1}}',
    ):
        assert reach_from(nonsense) is None
        assert elsewhere_of([nonsense, about_of(None, placed, [])]) == placed
        assert applications_of(nonsense) == set()
