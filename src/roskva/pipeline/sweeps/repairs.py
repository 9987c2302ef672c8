"""The sweep `repair`, and who asks for it: it looks for lost partitions, has them repaired, and in the end counts them as complete.

The pass itself is `pipeline/repair.py`. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from roskva.config import Settings
from roskva.pipeline.connections import Connections
from roskva.pipeline.repair import Lost, Repair, lost_in, partitions_to_repair
from roskva.pipeline.sweeps.frame import Progress, Request, Swept
from roskva.pipeline.telling import COUNTS, Counts
from roskva.table.manifest import Manifest

log = logging.getLogger(__name__)


class RepairSweep:
    """A pass as a task of a sweep. It waits for rows that cannot be read now: what it left out would stay lost."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._told = told

    def run(self, partition: int) -> Swept:
        repair = Repair(self._connected, self._request.dry_run, lambda: self._told.so_far(_swept_by(repair)))
        repair.run(partition, self._request.lost)
        return _swept_by(repair)


def _swept_by(repair: Repair) -> Swept:
    counts = {name: getattr(repair.counts, name) for name in COUNTS}
    return Swept(repair.looked_at, repair.proposed, repair.counts.propagations, counts={name: n for name, n in counts.items() if n})


class Repairs:
    """Looks for lost partitions and repairs them. Call `step` again and again."""

    def __init__(self, manifest: Manifest, settings: Settings, repair: Callable[[frozenset[int]], Counts]) -> None:
        self._manifest = manifest
        self._settings = settings
        self._repair = repair
        self._repaired_s: dict[Lost, float] = {}

    def step(self, now_s: float) -> None:
        lost = [one for one in lost_in(self._manifest.snapshot().records) if one not in self._repaired_s]
        if lost:
            log.warning("repairing what was lost: %s", ", ".join(str(one.address) for one in lost))
            counts = self._repair(partitions_to_repair(lost, self._settings.partitions))
            log.warning("%s registrations were made anew", f"{counts.propagations:,}")
            self._repaired_s.update(dict.fromkeys(lost, now_s))
        for one, since_s in list(self._repaired_s.items()):
            # Until no publisher repeats any more what it had published before the loss, the highest version there may not be the latest.
            if now_s - since_s >= self._settings.retry_horizon_s:
                self._manifest.mark_complete(*one.address, one.incarnation)
                del self._repaired_s[one]
