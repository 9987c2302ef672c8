"""The stores of a LiveCache: what any of them must do, and what a file must survive."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from roskva.client.livecache_stores import BytesCodec, JsonCodec, Kept, MemoryStore, SqliteStore, Store
from roskva.errors import InvalidSetting, StateInUse


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The same store, as the next run finds it."""
    memory = MemoryStore(durable=True)
    return lambda: memory if request.param == "memory" else SqliteStore(tmp_path / "cache.db")


def test_what_was_written_is_loaded_the_last_written_last(reopen: Callable[[], Store]) -> None:
    store = reopen()
    assert store.load() == []
    a, b, c = Kept(b"a", b"1", 2**63 - 1, 2**32 - 1), Kept(b"b\x00\xff", b"", None, 0), Kept(b"c", b"3", 0, 0)
    store.write([a, b], [])
    store.write([c], [])
    later = Kept(b"a", b"11", 7, 1)
    store.write([later], [])
    store.close()
    again = reopen()
    assert again.load() == [b, c, later]
    again.write([], [b"c", b"nobody"])
    again.close()
    last = reopen()
    assert last.load() == [b, later]
    last.close()


def test_a_file_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = SqliteStore(tmp_path / "cache.db"), SqliteStore(tmp_path / "cache.db")
    first.load()
    first.write([Kept(b"a", b"1")], [])
    with pytest.raises(StateInUse):
        second.load()
    first.close()
    assert second.load() == [Kept(b"a", b"1")]
    second.close()


def test_a_process_that_died_in_the_midst_of_a_write_left_the_whole_or_nothing(tmp_path: Path) -> None:
    """A child writes until it is killed; whatever is found is a prefix of what it wrote, whole."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = SqliteStore(tmp_path / "cache.db")
        store.load()
        for number in range(10_000):
            store.write([Kept(name, b"%d" % number, number) for name in (b"a", b"b")], [])
            os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        try:
            written = len(told.read(5))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
        written += len(told.read())
    store = SqliteStore(tmp_path / "cache.db")
    a, b = store.load()
    store.close()
    assert a.value == b.value
    assert a.version is not None
    assert a.version >= written - 1, "what returned is there"


def test_what_is_damaged_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 100)
    store = SqliteStore(path)
    assert store.load() == []
    store.write([Kept(b"a", b"1")], [])
    store.close()
    assert (tmp_path / "cache.db.damaged").exists()


def test_a_later_format_is_not_touched_but_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    store = SqliteStore(path)
    assert store.load() == []
    store.close()
    assert (tmp_path / "cache.db.damaged").exists()


def test_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be used"):
        SqliteStore(tmp_path / "nowhere" / "cache.db").load()
    with pytest.raises(InvalidSetting, match="not open"):
        SqliteStore(tmp_path / "cache.db").write([], [])


def test_codecs() -> None:
    assert JsonCodec().decode(JsonCodec().encode({"ö": [1, None]})) == {"ö": [1, None]}
    assert BytesCodec().decode(BytesCodec().encode(bytearray(b"\xff"))) == b"\xff"
    with pytest.raises(ValueError, match=r"JSON|Expecting|utf"):
        JsonCodec().decode(b"\xff")
