"""Looking at one client and one object: what the rows say, what memory knows, page by page (gateway/details.py)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import aiohttp
import pytest

from roskva.errors import Overloaded
from roskva.feed.known import known_since
from roskva.gateway import details
from roskva.gateway.details import Page
from roskva.gateway.service import Gateway
from roskva.matcher.cells import object_row, registration_cell, version_cell
from roskva.model import ClientId, ObjectKey, object_key, partition_of
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    WAITING,
    Created,
    Pending,
    client_row,
    created_cell,
    done_cell,
    log_cell,
    registration_cells,
    seen_cell,
    seqno_cell,
    stamped_waiting,
    unknown_cell,
)
from roskva.registrar.members import Member, member_cell
from roskva.table import Cell, Mutation, open_manifest, open_table
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, handshake, hear_until, say
from tests.gateway.test_http import get

HELLO = object_key("demo", 0, b"hello")
SESSION = 1 << 32
SINCE_S = 1_790_000_000


def write_client(gateway: Gateway, client: str, *cells: Cell, device: str = "phone") -> None:
    row = client_row(ClientId(client), gateway.settings.partitions)
    known = [created_cell(Created("demo", device)), seqno_cell(SESSION + 99), seen_cell(20_000)]
    open_table(gateway.settings).write([Mutation(row, [*known, *cells])])


def registered(seqno: int = SESSION + 1, key: ObjectKey = HELLO, done: bool = True) -> list[Cell]:
    cells = registration_cells(key, seqno, True, Pending())
    return [*cells, done_cell(key, seqno)] if done else cells


def write_object(gateway: Gateway, *cells: Cell, version: int | None = 7, incarnation_back: int = 0) -> None:
    partition = partition_of(HELLO, gateway.settings.partitions)
    incarnation = (known_since(open_manifest(gateway.settings).record, partition, gateway.settings.partitions) or 1) - incarnation_back
    known = [] if version is None else [version_cell(version, "laptop", incarnation)]
    open_table(gateway.settings).write([Mutation(object_row(HELLO, gateway.settings.partitions), [*known, *cells])])


async def look(http: aiohttp.ClientSession, gateway: Gateway, what: str) -> dict[str, Any]:
    status, answer = await get(http, f"{gateway.url}/v1/inspect/{what}")
    assert status == 200, answer
    return answer


class TestClient:
    async def test_what_is_stored(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        other, third = object_key("demo", 0, b"other"), object_key("demo", 0, b"third")
        waiting = stamped_waiting([log_cell(HELLO, SESSION + 1, 7, WAITING), unknown_cell(other, SESSION + 2, WAITING)], SINCE_S)
        closed = [log_cell(third, SESSION + 3, 9, ACKNOWLEDGED), log_cell(HELLO, SESSION, 5, WAITING)]  # one of an earlier registration
        write_client(
            gateway, "c1", *registered(), *registered(SESSION + 2, other), *registered(SESSION + 3, third, done=False), *waiting, *closed
        )
        answer = await look(http, gateway, "clients/c1")
        assert (answer["application"], answer["device"], answer["session"], answer["seen_day"]) == ("demo", "phone", 1, "2024-10-04")
        assert (answer["online"], answer["owned_here"], answer["gone"]) == (False, True, False)
        called = {"member": gateway.member_id, "address": gateway.url.removeprefix("http://"), "name": gateway.name}
        assert answer["owner"] == called
        assert answer["registrations"]["count"] == 3
        assert [one["object"] for one in answer["registrations"]["list"]] == ["hello", "other", "third"]
        assert [(one["object"], one["operation"], one["since_ms"]) for one in answer["pending"]["list"]] == [("third", "register", None)]
        owed = [(one["object"], one["version"], one["since_ms"], one["stored"]) for one in answer["unacknowledged"]["list"]]
        assert sorted(owed) == [("hello", "7", SINCE_S * 1_000, True), ("other", None, SINCE_S * 1_000, True)]

    async def test_what_only_memory_knows(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        began_ms = time.time() * 1_000
        async with http.ws_connect(channel_url(gateway)) as socket:
            token = await handshake(socket)
            await say(socket, token=token, register=[{"op": 1, "object": "hello"}])
            await hear_until(socket, "unsettled")
            (client,) = gateway.registrar.sessions
            answer = await look(http, gateway, f"clients/{client}")
            assert answer["online"] is True
            assert answer["connected_here"] is True
            assert began_ms - 1_000 <= answer["online_since_ms"] <= time.time() * 1_000 + 1_000
            (pending,) = answer["pending"]["list"]  # there is no pipeline to answer
            assert (pending["object"], pending["operation"], pending["repair"]) == ("hello", "register", False)
            assert began_ms - 1_000 <= pending["since_ms"] <= time.time() * 1_000 + 1_000
            status = (await get(http, gateway.url + "/v1/status"))[1]
            assert status["pending"] == {"clients": 1, "registrations": 1}
        async with asyncio.timeout(10):
            while (await look(http, gateway, f"clients/{client}"))["online"]:
                await asyncio.sleep(0.01)

    async def test_registrations_in_pages(self, gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(details, "CELLS_MAX", 10)
        names = [b"%03d" % number for number in range(35)]
        keys = [object_key("demo", 0, name) for name in names]
        write_client(gateway, "c1", *(cell for number, key in enumerate(keys) for cell in registered(SESSION + number, key)))
        late = [log_cell(keys[30], SESSION + 30, 4, WAITING)]  # its registration is beyond what is counted
        write_client(gateway, "c1", *late)
        seen: list[str] = []
        after = ""
        while True:
            answer = await look(http, gateway, f"clients/c1?limit=8&after={after}")
            seen += [one["object"] for one in answer["registrations"]["list"]]
            assert (answer["registrations"]["count"], answer["registrations"]["more"]) == (11, True)
            assert [one["object"] for one in answer["unacknowledged"]["list"]] == ["030"]
            after = answer["registrations"]["next"]
            if not after:
                break
        assert seen == [name.decode() for name in names]

    async def test_nobody_and_a_client_that_is_gone(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        for name in ("nobody", "%C3%BC", "x" * 300):
            status, answer = await get(http, f"{gateway.url}/v1/inspect/clients/{name}")
            assert (status, answer["error"]["code"]) == (404, "unknown-client")
        row = client_row(ClientId("zombie"), gateway.settings.partitions)
        open_table(gateway.settings).write([Mutation(row, registered())])
        answer = await look(http, gateway, "clients/zombie")
        assert (answer["gone"], answer["application"]) == (True, None)

    async def test_whichever_gateway_is_asked_the_owner_says_who_is_online(self, start: Start, http: aiohttp.ClientSession) -> None:
        one, other = await start("one"), await start("two")
        async with asyncio.timeout(20):
            while len(one.view.live) < 2 or len(other.view.live) < 2:
                await asyncio.sleep(0.05)
        write_client(one, "c1", *registered())
        answers = {gateway.member_id: await look(http, gateway, "clients/c1") for gateway in (one, other)}
        owner = answers["one"]["owner"]["member"]
        assert answers["two"]["owner"]["member"] == owner
        assert [answer["online"] for answer in answers.values()] == [False, False]

    async def test_an_owner_that_does_not_answer_leaves_what_the_table_says(self, start: Start, http: aiohttp.ClientSession) -> None:
        one = await start("one")
        one.view.observe([member_cell(Member("two", "127.0.0.1:1", "127.0.0.1:2"), 1)], time.monotonic())
        one.registrar.members_changed()
        owners = {name: one.routes.details.owner_of(ClientId(name)) for name in (f"c{number}" for number in range(100))}
        owned = next(name for name, owner in owners.items() if owner is not None and owner.id == "two")
        write_client(one, owned, *registered())
        answer = await look(http, one, f"clients/{owned}")
        assert (answer["online"], answer["owned_here"], answer["owner"]["member"]) == (None, False, "two")


class TestObject:
    async def test_who_has_not_acknowledged_and_since_when(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        """Done: what is not stored was acknowledged in time. A copy of an earlier registration, or of who is gone, owes nothing."""
        seqno = SESSION + 1
        stored = stamped_waiting([log_cell(HELLO, seqno, 7, WAITING)], SINCE_S)
        write_client(gateway, "waits", *registered(), *stored, device="tablet")
        write_client(gateway, "plain", *registered(), unknown_cell(HELLO, seqno, WAITING))
        write_client(gateway, "acknowledged", *registered(), log_cell(HELLO, seqno, 7, ACKNOWLEDGED))
        write_client(gateway, "prompt", *registered())
        write_client(gateway, "again", *registered(SESSION + 5), *stored)
        write_client(gateway, "pending", *registered(done=False))
        clients = ["waits", "plain", "acknowledged", "prompt", "again", "pending", "gone"]
        left = registration_cell(ClientId("left"), seqno, "phone", registered=False)
        write_object(gateway, *(registration_cell(ClientId(client), seqno, "phone", registered=True) for client in clients), left)
        answer = await look(http, gateway, "objects/demo/hello")
        assert (answer["version"], answer["source"], answer["known"], answer["why_unknown"]) == ("7", "laptop", True, "")
        assert answer["registered"] == {"count": 7, "more": False}
        assert (answer["clients"]["looked_at"], answer["clients"]["outdated"], answer["clients"]["pending"]) == (7, 2, 1)
        owed = {one["client"]: (one["version"], one["since_ms"]) for one in answer["clients"]["unacknowledged"]}
        assert owed == {"waits": ("7", SINCE_S * 1_000), "plain": (None, None)}

    async def test_in_pages(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        clients = [f"c{number:03}" for number in range(25)]
        for client in clients:
            write_client(gateway, client, *registered(), log_cell(HELLO, SESSION + 1, 7, WAITING))
        write_object(gateway, *(registration_cell(ClientId(client), SESSION + 1, "d", registered=True) for client in clients))
        seen: list[str] = []
        after = ""
        while True:
            answer = await look(http, gateway, f"objects/demo/hello?limit=10&after={after}")
            seen += [one["client"] for one in answer["clients"]["unacknowledged"]]
            assert ("registered" in answer) == (not after)
            after = answer["next"]
            if not after:
                break
        assert seen == clients

    async def test_why_a_version_does_not_count(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        answer = await look(http, gateway, "objects/demo/never")
        assert (answer["version"], answer["known"], answer["registered"]["count"]) == (None, False, 0)
        assert "no version has come through" in answer["why_unknown"]
        write_object(gateway, incarnation_back=1)
        answer = await look(http, gateway, "objects/demo/hello")
        assert answer["version"] == "7"
        assert "lost after this version came" in answer["why_unknown"]
        partition = partition_of(HELLO, gateway.settings.partitions)
        open_table(gateway.settings).path("matcher", partition).unlink()
        open_table(gateway.settings).incarnation("matcher", partition)  # notices it
        write_object(gateway)
        answer = await look(http, gateway, "objects/demo/hello")
        assert answer["why_unknown"] == "the Matcher's partition is recovering"
        status = (await get(http, gateway.url + "/v1/status"))[1]
        assert status["incomplete"] == {f"table/matcher-{partition}": "recovering"}

    async def test_errors_are_named(self, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        wrong = {
            "objects/nobody/x": (404, "unknown-application"),
            "objects/demo/" + "x" * 129: (400, "invalid-name"),
            "objects/demo/x?limit=0": (400, "malformed-message"),
            "objects/demo/x?limit=1001": (400, "malformed-message"),
            "clients/x?limit=many": (400, "malformed-message"),
            "clients/x?after=!!": (400, "malformed-message"),
            "clients/x?after=%C3%BC": (400, "malformed-message"),
        }
        for path, expected in wrong.items():
            status, answer = await get(http, f"{gateway.url}/v1/inspect/{path}")
            assert (status, answer["error"]["code"]) == expected, path


async def test_looking_blocks_nobody_and_only_a_few_may_wait(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = gateway.routes.details
    go_on = threading.Event()
    monkeypatch.setattr(details.Details, "_read_object", lambda self, *arguments: go_on.wait(20) and {})
    page = Page(b"", 10)
    waiting = [asyncio.create_task(looking.object("demo", "hello", page)) for _ in range(details.WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await looking.object("demo", "hello", page)
    go_on.set()
    assert await asyncio.gather(*waiting) == [{}] * details.WAITING_MAX
    assert await looking.object("demo", "hello", page) == {}


async def test_an_earlier_epoch_owes_nothing(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    write_client(gateway, "c1", *registered(), log_cell(HELLO, SESSION + 1, 7, WAITING))
    open_manifest(gateway.settings).raise_epoch("demo", 0)
    answer = await look(http, gateway, "clients/c1")
    assert answer["registrations"]["list"] == answer["unacknowledged"]["list"] == []
    assert (await look(http, gateway, "objects/demo/hello"))["epoch"] == 1
