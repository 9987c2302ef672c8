"""The sweep `purge`: cells that are closed, and that nothing older can follow any more, are forgotten (trap 30; docs/sweeps.md).

What must be seen later is written as a value and not deleted, so closed cells pile up: `unregistered`, `done`, `acknowledged`. Each of them
is there to win over an older write that comes late. Sweeps stamp them with the day, and forget them when that day is long enough ago
(`ages`). Why each may go then, `@s` being its seqno:

    the Matcher's copy, unregistered @s      it voids an event of the same client at s or before that is replayed: none is left
    `reg` unregistered @s, in a client's row   the same for tuples; and the client's next registration of that object must be above s, which
                                             `seqno` and the Registrar's sessions see to (`registrar.core.operate`). While the
                                             unregistration itself is on its way (`pending`), it stays
    `pending` done @s                        it keeps `pending` @s from being written again: whoever could have, is gone
    `log` acknowledged @version              it keeps a replayed update from being told twice: none is left. Who publishes a version once
                                             more has it told once more, as to those clients that acknowledged at once
    `unknown` acknowledged @s                as `log`; and without `pending` nothing tells an unknown again
    `log`, `unknown` waiting, of a           nobody is told any more: what a later operation yielded counts, and seqnos only grow. They
    registration that no longer stands       are closed, and go like the acknowledged ones
    anything of an epoch before a reset      nobody reads it: it is closed, and goes like the others

`created`, `seqno` and `seen` never go. Stamps are blind writes over their own cells, and need no owner: a cached row differs from the table
in the stamp alone, which means nothing to it; if it writes the same closed value again, the stamped one wins. Where a registration or a
notification came in between, that cell has another timestamp or name, and neither the stamp nor the forgetting touches it.
Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from roskva.matcher import cells as matcher_cells
from roskva.model import ClientId, ObjectKey, epoch_of
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.ages import Ages, Editor, Plan, ages, epochs
from roskva.pipeline.sweeps.frame import Progress, Request, Swept
from roskva.registrar.cells import (
    CREATED,
    LOG,
    PENDING,
    REG,
    UNKNOWN,
    closed_on,
    is_closed,
    is_pending,
    is_registered,
    read_created,
    read_log_name,
    stamp_of,
)
from roskva.table.interface import Cell, Row

log = logging.getLogger(__name__)

_NOTHING: Final = Plan()


def purge_client(row: Row, epoch_of_application: Callable[[str], int], now: Ages) -> Plan:
    """What goes of a client's row. One without `created` is nobody's, and the sweep `zombies` has it."""
    created = read_created(row.get(CREATED))
    if created is None:
        return _NOTHING
    epoch = epoch_of_application(created.application)
    return _plan((cell for cell in row.values() if _is_over(cell, row, epoch)), stamp_of, closed_on, now)


def purge_object(row: Row, now: Ages) -> Plan:
    """What goes of the Matcher's copies of an object."""
    gone = (cell for name, cell in row.items() if name.startswith(matcher_cells.REG) and not matcher_cells.is_registered(cell))
    return _plan(gone, matcher_cells.stamp_of, matcher_cells.stamped_copy, now)


def _plan(over: Iterable[Cell], stamp: Callable[[Cell], int | None], stamped: Callable[[Cell, int], Cell], now: Ages) -> Plan:
    stamps: list[Cell] = []
    forgets: list[Cell] = []
    for cell in over:
        day = stamp(cell)
        if day is None:
            stamps.append(stamped(cell, now.today))
        elif now.over(day):
            forgets.append(cell)
    return Plan(stamps, forgets) if stamps or forgets else _NOTHING


def _is_over(cell: Cell, row: Row, epoch: int) -> bool:
    """Whether nothing is owed for a cell any more."""
    if cell.name.startswith(REG):
        key = ObjectKey(cell.name[len(REG) :])
        return epoch_of(key) < epoch or (is_closed(cell) and not _is_pending(row, key))
    if cell.name.startswith(PENDING):
        return is_closed(cell) or epoch_of(ObjectKey(cell.name[len(PENDING) :])) < epoch
    if cell.name.startswith((LOG, UNKNOWN)):
        key, seqno, _ = read_log_name(cell)
        return is_closed(cell) or epoch_of(key) < epoch or not _stands(row, key, seqno)
    return False


def _is_pending(row: Row, key: ObjectKey) -> bool:
    return is_pending(row.get(PENDING + key))


def _stands(row: Row, key: ObjectKey, seqno: int) -> bool:
    cell = row.get(REG + key)
    # A later notification than the registration that we see: it was written when the row had more. Not for us to judge.
    return cell is not None and (cell.timestamp < seqno or (cell.timestamp == seqno and is_registered(cell)))


class Purge:
    """One task of the sweep: one partition of clients' rows, and of the Matcher's, after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._editor = Editor(connected, request, told)
        self._epoch = epochs(connected)

    def run(self, partition: int) -> Swept:
        swept = Swept()
        now = ages(self._connected, self._request, swept)
        for plans in self._editor.planned("registrar", partition, lambda key, row: self._of_client(key, row, now), swept):
            self._editor.carry_out(plans, swept)
        for plans in self._editor.planned("matcher", partition, lambda key, row: purge_object(row, now), swept):
            self._editor.carry_out(plans, swept)
        return swept

    def _of_client(self, key: bytes, row: Row, now: Ages) -> Plan:
        try:
            return purge_client(row, self._epoch, now)
        except Exception:
            # As for a Registrar: cells that nobody can read are lost, their client starts anew, and nobody else is held up.
            log.exception("the row of client %r cannot be read; it counts as lost", ClientId(repr(key)))
            return _NOTHING
