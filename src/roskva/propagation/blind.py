"""Blind writes: what a task writes into clients' rows in the stead of a Registrar that does not answer (Thialfi 4.2.3).

`registrar.core.blind` makes the judgement. A mark for each client is durable before its row is written, so that a crash in between
leaves nothing unseen; and marks are written once more afterwards, since an owner that looked between the two found nothing yet.
Imports no Spark.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from roskva.config import Settings
from roskva.errors import PartitionUnavailable, Unavailable
from roskva.model import ClientId, Propagation, client_partition
from roskva.propagation.breaker import Pieces
from roskva.propagation.surroundings import REAL, Surroundings
from roskva.registrar.cells import client_row, packed, stamped_waiting
from roskva.registrar.core import blind
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell, Mutation, Row, RowKey, Table
from roskva.table.marks import came_in_time, head_in, head_row, marks_for, partitions_of

log = logging.getLogger(__name__)

_MARKED_MAX: Final = 3  # times in a row; then the caller tries again, later


def write_blindly(table: Table, settings: Settings, propagations: Sequence[Propagation], around: Surroundings = REAL) -> list[int | None]:
    """The verdict of each, once everything that it needs is durable; None where the client's row cannot be written now."""
    verdicts: list[int | None] = [None] * len(propagations)
    by_partition: dict[int, dict[ClientId, list[int]]] = {}
    for index, told in enumerate(propagations):
        partition = client_partition(told.client, settings.partitions)
        by_partition.setdefault(partition, {}).setdefault(told.client, []).append(index)
    for partition, clients in by_partition.items():
        for index, verdict in _write_in_pieces(table, settings, partition, clients, propagations, around).items():
            verdicts[index] = verdict
    return verdicts


def _write_in_pieces(
    table: Table,
    settings: Settings,
    partition: int,
    clients: Mapping[ClientId, list[int]],
    propagations: Sequence[Propagation],
    around: Surroundings,
) -> dict[int, int]:
    """Rows of a partition may fail while others of it work: what fails together is tried in halves."""
    decided: dict[int, int] = {}
    search = Pieces(around.clock)
    pieces: deque[Sequence[ClientId]] = deque([list(clients)])
    while pieces and not search.over():
        piece = pieces.popleft()
        try:
            decided |= _write_partition(table, settings, {client: clients[client] for client in piece}, propagations, around)
        except (Unavailable, OSError) as error:
            log.warning("blind writes of %s rows of partition %s are not possible now: %s", f"{len(piece):,}", partition, error)
            pieces += search.halves(piece)
    return decided


def _write_partition(
    table: Table, settings: Settings, clients: Mapping[ClientId, list[int]], propagations: Sequence[Propagation], around: Surroundings
) -> dict[int, int]:
    rows = table.read([client_row(client, settings.partitions) for client in clients])
    verdicts: dict[int, int] = {}
    mutations: list[Mutation] = []
    written: list[ClientId] = []
    for client, indexes in clients.items():
        key = client_row(client, settings.partitions)
        try:
            cells = _judge(client, rows[key], [(index, propagations[index]) for index in indexes], verdicts)
        except Exception:
            # Cells that nobody can read are lost, as for a Registrar: the Matcher drops its copies, and the client starts anew.
            log.exception("the row of client %s cannot be read; it counts as lost", client)
            cells = _judge(client, {}, [(index, propagations[index]) for index in indexes], verdicts)
        if cells:
            written.append(client)
            time_s = around.wall_clock()
            mutations += [Mutation(key, write) for write in packed([stamped_waiting(group, time_s) for group in cells])]
    if mutations:
        _mark(table, settings, written, around)
        table.write(mutations)
        _mark(table, settings, written, around)
    return verdicts


def _judge(client: ClientId, stored: Row, told: Sequence[tuple[int, Propagation]], verdicts: dict[int, int]) -> list[list[Cell]]:
    """Each propagation is judged by the row as those before it will leave it: two reissues must not take one seqno."""
    row = ClientRow(client, stored.values())
    cells: list[list[Cell]] = []
    for index, propagation in told:
        decision = blind(row, propagation)
        verdicts[index] = decision.verdict
        if decision.cells:
            cells.append(decision.cells)
            row.apply(decision.cells)
    return cells


def _mark(table: Table, settings: Settings, clients: Sequence[ClientId], around: Surroundings) -> None:
    """Marks that come hours late, from a process that was stopped meanwhile, lie where nobody looks: then they are written again."""
    rows = [head_row(partition) for partition in partitions_of(clients, settings.partitions)]
    heads = _heads(table, rows)
    for _ in range(_MARKED_MAX):
        table.write(marks_for(clients, heads, settings.partitions, around.unique(12)))
        before, heads = heads, _heads(table, rows)
        if came_in_time(before, heads):
            return
    raise PartitionUnavailable("Marks come too late, again and again.", f"marks-{rows[0].partition}")


def _heads(table: Table, rows: Sequence[RowKey]) -> dict[int, int]:
    found = table.read(rows)
    return {row.partition: head_in(found[row]) for row in rows}
