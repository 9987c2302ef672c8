"""The sweep `compare`: the Registrar's view of all registrations against the Matcher's copies of them (Thialfi 4.1.5; drift).

Nothing should ever be found. What is found was lost by something that nobody foresaw: an engine, an operator, a defect of ours. The two
views move while they are compared; what makes it sound is the order in which they are read.

- A client's row first, then the copies, then for what differs the row once more. `pending` is done only when the copy is written, and a
  copy gives way to that of a later operation alone, which is in the row before it. So if a row shows a registration @r that is done,
  before and after the copy was read, that copy must be @r and registered. If it is not, the registration is made anew by its owner,
  above whatever the copy shows (`OUTCOME_LOST`, as in a repair); its client is told "unknown".
- A copy first, then the client's row. The row had the registration before the copy, and `created` before that. So what the row then
  lacks is gone for good, and what it shows as unregistered and done is so: the copy is dropped, unregistered at its own seqno. A
  registration that is made meanwhile has a larger one.

What is `pending` is on its way, and is left alone. So are partitions of the Matcher that are being recovered, for `repair` has them, and
epochs before a reset. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from roskva.errors import Unavailable
from roskva.matcher import cells as matcher_cells
from roskva.matcher.cells import Copy, object_row, read_copies, registration_cell
from roskva.matcher.core import drop_copies
from roskva.model import DROP_COPY, OUTCOME_LOST, SETTLED, ClientId, ObjectKey, Propagation, epoch_of, hashed, logged, split_object_key
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.ages import epochs
from roskva.pipeline.sweeps.collection import ROUNDS_MAX, client_of
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, pages
from roskva.registrar.cells import CREATED, PENDING, REG, client_row, is_pending, is_registered, read_created
from roskva.table.interface import Cell, Mutation, Row, RowKey

log = logging.getLogger(__name__)

_COPIES_AT_A_TIME: Final = 500
_SMALL_ROW_CELLS: Final = 200

MISSING: Final = "missing"
OLDER: Final = "older"
NEWER: Final = "newer"


class Difference(NamedTuple):
    """A registration that the Matcher does not have as its client's row has it."""

    client: ClientId
    object: ObjectKey
    seqno: int  # in the row
    above: int  # whatever the copy shows
    what: str


def standing_registrations(row: Row, epoch: int) -> dict[ObjectKey, int]:
    """What a client has registered, of this epoch, and the Matcher must have: with the seqno."""
    return {
        key: cell.timestamp
        for name, cell in row.items()
        if name.startswith(REG) and is_registered(cell)
        for key in [ObjectKey(name[len(REG) :])]
        if epoch_of(key) == epoch and not is_pending(row.get(PENDING + key))
    }


def difference(client: ClientId, key: ObjectKey, seqno: int, copy: Cell | None) -> Difference | None:
    """What is wrong with the Matcher's copy of a registration @seqno that is done; None: nothing."""
    if copy is None:
        return Difference(client, key, seqno, seqno, MISSING)
    above = max(seqno, copy.timestamp)
    if not matcher_cells.is_registered(copy):
        return Difference(client, key, seqno, above, MISSING)
    if copy.timestamp == seqno:
        return None
    return Difference(client, key, seqno, above, OLDER if copy.timestamp < seqno else NEWER)


def is_dead(created: Cell | None, registration: Cell | None, pending: Cell | None) -> bool:
    """Whether nothing of a copy lives at the Registrar. The cells were read after the copy."""
    if created is None or registration is None:
        return True
    return not is_registered(registration) and not is_pending(pending)


class Comparison:
    """One task of the sweep: one partition of clients' rows, and of the Matcher's, after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._told = told
        self._partitions = connected.settings.partitions
        self._epoch = epochs(connected)

    def run(self, partition: int) -> Swept:
        swept = Swept()
        for page in pages(self._connected, "registrar", partition, swept, self._told):
            self._register_anew(self._confirmed(self._differences(page, swept), swept), swept)
        if self._connected.table.complete("matcher", partition):
            for page in pages(self._connected, "matcher", partition, swept, self._told):
                self._look_for_dead(page, swept)
        return swept

    # From the clients' rows to the copies.

    def _differences(self, page: Iterable[tuple[bytes, Row]], swept: Swept) -> list[Difference]:
        rows = {client: row for key, row in page if (client := client_of(key)) is not None}
        try:
            standing = {client: self._standing(row) for client, row in rows.items()}
            copies = self._copies_of(standing)
        except (Unavailable, OSError) as error:
            log.warning("the registrations of %d clients are not compared this time: %s", len(rows), error)
            swept.left += len(rows)
            return []
        swept.count("compared", sum(len(seqnos) for seqnos in standing.values()))
        expected = ((client, key, seqno) for client, seqnos in standing.items() for key, seqno in seqnos.items())
        found = (difference(client, key, seqno, copies.get((client, key))) for client, key, seqno in expected)
        # Asked after the copies were read: what was lost before that is not blamed on drift.
        return [one for one in found if one is not None and self._is_complete(one.object)]

    def _is_complete(self, key: ObjectKey) -> bool:
        return self._connected.table.complete("matcher", object_row(key, self._partitions).partition)

    def _standing(self, row: Row) -> dict[ObjectKey, int]:
        try:
            created = read_created(row.get(CREATED))
            return {} if created is None else standing_registrations(row, self._epoch(created.application))
        except (Unavailable, OSError):
            raise
        except Exception:
            log.exception("a client's row cannot be read; it counts as lost")
            return {}

    def _copies_of(self, standing: Mapping[ClientId, Iterable[ObjectKey]]) -> dict[tuple[ClientId, ObjectKey], Cell]:
        """Most objects have few copies, and are read together; of those with many, each client's own cell."""
        table = self._connected.table
        rows = {key: object_row(key, self._partitions) for keys in standing.values() for key in keys}
        read = table.read(list(rows.values()), limit=_SMALL_ROW_CELLS)
        found: dict[tuple[ClientId, ObjectKey], Cell] = {}
        for client, keys in standing.items():
            name = matcher_cells.REG + client.encode()
            large = [rows[key] for key in keys if len(read[rows[key]]) >= _SMALL_ROW_CELLS]
            own = table.read(large, prefix=name) if large else {}
            for key in keys:
                copy = own.get(rows[key], read[rows[key]]).get(name)
                if copy is not None:
                    found[client, key] = copy
        return found

    def _confirmed(self, found: Sequence[Difference], swept: Swept) -> list[Difference]:
        """Of what differs, that which the rows still show as it was."""
        if not found:
            return []
        rows = {one.client: client_row(one.client, self._partitions) for one in found}
        try:
            read = self._connected.table.read(list(rows.values()))
        except (Unavailable, OSError) as error:
            log.warning("%d differences cannot be confirmed this time: %s", len(found), error)
            swept.left += len(found)
            return []
        now = {client: self._standing(read[row]) for client, row in rows.items()}
        return [one for one in found if now[one.client].get(one.object) == one.seqno]

    def _register_anew(self, found: Sequence[Difference], swept: Swept) -> None:
        swept.proposed += len(found)
        for one in found:
            swept.count(one.what)
            name = logged(one.object, self._connected.settings.applications)
            log.warning("drift: the Matcher's copy of %s, registered by %s @%d, is %s", name, one.client, one.seqno, one.what)
        if not found or self._request.dry_run:
            return
        asked = [Propagation(one.client, one.object, one.above, OUTCOME_LOST, 0) for one in found]
        told = self._connected.links.propagate(asked, rounds_max=ROUNDS_MAX)
        settled = sum(verdict in (SETTLED, DROP_COPY) for verdict in told.verdicts)
        swept.done += settled
        swept.left += len(asked) - settled
        self._write_drops(drop_copies(asked, told.verdicts, self._partitions), swept)

    # From the copies to the clients' rows.

    def _look_for_dead(self, page: Iterable[tuple[bytes, Row]], swept: Swept) -> None:
        copies = [(ObjectKey(key), copy) for key, row in page for copy in self._live_copies(ObjectKey(key), row)]
        for start in range(0, len(copies), _COPIES_AT_A_TIME):
            some = copies[start : start + _COPIES_AT_A_TIME]
            try:
                dead = self._dead_of(some)
            except (Unavailable, OSError) as error:
                log.warning("%d copies are not compared this time: %s", len(some), error)
                swept.left += len(some)
                continue
            swept.count("copies", len(some))
            swept.proposed += len(dead)
            if dead and not self._request.dry_run:
                drops = [
                    Mutation(object_row(key, self._partitions), [registration_cell(copy.client, copy.seqno, "", registered=False)])
                    for key, copy in dead
                ]
                swept.done += len(dead) if self._write_drops(drops, swept) else 0

    def _live_copies(self, key: ObjectKey, row: Row) -> list[Copy]:
        try:
            application, epoch, _ = split_object_key(key)
            return read_copies(row) if epoch == self._epoch(application) else []
        except ValueError:
            log.exception("the row %s is not one of an object; it is not compared", hashed(key))
            return []

    def _dead_of(self, copies: Sequence[tuple[ObjectKey, Copy]]) -> list[tuple[ObjectKey, Copy]]:
        """Most clients' rows are small, and are read as a whole; of the others, the three cells that count."""
        rows = {copy.client: client_row(copy.client, self._partitions) for _, copy in copies}
        read = self._connected.table.read(list(rows.values()), limit=_SMALL_ROW_CELLS)
        dead: list[tuple[ObjectKey, Copy]] = []
        for key, copy in copies:
            row = rows[copy.client]
            cells = read[row] if len(read[row]) < _SMALL_ROW_CELLS else self._three_cells(row, key)
            if is_dead(cells.get(CREATED), cells.get(REG + key), cells.get(PENDING + key)):
                dead.append((key, copy))
        return dead

    def _three_cells(self, row: RowKey, key: ObjectKey) -> Row:
        reads = (self._connected.table.read([row], prefix=prefix)[row] for prefix in (CREATED, REG + key, PENDING + key))
        return {name: cell for cells in reads for name, cell in cells.items()}

    def _write_drops(self, drops: Sequence[Mutation], swept: Swept) -> bool:
        number = sum(len(one.cells) for one in drops)
        if not number:
            return True
        try:
            self._connected.table.write(drops)
        except (Unavailable, OSError) as error:
            log.warning("copies of dead registrations stay until the next time: %s", error)
            swept.left += number
            return False
        swept.count("dropped", number)
        return True
