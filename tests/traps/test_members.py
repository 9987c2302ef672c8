"""Who lives, after clocks were set back and gateways came back under another boot (traps 28 and 41)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from roskva.config import Settings
from roskva.errors import PartitionUnavailable
from roskva.gateway.members import Membership
from roskva.gateway.service import Gateway
from roskva.registrar.members import Member, MemberView
from roskva.table import TableLanes, open_table
from roskva.table.interface import Mutation, Row, RowKey
from tests.gateway.conftest import Start, close_engines
from tests.gateway.talking import channel_url, handshake, hear, say
from tests.gateway.test_links import claims_of, owner_of
from tests.registrar.place import Clock

FAST = {"member_heartbeat_s": 0.2, "member_timeout_s": 2.0}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", listen="127.0.0.1:0")


@pytest.fixture
async def lanes(settings: Settings) -> AsyncIterator[TableLanes]:
    lanes = TableLanes(open_table(settings), settings.partitions)
    yield lanes
    await lanes.close()
    close_engines(settings)


async def test_trap_28_a_clock_set_back_costs_a_member_nothing(lanes: TableLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats that carried its time would lose against those of before, and it would be dead for as long as the clock went back."""
    clock = Clock(1_000.0)
    one, two = (Membership(lanes, MemberView(5.0), Member(name, "127.0.0.1:1", "127.0.0.1:2"), 1.0, clock) for name in ("one", "two"))
    await two.beat()
    await one.beat()
    hour_ago_s = time.time() - 3_600.0
    monkeypatch.setattr("roskva.gateway.members.time.time", lambda: hour_ago_s)
    for _ in range(5):
        clock.now_s += 4.0
        await two.beat()
        await one.beat()
        assert one.view.live.keys() == {"one", "two"}


async def test_trap_41_a_gateway_that_restarts_within_the_timeout_is_another_member(start: Start, http: aiohttp.ClientSession) -> None:
    """Under its old name, nobody would see a change of members: its clients would not be announced to it, and would look offline."""
    many = {**FAST, "partitions": 16}  # whose id is chosen by chance may own none of four
    one, owner = await start("left", **many), await start(**many)
    await until(lambda: all(set(gateway.view.live) == {"left", owner.member_id} for gateway in (one, owner)))
    async with http.ws_connect(channel_url(owner)) as first:
        token = await handshake(first)
    assert owner_of(one, token) == owner.member_id
    socket = await http.ws_connect(channel_url(one))
    await say(socket, token=token)
    await hear(socket)
    owner.membership._counter = 1_000_000  # it had lived for long
    await owner.membership.beat()
    await end_without_a_word(owner)
    heir = await start(**many)
    client, _ = claims_of(one, token)
    await until(lambda: set(one.view.live) == set(heir.view.live) == {"left", heir.member_id})
    present = one if owner_of(one, token) == "left" else heir
    await until(lambda: client in present.registrar.sessions)
    await socket.close()


class Mute:
    """Rows that take no more heartbeats."""

    async def write(self, mutations: Sequence[Mutation]) -> None:
        raise PartitionUnavailable("The process is gone.", "members")

    async def read(self, rows: Sequence[RowKey]) -> dict[RowKey, Row]:
        raise PartitionUnavailable("The process is gone.", "members")


async def end_without_a_word(gateway: Gateway) -> None:
    """As after kill -9: nobody is told that it left."""
    gateway.membership.rows = Mute()
    await gateway.stop()


async def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.02)
