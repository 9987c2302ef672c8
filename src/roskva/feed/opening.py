"""Opens the feed of a data directory, once per process: Spark's workers ask in every task."""

from __future__ import annotations

import threading

from roskva.config import Settings
from roskva.feed.sqlite import SqliteFeed
from roskva.table.opening import open_manifest

_opening = threading.Lock()
_feeds: dict[tuple[str, int, str], SqliteFeed] = {}


def open_feed(settings: Settings) -> SqliteFeed:
    """The feed of the data directory, opened once per process."""
    deployment = str(settings.data.absolute()), settings.partitions, settings.data_center
    feed = _feeds.get(deployment)
    if feed is None:
        manifest = open_manifest(settings)
        with _opening:
            feed = _feeds.get(deployment)
            if feed is None:
                feed = SqliteFeed(settings.data, manifest, settings.feed_retention_s, settings.feed_bytes_max)
                _feeds[deployment] = feed
    return feed
