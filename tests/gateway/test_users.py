"""The clients of one user: looked at and erased, whichever gateway owns them (gateway/users.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from roskva.gateway import users
from roskva.gateway.service import Gateway
from roskva.model import DROP_COPY, OUTCOME_ERASE, ClientId, ObjectKey, Propagation
from roskva.registrar.cells import CREATED, SEEN, Created, client_row, read_created
from roskva.table import Cell, Mutation, open_table
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, handshake, hear_until, say
from tests.gateway.test_http import get


def enter(gateway: Gateway, client: str, user: str, application: str = "demo") -> None:
    """A client's row, as a Registrar writes it."""
    row = client_row(ClientId(client), gateway.settings.partitions)
    created = msgspec.msgpack.encode(Created(application, f"device-{client}", user))
    open_table(gateway.settings).write([Mutation(row, [Cell(CREATED, 0, created), Cell(SEEN, 20_000, b"")])])


def is_there(gateway: Gateway, client: str) -> bool:
    row = client_row(ClientId(client), gateway.settings.partitions)
    return read_created(open_table(gateway.settings).read([row])[row].get(CREATED)) is not None


async def clients_of(http: aiohttp.ClientSession, gateway: Gateway, user: str, limit: int = 1_000) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    for _ in range(1_000):
        status, page = await get(http, f"{gateway.url}/v1/inspect/users/demo/{user}?limit={limit}&after={after}")
        assert status == 200, page
        assert len(page["clients"]) <= limit
        found += page["clients"]
        after = page["next"]
        if not after:
            return found
    raise AssertionError("no end")


async def erase(http: aiohttp.ClientSession, gateway: Gateway, **request: str) -> tuple[int, dict[str, Any]]:
    async with http.post(gateway.url + "/v1/erase", json=request) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(("limit", "rows"), [(1_000, 20_000), (3, 20_000), (1_000, 7), (1, 1)])
async def test_all_clients_of_a_user_and_no_others_are_listed(
    gateway: Gateway, http: aiohttp.ClientSession, limit: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "ROWS_MAX", rows)
    for number in range(12):
        enter(gateway, f"a{number}", "ann/1")
        enter(gateway, f"b{number}", "bob")
        enter(gateway, f"e{number}", "ann/1", application="elsewhere")
    found = await clients_of(http, gateway, "ann%2F1", limit)
    assert sorted(one["client"] for one in found) == sorted(f"a{number}" for number in range(12))
    assert found[0] == {"client": found[0]["client"], "device": f"device-{found[0]['client']}", "registrations": 0} | {
        "seen_day": "2024-10-04",
        "online": False,
    }
    assert await clients_of(http, gateway, "nobody") == []


async def test_a_user_is_erased_and_all_others_stay(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for number in range(30):
        enter(gateway, f"a{number}", "ann")
        enter(gateway, f"b{number}", "bob")
    status, answer = await erase(http, gateway, application="demo", user="ann")
    assert (status, answer["erased"], answer["failed"], answer["next"]) == (200, 30, 0, "")
    assert await clients_of(http, gateway, "ann") == []
    assert len(await clients_of(http, gateway, "bob")) == 30
    assert not any(is_there(gateway, f"a{number}") for number in range(30))
    assert (await erase(http, gateway, application="demo", user="ann"))[1]["erased"] == 0


async def test_an_erasure_goes_on_where_its_time_was_over(
    gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "ERASE_S", 0.0)
    monkeypatch.setattr(users, "ROWS_MAX", 4)
    for number in range(10):
        enter(gateway, f"a{number}", "ann")
    erased, after, requests = 0, "", 0
    while after or not requests:
        _, answer = await erase(http, gateway, application="demo", user="ann", after=after)
        erased, after, requests = erased + answer["erased"], answer["next"], requests + 1
    assert erased == 10
    assert requests > 2


async def test_a_client_that_is_online_is_told_to_start_anew(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        await say(socket, token=await handshake(socket))
        await socket.receive()
        (client,) = gateway.registrar.sessions
        verdicts = await gateway.registrar.propagate([Propagation(client, ObjectKey(b""), 0, OUTCOME_ERASE, 0)])
        assert verdicts == [DROP_COPY]
        await hear_until(socket, "start_anew")
        assert not is_there(gateway, client)


async def test_another_gateway_erases_its_own(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await start("left"), await start("two")
    async with asyncio.timeout(10):
        while len(one.view.live) != 2 or len(two.view.live) != 2 or not one.registrar.owned or not two.registrar.owned:
            await asyncio.sleep(0.05)
    for number in range(20):
        enter(one, f"a{number}", "ann")
    _, answer = await erase(http, one, application="demo", user="ann")
    assert (answer["erased"], answer["failed"]) == (20, 0)
    assert one.registrar.counters.collected + two.registrar.counters.collected == 20
    assert two.registrar.counters.collected > 0


async def test_errors_are_named(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    assert (await erase(http, gateway, application="nobody", user="ann"))[1]["error"]["code"] == "unknown-application"
    assert (await erase(http, gateway, application="demo", user=""))[1]["error"]["code"] == "malformed-message"
    assert (await erase(http, gateway, application="demo"))[0] == 400
    assert (await erase(http, gateway, application="demo", user="ann", after="!"))[0] == 400
    assert (await erase(http, gateway, application="demo", user="ann", after="eHg6"))[0] == 400
    assert (await get(http, f"{gateway.url}/v1/inspect/users/nobody/ann"))[0] == 404
