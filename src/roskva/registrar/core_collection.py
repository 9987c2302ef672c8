"""What sweeps ask of a client's owner: may this client be collected, and is this row nobody's (Thialfi 4.2.4)? And what operators order.

A sweep proposes by what it saw some time ago; the row as it durably is decides. To collect a client is to delete `created` at its own
timestamp, 0: that delete wins over every `created` of this id that may still be on its way, so the id never comes back to life. What
else is in the row then belongs to nobody: a zombie, whose cells the sweep `zombies` forgets. A client that returns is told to start
anew, gets another id, registers again and is told "unknown": it fetches, so whatever the collected row held for it is covered.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from roskva.model import DROP_COPY, OUTCOME_COLLECT, OUTCOME_ERASE, OUTCOME_ZOMBIE, SETTLED, Propagation
from roskva.probes import reached
from roskva.registrar.cells import CREATED
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell

ASKED: Final = frozenset({OUTCOME_COLLECT, OUTCOME_ZOMBIE, OUTCOME_ERASE})
COLLECTED: Final = Cell(CREATED, 0, None)


@dataclass(frozen=True, slots=True)
class Answer:
    """SETTLED: refused, the client lives. DROP_COPY: the client is gone, once `cells` are durable."""

    verdict: int
    cells: list[Cell] = field(default_factory=list)


def answer(row: ClientRow, told: Propagation, online: bool) -> Answer:
    """`told.version` is the last day on which the client was seen, as the sweep saw it; `online`: it has a session here."""
    if row.created is None:
        return Answer(DROP_COPY)
    if told.outcome == OUTCOME_ZOMBIE:
        return Answer(SETTLED)
    if told.outcome == OUTCOME_ERASE:
        return Answer(DROP_COPY, [COLLECTED])
    if online or row.seen_day > told.version:
        reached("collection: the client was seen since")
        return Answer(SETTLED)
    reached("collection: a client is collected")
    return Answer(DROP_COPY, [COLLECTED])
