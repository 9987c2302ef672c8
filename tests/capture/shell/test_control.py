"""Commands to a publisher that runs (Wormhole 5)."""

from __future__ import annotations

import asyncio
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.capture.datamarkers import Claim, SqliteDatamarkers
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Update
from roskva.errors import AddressInUse, InvalidSetting
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until


async def test_status_shows_flows_caravans_subscribers_and_lag_worst_first(tmp_path: Path, log: NumberLog) -> None:
    applications = {"watch": ApplicationSettings(KEY, start="oldest"), "nobody": ApplicationSettings(KEY, start="oldest")}
    log.append(100)
    watching = Watching(2)
    async with publishing(tmp_path, log, 2, applications=applications) as publisher, subscriber(publisher, watching):
        await until(lambda: {s.stored for s in publisher.core.flows() if s.flow.application == "watch"} == {Position(0, 100)})
        await asyncio.sleep(0.1)  # until the log was looked at again
        status = await command(tmp_path, command="status")
        assert [(flow["application"], flow["behind_share"], flow["lag_bytes"]) for flow in status["flows"]] == [
            ("nobody", 1.0, 800),
            ("nobody", 1.0, 800),
            ("watch", 0.0, 0),
            ("watch", 0.0, 0),
        ]
        assert {flow["state"] for flow in status["flows"]} == {"alone", "riding"}
        assert [caravan["lead"] for caravan in status["caravans"]] == [True]
        assert status["subscribers"][0]["member"] == "m1"
        assert status["updates_sent"] == 100
        assert status["problems"] == []
        flows = await command(tmp_path, command="flows", application="watch")
        assert [flow["datamarker"] for flow in flows] == ["0/100", "0/100"]
        assert log.gone == 0, "the log is kept for the application that nobody runs"


async def test_status_counts_what_caravans_read_that_are_closed_by_now(tmp_path: Path, log: NumberLog) -> None:
    applications = {"watch": ApplicationSettings(KEY, start="oldest"), "late": ApplicationSettings(KEY, start="oldest")}
    log.append(100)
    async with publishing(tmp_path, log, applications=applications) as publisher:
        for application in applications:
            watching = Watching(1)
            async with subscriber(publisher, watching, application):
                await until(lambda watching=watching: watching.has_all(100))  # type: ignore[misc]
                await until(lambda: len(publisher.core.caravans()) == 1)
        status = await command(tmp_path, command="status")
        assert status["bytes_read"] == 2 * 100 * 8, "each was read for by a caravan of its own, which is closed"
        assert [caravan["bytes_read"] for caravan in status["caravans"]] == [0]


async def test_a_paused_flow_stands_still_until_it_is_resumed_also_over_a_restart(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(2)
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        log.append(10)
        await until(lambda: watching.has_all(10))
        assert await command(tmp_path, command="pause", application="watch", shard=1, why="the cache is rebuilt") == ["watch/1"]
        log.append(10)
        await until(lambda: watching.highest[0] == 18)
        status = await command(tmp_path, command="flows")
        assert [(flow["shard"], flow["state"], flow["why"]) for flow in status if flow["why"]] == [(1, "paused", "the cache is rebuilt")]
    async with publishing(tmp_path, log, 2) as publisher, subscriber(publisher, watching):
        log.append(10)
        await until(lambda: watching.highest[0] == 28)
        assert watching.highest[1] == 9
        assert await command(tmp_path, command="resume", application="watch") == ["watch/0", "watch/1"]
        await until(lambda: watching.has_all(30))
    assert watching.skipped == []


async def test_rewind_sends_again_or_leaves_out(tmp_path: Path, log: NumberLog) -> None:
    # Nobody runs the second one: the log is kept for it.
    applications = {"watch": ApplicationSettings(KEY), "keep": ApplicationSettings(KEY, start="oldest")}
    watching = Watching(1)
    log.append(100)
    async with publishing(tmp_path, log, applications=applications) as publisher:
        async with subscriber(publisher, watching):
            await until(lambda: watching.notices == [0])
            assert await command(tmp_path, command="rewind", application="watch", to="0/40") == {"watch/0": "0/40"}
            await until(lambda: watching.total == 60)
            assert await command(tmp_path, command="rewind", application="watch", to="oldest") == {"watch/0": "0/0"}
            await until(lambda: watching.total == 160)
            assert await command(tmp_path, command="rewind", application="watch", to="end") == {"watch/0": "0/100"}
            log.append(1)
            await until(lambda: watching.total == 161)
        assert watching.first == {0: [40, 0, 100]}
        assert await command(tmp_path, command="rewind", application="watch", to="yesterday") == "bad-request"


async def test_a_flow_is_not_sent_to_where_the_log_has_not_come(tmp_path: Path, log: NumberLog) -> None:
    """It would get nothing, and count as one that lacks nothing."""
    watching = Watching(1)
    log.append(100)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: watching.has_all(100))
        for beyond in ("0/101", "0/100000", "1/40", "1/4711"):
            assert await command(tmp_path, command="rewind", application="watch", to=beyond) == "bad-request"
            assert await command(tmp_path, command="ahead", application="watch", to=beyond) == "bad-request"
        log.append(1)
        await until(lambda: watching.has_all(101))


async def test_before_a_rewind_it_is_said_which_flows_would_skip_something(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(2, acknowledges=False)
    log.append(100)
    async with publishing(tmp_path, log, 2) as publisher:
        async with subscriber(publisher, watching):
            await until(lambda: watching.has_all(100))
            assert await command(tmp_path, command="rewind", application="watch", shard=1, to="0/40") == {"watch/1": "0/40"}
        for to, place, flows in (
            ("oldest", "0/0", []),
            ("0/30", "0/30", ["watch/0"]),
            ("0/40", "0/40", ["watch/0"]),
            ("end", "0/100", ["watch/0", "watch/1"]),
        ):
            assert await command(tmp_path, command="ahead", application="watch", to=to) == {"to": place, "flows": flows}
        assert sorted(str(status.datamarker) for status in publisher.core.flows()) == ["0/0", "0/40"], "nothing was changed"


async def test_a_flow_whose_start_lies_beyond_the_log_waits_and_status_says_so(tmp_path: Path, log: NumberLog) -> None:
    applications = {"watch": ApplicationSettings(KEY, start=Position(0, 50)), "other": ApplicationSettings(KEY, start="oldest")}
    watching = Watching(1, from_the_first=False)
    log.append(10)
    async with publishing(tmp_path, log, applications=applications) as publisher, subscriber(publisher, watching):
        await until(lambda: bool(publisher.owning.problems and publisher.owning.held))
        assert list(publisher.owning.held) == [FlowName("other", 0)], "it holds up nobody else"
        (problem,) = (await command(tmp_path, command="status"))["problems"]
        assert "flows of 'watch' do not begin" in problem
        assert "ends at 0/10, and 0/50 is beyond it" in problem
        log.append(90)
        await until(lambda: watching.has_all(100))
        await until(lambda: not publisher.owning.problems)
    assert watching.first == {0: [50]}


async def test_a_first_start_at_a_time_is_looked_for_once_and_holds_up_no_flow_that_has_begun(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []
    found = threading.Event()

    def slowly(time_s: float) -> Position:
        looked.append(time_s)
        assert found.wait(20)
        return Position(0, 12)

    monkeypatch.setattr(log, "at_time", slowly)
    log.append(20)
    # In the settings' order the new one is the first.
    applications = {name: ApplicationSettings(KEY, start="oldest" if name == "watch" else 123.0) for name in ("new", "watch")}
    async with publishing(tmp_path, log, 4) as publisher:
        await until(lambda: len(publisher.owning.held) == 4)
    async with publishing(tmp_path, log, 4, applications=applications) as publisher:
        await until(lambda: looked == [123.0] and len(publisher.owning.held) == 4)
        assert {flow.application for flow in publisher.owning.held} == {"watch"}
        found.set()
        await until(lambda: len(publisher.owning.held) == 8)
        assert {status.datamarker for status in publisher.core.flows() if status.flow.application == "new"} == {Position(0, 12)}
    assert looked == [123.0]


async def test_who_begins_at_the_end_does_not_let_go_of_the_log_that_others_begin_with(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Event()

    def slowly(time_s: float) -> Position:
        assert found.wait(20)
        return Position(0, max(12, log.gone))

    monkeypatch.setattr(log, "at_time", slowly)
    log.append(20)
    applications = {"end": ApplicationSettings(KEY, start="end"), "watch": ApplicationSettings(KEY, start=123.0)}
    watching = Watching(1, from_the_first=False)
    async with publishing(tmp_path, log, applications=applications) as publisher, subscriber(publisher, watching):
        await until(lambda: len(counters_of(tmp_path)) == 1)
        (counter,) = counters_of(tmp_path)
        await until(lambda: counters_of(tmp_path)[0] >= counter + 5)
        assert publisher.owning.held == {}
        found.set()
        await until(lambda: watching.has_all(20))
    assert (watching.first, watching.losses) == ({0: [12]}, [])


async def test_a_time_is_looked_for_once_for_all_shards_while_the_publisher_shows_that_it_lives(
    tmp_path: Path, log: NumberLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []

    def slowly(time_s: float) -> Position:
        looked.append(time_s)
        time.sleep(1.0)  # a long log; in a thread
        return Position(0, 12)

    monkeypatch.setattr(log, "at_time", slowly)
    log.append(20)
    async with publishing(tmp_path, log, 4) as publisher:
        await until(lambda: len(publisher.owning.held) == 4)
        (counter,) = counters_of(tmp_path)
        rewinding = asyncio.create_task(command(tmp_path, command="rewind", application="watch", to=123.0))
        await until(lambda: looked == [123.0])
        await until(lambda: counters_of(tmp_path)[0] >= counter + 5, 0.9)
        assert await rewinding == {f"watch/{shard}": "0/12" for shard in range(4)}
    assert looked == [123.0]


def counters_of(folder: Path) -> list[int]:
    store = SqliteDatamarkers(folder / "datamarkers", "numbers")
    counters = [beat.counter for beat in store.members().values()]
    store.close()
    return counters


async def test_a_flow_that_is_rewound_ends_at_one_process_before_it_begins_at_another(tmp_path: Path, log: NumberLog) -> None:
    inside: list[str] = []
    beside: list[list[str]] = []
    prefers = ["m1"]

    class Slow(Watching):
        def __init__(self, name: str) -> None:
            super().__init__(1)
            self.name = name

        async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
            inside.append(self.name)
            beside.append(list(inside))
            await asyncio.sleep(0.3)
            inside.remove(self.name)
            super().on_updates(shard, updates)

    applications = {"watch": ApplicationSettings(KEY, start="oldest", balance=lambda shards, *_: dict.fromkeys(shards, prefers[0]))}
    one, other = Slow("m1"), Slow("m2")
    log.append(10)
    async with (
        publishing(tmp_path, log, applications=applications, balance_s=60.0) as publisher,
        subscriber(publisher, one, member="m1"),
        subscriber(publisher, other, member="m2"),
    ):
        await until(lambda: inside == ["m1"])
        prefers[0] = "m2"
        assert await command(tmp_path, command="rewind", application="watch", to="0/0") == {"watch/0": "0/0"}
        await until(lambda: other.total == 10)
    assert all(len(names) == 1 for names in beside), beside


async def test_a_flow_is_reassigned_to_another_process(tmp_path: Path, log: NumberLog) -> None:
    one, other = Watching(1), Watching(1)

    def stays(shards: object, placed: Mapping[int, str], *_: object) -> dict[int, str]:
        return {0: placed.get(0, "m1")}

    applications = {"watch": ApplicationSettings(KEY, start="oldest", balance=stays)}
    async with (
        publishing(tmp_path, log, applications=applications) as publisher,
        subscriber(publisher, one, member="m1"),
        subscriber(publisher, other, member="m2"),
    ):
        log.append(10)
        await until(lambda: one.has_all(10) and publisher.placing.members("watch") == ["m1", "m2"])
        assert await command(tmp_path, command="reassign", application="watch", shard=0, member="m2") == ["watch/0"]
        log.append(10)
        await until(lambda: other.has_all(20))
        assert await command(tmp_path, command="reassign", application="watch", shard=7) == "bad-request"
        assert await command(tmp_path, command="reassign", application="watch", member="nobody") == "bad-request"
        assert "nobody" not in publisher.placing._wished.values(), "if such a process comes one day, nothing jumps there"
        assert (await command(tmp_path, command="flows"))[0]["member"] == "m2"
    assert one.total + other.total == 20, "it was acknowledged before it moved"


async def test_a_flow_is_not_reassigned_when_there_is_no_other_process(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher:
        await until(lambda: bool(publisher.owning.held))
        assert await command(tmp_path, command="reassign", application="watch") == "bad-request"
        async with subscriber(publisher, watching):
            await until(lambda: watching.notices == [0])
            assert await command(tmp_path, command="reassign", application="watch") == "bad-request"
            log.append(10)
            await until(lambda: watching.has_all(10))
    assert watching.notices == [0], "it stayed where it was"


async def test_what_nobody_wants_any_more_is_removed_by_an_operator_and_not_before(tmp_path: Path, log: NumberLog) -> None:
    applications = {"watch": ApplicationSettings(KEY, start="oldest"), "old": ApplicationSettings(KEY, start="oldest")}
    watching = Watching(1)
    async with publishing(tmp_path, log, applications=applications) as publisher, subscriber(publisher, watching):
        log.append(100)
        await until(lambda: watching.has_all(100))
        assert await command(tmp_path, command="remove", application="old") == "bad-request", "it is among the settings"
        publisher.configure(replace(publisher.settings, applications={"watch": applications["watch"]}))
        await until(lambda: len(publisher.core.flows()) == 1)
        await until(lambda: [s.stored for s in publisher.core.flows()] == [Position(0, 100)])
        await asyncio.sleep(0.2)
        assert log.gone == 0, "drops nothing without being told"
        await until(lambda: bool(publisher.owning.foreign))
        assert await command(tmp_path, command="remove", application="old") == ["old/0"]
        await until(lambda: log.gone == 100)
        assert await command(tmp_path, command="remove", application="old") == "unknown-application"


async def test_what_another_publisher_takes_at_that_moment_is_not_removed(tmp_path: Path, log: NumberLog) -> None:
    """It would begin anew with a flow of which nothing is known any more."""

    class Late(SqliteDatamarkers):
        def forget(self, claims: Sequence[Claim]) -> list[FlowName]:
            assert self.take(claims[:1], "p2") == {claims[0].flow: claims[0].seen + 1}
            return super().forget(claims)

    applications = {name: ApplicationSettings(KEY, start="oldest") for name in ("watch", "old")}
    store = Late(tmp_path / "datamarkers", log.identity)
    async with publishing(tmp_path, log, 2, store=store, applications=applications) as publisher:
        log.append(10)
        await until(lambda: all(record.datamarker is not None for record in store.records().values()) and len(store.records()) == 4)
        await command(tmp_path, command="pause", application="old")
        publisher.configure(replace(publisher.settings, applications={"watch": applications["watch"]}))
        await until(lambda: len(publisher.owning.held) == 2)
        assert await command(tmp_path, command="remove", application="old") == "bad-request"
        kept = FlowName("old", 0)
        assert {flow for flow in store.records() if flow.application == "old"} == {kept}
        assert (store.records()[kept].owner, store.records()[kept].datamarker is None) == ("p2", False)
        assert f"paused:{kept}" in store.notes(), "they are its own"
        assert publisher.core.confirmable() == Position(0, 0), "the log is kept for it"


async def test_limits_change_while_it_runs(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        answer = await command(tmp_path, command="set", caravan_rate_max=4000, caravan_rate_min=4000)
        assert answer["caravan_rate_max"] == 4000
        assert publisher.core.limits.caravan_rate_max == 4000
        assert [caravan.bytes_per_s_max for caravan in publisher.core.caravans()] == [4000]
        assert await command(tmp_path, command="set", speed=1) == "invalid-setting"
        assert await command(tmp_path, command="set", caravans_max="many") == "invalid-setting"
        for refused in (
            {"caravans_max": 0},
            {"caravans_max": 2.5},
            {"caravans_max": 65},
            {"buffer_bytes_max": 0.5},
            {"policy": "nonsense"},
        ):
            before = publisher.settings
            assert await command(tmp_path, command="set", **refused) == "bad-request"
            assert publisher.settings == before, "nothing of it is kept"
        await command(tmp_path, command="set", caravan_rate_max=1e9, caravan_rate_min=1e6)
        log.append(1000)
        await until(lambda: watching.has_all(1000))
        with pytest.raises(InvalidSetting):
            publisher.configure(replace(publisher.settings, name="another"))


async def test_the_socket_is_its_owners_alone_and_noise_is_answered(tmp_path: Path, log: NumberLog) -> None:
    async with publishing(tmp_path, log):
        assert stat.S_IMODE((tmp_path / "p1.control").stat().st_mode) == 0o600
        assert await command(tmp_path, command="shutdown") == "bad-request"
        assert await command(tmp_path, command=["status"]) == "bad-request"
        assert await command(tmp_path, command="pause") == "bad-request"
        assert await command(tmp_path, command="pause", application="nobody") == "unknown-application"
        for noise in (b"", b"[]\n", b"no json\n", b"\xff" * 100_000 + b"\n"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "p1.control")
            writer.write(noise)
            writer.write_eof()
            assert b'"ok": true' not in await reader.read()
            writer.close()
    assert not (tmp_path / "p1.control").exists()


async def test_a_publisher_whose_address_is_taken_says_so_and_leaves_nothing_behind(tmp_path: Path, log: NumberLog) -> None:
    async with publishing(tmp_path, log, listen="127.0.0.1:0", control=None) as publisher:
        with pytest.raises(AddressInUse):
            async with publishing(tmp_path, log, listen=publisher.address, control=None):
                pytest.fail("two listen at one address")
        watching = Watching(1)
        log.append(10)
        async with subscriber(publisher, watching):
            await until(lambda: watching.has_all(10))
