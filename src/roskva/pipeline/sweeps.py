"""Sweeps: jobs over all rows, beside the streaming queries, in the same Spark session. So far there is one: the repair of lost partitions.

A sweep proposes and the owners of rows do it, so one that is cut short is harmless and is begun again. It runs as a single task: the
queries keep the other cores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from roskva.config import Settings
from roskva.pipeline.connections import connections, settle_memory
from roskva.pipeline.patience import persist
from roskva.pipeline.repair import Lost, Repair, lost_in
from roskva.pipeline.telling import COUNTS, COUNTS_SCHEMA, Counts
from roskva.table.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 2.0


class RepairTask:
    """The function for `mapInArrow`: each row is the number of a partition of clients' rows."""

    def __init__(self, settings: Settings, lost: frozenset[int]) -> None:
        self._settings = settings
        self._lost = lost

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_memory("repair")
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                repair = persist("opening feed and table", lambda: Repair(connections(self._settings)))
                yield from repair.run(partition, self._lost).as_arrow()


def repair(spark: SparkSession, settings: Settings, lost: frozenset[int]) -> Counts:
    """One pass over all clients' rows: what is registered for objects of these partitions is registered anew."""
    from pyspark.sql import functions as F

    partitions = spark.range(0, settings.partitions, numPartitions=1)
    done = partitions.mapInArrow(RepairTask(settings, lost), COUNTS_SCHEMA)
    (total,) = done.agg(*(F.sum(name).alias(name) for name in COUNTS)).collect()
    return Counts(**{name: total[name] or 0 for name in COUNTS})


class Repairs:
    """Looks for lost partitions and repairs them, until it is told to stop. Call `step` again and again, or `run` in a thread."""

    def __init__(self, manifest: Manifest, settings: Settings, repair: Callable[[frozenset[int]], Counts]) -> None:
        self._manifest = manifest
        self._settings = settings
        self._repair = repair
        self._repaired_s: dict[Lost, float] = {}

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_EVERY_S):
            try:
                self.step(time.monotonic())
            except Exception:
                if not stop.is_set():
                    log.exception("a repair failed; it is begun again")

    def step(self, now_s: float) -> None:
        lost = [one for one in lost_in(self._manifest.snapshot().records) if one not in self._repaired_s]
        if lost:
            log.warning("repairing what was lost: %s", ", ".join(str(one.address) for one in lost))
            counts = self._repair(frozenset(one.address.partition for one in lost))
            log.warning("%s registrations were made anew", f"{counts.propagations:,}")
            self._repaired_s.update(dict.fromkeys(lost, now_s))
        for one, since_s in list(self._repaired_s.items()):
            # Until no publisher repeats any more what it had published before the loss, the highest version there may not be the latest.
            if now_s - since_s >= self._settings.retry_horizon_s:
                self._manifest.mark_complete(*one.address, one.incarnation)
                del self._repaired_s[one]
