"""The sweep `zombies`: rows without `created` are removed, with the Matcher's copies of what they registered (Thialfi 4.2.4).

Such a row is what is left of a client that was collected, or whose row was written once more by somebody who had read it before. It is
never a client that begins: a grant writes `created` together with all else, in one write. The owner is asked all the same. It looks at the
row as it is now, and if a session of that client is online there, tells it to start anew.

Then, in this order:

1. the Matcher's copies are written away, `unregistered` at the seqno that the row names. An event of that registration that is still on
   its way loses against it, as `unregistered` sorts above `registered`;
2. exactly the cells that were read are forgotten, and the delete of `created` with them. A cell that was written since stays, and the
   row is found again the next time.

Nobody loses a notification: whoever was registered under this id must start anew before it hears anything, gets another id, and is
told "unknown" for whatever it registers. Cut short between the two steps, or repeated, the same is done again. When step 1 fails, the row
stays and still names the copies that remain.

Once the delete of `created` is forgotten, could the id come back? Only by a write of `created` that was under way when the client was
collected. Only the first grant of an id writes `created`; nobody was ever told that id if that write has not returned. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from roskva.errors import Unavailable
from roskva.matcher.cells import object_row, registration_cell
from roskva.model import OUTCOME_ZOMBIE, ClientId, ObjectKey, Propagation
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.collection import NO_OBJECT, ask, client_of, is_zombie
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, pages
from roskva.registrar.cells import PENDING, REG, client_row, is_closed
from roskva.registrar.core_collection import COLLECTED
from roskva.table.interface import CELLS_PER_WRITE_MAX, Mutation, Row

log = logging.getLogger(__name__)


class Zombies:
    """One task of the sweep: one partition of clients' rows after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._told = told

    def run(self, partition: int) -> Swept:
        swept = Swept()
        for page in pages(self._connected, "registrar", partition, swept, self._told):
            zombies = {client: row for key, row in page if is_zombie(row) and (client := client_of(key)) is not None}
            swept.proposed += len(zombies)
            if zombies and not self._request.dry_run:
                gone = ask(self._connected, [Propagation(client, NO_OBJECT, 0, OUTCOME_ZOMBIE, 0) for client in zombies], swept)
                self._remove({one.client: zombies[one.client] for one in gone}, swept)
        return swept

    def _remove(self, rows: dict[ClientId, Row], swept: Swept) -> None:
        partitions = self._connected.settings.partitions
        table = self._connected.table
        copies = {client: list(copies_of(client, row, partitions)) for client, row in rows.items()}
        failed = _each(table.write, copies)
        cells = {client: list(_all_cells(client, row, partitions)) for client, row in rows.items() if client not in failed}
        failed |= _each(table.forget, cells)
        swept.done -= len(failed)
        swept.left += len(failed)
        swept.count("copies", sum(len(dropped) for client, dropped in copies.items() if client not in failed))


def copies_of(client: ClientId, row: Row, partitions: int) -> Iterator[Mutation]:
    """The writes that drop what the Matcher may have of this client's registrations."""
    for name, cell in row.items():
        if not name.startswith(REG):
            continue
        key = ObjectKey(name[len(REG) :])
        pending = row.get(PENDING + key)
        if is_closed(cell) and (pending is None or is_closed(pending)):
            continue  # the Matcher has it
        yield Mutation(object_row(key, partitions), [registration_cell(client, cell.timestamp, "", registered=False)])


def _all_cells(client: ClientId, row: Row, partitions: int) -> Iterator[Mutation]:
    cells = [COLLECTED, *row.values()]  # the delete first: no scan shows a row of which nothing else is left
    for start in range(0, len(cells), CELLS_PER_WRITE_MAX):
        yield Mutation(client_row(client, partitions), cells[start : start + CELLS_PER_WRITE_MAX])


def _each(action: Callable[[Sequence[Mutation]], None], wanted: Mapping[ClientId, Sequence[Mutation]]) -> set[ClientId]:
    """All at once; if that fails, client by client. Answers the clients for which it failed."""
    try:
        action([mutation for mutations in wanted.values() for mutation in mutations])
        return set()
    except (Unavailable, OSError):
        pass
    failed = set()
    for client, mutations in wanted.items():
        try:
            action(mutations)
        except (Unavailable, OSError) as error:
            log.warning("the zombie %s stays until the next time: %s", client, error)
            failed.add(client)
    return failed
