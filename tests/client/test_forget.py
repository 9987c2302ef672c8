"""Signing out: the client unregisters everything, has its id deleted, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import roskva
from roskva.client.actions import CloseChannel, ReissueRegistrations, Stopped, WriteState
from roskva.client.core import FORGET_SETTLES_S
from roskva.client.state import decode_state
from roskva.errors import ClientStopped, ServiceUnreachable
from tests.client.gateway import CONFIG, FakeGateway
from tests.client.scripted import Bench
from tests.protocol.replay import Replay


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as running:
        yield running


class TestCore:
    def test_first_the_registrations_go_and_then_the_id(self) -> None:
        bench = Bench().live()
        bench.registered(b"a", b"b")
        bench.do(bench.core.forget(bench.now))
        (said,) = bench.take_said()
        assert said.sync is not None
        assert said.sync.objects == []
        assert not said.forget
        bench.has.clear()
        bench.unsettled = 2  # the Matcher has its copies yet
        bench.say()
        assert not any(message.forget for message in bench.take_said())
        bench.unsettled = 0
        bench.say()
        (said,) = bench.take_said()
        assert said.forget
        bench.actions.clear()
        bench.anew()
        written, closed, stopped = bench.actions
        assert isinstance(written, WriteState)
        assert decode_state(written.state).token == ""
        assert isinstance(closed, CloseChannel)
        assert isinstance(stopped, Stopped)
        assert isinstance(bench.core.stopped, ClientStopped)

    def test_a_matcher_that_does_not_settle_delays_it_and_no_more(self) -> None:
        bench = Bench().live()
        bench.registered(b"a")
        bench.do(bench.core.forget(bench.now))
        bench.has.clear()
        bench.unsettled = 1
        bench.say()
        bench.pass_time(FORGET_SETTLES_S - 0.1)
        assert not any(message.forget for message in bench.take_said())
        bench.pass_time(0.2)
        assert [message.forget for message in bench.take_said()] == [True]

    def test_it_is_asked_for_until_it_is_answered(self) -> None:
        bench = Bench().live()
        bench.do(bench.core.forget(bench.now))
        bench.pass_time(200.0)
        asked = [message for message in bench.take_said() if message.forget]
        assert 4 <= len(asked) <= 12, "with pauses that grow"
        bench.do(bench.core.disconnected(bench.now))
        bench.do(bench.core.connected(bench.now))
        assert bench.take_said()[-1].forget, "and at once over a new connection"

    def test_an_operation_under_way_does_not_bring_anything_back(self) -> None:
        bench = Bench().live()
        bench.register(b"a")
        bench.do(bench.core.forget(bench.now))
        bench.has.add(b"a")
        bench.say()
        sync = bench.take_said()[-1].sync
        assert sync is not None
        assert sync.objects == []
        bench.register(b"b")
        assert len(bench.core.desired) == 0, "who signs out registers no more"

    def test_a_client_of_an_earlier_run_handshakes_first(self) -> None:
        earlier = Bench().live()
        state = earlier.core._state()
        bench = Bench(state=state)
        bench.do(bench.core.start(bench.now))
        bench.do(bench.core.forget(bench.now))
        assert bench.core.stopped is None
        bench.do(bench.core.connected(bench.now))
        bench.grant("token-2")
        assert bench.take_said()[-1].forget

    def test_one_that_the_service_never_knew_is_done_at_once(self) -> None:
        bench = Bench()
        bench.do(bench.core.start(bench.now))
        bench.do(bench.core.forget(bench.now))
        assert bench.core.stopped is not None
        assert bench.do(bench.core.forget(bench.now)) == []

    def test_superseded_in_between_it_handshakes_and_goes_on(self) -> None:
        bench = Bench().live()
        bench.do(bench.core.forget(bench.now))
        bench.take_said()
        bench.anew(code="token-elsewhere", keep=True)
        bench.grant("token-2")
        assert bench.take_said()[-1].forget
        assert not any(isinstance(action, ReissueRegistrations) for action in bench.actions)

    def test_with_the_real_registrar_and_matcher(self) -> None:
        replay = Replay()
        for directive in ("the application starts", "register hello", "register world", "the application signs out"):
            replay.said.clear()
            replay.obey(directive)
        assert '"forget": true' in replay.said[2]
        assert replay.said[-3:] == ["A: write_state: no token", "A: close the connection", "A: stopped: client-stopped"]
        assert replay.server.sessions == {}
        left = {name: cell.value for cells in replay.server.table.values() for name, cell in cells.items()}
        assert left == {b"reg:client-1": b"uphone"}, "the Matcher knows that it is unregistered, and nobody else knows anything"


class TestShell:
    async def test_nothing_is_left_at_the_service_nor_here(self, gateway: FakeGateway, tmp_path: Path) -> None:
        state = tmp_path / "me.state"
        async with roskva.Client(gateway.url, application="demo", config=CONFIG, state=state) as client:
            await client.register("a")
            await client.register("b")
            await client.synced(5)
            assert state.exists()
            await client.forget()
            assert gateway.clients == []
            assert not state.exists()
            with pytest.raises(ClientStopped):
                await client.register("c")
        async with roskva.Client(gateway.url, application="demo", config=CONFIG, state=state) as client:
            await client.synced(5)
            assert len(gateway.clients) == 1
            assert gateway.clients[0].registered == {}

    async def test_without_the_service_the_state_goes_and_the_error_says_so(self, gateway: FakeGateway, tmp_path: Path) -> None:
        state = tmp_path / "me.state"
        async with roskva.Client(gateway.url, application="demo", config=CONFIG, state=state) as client:
            await client.synced(5)
            gateway.silent = True
            with pytest.raises(TimeoutError):
                await client.forget(timeout=0.2)
            assert not state.exists()
        async with roskva.Client("http://127.0.0.1:1", application="demo", state=state) as client:
            await asyncio.sleep(0.05)
            await client.forget()  # never granted anything: there is nothing to delete
        assert not state.exists()

    async def test_no_connection_is_named(self, gateway: FakeGateway, tmp_path: Path) -> None:
        state = tmp_path / "me.state"
        async with roskva.Client(gateway.url, application="demo", config=CONFIG, state=state) as client:
            await client.synced(5)
        async with roskva.Client("http://127.0.0.1:1", application="demo", state=state) as client:
            with pytest.raises(ServiceUnreachable):
                await client.forget(timeout=0.2)
        assert not state.exists()
