"""Registrar and Matcher joined in memory: the pure cores with the caller's duties, and nothing else, for tests and transcripts.

What a gateway and the pipeline do with threads, files and Spark is done here at once and in order. Whatever is decided is decided by
`registrar.core` and `matcher.core`; this file only carries rows, events and messages between them, as the shells must. Knows no clock
but the one that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from roskva.errors import TokenInvalid
from roskva.matcher.core import accept, collapse, match
from roskva.model import (
    DROP_COPY,
    SETTLED,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    Update,
    client_partition,
    epoch_of,
    name_from_text,
    name_of,
    name_to_text,
    object_key,
)
from roskva.protocol.messages import (
    Ack,
    ClientMessage,
    Config,
    Grant,
    Init,
    Notify,
    ServerMessage,
    StartAnew,
    Status,
    SyncRequest,
)
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar import core
from roskva.registrar.cells import CREATED, Created, client_row, read_created
from roskva.registrar.row import ClientRow
from roskva.table.interface import Cell, Mutation, Row, RowKey, check_mutation, wins

PARTITIONS = 4
DATA_CENTER = "local"
INCARNATION = 1
TOLD_SETTLED_AFTER_S = 0.5
SYNC_HINT_S = 60.0
START_MS = 1_700_000_000_000


@dataclass
class Outstanding:
    seqno: int
    version: int | None
    stored: bool = False
    again_s: float = 0.0  # when it is sent again
    tries: int = 0


@dataclass
class Session:
    claims: Claims
    token: str
    channel: list[ServerMessage]  # what is said to this connection, in order
    operations: core.Operations = field(default_factory=core.Operations)
    outstanding: dict[tuple[ObjectKey, bool], Outstanding] = field(default_factory=dict)
    told_unsettled: int = 0
    said_s: float = 0.0
    hinted_s: float = -1e9


@dataclass
class Owed:
    """A propagation that waits for its acknowledgement: what is to be told, and the session to which it was sent, if any."""

    told: Propagation
    tell: bool
    version: int | None
    sent_to: Session | None = None

    def waits(self) -> bool:
        if not self.tell or self.sent_to is None:
            return self.tell
        entry = self.sent_to.outstanding.get((self.told.object, self.version is None))
        return entry is not None and (entry.seqno, entry.version) == (self.told.seqno, self.version)


@dataclass
class Server:
    """One gateway and one pipeline. Call `work` until it answers False: then nothing more happens without time or input."""

    now_s: float = 0.0
    epochs: dict[str, int] = field(default_factory=dict)  # of applications that were reset
    config: Config = field(default_factory=Config)
    table: dict[RowKey, dict[bytes, Cell]] = field(default_factory=dict)
    feed: list[Update | Registration] = field(default_factory=list)
    sessions: dict[ClientId, Session] = field(default_factory=dict)
    keyring: Keyring = field(default_factory=lambda: Keyring({1: b"transcripts have a fixed key...."}))
    registrations_max: int = 100_000
    _minted: int = 0
    _owed: list[Owed] = field(default_factory=list)

    def write(self, mutations: Iterable[Mutation]) -> None:
        for mutation in mutations:
            check_mutation(mutation)
            row = self.table.setdefault(mutation.row, {})
            for cell in mutation.cells:
                if cell.name not in row or wins(cell, row[cell.name]):
                    row[cell.name] = cell

    def read(self, key: RowKey) -> Row:
        return {name: cell for name, cell in self.table.get(key, {}).items() if cell.value is not None}

    def row(self, client: ClientId) -> ClientRow:
        cells = self.read(client_row(client, PARTITIONS))
        created = read_created(cells.get(CREATED))
        return ClientRow(client, cells.values(), 0 if created is None else self.epoch(created.application))

    def epoch(self, application: str) -> int:
        return self.epochs.get(application, 0)

    def clients(self) -> list[ClientRow]:
        return [self.row(ClientId(key.key.decode())) for key in list(self.table) if key.table == "registrar"]

    def _commit(self, client: ClientId, cells: list[Cell]) -> None:
        if cells:
            self.write([Mutation(client_row(client, PARTITIONS), cells)])

    def receive(self, channel: list[ServerMessage], message: ClientMessage) -> None:
        if message.init is not None:
            self._handshake(channel, message.init)
            return
        try:
            claims = self.keyring.verify(message.token)
        except TokenInvalid as error:
            refusal = StartAnew(code=error.code, keep=False, message=str(error))
            channel.append(ServerMessage(token=message.token, time_ms=self.time_ms, start_anew=refusal))
            return
        session = self._enter(channel, message.token, claims)
        if session is not None:
            self._heard(session, message)

    def _handshake(self, channel: list[ServerMessage], init: Init) -> None:
        created = Created(init.application, init.device)
        row = self._row_to_keep(init, created)
        if row is None:
            self._minted += 1
            row = ClientRow(ClientId(f"client-{self._minted}"), epoch=self.epoch(init.application))
        granted = core.grant(row, created, day=int(self.now_s // 86_400))
        self._commit(row.client, granted.cells)
        claims = Claims(row.client, created.application, created.device, granted.session, DATA_CENTER, INCARNATION)
        token = self.keyring.sign(claims)
        unsettled = row.pending_count + sum(1 for _ in row.waiting())
        summary = row.digest.summary()
        grant = Grant(nonce=init.nonce, token=token)
        config = msgspec.structs.replace(self.config, epoch=row.epoch)
        channel.append(ServerMessage(1, token, summary, unsettled, self.time_ms, grant, config=config))

    def _row_to_keep(self, init: Init, created: Created) -> ClientRow | None:
        if init.prior is None:
            return None
        try:
            prior = self.keyring.verify(init.prior)
        except TokenInvalid:
            return None
        row = self.row(prior.client)
        return row if core.may_keep_id(row, prior, created, DATA_CENTER, INCARNATION) else None

    def _enter(self, channel: list[ServerMessage], token: str, claims: Claims) -> Session | None:
        known = self.sessions.get(claims.client)
        if known is not None and known.channel is channel and known.claims == claims:
            return known
        row = self.row(claims.client)
        admission = core.admit(row, claims.session, None if known is None else known.claims.session)
        if admission != core.Admission.WELCOME:
            self._start_anew(channel, token, admission)
            return None
        if known is not None and known.claims.session != claims.session:
            self._start_anew(known.channel, known.token, core.Admission.SUPERSEDED)
        session = self.sessions[claims.client] = Session(claims, token, channel)
        for key, seqno, pending in row.pending():
            standing = row.standing(key)
            if standing is not None and standing.seqno == seqno:
                self.feed.append(core.event_of(row, key, seqno, standing.registered, pending))
        notifications = []
        for waiting in row.waiting():
            entry = Outstanding(waiting.seqno, waiting.version, stored=True)
            self._sent(entry)
            session.outstanding[waiting.object, waiting.version is None] = entry
            notifications.append(notify_of(waiting.object, entry))
        if notifications:
            self.speak(session, notify=notifications)
        return session

    def _start_anew(self, channel: list[ServerMessage], token: str, code: str) -> None:
        refusal = StartAnew(code=code, keep=code == core.Admission.SUPERSEDED)
        channel.append(ServerMessage(token=token, time_ms=self.time_ms, start_anew=refusal))

    def _heard(self, session: Session, message: ClientMessage) -> None:
        for ack in message.acks:
            self._acknowledge(session, ack)
        row = self.row(session.claims.client)
        number, limit = session.claims.session, self.registrations_max
        if message.register or message.unregister:
            self._carry_out(session, core.operate(row, number, session.operations, message.register, message.unregister, limit))
        if message.sync is not None:
            row = self.row(session.claims.client)
            self._carry_out(session, core.sync(row, number, session.operations, message.sync, limit))
        if message.register or message.unregister or message.sync is not None:
            return
        if message.forget:
            self.forget(session.claims.client)
            self._start_anew(session.channel, session.token, core.Admission.GONE)
            return
        differ = message.summary is not None and message.summary != row.digest.summary()
        if differ and row.pending_count == 0 and self.now_s - session.hinted_s >= SYNC_HINT_S:
            session.hinted_s = self.now_s
            self.speak(session, sync_request=SyncRequest())
        elif not message.acks:
            self.speak(session)

    def _carry_out(self, session: Session, decision: core.Decision) -> None:
        for cells in decision.writes:
            self._commit(session.claims.client, cells)
        for event in decision.events:
            if not event.registered:
                session.outstanding.pop((event.object, True), None)
                session.outstanding.pop((event.object, False), None)
        self.feed += decision.events
        if decision.statuses or decision.sync_request is not None or not decision.events:
            self.speak(session, status=decision.statuses, sync_request=decision.sync_request)

    def _acknowledge(self, session: Session, ack: Ack) -> None:
        key = object_key(session.claims.application, ack.epoch, name_from_text(ack.object))
        version = None if ack.version is None else int(ack.version)
        entry = session.outstanding.get((key, version is None))
        if entry is None or (entry.seqno, entry.version) != (int(ack.seqno), version):
            return
        del session.outstanding[key, version is None]
        if entry.stored:
            self._commit(session.claims.client, [core.acknowledge(key, entry.seqno, version)])

    def speak(
        self, session: Session, status: Iterable[Status] = (), notify: Iterable[Notify] = (), sync_request: SyncRequest | None = None
    ) -> None:
        row = self.row(session.claims.client)
        unsettled = row.pending_count + len(session.outstanding)
        session.told_unsettled, session.said_s = unsettled, self.now_s
        session.channel.append(
            ServerMessage(
                1,
                session.token,
                row.digest.summary(),
                unsettled,
                self.time_ms,
                status=[*status],
                notify=[*notify],
                sync_request=sync_request,
            )
        )

    @property
    def time_ms(self) -> int:
        return START_MS + int(self.now_s * 1000)

    def work(self) -> bool:
        """One step of what happens without any client: a batch of the pipeline, or the end of a wait for acknowledgements."""
        if self._owed:
            self._settle()
        elif self.feed:
            self._batch()
        else:
            return False
        return True

    def _batch(self) -> None:
        events, self.feed = self.feed, []
        batch = collapse((one for one in events if isinstance(one, Update)), (one for one in events if isinstance(one, Registration)))
        accepted = accept(batch, PARTITIONS, lambda key: INCARNATION)
        self.write(accepted.writes)
        rows = {key: self.read(key) for key in (*accepted.read_whole, *accepted.read_version)}
        propagations = match(batch, rows, PARTITIONS, lambda key: INCARNATION)
        outbox: dict[ClientId, list[Notify]] = {}
        for told in propagations:
            self._propagate(told, outbox)
        for client, notifications in outbox.items():
            self.speak(self.sessions[client], notify=notifications)

    def _propagate(self, told: Propagation, outbox: dict[ClientId, list[Notify]]) -> None:
        row = self.row(told.client)
        judgement = core.judge(row, told)
        if judgement.verdict is not None:
            assert judgement.verdict in (SETTLED, DROP_COPY)
            return
        assert not judgement.reissue, "nothing is ever lost in a transcript"
        tell, version = core.notification_of(row, told)
        session = self.sessions.get(told.client)
        owed = Owed(told, tell, version, session)
        self._owed.append(owed)
        if session is not None and tell and not owed.waits():  # if it waits, it was sent a moment ago
            outbox.setdefault(told.client, []).append(self._tell(session, told, version))

    def _tell(self, session: Session, told: Propagation, version: int | None) -> Notify:
        entry = session.outstanding[told.object, version is None] = Outstanding(told.seqno, version)
        self._sent(entry)
        return notify_of(told.object, entry)

    def _settle(self) -> None:
        everything, self._owed = self._owed, []
        confirmed: dict[ClientId, list[Status]] = {}
        late: dict[ClientId, list[Notify]] = {}
        for owed in everything:
            told, waits = owed.told, owed.waits()
            self._commit(told.client, core.settle(self.row(told.client), told, waits, owed.version))
            session = self.sessions.get(told.client)
            if session is None:
                continue
            if waits:
                if session is not owed.sent_to:  # it came meanwhile, and read its row before this was in it
                    late.setdefault(told.client, []).append(self._tell(session, told, owed.version))
                session.outstanding[told.object, owed.version is None].stored = True
            status = core.status_of(told)
            if status is not None:
                confirmed.setdefault(told.client, []).append(status)
        for client in dict.fromkeys([*late, *confirmed]):
            self.speak(self.sessions[client], status=confirmed.get(client, ()), notify=late.get(client, ()))

    def tick(self) -> None:
        """What is said because of time alone: that all is settled, that the connection lives, and once more what was not acknowledged."""
        for session in self.sessions.values():
            again = [(key, entry) for (key, _), entry in session.outstanding.items() if self.now_s >= entry.again_s]
            for _, entry in again:
                self._sent(entry)
            if again or self.now_s >= self._silent_until_s(session):
                self.speak(session, notify=[notify_of(key, entry) for key, entry in again])

    def due_s(self) -> float:
        """When `tick` will have something to do."""
        due_s = math.inf
        for session in self.sessions.values():
            due_s = min(due_s, self._silent_until_s(session), *(entry.again_s for entry in session.outstanding.values()))
        return due_s

    def _silent_until_s(self, session: Session) -> float:
        settled = session.told_unsettled and not session.outstanding and not self.row(session.claims.client).pending_count
        return session.said_s + (TOLD_SETTLED_AFTER_S if settled else self.config.keepalive_s)

    def _sent(self, entry: Outstanding) -> None:
        pause_s = min(self.config.resend_max_s, self.config.resend_min_s * 2.0 ** min(entry.tries, 16))
        entry.again_s, entry.tries = self.now_s + pause_s, entry.tries + 1

    def reset(self, application: str) -> None:
        """Raise its epoch: no registration of it counts any more. Its clients see that by the summary, and state what they wish for."""
        self.epochs[application] = self.epoch(application) + 1
        for session in self.sessions.values():
            if session.claims.application == application:
                session.outstanding.clear()
                self.speak(session, sync_request=SyncRequest())

    def invalidate(self, key: ObjectKey) -> None:
        """Everyone who is registered for it is registered anew, which yields unknown."""
        for row in self.clients():
            standing = row.standing(key)
            if standing is not None and standing.registered:
                decision = core.reissue(row, [(key, standing.seqno)])
                for cells in decision.writes:
                    self._commit(row.client, cells)
                self.feed += decision.events

    def forget(self, client: ClientId) -> None:
        """The client's row is gone, as after a collection; the gateway has no session of it either."""
        del self.table[client_row(client, PARTITIONS)]
        self.sessions.pop(client, None)
        assert client_partition(client, PARTITIONS) < PARTITIONS


def notify_of(key: ObjectKey, entry: Outstanding) -> Notify:
    version = None if entry.version is None else str(entry.version)
    return Notify(object=name_to_text(name_of(key)), seqno=str(entry.seqno), version=version, epoch=epoch_of(key))
