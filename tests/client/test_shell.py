"""`roskva.Client` over a real WebSocket, against a small service in this process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

import roskva
from roskva.client.callbacks import Callback
from roskva.client.shell import WISHES_PAUSE_S, Client
from roskva.errors import (
    ClientStopped,
    InvalidApplication,
    InvalidDevice,
    InvalidName,
    InvalidSetting,
    InvalidVersion,
    ServiceUnreachable,
    StateInUse,
    UnknownApplication,
)
from roskva.protocol import messages
from tests.client.gateway import CONFIG, FakeGateway, with_config

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as running:
        yield running


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() - before if task.get_name().startswith("roskva")]
    assert left == []


class Arguments(TypedDict, total=False):
    state: Path
    device: str
    on_notify: Callback
    on_unknown: Callback
    on_status: Callback
    on_failure: Callback
    on_reissue: Callback


def client_of(gateway: FakeGateway, **arguments: Unpack[Arguments]) -> Client:
    return Client(gateway.url, application="demo", config=CONFIG, **arguments)


async def until(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_example_of_the_readme(gateway: FakeGateway) -> None:
    gateway.versions["hello"] = 7
    seen = []
    async with roskva.Client(gateway.url, application="demo") as client:
        await client.register("hello")
        async for notification in client:
            seen.append((notification.object, notification.version))
            if len(seen) == 1:
                await gateway.publish("hello", 8)
            else:
                break
    assert seen == [("hello", 7), ("hello", 8)]
    assert [ack.version for ack in gateway.acks] == ["7"]  # the loop came back once; the break left 8 unacknowledged


async def test_synced_waits_for_the_registrations_and_in_sync_for_acknowledgements_too(gateway: FakeGateway) -> None:
    gateway.versions.update(a=1, b=2)
    async with client_of(gateway) as client:
        await client.register("a")
        await client.register(b"b")
        assert not client.in_sync
        await client.synced(5)
        assert not client.in_sync  # two notifications are not acknowledged
        async for notification in client:
            client.acknowledge(notification)
            if notification.object == "b":
                break
        await gateway.say(gateway.clients[0])
        await until(lambda: client.in_sync)
        assert sorted(client.registrations) == ["a", "b"]
    assert not client.in_sync


async def test_a_loop_that_was_left_gives_its_notification_to_the_next(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 1
    async with client_of(gateway) as client:
        await client.register("a")

        async def fail() -> None:
            async for _ in client:
                raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            await fail()
        async for notification in client:
            assert notification.version == 1
            break
        assert gateway.acks == []


async def test_what_waits_is_one_entry_per_object_and_the_replaced_is_not_acknowledged(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 0
    async with client_of(gateway) as client:
        await client.register("a")
        await until(lambda: len(client._notifications))
        for version in range(1, 100):
            await gateway.publish("a", version)
        await asyncio.sleep(0.1)
        assert len(client._notifications) == 1
        notifications = aiter(client)
        assert (await anext(notifications)).version == 99
        waiting = asyncio.ensure_future(anext(notifications))
        await until(lambda: gateway.acks)
        assert [ack.version for ack in gateway.acks] == ["99"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_an_unknown_does_not_take_the_place_of_a_version(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 5
    async with client_of(gateway) as client:
        await client.register("a")
        await until(lambda: len(client._notifications) == 1)
        await gateway.unknown("a")
        await until(lambda: len(client._notifications) == 2)
        seen = []
        async for notification in client:
            seen.append(notification.version)
            if len(seen) == 2:
                break
        assert seen == [5, None]


async def test_callbacks_are_called_in_order_and_acknowledge_when_they_return(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 1
    events: list[object] = []

    async def on_notify(notification: roskva.Notification) -> None:
        await asyncio.sleep(0.01)
        events.append(("notify", notification.object, notification.version))

    async with client_of(
        gateway,
        on_notify=on_notify,
        on_unknown=lambda notification: events.append(("unknown", notification.object)),
        on_status=lambda name, registered: events.append(("status", name, registered)),
        on_reissue=lambda: events.append("reissue"),
    ) as client:
        await client.register("a")
        await client.register("b")
        await until(lambda: len(gateway.acks) == 2)
        await client.unregister("a")
        await until(lambda: ("status", "a", False) in events)
        with pytest.raises(RuntimeError, match="callback"):
            aiter(client)
    assert events[0] == "reissue"
    assert ("notify", "a", 1) in events
    assert ("unknown", "b") in events
    assert ("status", "b", True) in events


async def test_a_callback_that_raises_does_not_acknowledge_and_is_called_again(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.versions["a"] = 1
    calls = 0

    def on_notify(notification: roskva.Notification) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("on purpose")

    async with client_of(gateway, on_notify=on_notify) as client:
        await client.register("a")
        await until(lambda: calls == 1)
        await asyncio.sleep(0.05)
        assert gateway.acks == []
        await gateway.redeliver()
        await until(lambda: gateway.acks)
    assert calls == 2
    assert "on purpose" in caplog.text


async def test_on_reissue_may_state_the_registrations(gateway: FakeGateway) -> None:
    client: Client = client_of(gateway, on_reissue=lambda: client.register("a"))
    async with client:
        await until(lambda: gateway.clients and "a" in gateway.clients[0].registered)


async def test_a_client_may_be_closed_by_its_callback(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 1
    client: Client = client_of(gateway, on_notify=lambda _: client.close())
    await client.start()
    await client.register("a")
    await until(lambda: client._closed)
    await asyncio.sleep(0.05)


async def test_failures_are_reported(gateway: FakeGateway) -> None:
    failed: list[tuple[object, ...]] = []
    gateway.refuse["bad"] = messages.Status(object="bad", state=messages.FAILED, code="too-many-registrations", message="no")
    async with client_of(gateway, on_failure=lambda *what: failed.append(what)) as client:
        await client.register("bad")
        await until(lambda: failed)
        assert failed == [("bad", False, "too-many-registrations", "no")]
        assert client.registrations == []
        await client.synced(5)


async def test_it_reconnects_with_its_session_and_catches_up(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 1
    async with client_of(gateway) as client:
        await client.register("a")
        notifications = aiter(client)
        assert (await anext(notifications)).version == 1
        client.acknowledge(notifications._current)  # type: ignore[arg-type]
        await until(lambda: gateway.acks)
        socket = gateway.clients[0].socket
        assert socket is not None
        await socket.close()
        gateway.clients[0].socket = None
        await gateway.publish("a", 2)
        assert (await anext(notifications)).version == 2
        assert sum(message.init is not None for message in gateway.received) == 1


async def test_it_waits_for_a_service_that_starts_later(caplog: pytest.LogCaptureFixture) -> None:
    gateway = FakeGateway()
    async with gateway:
        pass  # now there is a port on which nobody listens
    async with client_of(gateway) as client:
        await client.register("a")
        with pytest.raises(ServiceUnreachable, match="cannot be reached"):
            await client.synced(0.2)
        async with gateway:
            async for notification in client:
                assert notification.unknown
                break
    assert caplog.text.count("keeps trying") == 1


async def test_a_half_open_connection_is_left(gateway: FakeGateway) -> None:
    with_config(gateway, keepalive_s=0.2)
    async with client_of(gateway) as client:
        await client.synced(5)
        gateway.silent = True
        connections = len([m for m in gateway.received if m.token])
        await until(lambda: len([m for m in gateway.received if m.token]) > connections + 1)
        assert not client.in_sync
        gateway.silent = False
        await client.synced(5)


async def test_start_anew_registers_everything_again(gateway: FakeGateway) -> None:
    reissued = []
    async with client_of(gateway, on_reissue=lambda: reissued.append(1)) as client:
        await client.register("a")
        await until(lambda: gateway.clients and gateway.clients[0].registered)
        await gateway.disconnect_all()
        await gateway.lose_clients()
        await until(lambda: gateway.clients and "a" in gateway.clients[0].registered)
    assert len(reissued) == 2


async def test_state_keeps_the_identity_over_restarts(gateway: FakeGateway, tmp_path: Path) -> None:
    path = tmp_path / "me.state"
    devices = set()
    for run in range(3):
        async with client_of(gateway, state=path) as client:
            await client.register("a")
            async for notification in client:
                client.acknowledge(notification)
                break
            devices.add(client.device)
        gateway.versions["a"] = run
        await gateway.publish("a", run)
    assert len(devices) == 1
    assert len(gateway.clients) == 1
    assert sum(len(message.register) for message in gateway.received) == 1  # the summaries agree: nothing is resent
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes())["token"].startswith("c1.")
    assert sorted(os.listdir(tmp_path)) == ["me.state", "me.state.lock"]


async def test_without_state_every_run_is_a_new_client(gateway: FakeGateway) -> None:
    for _ in range(2):
        async with client_of(gateway) as client:
            await client.synced(5)
    assert len(gateway.clients) == 2


async def test_one_state_file_one_client(gateway: FakeGateway, tmp_path: Path) -> None:
    path = tmp_path / "me.state"
    async with client_of(gateway, state=path):
        with pytest.raises(StateInUse, match="another running client"):
            await client_of(gateway, state=path).start()
    async with client_of(gateway, state=path):
        pass


async def test_a_damaged_state_file_starts_a_new_client(gateway: FakeGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "me.state"
    path.write_bytes(b'{"v": 1, "appl')
    async with client_of(gateway, state=path) as client:
        await client.synced(5)
    assert "of no use" in caplog.text
    assert json.loads(path.read_bytes())["token"]


async def test_a_state_file_of_another_is_left_alone(gateway: FakeGateway, tmp_path: Path) -> None:
    path = tmp_path / "me.state"
    async with client_of(gateway, state=path, device="phone") as client:
        await client.synced(5)
    kept = path.read_bytes()
    with pytest.raises(InvalidSetting, match="belongs to the device 'phone'"):
        await client_of(gateway, state=path, device="tablet").start()
    with pytest.raises(InvalidSetting, match="belongs to the application 'demo'"):
        await Client(gateway.url, application="other", state=path).start()
    with pytest.raises(InvalidSetting, match="cannot be used"):
        await client_of(gateway, state=tmp_path / "missing" / "me.state").start()
    assert path.read_bytes() == kept


async def test_two_clients_of_one_state_supersede_each_other_once_then_one_stops(gateway: FakeGateway, tmp_path: Path) -> None:
    first, second = tmp_path / "first.state", tmp_path / "second.state"
    async with client_of(gateway, state=first) as one:
        await one.synced(5)
        await until(lambda: json.loads(first.read_bytes())["token"])
        second.write_bytes(first.read_bytes())  # a clone
        async with client_of(gateway, state=second) as two:
            stopped = [asyncio.ensure_future(_end_of(client)) for client in (one, two)]
            done, waiting = await asyncio.wait(stopped, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(next(iter(done)).result(), ClientStopped)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _end_of(client: Client) -> Exception:
    try:
        async for _ in client:
            pass
    except ClientStopped as error:
        return error
    raise AssertionError("the loop ended without an error")


async def test_an_unknown_application_is_told(gateway: FakeGateway) -> None:
    async with Client(gateway.url, application="nobody", config=CONFIG) as client:
        with pytest.raises(UnknownApplication):
            await client.synced(5)
        with pytest.raises(UnknownApplication):
            await client.register("a")
        with pytest.raises(UnknownApplication):
            async for _ in client:
                pass


async def test_wishes_of_one_turn_of_the_event_loop_travel_together(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.register("first")
        await client.synced(5)
        gateway.received.clear()
        for number in range(5_000):
            await client.register(f"object-{number}")
        await client.unregister("object-0")
        await client.synced(20)
        assert len(gateway.clients[0].registered) == 5_000
        assert sum(len(message.register) for message in gateway.received) == 4_999  # the first was given up before it was told
        assert len(gateway.received) < 100


async def test_while_wishes_are_unanswered_those_of_several_turns_travel_together(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.register("first")
        await client.synced(5)
        gateway.received.clear()
        gateway.silent = True
        began_s = asyncio.get_running_loop().time()
        for number in range(500):
            await client.register(f"object-{number}")
            await asyncio.sleep(0)
        await until(lambda: sum(len(message.register) for message in gateway.received) >= 500)
        took_s = asyncio.get_running_loop().time() - began_s
        assert len(gateway.received) <= 2 + took_s / WISHES_PAUSE_S


async def test_a_wish_of_the_last_moment_is_told(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.register("first")
        await client.synced(5)
        await client.unregister("first")
        await client.register("last")
    await until(lambda: list(gateway.clients[0].registered) == ["last"])


async def test_what_is_registered_anew_is_unregistered_before(gateway: FakeGateway) -> None:
    """Within one turn, too: a registration that the service has already yields nothing, and everything is to be told anew."""
    async with client_of(gateway, on_notify=lambda _: None) as client:
        await client.register("x")
        await client.synced(5)
        await until(lambda: bool(gateway.acks))  # nothing is left that would be given back, and be a reason to speak
        before = len(gateway.received)
        await client.unregister("x", forget=True)
        await client.register("x")
        await client.synced(5)
    said = gateway.received[before:]
    unregistered = [one.op for message in said for one in message.unregister]
    registered = [one.op for message in said for one in message.register]
    assert len(unregistered) == len(registered) == 1
    assert unregistered < registered


async def test_many_registrations_go_through(gateway: FakeGateway) -> None:
    async with client_of(gateway, on_notify=lambda _: None) as client:
        for number in range(2500):
            await client.register(f"object-{number}")
        await until(lambda: len(gateway.acks) >= 2500)
        await gateway.say(gateway.clients[0])
        await client.synced(5)
        await gateway.disconnect_all()
        await gateway.lose_clients()
        await until(lambda: gateway.clients and len(gateway.clients[0].registered) == 2500)


async def test_garbage_from_the_service_is_ignored(gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(gateway) as client:
        await client.synced(5)
        socket = gateway.clients[0].socket
        assert socket is not None
        await socket.send_str("nonsense")
        await socket.send_bytes(b"\xff")
        await socket.send_str('{"v": 1, "notify": 5}')
        await gateway.say(gateway.clients[0], status=[messages.Status(object="", state="registered")])
        await client.register("a")
        await until(lambda: gateway.clients[0].registered)
    assert caplog.text.count("was ignored") == 3


async def test_a_mistake_of_ours_costs_a_connection_not_the_client(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(gateway) as client:
        await client.synced(5)
        core = client._core
        assert core is not None

        def broken(now: float, message: messages.ServerMessage) -> list[object]:
            monkeypatch.undo()
            raise AssertionError("a defect")

        monkeypatch.setattr(core, "received", broken)
        await gateway.say(gateway.clients[0])
        await until(lambda: "a defect" in caplog.text)
        await client.register("a")
        await until(lambda: gateway.clients[0].registered)


async def test_bad_arguments_raise_at_once(gateway: FakeGateway) -> None:
    with pytest.raises(InvalidApplication):
        Client(gateway.url, application="Not An Application")
    with pytest.raises(InvalidDevice):
        Client(gateway.url, application="demo", device="")
    for url in ("", "127.0.0.1:8470", "ftp://127.0.0.1"):
        with pytest.raises(InvalidSetting):
            Client(url, application="demo")
    client = client_of(gateway)
    with pytest.raises(ClientStopped, match="not started"):
        await client.register("a")
    async with client:
        for name in ("", b"", "x" * 129, 5):
            with pytest.raises(InvalidName):
                await client.register(name)  # type: ignore[arg-type]
        for version in (-1, 2**63, 1.5):
            with pytest.raises(InvalidVersion):
                await client.register("a", version=version)  # type: ignore[arg-type]
        with pytest.raises(InvalidVersion):
            await client.register("a", version=1, epoch=-1)
        assert client.registrations == []
    with pytest.raises(ClientStopped):
        await client.register("a")
    with pytest.raises(ClientStopped):
        await client.start()
    await client.close()


async def test_closing_sends_the_last_acknowledgement_and_ends_loops(gateway: FakeGateway) -> None:
    gateway.versions["a"] = 1
    client = client_of(gateway)
    await client.start()
    await client.register("a")
    notifications = aiter(client)
    client.acknowledge(await anext(notifications))
    waiting = asyncio.ensure_future(anext(notifications, None))
    await asyncio.sleep(0)
    await client.close()
    assert await waiting is None
    await until(lambda: gateway.acks)


async def test_closing_while_nobody_answers_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    client = Client("http://127.0.0.1:9", application="demo")
    await client.start()
    async with asyncio.timeout(3):
        await client.close()
