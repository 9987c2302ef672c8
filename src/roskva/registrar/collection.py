"""The Registrar's part in collecting clients: it answers what sweeps propose, in the client's turn, on a freshly read row (Thialfi 4.2.4).
And what a client itself wishes that signs out.

The turn is what keeps a handshake out: it either ended before, and then the row says that the client was seen today, or it begins after,
and then finds the client gone and mints another id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from roskva.errors import Unavailable
from roskva.model import UNAVAILABLE, ClientId, Propagation
from roskva.probes import reached
from roskva.registrar.core_collection import COLLECTED, answer
from roskva.registrar.counters import Counters
from roskva.registrar.row import ClientRow
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import Orders, Session
from roskva.table.interface import Cell


@dataclass(frozen=True, slots=True)
class Collection:
    rows: Rows
    orders: Orders
    sessions: Mapping[ClientId, Session]
    counters: Counters
    write: Callable[[Mapping[ClientId, list[list[Cell]]]], Awaitable[set[ClientId]]]  # answers the clients whose write failed
    take_in: Callable[[Session, ClientRow], None]  # tells a session whose row is nobody's to start anew

    async def answer(self, told: Sequence[Propagation]) -> list[int]:
        """A verdict for each. They share their reads and commits with all others."""
        return await asyncio.gather(*(self._answer_one(one) for one in told))

    async def forget(self, asking: Session) -> None:
        """The client wishes to be no more. It is collected at once, and told to start anew: by that it knows that it is done."""
        async with self.orders.turn(asking.client):
            session = self.sessions.get(asking.client)
            if session is None or session.token != asking.token:
                return  # superseded while it waited for its turn
            row = await self.rows.get(asking.client, fresh=True)
            if row.created is not None:
                if await self.write({asking.client: [[COLLECTED]]}):
                    raise Unavailable("The client's row cannot be written now.")
                reached("registrar: a client is forgotten at its wish")
                self.counters.collected += 1
                row = await self.rows.get(asking.client)
            self.take_in(session, row)

    async def _answer_one(self, told: Propagation) -> int:
        client = told.client
        try:
            async with self.orders.turn(client):
                row = await self.rows.get(client, fresh=True)
                session = self.sessions.get(client)
                found = answer(row, told, online=session is not None)
                if found.cells:
                    if await self.write({client: [found.cells]}):
                        return UNAVAILABLE
                    self.counters.collected += 1
                    row = await self.rows.get(client)
                if row.created is None and session is not None:
                    self.take_in(session, row)
        except Unavailable:
            return UNAVAILABLE
        return found.verdict
