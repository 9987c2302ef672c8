"""What waits for the application: at most one entry per key, in the order in which the keys first came.

A later entry takes the place of an earlier one with its key: a newer version of an object replaces an older one that nobody has
taken yet, so a slow application holds as many entries as it has objects, however much is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    def __init__(self) -> None:
        self._entries: dict[Hashable, T] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Hashable, entry: T) -> None:
        self._entries[key] = entry
        self._wake()

    def put_back(self, key: Hashable, entry: T) -> None:
        """To the front, as it was taken; unless something newer came for its key meanwhile."""
        if key not in self._entries:
            self._entries = {key: entry, **self._entries}
        self._wake()

    def drop(self, keys: Iterable[Hashable]) -> list[T]:
        """Takes out what waits under these keys."""
        return [self._entries.pop(key) for key in keys if key in self._entries]

    def close(self) -> None:
        """Whoever waits, or comes, is told that there is nothing any more."""
        self._closed = True
        self._entries.clear()
        self._wake()

    async def take(self) -> T | None:
        """The oldest entry; None: closed."""
        while not self._entries:
            if self._closed:
                return None
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        return self._entries.pop(next(iter(self._entries)))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
