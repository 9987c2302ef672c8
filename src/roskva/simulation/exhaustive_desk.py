"""The Registrar of the exhaustive search, as far as one device is concerned: the real core, and the shell's duties in their order.

It stands beside registrar/service.py, handshakes.py, delivery.py and recovery.py and is read against them: mark, write, append, send; a
propagation is sent, awaited, and written if it was not acknowledged. The rows and the marks are durable; all the rest is gone when the
Registrar dies, which it may do between any two durable steps (`dies_after`). Clients share nothing in a Registrar, so each device of
the search has a desk of its own. Not here: several owners of one client, and rows that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roskva.errors import TokenInvalid
from roskva.model import OUTCOME_UPDATE, SETTLED, ClientId, Propagation, Registration, epoch_of, name_of, name_to_text
from roskva.protocol.messages import (
    Ack,
    ClientMessage,
    Grant,
    Init,
    Notify,
    ServerMessage,
    StartAnew,
    Status,
    SyncRequest,
    decode_client,
    encode,
)
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar import core
from roskva.registrar.cells import Created, is_waiting
from roskva.registrar.row import ClientRow, Waiting
from roskva.registrar.sessions import MAYBE_STORED, NOT_STORED, STORED
from roskva.simulation.exhaustive_client import CONFIG, OBJECT
from roskva.simulation.exhaustive_rows import RESEND_MIN_S, Call, Entry, Rows, Visit
from roskva.table.interface import Cell

KEYRING: Final = Keyring({1: b"k" * 32})
DATA_CENTER: Final = "here"
INCARNATION: Final = 1
REGISTRATIONS_MAX: Final = 10
SENT_JUST_NOW_S: Final = 1.0
RESEND_MAX_S: Final = 60.0
SYNC_HINT_S: Final = 60.0


@dataclass(slots=True)
class Desk(Rows):
    visits: dict[ClientId, Visit] = field(default_factory=dict)
    ack_cells: list[tuple[ClientId, Cell]] = field(default_factory=list)
    calls: dict[tuple[str, ClientId], Call] = field(default_factory=dict)  # by the task that asks
    sent: list[tuple[int, bytes]] = field(default_factory=list)  # (link, message), taken away after each input

    def form(self) -> tuple[Any, ...]:
        """What tells two states apart: the cache as its cells, and nothing of it where it equals the table."""
        cached = {client: row._cells for client, row in self.cached.items() if row._cells != self.rows.get(client)}
        rows = {client: dict(sorted(row.items())) for client, row in sorted(self.rows.items())}
        entries = [entry for visit in self.visits.values() for entry in visit.outstanding.values()]
        calls = [
            (name, call.told, call.tell, call.version, None if call.entry is None else _place(call.entry, entries), call.entry)
            for name, call in sorted(self.calls.items())
        ]
        return rows, self.marks, self.visits, cached, list(self.cached), self.appended, self.ack_cells, calls

    def die(self) -> None:
        """The memory is gone; the next Registrar looks at every mark."""
        self.visits, self.cached, self.appended, self.ack_cells, self.calls = {}, {}, {}, [], {}
        self.marks = dict.fromkeys(self.marks, True)
        self.dies_after = None

    # From the client.

    def receive(self, link: int, data: bytes) -> None:
        message = decode_client(data, 1 << 20)
        if message.init is not None:
            self._grant(link, message.init)
            return
        try:
            claims = KEYRING.verify(message.token)
        except TokenInvalid as error:
            self._start_anew(link, message.token, error.code, keep=False)
            return
        visit = self.visits.get(claims.client)
        if visit is None or visit.link != link or visit.number != claims.session:
            visit = self._admit(link, message.token, claims, visit)
        if visit is not None:
            self._heard(visit, message)

    def closed(self, link: int) -> None:
        for visit in list(self.visits.values()):
            if visit.link == link:
                self._leave(visit)

    def _grant(self, link: int, init: Init) -> None:
        created = Created(init.application, init.device)
        row = None
        if init.prior:
            prior = KEYRING.verify(init.prior)
            known = self.row(prior.client, fresh=True)
            row = known if core.may_keep_id(known, prior, created, DATA_CENTER, INCARNATION) else None
        if row is None:
            row = ClientRow(ClientId(f"client-{len(self.rows) + 1}"))
        granted = core.grant(row, created, day=1)
        self._write(row.client, granted.cells)
        token = KEYRING.sign(Claims(row.client, init.application, init.device, granted.session, DATA_CENTER, INCARNATION))
        grant = Grant(nonce=init.nonce, token=token)
        self._send(link, ServerMessage(token=token, summary=row.digest.summary(), grant=grant, config=CONFIG))

    def _admit(self, link: int, token: str, claims: Claims, known: Visit | None) -> Visit | None:
        row = self.row(claims.client, fresh=True)
        admission = core.admit(row, claims.session, None if known is None else known.number)
        if admission != core.Admission.WELCOME:
            self._start_anew(link, token, admission, keep=admission == core.Admission.SUPERSEDED)
            return None
        if known is not None:
            self._leave(known)
            if known.number != claims.session and known.link != link:
                self._start_anew(known.link, known.token, core.Admission.SUPERSEDED, keep=True)
        self.closed(link)
        visit = self.visits[claims.client] = Visit(claims.client, claims.session, token, link)
        self._take_in(visit, row)
        return visit

    def _take_in(self, visit: Visit, row: ClientRow) -> None:
        visit.take(row)
        notifications = [self._notify(entry) for one in row.waiting() if (entry := self._take_up(visit, one)) is not None]
        if notifications:
            self._speak(visit, notify=notifications)
        if self._settled(row):
            self._speak(visit, status=[core.confirmation(row, OBJECT)])
        self._append(self._pending_again(row))

    def _settled(self, row: ClientRow) -> bool:
        """Whether the row shows as done what this process appended: it was answered to somebody else."""
        return not row.pending_count and self.appended.pop(row.client, None) is not None

    def _pending_again(self, row: ClientRow) -> list[Registration]:
        return [
            core.event_of(row, key, seqno, standing.registered, pending)
            for key, seqno, pending in row.pending()
            if (standing := row.standing(key)) is not None
            and standing.seqno == seqno
            and self.appended.get(row.client, (-1.0, 0.0))[0] <= self.now
        ]

    def _leave(self, visit: Visit) -> None:
        visit.outstanding.clear()
        if self.visits.get(visit.client) is visit:
            del self.visits[visit.client]

    def _heard(self, visit: Visit, message: ClientMessage) -> None:
        for ack in message.acks:
            self._acknowledge(visit, ack)
        if message.register or message.unregister or message.sync is not None:
            self._operate(visit, message)
            return
        differ = message.summary is not None and message.summary != visit.summary
        if differ and visit.pending == 0 and self.now - visit.hinted_s >= SYNC_HINT_S:
            visit.hinted_s = self.now
            self._speak(visit, sync_request=SyncRequest())
        elif not message.acks:
            self._speak(visit)

    def _operate(self, visit: Visit, message: ClientMessage) -> None:
        row = self.row(visit.client)
        if message.register or message.unregister:
            decision = core.operate(row, visit.number, visit.operations, message.register, message.unregister, REGISTRATIONS_MAX)
            self._carry_out(visit, decision)
        if message.sync is not None:
            self._carry_out(visit, core.sync(row, visit.number, visit.operations, message.sync, REGISTRATIONS_MAX), answer=True)

    def _carry_out(self, visit: Visit, decision: core.Decision, answer: bool = False) -> None:
        """The caller's duties of `core`, in their order: mark, write, append, answer."""
        if decision.events:
            self._mark(visit.client)
        for cells in decision.writes:
            self._write(visit.client, cells)
        for event in decision.events:
            if not event.registered:
                visit.outstanding.clear()
        visit.take(self.row(visit.client))
        self._append(decision.events)
        if answer or decision.statuses or decision.sync_request is not None or not decision.events:
            self._speak(visit, status=decision.statuses, sync_request=decision.sync_request)

    def _acknowledge(self, visit: Visit, ack: Ack) -> None:
        version = None if ack.version is None else int(ack.version)
        entry = visit.outstanding.get(version is None)
        if entry is None or entry.seqno != int(ack.seqno) or entry.version != version:
            return  # an earlier one: the later is still owed
        del visit.outstanding[version is None]
        entry.acknowledged = True
        if entry.stored != NOT_STORED:
            self.ack_cells.append((visit.client, core.acknowledge(OBJECT, entry.seqno, version)))

    # From the Matcher.

    def begin(self, task: str, told: Propagation) -> int | None:
        """Judge and send. None: it waits for an acknowledgement, or for the wait to be over."""
        judgement = core.judge(self.row(told.client), told)
        if judgement.reissue or judgement.verdict not in (None, SETTLED):
            judgement = core.judge(self.row(told.client, fresh=True), told)  # nothing is dropped before the table was asked
        if judgement.verdict is not None:
            return judgement.verdict
        if judgement.reissue:
            decision = core.reissue(self.row(told.client), [(OBJECT, told.seqno)])
            self._mark(told.client)
            for cells in decision.writes:
                self._write(told.client, cells)
            self._append(decision.events)
            return SETTLED
        call = self.calls[task, told.client] = self._deliver(told)
        if call.entry is None or call.entry.stored == STORED:
            return self.finish(task, told.client)
        return None

    def _deliver(self, told: Propagation) -> Call:
        row = self.row(told.client)
        tell, version = core.notification_of(row, told)
        visit = self.visits.get(told.client)
        if visit is None or not tell:
            return Call(told, None, tell, version)
        entry = self._entry(visit, told.seqno, version)
        cell = row.unknown(OBJECT) if version is None else row.logged(OBJECT, entry.seqno)
        if cell is not None and is_waiting(cell):
            complete = cell.timestamp == entry.seqno if version is None else cell.timestamp >= version
            entry.stored = STORED if complete else max(entry.stored, MAYBE_STORED) if version is not None else entry.stored
        raised = version is not None and entry.version is not None and version > entry.version
        if raised:
            entry.version = version
            entry.stored = min(entry.stored, MAYBE_STORED)
        if raised or self.now - entry.sent_s >= SENT_JUST_NOW_S:
            self._sent(entry)
            self._speak(visit, notify=[self._notify(entry)])
        return Call(told, entry, tell, version)

    def finish(self, task: str, client: ClientId) -> int:
        """Acknowledged, or the wait is over: one write of `pending` done and of what is unacknowledged; then the confirmation."""
        call = self.calls.pop((task, client))
        entry = call.entry
        tell = call.tell and not (entry is not None and entry.acknowledged)
        version = call.version if entry is None else entry.version
        cells = core.settle(self.row(client), call.told, tell, version)
        if cells:
            self._write(client, cells)
        if entry is not None and tell:
            entry.stored = STORED
        if tell:
            self._hand_over(call.told, entry, version)
        if call.told.outcome != OUTCOME_UPDATE:
            self.appended.pop(client, None)
        status = core.status_of(call.told)
        visit = self.visits.get(client)
        if status is not None and visit is not None:
            visit.pending = self.row(client).pending_count
            self._speak(visit, status=[status])
        return SETTLED

    def _hand_over(self, told: Propagation, entry: Entry | None, version: int | None) -> None:
        """What was stored while its client's session began has no entry there: nobody else would send it."""
        visit = self.visits.get(told.client)
        if visit is None or visit.outstanding.get(version is None) is entry is not None:
            return
        if self.row(told.client).standing(OBJECT) != (told.seqno, True):
            return
        taken = self._take_up(visit, Waiting(OBJECT, told.seqno, version))
        if taken is not None:
            self._speak(visit, notify=[self._notify(taken)])

    def forget_calls(self) -> None:
        """Those who asked are gone. What was sent stays owed in memory, and was not stored."""
        self.calls = {}

    def blind(self, task: str, told: Propagation) -> int:
        """A task writes in the stead of this Registrar, which did not answer; it finds the mark."""
        self.calls.pop((task, told.client), None)
        decision = core.blind(ClientRow(told.client, self.rows.get(told.client, {}).values()), told)
        if decision.cells:
            self.land(told.client, decision.cells)
            self.marks[told.client] = True
        return decision.verdict

    # What happens by itself.

    def flush(self) -> None:
        """Nobody waits for these writes: what is lost of them costs a duplicate."""
        cells, self.ack_cells = self.ack_cells, []
        for client, cell in cells:
            self._write(client, [cell])

    def recover(self) -> None:
        """Look at the rows of those whom others marked."""
        unread = [client for client, one in self.marks.items() if one]
        self.marks = dict.fromkeys(self.marks, False)
        for client in unread:
            self._look(client)

    def _look(self, client: ClientId) -> None:
        row = self.row(client, fresh=True)
        if client in self.visits:
            self._take_in(self.visits[client], row)
        else:
            self._settled(row)
            self._append(self._pending_again(row))

    def next_deadline(self) -> float | None:
        dues = [entry.due_s for visit in self.visits.values() for entry in visit.outstanding.values()]
        return min([*dues, *(due_s for due_s, _ in self.appended.values())], default=None)

    def tick(self) -> None:
        for visit in self.visits.values():
            due = [entry for entry in visit.outstanding.values() if entry.due_s <= self.now]
            for entry in due:
                entry.pause_s = min(2 * entry.pause_s, RESEND_MAX_S)
                entry.due_s = self.now + entry.pause_s
                entry.sent_s = self.now
            if due:
                self._speak(visit, notify=[self._notify(entry) for entry in due])
        for client in [client for client, (due_s, _) in self.appended.items() if due_s <= self.now]:
            self._look(client)

    # To the client.

    def _entry(self, visit: Visit, seqno: int, version: int | None) -> Entry:
        entry = visit.outstanding.get(version is None)
        if entry is None or entry.seqno != seqno:
            entry = visit.outstanding[version is None] = Entry(seqno, version)
        return entry

    def _take_up(self, visit: Visit, waiting: Waiting) -> Entry | None:
        known = visit.outstanding.get(waiting.version is None)
        if known is not None and known.seqno == waiting.seqno:
            known.stored = STORED
            if waiting.version is None or known.version is None or waiting.version <= known.version:
                return None  # it was sent, and is sent again when that is due
            known.version = waiting.version
        entry = self._entry(visit, waiting.seqno, waiting.version)
        entry.stored = STORED
        self._sent(entry)
        return entry

    def _sent(self, entry: Entry) -> None:
        entry.sent_s = self.now
        entry.pause_s = RESEND_MIN_S
        entry.due_s = self.now + entry.pause_s

    @staticmethod
    def _notify(entry: Entry) -> Notify:
        version = None if entry.version is None else str(entry.version)
        return Notify(object=name_to_text(name_of(OBJECT)), seqno=str(entry.seqno), version=version, epoch=epoch_of(OBJECT))

    def _speak(
        self,
        visit: Visit,
        status: Sequence[Status] = (),
        notify: Sequence[Notify] = (),
        sync_request: SyncRequest | None = None,
    ) -> None:
        # Without `unsettled`: the core hands it to whoever asks and does nothing by it, and states would differ for it alone.
        message = ServerMessage(token=visit.token, summary=visit.summary, status=[*status], notify=[*notify], sync_request=sync_request)
        self._send(visit.link, message)

    def _start_anew(self, link: int, token: str, code: str, keep: bool) -> None:
        self._send(link, ServerMessage(token=token, start_anew=StartAnew(code=code, keep=keep)))

    def _send(self, link: int, message: ServerMessage) -> None:
        self.sent.append((link, encode(message)))


def _place(entry: Entry, entries: list[Entry]) -> int:
    return next((place for place, one in enumerate(entries) if one is entry), -1)
