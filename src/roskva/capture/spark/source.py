"""The flows of a dataset as a streaming source of Spark: rows as columns.py has them, options as options.py has them.

    from roskva.capture.spark import register

    register(spark)
    updates = spark.readStream.format("roskva_capture").option("publishers", "db1:8480").option("application", "lake") \\
        .option("keyFile", "/etc/roskva/lake-key").load()
    updates.writeStream.format("parquet").option("checkpointLocation", ...).start(...)

**Exactly once.** Spark writes where a batch ends into its checkpoint, asks for its rows, and after a crash asks for the same batch again;
a sink that knows its batches (files, Delta, `foreachBatch` with the batch's number) takes it once. For that the rows between two offsets
must be the same whenever they are asked for. They are: a flow brings its updates in order, from its datamarker on, and the datamarker moves
only in `commit`, which Spark calls for a batch when the one after it is in the checkpoint. So whatever dies, the flow begins at or before
the start of the batch that Spark repeats. With `asyncProgressTrackingEnabled` Spark repeats more than one batch, and promises less.

Spark plans in one Python process of the driver (`latestOffset`, `partitions`, `commit`), which is the one subscriber of the application;
its workers (`read`) only unpack what `partitions` put into their tasks. Idle, it waits for updates for up to a second at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from roskva.capture.spark.columns import SCHEMA, Rows, tasks
from roskva.capture.spark.offsets import BEGINNING, Offset, from_json, to_json
from roskva.capture.spark.options import Options, options_of
from roskva.capture.spark.receiving import Receiving
from roskva.errors import ServiceUnreachable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "roskva_capture"
WAIT_S: Final = 1.0  # the longest that the driver blocks: `query.stop()` waits for it
AVAILABLE_WAIT_S: Final = 10.0  # with the trigger availableNow: silence (or idleSeconds) after which all that there was has come
STOP_S_MAX: Final = 5.0

Answer = TypeVar("Answer")


def register(spark: SparkSession) -> None:
    """So that the session knows the format by its name."""
    spark.dataSource.register(CaptureSource)


class CaptureSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = options_of(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> CaptureReader:
        return CaptureReader(self._options)


class CaptureReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled to the workers, without the key: they need nothing."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._flows: _Flows | None = None
        self._batch: tuple[Offset, Offset, list[Rows]] | None = None  # the last that was asked for: Spark may ask again
        self._moved_s = 0.0
        self._available_us: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return CaptureReader(replace(self._options, key=b"")).__dict__

    def initialOffset(self) -> dict[str, Any]:
        return to_json(BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.updates_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is committed later, by the database's clock, is for the next run."""
        self._available_us = time.time_ns() // 1_000

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = from_json(start)
        flows = self._received(at)
        updates_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**31
        wait_s = WAIT_S if self._available_us is None else min(AVAILABLE_WAIT_S, self._options.idle_s)
        end = flows.run(flows.receiving.end_after(at, updates_max, wait_s, self._available_us))
        if end == at and self._available_us is not None and not flows.run(flows.receiving.receives()):
            raise ServiceUnreachable(
                f"No publisher of {', '.join(self._options.publishers)} gives us a flow: nothing is known of what there is."
            )
        if end == at and self._available_us is None and time.monotonic() - self._moved_s >= self._options.idle_s:
            end = flows.run(flows.receiving.quiet_end(at))
        if end != at:
            self._moved_s = time.monotonic()
            return to_json(end)
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = from_json(start), from_json(end)
        if self._batch is None or self._batch[:2] != (first, last):
            flows = self._received(first)
            rows = flows.run(flows.receiving.between(first, last))
            self._batch = (first, last, tasks(last.dataset, rows))
        return self._batch[2]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return partition.batches()

    def commit(self, end: dict[str, Any]) -> None:
        if self._flows is not None:
            self._flows.run(self._flows.receiving.acknowledge(from_json(end)))

    def stop(self) -> None:
        if self._flows is not None:
            self._flows.stop()
            self._flows = None

    def _received(self, at: Offset) -> _Flows:
        if self._flows is None:
            self._flows = _Flows(self._options, at)
            self._moved_s = time.monotonic()
        return self._flows


class _Flows:
    """The event loop of the subscriber, in a thread of its own; Spark's calls come from another."""

    def __init__(self, options: Options, at: Offset) -> None:
        self.receiving = Receiving(options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="capture flows", daemon=True)
        self._thread.start()
        self.run(self.receiving.start(at))

    def run(self, asked: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def stop(self) -> None:
        """What is open is closed, within STOP_S_MAX; what is not acknowledged comes again."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self.receiving.stop(), self._loop).result(STOP_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S_MAX)
        if not self._thread.is_alive():
            self._loop.close()
