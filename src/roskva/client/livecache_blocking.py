"""`roskva.BlockingLiveCache`: a LiveCache for threads (Django, Flask), with its own client, in an event loop in a thread of its own.

Nothing runs before the first use, so that one made when a module is imported survives the fork of a web server's workers. One that was
used before a fork says so by name: threads and connections do not cross it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from roskva.client.freshness import Pauses, Standing
from roskva.client.livecache import LiveCache
from roskva.client.livecache_stores import Codec, Store
from roskva.client.shell import Client
from roskva.errors import ClientStopped, UsedAfterFork

T = TypeVar("T")
CLOSE_S: Final = 10.0


class BlockingLiveCache:
    """Holds what `fetch`, a plain function, answered, and fetches again when it changed. Any number of threads may use it.

    >>> import os
    >>> from roskva import BlockingLiveCache
    >>> def fetch(name):  # from your database
    ...     return {"title": f"This is {name}"}
    >>> with BlockingLiveCache(os.environ["ROSKVA_URL"], application="demo", fetch=fetch) as cache:
    ...     cache.get("doc:42")
    {'title': 'This is doc:42'}

    `state`, `device` and `credential` are those of `Client` (a function is called in a thread, and may block), the other arguments those
    of `LiveCache`. `fetch` is called in threads of the cache's own, at most `threads_max` at a time; one that takes longer than
    `fetch_timeout_s` failed, but keeps its thread until it returns.
    """

    def __init__(
        self,
        url: str,
        *,
        application: str,
        fetch: Callable[[str], Any],
        state: str | os.PathLike[str] | None = None,
        device: str | None = None,
        credential: str | Callable[[], str] | None = None,
        threads_max: int = 8,
        entries_max: int = 10_000,
        versioned: bool = False,
        refresh: Literal["background", "on-use"] = "background",
        out_of_sync_s: float = 10.0,
        serve_if_failed: bool = False,
        store: Store | None = None,
        codec: Codec | None = None,
        start_wait_s: float = 2.0,
        fetch_timeout_s: float = 30.0,
        refreshes_max: int = 8,
        pauses: Pauses | None = None,
    ) -> None:
        self._fetch = fetch
        self._credential = credential
        provider = self._provide_in_a_thread if callable(credential) else credential
        self._client = Client(url, application=application, state=state, device=device, credential=provider)
        self._threads = concurrent.futures.ThreadPoolExecutor(threads_max, thread_name_prefix="roskva-fetch")
        self._cache = LiveCache(
            self._client,
            self._fetch_in_a_thread,
            entries_max=entries_max,
            versioned=versioned,
            refresh=refresh,
            out_of_sync_s=out_of_sync_s,
            serve_if_failed=serve_if_failed,
            store=store,
            codec=codec,
            start_wait_s=start_wait_s,
            fetch_timeout_s=fetch_timeout_s,
            refreshes_max=refreshes_max,
            pauses=pauses,
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0  # in which it was started
        self._closed = False

    def __enter__(self) -> Self:
        self._running()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def get(self, name: str | bytes, timeout_s: float | None = None) -> Any:
        """As LiveCache.get. After `timeout_s` TimeoutError; the fetch goes on for others, and for the next one who asks."""
        return self._do(self._cache.get(name), timeout_s)

    def peek(self, name: str | bytes) -> Any:
        async def peek() -> Any:
            return self._cache.peek(name)

        return self._do(peek())

    def state(self, name: str | bytes) -> Standing:
        async def state() -> Standing:
            return self._cache.state(name)

        return self._do(state())

    def invalidate(self, name: str | bytes) -> None:
        async def invalidate() -> None:
            self._cache.invalidate(name)

        self._do(invalidate())

    def discard(self, name: str | bytes) -> None:
        self._do(self._cache.discard(name))

    @property
    def in_sync(self) -> bool:
        """As Client.in_sync."""

        async def in_sync() -> bool:
            return self._client.in_sync

        return self._do(in_sync())

    def use_credential(self, credential: str) -> None:
        """As Client.use_credential."""

        async def use() -> None:
            self._client.use_credential(credential)

        self._do(use())

    @property
    def credential_problem(self) -> str:
        """As Client.credential_problem."""
        return self._client.credential_problem

    def forget(self, timeout_s: float = 10.0) -> None:
        """Sign out, as Client.forget: nothing is left at the service, in the state file or in the store, and the cache has ended."""
        try:
            self._do(self._client.forget(timeout_s))
        finally:
            self.close()

    def close(self) -> None:
        """End: whoever waits is told ClientStopped. In a process that was forked it leaves the parent's alone."""
        with self._lock:
            closed, self._closed = self._closed, True
            loop, thread = self._loop, self._thread
        if closed or loop is None or thread is None or self._process != os.getpid():
            return

        async def end() -> None:
            await self._cache.close()
            await self._client.close()

        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(end(), loop).result(CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _do(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        try:
            loop = self._running()
            if threading.current_thread() is self._thread:
                raise RuntimeError("BlockingLiveCache was called from its own event loop, which would wait for itself for ever")
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClientStopped("The cache was closed.") from None
        except concurrent.futures.TimeoutError:
            if future.cancel() or not future.done():
                raise TimeoutError(f"no answer within {timeout_s} s") from None
            return future.result()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._process not in (0, os.getpid()):
            raise UsedAfterFork("BlockingLiveCache")
        with self._lock:
            if self._closed:
                raise ClientStopped("The cache was closed.")
            if self._loop is None:
                self._begin()
            assert self._loop is not None
            return self._loop

    def _begin(self) -> None:
        """The thread, and in it the client. What cannot start (a state file in use, say) is raised here, and may be tried again."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="roskva-livecache", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._client.start(), loop).result()
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_S)
            raise
        self._loop, self._thread, self._process = loop, thread, os.getpid()

    async def _fetch_in_a_thread(self, name: str) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, name)

    async def _provide_in_a_thread(self) -> str:
        assert callable(self._credential)
        return await asyncio.get_running_loop().run_in_executor(None, self._credential)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
