"""Brings a LiveCache's changes into its store, in their order and together: what comes while a write is under way is the next write.

At most one change per object waits. The store is called from threads, never by two at a time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from roskva.client.livecache_stores import Kept, Store
from roskva.errors import ClientStopped

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Batch:
    changes: dict[bytes, Kept | None] = field(default_factory=dict)  # None: forget it
    done: list[asyncio.Future[None]] = field(default_factory=list)


class Writer:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = _Batch()
        self._task: asyncio.Task[None] | None = None
        self._loaded = False
        self._closed = False

    async def load(self) -> list[Kept]:
        held = await asyncio.to_thread(self._store.load)
        self._loaded = True
        return held

    async def keep(self, kept: Kept) -> None:
        """Returns when the store has it."""
        if self._closed:
            raise ClientStopped("The cache was closed.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next.done.append(done)
        self._change(kept.name, kept)
        await done

    def forget(self, name: bytes) -> None:
        """Soon. If it is lost, an object too many is taken up at the next start, and registered as it was."""
        self._change(name, None)

    def _change(self, name: bytes, kept: Kept | None) -> None:
        self._next.changes[name] = kept
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name="roskva-livecache-store")

    async def _write_all(self) -> None:
        while self._next.changes:
            batch, self._next = self._next, _Batch()
            kept = [one for one in batch.changes.values() if one is not None]
            gone = [name for name, one in batch.changes.items() if one is None]
            try:
                await asyncio.to_thread(self._store.write, kept, gone)
            except Exception as error:
                if not batch.done:
                    log.warning("the store could not forget %d objects: %s", len(gone), error)
                _settle(batch, error)
            else:
                _settle(batch, None)

    async def close(self) -> None:
        """After what waits is written."""
        self._closed = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._loaded:
            await asyncio.to_thread(self._store.close)

    async def clear(self) -> None:
        """The store holds nothing any more: neither what this cache wrote, nor what was there before."""
        await self.close()
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        try:
            self._store.write([], [one.name for one in self._store.load()])
        finally:
            self._store.close()


def _settle(batch: _Batch, error: Exception | None) -> None:
    for done in batch.done:
        if done.done():
            continue  # its flight was cancelled
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
