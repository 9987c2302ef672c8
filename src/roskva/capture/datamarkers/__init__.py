"""Datamarkers: how far each flow has come, kept durably, and who may move them (Wormhole 3.3.1, 3.3.2).

`interface.py` is what a publisher needs of the place that keeps them, `sqlite.py` a file beside the datastore (single-copy, or publishers
of one host), `postgres.py` a server with standbys, for publishers on several hosts; `opening.py` chooses. Contract tests:
tests/capture/datamarkers/contract.py. Must not import the core, nor anything that reads or sends.
"""

from roskva.capture.datamarkers.interface import Beat, Claim, Datamarkers, Mark
from roskva.capture.datamarkers.opening import open_datamarkers
from roskva.capture.datamarkers.sqlite import SqliteDatamarkers

__all__ = ["Beat", "Claim", "Datamarkers", "Mark", "SqliteDatamarkers", "open_datamarkers"]
