"""Where a query is in a dataset: what Spark writes into its checkpoint, before and after each batch, and gives back after a crash.

Pure. Spark's word for it is an offset: JSON, compared as text. Beside the position of each shard it says how many updates there were up to
it, so that a batch which is repeated is known to be the same one, and to be whole as soon as its last update is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from roskva.capture.positions import Position, position_from_text
from roskva.errors import BadRequest


class Reached(NamedTuple):
    """How far one shard is."""

    position: Position  # all up to here is in a batch
    updates: int = 0  # rows that there were of it, since the checkpoint began
    # No update stands at this position: the publisher said that all up to it was sent, or that it is lost.
    quiet: bool = False

    @property
    def acknowledgement(self) -> Position:
        """What the publisher is told when a batch that ends here is done: all but the last update.

        That one is sent again after an interruption, and dropped here. For it, a datamarker never gets as far as the checkpoint, unless
        the shard is quiet or somebody else acknowledges in this application's name: and that is noticed.
        """
        return self.position if self.quiet else self.position._replace(index=self.position.index - 1)


class Offset(NamedTuple):
    dataset: str
    shards: Mapping[int, Reached]  # one that is not there begins at its datamarker

    def beyond(self, start: Offset) -> bool:
        """Whether there is an update between."""
        return any(reached.updates > start.updates(shard) for shard, reached in self.shards.items())

    def updates(self, shard: int) -> int:
        reached = self.shards.get(shard)
        return 0 if reached is None else reached.updates


BEGINNING: Final = Offset("", {})  # of a query without a checkpoint


def to_json(offset: Offset) -> dict[str, Any]:
    """In an order of its own, since Spark compares the text."""
    if not offset.shards:
        return {}
    shards: dict[str, dict[str, Any]] = {}
    for shard, (position, updates, quiet) in sorted(offset.shards.items()):
        shards[str(shard)] = {"position": str(position), "updates": updates, **({"quiet": True} if quiet else {})}
    return {"dataset": offset.dataset, "shards": shards}


def from_json(value: Mapping[str, Any]) -> Offset:
    if not value:
        return BEGINNING
    try:
        shards = {
            int(shard): Reached(position_from_text(reached["position"]), int(reached["updates"]), bool(reached.get("quiet", False)))
            for shard, reached in value["shards"].items()
        }
        return Offset(str(value["dataset"]), shards)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadRequest(f"The checkpoint has an offset that is not of a source of capture: {str(value)[:200]}.") from None
