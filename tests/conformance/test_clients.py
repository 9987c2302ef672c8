"""`roskva conformance --serve`: our client passes; one that is wrong in one thing is caught."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from roskva import Client, Notification
from roskva.client import actions
from roskva.conformance import stage as stages
from roskva.conformance.outcome import FAILED, PASSED, Outcome, table
from roskva.conformance.stage import Stage
from roskva.conformance.transcripts import SLOW_S, load, select
from roskva.protocol.messages import ClientMessage, Init
from roskva.testing.joined import Server

Change = Callable[[ClientMessage], ClientMessage | None]


def _driver() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "conformance" / "driver.py"
    spec = importlib.util.spec_from_file_location("conformance_driver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and typing look there
    spec.loader.exec_module(module)
    return module


driver = _driver()


async def serve(numbers: list[str], patience_s: float, driver_of: Callable[[Path], Any]) -> list[Outcome]:
    async with Stage("127.0.0.1", 0, patience_s) as stage:
        driving = asyncio.create_task(driver.drive(stage.url, driver_of, say=lambda line: None))
        outcomes = await stage.run(select(load(), numbers), slow=False, told=lambda outcome: None)
        summary = await driving
    assert summary["failed"] == sum(one.result == FAILED for one in outcomes)
    return outcomes


async def test_our_client_passes() -> None:
    """Each transcript with a server of its own, all at once: a client waits more than it works."""
    numbers = [one.name[:2] for one in load() if one.seconds < SLOW_S]
    found = await asyncio.gather(*(serve([number], 15.0, driver.Driver) for number in numbers))
    outcomes = [one for some in found for one in some]
    assert [one.result for one in outcomes] == [PASSED] * 13, table(outcomes)


def wrong(change: Change) -> Callable[..., Client]:
    """A client that changes what it says, or does not say it."""

    class WrongClient(Client):
        def _perform(self, wanted: list[actions.Action]) -> None:
            done: list[actions.Action] = []
            for action in wanted:
                if isinstance(action, actions.Send):
                    message = change(action.message)
                    if message is not None:
                        done.append(actions.Send(message))
                else:
                    done.append(action)
            super()._perform(done)

    return WrongClient


def with_(**changes: Any) -> Change:
    return lambda message: msgspec.structs.replace(message, **changes)


def init(**changes: Any) -> Change:
    def change(message: ClientMessage) -> ClientMessage:
        if message.init is None:
            return message
        return msgspec.structs.replace(message, init=Init(**msgspec.structs.asdict(message.init) | changes))

    return change


def acks(**changes: Any) -> Change:
    return lambda message: msgspec.structs.replace(message, acks=[msgspec.structs.replace(one, **changes) for one in message.acks])


def operations(**changes: Any) -> Change:
    def change(message: ClientMessage) -> ClientMessage:
        register = [msgspec.structs.replace(one, **changes) for one in message.register]
        unregister = [msgspec.structs.replace(one, **changes) for one in message.unregister]
        return msgspec.structs.replace(message, register=register, unregister=unregister)

    return change


def half_a_sync(message: ClientMessage) -> ClientMessage:
    if message.sync is None or message.sync.objects is None:
        return message
    return msgspec.structs.replace(message, sync=msgspec.structs.replace(message.sync, objects=message.sync.objects[1:]))


class KeepsThePrior:
    """States the token that it should have forgotten."""

    def __init__(self) -> None:
        self._token = ""

    def __call__(self, message: ClientMessage) -> ClientMessage | None:
        self._token = message.token or self._token
        return init(prior=self._token or None)(message)


class Careless(driver.Driver):  # type: ignore[misc, name-defined]
    """Its application is done before it is."""

    async def _notified(self, notification: Notification) -> None:
        self._idle.set()
        await super()._notified(notification)


class Forgetful(driver.Driver):  # type: ignore[misc, name-defined]
    """Tells its application everything twice."""

    async def _notified(self, notification: Notification) -> None:
        await super()._notified(notification)
        self.told.append(self.told[-1])


class Silent(driver.Driver):  # type: ignore[misc, name-defined]
    """Tells its application nothing."""

    async def _notified(self, notification: Notification) -> None:
        pass


def of(change: Change) -> Callable[[Path], Any]:
    return lambda folder: driver.Driver(folder, wrong(change))


WRONG: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "says nothing": ("01", of(lambda message: None), "init without prior"),
    "no summary": ("01", of(with_(summary=None)), "no summary"),
    "the summary of another set": ("01", of(with_(summary={"count": 7, "digest": "7" * 32})), "of no set"),
    "another device": ("01", of(init(device="other")), "'other' of 'demo'"),
    "a token with the init": ("01", of(lambda one: with_(token="x")(one) if one.init else one), "either a token or an init"),
    "a token of its own": ("01", of(lambda one: one if one.init else with_(token="x")(one)), "was never granted"),
    "one nonce for all": ("10", of(init(nonce="always")), "was used before"),
    "no prior at its return": ("05", of(init(prior=None)), "is none, and the token .* is TOKEN-1"),
    "a prior that it should have forgotten": ("11", lambda folder: of(KeepsThePrior())(folder), "`prior` is TOKEN-1, .* none"),
    "never acknowledges": ("02", of(with_(acks=[])), "acknowledge hello, version 7"),
    "acknowledges with another seqno": ("02", of(acks(seqno="1")), "what was not sent"),
    "acknowledges another version": ("02", of(acks(version="8")), "what was not sent"),
    "acknowledges an unknown as a version": ("01", of(acks(version="7")), "what was not sent"),
    "acknowledges too early": ("04", Careless, "before the application was done"),
    "one number for all operations": ("09", of(operations(op=1)), "not above"),
    "registers something else": ("01", of(operations(object="other")), "did not wish for"),
    "claims to hold a version": ("01", of(lambda one: operations(version="7")(one) if one.register else one), "holds none such"),
    "does not state what it holds": (
        "03",
        of(lambda one: operations(version=None)(one) if one.register else one),
        "register hello, version 7",
    ),
    "never unregisters": ("09", of(with_(unregister=[])), "unregister hello"),
    "a sync that lacks something": ("06", of(half_a_sync), "not state exactly"),
    "is not forgotten": ("14", of(with_(forget=False)), "forget"),
    "asks to be forgotten at once": ("01", of(lambda one: one if one.init else with_(forget=True)(one)), "did not sign out"),
    "tells its application twice": ("02", Forgetful, "told of hello"),
    "tells its application nothing": ("02", Silent, r"told of hello: \[\]"),
}


async def test_a_wrong_client_is_caught() -> None:
    """All at once: most of them make the server wait for what does not come."""
    found = await asyncio.gather(*(serve([number], 2.0, driver_of) for number, driver_of, _ in WRONG.values()))
    for (name, (_, _, why)), outcomes in zip(WRONG.items(), found, strict=True):
        assert [one.result for one in outcomes] == [FAILED], name
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(outcomes[0].why)


class TooLate(driver.Driver):  # type: ignore[misc, name-defined]
    """Wrong in one transcript: what it has to tell its application it tells when it ended."""

    scenario = ""

    async def _notified(self, notification: Notification) -> None:
        await super()._notified(notification)
        if self.scenario.startswith("02"):
            self.told.pop()

    async def obey(self, order: dict[str, Any]) -> None:
        self.scenario = order.get("name", self.scenario)
        await super().obey(order)
        if order["do"] == "end" and self.scenario.startswith("02"):
            await asyncio.sleep(0.3)
            self.told.append("notify: hello, version 7")


async def test_what_a_failed_client_still_tells_is_not_of_the_next_transcript() -> None:
    outcomes = await serve(["02", "03"], 2.0, TooLate)
    assert [one.result for one in outcomes] == [FAILED, PASSED], table(outcomes)


async def test_a_connection_that_is_dropped_while_something_is_said_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is torn down in the moment in which the first thing is sent over it: the client connects again, and all goes on."""
    torn: list[web.WebSocketResponse] = []
    beaten = Server.tick

    async with Stage("127.0.0.1", 0, 15.0) as stage:

        def tick(server: Server) -> None:
            beaten(server)
            for socket, outbox in stage._lines.values():
                if outbox and not torn:
                    torn.append(socket)
                    assert socket._req is not None
                    assert socket._req.transport is not None
                    socket._req.transport.abort()
                    assert not socket.closed, "nobody has noticed yet"

        monkeypatch.setattr(Server, "tick", tick)
        driving = asyncio.create_task(driver.drive(stage.url, driver.Driver, say=lambda line: None))
        outcomes = await stage.run(select(load(), ["02", "03"]), slow=False, told=lambda outcome: None)
        await driving
    assert torn
    assert [one.result for one in outcomes] == [PASSED] * 2, table(outcomes)


async def test_a_defect_of_the_server_is_raised_and_not_taken_for_one_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(server: Server) -> bool:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Server, "work", broken)
    async with Stage("127.0.0.1", 0, 15.0) as stage, aiohttp.ClientSession() as http:
        asking = asyncio.create_task(ask(http, stage.url))
        with pytest.raises(ZeroDivisionError, match="a defect"):
            await stage.run(select(load(), ["01"]), slow=False, told=lambda outcome: None)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_what_is_no_message_is_caught() -> None:
    async with Stage("127.0.0.1", 0, 3.0) as stage, aiohttp.ClientSession() as http:
        running = asyncio.create_task(stage.run(select(load(), ["01"]), slow=False, told=lambda outcome: None))
        for _ in range(2):  # the scenario, its start
            async with http.post(f"{stage.url}/conformance/next", json={}) as answer:
                await answer.json()
        async with http.ws_connect(f"{stage.url}/v1/channel") as socket:
            await socket.send_str('{"init": {"nonce": 7}}')
            asking = asyncio.create_task(ask(http, stage.url))
            (outcome,) = await running
        asking.cancel()
    assert "not of the documented form" in outcome.why


async def ask(http: aiohttp.ClientSession, url: str) -> None:
    for _ in range(1_000):
        async with http.post(f"{url}/conformance/next", json={}) as answer:
            await answer.json()


async def test_a_driver_that_goes_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "DRIVER_S", 0.3)
    async with Stage("127.0.0.1", 0, 3.0) as stage, aiohttp.ClientSession() as http:
        running = asyncio.create_task(stage.run(select(load(), ["01", "02"]), slow=False, told=lambda outcome: None))
        async with http.post(f"{stage.url}/conformance/next", json={}) as answer:
            assert answer.status == 200
        outcomes = await running
    assert ["the driver has asked for nothing" in one.why for one in outcomes] == [True, True]


async def test_a_driver_that_sends_something_else_is_told() -> None:
    async with Stage("127.0.0.1", 0, 3.0) as stage, aiohttp.ClientSession() as http:
        for body in (b"{", b'{"told": 7}', b"[]"):
            async with http.post(f"{stage.url}/conformance/next", data=body) as answer:
                assert answer.status == 400
