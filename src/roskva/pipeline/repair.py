"""Repairs what a lost partition took with it: every registration of its objects is registered anew (Thialfi 4.1.5, 4.2.5).

A partition of the Matcher's table held the copies of registrations; one of the feed held updates that nobody may have matched. Either way
nobody knows any more who was to be told of what. The clients' rows still say who is registered, so a sweep reads all of them and
proposes; the owner of each row does it, or the task in its stead, as with any propagation. A registration that is made anew yields
"unknown", so that its client fetches.

One pass over all rows is enough if it began after the loss was recorded. What a row held before the pass came to it is registered
anew; what is registered later is matched later, against the new partition. Rows of a partition that was itself lost after all of that
hold nothing of before: they are left out, so that after a loss of everything nobody registers twice. A pass that is cut short is begun
again: more clients hear "unknown" twice.
Imports no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from roskva.feed.interface import FAN_OUTS, UPDATES
from roskva.model import OUTCOME_LOST, ClientId, ObjectKey, Propagation, epoch_of, partition_of
from roskva.pipeline.connections import Connections
from roskva.pipeline.telling import Counts, Teller
from roskva.probes import reached
from roskva.propagation.patience import persist
from roskva.registrar.cells import CREATED, REG, is_registered, read_created
from roskva.table.interface import Row
from roskva.table.manifest import RECOVERING, Address, PartitionRecord

log = logging.getLogger(__name__)

ROWS_AT_A_TIME: Final = 500
_HELD: Final = frozenset({("table", "matcher"), ("table", "scratch"), ("feed", UPDATES), ("feed", FAN_OUTS)})  # what a pass repairs


class Lost(NamedTuple):
    """A partition that was lost and made again, and whose registrations are to be made anew."""

    address: Address
    incarnation: int


def lost_in(records: Mapping[Address, PartitionRecord]) -> list[Lost]:
    return [
        Lost(address, record.incarnation)
        for address, record in records.items()
        if record.state == RECOVERING and (address.kind, address.name) in _HELD
    ]


def partitions_to_repair(lost: Iterable[Lost], partitions: int) -> frozenset[int]:
    """Of objects: those that the lost ones held something of. What was put aside in scratch may be of any."""
    held = [one.address for one in lost]
    if any(address.name == "scratch" for address in held):
        return frozenset(range(partitions))
    return frozenset(address.partition for address in held)


def registrations_to_repair(
    client: ClientId, row: Row, lost: frozenset[int], partitions: int, epoch_of_application: Callable[[str], int]
) -> Iterator[Propagation]:
    """What a client has registered, of objects in the lost partitions. A row without `created` is nobody's."""
    created = read_created(row.get(CREATED))
    if created is None:
        return
    epoch = epoch_of_application(created.application)
    for name, cell in row.items():
        if name.startswith(REG) and is_registered(cell):
            key = ObjectKey(name[len(REG) :])
            if epoch_of(key) == epoch and partition_of(key, partitions) in lost:
                yield Propagation(client, key, cell.timestamp, OUTCOME_LOST, 0)


def newest_of(lost: Iterable[Lost]) -> int:
    """The incarnation of the last of these losses. Incarnations grow over all partitions of a deployment."""
    return max(one.incarnation for one in lost)


class Repair:
    """One task of a pass: one partition of clients' rows."""

    def __init__(self, connected: Connections, dry_run: bool = False, told: Callable[[], None] = lambda: None) -> None:
        self._connected = connected
        self._dry_run = dry_run
        self._told = told  # called after every page
        self.looked_at = 0
        self.proposed = 0
        self.counts = Counts()
        self._teller = Teller(connected, self.counts)

    def run(self, partition: int, lost: Iterable[int], newest: int) -> Counts:
        """Returns when every row was looked at, and all that it asks for is durable. `newest`: the last of the losses."""
        table, around = self._connected.table, self._connected.around
        if persist("looking at clients' rows", partial(table.incarnation, "registrar", partition), around) > newest:
            reached("pipeline: a pass leaves out rows that began after the loss")
            return self.counts
        wanted, after = frozenset(lost), b""
        while page := persist("reading clients' rows", partial(self._page, partition, after), self._connected.around):
            asked = [told for key, row in page for told in self._asked_of(key, row, wanted)]
            self.looked_at += len(page)
            self.proposed += len(asked)
            if not self._dry_run:
                self._teller.tell(asked)
            self._told()
            after = page[-1][0]
        return self.counts

    def _asked_of(self, key: bytes, row: Row, lost: frozenset[int]) -> list[Propagation]:
        connected = self._connected
        try:
            client = ClientId(key.decode())
            return list(registrations_to_repair(client, row, lost, connected.settings.partitions, connected.manifest.epoch))
        except Exception:
            # As for a Registrar: cells that nobody can read are lost, their client starts anew, and nobody else is held up.
            log.exception("the row of client %r cannot be read; it counts as lost", key)
            return []

    def _page(self, partition: int, after: bytes) -> list[tuple[bytes, Row]]:
        return list(self._connected.table.scan("registrar", partition, after, ROWS_AT_A_TIME))
