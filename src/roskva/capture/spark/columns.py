"""An update as a row of the DataFrame, and rows on their way to Spark's workers.

    dataset       the identity of the data
    shard         and, within it, in order: history, sequence, index (positions.py). These four name a row
    database, table, operation     as in updates.py; and "data-loss", with `after`, `upto` and `why` as columns (failOnDataLoss=false)
    key, columns, old_key, attached    maps from names to values, as text: true and false, numbers in the shortest form that reads the
                  same, NULL as null. old_key and attached are null if there are none
    unchanged     names of columns that the log leaves out, since they stayed as they were
    base64        which values are bytes, and therefore base64: names with the map before them, such as columns.photo
    committed_at  by the database's clock

Rows leave the driver inside Spark's own tasks, as compressed Arrow, so that a task that is repeated, wherever, has the same ones, and no
worker must reach a publisher. Imports Spark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType, TimestampType

from roskva.capture.positions import Position
from roskva.capture.updates import Change, Columns, Value

DATA_LOSS: Final = "data-loss"
# Of text in one task. Spark warns of tasks above 1,000 KiB, and text shrinks to a third or less.
TASK_BYTES: Final = 2 * 2**20
_ROW_BYTES: Final = 96  # of a row, beside its texts
_TEXTS: Final = MapType(StringType(), StringType())

SCHEMA: Final = StructType(
    [
        StructField("dataset", StringType()),
        StructField("shard", IntegerType()),
        StructField("database", StringType()),
        StructField("table", StringType()),
        StructField("operation", StringType()),
        StructField("key", _TEXTS),
        StructField("columns", _TEXTS),
        StructField("old_key", _TEXTS),
        StructField("attached", _TEXTS),
        StructField("unchanged", ArrayType(StringType())),
        StructField("base64", ArrayType(StringType())),
        StructField("committed_at", TimestampType()),
        StructField("history", LongType()),
        StructField("sequence", LongType()),
        StructField("index", IntegerType()),
    ]
)


class Row(NamedTuple):
    """An update, with its values as text."""

    position: Position
    size: int  # bytes, about
    committed_us: int | None
    database: str
    table: str
    operation: str
    key: Sequence[tuple[str, str | None]]
    columns: Sequence[tuple[str, str | None]]
    old_key: Sequence[tuple[str, str | None]] | None
    attached: Sequence[tuple[str, str | None]] | None
    unchanged: Sequence[str]
    base64: Sequence[str]

    @property
    def lost(self) -> bool:
        return self.operation == DATA_LOSS


def row_of(change: Change) -> Row:
    position, committed_us, operation, database, table, key, columns, old_key, unchanged, attached, _ = change
    binary: list[str] = []
    texts = (
        _texts("key", key, binary),
        _texts("columns", columns, binary),
        _texts("old_key", old_key, binary),
        _texts("attached", attached, binary),
    )
    size = _ROW_BYTES + sum(len(name) + len(text or "") for pairs in texts if pairs for name, text in pairs)
    return Row(
        position,
        size,
        committed_us,
        database,
        table,
        operation.value,
        texts[0] or [],
        texts[1] or [],
        texts[2],
        texts[3],
        unchanged,
        binary,
    )


def loss(after: Position, upto: Position, why: str) -> Row:
    """What stands in the place of updates that will not come."""
    told = [("after", str(after)), ("upto", str(upto)), ("why", why)]
    return Row(upto, _ROW_BYTES, None, "", "", DATA_LOSS, [], told, None, None, (), ())


def text_of(value: Value) -> str | None:
    """As Spark reads it back, with a cast to the type that it had."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _texts(of: str, columns: Columns | None, binary: list[str]) -> list[tuple[str, str | None]] | None:
    if columns is None:
        return None
    binary += [f"{of}.{name}" for name, value in columns.items() if isinstance(value, bytes)]
    return [(name, value if isinstance(value, str) else text_of(value)) for name, value in columns.items()]


class Rows(InputPartition):
    """What one task gives to Spark."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __repr__(self) -> str:
        return f"Rows({len(self.payload)} bytes)"

    def batches(self) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.payload) as stream:
            yield from stream


def tasks(dataset: str, rows: Mapping[int, Sequence[Row]], task_bytes: int = TASK_BYTES) -> list[Rows]:
    """One task for so many bytes, whatever the shards: a small batch is one. Rows of a shard follow each other, in tasks and over them."""
    made: list[Rows] = []
    part: list[tuple[int, Row]] = []
    size = 0
    for shard in sorted(rows):
        for row in rows[shard]:
            if part and size + row.size > task_bytes:
                made.append(_encoded(dataset, part))
                part, size = [], 0
            part.append((shard, row))
            size += row.size
    if part:
        made.append(_encoded(dataset, part))
    return made


@cache
def _arrow() -> pa.Schema:
    return to_arrow_schema(SCHEMA, timezone="UTC")


def _encoded(dataset: str, part: Sequence[tuple[int, Row]]) -> Rows:
    rows = [row for _, row in part]
    positions = [row.position for row in rows]
    columns: list[Iterable[Any]] = [
        [dataset] * len(rows),
        [shard for shard, _ in part],
        [row.database for row in rows],
        [row.table for row in rows],
        [row.operation for row in rows],
        [row.key for row in rows],
        [row.columns for row in rows],
        [row.old_key for row in rows],
        [row.attached for row in rows],
        [row.unchanged for row in rows],
        [row.base64 for row in rows],
        [row.committed_us for row in rows],
        [position.history for position in positions],
        [position.sequence for position in positions],
        [position.index for position in positions],
    ]
    schema = _arrow()
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return Rows(sink.getvalue().to_pybytes())
