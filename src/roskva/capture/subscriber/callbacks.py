"""What an application implements (Wormhole, Table 1). Any method may be a plain function or a coroutine.

A plain one runs on the event loop, and must be quick; a coroutine holds up its own shard only. Calls of one shard come one after the other,
in the log's order, and never beside each other. What raises is logged, nothing after the last acknowledgement counts as dealt with, and the
flow comes again from there after a pause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from roskva.capture.positions import Position
from roskva.capture.updates import Update


class Shard(NamedTuple):
    """A shard of a dataset; replicas of one dataset have the same."""

    dataset: str
    number: int


class Callbacks:
    """Override what you need: `on_update`, or `on_updates` for speed."""

    def on_shard_notice(self, shard: Shard) -> Awaitable[None] | None:
        """Updates of this shard come to this process from now on; again after every interruption."""
        return None

    def on_update(self, update: Update) -> Awaitable[None] | None:
        """One update, which may have come before."""
        return None

    def on_updates(self, shard: Shard, updates: Sequence[Update]) -> Awaitable[None] | None:
        """Many, in order. Called instead of `on_update` if it is overridden."""
        return None

    def on_token(self, shard: Shard, datamarker: Position) -> Awaitable[bool | None] | bool | None:
        """Is all up to here dealt with? Every callback of what was before has returned. It is acknowledged, unless the answer is False:
        then call `Subscriber.acknowledge` when it is so. The publisher asks this now and then, and the library when a flow ends here.
        """
        return None

    def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> Awaitable[None] | None:
        """What is after the first position, up to and with the second, will never come: the datastore has dropped it from its log."""
        return None

    def on_shard_closed(self, shard: Shard) -> Awaitable[None] | None:
        """No more of this shard comes here, for now: it went to another process, or the connection broke."""
        return None
