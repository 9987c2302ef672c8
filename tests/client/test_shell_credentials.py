"""`roskva.Client` of an application that asks who its users are, over a real WebSocket: texts, providers, refusals, revocations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import roskva
from roskva.client import shell_credentials
from roskva.client.actions import Notification
from roskva.errors import InvalidSetting
from roskva.protocol.messages import Config, Info, Status
from tests.client.gateway import FakeGateway, with_config

pytestmark = pytest.mark.timeout(30)

CONFIG = Config(keepalive_s=5, retry_min_s=0.05, retry_max_s=0.2, connect_min_s=0.02, connect_max_s=0.2)


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as running:
        running.users = {"good": 0.0}
        running.config = CONFIG
        yield running


def client_of(gateway: FakeGateway, credential: Any = None, **arguments: Any) -> roskva.Client:
    return roskva.Client(gateway.url, application="demo", config=CONFIG, credential=credential, **arguments)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_text_is_shown_with_the_handshake_and_over_each_connection(gateway: FakeGateway) -> None:
    async with client_of(gateway, "good") as client:
        await client.register("a")
        await client.synced(5)
        assert gateway.shown == ["good"]
        await gateway.disconnect_all()
        await until(lambda: gateway.shown == ["good", "good"])
        await client.synced(5)
        assert client.credential_problem == ""
        assert len(gateway.clients) == 1


async def test_a_text_that_is_refused_is_tried_with_pauses_and_the_application_told_once(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []
    with_config(gateway, retry_min_s=0.05)
    with caplog.at_level(logging.DEBUG):
        async with client_of(gateway, "forged-text", on_credential_refused=lambda *why: told.append(why)) as client:
            await client.register("a")
            await until(lambda: len(gateway.shown) >= 4)
            assert told == [("credential-refused", "Not so.")]
            assert client.credential_problem == "credential-refused"
            assert not client.in_sync
            with pytest.raises(TimeoutError, match="credential-refused"):
                await client.synced(0.1)
            gateway.why_refused = "credential-expired"
            await until(lambda: len(told) == 2)
            assert told[1][0] == "credential-expired"
            client.use_credential("good")
            await client.synced(5)
            assert client.credential_problem == ""
    assert "forged-text" not in caplog.text
    assert caplog.text.count("refuses this client's user") == 2


async def test_without_one_the_client_says_so_and_waits(gateway: FakeGateway) -> None:
    told: list[str] = []
    async with client_of(gateway, on_credential_refused=lambda code, message: told.append(code)) as client:
        await until(lambda: told)
        asked = len(gateway.received)
        await asyncio.sleep(0.5)
        assert told == ["credential-required"]
        assert len(gateway.received) - asked <= 10
        client.use_credential("good")
        await client.synced(5)


async def test_a_provider_is_called_at_the_start_and_before_anything_is_said(gateway: FakeGateway) -> None:
    calls = 0

    async def provide() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.05)
        return "good"

    async with client_of(gateway, provide) as client:
        await client.synced(5)
        await gateway.disconnect_all()
        await until(lambda: len(gateway.shown) == 2)
        await client.synced(5)
    assert calls == 1, "what is still good is used again"
    assert gateway.shown == ["good", "good"]


async def test_a_provider_is_called_when_it_expired_and_registrations_stay(gateway: FakeGateway) -> None:
    texts = iter(["good", "better"])
    gateway.users = {"good": 0.0, "better": 0.0}
    told: list[str] = []
    async with client_of(gateway, lambda: next(texts), on_credential_refused=lambda *why: told.append(why[0])) as client:
        await client.register("a")
        await client.synced(5)
        operations = sum(len(message.register) for message in gateway.received)
        await gateway.expire(gateway.clients[0])
        await until(lambda: not client.in_sync or gateway.shown[-1] == "better")
        await until(lambda: gateway.shown == ["good", "better"])
        await client.synced(5)
        assert sum(len(message.register) for message in gateway.received) == operations
        assert told == [], "the provider mended it"


async def test_before_it_ends_the_provider_is_called(gateway: FakeGateway) -> None:
    calls = 0

    def provide() -> str:
        nonlocal calls
        calls += 1
        return f"number {calls}"

    gateway.users = {"number 1": 0.3, "number 2": 1000.0}
    async with client_of(gateway, provide) as client:
        await client.synced(5)
        await until(lambda: gateway.shown == ["number 1", "number 2"])
        await asyncio.sleep(0.4)
        assert calls == 2
        assert client.credential_problem == ""


async def test_a_provider_that_fails_is_asked_again_with_pauses_and_not_quoted(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def provide() -> str:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise ConnectionError("a secret text")
        return "good"

    async with client_of(gateway, provide) as client:
        await client.synced(5)
    assert calls == 4
    assert caplog.text.count("failed with ConnectionError") == 3
    assert "a secret text" not in caplog.text


async def test_a_provider_whose_answers_are_refused_is_called_one_at_a_time_ever_more_slowly(gateway: FakeGateway) -> None:
    under_way = most = calls = 0
    told: list[str] = []

    async def provide() -> str:
        nonlocal under_way, most, calls
        under_way += 1
        calls += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return f"forged {calls}"

    async with client_of(gateway, provide, on_credential_refused=lambda *why: told.append(why[0])):
        await asyncio.sleep(1.0)
    assert 4 <= calls <= 20, "pauses from 0.05 to 0.2 s"
    assert most == 1
    assert told == ["credential-refused"]


async def test_a_provider_that_hangs_does_not_keep_the_client_from_connecting(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_credentials, "BEFORE_CONNECTING_S", 0.05)
    monkeypatch.setattr(shell_credentials, "CALL_S", 0.2)
    calls = 0

    async def provide() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(60.0)
        return "good"

    async with client_of(gateway, provide) as client:
        await until(lambda: client.connected)
        assert calls == 1
        await client.synced(5)


@pytest.mark.parametrize("credential", [7, "x" * 9_000])
def test_what_cannot_be_a_credential(gateway: FakeGateway, credential: Any) -> None:
    with pytest.raises(InvalidSetting):
        client_of(gateway, credential)


async def test_one_may_be_given_before_the_start(gateway: FakeGateway) -> None:
    client = client_of(gateway)
    client.use_credential("good")
    async with client:
        await client.synced(5)


async def test_another_user_is_a_new_client_with_the_same_registrations(gateway: FakeGateway) -> None:
    async with client_of(gateway, "good") as client:
        await client.register("a")
        await client.synced(5)
        gateway.users = {"of somebody else": 0.0}
        await gateway.lose_clients()  # the token of another user is worth nothing
        client.use_credential("of somebody else")
        await until(lambda: gateway.clients and gateway.clients[0].registered)
        await client.synced(5)


async def test_the_service_is_told_by_which_channel(gateway: FakeGateway) -> None:
    async with client_of(gateway, "good") as client:
        await client.synced(5)
    assert [message.info for message in gateway.received if message.init] == [Info(library="roskva-python/1", channel="websocket")]
    assert {message.info for message in gateway.received if not message.init} == {None}


async def test_a_refused_registration_leaves_no_handler(gateway: FakeGateway) -> None:
    gateway.refuse["a"] = Status(object="a", state="failed", code="too-many-registrations", message="No.")
    handled: list[Notification] = []
    refused: list[tuple[bytes, str, str]] = []
    failures: list[str] = []
    async with client_of(gateway, "good", on_failure=lambda *why: failures.append(why[0])) as client:
        await client.register("a", handler=handled.append, refused=lambda *why: refused.append(why))
        await until(lambda: refused)
        assert refused == [(b"a", "too-many-registrations", "No.")]
        await until(lambda: failures == ["a"])
        assert b"a" not in client._handlers
        del gateway.refuse["a"]
        gateway.versions["a"] = 7
        await client.register("a")  # for the loop
        async for notification in client:
            assert (notification.object, notification.version) == ("a", 7)
            break
        assert handled == []


async def test_a_revoked_registration_is_told_and_what_waits_of_it_goes(gateway: FakeGateway) -> None:
    statuses: list[tuple[str, bool]] = []
    failures: list[tuple[object, ...]] = []
    gateway.versions.update(a=1, b=1)
    async with client_of(
        gateway, "good", on_status=lambda *what: statuses.append(what), on_failure=lambda *what: failures.append(what)
    ) as client:
        await client.register("a")
        await client.register("b")
        await until(lambda: sorted(statuses) == [("a", True), ("b", True)])
        await until(lambda: len(client._notifications) == 2)
        await gateway.revoke(gateway.clients[0], "a")
        await until(lambda: failures)
        assert statuses[-1] == ("a", False)
        assert failures == [("a", False, "not-authorized", "")]
        assert client.registrations == ["b"]
        assert len(client._notifications) == 1
        async for notification in client:
            assert notification.object == "b"
            break
        before = len(gateway.received)
        await asyncio.sleep(0.3)
        assert not any(message.register or message.sync for message in gateway.received[before:])
