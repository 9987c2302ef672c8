"""The sweep `collect`: clients that were not seen for `client_retention_days` lose their `created` (Thialfi 4.2.4).

The sweep names the day on which it saw that a client was last seen. The client's owner refuses if it was seen since, or is online; else it
deletes `created`, in the client's turn. What is left of the row is a zombie, for the sweep `zombies`. A client that is online is seen every
day, by the owner's own write, so it is not even proposed.

If the owner does not answer, the task makes the same judgement by the row, and leaves a mark as with any blind write. Should the owner
have a session of that client after all, the mark leads it to the row, and the client is told to start anew.

Cut short at any point, every client either has its `created` or has lost it for good, and each is as well served as before: the one
goes on, the other starts anew when it returns. Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from roskva.model import DROP_COPY, OUTCOME_COLLECT, SETTLED, ClientId, ObjectKey, Propagation
from roskva.pipeline.connections import Connections
from roskva.pipeline.sweeps.frame import Progress, Request, Swept, pages
from roskva.registrar.cells import CREATED, SEEN, read_created
from roskva.table.interface import Row

log = logging.getLogger(__name__)

NO_OBJECT: Final = ObjectKey(b"")
ROUNDS_MAX: Final = 5  # of telling Registrars: some have been given up by then; the others are asked the next time


class Collection:
    """One task of the sweep: one partition of clients' rows after the other."""

    def __init__(self, connected: Connections, request: Request, told: Progress) -> None:
        self._connected = connected
        self._request = request
        self._told = told
        self._before_day = request.today - connected.settings.client_retention_days

    def run(self, partition: int) -> Swept:
        swept = Swept()
        for page in pages(self._connected, "registrar", partition, swept, self._told):
            found = list(self._unseen(page))
            swept.proposed += len(found)
            if found and not self._request.dry_run:
                ask(self._connected, found, swept)
        return swept

    def _unseen(self, page: Iterable[tuple[bytes, Row]]) -> Iterator[Propagation]:
        for key, row in page:
            client = client_of(key)
            if client is None or is_zombie(row):
                continue
            day = row[SEEN].timestamp if SEEN in row else 0
            if day < self._before_day:
                yield Propagation(client, NO_OBJECT, 0, OUTCOME_COLLECT, day)


def is_zombie(row: Row) -> bool:
    """Nobody's: no `created`, or one that nobody can read, and then the client counts as lost for its owner too."""
    try:
        return read_created(row.get(CREATED)) is None
    except Exception:
        return True


def client_of(key: bytes) -> ClientId | None:
    """None: not a row that any Registrar would write."""
    try:
        return ClientId(key.decode())
    except UnicodeDecodeError:
        log.warning("the row %r is not one of a client", key)
        return None


def ask(connected: Connections, proposed: list[Propagation], swept: Swept) -> list[Propagation]:
    """Ask the owners, and count what they say. Answers those whose clients are gone."""
    told = connected.links.propagate(proposed, rounds_max=ROUNDS_MAX)
    gone = [one for one, verdict in zip(proposed, told.verdicts, strict=True) if verdict == DROP_COPY]
    refused = told.verdicts.count(SETTLED)
    swept.done += len(gone)
    swept.refused += refused
    swept.left += len(proposed) - len(gone) - refused
    if told.blind_writes:
        swept.count("without_owner", told.blind_writes)  # decided by the row alone
    return gone
