"""The publisher: reads a datastore's log, and serves the flows of all applications that subscribe to it (Wormhole 3)."""

from roskva.capture.publisher.server import Publisher
from roskva.capture.publisher.settings import ApplicationSettings, PublisherSettings

__all__ = ["ApplicationSettings", "Publisher", "PublisherSettings"]
