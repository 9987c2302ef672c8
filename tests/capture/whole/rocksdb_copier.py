"""Copies a RocksDB to another through capture, until it is killed or has come to a sequence: what test_rocksdb_copied.py kills.

    python -m tests.capture.whole.rocksdb_copier PUBLISHER KEY_FILE TARGET UNTIL

The position is written to the target together with what it stands for, in one batch: so each operation is applied once, however often it
comes. Operations have numbers without gaps, so one that was skipped is noticed at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from roskva.capture.positions import BEGINNING, Position, position_from_text
from roskva.capture.stores.rocksdb_library import RocksDB, WriteBatch
from roskva.capture.subscriber import Callbacks, Shard, Subscriber
from roskva.capture.updates import Change, Operation, Update

POSITIONS = "positions"
FAMILIES = ["default", "other", "counters"]
SKIPPED = 3  # exit statuses
LOST = 4


def position_of(target: RocksDB) -> Position:
    text = target.get(b"position", POSITIONS)
    return BEGINNING if text is None else position_from_text(text.decode())


def apply(batch: WriteBatch, change: Change) -> None:
    key, value = change.key.get("key"), change.columns.get("value")
    if change.operation == Operation.MESSAGE:
        begin, end = change.columns["delete_from"], change.columns["delete_before"]
        assert isinstance(begin, bytes)
        assert isinstance(end, bytes)
        batch.delete_range(begin, end, change.table)
    elif change.operation == Operation.UPDATE:
        operand = change.columns["merge"]
        assert isinstance(key, bytes)
        assert isinstance(operand, bytes)
        batch.merge(key, operand, change.table)
    elif change.operation == Operation.DELETE:
        assert isinstance(key, bytes)
        batch.delete(key, change.table)
    else:
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        batch.put(key, value, change.table)


class Copy(Callbacks):
    """Says `copying` when the first updates after each interruption are written."""

    def __init__(self, target: RocksDB, until: int) -> None:
        self._target = target
        self._until = until
        self._reached = position_of(target)
        self._says = True
        self.done = asyncio.Event()
        self._end_if_done()

    def on_shard_notice(self, shard: Shard) -> None:
        self._says = True

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        changes = [update.change for update in updates if update.change.position > self._reached]
        if changes:
            numbers = [self._reached.sequence, *(change.position.sequence for change in changes)]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                print("skipped", numbers[0], numbers[1], flush=True)
                os._exit(SKIPPED)
            with self._target.batch() as batch:
                for change in changes:
                    apply(batch, change)
                batch.put(b"position", str(changes[-1].position).encode(), POSITIONS)
                self._target.write(batch)
            self._reached = changes[-1].position
        if self._says:
            self._says = False
            print("copying", flush=True)
        self._end_if_done()

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        print("lost", after, upto, flush=True)
        os._exit(LOST)

    def _end_if_done(self) -> None:
        if self._reached.sequence >= self._until:
            self.done.set()


async def copy(publisher: str, key: bytes, target: RocksDB, until: int) -> None:
    callbacks = Copy(target, until)
    async with Subscriber("watch", key, [publisher], callbacks, "copier", reconnect_s_max=0.05):
        await callbacks.done.wait()


def main() -> None:
    publisher, key_file, target, until = sys.argv[1:]
    with RocksDB(Path(target), [*FAMILIES, POSITIONS], counters=True) as database:
        asyncio.run(copy(publisher, Path(key_file).read_bytes(), database, int(until)))


if __name__ == "__main__":
    main()
