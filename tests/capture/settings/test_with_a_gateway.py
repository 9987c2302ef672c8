"""What the notifier sends is what a real gateway takes: versions, invalidations and a reset, each with the key that it needs."""

from __future__ import annotations

from pathlib import Path

from roskva.capture.mapping import Mapper, parse_mapping
from roskva.capture.notifying import HistoryFile, Notifier, Orders
from roskva.capture.positions import Position
from roskva.capture.subscriber.callbacks import Shard
from roskva.capture.updates import Change, Operation, Update
from roskva.config import Settings
from roskva.feed import open_feed
from roskva.feed.interface import FAN_OUTS, UPDATES
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from roskva.model import ObjectKey, epoch_of
from roskva.publisher import Publisher
from roskva.table import open_manifest, open_table


def update(number: int, sequence: int, history: int, operation: Operation = Operation.UPDATE) -> Update:
    return Update(0, Change(Position(history, sequence, 1), 0, operation, "shop", "documents", {"id": number}, {"id": number}))


async def test_a_gateway_takes_versions_invalidations_and_resets(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", listen="127.0.0.1:0")
    gateway = Gateway(settings)
    await gateway.start()
    try:
        async with Publisher(gateway.url, application="demo") as publisher:
            orders = Orders(gateway.url, application="demo", admin_key=load_keys(settings.data).admin)
            mapper = Mapper([parse_mapping(["documents"], ["doc:{id}", "\x01{id}"])])
            notifier = Notifier(mapper, publisher, orders, HistoryFile(tmp_path / "history"))
            await notifier.on_updates(
                Shard("shop", 0),
                [update(1, 90, 1), update(1, 91, 1, Operation.TRUNCATE), update(1, 50, 2), update(2, 51, 2, Operation.DELETE)],
            )
            await notifier.on_data_loss(Shard("shop", 0), Position(2, 51), Position(2, 60))
            await orders.close()
        assert (notifier.published, notifier.invalidated, notifier.resets, notifier.problem) == (6, 4, 1, None)
        assert open_manifest(settings).epoch("demo") == 1
        feed = open_feed(settings)
        epochs = [epoch_of(ObjectKey(one.key)) for partition in range(feed.partitions) for one in feed.read(UPDATES, partition, 0, 100)]
        assert epochs.count(1) == 4
        assert epochs.count(0) >= 2  # what a gateway accepts before it has heard of a reset, it appends once more under the new epoch
        assert sum(len(feed.read(FAN_OUTS, partition, 0, 100)) for partition in range(feed.partitions)) == 4 * feed.partitions
    finally:
        await gateway.stop()
        for engine in (open_table(settings), open_feed(settings), open_manifest(settings)):
            engine.close()
