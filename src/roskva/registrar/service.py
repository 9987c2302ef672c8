"""The Registrar as it runs in a gateway: admits sessions, orders registrations, repeats what is unfinished (Thialfi 4.1.2, 4.1.3, 4.2.2).

A shell around `core`: it loads the row, calls the core, commits in one write, then sends. Operations of one client are done one after
the other; those of different clients share their commits. Ownership is a hint: every decision rests on the client's durable row.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from roskva.config import Settings
from roskva.errors import CredentialExpired, Overloaded, RoskvaError, TokenInvalid, TooManyOperations, Unavailable
from roskva.feed.lanes import FeedLanes
from roskva.model import DAY_S, ClientId, ObjectKey, Propagation, Stamps
from roskva.protocol.messages import ClientMessage, ErrorReport, ServerMessage, SyncRequest, encode
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar import core
from roskva.registrar.cells import seen_cell
from roskva.registrar.collection import Collection
from roskva.registrar.counters import Counters
from roskva.registrar.delivery import Delivery
from roskva.registrar.fast import FastPath
from roskva.registrar.handshakes import Granting, Handshakes
from roskva.registrar.large import LargeRows
from roskva.registrar.lines import Lines
from roskva.registrar.members import MemberView
from roskva.registrar.operating import Operating
from roskva.registrar.recovery import Recovery
from roskva.registrar.room import Room
from roskva.registrar.rounds import TICK_S, Rounds
from roskva.registrar.row import ClientRow
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import SYNC_HINT_S, Channel, Moments, Orders, Session
from roskva.registrar.telling import Telling
from roskva.registrar.trails import Trails
from roskva.registrar.unacknowledged import Unacknowledged
from roskva.registrar.users import WANTED, Access, Users, wanted
from roskva.registrar.writing import RowWriter
from roskva.table.lanes import TableLanes

log = logging.getLogger(__name__)

_ANNOUNCE_TRIES_MAX: Final = 30
_ANNOUNCE_AGAIN_S: Final = 2.0
_GONE: Final = object()  # the note on a channel that was closed: nobody is welcomed through it any more


class _Left(NamedTuple):
    """The note on a channel that this session left for another one: what still comes through it is late, and is dropped."""

    token: str


class Registrar:
    def __init__(
        self,
        settings: Settings,
        table: TableLanes,
        feed: FeedLanes,
        keyring: Keyring,
        member: str,
        members: MemberView,
        *,
        epoch_of: Callable[[str], int] = lambda application: 0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        unguessable: Callable[[int], str] = secrets.token_urlsafe,
        access: Access | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._settings = settings
        self._table = table
        self._keyring = keyring
        self._member = member
        self._members = members
        self._clock = clock
        self._moment = Moments(clock)
        self._wall_clock = wall_clock
        self.epoch_of = epoch_of
        self.sessions: dict[ClientId, Session] = {}
        self.counters = Counters()
        self.rows = Rows(table, settings.partitions, settings.rows_cached_max, clock, epoch_of)
        self._settling_until_s = clock() + settings.settling_s
        self.owned: frozenset[int] = frozenset()
        self._orders = Orders()
        self.room = Room(settings.operations_waiting_max, self.counters)
        self.disk_full = ""  # why no registration is taken now; empty: they are
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self.unsettled_told: dict[Session, None] = {}
        self._rereading: set[Session] = set()
        self.lines = Lines(self, settings)
        self.rounds = Rounds(self, settings, table, clock, tick_s)
        self.users = Users(access, self, self.counters, clock, wall_clock, self.rows.get)
        self.large = LargeRows(clock)
        self.handshakes = Handshakes(
            settings,
            table,
            self.rows,
            self._orders,
            keyring,
            self.counters,
            self.owns,
            epoch_of,
            self.rounds.incarnations,
            self._day,
            self._time_ms,
            unguessable,
            self.users,
            self.large,
        )
        self.recovery = Recovery(settings, table, member, clock, self.counters)
        self.telling = Telling(table, feed, self.rows, self._orders, self.recovery, self.counters)
        self._writer = RowWriter(table, self.rows, self.sessions, self.counters, self.settling, self.recovery.mark)
        self.collection = Collection(self.rows, self._orders, self.sessions, self.counters, self._writer.write, self.take_in)
        self.operating = Operating(self, settings, table, self._orders, clock)
        self.unacknowledged = Unacknowledged(settings, self.counters, clock, self.speak, self.users)
        self.trails = Trails(wall_clock)
        self.fast = FastPath(
            settings.fast_path, self.sessions, self.unacknowledged, self.counters, clock, self.speak, self.spawn, self.trails
        )
        self.delivery = Delivery(
            settings,
            self.rows,
            self.sessions,
            self.unacknowledged,
            self.fast,
            self.counters,
            clock,
            wall_clock,
            owns=self.owns,
            settling=self.settling,
            speak=self.speak,
            write=self._writer.write,
            reissue=self.telling.reissue,
            collect=self.collection.answer,
            settled=self.recovery.settled,
            spawn=self.spawn,
            trails=self.trails,
        )

    async def start(self) -> None:
        self.members_changed()
        self._loop_task = asyncio.create_task(self.rounds.run(), name="registrar")

    async def stop(self) -> None:
        """Ends at once: whatever is unfinished is found again by its marks, or at session start."""
        running = [task for task in (self._loop_task, *self._tasks) if task is not None]
        for task in running:
            task.cancel()
        self.unacknowledged.pacing.stop()
        await asyncio.gather(*running, return_exceptions=True)

    def owns(self, partition: int) -> bool:
        return partition in self.owned

    def settling(self) -> bool:
        return self._clock() < self._settling_until_s

    def members_changed(self) -> None:
        """Drop what another gateway may have written meanwhile; let go of clients that have another owner now."""
        owned = frozenset(
            partition
            for partition in range(self._settings.partitions)
            if (owner := self._members.owner(partition)) is not None and owner.id == self._member
        )
        self.rows.drop_all()
        self._settling_until_s = self._clock() + self._settings.settling_s
        self.recovery.reread(owned)
        self.owned = owned
        self.rounds.members_changed(self._settling_until_s)
        for session in list(self.sessions.values()):
            if not self.owns(session.partition):
                self.leave(session)

    # What comes from clients.

    def receive(self, channel: Channel, message: ClientMessage, claims: Claims | None) -> None:
        """A message of a client, with the claims of its token, whose signature the caller verified. None: it came with the same before."""
        if channel.session is _GONE:
            channel.session = None  # it had been routed elsewhere, and is back
        if isinstance(channel.session, _Left) and channel.session.token == message.token:
            return
        count = len(message.register) + len(message.unregister) + len(message.acks)
        if message.sync is not None:
            count += len(message.sync.objects or ())
        if count > self._settings.operations_per_message_max:
            self.counters.over_limits += 1
            self._refuse(channel, TooManyOperations(count, self._settings.operations_per_message_max), message.token)
        elif message.init is not None:
            if not self.handshakes.repeats(channel, message.init, message.credential):
                asked = Granting(message.init, message.credential)
                if self.admit(channel, message.token, channel, 1, partial(self.handshakes.grant, channel, asked)):
                    asked.note_on(channel)
        elif isinstance(session := channel.session, Session) and session.token == message.token and self.speaks(session, channel):
            self._heard(session, message)
        else:
            try:
                claims = claims or self._keyring.verify(message.token)
            except TokenInvalid as error:
                self._refuse(channel, error, message.token)
            else:
                self.admit(channel, message.token, claims.client, 1, partial(self._enter, channel, message, claims))

    def speaks(self, session: Session, channel: Channel) -> bool:
        return session.channel is channel and self.sessions.get(session.client) is session

    def admit(self, channel: Channel, token: str, who: object, operations: int, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin a client's work, or answer "overloaded" before anything of it was done; whether it was begun."""
        try:
            self.room.enter(who, operations, self._clock())
        except Overloaded as error:
            self._refuse(channel, error, token)
            return False
        self.spawn(self._admitted(channel, token, who, operations, work))
        return True

    async def _admitted(
        self, channel: Channel, token: str, who: object, operations: int, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        done = False
        try:
            done = await self._guard(channel, token, work)
        finally:
            self.room.leave(who, operations, self._clock(), done)

    def relieve(self) -> None:
        """Memory is short: drop what the table has, and what marks lead to. Nothing is lost by it, and scans bring it back."""
        self.rows.drop_all()
        self.recovery.shed_unfinished()
        self.rounds.shed()

    def announce(self, channel: Channel, claims: Claims, token: str) -> None:
        """The client of this token is connected through this channel; speaking to it confirms that this is its owner."""
        if channel.session is _GONE:
            channel.session = None
        self.spawn(self._guard(channel, token, partial(self._announced, channel, claims, token)))

    async def _announced(self, channel: Channel, claims: Claims, token: str) -> None:
        for _ in range(_ANNOUNCE_TRIES_MAX):
            known = self.sessions.get(claims.client)
            if known is not None and known.token == token and known.channel is not channel:
                return  # the client speaks through another channel: one that is only announced may be half open
            try:
                await self._enter(channel, ClientMessage(token=token), claims)
                return
            except Unavailable as error:
                log.warning("an announced client cannot be admitted now: %s", error)
                await asyncio.sleep(_ANNOUNCE_AGAIN_S)

    def closed(self, channel: Channel) -> None:
        """The channel reports that its client is gone, or has another owner: offline here at once."""
        session = channel.session
        if isinstance(session, Session) and session.channel is channel:
            self.leave(session)
        channel.session = _GONE

    async def propagate(self, propagations: list[Propagation], stamps: Sequence[Stamps] = ()) -> list[int]:
        return await self.delivery.propagate(propagations, stamps)

    async def _guard(self, channel: Channel, token: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do a client's work; whether it was done. Made only here: a coroutine that is stopped before it began would complain."""
        try:
            await work()
        except Overloaded as error:  # a queue behind the room is full: not before what waits is done
            self._refuse(channel, Overloaded(error.what, max(error.retry_after_s, self.room.until_done_s())), token)
        except RoskvaError as error:
            self._refuse(channel, error, token)
        except Exception:
            log.exception("a client's message could not be handled")
            self._refuse(channel, RoskvaError("The message could not be handled."), token)
        else:
            return True
        return False

    def _refuse(self, channel: Channel, error: RoskvaError, token: str) -> None:
        if isinstance(error, WANTED):
            self.counters.credentials_refused += 1
            channel.send(encode(ServerMessage(token=token, time_ms=self._time_ms(), credential=wanted(error))))
            return
        retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
        report = ErrorReport(code=error.code, message=str(error), transient=error.transient, retry_after_s=retry_after_s)
        channel.send(encode(ServerMessage(token=token, time_ms=self._time_ms(), error=report)))

    async def _enter(self, channel: Channel, message: ClientMessage, claims: Claims) -> None:
        """A session speaks for the first time here, or through another channel than before."""
        shown = False
        async with self._orders.turn(claims.client):
            session = self.sessions.get(claims.client)
            if session is None or session.channel is not channel or session.token != message.token:
                admitted = await self.handshakes.admit(channel, message.token, claims, session, message.credential)
                if admitted is None or channel.session is _GONE:
                    return
                session = self._welcome(channel, *admitted)
                shown = session.identity is not None
        if shown:
            self._shown(session, message)
        else:
            self._heard(session, message)

    def _shown(self, session: Session, message: ClientMessage) -> None:
        """A session that was just admitted for its user's credential: it may have registered for more than that one allows."""
        if message.credential:
            self.speak(session, credential=self.users.good(session.identity))
        self.users.check_soon(session)
        self._act(session, message)

    def _welcome(self, channel: Channel, session: Session, row: ClientRow) -> Session:
        known = self.sessions.get(session.client)
        if isinstance(channel.session, (Granting, Session)):
            session.begin().nonce = channel.session.busy.nonce if isinstance(channel.session, Session) else channel.session.nonce
        for ended in (known, channel.session):
            if isinstance(ended, Session):
                self.leave(ended)
        if known is not None and known.channel is not None and known.channel is not channel:
            if known.token == session.token:
                known.channel.session = _Left(session.token)
            else:
                self.handshakes.start_anew(known.channel, known.token, core.Admission.SUPERSEDED, keep=True)
        channel.session = session
        session.since_s = known.since_s if known is not None and known.token == session.token else self._moment()
        self.sessions[session.client] = session
        session.heard_s = self._moment()  # and never spoken to: it hears that it is welcome at the next visit, if not before
        self.rounds.expect(session, session.heard_s)
        if session.keeper is not None:
            self.lines.confirmed(session)
        self.take_in(session, row)
        return session

    async def _write_seen(self, client: ClientId) -> None:
        await self._writer.write({client: [[seen_cell(self._day())]]})

    def take_in(self, session: Session, row: ClientRow) -> None:
        """After a fresh read of an online client's row: summary, pending registrations, waiting notifications."""
        if row.created is None and session.channel is not None:  # collected or lost under a living session
            self.dismiss(session, core.Admission.GONE, keep=False)
            return
        reset, session.epoch = -1 < session.epoch < row.epoch, row.epoch
        if session.take(row, self._moment()):
            self.lines.changed(session)
        if session.pending:
            self.rounds.pending[session.client] = None
        self.fast.follow(session, row)
        self.unacknowledged.resume(session, row)  # what a registration yielded goes before its confirmation
        confirmed = [core.confirmation(row, key) for key in self.recovery.finished(row) if not row.outdated(key)]
        if confirmed or reset:  # after a reset the summary holds nothing any more: the client sees it and states its registrations
            self.speak(session, status=confirmed)
        pending = self.telling.pending_again(row)
        if pending:
            self.spawn(self.telling.append(pending, marked=False))
        if row.seen_day < self._day():
            self.spawn(self._write_seen(session.client))

    def leave(self, session: Session) -> None:
        self.unacknowledged.forget(session)
        self.fast.leave(session)
        self.users.left(session)
        self.unsettled_told.pop(session, None)
        if self.sessions.get(session.client) is session:
            del self.sessions[session.client]
            self.lines.left(session)

    def dismiss(self, session: Session, code: str, keep: bool) -> None:
        """End a session and say so. Its channel is free for another one."""
        channel = session.channel
        self.leave(session)
        if channel is not None:
            self.handshakes.start_anew(channel, session.token, code, keep)
            if channel.session is session:
                channel.session = None

    # Messages of an admitted session.

    def _heard(self, session: Session, message: ClientMessage) -> None:
        if session.identity is not None and session.channel is not None:
            if message.credential:
                self.admit(session.channel, session.token, session.client, 1, partial(self._renew, session, message))
                return
            if not self.users.is_current(session.identity):
                self.refuse(session, CredentialExpired())
                return
        self._act(session, message)

    async def _renew(self, session: Session, message: ClientMessage) -> None:
        if await self.users.renew(session, message.credential) and self.sessions.get(session.client) is session:
            self._act(session, message)

    def refuse(self, session: Session, error: RoskvaError) -> None:
        if session.channel is not None:
            session.sent_s = self._moment()
            self._refuse(session.channel, error, session.token)

    async def revoke(self, session: Session, keys: Sequence[ObjectKey]) -> None:
        await self.operating.revoke(session, keys)

    def _act(self, session: Session, message: ClientMessage) -> None:
        """What the message asks for, of a session that may."""
        now_s = self._moment()
        session.heard(now_s)
        if message.acks:
            self.delivery.acknowledge(session, message.acks)
        if now_s - session.read_s >= session.settings.heartbeat_s:
            self.spawn(self.reread(session))
        if message.register or message.unregister or message.sync is not None:
            self.operating.begin(session, message)
            return
        if message.forget and session.channel is not None:
            self.admit(session.channel, session.token, session.client, 1, partial(self.collection.forget, session))
            return
        differ = message.summary is not None and message.summary != session.summary
        if differ and session.pending == 0 and now_s - session.busy.hinted_s >= SYNC_HINT_S:
            session.begin().hinted_s = now_s
            self.counters.sync_requests += 1
            self.speak(session, sync_request=SyncRequest())
        elif not message.acks:
            self.speak(session)

    async def reread(self, session: Session) -> None:
        """A fresh look at an online client's row: at heartbeats, and when the table holds more than memory. One at a time."""
        if session in self._rereading:
            return
        self._rereading.add(session)
        try:
            row = await self.rows.look(session.client)
            if self.sessions.get(session.client) is session:
                self.take_in(session, row)
        except Unavailable as error:
            log.warning("a client's row cannot be read now: %s", error)
        finally:
            self._rereading.discard(session)

    # What goes to clients.

    def speak(self, session: Session, **what: Any) -> None:
        channel = session.channel
        if channel is None:
            return
        unsettled = session.unsettled
        session.sent_s = now_s = self._moment()
        if unsettled and not session.told_unsettled and self.sessions.get(session.client) is session:
            self.rounds.told_unsettled(session, now_s)  # one that ended meanwhile would never be taken out again
        session.told_unsettled = unsettled
        self.lines.spoken_to(session)
        message = ServerMessage(token=session.token, summary=session.summary, unsettled=unsettled, time_ms=self._time_ms(), **what)
        channel.send(encode(message))

    # Small things.

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _day(self) -> int:
        return int(self._wall_clock() // DAY_S)

    def _time_ms(self) -> int:
        return int(self._wall_clock() * 1000)
