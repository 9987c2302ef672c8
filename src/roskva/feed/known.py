"""Which versions count as known: those that came since the last loss of anything that may have held a later one (trap 32).

That is the feed's partition of the object, and the table "scratch", where versions wait whose rows could not be written. A version cell
names the newest incarnation among them when it was written; if one of them was lost since, the cell names an older one than holds
now, and nobody who asks is told that he has the latest. Pure but for what the caller's `record` asks of the manifest.
"""

from __future__ import annotations

from collections.abc import Callable

from roskva.feed.interface import UPDATES
from roskva.table.manifest import COMPLETE, PartitionRecord

Records = Callable[[str, str, int], PartitionRecord]  # what the manifest says: of kind, name, partition


def known_since(record: Records, partition: int, partitions: int) -> int | None:
    """What a version cell must name to count as known; None while anything that could hold a later one is incomplete."""
    feed = record("feed", UPDATES, partition)
    scratch = _scratch_since(record, partitions)
    if scratch is None or feed.state != COMPLETE or record("table", "matcher", partition).state != COMPLETE:
        return None
    return max(feed.incarnation, scratch)


def since_of(record: Records, partition: int, partitions: int, came: int) -> int:
    """What to write into the cell of a version that came with a record of this incarnation of the feed's partition.

    One of an earlier incarnation went through scratch: it proves nothing about what came after it. Nor does anything while scratch is
    being recovered.
    """
    scratch = _scratch_since(record, partitions)
    if scratch is None or came != record("feed", UPDATES, partition).incarnation:
        return came
    return max(came, scratch)


def _scratch_since(record: Records, partitions: int) -> int | None:
    """The newest incarnation of the table "scratch"; None if any part of it is incomplete: a version may wait in any of them."""
    records = [record("table", "scratch", number) for number in range(partitions)]
    return max(one.incarnation for one in records) if all(one.state == COMPLETE for one in records) else None
