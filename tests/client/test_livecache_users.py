"""A LiveCache whose user signs out, or may not have what it holds: nothing is left, in memory or in the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import roskva
from roskva.client.freshness import State
from roskva.client.livecache import FORBIDDEN_S, LiveCache
from roskva.client.livecache_stores import MemoryStore
from roskva.errors import ClientStopped, NotAuthorized, RoskvaError
from tests.client.gateway import CONFIG, FakeGateway, GatewayThread
from tests.client.small_service import CoreClient, SmallService, on_virtual_time

pytestmark = pytest.mark.timeout(30)


class Stage:
    """A service, a client, and a cache over a store that outlives it."""

    def __init__(self) -> None:
        self.service = SmallService()
        self.service.publish("doc", 1)
        self.client = CoreClient(self.service).start()
        self.store = MemoryStore(durable=True)
        self.fetches = 0
        self.takes_s = 0.1
        self.cache = LiveCache(self.client, self._fetch, versioned=True, store=self.store)

    async def _fetch(self, name: str) -> tuple[str, int]:
        self.fetches += 1
        await asyncio.sleep(self.takes_s)
        return f"{name} of the user", 1

    async def end(self) -> None:
        await self.cache.close()
        self.client.stop()
        await asyncio.sleep(1.0)


class TestNotAuthorized:
    def test_what_is_revoked_is_held_no_longer_and_get_says_why(self) -> None:
        async def main() -> None:
            stage = Stage()
            assert await stage.cache.get("doc") == "doc of the user"
            await stage.cache.get("other")
            await asyncio.sleep(3.0)
            assert stage.cache.state("doc").state is State.FRESH
            assert set(stage.store.entries) == {b"doc", b"other"}
            stage.service.revoke("doc")
            await asyncio.sleep(0.5)
            assert stage.cache.state("doc").state is State.UNKNOWN
            assert stage.cache.peek("doc") is None
            assert set(stage.store.entries) == {b"other"}
            fetches, operations = stage.fetches, stage.service.operations
            for _ in range(10):
                with pytest.raises(NotAuthorized):
                    await stage.cache.get("doc")
            await asyncio.sleep(10.0)
            assert (stage.fetches, stage.service.operations) == (fetches, operations), "nobody asks again meanwhile"
            assert stage.cache.state("other").state is State.FRESH
            await stage.end()

        on_virtual_time(main())

    def test_a_registration_that_is_refused_from_the_start(self) -> None:
        async def main() -> None:
            stage = Stage()
            stage.service.refuses.add("doc")
            stage.service.why_refused = "not-authorized"
            with contextlib.suppress(NotAuthorized):  # whoever asks first may be quicker than the refusal
                await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            assert stage.store.entries == {}
            with pytest.raises(NotAuthorized):
                await stage.cache.get("doc")
            await asyncio.sleep(FORBIDDEN_S)
            stage.service.refuses.clear()
            assert await stage.cache.get("doc") == "doc of the user", "after a while it is tried again"
            await asyncio.sleep(1.0)
            assert stage.cache.state("doc").state is State.FRESH
            assert set(stage.store.entries) == {b"doc"}
            await stage.end()

        on_virtual_time(main())

    def test_whoever_waits_for_a_fetch_as_it_is_revoked_gets_nothing(self) -> None:
        async def main() -> None:
            stage = Stage()
            await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            stage.takes_s = 2.0
            stage.cache.invalidate("doc")
            waiting = asyncio.gather(*(stage.cache.get("doc") for _ in range(3)), return_exceptions=True)
            await asyncio.sleep(0.5)
            stage.service.revoke("doc")
            assert [type(answer) for answer in await waiting] == [NotAuthorized] * 3
            await asyncio.sleep(1.0)
            assert stage.store.entries == {}
            await stage.end()

        on_virtual_time(main())

    def test_whoever_discards_it_may_ask_again(self) -> None:
        async def main() -> None:
            stage = Stage()
            await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            stage.service.revoke("doc")
            await asyncio.sleep(0.5)
            stage.service.refuses.clear()
            await stage.cache.discard("doc")
            assert await stage.cache.get("doc") == "doc of the user"
            await stage.end()

        on_virtual_time(main())

    def test_what_is_refused_for_another_reason_is_cached_by_time_and_not_stored(self) -> None:
        async def main() -> None:
            stage = Stage()
            stage.service.refuses.add("doc")
            await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            assert await stage.cache.get("doc") == "doc of the user"
            assert stage.fetches == 1
            assert stage.store.entries == {}
            assert stage.cache.state("doc").state is State.UNKNOWN
            await stage.end()

        on_virtual_time(main())


class TestSigningOut:
    def test_the_store_is_empty_and_the_cache_has_ended(self) -> None:
        async def main() -> None:
            stage = Stage()
            await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            stage.takes_s = 5.0
            waiting = asyncio.ensure_future(stage.cache.get("another"))
            await asyncio.sleep(0.1)
            (forget,) = stage.client.forget_too
            await forget()
            assert stage.store.entries == {}
            with pytest.raises(ClientStopped):
                await waiting
            with pytest.raises(ClientStopped):
                await stage.cache.get("doc")
            await asyncio.sleep(10.0)
            assert stage.store.entries == {}, "what was being fetched is not stored either"
            await stage.end()

        on_virtual_time(main())

    def test_also_of_a_cache_that_was_closed_or_never_used(self) -> None:
        async def main() -> None:
            stage = Stage()
            await stage.cache.get("doc")
            await asyncio.sleep(1.0)
            await stage.cache.close()
            assert set(stage.store.entries) == {b"doc"}
            await stage.client.forget_too[0]()
            assert stage.store.entries == {}
            await stage.end()

        on_virtual_time(main())

    def test_a_cache_without_a_store_is_not_remembered_by_its_client(self) -> None:
        async def main() -> None:
            stage = Stage()
            cache = LiveCache(stage.client, stage._fetch)
            assert len(stage.client.forget_too) == 2
            await cache.close()
            assert len(stage.client.forget_too) == 1
            await stage.end()

        on_virtual_time(main())


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


async def fetch(name: str) -> str:
    return f"the secret of {name}"


class TestWithTheClient:
    async def test_nothing_is_left_in_the_file(self, gateway: FakeGateway, tmp_path: Path) -> None:
        path = tmp_path / "cache.db"
        async with (
            roskva.Client(gateway.url, application="demo", config=CONFIG, state=tmp_path / "me.state") as client,
            roskva.LiveCache(client, fetch, store=roskva.SqliteStore(path)) as cache,
        ):
            for number in range(50):
                await cache.get(f"doc-{number}")
            assert b"the secret of doc-7" in path.read_bytes()
            await client.forget()
            assert b"the secret" not in path.read_bytes(), "not even in pages that are free"
            with pytest.raises(ClientStopped):
                await cache.get("doc-7")
        assert roskva.SqliteStore(path).load() == []

    async def test_also_without_the_service(self, gateway: FakeGateway, tmp_path: Path) -> None:
        store = MemoryStore(durable=True)
        async with (
            roskva.Client(gateway.url, application="demo", config=CONFIG) as client,
            roskva.LiveCache(client, fetch, store=store) as cache,
        ):
            await client.synced(5)  # else there is nothing to delete there
            await cache.get("doc")
            assert store.entries
            gateway.silent = True
            with pytest.raises(TimeoutError):
                await client.forget(timeout=0.2)
            assert store.entries == {}

    async def test_a_store_that_cannot_be_emptied_is_said(self, gateway: FakeGateway, tmp_path: Path) -> None:
        class Broken(MemoryStore):
            def write(self, kept: object, gone: object) -> None:
                raise OSError("the disk is gone")

        state = tmp_path / "me.state"
        async with (
            roskva.Client(gateway.url, application="demo", config=CONFIG, state=state) as client,
            roskva.LiveCache(client, fetch, store=Broken()),
        ):
            await client.synced(5)
            with pytest.raises(OSError, match="disk"):
                await client.forget()
            assert not state.exists(), "the rest is done all the same"

    async def test_a_revoked_object(self, gateway: FakeGateway) -> None:
        store = MemoryStore(durable=True)
        async with (
            roskva.Client(gateway.url, application="demo", config=CONFIG) as client,
            roskva.LiveCache(client, fetch, store=store) as cache,
        ):
            await cache.get("doc")
            await until(lambda: cache.state("doc").state is State.FRESH)
            await gateway.revoke(gateway.clients[0], "doc")
            await until(lambda: not store.entries)
            with pytest.raises(NotAuthorized):
                await cache.get("doc")

    def test_threads_sign_out_too(self, service: FakeGateway, tmp_path: Path) -> None:
        service.users = {"good": 0.0}
        path, state = tmp_path / "cache.db", tmp_path / "me.state"
        threads: list[str] = []

        def provide() -> str:
            import threading

            threads.append(threading.current_thread().name)
            return "good"

        def plain(name: str) -> str:
            return f"the secret of {name}"

        cache = roskva.BlockingLiveCache(
            service.url, application="demo", fetch=plain, state=state, store=roskva.SqliteStore(path), credential=provide
        )
        assert cache.get("doc") == "the secret of doc"
        assert b"the secret" in path.read_bytes()
        cache.use_credential("good")
        assert cache.credential_problem == ""
        cache.forget()
        assert b"the secret" not in path.read_bytes()
        assert not state.exists()
        assert service.clients == []
        assert threads
        assert "roskva-livecache" not in threads, "a provider may block"
        with pytest.raises(RoskvaError):
            cache.get("doc")
