"""A small Registrar over the pure core, in memory and without asyncio: the same duties in the same order as the service's shell.

It loads the row, calls the core, writes, applies, appends, then sends. What the service awaits is a step here: a propagation is begun,
and finished when its acknowledgements came or the wait is over. The table, the feed and time belong to the world; this object may be
thrown away at any moment, and another one begins with the rows and the marks alone.

Long, because it stands beside four modules of the service (handshakes, delivery, recovery, service) and is read against them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roskva.config import ApplicationSettings
from roskva.errors import BadRequest, RoskvaError, TokenInvalid, TooManyOperations, Unavailable
from roskva.feed.interface import REGISTRATIONS
from roskva.model import (
    OUTCOME_UPDATE,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    client_partition,
    epoch_of,
    name_from_text,
    name_of,
    name_to_text,
    object_key,
    version_from_text,
)
from roskva.protocol.messages import (
    Ack,
    ClientMessage,
    Config,
    ErrorReport,
    Grant,
    Init,
    Notify,
    ServerMessage,
    StartAnew,
    Status,
    SyncRequest,
    encode,
)
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar import core
from roskva.registrar.cells import WAITING, Created, client_row
from roskva.registrar.events import encode_registration
from roskva.registrar.row import ClientRow, Waiting
from roskva.registrar.sessions import MAYBE_STORED, NOT_STORED, STORED, Channel, Outstanding, Session
from roskva.table.interface import Cell, Mutation
from tests.properties.store import PARTITIONS, ModelFeed, ModelTable, Steps

ACK_WAIT_S: Final = 0.05
SENT_JUST_NOW_S: Final = 1.0
SYNC_HINT_S: Final = 60.0
SCAN_S: Final = 60.0
REPEAT_AFTER_S: Final = 5.0
DATA_CENTER: Final = "model"


@dataclass(slots=True)
class Owed:
    told: Propagation
    row: ClientRow
    entry: Outstanding | None
    tell: bool
    version: int | None


@dataclass(slots=True)
class Call:
    """One propagation call: sent, and waiting for acknowledgements until `until_s`."""

    verdicts: list[int]
    until_s: float
    awaited: list[tuple[int, Owed]] = field(default_factory=list)
    reissues: list[tuple[int, Propagation]] = field(default_factory=list)

    def answered(self) -> bool:
        return all(owed.entry is None or owed.entry.acknowledged for _, owed in self.awaited)


class RegistrarShell:
    def __init__(
        self,
        table: ModelTable,
        feed: ModelFeed,
        steps: Steps,
        clock: Callable[[], float],
        keyring: Keyring,
        settings: ApplicationSettings,
        mint: Callable[[], ClientId],
        operations_max: int = 1_000,
        registrations_max: int = 1_000,
        incarnation: int = 1,
    ) -> None:
        self.table = table
        self.feed = feed
        self.steps = steps
        self.clock = clock
        self.keyring = keyring
        self.settings = settings
        self.mint = mint
        self.operations_max = operations_max
        self.registrations_max = registrations_max
        self.incarnation = incarnation
        self.sessions: dict[ClientId, Session] = {}
        self.cached: dict[ClientId, ClientRow] = {}
        self.appended: dict[tuple[ClientId, ObjectKey], float] = {}  # registrations on their way -> when to append them again
        self.ack_cells: dict[ClientId, list[Cell]] = {}
        self.cursor = 0  # in the table's marks
        self.next_scan_s = clock() + SCAN_S

    # Rows.

    def row(self, client: ClientId, fresh: bool = False) -> ClientRow:
        if fresh or client not in self.cached:
            key = client_row(client, PARTITIONS)
            self.cached[client] = ClientRow(client, self.table.read([key])[key].values())
        return self.cached[client]

    def write(self, client: ClientId, cells: list[Cell]) -> None:
        try:
            self.table.write([Mutation(client_row(client, PARTITIONS), cells)], self.steps)
        except Unavailable:
            self.cached.pop(client, None)
            raise
        if client in self.cached:
            self.cached[client].apply(cells)

    def drop_caches(self) -> None:
        self.cached.clear()

    def stop(self) -> None:
        """The process is gone, with all that it had in memory."""

    # From clients.

    def receive(self, channel: Channel, message: ClientMessage) -> None:
        try:
            self._receive(channel, message)
        except RoskvaError as error:
            retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
            report = ErrorReport(code=error.code, message=str(error), transient=error.transient, retry_after_s=retry_after_s)
            channel.send(encode(ServerMessage(token=message.token, error=report)))

    def _receive(self, channel: Channel, message: ClientMessage) -> None:
        count = len(message.register) + len(message.unregister) + len(message.acks)
        if message.sync is not None:
            count += len(message.sync.objects or ())
        if count > self.operations_max:
            raise TooManyOperations(count, self.operations_max)
        if message.init is not None:
            self._handshake(channel, message.init)
            return
        try:
            claims = self.keyring.verify(message.token)
        except TokenInvalid as error:
            self._start_anew(channel, message.token, error.code, keep=False)
            return
        session = self.sessions.get(claims.client)
        if session is None or session.channel is not channel or session.number != claims.session:
            session = self._admit(channel, message.token, claims, session)
        if session is not None:
            self._heard(session, message)

    def announce(self, channel: Channel, token: str) -> None:
        self.receive(channel, ClientMessage(token=token))

    def closed(self, channel: Channel) -> None:
        session = channel.session
        if isinstance(session, Session) and session.channel is channel:
            self._leave(session)
        channel.session = None

    def _handshake(self, channel: Channel, init: Init) -> None:
        if isinstance(channel.session, ServerMessage) and channel.session.grant and channel.session.grant.nonce == init.nonce:
            channel.send(encode(channel.session))
            return
        row = self._row_to_keep(init)
        client = self.mint() if row is None else row.client
        row = ClientRow(client) if row is None else row
        granted = core.grant(row, Created(init.application, init.device), day=1)
        self.write(client, granted.cells)
        token = self.keyring.sign(Claims(client, init.application, init.device, granted.session, DATA_CENTER, self.incarnation))
        reply = ServerMessage(
            token=token,
            summary=row.digest.summary(),
            unsettled=row.pending_count + sum(1 for _ in row.waiting()),
            grant=Grant(nonce=init.nonce, token=token),
            config=self._config(),
        )
        if channel.session is None or isinstance(channel.session, ServerMessage):
            channel.session = reply
        channel.send(encode(reply))

    def _row_to_keep(self, init: Init) -> ClientRow | None:
        if not init.prior:
            return None
        try:
            prior = self.keyring.verify(init.prior)
        except TokenInvalid:
            return None
        row = self.row(prior.client, fresh=True)
        keep = core.may_keep_id(row, prior, Created(init.application, init.device), DATA_CENTER, self.incarnation)
        return row if keep else None

    def _admit(self, channel: Channel, token: str, claims: Claims, known: Session | None) -> Session | None:
        if claims.data_center != DATA_CENTER or claims.incarnation != self.incarnation:
            self._start_anew(channel, token, "token-elsewhere", keep=True)
            return None
        row = self.row(claims.client, fresh=True)
        admission = core.admit(row, claims.session, None if known is None else known.number)
        if admission != core.Admission.WELCOME:
            self._start_anew(channel, token, admission, keep=admission == core.Admission.SUPERSEDED)
            return None
        if known is not None:
            self._leave(known)
            if known.number != claims.session and known.channel is not None and known.channel is not channel:
                self._start_anew(known.channel, known.token, core.Admission.SUPERSEDED, keep=True)
        partition = client_partition(claims.client, PARTITIONS)
        session = Session(claims.client, partition, claims.application, claims.device, self.settings, token, claims.session, channel)
        previous = channel.session
        if isinstance(previous, Session) and previous.channel is channel:
            self._leave(previous)
        channel.session = session
        self.sessions[claims.client] = session
        self._take_in(session, row)
        return session

    def _take_in(self, session: Session, row: ClientRow) -> None:
        session.take(row, self.clock())
        self.repeat_pending(row)
        self._resume(session, row)

    def _start_anew(self, channel: Channel, token: str, code: str, keep: bool) -> None:
        channel.send(encode(ServerMessage(token=token, start_anew=StartAnew(code=code, keep=keep))))

    def _leave(self, session: Session) -> None:
        session.begin().outstanding.clear()
        if self.sessions.get(session.client) is session:
            del self.sessions[session.client]

    def _heard(self, session: Session, message: ClientMessage) -> None:
        now_s = self.clock()
        session.heard(now_s)
        if message.acks:
            self.acknowledge(session, message.acks)
        if message.register or message.unregister or message.sync is not None:
            self._operate(session, message)
            return
        differ = message.summary is not None and message.summary != session.summary
        if differ and session.pending == 0 and now_s - session.busy.hinted_s >= SYNC_HINT_S:
            session.begin().hinted_s = now_s
            self._speak(session, sync_request=SyncRequest())
        elif not message.acks:
            self._speak(session)
        if now_s - session.read_s >= session.settings.heartbeat_s:
            self._reread(session)

    def _operate(self, session: Session, message: ClientMessage) -> None:
        limit = self.registrations_max
        if message.register or message.unregister:
            row = self.row(session.client)
            decision = core.operate(row, session.number, session.operations, message.register, message.unregister, limit)
            self._carry_out(session, decision)
        if message.sync is not None:
            row = self.row(session.client)
            self._carry_out(session, core.sync(row, session.number, session.operations, message.sync, limit))

    def _carry_out(self, session: Session, decision: core.Decision) -> None:
        """The caller's duties of `core`, in their order: mark, write, append, answer."""
        if decision.events:
            self.table.mark([session.client], self.steps)
        for cells in decision.writes:
            self.write(session.client, cells)
        for event in decision.events:
            if not event.registered:
                self._forget(session, event.object)
        session.take(self.row(session.client), session.read_s)
        self._append(decision.events)
        if decision.statuses or decision.sync_request is not None or not decision.events:
            self._speak(session, status=decision.statuses, sync_request=decision.sync_request)

    def _append(self, events: Sequence[Registration]) -> None:
        if not events:
            return
        for event in events:
            self.appended[event.client, event.object] = self.clock() + REPEAT_AFTER_S
        with contextlib.suppress(Unavailable):  # what cannot be appended now stays pending, and is repeated
            self.feed.append(REGISTRATIONS, [encode_registration(event) for event in events], self.steps)

    def repeat_pending(self, row: ClientRow) -> None:
        """Whoever reads a client's row also repeats its pending cells, those aside that were appended a moment ago."""
        events = [
            core.event_of(row, key, seqno, standing.registered, pending)
            for key, seqno, pending in row.pending()
            if (standing := row.standing(key)) is not None
            and standing.seqno == seqno
            and self.appended.get((row.client, key), -1.0) <= self.clock()
        ]
        self._append(events)

    def _reissue(self, client: ClientId, key: ObjectKey, above: int) -> int:
        try:
            decision = core.reissue(self.row(client, fresh=True), [(key, above)])
            self.table.mark([client], self.steps)
            for cells in decision.writes:
                self.write(client, cells)
        except Unavailable:
            return UNAVAILABLE
        self._append(decision.events)
        return SETTLED

    def _reread(self, session: Session) -> None:
        row = self.row(session.client, fresh=True)
        if row.created is None and session.channel is not None:
            self._start_anew(session.channel, session.token, core.Admission.GONE, keep=False)
            self._leave(session)
        else:
            self._take_in(session, row)

    def _speak(self, session: Session, **what: Any) -> None:
        if session.channel is None:
            return
        session.told_unsettled = session.unsettled
        session.sent_s = self.clock()
        message = ServerMessage(token=session.token, summary=session.summary, unsettled=session.unsettled, **what)
        session.channel.send(encode(message))

    def _config(self) -> Config:
        wished = self.settings
        return Config(
            heartbeat_s=wished.heartbeat_s,
            keepalive_s=wished.keepalive_s,
            retry_min_s=wished.retry_min_s,
            retry_max_s=wished.retry_max_s,
            quiet_s=wished.quiet_s,
            operations_per_message_max=self.operations_max,
            registrations_max=self.registrations_max,
        )

    # Delivery.

    def begin(self, propagations: Sequence[Propagation]) -> Call:
        """Judge each tuple by its row, and send. What nobody is awaited for is stored at once."""
        call = Call([SETTLED] * len(propagations), self.clock() + ACK_WAIT_S)
        at_once: list[tuple[int, Owed]] = []
        outbox: dict[ClientId, list[Notify]] = {}
        for index, told in enumerate(propagations):
            row = self.row(told.client)
            judgement = core.judge(row, told)
            if judgement.reissue or judgement.verdict not in (None, SETTLED):
                row = self.row(told.client, fresh=True)  # nothing is dropped or repaired before the table was asked
                judgement = core.judge(row, told)
            if judgement.verdict is not None:
                call.verdicts[index] = judgement.verdict
            elif judgement.reissue:
                call.reissues.append((index, told))
            else:
                owed, awaited = self._send(told, row, outbox)
                (call.awaited if awaited else at_once).append((index, owed))
        for client, notifications in outbox.items():
            self._speak(self.sessions[client], notify=notifications)
        self._store(at_once, call.verdicts)
        return call

    def finish(self, call: Call) -> list[int]:
        """The acknowledgements came, or the wait is over: what is unacknowledged is written, then the verdicts are final."""
        self._store(call.awaited, call.verdicts)
        for index, told in call.reissues:
            call.verdicts[index] = self._reissue(told.client, told.object, told.seqno)
        return call.verdicts

    def _send(self, told: Propagation, row: ClientRow, outbox: dict[ClientId, list[Notify]]) -> tuple[Owed, bool]:
        tell, version = core.notification_of(row, told)
        session = self.sessions.get(told.client)
        if session is None or not tell:
            return Owed(told, row, None, tell, version), False
        now_s = self.clock()
        entry = self._entry(session, told.object, told.seqno, version)
        self._note_stored(entry, row, version)
        raised = version is not None and entry.version is not None and version > entry.version
        if raised:
            entry.version = version
            entry.stored = min(entry.stored, MAYBE_STORED)
        if raised or now_s - entry.sent_s >= SENT_JUST_NOW_S:
            self._sent(session, entry)
            outbox.setdefault(session.client, []).append(self._notify(entry))
        awaited = session.answer_ms <= ACK_WAIT_S * 1000 and entry.stored != STORED
        return Owed(told, row, entry, tell, version), awaited

    @staticmethod
    def _note_stored(entry: Outstanding, row: ClientRow, version: int | None) -> None:
        cell = row.unknown(entry.object) if version is None else row.logged(entry.object, entry.seqno)
        if cell is None or cell.value != WAITING:
            return
        if version is None:
            entry.stored = STORED if cell.timestamp == entry.seqno else entry.stored
        else:
            entry.stored = STORED if cell.timestamp >= version else max(entry.stored, MAYBE_STORED)

    def _entry(self, session: Session, key: ObjectKey, seqno: int, version: int | None) -> Outstanding:
        name = (key, version is None)
        entry = session.outstanding.get(name)
        if entry is None or entry.seqno != seqno:
            entry = session.begin().outstanding[name] = Outstanding(key, seqno, version)
        return entry

    def _sent(self, session: Session, entry: Outstanding) -> None:
        entry.sent_s = self.clock()
        entry.pause_s = session.settings.resend_min_s
        entry.due_s = entry.sent_s + entry.pause_s

    @staticmethod
    def _notify(entry: Outstanding) -> Notify:
        version = None if entry.version is None else str(entry.version)
        return Notify(name_to_text(name_of(entry.object)), str(entry.seqno), version, epoch_of(entry.object))

    def _store(self, owed: Iterable[tuple[int, Owed]], verdicts: list[int]) -> None:
        """One write per client: `pending` done, together with what is still unacknowledged. Then registrations are confirmed."""
        owed = list(owed)
        cells_of: dict[ClientId, list[Cell]] = {}
        for _, one in owed:
            entry = one.entry
            row = self.cached.get(one.told.client, one.row)
            tell = one.tell and not (entry is not None and entry.acknowledged)
            version = one.version if entry is None else entry.version
            cells = core.settle(row, one.told, tell, version)
            if cells:
                cells_of.setdefault(one.told.client, []).extend(cells)
            if entry is not None and tell:
                entry.stored = STORED
        failed: set[ClientId] = set()
        for client, cells in cells_of.items():
            try:
                self.write(client, cells)
            except Unavailable:
                failed.add(client)
        confirmed: dict[ClientId, list[Status]] = {}
        for index, one in owed:
            client = one.told.client
            if client in failed:
                verdicts[index] = UNAVAILABLE
                continue
            if one.told.outcome != OUTCOME_UPDATE:
                self.appended.pop((client, one.told.object), None)
            status = core.status_of(one.told)
            if status is not None and client in self.sessions:
                confirmed.setdefault(client, []).append(status)
        for client, statuses in confirmed.items():
            session = self.sessions[client]
            session.pending = self.row(client).pending_count
            self._speak(session, status=statuses)

    def acknowledge(self, session: Session, acks: Sequence[Ack]) -> None:
        for ack in acks:
            try:
                key = object_key(session.application, ack.epoch, name_from_text(ack.object))
                version = None if ack.version is None else version_from_text(ack.version)
            except BadRequest:
                continue
            self._acknowledge_one(session, key, int(ack.seqno), version)

    def _acknowledge_one(self, session: Session, key: ObjectKey, seqno: int, version: int | None) -> None:
        name = (key, version is None)
        entry = session.outstanding.get(name)
        if entry is None or entry.seqno != seqno or version != entry.version:
            return  # an earlier one: the later is still owed. A later one was never sent: nobody can have it from us.
        del session.outstanding[name]
        entry.acknowledged = True
        if entry.stored != NOT_STORED:
            self.ack_cells.setdefault(session.client, []).append(core.acknowledge(key, seqno, version))
        session.answered(self.clock() - entry.sent_s)

    def flush_acknowledged(self) -> None:
        """Nobody waits for these writes: what is lost of them costs a duplicate."""
        ack_cells, self.ack_cells = self.ack_cells, {}
        for client, cells in ack_cells.items():
            with contextlib.suppress(Unavailable):
                self.write(client, cells)

    def _resume(self, session: Session, row: ClientRow) -> None:
        """Send what the row says is waiting: at session start, after a blind write, at a scan."""
        notifications = [self._notify(entry) for waiting in list(row.waiting()) if (entry := self._take_up(session, waiting)) is not None]
        if notifications:
            self._speak(session, notify=notifications)

    def _take_up(self, session: Session, waiting: Waiting) -> Outstanding | None:
        known = session.outstanding.get((waiting.object, waiting.version is None))
        if known is not None and known.seqno == waiting.seqno:
            if waiting.version is not None and known.version is not None and waiting.version > known.version:
                known.version = waiting.version
            elif self.clock() - known.sent_s < SENT_JUST_NOW_S:
                return None
        entry = self._entry(session, waiting.object, waiting.seqno, waiting.version)
        entry.stored = STORED
        self._sent(session, entry)
        return entry

    def _forget(self, session: Session, key: ObjectKey) -> None:
        for name in ((key, False), (key, True)):
            session.outstanding.pop(name, None)

    # What happens by itself.

    def next_deadline(self) -> float:
        deadlines = [self.next_scan_s, *self.appended.values()]
        if self.ack_cells or self.cursor < len(self.table.marks):
            deadlines.append(self.clock())
        for session in self.sessions.values():
            deadlines += (entry.due_s for entry in session.outstanding.values())
            deadlines.append(session.sent_s + session.settings.keepalive_s)
            deadlines.append(session.heard_s + session.settings.offline_s)
            if session.told_unsettled and not session.unsettled:
                deadlines.append(session.sent_s + 0.5)
        return min(deadlines)

    def tick(self) -> None:
        now_s = self.clock()
        self.flush_acknowledged()
        for session in list(self.sessions.values()):
            self._tick_session(session, now_s)
        marked, self.cursor = self.table.marks[self.cursor :], len(self.table.marks)
        overdue = {client for (client, _), due_s in self.appended.items() if due_s <= now_s}
        if now_s >= self.next_scan_s:
            self.next_scan_s = now_s + SCAN_S
            overdue |= {client for client, session in self.sessions.items() if session.unsettled}
        for client in dict.fromkeys([*marked, *sorted(overdue)]):
            row = self.row(client, fresh=True)
            self._drop_settled(row)
            self.repeat_pending(row)
            if client in self.sessions:
                self._take_in(self.sessions[client], row)

    def _drop_settled(self, row: ClientRow) -> None:
        """What the row shows as done was answered through another process: it is no longer on its way."""
        pending = {key for key, _, _ in row.pending()}
        for client, key in list(self.appended):
            if client == row.client and key not in pending:
                del self.appended[client, key]

    def _tick_session(self, session: Session, now_s: float) -> None:
        if now_s >= session.heard_s + session.settings.offline_s:
            channel = session.channel
            self._leave(session)
            if channel is not None:
                channel.close("offline")
            return
        due = [entry for entry in session.outstanding.values() if entry.due_s <= now_s]
        for entry in due:
            entry.pause_s = min(entry.pause_s * 2, session.settings.resend_max_s)
            entry.due_s = now_s + entry.pause_s
            entry.sent_s = now_s
        settled = bool(session.told_unsettled) and not session.unsettled and now_s >= session.sent_s + 0.5
        if due:
            self._speak(session, notify=[self._notify(entry) for entry in due])
        elif settled or now_s >= session.sent_s + session.settings.keepalive_s:
            self._speak(session)
