"""LiveCache and BlockingLiveCache over `roskva.Client` and real WebSockets, against a small service."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import roskva
from roskva.client.actions import Notification
from roskva.client.freshness import State
from roskva.errors import ClientStopped, FetchFailed, InvalidSetting, StateInUse, UsedAfterFork
from tests.client.gateway import CONFIG, FakeGateway, GatewayThread

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as running:
        yield running


@pytest.fixture
def service() -> Iterator[FakeGateway]:
    with GatewayThread() as running:
        yield running


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)


class TestTheClientsPart:
    async def test_a_handler_gets_its_object_and_the_loop_the_others(self, gateway: FakeGateway) -> None:
        gateway.versions.update(mine=1, other=2)
        handled: list[Notification] = []
        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            await client.register("mine", handler=handled.append)
            await client.register("other")
            async for notification in client:
                assert notification.object == "other"
                break
            await until(lambda: handled)
            assert gateway.acks == []
            client.acknowledge(handled[0])
            await until(lambda: [ack.object for ack in gateway.acks] == ["mine"])

    async def test_an_object_has_one_handler(self, gateway: FakeGateway) -> None:
        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            await client.register("doc")
            with pytest.raises(InvalidSetting):
                await client.register("doc", handler=print)
            await client.unregister("doc")
            await client.register("doc", handler=print)
            await client.register("doc", handler=print)

    async def test_a_handler_that_fails_is_told_again(self, gateway: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
        gateway.versions["doc"] = 1
        told: list[Notification] = []

        def handler(notification: Notification) -> None:
            told.append(notification)
            if len(told) == 1:
                raise ValueError("not today")

        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            await client.register("doc", handler=handler)
            await until(lambda: told)
            await gateway.redeliver()
            await until(lambda: len(told) == 2)
        assert "the handler of doc failed" in caplog.text

    async def test_what_nobody_dealt_with_is_told_to_the_next_handler(self, gateway: FakeGateway) -> None:
        gateway.versions["doc"] = 9
        told: list[Notification] = []
        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            for _ in range(2):  # the handler never acknowledges
                await client.register("doc", handler=told.append)
                await until(lambda: told)
                await client.unregister("doc")
                told.clear()
            await client.register("doc")  # and nobody loops
            await until(lambda: len(client._notifications))
            await client.unregister("doc")
            await client.register("doc", handler=told.append)
            await until(lambda: told)
            assert [one.version for one in told] == [9]
            client.acknowledge(told[0])
            await until(lambda: gateway.acks)
            assert {ack.version for ack in gateway.acks} == {"9"}

    async def test_what_a_callback_never_ends_with_is_told_to_the_next_handler(self, gateway: FakeGateway) -> None:
        gateway.versions["doc"] = gateway.versions["late"] = 9
        begun: list[Notification] = []
        end = asyncio.Event()

        async def on_notify(notification: Notification) -> None:
            begun.append(notification)
            await end.wait()

        told: list[Notification] = []
        async with roskva.Client(gateway.url, application="demo", config=CONFIG, on_notify=on_notify) as client:
            await client.register("doc")
            await until(lambda: begun)
            await client.unregister("doc")
            await client.register("doc", handler=told.append)
            await until(lambda: told)
            end.set()
            await client.register("late")
            await until(lambda: gateway.acks)
            assert {ack.object for ack in gateway.acks} == {"late"}  # the first callback ended too late
            assert [one.object for one in begun] == ["doc", "late"]

    async def test_what_is_unregistered_while_it_waits_for_a_callback_is_told_again(self, gateway: FakeGateway) -> None:
        gateway.versions.update(first=1, second=2)
        told: list[str] = []
        end = asyncio.Event()

        async def on_notify(notification: Notification) -> None:
            told.append(notification.object)
            await end.wait()

        async with roskva.Client(gateway.url, application="demo", config=CONFIG, on_notify=on_notify) as client:
            await client.register("first")
            await until(lambda: told)
            await client.register("second")
            await client.synced(10.0)
            await gateway.redeliver()
            await client.unregister("second")
            end.set()
            await until(lambda: {ack.object for ack in gateway.acks} == {"first"})
            await asyncio.sleep(0)  # the callback's turn for what is not registered any more
            await client.register("second")
            await until(lambda: told == ["first", "second"])

    async def test_a_registration_that_is_released_stays_and_what_comes_is_the_next_handlers_at_once(self, gateway: FakeGateway) -> None:
        gateway.versions["doc"] = 1
        first: list[int | None] = []
        second: list[int | None] = []
        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            await client.register("doc", handler=lambda told: first.append(told.version))
            await until(lambda: first)
            await client.release("doc")
            assert client.registrations == ["doc"]
            await client.register("doc", handler=lambda told: second.append(told.version))
            assert second == [1]
            await gateway.publish("doc", 2)
            await until(lambda: second == [1, 2])
            assert first == [1]
            await client.release("doc")
            await client.register("doc")  # for loops
            async for notification in client:
                assert notification.version == 2
                break

    async def test_told_until_is_now_while_all_is_well_and_stands_still_otherwise(self, gateway: FakeGateway) -> None:
        loop = asyncio.get_running_loop()
        gateway.versions["doc"] = 1
        told: list[Notification] = []
        client = roskva.Client(gateway.url, application="demo", config=CONFIG)
        assert client.told_until("doc") is None
        async with client:
            assert client.told_until("doc") is None
            await client.register("doc", handler=told.append)
            await until(lambda: told)
            client.acknowledge(told[0])
            await gateway.redeliver()  # says that nothing is owed
            now = loop.time()
            await until(lambda: (client.told_until("doc") or 0.0) >= now)
            gateway.silent = True  # it connects again, but hears nothing
            await gateway.disconnect_all()
            seen = {client.told_until("doc")}

            def stands_still() -> bool:
                told = client.told_until("doc")
                again = told in seen
                seen.add(told)
                return again and told is not None and told < loop.time()

            await until(stands_still)


class TestLiveCache:
    async def test_it_follows_changes_and_survives_a_lost_connection(self, gateway: FakeGateway) -> None:
        versions = {"doc": 1}
        fetches = 0

        async def fetch(name: str) -> tuple[str, int]:
            nonlocal fetches
            fetches += 1
            return f"{name}@{versions[name]}", versions[name]

        gateway.versions["doc"] = 1
        async with (
            roskva.Client(gateway.url, application="demo", config=CONFIG) as client,
            roskva.LiveCache(client, fetch, versioned=True) as cache,
        ):
            assert await cache.get("doc") == "doc@1"
            await until(lambda: gateway.acks)
            await gateway.redeliver()
            await until(lambda: cache.state("doc").state is State.FRESH)
            assert fetches == 1
            versions["doc"] = 2
            await gateway.publish("doc", 2)
            await until(lambda: cache.peek("doc") == "doc@2")
            await gateway.disconnect_all()
            versions["doc"] = 3
            await gateway.publish("doc", 3)
            await until(lambda: cache.peek("doc") == "doc@3")
            await until(lambda: [ack.version for ack in gateway.acks] == ["1", "2", "3"])

    async def test_a_file_keeps_it_over_a_restart(self, gateway: FakeGateway, tmp_path: Path) -> None:
        fetches = 0

        async def fetch(name: str) -> dict[str, str]:
            nonlocal fetches
            fetches += 1
            return {"name": name}

        for _ in range(3):
            async with (
                roskva.Client(gateway.url, application="demo", config=CONFIG, state=tmp_path / "me.state") as client,
                roskva.LiveCache(client, fetch, store=roskva.SqliteStore(tmp_path / "cache.db")) as cache,
            ):
                assert await cache.get("doc") == {"name": "doc"}
                await until(lambda: gateway.acks)
                await gateway.redeliver()
                await until(lambda: cache.state("doc").state is State.FRESH)
        assert fetches == 2, "the first, and the one for which the new registration asked"
        assert len(gateway.acks) == 1

    async def test_a_store_in_use_is_named_by_every_call(self, gateway: FakeGateway, tmp_path: Path) -> None:
        async def fetch(name: str) -> str:
            return name

        other = roskva.SqliteStore(tmp_path / "cache.db")
        other.load()
        async with roskva.Client(gateway.url, application="demo", config=CONFIG) as client:
            cache = roskva.LiveCache(client, fetch, store=roskva.SqliteStore(tmp_path / "cache.db"))
            for _ in range(2):
                with pytest.raises(StateInUse):
                    await cache.get("doc")
            await cache.close()
        other.close()


class TestBlocking:
    def test_many_threads_share_one_fetch(self, service: FakeGateway) -> None:
        fetches: list[str] = []
        go = threading.Event()

        def fetch(name: str) -> str:
            fetches.append(name)
            assert go.wait(10.0)
            return f"value of {name}"

        with roskva.BlockingLiveCache(service.url, application="demo", fetch=fetch) as cache, ThreadPoolExecutor(20) as threads:
            answers = [threads.submit(cache.get, "doc") for _ in range(20)]
            go.set()
            assert {answer.result() for answer in answers} == {"value of doc"}
            assert set(fetches) == {"doc"}
            assert len(fetches) <= 2, "one for all, and one for what the registration told"
            assert cache.peek("doc") == "value of doc"
            assert cache.state("doc").state in State
            cache.invalidate("doc")
            cache.discard("doc")
            assert cache.peek("doc") is None
            assert cache.in_sync in (True, False)

    def test_what_fetch_raises_and_how_long_one_waits(self, service: FakeGateway) -> None:
        slow = threading.Event()

        def fetch(name: str) -> str:
            if name == "slow":
                slow.wait(10.0)
                return "late"
            raise LookupError(name)

        with roskva.BlockingLiveCache(service.url, application="demo", fetch=fetch) as cache:
            with pytest.raises(FetchFailed) as raised:
                cache.get("nothing")
            assert isinstance(raised.value.__cause__, LookupError)
            with pytest.raises(TimeoutError):
                cache.get("slow", timeout_s=0.05)
            slow.set()
            assert cache.get("slow", timeout_s=10.0) == "late"

    def test_closing_wakes_whoever_waits(self, service: FakeGateway) -> None:
        begun, go = threading.Event(), threading.Event()

        def fetch(name: str) -> str:
            begun.set()
            go.wait(10.0)
            return name

        cache = roskva.BlockingLiveCache(service.url, application="demo", fetch=fetch)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(cache.get, "doc")
            assert begun.wait(10.0)
            cache.close()
            cache.close()
            with pytest.raises(ClientStopped):
                waiting.result(10.0)
            go.set()
        with pytest.raises(ClientStopped):
            cache.get("doc")
        assert not [thread for thread in threading.enumerate() if thread.name == "roskva-livecache"]

    def test_one_that_was_never_used_closes(self, service: FakeGateway) -> None:
        roskva.BlockingLiveCache(service.url, application="demo", fetch=str).close()

    def test_after_a_fork_an_unused_one_works_and_a_used_one_says_so(self, service: FakeGateway) -> None:
        used = roskva.BlockingLiveCache(service.url, application="demo", fetch=str)
        unused = roskva.BlockingLiveCache(service.url, application="demo", fetch=str)
        assert used.get("doc") == "doc"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    used.get("doc")
                except UsedAfterFork:
                    used.close()
                    status = 0 if unused.get("doc", timeout_s=10.0) == "doc" else 2
                    unused.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert used.get("doc") == "doc"
        used.close()
        unused.close()

    def test_what_hinders_the_start_is_raised_and_may_pass(self, service: FakeGateway, tmp_path: Path) -> None:
        first = roskva.BlockingLiveCache(service.url, application="demo", fetch=str, state=tmp_path / "me.state")
        second = roskva.BlockingLiveCache(service.url, application="demo", fetch=str, state=tmp_path / "me.state")
        assert first.get("doc") == "doc"
        with pytest.raises(StateInUse):
            second.get("doc")
        first.close()
        assert second.get("doc") == "doc"
        second.close()


def test_the_programs_of_the_documentation_run(
    service: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "livecache.md").read_text()
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for program in programs:
        exec(compile(program.replace("http://127.0.0.1:8470", service.url), "docs/livecache.md", "exec"), {"__name__": "program"})
    assert capsys.readouterr().out.splitlines() == [
        *("first draft", "first draft", "second draft"),
        "the row of row:7",
        "{'name': 'doc:42'}",
    ]
