"""`roskva.LiveCache`: values of the application, fetched once, and again when the service tells of a change (Thialfi 3.1; asyncio).

The shell around `freshness.Entry`, which decides what is fresh, what is fetched and what may be acknowledged. Here: who waits for which
fetch, which entries stay, the store, and the background.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from roskva.client.actions import Notification
from roskva.client.freshness import Attempt, Choice, Entry, Pauses, Standing, State
from roskva.client.livecache_stores import Codec, JsonCodec, Kept, Store
from roskva.client.livecache_writer import Writer
from roskva.errors import ClientStopped, FetchFailed, InvalidSetting, NotAuthorized, RoskvaError
from roskva.model import name_given, name_to_text, version_from_number

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
FORBIDDEN_S: Final = 60.0  # after a refusal `get` says so for so long, before it tries again


class Registrations(Protocol):
    """What a LiveCache asks of its client. `roskva.Client` has it."""

    async def register(
        self,
        name: str | bytes,
        version: int | None = None,
        epoch: int = 0,
        handler: Callable[[Notification], None] | None = None,
        refused: Callable[[bytes, str, str], None] | None = None,
    ) -> None: ...

    async def unregister(self, name: str | bytes, forget: bool = False) -> None: ...

    async def release(self, name: str | bytes) -> None: ...

    def acknowledge(self, notification: Notification) -> None: ...

    def told_until(self, name: str | bytes) -> float | None: ...

    def when_forgotten(self, forget: Callable[[], Awaitable[None]]) -> Callable[[], None]: ...


@dataclass(slots=True, eq=False)
class _Flight:
    """A fetch under way. It belongs to the cache: who waits for it may give up, and it goes on."""

    attempt: Attempt
    task: asyncio.Task[Any]


@dataclass(slots=True, eq=False)
class _Slot:
    name: bytes
    entry: Entry
    encoded: bytes = b""  # the entry's value, until the store has it
    registered: bool = False  # by this cache
    warned: bool = False  # that it is not
    flight: _Flight | None = None
    refresh: asyncio.Task[None] | None = None
    gone: bool = False  # evicted


class LiveCache:
    """Holds what `fetch` answered, and fetches again when it changed.

    >>> import asyncio, os
    >>> from roskva import Client, LiveCache
    >>> async def fetch(name):  # from your database
    ...     return {"title": f"This is {name}"}
    >>> async def main():
    ...     async with Client(os.environ["ROSKVA_URL"], application="demo") as client, LiveCache(client, fetch) as cache:
    ...         await cache.get("doc:42")
    ...         return await cache.get("doc:42")  # from memory
    >>> asyncio.run(main())
    {'title': 'This is doc:42'}

    entries_max      at most so many objects; the least recently used one goes, and is unregistered. Who waits for its fetch gets the value
    versioned        `fetch` answers (value, version): the version that the backend publishes. Saves fetches, and finds replicas that lag
    refresh          after a notification: fetch in the "background" at once, or at the next use ("on-use")
    out_of_sync_s    while the service says nothing, a value is good for so long after it was last known to be current; then `get`
                     fetches. 0: fetch always; math.inf: never
    serve_if_failed  what `get` does when the value is outdated and the fetch fails: answer the old value, or (False) raise FetchFailed
    store, codec     where values are kept over a restart of the application, and how they become bytes (see livecache_stores.py)
    start_wait_s     with values from a store: how long the first `get` waits for the service to say that they are current
    fetch_timeout_s  a fetch that takes longer failed
    refreshes_max    fetches in the background at a time
    pauses           between fetches that fail
    """

    def __init__(
        self,
        client: Registrations,
        fetch: Callable[[str], Awaitable[Any]],
        *,
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
        if entries_max < 1 or refreshes_max < 1:
            raise InvalidSetting("A LiveCache needs room for at least one entry, and for one fetch in the background.")
        if refresh not in ("background", "on-use"):
            raise InvalidSetting(f"refresh is 'background' or 'on-use', not {refresh!r}.")
        self._client = client
        self._fetch = fetch
        self._entries_max = entries_max
        self._versioned = versioned
        self._in_background = refresh == "background"
        self._out_of_sync_s = out_of_sync_s
        self._serve_if_failed = serve_if_failed
        self._durable = store is not None and store.durable
        self._writer = None if store is None else Writer(store)
        self._codec = codec or JsonCodec()
        self._start_wait_s = start_wait_s
        self._fetch_timeout_s = fetch_timeout_s
        self._pauses = pauses or Pauses()
        self._background = asyncio.Semaphore(refreshes_max)
        self._slots: OrderedDict[bytes, _Slot] = OrderedDict()  # the least recently used first
        self._flights: set[asyncio.Task[Any]] = set()
        self._forbidden: OrderedDict[bytes, float] = OrderedDict()  # until when; what was refused longest ago first
        self._outlive_forgetting = client.when_forgotten(self.forget)
        self._epoch = 0  # of the last notification: in which the versions of what is fetched from now on are counted
        self._start: asyncio.Task[None] | None = None
        self._ready = store is None  # nothing to take up
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        """Take up what the store has, and wait a moment for the service to confirm it. The first `get` does this, too."""
        self._check_open()
        if not self._ready and self._start is None:
            self._start = asyncio.create_task(self._take_up(), name="roskva-livecache-start")
        if self._start is not None:
            try:
                await asyncio.shield(self._start)  # if it failed, it says so to everybody
            except asyncio.CancelledError:
                self._check_open()
                raise

    async def close(self) -> None:
        """End. With a durable store the registrations stay at the service for the next run, else they go."""
        if self._closed:
            return
        self._closed = True
        tasks = [*self._flights, *(slot.refresh for slot in self._slots.values() if slot.refresh is not None)]
        if self._start is not None:
            tasks.append(self._start)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots.values():
            await self._leave(slot, keep=self._durable)
        self._slots.clear()
        if self._writer is not None:
            await self._writer.close()
        else:
            self._outlive_forgetting()

    async def forget(self) -> None:
        """The user signed out (`Client.forget` calls this): the cache has ended, and its store is empty, whoever filled it."""
        for slot in self._slots.values():
            slot.registered = False  # the client has none any more
        await self.close()
        if self._writer is not None:
            await self._writer.clear()

    async def get(self, name: str | bytes) -> Any:
        """The value. From memory if it is fresh; else it is fetched, once for all who ask.

        Raises FetchFailed if the value is outdated, or not there, and the fetch fails (unless `serve_if_failed`), and NotAuthorized if the
        service refused the registration because the client's user may not have it.
        """
        key = name_given(name)
        self._check_open()
        if not self._ready:
            await self.start()
        self._check_allowed(key)
        slot = self._slots.get(key)
        if slot is None:
            slot = await self._add(key)
        else:
            self._slots.move_to_end(key)
        choice = slot.entry.choose(self._now(), self._told_until(slot), self._out_of_sync_s)
        if choice is Choice.FETCH:
            return await self._fetched(slot)
        if choice is Choice.FAIL and not self._serve_if_failed:
            raise FetchFailed(name_to_text(key), slot.entry.trouble, max(0.0, slot.entry.retry_at - self._now()))
        return slot.entry.value

    def peek(self, name: str | bytes) -> Any:
        """The value that is held, whatever its state. None: nothing is held."""
        slot = self._slots.get(name_given(name))
        return None if slot is None else slot.entry.value

    def state(self, name: str | bytes) -> Standing:
        """`fresh`, `stale` or `unknown`, and for how long."""
        slot = self._slots.get(name_given(name))
        return Standing(State.UNKNOWN, 0.0) if slot is None else slot.entry.standing(self._now(), self._told_until(slot))

    def invalidate(self, name: str | bytes) -> None:
        """The application knows that the value is outdated, because it just wrote another: as after a notification."""
        slot = self._slots.get(name_given(name))
        if slot is not None:
            slot.entry.outdated(self._now())
            self._refresh_soon(slot)

    async def discard(self, name: str | bytes) -> None:
        """Hold it no longer, and be told of it no longer. If it was refused, the next `get` tries again."""
        self._forbidden.pop(name_given(name), None)
        slot = self._slots.get(name_given(name))
        if slot is not None:
            await self._evict(slot)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: str | bytes) -> bool:
        return name_given(name) in self._slots

    # Entries.

    async def _take_up(self) -> None:
        assert self._writer is not None
        held = await self._writer.load()
        spare = [one.name for one in held[: -self._entries_max]]
        for one in held[-self._entries_max :]:
            try:
                value = self._codec.decode(one.value)
            except ValueError as error:
                log.warning("what the store has of %s is of no use: %s", name_to_text(one.name), error)
                spare.append(one.name)
                continue
            entry = Entry(self._now(), self._pauses)
            entry.restored(value, one.version, one.epoch)
            self._slots[one.name] = _Slot(one.name, entry)
            self._epoch = max(self._epoch, one.epoch)
        for name in spare:
            self._writer.forget(name)
        for slot in list(self._slots.values()):
            if not slot.gone:
                await self._register(slot)
        for _ in range(int(self._start_wait_s / _LOOK_S)):
            if all(self._current(slot) for slot in self._slots.values()):
                break
            await asyncio.sleep(_LOOK_S)
        self._ready = True

    def _current(self, slot: _Slot) -> bool:
        now = self._now()
        return (self._told_until(slot) or float("-inf")) >= now

    def _told_until(self, slot: _Slot) -> float | None:
        """Of a registration of somebody else, whatever is told is told to somebody else."""
        return self._client.told_until(slot.name) if slot.registered else None

    async def _add(self, key: bytes) -> _Slot:
        slot = self._slots[key] = _Slot(key, Entry(self._now(), self._pauses))
        while len(self._slots) > self._entries_max:
            await self._evict(next(iter(self._slots.values())))
        return slot

    async def _evict(self, slot: _Slot) -> None:
        slot.gone = True
        del self._slots[slot.name]
        if slot.refresh is not None:
            slot.refresh.cancel()
        await self._leave(slot, keep=False)
        if self._writer is not None:
            self._writer.forget(slot.name)

    async def _register(self, slot: _Slot) -> None:
        """State the registration, with the version held if that outlives a restart: to state one is to acknowledge it."""
        entry = slot.entry
        version = entry.version if self._durable and entry.kept else None
        if version is None and self._told_until(slot) is not None:
            return
        try:
            await self._client.register(slot.name, version, entry.epoch if version is not None else 0, self._noticed, self._refused)
            slot.registered = True
        except RoskvaError as error:  # the client has ended, or it is registered for somebody else
            slot.registered = False
            if not slot.warned:
                log.warning("%s is cached without being registered: %s", name_to_text(slot.name), error.what)
            slot.warned = True

    def _refused(self, name: bytes, code: str, message: str) -> None:
        """The service will not tell of it, and so the store must not bring it back as fresh. What the user may not have is held no longer;
        what was refused for another reason is cached by time, and registered again when it is fetched again."""
        slot = self._slots.get(name)
        if slot is None or self._closed:
            return
        slot.registered = slot.entry.kept = False
        if self._writer is not None:
            self._writer.forget(name)
        if code == NotAuthorized.code:
            slot.gone = True
            del self._slots[name]
            if slot.refresh is not None:
                slot.refresh.cancel()
            self._forbidden.pop(name, None)
            self._forbidden[name] = self._now() + FORBIDDEN_S
            if len(self._forbidden) > self._entries_max:
                self._forbidden.popitem(last=False)
        if not slot.warned:
            log.warning("%s is not registered: %s %s", name_to_text(name), code, message)
        slot.warned = True

    def _check_allowed(self, name: bytes) -> None:
        until = self._forbidden.get(name)
        if until is not None:
            if self._now() < until:
                raise NotAuthorized
            del self._forbidden[name]

    async def _leave(self, slot: _Slot, keep: bool) -> None:
        """Be told of it no more. `keep`: the registration is for the next run, or for the next cache of this client."""
        if not slot.registered:
            return
        try:
            if keep:
                await self._client.release(slot.name)
            else:
                await self._client.unregister(slot.name, forget=True)
        except RoskvaError as error:  # the client ended before the cache: its registrations are its own business
            log.debug("%s is not unregistered: %s", name_to_text(slot.name), error.what)

    def _noticed(self, notification: Notification) -> None:
        self._epoch = notification.epoch
        slot = self._slots.get(notification.name)
        if slot is None or self._closed:
            return
        for done in slot.entry.noticed(self._now(), notification):
            self._client.acknowledge(done)
        if self._in_background and slot.entry.due:
            self._refresh_soon(slot)

    # Fetches.

    async def _fetched(self, slot: _Slot) -> Any:
        """Wait for a fetch that answers this caller: one that meets all that is owed, or else began after the caller came."""
        under_way = slot.flight
        if under_way is not None and not slot.entry.suffices(under_way.attempt):
            await asyncio.wait([under_way.task])
            self._check_open()
            slot = self._slots.get(slot.name, slot)
        flight = slot.flight or self._take_off(slot)
        try:
            answer = await asyncio.shield(flight.task)
        except FetchFailed as error:
            if not (self._serve_if_failed and slot.entry.present):
                raise FetchFailed(name_to_text(slot.name), error.reason, error.retry_in_s) from error.__cause__
            return slot.entry.value
        except asyncio.CancelledError:
            if self._closed and flight.task.cancelled():
                raise ClientStopped("The cache was closed.") from None
            raise
        self._check_allowed(slot.name)
        # What others fetched meanwhile may be later, and may be acknowledged: never answer an older one.
        latest = self._slots.get(slot.name, slot)
        return latest.entry.value if latest.entry.present else answer

    def _take_off(self, slot: _Slot) -> _Flight:
        attempt = slot.entry.begin(self._now(), self._epoch)
        task = asyncio.create_task(self._fly(slot, attempt), name="roskva-livecache-fetch")
        slot.flight = _Flight(attempt, task)
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)
        task.add_done_callback(_seen)
        return slot.flight

    async def _fly(self, slot: _Slot, attempt: Attempt) -> Any:
        try:
            value, version = await self._call(slot.name)
            encoded = b"" if self._writer is None else self._codec.encode(value)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            slot.entry.failed(self._now(), trouble, random.random())
            slot.flight = None
            if slot.entry.present:
                log.warning("%s could not be fetched again: %s", name_to_text(slot.name), trouble)
            elif not slot.gone:
                del self._slots[slot.name]  # nothing is held of what was never fetched
                slot.gone = True
            raise FetchFailed(name_to_text(slot.name), trouble, max(0.0, slot.entry.retry_at - self._now())) from error
        try:
            if slot.entry.adopt(self._now(), attempt, value, version, random.random()):
                slot.encoded = encoded
            if not slot.gone:
                await self._keep(slot)
        finally:
            slot.flight = None
        if slot.entry.due and not slot.gone and (self._in_background or not slot.entry.kept):
            self._refresh_soon(slot)
        return value

    async def _call(self, name: bytes) -> tuple[Any, int | None]:
        async with asyncio.timeout(self._fetch_timeout_s):
            answer: Any = self._fetch(name_to_text(name))
            if inspect.isawaitable(answer):
                answer = await answer
        if not self._versioned:
            return answer, None
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError("fetch must answer (value, version), since the cache is versioned")
        return answer[0], version_from_number(answer[1])

    async def _keep(self, slot: _Slot) -> None:
        """Bring the entry's value into the store; only then is anything acknowledged, or its version stated."""
        entry, kept = slot.entry, True
        if not entry.kept and self._writer is not None:
            try:
                await self._writer.keep(Kept(slot.name, slot.encoded, entry.version, entry.epoch))
            except Exception as error:
                log.warning("%s could not be stored, and is not acknowledged: %s", name_to_text(slot.name), error)
                entry.failed(self._now(), f"its value could not be stored: {error}", random.random())
                kept = False
        if slot.gone:
            return
        if kept:
            slot.encoded = b""
            for done in entry.stored():
                self._client.acknowledge(done)
        await self._register(slot)

    def _refresh_soon(self, slot: _Slot) -> None:
        if (slot.refresh is None or slot.refresh.done()) and not self._closed:
            slot.refresh = asyncio.create_task(self._keep_fresh(slot), name="roskva-livecache-refresh")

    async def _keep_fresh(self, slot: _Slot) -> None:
        entry = slot.entry
        while entry.due and entry.tries < self._pauses.tries_max:  # an eviction cancels this
            await asyncio.sleep(max(0.0, entry.retry_at - self._now()))
            async with self._background:
                if entry.due:
                    flight = slot.flight or self._take_off(slot)
                    await asyncio.wait([flight.task])

    def _check_open(self) -> None:
        if self._closed:
            raise ClientStopped("The cache was closed.")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _seen(task: asyncio.Task[Any]) -> None:
    """A fetch for which nobody waits any more may fail: that was logged."""
    if not task.cancelled():
        task.exception()
