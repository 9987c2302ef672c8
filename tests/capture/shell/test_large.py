"""A change that is larger than a frame may be (64 MiB): told as lost, and nothing else is; one that just fits comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.capture import wire
from roskva.capture.flows import Terms
from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.publisher import ApplicationSettings
from roskva.capture.publisher.reading import ROW_BYTES_MAX
from roskva.capture.subscriber import Callbacks, Shard
from roskva.capture.updates import Update
from tests.capture.shell.numberlog import KEY, NumberLog, NumberReader, number_of
from tests.capture.shell.serving import publishing, subscriber
from tests.capture.shell.watching import until

assert ROW_BYTES_MAX < wire.FRAME_BYTES_MAX == 64 * 2**20


class LargeNumbers(NumberLog):
    """Some numbers have a value beside them."""

    def __init__(self, path: Path, sizes: dict[int, int]) -> None:
        super().__init__(path)
        self.values = {number: b"\0" * size for number, size in sizes.items()}

    def read_after(self, position: Position) -> NumberReader:
        return LargeReader(self, position.sequence if position.index > 0 else position.sequence - 1)


class LargeReader(NumberReader):
    def __init__(self, log: LargeNumbers, after: int) -> None:
        super().__init__(log, after)
        self._values = log.values

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        batch = super().read(changes_max, timeout_s)
        changes = [
            change._replace(columns={**change.columns, "value": self._values.get(number_of(change), b"")}) for change in batch.changes
        ]
        return batch._replace(changes=changes)


class Noting(Callbacks):
    def __init__(self) -> None:
        self.came: list[tuple[int, int] | tuple[Position, Position]] = []

    def on_update(self, update: Update) -> None:
        value = update.change.columns["value"]
        assert isinstance(value, bytes)
        self.came.append((number_of(update.change), len(value)))

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.came.append((after, upto))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("staleness_s", [0.0, 0.01])  # as they are, and compressed
async def test_a_change_of_64_mib_is_told_as_lost_between_its_neighbours(tmp_path: Path, staleness_s: float) -> None:
    fits = ROW_BYTES_MAX - 64
    log = LargeNumbers(tmp_path / "numbers", {1: 64 * 2**20, 3: fits})
    log.append(5)
    noting = Noting()
    try:
        watch = ApplicationSettings(KEY, terms=Terms(staleness_max_s=staleness_s), start="oldest")
        async with publishing(tmp_path, log, applications={"watch": watch}) as publisher, subscriber(publisher, noting):
            await until(lambda: log.gone == 5, 60.0, what="all was dealt with, and acknowledged, the loss as well")
            (status,) = publisher.core.flows()
        assert noting.came == [(0, 0), (Position(0, 2, 0), Position(0, 2, 1)), (2, 0), (3, fits), (4, 0)]
        assert status.stored == Position(0, 5)
    finally:
        log.close()
