"""The one Spark job of all sweeps: a single task that runs a sweep's task over one partition of rows, and answers what it counted.

A single task, since the queries need the other cores. The only module of this folder that knows Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.pipeline.connections import Connections, connections, settle_memory
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, task_of
from roskva.pipeline.sweeps.record import Record, clock_ms, write_records
from roskva.pipeline.sweeps.run import run_sweep
from roskva.pipeline.telling import COUNTS, Counts
from roskva.propagation.patience import persist
from roskva.table import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA: Final = "swept binary"
_ARROW: Final = pa.schema([("swept", pa.binary())])


class SweepTask:
    """The function for `mapInArrow`: each row is the number of a partition."""

    def __init__(self, settings: Settings, request: Request, record: Record) -> None:
        self._settings = settings
        self._request = request
        self._record = record

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_memory(self._request.sweep)
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                connected = persist("opening feed and table", lambda: connections(self._settings))
                task = task_of(self._request.sweep)(connected, self._request, Progress(partial(self._note, connected)))
                swept = msgspec.json.encode(task.run(partition))
                yield pa.RecordBatch.from_arrays([pa.array([swept], pa.binary())], schema=_ARROW)

    def _note(self, connected: Connections, swept: Swept) -> None:
        record = msgspec.structs.replace(self._record, swept=self._record.swept.plus(swept))
        try:
            write_records(connected.table, [record], clock_ms)
        except (Unavailable, OSError):
            return  # the next page tells of more


def sweep(spark: SparkSession, settings: Settings, request: Request, record: Record, partition: int) -> Swept:
    """One partition."""
    numbers = spark.range(partition, partition + 1, numPartitions=1)
    total = Swept()
    for (swept,) in numbers.mapInArrow(SweepTask(settings, request, record), _SCHEMA).collect():
        total.add(msgspec.json.decode(bytes(swept), type=Swept))
    return total


def repair(spark: SparkSession, settings: Settings, lost: frozenset[int], newest: int) -> Counts:
    """One pass over all clients' rows: what is registered for objects of these partitions is registered anew."""
    request = Request("repair", clock_ms(), lost=lost, newest=newest)
    record = run_sweep(open_table(settings), settings.partitions, request, partial(sweep, spark, settings))
    return Counts(**{name: record.swept.counts.get(name, 0) for name in COUNTS})
