"""The feed: durable, partitioned logs between those who publish or register and the pipeline that matches them.

The engine and the lanes are imported when they are asked for: the pure cores know the contract alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roskva.feed.interface import DEAD_LETTERS, FAN_OUTS, REGISTRATIONS, TOPICS, UPDATES, Entry, Feed, Position, Record

if TYPE_CHECKING:
    from roskva.feed.lanes import FeedLanes
    from roskva.feed.opening import open_feed
    from roskva.feed.sqlite import SqliteFeed

__all__ = [
    "DEAD_LETTERS",
    "FAN_OUTS",
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

_MODULES = {"FeedLanes": "lanes", "SqliteFeed": "sqlite", "open_feed": "opening"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
