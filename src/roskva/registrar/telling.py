"""What the Matcher is told of registrations, through the feed: once, again while it has not answered, and anew what was lost.

The row in the table says what is pending; recovery.py remembers what was appended a moment ago, so that it is not repeated too soon.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from roskva.errors import Unavailable
from roskva.feed.interface import REGISTRATIONS, Entry
from roskva.feed.lanes import FeedLanes
from roskva.model import SETTLED, UNAVAILABLE, ClientId, Propagation, Registration
from roskva.registrar import core
from roskva.registrar.counters import Counters
from roskva.registrar.events import encode_registration
from roskva.registrar.recovery import Recovery
from roskva.registrar.row import ClientRow
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import Orders
from roskva.table.interface import Mutation
from roskva.table.lanes import TableLanes

log = logging.getLogger(__name__)


class Telling:
    def __init__(self, table: TableLanes, feed: FeedLanes, rows: Rows, orders: Orders, recovery: Recovery, counters: Counters) -> None:
        self._table = table
        self._feed = feed
        self._rows = rows
        self._orders = orders
        self._recovery = recovery
        self._counters = counters

    async def append(self, events: list[Registration], marked: bool = True) -> None:
        """Tell the Matcher, through the feed. What cannot be appended now stays pending, and is repeated. `marked`: just now, by us."""
        if not events:
            return
        self._recovery.appended(events, marked)
        entries = [Entry(event.object, encode_registration(event)) for event in events]
        try:
            await self._feed.append(REGISTRATIONS, entries)
        except Unavailable as error:
            log.warning("%d registrations wait for the feed: %s", len(events), error)
            self._recovery.not_appended(events)

    def pending_again(self, row: ClientRow) -> list[Registration]:
        """Whoever reads a client's row also repeats its pending cells, those aside that were appended a moment ago."""
        if row.created is None:  # collected or lost: whatever came of it would be void
            self._recovery.forget(row.client)
            return []
        events = [
            core.event_of(row, key, seqno, standing.registered, pending)
            for key, seqno, pending in row.pending()
            if (standing := row.standing(key)) is not None and standing.seqno == seqno
        ]
        events = self._recovery.due(row.client, events)
        self._counters.pending_repeated += len(events)
        return events

    async def reissue(self, client: ClientId, told: Sequence[Propagation]) -> list[int]:
        """Repair registrations of which something was lost. Those that are answered SETTLED are durable."""
        decision = core.Decision()
        try:
            async with self._orders.turn(client):
                row = await self._rows.get(client, fresh=True)
                judged = [core.judge(row, one) for one in told]
                lost = {one.object: one.seqno for one, judgement in zip(told, judged, strict=True) if judgement.reissue}
                verdicts = [SETTLED if one.reissue else UNAVAILABLE if one.verdict is None else one.verdict for one in judged]
                if not lost:
                    return verdicts
                decision = core.reissue(row, list(lost.items()))
                await self._recovery.mark([client])
                await self._table.write([Mutation(self._rows.key(client), cells) for cells in decision.writes])
                for cells in decision.writes:
                    self._rows.apply(client, cells)
        except BaseException as error:
            self._rows.drop(client)
            self._recovery.appended(decision.events)
            self._recovery.not_appended(decision.events)
            if not isinstance(error, Unavailable):
                raise
            return [UNAVAILABLE] * len(told)
        self._counters.reissued += len(decision.events)
        await self.append(decision.events)
        return verdicts
