"""The feed as a streaming source of Spark: rows (topic, partition, offset, incarnation, time_ms, headers, key, value).

Spark plans in one Python process of the driver (`latestOffset`, `partitions`, `commit`) and reads in its workers (`read`). The source
waits for data instead of polling, and never raises for a partition that does not answer: it waits, or reports nothing new.
"""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Iterator, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from roskva.config import Settings
from roskva.feed.interface import DEAD_LETTERS, UPDATES, Feed, Position
from roskva.matcher.forms import SAMPLED, picked
from roskva.pipeline.connections import connections, settle_memory
from roskva.pipeline.offsets import MATCHING, SUBSCRIPTION, Place, Range, Stream, advance, from_json, plan, share_out, to_json
from roskva.pipeline.pace import Pace
from roskva.propagation.patience import persist

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

NAME: Final = "roskva_feed"
WAIT_S: Final = 1.0  # the longest that the driver blocks: `query.stop()` and the commits of an idle feed wait for it
_COMMIT_EVERY_S: Final = 1.0  # a commit is an fsync per partition, and only retention and lag need it
_TRIM_EVERY_S: Final = 60.0

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("incarnation", pa.int64()),
        ("time_ms", pa.int64()),
        ("headers", pa.binary()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


class FeedField(NamedTuple):
    name: str
    type: str  # in Spark's words


_SPARK_TYPES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.binary(): "binary"}
FEED_FIELDS: Final = tuple(FeedField(field.name, _SPARK_TYPES[field.type]) for field in SCHEMA)


def options(settings: Settings, stream: Stream) -> dict[str, str]:
    """Options of a data source are text; settings and stream travel in one of them to the processes that plan and read."""
    return {"reads": base64.b64encode(pickle.dumps((settings, stream))).decode()}


class FeedSource(DataSource):
    """`spark.dataSource.register(FeedSource)`, then `spark.readStream.format(NAME).options(**options(settings, stream))`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._settings: Settings
        self._stream: Stream
        self._settings, self._stream = pickle.loads(base64.b64decode(options["reads"]))

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in FEED_FIELDS)

    def streamReader(self, schema: StructType) -> FeedReader:
        return FeedReader(self._settings, self._stream)


class TaskRanges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: list[Range], planned_us: int = 0) -> None:
        self.ranges = ranges
        self.planned_us = planned_us  # when the batch was begun


class FeedReader(DataSourceStreamReader):
    """Pickled to workers: holds nothing but what it was told, and opens the feed where it is used."""

    def __init__(self, settings: Settings, stream: Stream) -> None:
        self._settings = settings
        self._stream = stream
        self._planning: _Planning | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_stream": self._stream, "_planning": None}

    @property
    def _plans(self) -> _Planning:
        if self._planning is None:
            feed = persist("opening the feed", lambda: connections(self._settings).feed)
            persist("subscribing to the feed", lambda: feed.subscribe(SUBSCRIPTION, self._stream.topics))
            self._planning = _Planning(feed, self._settings, self._stream)
        return self._planning

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self._plans.positions()[0])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return to_json(self._plans.end_after(from_json(start)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned_us = _now_us()
        return [TaskRanges(ranges, planned_us) for ranges in self._plans.tasks(from_json(start), from_json(end))]

    def commit(self, end: dict[str, Any]) -> None:
        self._plans.processed(from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskRanges)
        settle_memory("source")
        feed = persist("opening the feed", lambda: connections(self._settings).feed)
        for wanted in partition.ranges:
            batch = persist(f"reading {wanted.topic}/{wanted.partition}", partial(read_range, feed, wanted, partition.planned_us))
            if batch.num_rows:
                yield batch


def _now_us() -> int:
    return time.time_ns() // 1_000


def read_range(feed: Feed, wanted: Range, planned_us: int = 0) -> pa.RecordBatch:
    """The records of a range. A sampled one says from here on when its batch was begun, and when it was read."""
    records = feed.read(wanted.topic, wanted.partition, wanted.start, wanted.end)
    count = len(records)
    read_us = _now_us()
    headers = [record.headers if SAMPLED not in record.headers else picked(record.headers, planned_us, read_us) for record in records]
    columns = [
        pa.array([wanted.topic] * count, pa.string()),
        pa.array([wanted.partition] * count, pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([wanted.incarnation] * count, pa.int64()),
        pa.array([record.time_ms for record in records], pa.int64()),
        pa.array(headers, pa.binary()),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class _Planning:
    """The driver's side: what is there, what comes next, what is done."""

    def __init__(self, feed: Feed, settings: Settings, stream: Stream) -> None:
        self._feed = feed
        self._stream = stream
        self._records_max = settings.records_per_batch_max
        # A fan-out is long, and one task of it leaves the other cores to those who are not to wait for it.
        self._tasks_max = settings.pipeline_cores if stream == MATCHING else 1
        self._processed: dict[Place, Position] = {}  # told by Spark, not yet committed to the feed
        self._pace = Pace(settings, stream)
        self._committed_s = 0.0
        self._trimmed_s = time.monotonic()

    def positions(self) -> tuple[dict[Place, Position], dict[Place, Position]]:
        """Oldest and newest, of all topics. The newest is read first: what is lost in between must not look like a gap."""
        return persist("looking into the feed", self._read_positions)

    def _read_positions(self) -> tuple[dict[Place, Position], dict[Place, Position]]:
        newest = {(topic, p): at for topic in self._stream.topics for p, at in self._feed.newest(topic).items()}
        oldest = {(topic, p): at for topic in self._stream.topics for p, at in self._feed.oldest(topic).items()}
        return oldest, newest

    def end_after(self, start: dict[Place, Position]) -> dict[Place, Position]:
        """The end of the next batch; waits up to a second for there to be one, or for as long as it may wait."""
        self._pace.asked(time.monotonic())
        oldest, newest = self.positions()
        end = advance(start, oldest, newest, self._records_max)
        if end == start:
            self._trim()
            self._commit(WAIT_S)  # idle: Spark's own call for the last batch may not come before the next one
            if not persist("waiting for the feed", lambda: self._feed.wait(self._stream.topics, newest, WAIT_S)):
                return start
            oldest, newest = self.positions()
            end = advance(start, oldest, newest, self._records_max)
        end = self._rested(start, end)
        self._pace.began(time.monotonic())
        return end

    def _rested(self, start: dict[Place, Position], end: dict[Place, Position]) -> dict[Place, Position]:
        """After the rest that this batch allows, or when something came that does not wait: the end of what there is then."""
        rest_s = self._pace.rest_s(start, end, time.monotonic())
        if rest_s <= 0:
            return end
        topics = [topic for topic in self._stream.topics if topic != UPDATES]
        seen = {place: position for place, position in end.items() if place[0] != UPDATES}
        persist("resting", lambda: self._feed.wait(topics, seen, rest_s))
        oldest, newest = self.positions()
        return advance(start, oldest, newest, self._records_max)

    def tasks(self, start: dict[Place, Position], end: dict[Place, Position]) -> list[list[Range]]:
        oldest, newest = self.positions()
        planned = plan(start, end, oldest, newest)
        for loss in planned.losses:
            log.error("the feed lost records that this query was to read: %s", loss)
        return share_out(planned.ranges, self._tasks_max)

    def _trim(self) -> None:
        """Retention, now and then, of all topics; also when nothing comes any more."""
        now_s = time.monotonic()
        if self._stream != MATCHING or now_s - self._trimmed_s < _TRIM_EVERY_S:
            return
        self._trimmed_s = now_s
        try:
            # Nobody must read the dead letters: they may go by age, and by size when their topic is full.
            self._feed.commit(SUBSCRIPTION, DEAD_LETTERS, self._feed.newest(DEAD_LETTERS))
            self._feed.trim()
        except Exception as error:
            log.warning("the feed cannot be trimmed now: %s", error)

    def processed(self, end: dict[Place, Position]) -> None:
        self._processed.update(end)
        self._commit(_COMMIT_EVERY_S)
        self._trim()

    def _commit(self, every_s: float) -> None:
        now_s = time.monotonic()
        if not self._processed or now_s - self._committed_s < every_s:
            return
        try:
            for topic in self._stream.topics:
                of_topic = {p: position for (name, p), position in self._processed.items() if name == topic}
                if of_topic:
                    self._feed.commit(SUBSCRIPTION, topic, of_topic)
            self._processed.clear()
            self._committed_s = now_s
        except Exception as error:
            log.warning("the feed does not take the pipeline's position now; it is told again with the next batch: %s", error)
