"""The subscriber library: what an application links to receive the flows of its shards (Wormhole 3, Table 1)."""

from roskva.capture.subscriber.callbacks import Callbacks, Shard
from roskva.capture.subscriber.service import Subscriber

__all__ = ["Callbacks", "Shard", "Subscriber"]
