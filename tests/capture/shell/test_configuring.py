"""Other settings of applications, while their flows run and their callbacks stand still; and other limits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from roskva.capture.flows import Terms
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings, Publisher
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import KEY, NumberLog
from tests.capture.shell.serving import command, publishing, subscriber
from tests.capture.shell.watching import Watching, until

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

FLOW = FlowName("watch", 0)


def terms_of(publisher: Publisher) -> Terms:
    return publisher.core._convoy.flows[FLOW].terms


class Standing(Watching):
    """Its callbacks stand until they may go on. `inside`: whose callbacks run, of all processes that share it."""

    def __init__(self, name: str, inside: list[str]) -> None:
        super().__init__(1)
        self.name = name
        self.inside = inside
        self.beside: list[list[str]] = []
        self.may_go_on = asyncio.Event()

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:  # type: ignore[override]
        self.inside.append(self.name)
        self.beside.append(list(self.inside))
        await self.may_go_on.wait()
        self.inside.remove(self.name)
        super().on_updates(shard, updates)


async def test_an_application_comes_back_before_its_flows_were_handed_over(tmp_path: Path, log: NumberLog) -> None:
    standing, other = Standing("m1", []), Watching(1)
    watch = ApplicationSettings(KEY, start="oldest")
    before = {"watch": watch, "other": watch}
    after = {"watch": watch, "other": replace(watch, key=b"another key of thirty-two bytes, no less")}
    log.append(10)
    async with publishing(tmp_path, log, applications=before) as publisher, subscriber(publisher, standing):
        async with subscriber(publisher, other, "other", "m2"):
            await until(lambda: standing.inside == ["m1"] and other.has_all(10))
            (connection,) = (each for each in publisher.placing.connections.values() if each.application == "other")
            publisher.configure(replace(publisher.settings, applications={"other": watch}))
            publisher.configure(replace(publisher.settings, applications=after))
            assert connection.closing, "all that is to be done is done: its key is not the application's any more"
        standing.may_go_on.set()
        await until(lambda: standing.has_all(10))
    assert standing.skipped == []


async def test_a_flow_with_other_terms_ends_at_one_process_before_it_begins_at_another(tmp_path: Path, log: NumberLog) -> None:
    prefers = ["m1"]
    watch = ApplicationSettings(KEY, start="oldest", balance=lambda shards, *_: dict.fromkeys(shards, prefers[0]))
    inside: list[str] = []
    one, other = Standing("m1", inside), Standing("m2", inside)
    log.append(10)
    async with (
        publishing(tmp_path, log, applications={"watch": watch}, balance_s=60.0) as publisher,
        subscriber(publisher, one, member="m1") as first,
        subscriber(publisher, other, member="m2"),
    ):
        await until(lambda: inside == ["m1"] and len(publisher.placing.connections) == 2)
        prefers[0] = "m2"
        other.may_go_on.set()
        publisher.configure(replace(publisher.settings, applications={"watch": replace(watch, terms=Terms(staleness_max_s=0.01))}))
        assert publisher.placing.where(FLOW) is not None, "its callback runs"
        await until(lambda: first.shards == {}, what="told to close it")
        one.may_go_on.set()
        await until(lambda: other.has_all(10))
        assert terms_of(publisher) == Terms(staleness_max_s=0.01)
    assert all(len(names) == 1 for names in one.beside + other.beside), other.beside


async def test_what_changes_while_a_flow_is_rewound_holds_afterwards(tmp_path: Path, log: NumberLog) -> None:
    """Its application has other terms, or is gone: the flow is handed over then."""
    standing = Standing("m1", [])
    watch = ApplicationSettings(KEY, start="oldest")
    async with publishing(tmp_path, log) as publisher:
        for terms in (Terms(staleness_max_s=0.01), None):
            log.append(10)
            standing.may_go_on.clear()
            async with subscriber(publisher, standing):
                await until(lambda: standing.inside == ["m1"])
                rewinding = asyncio.create_task(publisher.owning.rewind([FLOW], Position(0, 0)))
                await until(lambda: FLOW in publisher.owning._handing)
                changed = {} if terms is None else {"watch": replace(watch, terms=terms)}
                publisher.configure(replace(publisher.settings, applications=changed))
                standing.may_go_on.set()
                await rewinding
                if terms is None:
                    await until(lambda: publisher.owning.held == {})
                else:
                    assert terms_of(publisher) == terms


async def test_memory_and_connections_are_limited_anew_while_it_runs_and_nobody_is_closed(tmp_path: Path, log: NumberLog) -> None:
    watching = Watching(1)
    async with publishing(tmp_path, log) as publisher, subscriber(publisher, watching):
        await until(lambda: publisher.placing.members("watch") == ["m1"])
        answer = await command(tmp_path, command="set", memory_mib_max=2, connections_max=1, caravans_max=3)
        assert (answer["memory_mib_max"], answer["connections_max"], answer["caravans_max"]) == (2, 1, 3)
        assert publisher.core.limits.buffers_bytes_max == 2**20
        async with subscriber(publisher, Watching(1), member="m2") as refused:
            await until(lambda: [error.code for error in refused.problems.values()] == ["too-many-connections"])
            for name in ("memory_mib_max", "connections_max"):
                for value in (0, -1, 1.5, "many", True):
                    assert await command(tmp_path, command="set", **{name: value}) == "invalid-setting"  # type: ignore[arg-type]
            log.append(10)
            await until(lambda: watching.has_all(10))
            await command(tmp_path, command="set", connections_max=2)
            await until(lambda: publisher.placing.members("watch") == ["m1", "m2"])
