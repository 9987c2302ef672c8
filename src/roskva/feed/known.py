"""Which versions count as known: those that came since the last loss of anything that may have held a later one (trap 32).

That is the feed's partition of the object, the Matcher's, and the table "scratch", where versions wait whose rows could not be written. A
version cell names the newest incarnation among them when the version first came; if one of them was lost since, the cell names an
older one than holds now, and nobody who asks is told that he has the latest. Pure but for what the caller's `record` asks of the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roskva.feed.interface import UPDATES
from roskva.table.manifest import COMPLETE, PartitionRecord

UNPROVEN: Final = 0  # before every incarnation
Records = Callable[[str, str, int], PartitionRecord]  # what the manifest says: of kind, name, partition


def known_since(record: Records, partition: int, partitions: int) -> int | None:
    """What a version cell must name to count as known; None while anything that could hold a later one is incomplete."""
    held = [record("feed", UPDATES, partition), record("table", "matcher", partition)]
    held += [record("table", "scratch", number) for number in range(partitions)]
    return max(one.incarnation for one in held) if all(one.state == COMPLETE for one in held) else None


def since_of(record: Records, partition: int, partitions: int, came: int) -> int:
    """What to write into the cell of a version that comes with a record of this incarnation of the feed's partition.

    What comes while something is being recovered proves nothing: it may be the repeat of an older update than one that was lost. Nor does a
    record of a feed that was lost since.
    """
    if came != record("feed", UPDATES, partition).incarnation:
        return UNPROVEN
    return known_since(record, partition, partitions) or UNPROVEN
