"""The sweep `repair`, and who asks for it: it looks for lost partitions, has them repaired, and in the end counts them as complete.

The pass itself is `pipeline/repair.py`. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from roskva.config import Settings
from roskva.errors import Unavailable
from roskva.pipeline.connections import Connections
from roskva.pipeline.repair import Lost, Repair, lost_in, newest_of, partitions_to_repair
from roskva.pipeline.sweeps.frame import Progress, Request, Swept
from roskva.pipeline.sweeps.record import Repaired, read_repaired, write_repaired
from roskva.pipeline.telling import COUNTS, Counts
from roskva.table.interface import Table
from roskva.table.manifest import Manifest

log = logging.getLogger(__name__)

_NOTED_EVERY_S: Final = 30.0  # how long it has waited for publishers: what a restart may cost of it


class RepairSweep:
    """A pass as a task of a sweep. It waits for rows that cannot be read now: what it left out would stay lost."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._told = told

    def run(self, partition: int) -> Swept:
        repair = Repair(self._connected, self._request.dry_run, lambda: self._told.so_far(_swept_by(repair)))
        repair.run(partition, self._request.lost, self._request.newest)
        return _swept_by(repair)


def _swept_by(repair: Repair) -> Swept:
    counts = {name: getattr(repair.counts, name) for name in COUNTS}
    return Swept(repair.looked_at, repair.proposed, repair.counts.propagations, counts={name: n for name, n in counts.items() if n})


class Repairs:
    """Looks for lost partitions and repairs them. Call `step` again and again.

    What was repaired is kept in the table until it is complete: a pipeline that is started again goes on with the wait, and nobody hears
    "unknown" once more. It is written after the pass, never before. Without that record a repair is repeated, which does no harm.
    """

    def __init__(self, manifest: Manifest, table: Table, settings: Settings, repair: Callable[[frozenset[int], int], Counts]) -> None:
        self._manifest = manifest
        self._table = table
        self._settings = settings
        self._repair = repair
        self._repaired_s: dict[Lost, float] = {}
        self._recalled = False
        self._to_note = False
        self._noted_s = float("-inf")

    def step(self, now_s: float) -> None:
        known = self._manifest.snapshot()
        lost = lost_in(known.records)
        self._keep(one for one in self._repaired_s if one in lost)
        if any(one not in self._repaired_s for one in lost):
            self._recall(known.deployment, lost, now_s)
        new = [one for one in lost if one not in self._repaired_s]
        if new:
            log.warning("repairing what was lost: %s", ", ".join(str(one.address) for one in new))
            counts = self._repair(partitions_to_repair(new, self._settings.partitions), newest_of(new))
            log.warning("%s registrations were made anew", f"{counts.propagations:,}")
            self._repaired_s.update(dict.fromkeys(new, now_s))
            self._noted_s, self._to_note = float("-inf"), True
        # Until no publisher repeats any more what it had published before the loss, the highest version there may not be the latest.
        over = [one for one, since_s in self._repaired_s.items() if now_s - since_s >= self._settings.retry_horizon_s]
        for one in over:
            self._manifest.mark_complete(*one.address, one.incarnation)
        self._keep(one for one in self._repaired_s if one not in over)
        if (self._to_note or self._repaired_s) and now_s - self._noted_s >= _NOTED_EVERY_S:
            self._note(known.deployment, now_s)

    def _keep(self, wanted: Iterable[Lost]) -> None:
        kept = {one: self._repaired_s[one] for one in wanted}
        if len(kept) < len(self._repaired_s):
            self._repaired_s, self._noted_s, self._to_note = kept, float("-inf"), True

    def _recall(self, deployment: str, lost: Sequence[Lost], now_s: float) -> None:
        """What a predecessor has repaired, and for how long it has waited since."""
        if self._recalled:
            return
        try:
            found = read_repaired(self._table, deployment)
        except (Unavailable, OSError) as error:
            log.warning("the table does not tell whether it is repaired already; it is repaired again: %s", error)
            return
        self._recalled = True
        for one in found:
            if (repaired := Lost(one.address, one.incarnation)) in lost and repaired not in self._repaired_s:
                log.info("%s was repaired before the pipeline was started again", one.address)
                self._repaired_s[repaired] = now_s - one.waited_ms / 1000

    def _note(self, deployment: str, now_s: float) -> None:
        waited = [Repaired(*one, max(0, int(1000 * (now_s - since_s)))) for one, since_s in self._repaired_s.items()]
        self._noted_s = now_s
        try:
            write_repaired(self._table, deployment, waited)
            self._to_note = False
        except (Unavailable, OSError) as error:
            log.warning("that lost partitions are repaired cannot be written now: %s", error)
