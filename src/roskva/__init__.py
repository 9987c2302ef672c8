"""Roskva keeps caches fresh: clients register for objects, backends publish versions, and every client learns the latest.

For programs: `Client` registers and is notified, `LiveCache` and `BlockingLiveCache` hold values and keep them fresh, `Publisher` and
`BlockingPublisher` tell of changes, `Channel` carries all that over a connection of one's own, `errors` names what can
go wrong. They are imported when first used, so that `import roskva` costs nothing and needs no event loop, Spark or web server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roskva import errors
    from roskva.client.actions import Notification
    from roskva.client.channels import Channel
    from roskva.client.livecache import LiveCache
    from roskva.client.livecache_blocking import BlockingLiveCache
    from roskva.client.livecache_stores import SqliteStore
    from roskva.client.shell import Client
    from roskva.publisher import BlockingPublisher, Publisher

__all__ = ["BlockingLiveCache", "BlockingPublisher", "Channel", "Client", "LiveCache", "Notification", "Publisher", "SqliteStore", "errors"]

_HOMES = {
    "BlockingLiveCache": "roskva.client.livecache_blocking",
    "BlockingPublisher": "roskva.publisher",
    "Channel": "roskva.client.channels",
    "Client": "roskva.client.shell",
    "LiveCache": "roskva.client.livecache",
    "Notification": "roskva.client.actions",
    "Publisher": "roskva.publisher",
    "SqliteStore": "roskva.client.livecache_stores",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("roskva.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
