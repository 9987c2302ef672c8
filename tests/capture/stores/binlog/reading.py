"""What tests do with a reader: read until the log's end, or until so many changes have come."""

from __future__ import annotations

import time
from typing import Any, Final

from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.stores.binlog.reading import BinlogReader
from roskva.capture.stores.binlog.store import BinlogStore
from roskva.capture.updates import Change
from roskva.errors import DatastoreUnavailable

READ_S_MAX: Final = 30.0


def read_to(store: BinlogStore[Any, Any], after: Position, end: Position | None = None, changes_max: int = 1000) -> list[Change]:
    """All after a position, up to the log's present end."""
    return [change for batch in batches_to(store, after, end, changes_max) for change in batch.changes]


def batches_to(store: BinlogStore[Any, Any], after: Position, end: Position | None = None, changes_max: int = 1000) -> list[Batch]:
    """With another reader, once, where a crash has cut the log in the middle of an event: the server ends the first one there."""
    end = end or store.retained().end
    batches: list[Batch] = []
    for last_one in (False, True):
        reader = store.read_after(batches[-1].reached if batches else after)
        try:
            _read_all(reader, end, changes_max, batches)
            break
        except DatastoreUnavailable as error:
            if last_one or "truncated in the middle of event" not in str(error):
                raise
        finally:
            reader.close()
    return batches


def _read_all(reader: BinlogReader, end: Position, changes_max: int, batches: list[Batch]) -> None:
    until_s = time.monotonic() + READ_S_MAX
    while not batches or batches[-1].reached < end:
        assert time.monotonic() < until_s, f"only {batches[-1].reached} of {end} was reached"
        batches.append(reader.read(changes_max, 0.5))
