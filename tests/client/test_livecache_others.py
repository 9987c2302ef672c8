"""A LiveCache beside others who register the same objects with the same client: the application, another cache, one that was before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from roskva.client.actions import Notification
from roskva.client.freshness import State
from roskva.client.livecache import LiveCache
from roskva.client.livecache_stores import MemoryStore
from tests.client.small_service import CoreClient, SmallService, on_virtual_time


class Stage:
    def __init__(self) -> None:
        self.service = SmallService()
        self.service.publish("doc", 1)
        self.client = CoreClient(self.service).start()
        self.version = 1
        self.takes_s = 0.0

    def cache(self, store: MemoryStore | None = None) -> LiveCache:
        return LiveCache(self.client, self._fetch, store=store)

    async def _fetch(self, name: str) -> str:
        value = f"v{self.version}"
        await asyncio.sleep(self.takes_s)
        return value

    def write(self) -> None:
        self.version += 1
        self.service.publish("doc", self.version)

    async def end(self) -> None:
        self.client.stop()
        await asyncio.sleep(1.0)  # what was on its way


def heard(notification: Notification) -> None:
    """The application's own handler, which acknowledges nothing."""


@pytest.mark.parametrize("handler", [None, heard])
def test_what_the_application_registered_is_cached_by_time_and_stays_its_own(
    handler: Callable[[Notification], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.client.register(b"doc", handler=handler)
        await asyncio.sleep(15.0)
        assert stage.client.told_until(b"doc") is not None
        cache = stage.cache()
        assert await cache.get("doc") == "v1"
        await asyncio.sleep(2.0)
        assert cache.state("doc").state is State.UNKNOWN
        for latest in ("v2", "v3"):
            stage.write()
            await asyncio.sleep(11.0)
            assert await cache.get("doc") == latest
        assert caplog.text.count("cached without being registered") == 1, "once is enough"
        await cache.discard("doc")
        await cache.get("doc")
        await cache.close()
        assert list(stage.client.core.desired) == [b"doc"]
        await stage.end()

    on_virtual_time(main())


def test_of_two_caches_the_second_one_is_by_time_until_the_first_one_is_closed() -> None:
    async def main() -> None:
        stage = Stage()
        first, second = stage.cache(), stage.cache()
        for cache in (first, second):
            await cache.get("doc")
            await asyncio.sleep(5.0)
        stage.write()
        await asyncio.sleep(11.0)
        assert [await cache.get("doc") for cache in (first, second)] == ["v2", "v2"]
        assert [cache.state("doc").state for cache in (first, second)] == [State.FRESH, State.UNKNOWN]
        await first.close()
        await asyncio.sleep(11.0)
        await second.get("doc")
        await asyncio.sleep(5.0)
        assert second.state("doc").state is State.FRESH
        await second.close()
        await stage.end()

    on_virtual_time(main())


def test_a_durable_cache_that_is_closed_leaves_its_registrations_to_the_next_of_the_same_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        stage = Stage()
        store = MemoryStore(durable=True)
        first = stage.cache(store)
        await first.get("doc")
        await asyncio.sleep(5.0)
        assert first.state("doc").state is State.FRESH
        stage.takes_s = 5.0
        stage.write()
        await asyncio.sleep(1.0)  # told, and not yet fetched
        await first.close()
        assert list(stage.client.core.desired) == [b"doc"]
        stage.takes_s = 0.0
        second = stage.cache(store)
        await second.start()
        assert not (second.peek("doc") == "v1" and second.state("doc").state is State.FRESH)
        assert await second.get("doc") == "v2"
        stage.write()
        await asyncio.sleep(5.0)
        assert (second.peek("doc"), second.state("doc").state) == ("v3", State.FRESH)
        assert stage.service.waiting == {}
        assert caplog.text == ""
        await second.close()
        await stage.end()

    on_virtual_time(main())
