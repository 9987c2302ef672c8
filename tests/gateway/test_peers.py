"""Two gateways on one port: whichever answers, answers for the service (gateway/peers.py, gateway/door.py)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from roskva.config import Settings
from roskva.errors import AddressInUse, Unavailable
from roskva.gateway import door, peers
from roskva.gateway.door import MEMBER_HEADER, Door
from roskva.gateway.peers import Peers
from roskva.gateway.service import Gateway
from roskva.gateway.sharing import folder_path
from roskva.registrar.members import Member
from tests.gateway.conftest import Start
from tests.gateway.talking import handshake, hear, say

FAST = {"member_heartbeat_s": 0.2, "member_timeout_s": 2.0, "share_port": True}


@pytest.fixture
async def pair(start: Start) -> tuple[Gateway, Gateway]:
    one = await start("left", gateway_name="gateway-1", **FAST)
    two = await start("two", gateway_name="gateway-2", listen=one.url.removeprefix("http://"), **FAST)
    async with asyncio.timeout(10):
        while len(one.view.live) < 2 or len(two.view.live) < 2:
            await asyncio.sleep(0.02)
    return one, two


async def connect_to(gateway: Gateway, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
    """A connection that this one of the two accepted: the kernel chooses, so try until it did."""
    for _ in range(100):
        before = len(gateway.router.connections)
        connected = await http.ws_connect(gateway.url.replace("http", "ws") + "/v1/channel")
        if len(gateway.router.connections) > before:
            return connected
        await connected.close()
    raise AssertionError("it never got a connection")


async def begin_session(connected: aiohttp.ClientWebSocketResponse) -> None:
    await say(connected, token=await handshake(connected))
    await hear(connected)


async def test_both_accept_and_each_answer_counts_the_clients_of_both(pair: tuple[Gateway, Gateway], http: aiohttp.ClientSession) -> None:
    sockets = [await connect_to(gateway, http) for gateway in pair for _ in range(2)]
    for connected in sockets:
        await begin_session(connected)
    for _ in range(8):  # each over a connection of its own, so that both are asked
        async with aiohttp.ClientSession(headers=http.headers) as fresh, fresh.get(pair[0].url + "/v1/status") as answer:
            status = await answer.json()
        assert (status["sessions"], status["connections"]) == (4, 4)
        assert {name: held["connections"] for name, held in status["gateways"].items()} == {"gateway-1": 2, "gateway-2": 2}
        assert [(member["name"], member["answers"]) for member in status["members"]] == [("gateway-1", True), ("gateway-2", True)]
        async with aiohttp.ClientSession(headers=http.headers) as fresh, fresh.get(pair[0].url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert {f'roskva_connections{{gateway="gateway-{number}"}} 2.0' for number in (1, 2)} <= set(lines)
        assert {f'roskva_gateway_answers{{gateway="gateway-{number}"}} 1.0' for number in (1, 2)} <= set(lines)
        assert sum(line.startswith("# TYPE roskva_connections ") for line in lines) == 1
    for connected in sockets:
        await connected.close()


async def test_one_without_a_door_is_named_and_not_waited_for(
    pair: tuple[Gateway, Gateway], http: aiohttp.ClientSession, settings: Settings
) -> None:
    (settings.data / "run" / "gateway-2.sock").unlink()
    status = await pair[0].routes.inspection.status()
    assert {member["name"]: member["answers"] for member in status["members"]} == {"gateway-1": True, "gateway-2": False}
    assert list(status["gateways"]) == ["gateway-1"]


@pytest.mark.parametrize("deleted", ["run", "run/gateway-1.sock"])
async def test_a_door_that_was_deleted_is_there_again(
    start: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    monkeypatch.setattr(door, "LOOK_S", 0.05)
    await start("left", gateway_name="gateway-1", share_port=True)
    gone = settings.data / deleted
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    async with asyncio.timeout(10):
        while not (settings.data / "run" / "gateway-1.sock").exists():
            await asyncio.sleep(0.02)
    with folder_path(settings.data / "run") as folder:
        connector = aiohttp.UnixConnector(f"{folder}/gateway-1.sock")
        async with aiohttp.ClientSession(connector=connector) as http, http.get("http://gateway/healthz") as answer:
            assert answer.status == 200
    with pytest.raises(AddressInUse):  # and its name is taken again
        Door(settings.data, "gateway-1").bind()


async def test_both_are_ready_although_one_may_own_no_partition(pair: tuple[Gateway, Gateway]) -> None:
    reasons = [await gateway.routes.inspection.unready() for gateway in pair]
    assert reasons == [["the pipeline is not running"]] * 2


async def test_a_polled_connection_is_served_through_either(pair: tuple[Gateway, Gateway]) -> None:
    """The requests of one are spread over both, as all that comes by the shared port."""
    init = {"init": {"nonce": "n1", "application": "demo", "device": "phone"}}
    path = f"{pair[0].url}/v1/channels/{pair[0].port.polls.open('', '').id}"
    for _ in range(10):  # each over a connection of its own
        async with aiohttp.ClientSession() as fresh, fresh.post(path, data=json.dumps(init)) as answer:
            assert answer.status == 204
        async with aiohttp.ClientSession() as fresh, fresh.get(path) as answer:
            assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-ndjson")
            assert (await answer.json(content_type=None))["grant"]["nonce"] == "n1"
    assert len(pair[0].router.connections) == 1
    assert not pair[1].router.connections
    async with aiohttp.ClientSession() as fresh, fresh.delete(path) as answer:
        assert answer.status == 204
    assert not pair[0].router.connections


async def test_a_poll_that_is_passed_on_counts_as_an_open_file_at_both(pair: tuple[Gateway, Gateway]) -> None:
    here, there = pair
    path = f"{here.url}/v1/channels/{here.port.polls.open('', '').id}"
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as polls:
        waiting = []
        async with asyncio.timeout(10):
            while not there.port.relays():  # each over a connection of its own; the kernel chooses who gets it
                waiting.append(polls.create_task(_poll(http, path)))
                await asyncio.sleep(0.1)
        assert here.port.relays() >= 1
        there.port._connections_max = there.port.http_connections() + 1
        assert there.port.full()
        for poll in waiting:
            poll.cancel()
    async with asyncio.timeout(10):
        while there.port.relays():
            await asyncio.sleep(0.02)
    assert not there.port.full()


async def _poll(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path, headers={"Connection": "close"}):
        pass


async def test_a_polled_connection_is_gone_with_its_gateway(pair: tuple[Gateway, Gateway], settings: Settings) -> None:
    """Also while the others take that one for alive: its client opens another connection at once."""
    identity = pair[0].port.polls.open("", "").id
    (settings.data / "run" / "gateway-1.sock").unlink()
    statuses = set()
    for _ in range(20):  # of those that the other one gets, all are answered so
        async with aiohttp.ClientSession() as fresh, fresh.delete(f"{pair[0].url}/v1/channels/{identity}x") as answer:
            statuses.add((answer.status, (await answer.json())["error"]["code"] if answer.status != 204 else ""))
    assert statuses == {(204, ""), (410, "channel-closed")}


async def test_a_stream_of_events_goes_through_the_other(pair: tuple[Gateway, Gateway]) -> None:
    connection = pair[0].port.polls.open("", "")
    for _ in range(10):
        async with aiohttp.ClientSession() as fresh, fresh.get(f"{pair[0].url}/v1/channels/{connection.id}/events") as stream:
            assert await stream.content.readuntil(b"\n\n") == b":\n\n"
            connection.send(b'{"told":1}')
            assert await stream.content.readuntil(b"\n\n") == b'data: {"told":1}\n\n'


async def test_whether_a_client_is_online_is_told_by_its_owner(pair: tuple[Gateway, Gateway], http: aiohttp.ClientSession) -> None:
    connected = await connect_to(pair[0], http)
    await begin_session(connected)
    (client,) = [client for gateway in pair for client in gateway.registrar.sessions]
    for _ in range(8):
        async with aiohttp.ClientSession(headers=http.headers) as fresh, fresh.get(f"{pair[0].url}/v1/inspect/clients/{client}") as answer:
            assert (await answer.json())["online"] is True
    await connected.close()


async def test_each_is_asked_for_its_times_by_name(pair: tuple[Gateway, Gateway], http: aiohttp.ClientSession) -> None:
    for _ in range(4):
        for gateway in pair:
            path = f"/v1/inspect/latency?member={gateway.member_id}"
            async with aiohttp.ClientSession(headers=http.headers) as fresh, fresh.get(gateway.url + path) as answer:
                assert (await answer.json())["member"] == gateway.member_id


async def test_what_one_accepts_the_clients_of_the_other_hear_at_once(pair: tuple[Gateway, Gateway], http: aiohttp.ClientSession) -> None:
    """The fast path: without the pipeline, of which there is none here. It may leave out anything: a link that is not up yet, a row that is
    not written; so it is published until it was heard."""
    connected = await connect_to(pair[1], http)
    token = await handshake(connected)
    await say(connected, token=token, register=[{"op": 1, "object": "hello"}])
    await hear(connected)
    message: dict[str, Any] = {}
    async with asyncio.timeout(20):
        while not message.get("notify"):
            before = pair[0].metrics.updates_appended
            update = {"application": "demo", "object": "hello", "version": 7}
            async with aiohttp.ClientSession(headers=http.headers) as fresh, fresh.post(pair[0].url + "/v1/publish", json=update) as answer:
                assert answer.status == 200
            if pair[0].metrics.updates_appended > before:  # by this gateway, and not by the other one on the same port
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        while not message.get("notify"):
                            message = await hear(connected)
    assert message["notify"][0]["version"] == "7"
    await connected.close()


async def test_of_two_with_one_name_the_second_is_refused_and_who_was_killed_leaves_nothing(tmp_path: Path) -> None:
    first, killed, another = (Door(tmp_path, name) for name in ("gateway-1", "0123456789abcdef", "another"))
    first.bind()
    with pytest.raises(AddressInUse):
        Door(tmp_path, "gateway-1").bind()
    killed.bind()
    os.close(killed._lock)  # as by kill -9: its files stay
    killed._lock = -1
    another.bind()
    assert sorted(path.name for path in (tmp_path / "run").glob("*.sock")) == ["another.sock", "gateway-1.sock"]
    for one in (first, killed, another):
        await one.close()
    assert not list((tmp_path / "run").iterdir())


async def test_the_door_is_its_owner_s_alone_also_in_a_folder_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    alone = Door(tmp_path, "gateway-1")
    before = os.umask(0)
    try:
        alone.bind()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / "gateway-1.sock").stat().st_mode) == 0o600
    await alone.close()


@dataclass
class Behind:
    """What stands behind the door of gateway-2, and the peers of another that asks there."""

    peers: Peers
    door: Door
    live: dict[str, Member]
    asked: list[str] = field(default_factory=list)
    id: str = "two"  # as it signs
    hold: asyncio.Event | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.raw_path)
        if self.hold is not None:
            await self.hold.wait()
        return web.Response(body=b"1", headers={MEMBER_HEADER: self.id})


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    live = {identity: Member(identity, "", "", name=name) for identity, name in (("one", "gateway-1"), ("two", "gateway-2"))}
    there = Behind(Peers(tmp_path, "one", lambda: live), Door(tmp_path, "gateway-2"), live)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", there.answer)
    there.door.bind()
    await there.door.open(application)
    yield there
    await there.peers.close()
    await there.door.close()


async def test_the_answer_of_a_later_start_under_the_same_name_is_not_taken_for_the_earlier_one_s(behind: Behind) -> None:
    assert await behind.peers.ask_all("/own") == {"two": b"1"}
    behind.live["three"] = msgspec.structs.replace(behind.live["two"], id="three")  # it was started again; for a while both count as living
    behind.id = "three"
    assert await behind.peers.ask_all("/own") == {"two": None, "three": b"1"}


@pytest.mark.parametrize("path", ["/v1/inspect/objects/demo/..", "/a/./%2e%2e/b%2Fc?x=%20", "/a%20b/'(c)"])
async def test_a_path_is_passed_on_as_it_was_sent(behind: Behind, path: str) -> None:
    await behind.peers.ask_all(path)
    assert behind.asked == [path]


async def test_a_path_that_is_not_ascii_or_names_a_host_arrives_all_the_same(behind: Behind) -> None:
    for path in ("/\u00e4#b", "/\udcff", "http://somewhere:1/c?d"):
        await behind.peers.ask_all(path)
    assert behind.asked == ["/%C3%A4%23b", "/%FF", "/c?d"]


async def test_one_that_is_only_slow_keeps_its_connections(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    await behind.peers.ask_all("/own")
    before = dict(behind.peers._sessions)
    behind.hold = asyncio.Event()
    monkeypatch.setattr(peers, "ASK_S", 0.05)
    assert await behind.peers.ask_all("/own") == {"two": None}
    assert behind.peers._sessions == before
    behind.hold.set()


async def test_two_that_ask_while_others_are_dropped_share_one_session(behind: Behind) -> None:
    behind.live["gone"] = msgspec.structs.replace(behind.live["two"], id="gone")
    await behind.peers._session(behind.live["gone"])
    del behind.live["gone"]
    dropping = behind.peers._drop

    async def slowly(identity: str) -> None:
        await asyncio.sleep(0)
        await dropping(identity)

    behind.peers._drop = slowly  # type: ignore[method-assign]
    made = await asyncio.gather(*(behind.peers._session(behind.live["two"]) for _ in range(2)))
    assert made[0] is made[1]


def relayed(path: str = "/v1/channels/x") -> web.Request:
    return make_mocked_request("GET", path, transport=Mock())


async def test_a_door_whose_queue_is_full_is_tried_once_more(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_AGAIN_S", 0.0)
    passing, tries = behind.peers._passed_on, 0

    async def full_at_first(request: web.Request, member: Member) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise aiohttp.ClientConnectorError(Mock(), BlockingIOError(errno.EAGAIN, "full"))
        return await passing(request, member)

    behind.peers._passed_on = full_at_first  # type: ignore[method-assign]
    answer = await behind.peers.relay(relayed("/v1/channels/.."), "two")
    assert (answer.status, behind.asked) == (200, ["/v1/channels/.."])


async def test_without_the_folder_a_request_cannot_be_passed_on(behind: Behind, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(Unavailable):
        await behind.peers.relay(relayed(), "two")


async def test_who_hung_up_is_answered_nothing(behind: Behind, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "run")
    request = relayed()
    request.protocol.transport = None
    with pytest.raises(ConnectionResetError):
        await behind.peers.relay(request, "two")
