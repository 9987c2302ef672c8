"""The table "scratch": where tasks put aside what they cannot write or tell now, so that their batch is done (Thialfi 4.2.6).

`matcher/scratch.py` has the cells, `sweeps/scratched.py` brings them home. Here they are written, and counted. Imports no Spark, and
of the pipeline nothing: gateways ask for the size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.matcher.scratch import ATTEMPTS, SCRATCH, place
from roskva.table.interface import Cell, Mutation, Table

log = logging.getLogger(__name__)

SIZE_MAX: Final = 100_000  # of each partition: beyond that nobody counts


def put(table: Table, cells: Iterable[Cell], partitions: int) -> list[Cell]:
    """Make the cells durable, each at the first of its places that takes it; answers those that none took."""
    left = list(cells)
    for attempt in range(ATTEMPTS):
        if not left:
            break
        by_partition: dict[int, list[Mutation]] = {}
        for cell in left:
            row = place(cell, attempt, partitions)
            by_partition.setdefault(row.partition, []).append(Mutation(row, [cell]))
        left = [cell for mutations in by_partition.values() if not _written(table, mutations) for (cell,) in (m.cells for m in mutations)]
    return left


def _written(table: Table, mutations: list[Mutation]) -> bool:
    try:
        table.write(mutations)
    except (Unavailable, OSError) as error:
        log.warning("scratch cannot be written here now: %s", error)
        return False
    return True


def waiting(table: Table, settings: Settings) -> bool:
    """Whether anything waits there. A partition that cannot be read now is no reason to begin a sweep."""
    return any(_count(table, partition, 1) for partition in range(settings.partitions))


def size(table: Table, settings: Settings, most: int = SIZE_MAX) -> int:
    """About how much waits there: of each partition up to `most`, of those that can be read now."""
    return sum(_count(table, partition, most) for partition in range(settings.partitions))


def _count(table: Table, partition: int, most: int) -> int:
    try:
        return sum(1 for _ in islice(table.scan(SCRATCH, partition, limit=most), most))
    except (Unavailable, OSError):
        return 0
