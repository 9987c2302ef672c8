"""examples/redis: a cache in a real Redis follows a log, whatever is repeated, and is emptied when part of the log is lost."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from roskva.capture.positions import BEGINNING, Position
from roskva.capture.subscriber import Shard
from roskva.capture.updates import Change, Columns, Operation, Update
from tests.capture.stores.servers_postgres import running_postgres
from tests.capture.whole.part import ENVIRONMENT, WAIT_S, Part, publishing

ROOT = Path(__file__).resolve().parents[2]
SHARD = Shard("shop", 0)


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("refill", ROOT / "examples/redis/refill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refill = _example()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = shutil.which("redis-server")
    assert server is not None, "redis-server is missing: scripts/setup.sh installs it"
    folder = tmp_path_factory.mktemp("redis")
    path = folder / "socket"
    command = [server, "--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
async def cache(address: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.from_url(address) as connection:
        for _ in range(100):
            try:
                await connection.ping()
                break
            except redis.exceptions.ConnectionError:
                await asyncio.sleep(0.05)
        await connection.flushall()
        yield connection


def update(sequence: int, operation: Operation, number: int, title: str = "", old: int | None = None, index: int = 1) -> Update:
    key: Columns = {"id": number}
    old_key: Columns | None = None if old is None else {"id": old}
    columns: Columns = key if operation == Operation.DELETE else {"id": number, "title": title}
    return Update(0, Change(Position(0, sequence, index), 0, operation, "shop", "documents", key, columns, old_key))


async def rows(cache: redis.asyncio.Redis) -> dict[str, str]:
    found = {}
    async for key in cache.scan_iter(match="cache:*"):
        row = await cache.hget(key, "row")
        if row is not None:
            found[key.decode()] = json.loads(row)["title"]
    return found


async def test_rows_are_stored_replaced_renamed_and_deleted(cache: redis.asyncio.Redis) -> None:
    callbacks = refill.Refill(cache)
    await callbacks.on_updates(SHARD, [update(1, Operation.INSERT, 1, "one"), update(2, Operation.INSERT, 2, "two")])
    await callbacks.on_updates(SHARD, [update(3, Operation.UPDATE, 1, "uno"), update(4, Operation.DELETE, 2)])
    assert await rows(cache) == {"cache:documents:1": "uno"}
    await callbacks.on_updates(SHARD, [update(5, Operation.UPDATE, 7, "uno", old=1)])
    assert await rows(cache) == {"cache:documents:7": "uno"}


async def test_what_comes_again_after_a_restart_takes_nothing_back(cache: redis.asyncio.Redis) -> None:
    log = [update(1, Operation.INSERT, 1, "one"), update(2, Operation.UPDATE, 1, "uno"), update(3, Operation.DELETE, 1)]
    log += [update(4, Operation.INSERT, 2, "two"), update(4, Operation.UPDATE, 2, "due", index=2)]
    callbacks = refill.Refill(cache)
    await callbacks.on_updates(SHARD, log)
    for start in range(len(log)):
        await callbacks.on_updates(SHARD, log[start:start + 1])  # fmt: skip
        assert await rows(cache) == {"cache:documents:2": "due"}
    await callbacks.on_updates(SHARD, [update(5, Operation.INSERT, 1, "again")])
    assert await rows(cache) == {"cache:documents:1": "again", "cache:documents:2": "due"}
    assert await cache.ttl("cache:documents:1") == -1  # it is there again, and stays


async def test_a_row_of_which_the_log_leaves_something_out_is_not_stored_without_it(cache: redis.asyncio.Redis) -> None:
    callbacks = refill.Refill(cache)
    await callbacks.on_updates(SHARD, [update(1, Operation.INSERT, 1, "one")])
    seen = update(2, Operation.UPDATE, 1).change._replace(columns={"id": 1}, unchanged=("title",))
    await callbacks.on_updates(SHARD, [Update(0, seen), update(1, Operation.INSERT, 1, "one")])
    assert await rows(cache) == {}
    assert await cache.hget("cache:documents:1", "row") is None
    await callbacks.on_updates(SHARD, [update(3, Operation.UPDATE, 1, "uno")])
    assert await rows(cache) == {"cache:documents:1": "uno"}


async def test_an_emptied_table_and_lost_changes_empty_the_cache_and_nothing_else(cache: redis.asyncio.Redis) -> None:
    callbacks = refill.Refill(cache)
    await cache.set("other", "kept")
    await callbacks.on_updates(SHARD, [update(1, Operation.INSERT, 1, "one")])
    truncated = Change(Position(0, 2, 1), 0, Operation.TRUNCATE, "shop", "documents", {}, {})
    await callbacks.on_updates(SHARD, [update(2, Operation.INSERT, 2, "two", index=0), Update(0, truncated)])
    assert await rows(cache) == {}
    await callbacks.on_updates(SHARD, [update(3, Operation.INSERT, 3, "three")])
    await callbacks.on_data_loss(SHARD, BEGINNING, Position(0, 9))
    assert await rows(cache) == {}
    assert await cache.get("other") == b"kept"


async def test_rows_whose_keys_have_several_columns_are_never_taken_for_each_other(cache: redis.asyncio.Redis) -> None:
    keys: list[Columns] = [
        {"a": "x,y", "b": "z"},
        {"a": "x", "b": "y,z"},
        {"a": 'x","y', "b": "z"},
        {"a": "x", "b": 'y","z'},
        {"a": 1, "b": "1"},
    ]
    callbacks = refill.Refill(cache)
    changes = [
        Change(Position(0, 1, number), 0, Operation.INSERT, "shop", "t", key, {**key, "title": str(number)})
        for number, key in enumerate(keys)
    ]
    await callbacks.on_updates(SHARD, [Update(0, change) for change in changes])
    assert sorted((await rows(cache)).values()) == ["0", "1", "2", "3", "4"]
    gone = changes[1]._replace(position=Position(0, 2, 1), operation=Operation.DELETE)
    await callbacks.on_updates(SHARD, [Update(0, gone)])
    assert (await rows(cache))['cache:t:["x,y", "z"]'] == "0"
    assert sorted((await rows(cache)).values()) == ["0", "2", "3", "4"]


async def test_a_cache_that_others_fill_is_only_invalidated(cache: redis.asyncio.Redis) -> None:
    await cache.set("cache:documents:1", "filled by a reader")
    await refill.Refill(cache, invalidate=True).on_updates(
        SHARD, [update(1, Operation.UPDATE, 1, "one"), update(2, Operation.INSERT, 2, "two")]
    )
    assert await cache.keys("cache:*") == []


class Program:
    """examples/redis/refill.py as its README starts it."""

    def __init__(self, part: Part, address: str) -> None:
        reach = ["--publisher", part.address, "--key-file", str(part.key_file), "--application", "watch", "--redis", address]
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/redis/refill.py"), *reach], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "following\n"

    def end(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        self._process.communicate(timeout=WAIT_S)
        return self._process.returncode


async def holds(cache: redis.asyncio.Redis, titles: dict[str, str], part: Part) -> None:
    async with asyncio.timeout(WAIT_S):
        while (found := await rows(cache)) != titles:
            await asyncio.sleep(0.05)
    assert found == titles, part.said()


async def test_the_program_follows_a_real_database_and_goes_on_where_it_was_killed(address: str, cache: redis.asyncio.Redis) -> None:
    with running_postgres() as server:
        server.create_database("shop")
        server.execute("shop", "CREATE TABLE documents (id int PRIMARY KEY, title text)")
        with publishing(f"kind = 'postgres'\ndsn = '{server.dsn('shop')}'\ntables = ['documents']") as part:
            await asyncio.to_thread(part.key)
            program = Program(part, address)
            try:
                await asyncio.to_thread(part.reads)
                server.execute("shop", "INSERT INTO documents VALUES (1, 'one'), (2, 'two')")
                await holds(cache, {"cache:documents:1": "one", "cache:documents:2": "two"}, part)
                assert program.end(signal.SIGKILL) == -signal.SIGKILL
                server.execute("shop", "UPDATE documents SET title = 'uno' WHERE id = 1", "DELETE FROM documents WHERE id = 2")
                program = Program(part, address)
                await holds(cache, {"cache:documents:1": "uno"}, part)
                assert program.end(signal.SIGTERM) == 0
            finally:
                program.end(signal.SIGKILL)
