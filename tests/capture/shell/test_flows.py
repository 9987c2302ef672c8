"""Flows between a publisher and subscribers, over real connections in one process (Wormhole 3, 3.3.1, Table 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.capture import wire
from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.flows import Terms
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings, Publisher
from roskva.capture.sharding import Sharding, parse_rule
from roskva.capture.subscriber import Callbacks, Shard, Subscriber, flow, service
from roskva.capture.updates import Update
from roskva.errors import BadRequest, CaptureRefused, LogCut, TooManyConnections
from tests.capture.shell.numberlog import KEY, NumberLog, number_of
from tests.capture.shell.serving import LIMITS, publishing, settings_of, subscriber
from tests.capture.shell.watching import Watching, until

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


class Held(Watching):
    """Waits in its callback until it may go on; only in some shards, if these are given."""

    def __init__(self, shards: int, of: Sequence[int] | None = None) -> None:
        super().__init__(shards)
        self.go_on = asyncio.Event()
        self._of = of

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
        if self._of is None or shard.number in self._of:
            await self.go_on.wait()
        super().on_updates(shard, updates)


async def test_all_updates_come_in_order_and_after_a_clean_stop_none_comes_twice(tmp_path: Path, log: NumberLog) -> None:
    log.append(1000)
    watching = Watching(4)
    async with publishing(tmp_path, log, 4) as publisher:
        async with subscriber(publisher, watching):
            await until(lambda: watching.has_all(1000))
        log.append(1000)
    async with publishing(tmp_path, log, 4) as publisher, subscriber(publisher, watching):
        await until(lambda: watching.has_all(2000))
    assert (watching.total, watching.repeated, watching.skipped, watching.losses) == (2000, 0, [], [])
    assert sorted(watching.notices) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(watching.closed) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_updates_may_be_taken_one_by_one_and_by_coroutines(tmp_path: Path, log: NumberLog) -> None:
    came: list[int] = []

    class OneByOne(Callbacks):
        async def on_update(self, update: Update) -> None:
            await asyncio.sleep(0)
            came.append(number_of(update.change))

    log.append(300)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, OneByOne()):
        await until(lambda: len(came) == 300)
    assert came == list(range(300))


async def test_datamarkers_are_asked_for_stored_and_confirmed(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(2)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        log.append(500)
        await until(lambda: log.gone == 500, what="all was acknowledged, so the log may be dropped")
        assert {status.stored for status in publisher.core.flows()} == {Position(0, 500)}
    assert watching.tokens
    assert watching.total == 500


async def test_who_has_the_wrong_key_or_names_an_unknown_application_is_refused(tmp_path: Path, log: NumberLog) -> None:
    log.append(10)
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher:
        for application, key in (("watch", KEY[::-1]), ("another", KEY)):
            async with Subscriber(application, key, [publisher.address], watching, reconnect_s_max=0.05) as refused:
                await until(lambda refused=refused: bool(refused.problems))  # type: ignore[misc]
                assert isinstance(refused.problems[publisher.address], CaptureRefused)
                assert refused.shards == {}
        async with subscriber(publisher, watching):
            await until(lambda: watching.has_all(10))
    assert watching.total == 10


async def test_a_publisher_that_does_not_have_the_key_is_refused_and_the_key_is_never_sent(tmp_path: Path) -> None:
    heard = b""

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard += await reader.read(1000)
        writer.write(wire.framed(wire.Challenge(wire.VERSION, "p1", "numbers", b"n" * 32)))
        heard += await reader.read(1000)
        writer.write(wire.framed(wire.Welcome(b"p" * 32)) + wire.framed(wire.Open(1, 0, 1, Position(0, 0), 1000)))
        heard += await reader.read(1000)
        writer.close()

    server = await asyncio.start_unix_server(impostor, tmp_path / "impostor")
    watching = Watching(1)
    async with Subscriber("watch", KEY, [f"unix:{tmp_path / 'impostor'}"], watching) as deceived:
        await until(lambda: bool(deceived.problems))
        assert isinstance(deceived.problems[f"unix:{tmp_path / 'impostor'}"], CaptureRefused)
    server.close()
    await server.wait_closed()
    assert b"watch" in heard
    assert KEY not in heard
    assert watching.notices == []


async def test_noise_at_the_door_harms_nobody(tmp_path: Path, log: NumberLog) -> None:
    log.append(10)
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher:
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x05hello", wire.framed(wire.Proof(b"x" * 32)), b"\xff" * 9000):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "p1")
            writer.write(noise)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
        async with subscriber(publisher, watching):
            await until(lambda: watching.has_all(10))
    assert watching.total == 10


async def test_a_slow_subscriber_does_not_slow_another_application(tmp_path: Path, log: NumberLog) -> None:
    both = {"watch": ApplicationSettings(KEY, start="oldest"), "slow": ApplicationSettings(KEY, start="oldest")}
    fast, slow = Watching(2), Held(2)
    async with (
        publishing(tmp_path, log, 2, applications=both, memory_mib_max=1) as publisher,
        subscriber(publisher, fast),
        subscriber(publisher, slow, "slow", "m2", window_bytes=4096),
    ):
        for _ in range(20):
            log.append(2000)
            await until(lambda: fast.has_all(log.count))
        assert slow.total == 0
        assert fast.total == 40_000
        held = [status for status in publisher.core.flows() if status.flow.application == "slow"]
        assert all(status.buffered_bytes <= 2**19 for status in held)
        slow.go_on.set()
        await until(lambda: slow.has_all(40_000))
        assert (slow.total, slow.skipped, slow.losses) == (40_000, [], [])
    assert (fast.skipped, fast.repeated) == ([], 0)


async def test_a_stuck_flow_blocks_no_other_of_the_same_connection(tmp_path: Path, log: NumberLog) -> None:
    watching = Held(4, of=[2])
    async with publishing(tmp_path, log, 4) as publisher, subscriber(publisher, watching, window_bytes=2000):
        log.append(20_000)
        await until(lambda: all(watching.highest.get(shard) == 19_996 + shard for shard in (0, 1, 3)))
        assert 2 not in watching.highest
        (stuck,) = [status for status in publisher.core.flows() if status.flow.shard == 2]
        assert stuck.bytes_sent < 2000 + 50, "never more under way than the credit, and one row"
        watching.go_on.set()
        await until(lambda: watching.has_all(20_000))
    assert (watching.total, watching.repeated, watching.skipped) == (20_000, 0, [])


async def test_who_never_acknowledges_gets_all_again_and_holds_the_log(tmp_path: Path, log: NumberLog) -> None:
    log.append(200)
    async with publishing(tmp_path, log) as publisher:
        for _ in range(3):
            watching = Watching(1, acknowledges=False)
            async with subscriber(publisher, watching):
                await until(lambda watching=watching: watching.has_all(200) and watching.tokens != [])  # type: ignore[misc]
            assert watching.first == {0: [0]}
        assert log.gone == 0
        sent = await until_acknowledged(publisher)
    assert sent == Position(0, 0)


async def until_acknowledged(publisher: Publisher) -> Position:
    return next(status.datamarker for status in publisher.core.flows())


async def test_an_application_may_acknowledge_by_itself_what_it_was_given(tmp_path: Path, log: NumberLog) -> None:
    log.append(100)
    watching = Watching(1, acknowledges=False)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching) as connected:
        await until(lambda: watching.has_all(100))
        (shard,) = connected.shards
        with pytest.raises(BadRequest):
            connected.acknowledge(shard, Position(0, 101))
        assert not connected.acknowledge(Shard("numbers", 7), Position(0, 1))
        assert connected.acknowledge(shard, Position(0, 40, 1))
        await until(lambda: next(iter(publisher.core.flows())).stored == Position(0, 40, 1))
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: len(watching.first[0]) == 2)
        assert watching.first[0] == [0, 40]


async def test_a_callback_that_raises_acknowledges_nothing_and_its_flow_comes_again(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flow, "RESUME_S", 0.05)

    class Raising(Watching):
        raises = 3

        def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
            if shard.number == 1 and self.raises:
                self.raises -= 1
                raise ValueError("the cache does not answer")
            super().on_updates(shard, updates)

    log.append(100)
    watching = Raising(2)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        await until(lambda: watching.has_all(100))
    assert (watching.total, watching.skipped) == (100, [])
    assert watching.notices.count(1) == 4
    assert watching.notices.count(0) == 1
    assert "the cache does not answer" in caplog.text


async def test_what_keeps_the_log_is_made_again_as_soon_as_it_is_missed(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody dropped the slot, while the readers that are open read on."""
    prepared: list[int] = []
    confirm = log.confirm

    def refuse(position: Position) -> None:
        if not prepared:
            raise LogCut(position, Position(0, log.count))
        confirm(position)

    monkeypatch.setattr(log, "confirm", refuse)
    monkeypatch.setattr(log, "prepare", lambda: prepared.append(1))
    watching = Watching(1)
    log.append(50)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: prepared == [1])
        await until(lambda: log.confirmed == 50)
    assert watching.losses == []


async def test_a_load_that_cannot_be_told_keeps_no_subscriber_from_living(tmp_path: Path, log: NumberLog) -> None:
    def fails() -> float:
        raise ValueError("a mistake")

    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching, load=fails) as busy:
        await until(lambda: bool(busy.shards))
        await asyncio.sleep(0.2)  # some beats
        log.append(10)
        await until(lambda: watching.has_all(10))


async def test_a_callback_that_swallows_its_cancellation_does_not_hold_up_the_stop(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_S_MAX", 0.1)
    monkeypatch.setattr(service, "CANCELLED_S_MAX", 0.1)
    let_go = asyncio.Event()

    class Stubborn(Watching):
        async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
            self.total += len(updates)
            while not let_go.is_set():
                with suppress(asyncio.CancelledError):
                    await let_go.wait()

    stubborn = Stubborn(1)
    log.append(1)
    async with publishing(tmp_path, log) as publisher:
        async with asyncio.timeout(5.0), subscriber(publisher, stubborn):
            await until(lambda: stubborn.total == 1)
        let_go.set()


async def test_weights_beyond_reason_are_refused(tmp_path: Path, log: NumberLog) -> None:
    async with publishing(tmp_path, log) as publisher:
        heavy = subscriber(publisher, Watching(1), member="m1", weight=1e308)
        async with heavy:
            await until(lambda: bool(heavy.problems))
        assert publisher.placing.connections == {}


async def test_updates_that_may_be_stale_come_together_and_compressed(tmp_path: Path, log: NumberLog) -> None:
    terms = Terms(staleness_max_s=0.3)
    batches: list[int] = []

    class Batches(Watching):
        def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
            batches.append(len(updates))
            super().on_updates(shard, updates)

    watching = Batches(1)
    async with (
        publishing(tmp_path, log, applications={"watch": ApplicationSettings(KEY, start="oldest", terms=terms)}) as publisher,
        subscriber(publisher, watching),
    ):
        await until(lambda: watching.notices != [])
        for _ in range(40):
            log.append(25)
            await asyncio.sleep(0.01)
        await until(lambda: watching.has_all(1000))
        (status,) = publisher.core.flows()
        (connection,) = publisher.placing.connections.values()
        assert connection.bytes_sent < status.bytes_sent * 0.8
    assert len(batches) <= 10
    assert (watching.total, watching.skipped) == (1000, [])


async def test_what_was_cut_off_the_log_is_told_and_the_rest_comes(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(2)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        log.append(100)
        await until(lambda: {status.stored for status in publisher.core.flows()} == {Position(0, 100)})
    log.append(100)
    log.cut(150)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        await until(lambda: watching.has_all(200))
        await until(lambda: log.gone == 200)
    assert sorted(watching.losses) == [(shard, Position(0, 100), Position(0, 150)) for shard in (0, 1)]
    assert watching.total == 150


async def test_reading_goes_on_when_the_datastore_answers_again(tmp_path: Path, log: NumberLog, caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        log.append(100)
        await until(lambda: watching.has_all(100))
        log.fails = True
        log.append(100)
        await until(lambda: bool(publisher.reading_problems()))
        assert any("do not answer" in problem for problem in publisher.status()["problems"])
        log.fails = False
        await until(lambda: watching.has_all(200))
        await until(lambda: publisher.reading_problems() == [])
    assert (watching.total, watching.skipped, watching.repeated) == (200, [], 0)


async def test_an_application_that_comes_while_the_publisher_reads_misses_nothing(tmp_path: Path, log: NumberLog) -> None:
    """What is on its way from the readers was routed before it was known."""
    first, later = Watching(1), Watching(1, from_the_first=False)
    async with publishing(tmp_path, log, changes_max=20) as publisher, subscriber(publisher, first):
        writing = asyncio.create_task(write(log, 200))
        await until(lambda: first.total > 500)
        both = {name: ApplicationSettings(KEY, start="oldest") for name in ("watch", "later")}
        publisher.configure(settings_of(tmp_path, applications=both, changes_max=20))
        async with subscriber(publisher, later, "later", "m2"):
            await writing
            await until(lambda: first.has_all(log.count) and later.has_all(log.count))
    assert (first.total, first.skipped) == (log.count, [])
    assert later.skipped == []
    assert later.total == log.count - later.first[0][0], "all since the oldest that there was"


async def write(log: NumberLog, times: int) -> None:
    for _ in range(times):
        log.append(20)
        await asyncio.sleep(0.001)


async def test_filters_run_in_the_publisher_and_one_that_raises_lets_pass(tmp_path: Path, log: NumberLog) -> None:
    def tens(update: Update) -> bool:
        number = number_of(update.change)
        if number == 55:
            raise ValueError("no such key")
        return number % 10 == 0

    class Some(Callbacks):
        def __init__(self) -> None:
            self.came: list[int] = []

        def on_update(self, update: Update) -> None:
            self.came.append(number_of(update.change))

    applications = {"watch": ApplicationSettings(KEY, start="oldest", passes=tens), "all": ApplicationSettings(KEY, start="oldest")}
    some, everything = Some(), Watching(1)
    log.append(100)
    async with (
        publishing(tmp_path, log, applications=applications) as publisher,
        subscriber(publisher, some),
        subscriber(publisher, everything, "all", "m2"),
    ):
        await until(lambda: everything.has_all(100) and len(some.came) == 11)
        assert publisher.status()["filter_failures"] >= 1
        await until(lambda: log.gone == 100, what="also what no application wanted")
    assert some.came == sorted([*range(0, 100, 10), 55])


async def test_changes_whose_shard_nobody_can_tell_come_and_are_counted_in_the_status(tmp_path: Path, log: NumberLog) -> None:
    settings = replace(settings_of(tmp_path, 2, "p1"), shards=Sharding(2, parse_rule("user_id % 2", 2)))
    everything, marks = Watching(1), SqliteDatamarkers(tmp_path / "datamarkers", log.identity)
    log.append(10)
    try:
        async with Publisher(settings, log, marks) as publisher, subscriber(publisher, everything):
            await until(lambda: everything.has_all(10))
            assert publisher.status()["misplaced"]["missing"] >= 10  # as often as they were read
            assert publisher.status()["malformed_lines"] is None
    finally:
        marks.close()


async def test_connections_beyond_the_limit_are_refused(tmp_path: Path, log: NumberLog) -> None:
    async with (
        publishing(tmp_path, log, connections_max=1) as publisher,
        subscriber(publisher, Watching(1)) as first,
        subscriber(publisher, Watching(1), member="m2") as second,
    ):
        await until(lambda: bool(first.shards) + bool(second.shards) == 1)
        await until(lambda: [type(problem) for one in (first, second) for problem in one.problems.values()] == [TooManyConnections])


async def test_a_process_that_connects_twice_has_its_flows_once(tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a network that broke without a word: the publisher has not seen the end of the first connection."""
    monkeypatch.setattr(wire, "PING_S", 0.2)
    log.append(100)
    before, after = Watching(1, acknowledges=False), Watching(1)
    async with (
        publishing(tmp_path, log) as publisher,
        Subscriber("watch", KEY, [publisher.address], before, "m1", beat_s=60.0, reconnect_s_max=60.0) as first,
    ):
        await until(lambda: before.has_all(100))
        first._stopping = True  # it does not come back
        async with subscriber(publisher, after, member="m1"):
            await until(lambda: after.has_all(100))
            assert len(publisher.placing.connections) == 1


async def test_a_subscriber_refuses_a_publisher_that_was_succeeded(
    tmp_path: Path, log: NumberLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Its epoch is older than that of the publisher which the subscriber has already heard."""
    log.append(100)
    other = tmp_path / "other"
    other.mkdir()
    watching = Watching(1)
    store = SqliteDatamarkers(other / "datamarkers", log.identity)
    async with publishing(tmp_path, log) as old, Publisher(settings_of(other), log, store) as new:
        new_epoch = 5
        async with subscriber(old, watching) as connected:
            connected._streams[Shard("numbers", 0)] = (new_epoch, 0)
            await until(lambda: any(c.member == "m1" for c in old.placing.connections.values()))
            await asyncio.sleep(0.2)
            assert connected.shards == {}
        assert new.core.flows()
    store.close()
    assert watching.notices == []
    assert caplog.text.count("restart this process") == 1, "it says so, once"


async def test_many_flows_share_the_memory_and_all_come_through(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(64)
    async with publishing(tmp_path, log, 64, memory_mib_max=1, limits=LIMITS) as publisher, subscriber(publisher, watching):
        log.append(6400)
        await until(lambda: watching.has_all(6400))
        assert set(publisher.placing.windows_bytes.values()) <= {2**16, *(2**19 // n for n in range(1, 9))}
    assert (watching.total, watching.skipped) == (6400, [])
