"""A RocksDB that is copied to another through publisher and subscriber is equal, however often either was killed with -9."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from roskva.capture.stores.rocksdb_library import RocksDB, library_path
from tests.capture.whole import rocksdb_copier
from tests.capture.whole.part import ENVIRONMENT, ROOT, Part, publishing
from tests.capture.whole.rocksdb_copier import FAMILIES, position_of

pytestmark = [pytest.mark.skipif(library_path() is None, reason="librocksdb is not installed"), pytest.mark.timeout(600)]

KEPT_S = 3600


class Producer(threading.Thread):
    """Writes to the source for as long as it is copied: every kind of operation, batches of every size, flushes in between."""

    def __init__(self, database: RocksDB, seed: int) -> None:
        super().__init__()
        self.database = database
        self.randomness = random.Random(seed)
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.002):
            self.write(self.randomness.choice([1, 1, 3, 40]))
            if self.randomness.random() < 0.01:
                self.database.flush()

    def write(self, operations: int) -> None:
        choose = self.randomness
        with self.database.batch() as batch:
            for _ in range(operations):
                batch.merge(b"%d" % choose.randrange(50), struct.pack("<Q", 1), "counters")  # never overwritten: each shows for ever
                key, family = b"%04d" % choose.randrange(2_000), choose.choice(["default", "default", "other"])
                kind = choose.random()
                if kind < 0.70:
                    batch.put(key, choose.randbytes(8), family)
                elif kind < 0.85:
                    batch.delete(key, family)
                elif kind < 0.99:
                    batch.merge(key, struct.pack("<Q", choose.randrange(1_000)), family)
                else:
                    batch.delete_range(key, key + b"9", family)
            self.database.write(batch)


class Copier:
    def __init__(self, part: Part, target: Path) -> None:
        self._part = part
        self._target = target
        self.start()

    def start(self, until: int = 2**62) -> None:
        places = [self._part.address, str(self._part.key_file), str(self._target)]
        command = [sys.executable, "-m", rocksdb_copier.__name__, *places, str(until)]
        self._process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)

    def copies(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "copying\n", self._part.said()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ended(self) -> int:
        try:
            self._process.communicate(timeout=60)
        finally:
            self.kill()
        return self._process.returncode


def test_a_copy_through_capture_is_equal_however_often_it_was_killed(tmp_path: Path) -> None:
    """100 kills; another number with CAPTURE_KILLS, others with CAPTURE_SEED. (The tests see no variable that begins with ROSKVA_.)"""
    kills, seed = int(os.environ.get("CAPTURE_KILLS", "100")), int(os.environ.get("CAPTURE_SEED", "1"))
    dice, target = random.Random(seed), tmp_path / "target"
    with (
        RocksDB(tmp_path / "source", FAMILIES[1:], wal_ttl_s=KEPT_S, counters=True) as source,
        publishing(f"kind = 'rocksdb'\npath = '{tmp_path / 'source'}'") as part,
    ):
        part.key()
        producer, backlog = Producer(source, seed), Producer(source, seed + 1)
        copier = Copier(part, target)
        producer.start()
        try:
            for _ in range(kills):
                backlog.write(2_000)
                copier.copies()
                time.sleep(dice.random() * 0.05)
                victim: Part | Copier = part if dice.random() < 0.5 else copier
                victim.kill()
                victim.start()
        finally:
            producer.stopping.set()
            producer.join()
            copier.kill()
        end = source.latest_sequence()
        copier.start(until=end)
        assert copier.ended() == 0, part.said()
        with RocksDB(target, counters=True) as copy:
            assert position_of(copy).sequence == end
            for family in FAMILIES:
                assert dict(copy.items(family)) == dict(source.items(family)), f"seed {seed}, {kills} kills"
            assert len(dict(copy.items())) > 500
