"""The feed: durable, partitioned logs between those who publish or register and the pipeline that matches them."""

from __future__ import annotations

import threading

from roskva.config import Settings
from roskva.feed.interface import DEAD_LETTERS, REGISTRATIONS, TOPICS, UPDATES, Entry, Feed, Position, Record
from roskva.feed.lanes import FeedLanes
from roskva.feed.sqlite import SqliteFeed
from roskva.table import open_manifest

__all__ = [
    "DEAD_LETTERS",
    "REGISTRATIONS",
    "TOPICS",
    "UPDATES",
    "Entry",
    "Feed",
    "FeedLanes",
    "Position",
    "Record",
    "SqliteFeed",
    "open_feed",
]

# One per process and deployment: Spark's workers call `open_feed` in every task.
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
