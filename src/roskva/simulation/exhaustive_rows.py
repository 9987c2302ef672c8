"""What the Registrar of the exhaustive search has for one device: rows and marks, which are durable, and what it knows of them in memory.

Every durable step is counted, since the Registrar may die between any two of them. Not here: what it does with them (`exhaustive_desk`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from roskva.model import ClientId, Propagation, Registration
from roskva.protocol.messages import Summary
from roskva.registrar import core
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import NOT_STORED
from roskva.table.interface import Cell, wins

REPEAT_AFTER_S: Final = 5.0
RESEND_MIN_S: Final = 1.0


class Died(Exception):
    """Between two durable steps."""


@dataclass(slots=True)
class Entry:
    """A notification that an online client has not acknowledged."""

    seqno: int
    version: int | None
    stored: int = NOT_STORED
    acknowledged: bool = False
    sent_s: float = -1e9
    due_s: float = 0.0
    pause_s: float = RESEND_MIN_S


@dataclass(slots=True)
class Visit:
    """A session in memory."""

    client: ClientId
    number: int
    token: str
    link: int
    summary: Summary | None = None
    pending: int = 0
    hinted_s: float = -1e9
    operations: core.Operations = field(default_factory=core.Operations)
    outstanding: dict[bool, Entry] = field(default_factory=dict)  # by whether it is an unknown

    def take(self, row: ClientRow) -> None:
        self.summary = row.digest.summary()
        self.pending = row.pending_count


@dataclass(slots=True)
class Call:
    """A propagation that was sent and waits for its acknowledgement."""

    told: Propagation
    entry: Entry | None
    tell: bool
    version: int | None


@dataclass(slots=True)
class Rows:
    rows: dict[ClientId, dict[bytes, Cell]] = field(default_factory=dict)
    marks: dict[ClientId, bool] = field(default_factory=dict)  # durable; whether this Registrar has yet to look at them
    cached: dict[ClientId, ClientRow] = field(default_factory=dict)
    appended: dict[ClientId, tuple[float, float]] = field(default_factory=dict)  # when to append it again, and the pause
    now: float = 0.0
    events: list[Registration] = field(default_factory=list)  # appended to the feed in this input
    steps: int = 0  # durable ones of this input
    dies_after: int | None = None

    def _step(self) -> None:
        if self.dies_after is not None and self.steps >= self.dies_after:
            raise Died
        self.steps += 1

    def _mark(self, client: ClientId) -> None:
        self._step()
        self.marks.setdefault(client, False)  # its own marks it need not read

    def _write(self, client: ClientId, cells: Sequence[Cell]) -> None:
        self._step()
        self.land(client, cells)
        if client in self.cached:
            self.cached[client].apply(cells)

    def land(self, client: ClientId, cells: Sequence[Cell]) -> None:
        row = self.rows.setdefault(client, {})
        for cell in cells:
            if cell.name not in row or wins(cell, row[cell.name]):
                row[cell.name] = cell

    def _append(self, events: Iterable[Registration]) -> None:
        for event in events:
            pause_s = 2 * self.appended[event.client][1] if event.client in self.appended else REPEAT_AFTER_S
            self.appended[event.client] = (self.now + pause_s, pause_s)
            self._step()
            self.events.append(event)

    def row(self, client: ClientId, fresh: bool = False) -> ClientRow:
        if fresh or client not in self.cached:
            self.cached[client] = ClientRow(client, self.rows.get(client, {}).values())
        return self.cached[client]
