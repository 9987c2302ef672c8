"""Files of the feed that are there and wrong: lost, told and put aside; offsets never go back (feed/sqlite.py, table/files.py)."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.errors import PartitionLost
from roskva.feed import SqliteFeed
from roskva.feed.interface import REGISTRATIONS, UPDATES, Entry
from roskva.model import partition_of
from roskva.table.manifest import RECOVERING, Manifest

PARTITIONS = 2
KEY = next(b"k%d" % number for number in range(100) if partition_of(b"k%d" % number, PARTITIONS) == 0)
PAGE = 4_096


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def feed(data: Path) -> Iterator[SqliteFeed]:
    """With records in its file, and none in its log."""
    feed = SqliteFeed(data, Manifest.open(data / "manifest.db", PARTITIONS, "test"), 3_600.0, 10_000_000)
    feed.append(UPDATES, [Entry(KEY, b"v" * 500) for _ in range(1_000)])
    feed.commit("pipeline", UPDATES, feed.newest(UPDATES))
    feed.close()
    yield feed
    feed.close()
    feed.manifest.close()


def begins_anew(feed: SqliteFeed, caplog: pytest.LogCaptureFixture) -> None:
    before = feed.manifest.record("feed", UPDATES, 0).incarnation
    with caplog.at_level(logging.ERROR), pytest.raises(PartitionLost):
        feed.append(UPDATES, [Entry(KEY, b"")])
    assert "feed/updates-0" in caplog.text
    assert 'is told "unknown"' in caplog.text
    assert feed.append(UPDATES, [Entry(KEY, b"after")]) == [(0, 0)]
    record = feed.manifest.record("feed", UPDATES, 0)
    assert record.incarnation > before
    assert record.state == RECOVERING
    assert 0 not in feed.committed("pipeline", UPDATES)
    assert len(list((feed.path(UPDATES, 0).parent / "lost").glob("updates-0.*.db"))) == 1


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM log",
        "UPDATE log SET next_offset = 10",
        "UPDATE log SET next_offset = x'00'",
        "UPDATE log SET bytes = -1",
        "DROP TABLE records",
    ],
)
def test_counts_that_cannot_be(feed: SqliteFeed, statement: str, caplog: pytest.LogCaptureFixture) -> None:
    change(feed.path(UPDATES, 0), statement)
    begins_anew(feed, caplog)


@pytest.mark.parametrize("keep", [0, 100, PAGE, -PAGE])
def test_a_truncated_file(feed: SqliteFeed, keep: int, caplog: pytest.LogCaptureFixture) -> None:
    path = feed.path(UPDATES, 0)
    os.truncate(path, keep % path.stat().st_size)
    begins_anew(feed, caplog)


def test_pages_of_random_bytes_are_found_by_who_reads_them(feed: SqliteFeed) -> None:
    path = feed.path(UPDATES, 0)
    content = bytearray(path.read_bytes())
    middle = len(content) // PAGE // 2 * PAGE
    content[middle : middle + 10 * PAGE] = random.Random(7).randbytes(10 * PAGE)
    path.write_bytes(content)
    with pytest.raises(PartitionLost):
        feed.read(UPDATES, 0, 0, 1_000)
    assert feed.read(UPDATES, 0, 0, 1_000) == []
    assert feed.manifest.record("feed", UPDATES, 0).state == RECOVERING


@pytest.mark.parametrize("other", [(UPDATES, 1), (REGISTRATIONS, 0)])
def test_the_file_of_another_partition(feed: SqliteFeed, other: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    feed.newest(other[0])  # makes it
    feed.close()
    shutil.copy(feed.path(*other), feed.path(UPDATES, 0))
    begins_anew(feed, caplog)


def test_damaged_subscriptions_keep_every_record(feed: SqliteFeed, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    [path] = (data / "feed").glob("subscriptions-0.*.db")
    path.write_bytes(random.Random(7).randbytes(path.stat().st_size))
    with caplog.at_level(logging.ERROR), pytest.raises(PartitionLost):
        feed.committed("pipeline", UPDATES)
    assert "nothing is trimmed from the feed until its readers are back" in caplog.text
    assert feed.committed("pipeline", UPDATES) == {}
    assert feed.trim() == 0
    assert len(feed.read(UPDATES, 0, 0, 1_000)) == 1_000
