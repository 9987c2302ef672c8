"""The source against a real publisher, driven as Spark drives it, with deaths where Spark may die. No session: what Spark itself does with
it is in test_query.py.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from roskva.capture.spark import CaptureSource
from roskva.capture.spark.buffers import Buffers
from roskva.capture.spark.columns import DATA_LOSS, SCHEMA
from roskva.capture.spark.offsets import Offset
from roskva.capture.spark.source import CaptureReader
from roskva.errors import CaptureRefused, InvalidSetting, LogCut, ServiceUnreachable
from tests.capture.spark.service import Service

pytestmark = pytest.mark.e2e

Rows = list[dict[str, Any]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as service:
        yield service


class Died(Exception):
    """Of the driver."""


class Micro:
    """What Spark does with a source: a log of ends, a log of what is done, and a sink that takes a batch once."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.ends: list[dict[str, Any]] = []  # the offsets/ of the checkpoint
        self.done = 0  # its commits/
        self.sink: dict[int, Rows] = {}
        self.repeated = 0
        self.reader: CaptureReader | None = None

    def start(self) -> CaptureReader:
        if self.reader is None:
            self.reader = CaptureSource(self.options).streamReader(SCHEMA)
        return self.reader

    def stop(self) -> None:
        """As when the driver dies: nothing is acknowledged on the way out."""
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    close = stop

    def batch(self, die: Callable[[], bool] = lambda: False) -> bool:
        """The next batch, or the last one again; False: there is nothing. Dies where it is told to."""
        reader = self.start()
        begin = self.ends[self.done - 1] if self.done else reader.initialOffset()
        if len(self.ends) == self.done:
            end = reader.latestOffset(begin, reader.getDefaultReadLimit())
            if end == begin:
                return False
            self._may(die)
            self.ends.append(end)
            self._may(die)
            if self.done:
                reader.commit(begin)
            self._may(die)
        end = self.ends[-1]
        rows = read(reader, begin, end)
        self._may(die)
        if self.done in self.sink:
            self.repeated += 1
            assert self.sink[self.done] == rows, "a repeated batch is another one"
        self.sink[self.done] = rows
        self._may(die)
        self.done += 1
        self._may(die)
        return True

    def _may(self, die: Callable[[], bool]) -> None:
        if die():
            raise Died

    def rows(self) -> Rows:
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def ids(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in self.rows():
            found.setdefault(row["shard"], []).append(int(dict(row["key"])["id"]))
        return found

    def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s; {len(self.rows())} rows in {self.done} batches"
            self.batch()


def read(reader: CaptureReader, start: dict[str, Any], end: dict[str, Any]) -> Rows:
    return [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]


def every(service: Service) -> dict[int, list[int]]:
    return {shard: list(range(shard, service.written, service.shards)) for shard in range(service.shards)}


@pytest.fixture
def micro(service: Service) -> Iterator[Micro]:
    micro = Micro(service.options)
    yield micro
    micro.stop()


def test_every_update_comes_once_and_in_order_whoever_dies_and_where(service: Service, micro: Micro) -> None:
    """The driver dies at random between its steps, the publisher with -9; no batch is ever repeated differently."""
    dice = random.Random(11)
    micro.options["maxUpdatesPerBatch"] = "20"
    killed = died = 0
    for turn in range(60):
        service.write(dice.randrange(1, 30))
        if turn % 20 == 10:
            service.kill()
            service.start()
            killed += 1
        try:
            micro.batch(lambda: dice.random() < 0.04)
        except Died:
            died += 1
            micro.stop()
    micro.until(lambda: len(micro.rows()) >= service.written)
    assert micro.ids() == every(service)
    assert killed == 3
    assert died > 3
    assert micro.repeated > 0
    assert all(len(rows) <= 20 for rows in micro.sink.values())


def test_the_datamarker_never_passes_what_spark_may_ask_for_again(service: Service, micro: Micro) -> None:
    """Spark's commit for a batch comes with the one after it; so the newest is always there to be repeated."""
    for _ in range(3):
        service.write(40)
        micro.until(lambda: len(micro.rows()) >= service.written)
    time.sleep(0.5)  # the publisher asks for datamarkers every 0.1 s
    stored = service.datamarkers()
    newest = micro.sink[micro.done - 1]
    assert newest
    for row in newest:
        mark = stored[row["shard"]]
        assert mark is not None
        assert mark < row["sequence"]
    micro.stop()
    micro.done -= 1
    assert micro.batch()
    assert micro.repeated == 1
    micro.stop()
    service.write(10)
    micro.until(lambda: len(micro.rows()) >= service.written)
    assert micro.ids() == every(service)


def test_prefetching_stops_at_two_batches_and_a_repeated_batch_finds_room_nevertheless(service: Service, micro: Micro) -> None:
    micro.options |= {"maxUpdatesPerBatch": "50", "maxBytesPerBatch": "1000000"}
    text = "x" * 2_000
    service.write(2_000, text=text)
    micro.until(lambda: micro.done == 1)
    flows = micro.start()._flows
    assert flows is not None
    buffers = flows.receiving._buffers
    time.sleep(0.5)
    # A frame of each shard may go beyond: of 256 KiB, and a row.
    assert 100 <= buffers.count <= 100 + 4 * (2**18 // len(text) + 1)
    micro.stop()
    micro.done -= 1
    micro.sink.clear()
    micro.until(lambda: len(micro.rows()) >= service.written)
    assert micro.ids() == every(service)


def test_flows_that_are_closed_while_there_is_no_room_lose_nothing(service: Service, micro: Micro) -> None:
    """A clean restart of the publisher, in the middle of a backlog: what waits for room is dropped, and must come again."""
    micro.options |= {"maxUpdatesPerBatch": "50", "maxBytesPerBatch": "1000000"}
    service.write(2_000, text="x" * 2_000)
    micro.until(lambda: micro.done == 1)
    flows = micro.start()._flows
    assert flows is not None
    receiving = flows.receiving
    deadline_s = time.monotonic() + 10
    while not all(flow.held_bytes for flow in list(receiving._subscriber._flows.values())):
        assert time.monotonic() < deadline_s, "every flow has something that waits"
        time.sleep(0.01)
    service.stop()
    service.start()
    micro.until(lambda: len(micro.rows()) >= service.written)
    assert micro.ids() == every(service)


def test_a_shard_without_updates_lets_go_of_the_log(service: Service, micro: Micro) -> None:
    """What the filter leaves out moves the datamarkers on, with an empty batch now and then."""
    micro.options |= {"application": "picky", "idleSeconds": "1"}
    service.write(8, table="wanted")
    micro.until(lambda: len(micro.rows()) >= 8)
    batches = micro.done
    service.write(100, table="other")
    end = service.log.append([])

    def let_go() -> bool:
        service.write(4, table="other")  # the log goes on
        return min(mark or 0 for mark in service.datamarkers("picky").values()) >= end.sequence

    micro.until(let_go)
    assert len(micro.rows()) == 8
    assert micro.done - batches <= 10
    micro.stop()
    service.write(8, table="wanted")
    micro.until(lambda: len(micro.rows()) >= 16)


def test_idle_it_makes_no_batches(service: Service, micro: Micro) -> None:
    service.write(8)
    micro.until(lambda: len(micro.rows()) >= 8)
    looks: list[Offset] = []
    with pytest.MonkeyPatch.context() as patch:
        look = Buffers.end_after

        def counted(buffers: Buffers, start: Offset, *limits: Any) -> Offset:
            looks.append(start)
            return look(buffers, start, *limits)

        patch.setattr(Buffers, "end_after", counted)
        assert not any(micro.batch() for _ in range(2))
    assert len(looks) < 10, "it waits, and does not ask again and again"


def lose(service: Service, micro: Micro) -> None:
    """The query is behind, and the log is cut."""
    service.write(40)
    micro.until(lambda: len(micro.rows()) >= 40)
    micro.stop()
    service.write(400)
    service.log.rotate()
    service.write(8)
    service.kill()
    service.log.drop_before(service.log.append([]))
    service.start()


def test_what_the_log_has_lost_ends_the_query_with_the_range(service: Service, micro: Micro) -> None:
    lose(service, micro)
    with pytest.raises(LogCut, match=r"begins after 0/\d+: what follows 0/\d+(\.1)? in shard \d of 'files-"):
        micro.until(lambda: len(micro.rows()) >= 48)
    assert len(micro.rows()) == 40


def test_what_the_log_has_lost_is_a_row_if_the_query_shall_go_on(service: Service, micro: Micro) -> None:
    micro.options["failOnDataLoss"] = "false"
    lose(service, micro)
    micro.until(lambda: len(micro.rows()) >= 40 + service.shards + 8)
    lost = [row for row in micro.rows() if row["operation"] == DATA_LOSS]
    assert sorted(row["shard"] for row in lost) == list(range(service.shards))
    for row in lost:
        told = dict(row["columns"])
        assert told.keys() == {"after", "upto", "why"}
        assert told["upto"] == f"0/{row['sequence']}"
    came = sorted(int(dict(row["key"])["id"]) for row in micro.rows() if row["operation"] != DATA_LOSS)
    assert came == [*range(40), *range(440, 448)]


def test_an_old_checkpoint_is_noticed(service: Service, micro: Micro) -> None:
    """Somebody has taken a copy of the checkpoint, and the query went on."""
    service.kill()
    service.datamarker_period_s = 60.0  # no shard is known to be quiet
    service.start()
    service.write(40)
    micro.until(lambda: len(micro.rows()) >= 40)
    ends, done = list(micro.ends), micro.done
    for _ in range(3):
        service.write(40)
        micro.until(lambda: len(micro.rows()) >= service.written)
    micro.stop()
    micro.ends, micro.done = ends, done
    with pytest.raises(InvalidSetting, match="another subscriber of the application"):
        micro.until(lambda: False)


def test_all_that_is_available_now_and_no_more(service: Service, micro: Micro) -> None:
    micro.options["idleSeconds"] = "1"
    service.write(40)
    micro.start().prepareForTriggerAvailableNow()
    service.write(8)
    while micro.batch():
        pass
    assert len(micro.rows()) == 40
    micro.stop()
    service.kill()
    micro.start().prepareForTriggerAvailableNow()
    with pytest.raises(ServiceUnreachable, match="No publisher"):
        micro.batch()


def test_a_publisher_that_is_away_is_waited_for(service: Service, micro: Micro) -> None:
    service.kill()
    assert not micro.batch()
    service.write(8)
    service.start()
    micro.until(lambda: len(micro.rows()) >= 8)
    assert micro.ids() == every(service)


def test_another_publisher_of_the_same_data_goes_on(tmp_path: Path) -> None:
    """The primary dies in mid-stream, and comes back."""
    with Service(tmp_path, names=("p1", "p2")) as service, contextlib.closing(Micro(service.options)) as micro:
        service.write(40)
        micro.until(lambda: len(micro.rows()) >= 40)
        service.kill("p1")
        service.write(40)
        micro.until(lambda: len(micro.rows()) >= 80)
        service.start("p1")
        for _ in range(10):
            service.write(8)
            micro.until(lambda: len(micro.rows()) >= service.written)
        assert micro.ids() == every(service)


def test_the_wrong_key_ends_the_query(service: Service, micro: Micro) -> None:
    micro.options["secretKey"] = "of some other application"
    with pytest.raises(CaptureRefused) as caught:
        micro.until(lambda: False, 10)
    assert "some other" not in str(caught.value)


def test_the_limit_that_spark_gives_is_kept(service: Service, micro: Micro) -> None:
    service.write(100)
    reader = micro.start()
    deadline_s = time.monotonic() + 10
    while not (end := reader.latestOffset({}, ReadMaxRows(3))):
        assert time.monotonic() < deadline_s
    assert len(read(reader, {}, end)) == 3
