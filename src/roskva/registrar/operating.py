"""What clients ask of their registrations, carried out: read the row, decide (`core`), mark, write, append, answer (Thialfi 4.1.3).

The operations of one client are done one after the other, each on the row as it durably is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from roskva.config import Settings
from roskva.errors import Overloaded, TooManyRegistrations
from roskva.model import ObjectKey
from roskva.protocol.messages import ClientMessage
from roskva.registrar import core
from roskva.registrar.full_disk import sift
from roskva.registrar.room import PRESSED_AGAIN_S
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import Orders, Session
from roskva.table.interface import Mutation
from roskva.table.lanes import TableLanes

if TYPE_CHECKING:
    from roskva.registrar.service import Registrar


class Operating:
    def __init__(self, registrar: Registrar, settings: Settings, table: TableLanes, orders: Orders, clock: Callable[[], float]) -> None:
        self.registrar = registrar
        self._settings = settings
        self._table = table
        self._orders = orders
        self._clock = clock

    def begin(self, session: Session, message: ClientMessage) -> None:
        channel = session.channel
        if channel is None:
            return
        if self.registrar.recovery.is_behind(session.partition):
            self.registrar.counters.overloaded += 1
            self.registrar.refuse(session, Overloaded("Too many registrations are unfinished.", PRESSED_AGAIN_S))
            return
        done: ClientMessage | None = message
        if self.registrar.disk_full:
            done, refusal = sift(message, self.registrar.disk_full)
            if refusal:
                self.registrar.counters.disk_full += 1
                self.registrar.speak(session, **refusal)
        if done is not None:
            objects = 0 if done.sync is None else len(done.sync.objects or ())
            operations = max(1, len(done.register) + len(done.unregister) + objects)
            self.registrar.admit(channel, session.token, session.client, operations, partial(self._operate, session, done))

    async def _operate(self, asking: Session, message: ClientMessage) -> None:
        async with self._orders.turn(asking.client):
            allowed, refused = await self.registrar.users.sift(asking, message)
            session = self.registrar.sessions.get(asking.client)
            if session is None or session.token != asking.token:
                return  # superseded while it waited for its turn: what it wished no longer counts
            row = await self.registrar.rows.get(session.client, fresh=self.registrar.settling())
            if row.created is None:
                # Collected or lost under a living session: a fresh look, then it starts anew.
                self.registrar.spawn(self.registrar.reread(session))
                return
            if session.is_outranked(row, self._clock()) and session.channel is not None:
                self.registrar.dismiss(session, core.Admission.SUPERSEDED, keep=True)
                return
            limit = session.settings.registrations_per_client_max or self._settings.registrations_per_client_max
            if refused:
                self.registrar.speak(session, status=refused)
            if allowed.register or allowed.unregister:
                decision = core.operate(row, session.number, session.operations, allowed.register, allowed.unregister, limit)
                await self._carry_out(session, row, decision)
            if allowed.sync is not None:
                self.registrar.large.check(session.client)
                row = await self.registrar.rows.get(session.client)
                compared = core.compared(row, allowed.sync)
                decision = core.sync(row, session.number, session.operations, allowed.sync, limit)
                self.registrar.large.did(session.client, compared)
                await self._carry_out(session, row, decision, answer=True)

    async def _carry_out(self, session: Session, row: ClientRow, decision: core.Decision, answer: bool = False) -> None:
        """The caller's duties of `core`, in their order: mark, write, append, answer.

        A sync is answered before the Matcher has heard of it: the client compares the summaries, and need not state it all again.
        """
        client = session.client
        if decision.events:
            await self.registrar.recovery.mark([client])
        try:
            for cells in decision.writes:
                await self._table.write([Mutation(self.registrar.rows.key(client), cells)])
                self.registrar.rows.apply(client, cells)
            if decision.writes:
                # While members settle another owner may have written too: only what the table says counts.
                row = await self.registrar.rows.get(client, fresh=self.registrar.settling())
        except BaseException:
            # Some of it may be durable, and its client's retry adds nothing to what is pending: look at the row soon.
            self.registrar.counters.failed_writes += 1
            self.registrar.rows.drop(client)
            self.registrar.recovery.appended(decision.events)
            self.registrar.recovery.not_appended(decision.events)
            raise
        for event in decision.events:
            if not event.registered:
                self.registrar.unacknowledged.forget(session, event.object)
            else:
                self.registrar.unacknowledged.pacing.forget(session, event.object)  # what it yields is never held back
        self.registrar.counters.registrations += len(decision.events)
        self.registrar.counters.over_limits += sum(status.code == TooManyRegistrations.code for status in decision.statuses)
        if session.take(row, session.read_s):
            self.registrar.lines.changed(session)
        if session.pending:
            self.registrar.rounds.pending[client] = None
        self.registrar.fast.operated(session, row, decision.events)
        await self.registrar.telling.append(decision.events)
        if answer or decision.statuses or decision.sync_request is not None or not decision.events:
            self.registrar.speak(session, status=decision.statuses, sync_request=decision.sync_request)

    async def revoke(self, asking: Session, keys: Sequence[ObjectKey]) -> None:
        """End registrations that the session's user may not have any more, and say so."""
        async with self._orders.turn(asking.client):
            session = self.registrar.sessions.get(asking.client)
            if session is None or session.token != asking.token:
                return
            row = await self.registrar.rows.get(session.client, fresh=self.registrar.settling())
            if row.created is None:
                return
            decision = core.revoke(row, session.number, session.operations, keys)
            self.registrar.counters.revoked += len(decision.events)
            if decision.events:
                await self._carry_out(session, row, decision)
