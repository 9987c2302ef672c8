"""Copies a RocksDB to another through capture, until it is killed or has come to a sequence: what test_rocksdb.py kills.

    python -m tests.capture.stores.rocksdb_copier SOURCE TARGET CHANGES_MAX UNTIL

The position is written to the target together with what it stands for, in one batch: so each operation is applied once, whenever this dies.
"""

from __future__ import annotations

import sys
from pathlib import Path

from roskva.capture.interface import Datastore
from roskva.capture.positions import BEGINNING, Position, position_from_text
from roskva.capture.stores.rocksdb import RocksDBDatastore
from roskva.capture.stores.rocksdb_library import RocksDB, WriteBatch
from roskva.capture.updates import Change, Operation

POSITIONS = "positions"


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


def copy(source: Datastore, target: RocksDB, changes_max: int, until: int) -> None:
    reader = source.read_after(position_of(target))
    reached = position_of(target)
    while reached.sequence < until:
        changes, reached, _ = reader.read(changes_max, 1.0)
        with target.batch() as batch:
            for change in changes:
                apply(batch, change)
            batch.put(b"position", str(reached).encode(), POSITIONS)
            target.write(batch)


def main() -> None:
    source, target, changes_max, until = sys.argv[1:]
    store = RocksDBDatastore(Path(source))
    with RocksDB(Path(target), ["default", "other", "counters", POSITIONS], counters=True) as database:
        print("ready", flush=True)
        copy(store, database, int(changes_max), int(until))
    store.close()


if __name__ == "__main__":
    main()
