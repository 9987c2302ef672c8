"""Keeps a cache in Redis in line with a database: every committed row is in it, and none that was deleted.

    python examples/redis/refill.py --publisher 127.0.0.1:8480 --key-file try/cache.key

Each row becomes a hash `TABLE:KEY` with the row as JSON and where it stood in the log; a key of several columns is `["a", "b"]`. What comes
again, after a restart, is older than what is there or the same, and changes nothing: so a reader never sees a value go back. A change whose
row the log has not whole (a large value that stayed as it was) deletes the row from the cache: readers take it from the database, as all
that is not there. With `--invalidate` the row is only deleted from the cache, for an application that fills it itself. If the database has
dropped part of its log unread, the whole cache is emptied: nobody knows what changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from roskva.capture.positions import Position
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Change, Columns, Operation, Update

FORGOTTEN_S: Final = 86_400  # a deleted row's place in the log: longer than anything may come again
CACHE_MAX: Final = 1_000  # keys in one step of a walk over the cache

# Later ones win. KEYS: the row's. ARGV: its place, as text that sorts as positions do; the row, or nothing if it is gone; for how long
# that stays known.
STORE: Final = """
local known = redis.call('HGET', KEYS[1], 'at')
if known and known >= ARGV[1] then return 0 end
if ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], 'row')
    redis.call('HSET', KEYS[1], 'at', ARGV[1])
    redis.call('EXPIRE', KEYS[1], ARGV[3])
else
    redis.call('HSET', KEYS[1], 'at', ARGV[1], 'row', ARGV[2])
    redis.call('PERSIST', KEYS[1])
end
return 1
"""


def place_of(position: Position) -> str:
    """Text that sorts as positions do."""
    return f"{position.history:010}/{position.sequence:020}.{position.index:010}"


def name_of(table: str, key: Columns) -> str:
    """A key of several columns as JSON, so that ("a,b", "c") and ("a", "b,c") are two rows; bytes in it as Python writes them."""
    values = list(key.values())
    return f"{table}:{str(values[0]) if len(values) == 1 else json.dumps(values, default=str, ensure_ascii=False)}"


def row_of(change: Change) -> str:
    return json.dumps(dict(change.columns), default=lambda value: value.decode("utf-8", "replace"), ensure_ascii=False)


class Refill(Callbacks):
    """`prefix`: of all keys of this cache, so that it can be emptied without touching others."""

    def __init__(self, cache: redis.asyncio.Redis, prefix: str = "cache:", invalidate: bool = False) -> None:
        self._cache = cache
        self._prefix = prefix
        self._invalidate = invalidate
        self._store = cache.register_script(STORE)

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        """In one round trip. Returning is what lets the datamarker move: all of it is in Redis then."""
        pipe = self._cache.pipeline(transaction=False)
        for update in updates:
            change = update.change
            if change.operation == Operation.TRUNCATE:
                await pipe.execute()
                await self._empty(f"{change.table}:")
            elif change.operation != Operation.MESSAGE and change.key:
                if change.old_key is not None:
                    await self._forget(pipe, name_of(change.table, change.old_key), change)
                if change.operation == Operation.DELETE or change.unchanged or self._invalidate:
                    await self._forget(pipe, name_of(change.table, change.key), change)
                else:
                    place = place_of(change.position)
                    await self._store(keys=[self._prefix + name_of(change.table, change.key)], args=[place, row_of(change), 0], client=pipe)
        await pipe.execute()

    async def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        await self._empty("")

    async def _forget(self, pipe: Any, name: str, change: Change) -> None:
        if self._invalidate:
            pipe.delete(self._prefix + name)
        else:
            await self._store(keys=[self._prefix + name], args=[place_of(change.position), "", FORGOTTEN_S], client=pipe)

    async def _empty(self, start: str) -> None:
        async for key in self._cache.scan_iter(match=f"{self._prefix}{start}*", count=CACHE_MAX):
            await self._cache.delete(key)


async def serve(arguments: argparse.Namespace, key: bytes) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with redis.asyncio.from_url(arguments.redis) as cache:
        callbacks = Refill(cache, invalidate=arguments.invalidate)
        async with Subscriber(arguments.application, key, arguments.publisher, callbacks, arguments.member):
            print("following", flush=True)
            await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps a cache in Redis in line with what is committed in a database.")
    parser.add_argument("--publisher", action="append", required=True, metavar="HOST:PORT", help="of capture; may be repeated")
    parser.add_argument("--key-file", required=True, metavar="FILE", help="the key of the application, as its publisher has it")
    parser.add_argument("--application", default="cache", metavar="NAME", help="as capture's settings call it (default: cache)")
    parser.add_argument(
        "--member", default="", metavar="NAME", help="of this process among those of the application (default: host and pid)"
    )
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0", metavar="URL", help="(default: redis://127.0.0.1:6379/0)")
    parser.add_argument("--invalidate", action="store_true", help="delete what changed instead of storing it")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments, Path(arguments.key_file).read_bytes().strip()))


if __name__ == "__main__":
    main()
