"""The embedded feed: the contract, and what only files and sockets can do: be deleted, killed, forked, lie too deep."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.errors import FeedFull, PartitionLost
from roskva.feed import SqliteFeed, open_feed
from roskva.feed.interface import DEAD_LETTERS, REGISTRATIONS, UPDATES, Entry
from roskva.feed.sqlite import RECORD_OVERHEAD_BYTES
from roskva.feed.wake import Wakers
from roskva.model import partition_of
from roskva.table import open_manifest
from roskva.table.manifest import RECOVERING, Manifest
from tests.feed.contract import FeedContract, MakeFeed, entries, everything, seen_of

PARTITIONS = 2
KEY = next(b"k%d" % number for number in range(100) if partition_of(b"k%d" % number, PARTITIONS) == 0)


def open_at(data: Path, retention_s: float = 3_600.0, bytes_max: int = 100_000) -> SqliteFeed:
    return SqliteFeed(data, Manifest.open(data / "manifest.db", PARTITIONS, "test"), retention_s, bytes_max)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def feed(data: Path) -> Iterator[SqliteFeed]:
    feed = open_at(data)
    yield feed
    feed.close()
    feed.manifest.close()


class TestContract(FeedContract):
    @pytest.fixture
    def engine(self, feed: SqliteFeed) -> SqliteFeed:
        return feed

    @pytest.fixture
    def second(self, data: Path) -> Iterator[MakeFeed]:
        opened: list[SqliteFeed] = []

        def open_again(retention_s: float = 3_600.0, bytes_max: int = 100_000) -> SqliteFeed:
            opened.append(open_at(data, retention_s, bytes_max))
            return opened[-1]

        yield open_again
        for feed in opened:
            feed.close()


class TestLoss:
    @pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
    def test_nothing_is_acknowledged_after_a_file_went(self, feed: SqliteFeed, suffix: str) -> None:
        """Trap 36, of the feed."""
        feed.append(UPDATES, [Entry(KEY, b"") for _ in range(5)])
        feed.commit("pipeline", UPDATES, feed.newest(UPDATES))
        before = feed.newest(UPDATES)[0]
        Path(f"{feed.path(UPDATES, 0)}{suffix}").unlink()
        with pytest.raises(PartitionLost):
            feed.append(UPDATES, [Entry(KEY, b"")])
        after = feed.newest(UPDATES)[0]
        assert after.incarnation > before.incarnation
        assert after.offset == 0
        assert feed.manifest.record("feed", UPDATES, 0).state == RECOVERING
        assert 0 not in feed.committed("pipeline", UPDATES)  # a position of the old incarnation counts as never committed
        assert 1 in feed.committed("pipeline", UPDATES)
        assert feed.append(UPDATES, [Entry(KEY, b"new")]) == [(0, 0)]

    def test_a_lost_incarnation_ends_a_wait(self, feed: SqliteFeed) -> None:
        feed.append(UPDATES, [Entry(KEY, b"")])
        seen = seen_of(feed, UPDATES)
        feed.path(UPDATES, 0).unlink()
        assert feed.wait([UPDATES], seen, 5.0)

    def test_old_commits_do_not_trim_the_new_incarnation(self, feed: SqliteFeed, data: Path) -> None:
        feed.append(UPDATES, [Entry(KEY, b"") for _ in range(50)])
        feed.commit("pipeline", UPDATES, feed.newest(UPDATES))
        feed.path(UPDATES, 0).unlink()
        with pytest.raises(PartitionLost):
            feed.append(UPDATES, [Entry(KEY, b"")])
        feed.append(UPDATES, [Entry(KEY, b"") for _ in range(10)])
        time.sleep(0.01)
        impatient = open_at(data, retention_s=0.0)
        assert impatient.trim() == 0
        assert len(everything(feed, UPDATES)) == 10
        impatient.close()

    def test_lost_subscriptions_keep_everything_until_subscribers_had_time(
        self, feed: SqliteFeed, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        feed.append(UPDATES, [Entry(KEY, b"") for _ in range(10)])
        feed.subscribe("slow", [UPDATES])
        [path] = (data / "feed").glob("subscriptions-0.*.db")
        feed.close()
        path.unlink()
        with pytest.raises(PartitionLost):
            feed.commit("fast", UPDATES, feed.newest(UPDATES))
        feed.commit("fast", UPDATES, feed.newest(UPDATES))  # "slow" has not been heard of since
        time.sleep(0.01)
        impatient = open_at(data, retention_s=0.0)
        assert impatient.trim() == 0
        monkeypatch.setattr("roskva.feed.sqlite.RETURN_S", 0.0)
        assert impatient.trim() == 10
        impatient.close()

    def test_everything_deleted_while_it_runs(self, feed: SqliteFeed, data: Path) -> None:
        feed.append(UPDATES, [Entry(KEY, b"")])
        before = feed.newest(UPDATES)[0]
        shutil.rmtree(data)
        with pytest.raises(PartitionLost):
            feed.append(UPDATES, [Entry(KEY, b"")])
        assert feed.append(UPDATES, [Entry(KEY, b"")]) == [(0, 0)]
        assert feed.newest(UPDATES)[0].incarnation > before.incarnation


class TestSize:
    def test_bytes_are_counted_down_again(self, feed: SqliteFeed) -> None:
        for _ in range(30):  # many times the limit in all
            feed.append(UPDATES, [Entry(KEY, b"x" * 10_000)])
            feed.commit("pipeline", UPDATES, feed.newest(UPDATES))
        assert len(everything(feed, UPDATES)) <= 10

    def test_a_batch_of_any_size_takes_its_places_and_counts_once(self, data: Path) -> None:
        """Statements have places for a power of two; what is left free in one counts for nothing."""
        feed = open_at(data, bytes_max=10_000_000)
        first = size = 0
        for count in (1, 2, 3, 5, 255, 256, 257, 600):
            entries = [Entry(KEY, b"v" * (index % 7), b"h" * (index % 3)) for index in range(count)]
            assert feed.append_to(UPDATES, 0, entries) == list(range(first, first + count))
            assert [record.value for record in feed.read(UPDATES, 0, first, first + count)] == [entry.value for entry in entries]
            first += count
            size += sum(len(part) for entry in entries for part in entry) + RECORD_OVERHEAD_BYTES * count
        with sqlite3.connect(feed.path(UPDATES, 0)) as connection:
            assert connection.execute("SELECT next_offset, bytes FROM log").fetchall() == [(first, size)]
        connection.close()
        feed.close()

    def test_a_refused_batch_leaves_nothing(self, feed: SqliteFeed) -> None:
        with pytest.raises(FeedFull):
            feed.append(UPDATES, [Entry(KEY, b"x" * 10_000) for _ in range(20)])
        assert everything(feed, UPDATES) == []
        feed.append(UPDATES, [Entry(KEY, b"x" * 10_000)])

    def test_trimmed_dead_letters_may_come_again(self, feed: SqliteFeed, data: Path) -> None:
        feed.append_once(DEAD_LETTERS, [Entry(KEY, b"")])
        feed.commit("reader", DEAD_LETTERS, feed.newest(DEAD_LETTERS))
        time.sleep(0.01)
        impatient = open_at(data, retention_s=0.0)
        assert impatient.trim() == 1
        feed.append_once(DEAD_LETTERS, [Entry(KEY, b"")])
        assert [record.offset for record in everything(feed, DEAD_LETTERS)] == [1]
        impatient.close()

    def test_trimming_many_records(self, data: Path) -> None:
        feed = open_at(data, retention_s=0.0, bytes_max=1 << 30)
        for _ in range(3):
            feed.append(UPDATES, [Entry(KEY, b"%d" % number) for number in range(4_000)])
        feed.commit("pipeline", UPDATES, feed.newest(UPDATES))
        time.sleep(0.01)
        assert feed.trim() == 12_000
        feed.close()


APPENDER = textwrap.dedent("""
    import sys, pathlib, time
    from roskva.feed import SqliteFeed
    from roskva.feed.interface import Entry, UPDATES
    from roskva.table.manifest import Manifest
    data, key, count, pause_s = pathlib.Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3]), float(sys.argv[4])
    feed = SqliteFeed(data, Manifest.open(data / "manifest.db", 2, "test"), 3600.0, 1 << 30)
    feed.newest(UPDATES)
    for number in range(count):
        time.sleep(pause_s)
        [answer] = feed.append(UPDATES, [Entry(key, b"%d" % number)])
        print(*answer, time.monotonic(), flush=True)
""")


def start_appender(data: Path, key: bytes, count: int, pause_s: float = 0.0) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", APPENDER, str(data), key.decode(), str(count), str(pause_s)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


class TestProcesses:
    def test_kill_loses_nothing_acknowledged(self, feed: SqliteFeed, data: Path) -> None:
        for attempt in range(3):
            with start_appender(data, KEY, 1_000_000) as process:
                assert process.stdout is not None
                lines = list(itertools.islice(process.stdout, 40 + 30 * attempt))
                process.send_signal(signal.SIGKILL)
                lines += [line for line in process.stdout if line.endswith("\n")]
            acknowledged = [int(line.split()[1]) for line in lines]
            offsets = [record.offset for record in feed.read(UPDATES, 0, 0, 1_000_000)]
            assert set(acknowledged) <= set(offsets)
            assert offsets == list(range(len(offsets)))

    def test_two_processes_append_at_once(self, feed: SqliteFeed, data: Path) -> None:
        appenders = [start_appender(data, KEY, 150) for _ in range(2)]
        answers = []
        for appender in appenders:
            output, _ = appender.communicate(timeout=60)
            assert appender.returncode == 0
            answers += [tuple(line.split()[:2]) for line in output.splitlines()]
        assert len(set(answers)) == len(answers) == 300
        assert feed.newest(UPDATES)[0].offset == 300

    def test_a_wait_wakes_within_milliseconds_of_an_append_elsewhere(self, feed: SqliteFeed, data: Path) -> None:
        seen = seen_of(feed, UPDATES)
        woken_s: list[float] = []
        with start_appender(data, KEY, 20, pause_s=0.03) as process:
            for _ in range(20):
                assert feed.wait([UPDATES], seen, 10.0)
                woken_s.append(time.monotonic())
                seen = seen_of(feed, UPDATES)
            output, _ = process.communicate(timeout=30)
        appended_s = [float(line.split()[2]) for line in output.splitlines()]
        delays_s = sorted(woken - appended for woken, appended in zip(woken_s, appended_s, strict=True))
        assert delays_s[10] < 0.02  # the machine may be busy; half a second would be the poll

    def test_a_forked_process_opens_its_own(self, feed: SqliteFeed) -> None:
        feed.append(UPDATES, [Entry(KEY, b"parent")])
        feed.wait([UPDATES], {}, 0.0)
        child = multiprocessing.get_context("fork").Process(target=feed.append, args=(UPDATES, [Entry(KEY, b"child")]))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        feed.append(UPDATES, [Entry(KEY, b"parent")])
        assert [record.value for record in everything(feed, UPDATES)] == [b"parent", b"child", b"parent"]
        assert not feed.wait([UPDATES], seen_of(feed, UPDATES), 0.05)


class TestWake:
    def test_sockets_of_the_dead_are_removed(self, feed: SqliteFeed, data: Path) -> None:
        feed.wait([UPDATES], {}, 0.0)
        wake = data / "feed" / "wake"
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        previous = Path.cwd()
        os.chdir(wake)
        try:
            stale.bind("updates+stale")
        finally:
            os.chdir(previous)
        stale.close()
        assert len(list(wake.iterdir())) == 2
        feed.append(UPDATES, entries(1))
        assert [path.name for path in wake.iterdir() if "stale" in path.name] == []
        assert len(list(wake.iterdir())) == 1
        feed.close()
        assert list(wake.iterdir()) == []

    def test_only_those_who_wait_for_the_topic_are_woken(self, data: Path) -> None:
        wakers = Wakers(data / "feed" / "wake")
        with wakers.waiter([UPDATES, REGISTRATIONS]) as waiter, wakers.waiter([DEAD_LETTERS]) as other:
            wakers.wake(REGISTRATIONS)
            woken = [bool(select.select([one._socket], [], [], 0)[0]) for one in (waiter, other)]
        wakers.close()
        assert woken == [True, False]

    def test_a_waiter_that_never_listens_blocks_nobody(self, feed: SqliteFeed, data: Path) -> None:
        feed.wait([UPDATES], {}, 0.0)
        started_s = time.monotonic()
        for _ in range(600):  # more than a socket's buffer takes
            feed._wakers.wake(UPDATES)
        assert time.monotonic() - started_s < 2.0

    def test_a_deleted_wake_directory_costs_a_second_at_most(self, feed: SqliteFeed, data: Path) -> None:
        feed.wait([UPDATES], {}, 0.0)
        shutil.rmtree(data / "feed" / "wake")
        seen = seen_of(feed, UPDATES)
        threading.Timer(0.05, feed.append, (UPDATES, entries(1))).start()
        started_s = time.monotonic()
        assert feed.wait([UPDATES], seen, 5.0)
        assert time.monotonic() - started_s < 2.0

    def test_a_deep_data_directory(self, tmp_path: Path) -> None:
        data = tmp_path / ("deep" * 20) / ("deeper" * 20) / "data"
        feed = open_at(data)
        other = open_at(data)
        feed.append(UPDATES, entries(1))
        seen = seen_of(feed, UPDATES, REGISTRATIONS)
        timer = threading.Timer(0.05, other.append, (REGISTRATIONS, entries(1)))
        timer.start()
        started_s = time.monotonic()
        assert feed.wait([UPDATES, REGISTRATIONS], seen, 5.0)
        assert time.monotonic() - started_s < 0.8  # woken, not found by its own look
        timer.join()
        feed.close()
        other.close()


def test_a_process_opens_a_data_directory_once(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", partitions=2)
    assert open_feed(settings) is open_feed(settings)
    assert open_feed(settings).manifest is open_manifest(settings)
