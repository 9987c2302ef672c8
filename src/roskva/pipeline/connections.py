"""What a Python worker of Spark keeps from task to task: open feed, open table, links to Registrars.

Workers are forked, reused and live in modules that are imported by name, so a module variable lives as long as the worker. A
connection must not cross a fork: the process id is checked at every use. Imports no Spark.
"""

from __future__ import annotations

import gc
import logging
import os
from functools import cached_property
from typing import TYPE_CHECKING

from roskva.config import Settings
from roskva.feed.interface import Feed
from roskva.propagation.breaker import Breaker
from roskva.propagation.surroundings import REAL, Surroundings
from roskva.table.interface import Table
from roskva.table.manifest import Manifest

if TYPE_CHECKING:
    from roskva.propagation.links import Links


class Connections:
    """The connections of one process to one deployment; each is made when it is first needed."""

    def __init__(self, settings: Settings, around: Surroundings = REAL) -> None:
        self.settings = settings
        self.around = around
        self.pid = os.getpid()
        self.breaker = Breaker(around.clock)  # for the Matcher's rows

    @cached_property
    def feed(self) -> Feed:
        from roskva.feed import open_feed

        return open_feed(self.settings)

    @cached_property
    def table(self) -> Table:
        from roskva.table import open_table

        return open_table(self.settings)

    @cached_property
    def manifest(self) -> Manifest:
        from roskva.table import open_manifest

        return open_manifest(self.settings)

    @cached_property
    def links(self) -> Links:
        from roskva.propagation.links import Links

        return Links(self.settings, self.table)


_mine: Connections | None = None
_calls: dict[str, int] = {}


def connections(settings: Settings) -> Connections:
    global _mine
    if _mine is None or _mine.pid != os.getpid() or _mine.settings != settings:
        # Those of the parent process are left alone, not closed: closing them here would disturb the parent.
        _mine = Connections(settings)
        logging.basicConfig(level=logging.WARNING, format="pipeline worker %(process)d %(levelname)s %(name)s: %(message)s")
    return _mine


def settle_memory(function: str) -> None:
    """Call first in every function that runs in a worker: p50 103 -> 45 ms, CPU of the workers 99 -> 14 %.

    pyspark collects garbage after every task; frozen, what was imported is no longer walked each time. On the 2nd call the imports
    are done, on the 50th the connections and caches are there.
    """
    count = _calls[function] = _calls.get(function, 0) + 1
    if count in (2, 50):
        gc.collect()
        gc.freeze()
