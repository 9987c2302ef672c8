"""Registrar and Matcher joined in memory: the pure cores with the caller's duties, and nothing else, for replaying transcripts.

What a gateway and the pipeline do with threads, files and Spark is done here at once and in order. Whatever is decided is decided by
`registrar.core` and `matcher.core`; this file only carries rows, events and messages between them, as the shells must.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
from roskva.registrar.cells import Created, client_row
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
class Server:
    """One gateway and one pipeline. Call `work` until it answers False: then nothing more happens without time or input."""

    now_s: float = 0.0
    epoch: int = 0
    config: Config = field(default_factory=Config)
    table: dict[RowKey, dict[bytes, Cell]] = field(default_factory=dict)
    feed: list[Update | Registration] = field(default_factory=list)
    sessions: dict[ClientId, Session] = field(default_factory=dict)
    keyring: Keyring = field(default_factory=lambda: Keyring({1: b"transcripts have a fixed key...."}))
    registrations_max: int = 100_000
    _minted: int = 0
    _owed: list[tuple[Propagation, bool, int | None]] = field(default_factory=list)

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
        return ClientRow(client, self.read(client_row(client, PARTITIONS)).values(), self.epoch)

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
            row = ClientRow(ClientId(f"client-{self._minted}"), epoch=self.epoch)
        granted = core.grant(row, created, day=int(self.now_s // 86_400))
        self._commit(row.client, granted.cells)
        claims = Claims(row.client, created.application, created.device, granted.session, DATA_CENTER, INCARNATION)
        token = self.keyring.sign(claims)
        unsettled = row.pending_count + sum(1 for _ in row.waiting())
        summary = row.digest.summary()
        grant = Grant(nonce=init.nonce, token=token)
        channel.append(ServerMessage(1, token, summary, unsettled, self.time_ms, grant, config=self.config))

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
        self._owed.append((told, tell, version))
        if session is None or not tell:
            return
        entry = session.outstanding.get((told.object, version is None))
        if entry is not None and (entry.seqno, entry.version) == (told.seqno, version):
            return  # sent a moment ago
        entry = session.outstanding[told.object, version is None] = Outstanding(told.seqno, version)
        outbox.setdefault(told.client, []).append(notify_of(told.object, entry))

    def _settle(self) -> None:
        owed, self._owed = self._owed, []
        confirmed: dict[ClientId, list[Status]] = {}
        for told, tell, version in owed:
            session = self.sessions.get(told.client)
            entry = None if session is None else session.outstanding.get((told.object, version is None))
            waits = tell and (session is None or entry is not None)
            self._commit(told.client, core.settle(self.row(told.client), told, waits, version))
            if entry is not None and waits:
                entry.stored = True
            status = core.status_of(told)
            if status is not None and session is not None:
                confirmed.setdefault(told.client, []).append(status)
        for client, statuses in confirmed.items():
            self.speak(self.sessions[client], status=statuses)

    def tick(self) -> None:
        for session in self.sessions.values():
            row = self.row(session.claims.client)
            unsettled = row.pending_count + len(session.outstanding)
            silent_s = self.now_s - session.said_s
            settled = session.told_unsettled and not unsettled and silent_s >= TOLD_SETTLED_AFTER_S
            if settled or silent_s >= self.config.keepalive_s:
                self.speak(session)

    def forget(self, client: ClientId) -> None:
        """The client's row is gone, as after a collection; the gateway has no session of it either."""
        del self.table[client_row(client, PARTITIONS)]
        self.sessions.pop(client, None)
        assert client_partition(client, PARTITIONS) < PARTITIONS


def notify_of(key: ObjectKey, entry: Outstanding) -> Notify:
    version = None if entry.version is None else str(entry.version)
    return Notify(object=name_to_text(name_of(key)), seqno=str(entry.seqno), version=version, epoch=epoch_of(key))
