"""The sweep `objects`: of objects that nobody registers and nobody updates, the version is forgotten (docs/sweeps.md).

Without it every object that was ever published stays. A registration then finds no version and yields "unknown": its client fetches.
The first sweep that finds a row without a live registration writes `idle`, at the timestamp of the version, with the day. A later one that
finds `idle` still there, at the version that the row has still, and again nobody registered, forgets these two cells when
`object_retention_days` have passed. If somebody registered meanwhile, `idle` alone goes, and the days begin again. What is unregistered of
the copies goes by the sweep `purge`.

No lock keeps a registration or an update out while a sweep decides. None is needed: exactly the cells that were read are forgotten, and
neither of the two is any of them.

    a registration landed before the row was read    it is seen, and the row stays
    it lands after the row was read                  its copy is a cell that was not read: it stays. The Matcher reads the version after it
                                                     wrote that copy: before the forgetting it finds the version, and tells it; after
                                                     it none, and tells "unknown". Later updates find the copy
    an update landed before the row was read         its version is another than that of `idle`: the days begin again
    it lands after the row was read                  its version is larger, so that cell is not the one that was read: it stays. (A repeat
                                                     of the same version changes nothing, tells whom it finds, and may be forgotten
                                                     with the first)

What must not happen is that a version is forgotten and then an older update comes, and counts as known. So the days are at least those for
which anything can be replayed (`ages`). And while a version of the object waits in scratch, for however long, nothing of the row is
forgotten: it may be an older one, and it comes home once the table is mended. The row of an epoch before a reset is nobody's, whatever
is in it: it goes as a whole, by the same stamp. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from roskva.errors import Unavailable
from roskva.feed.known import UNPROVEN
from roskva.matcher.cells import IDLE, REG, VERSION, idle_cell, idle_day, is_registered
from roskva.matcher.scratch import ATTEMPTS, Homeless, homeless_cell, place
from roskva.model import ObjectKey, hashed, split_object_key
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.ages import Ages, Editor, Plan, ages, epochs
from roskva.pipeline.sweeps.frame import Progress, Request, Swept
from roskva.table.interface import Row, RowKey

log = logging.getLogger(__name__)

_STAYS: Final = Plan()


def collect_object(key: ObjectKey, row: Row, epoch_of_application: Callable[[str], int], retention_days: int, now: Ages) -> Plan:
    """What becomes of an object's row."""
    application, epoch, _ = split_object_key(key)
    if epoch < epoch_of_application(application):
        return _collect_outdated(row, now)
    version, idle = row.get(VERSION), row.get(IDLE)
    in_use = any(is_registered(cell) for name, cell in row.items() if name.startswith(REG))
    if in_use or version is None:
        return _STAYS if idle is None else Plan(forgets=[idle])
    if idle is None or idle.timestamp != version.timestamp:
        return Plan(stamps=[idle_cell(version.timestamp, now.today)])
    return Plan(forgets=[version, idle]) if now.over(idle_day(idle), retention_days) else _STAYS


def _collect_outdated(row: Row, now: Ages) -> Plan:
    """Of an epoch before a reset: updates of it no longer come, nor do registrations, once those on their way have arrived."""
    version, idle = row.get(VERSION), row.get(IDLE)
    timestamp = 0 if version is None else version.timestamp
    if idle is None or idle.timestamp < timestamp:
        return Plan(stamps=[idle_cell(timestamp, now.today)])
    return Plan(forgets=list(row.values())) if now.over(idle_day(idle)) else _STAYS


class Objects:
    """One task of the sweep: one partition of the Matcher's rows after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._editor = Editor(connected, request, told)
        self._epoch = epochs(connected)

    def run(self, partition: int) -> Swept:
        swept = Swept()
        now = ages(self._connected, self._request, swept)
        for plans in self._editor.planned("matcher", partition, lambda key, row: self._of_object(key, row, now), swept):
            versions = {row for row, plan in plans if any(cell.name == VERSION for cell in plan.forgets)}
            kept = self._not_to_be_forgotten(versions, swept)
            self._editor.carry_out([(row, plan) for row, plan in plans if row not in kept], swept)
            swept.count("objects", len(versions - kept))
        return swept

    def _not_to_be_forgotten(self, rows: Collection[RowKey], swept: Swept) -> set[RowKey]:
        """Those of objects of which a version waits in scratch, or may wait there."""
        if not rows:
            return set()
        partitions = self._connected.settings.partitions
        cells = {row: homeless_cell(Homeless(ObjectKey(row.key), 0, UNPROVEN)) for row in rows}
        places = {row: [place(cell, attempt, partitions) for attempt in range(ATTEMPTS)] for row, cell in cells.items()}
        try:
            found = self._connected.table.read([one for some in places.values() for one in some])
        except (Unavailable, OSError) as error:
            log.warning("%d objects are not collected this time, since scratch does not tell what waits there: %s", len(cells), error)
            swept.left += len(cells)
            return set(cells)
        kept = {row for row, some in places.items() if any(cells[row].name in found[one] for one in some)}
        swept.count("in_scratch", len(kept))
        return kept

    def _of_object(self, key: bytes, row: Row, now: Ages) -> Plan:
        try:
            return collect_object(ObjectKey(key), row, self._epoch, self._connected.settings.object_retention_days, now)
        except Exception:
            log.exception("the row %s is not one of an object; it stays", hashed(key))
            return _STAYS
