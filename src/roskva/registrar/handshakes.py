"""Handshakes and admission: who a client is, and which of its starts may speak (Thialfi 4.1.2).

Every start of a client handshakes. A grant is one durable write; it takes effect at the first message that uses it, and from then
on earlier sessions of the same client are superseded. What a token claims is checked against the client's durable row.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from roskva.access.identity import Identity
from roskva.config import ApplicationSettings, Settings
from roskva.errors import TokenElsewhere, TokenInvalid, UnknownApplication
from roskva.model import ClientId, check_application, check_device, client_partition
from roskva.protocol.messages import Config, Grant, Init, ServerMessage, StartAnew, encode
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar import core
from roskva.registrar.cells import Created
from roskva.registrar.counters import Counters
from roskva.registrar.large import LargeRows
from roskva.registrar.row import ClientRow
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import Channel, Orders, Session
from roskva.registrar.users import Users
from roskva.table.interface import Mutation
from roskva.table.lanes import TableLanes

_ID_BYTES: Final = 11  # 15 characters, with which a text in memory takes 64 bytes: one more, and it would take 80
_TAG_BYTES: Final = 6
_USER_BYTES: Final = 6  # of a user's hash in the ids of its clients
_USER_IN_TOKEN_MAX: Final = 38  # bytes: a UUID has room
_EARLIER_MAX: Final = 100  # repeats of an init while its grant is being made; with doubling pauses they are few


@dataclass(slots=True)
class Granting:
    """The note on a channel through which a client asks for a session."""

    init: Init  # the last one that asks for it
    credential: str = ""  # that came with it
    identity: Identity | None = None  # whose it is, once that is known; None where nobody asks
    reply: ServerMessage | None = None  # once it is durable
    earlier: set[str] = field(default_factory=set)  # nonces of those before it: they may come twice, and late

    @property
    def nonce(self) -> str:
        return self.init.nonce

    def grants(self, token: str) -> bool:
        return self.reply is not None and self.reply.token == token

    def note_on(self, channel: Channel) -> None:
        """Not where a session lives: it does until the new one speaks."""
        if channel.session is None or isinstance(channel.session, Granting):
            channel.session = self


class _Granted(NamedTuple):
    row: ClientRow
    session: int
    tag: str


@dataclass(frozen=True, slots=True)
class Handshakes:
    settings: Settings
    table: TableLanes
    rows: Rows
    orders: Orders
    keyring: Keyring
    counters: Counters
    owns: Callable[[int], bool]
    epoch_of: Callable[[str], int]
    incarnations: dict[int, int]  # of the partitions of those that were admitted, as they were then: whoever sees a change tells them
    day: Callable[[], int]
    time_ms: Callable[[], int]
    unguessable: Callable[[int], str]  # text made of so many random bytes
    users: Users
    large: LargeRows

    def mint(self, created: Created) -> ClientId:
        """A new client id, of a partition that this Registrar owns if it owns any, so that no other is needed.

        The ids of one user end alike, so that they can be told from others without a look at their rows.
        """
        ending = _ending_of(created)
        for _ in range(200):
            client = ClientId(self.unguessable(_ID_BYTES) + ending)
            if self.owns(client_partition(client, self.settings.partitions)):
                break
        return client

    def repeats(self, channel: Channel, init: Init, credential: str = "") -> bool:
        """Whether this asks again for what this channel has asked for: no work, since each grant is a session.

        While the grant is being made it becomes the answer to the last one that asked: only its nonce is still waited for. Once made, it
        is sent again to whom it answered. Else who waits long for a busy server makes it busier, and takes none of the answers.
        """
        note = channel.session
        if isinstance(note, Session):
            return note.busy.nonce == init.nonce  # a late repeat: its session lives
        if not isinstance(note, Granting):
            return False
        if init.nonce in note.earlier:
            return True  # nobody waits for its answer any more
        same = _same_wish(note.init, init) and credential == note.credential
        if note.reply is None and note.nonce != init.nonce and same and len(note.earlier) < _EARLIER_MAX:
            note.earlier.add(note.nonce)
            note.init = init
            return True
        if note.reply is None and note.nonce == init.nonce:
            return True
        if note.reply is not None and note.nonce == init.nonce:
            channel.send(encode(note.reply))
            return True
        return False

    async def grant(self, channel: Channel, asked: Granting) -> None:
        """Answer an init that is no repeat."""
        try:
            asked.reply = await self._grant(asked)
        except BaseException:
            if channel.session is asked:
                channel.session = None
            raise
        channel.send(encode(asked.reply))

    async def _grant(self, asked: Granting) -> ServerMessage:
        init = asked.init
        application = check_application(init.application)
        device = check_device(init.device)
        settings = self.settings.applications.get(application)
        if settings is None:
            raise UnknownApplication(application)
        asked.identity = identity = await self.users.identify(application, settings, device, asked.credential)
        created = Created(application, device, "" if identity is None else identity.user)
        granted = await self._keep_id(init, created) or await self._new_id(created)
        self.counters.handshakes += 1
        row = granted.row
        incarnation = await self._incarnation(row.client)
        claims = Claims(
            row.client, application, device, granted.session, self.settings.data_center, incarnation, granted.tag, _in_token(created.user)
        )
        token = self.keyring.sign(claims)
        return ServerMessage(
            token=token,
            summary=row.digest.summary(),
            unsettled=row.pending_count + sum(1 for _ in row.waiting()),
            time_ms=self.time_ms(),
            grant=Grant(nonce=asked.nonce, token=token),
            config=self._config(application, settings),
            credential=self.users.good(identity),
        )

    async def _keep_id(self, init: Init, created: Created) -> _Granted | None:
        """Go on under the prior token's id, if its row is still there and is what the token says."""
        if not init.prior:
            return None
        try:
            prior = self.keyring.verify(init.prior)
        except TokenInvalid:
            return None
        async with self.orders.turn(prior.client):
            self.large.check(prior.client)
            row = await self.rows.get(prior.client, fresh=True)
            self.large.did(prior.client, row.size)
            if not core.may_keep_id(row, prior, created, self.settings.data_center, await self._incarnation(prior.client)):
                return None
            return await self._write(row, created)

    async def _new_id(self, created: Created) -> _Granted:
        client = self.mint(created)
        async with self.orders.turn(client):
            return await self._write(ClientRow(client, epoch=self.epoch_of(created.application)), created)

    async def _write(self, row: ClientRow, created: Created) -> _Granted:
        tag = self.unguessable(_TAG_BYTES)
        granted = core.grant(row, created, self.day(), tag.encode())
        try:
            await self.table.write([Mutation(self.rows.key(row.client), granted.cells)])
        except BaseException:
            self.rows.drop(row.client)  # it may have landed
            raise
        self.rows.apply(row.client, granted.cells)
        return _Granted(row, granted.session, tag)

    async def admit(
        self, channel: Channel, token: str, claims: Claims, known: Session | None, credential: str = ""
    ) -> tuple[Session, ClientRow] | None:
        """A session speaks for the first time here, or through another channel. None: it was refused, and told why.

        `known` is the session of this client that spoke last, as far as this Registrar remembers. Where users are asked for, a token alone
        opens nothing: each channel shows a credential of the token's user.
        """
        settings = self.settings.applications.get(claims.application)
        incarnation = await self._incarnation(claims.client)
        elsewhere = claims.data_center != self.settings.data_center or claims.incarnation != incarnation
        if settings is None or elsewhere:
            self.start_anew(channel, token, TokenElsewhere.code, keep=settings is not None)
            return None
        identity = await self._identity(channel, token, claims, settings, credential)
        if identity is not None and _in_token(identity.user) != claims.user:
            self.start_anew(channel, token, TokenInvalid.code, keep=False)
            return None
        partition = client_partition(claims.client, self.settings.partitions)
        self.incarnations.setdefault(partition, incarnation)
        self.large.check(claims.client)
        row = await self.rows.look(claims.client)
        self.large.did(claims.client, row.size)
        before, settings = settings, self.settings.applications.get(claims.application)
        if settings is None or (settings is not before and not self.users.still_good(settings, identity)):
            # They changed while this waited: whoever was told of that did not know of this session yet.
            self.start_anew(channel, token, TokenElsewhere.code, keep=settings is not None)
            return None
        twins = known is not None and known.number == claims.session and known.token != token
        active = None if known is None or twins else known.number
        admission = core.admit(row, claims.session, active, claims.tag.encode())
        if admission != core.Admission.WELCOME:
            self.start_anew(channel, token, admission, keep=admission == core.Admission.SUPERSEDED)
            return None
        application = sys.intern(claims.application)  # kept for as long as the session: most share it
        session = Session(claims.client, partition, application, claims.device, settings, token, claims.session, channel, identity)
        if known is not None:
            session.go_on_from(known)
        return session, row

    async def _identity(
        self, channel: Channel, token: str, claims: Claims, settings: ApplicationSettings, credential: str
    ) -> Identity | None:
        """By the credential that came with the message, or by that of the handshake over this very channel, as long as it counts."""
        note = channel.session
        if not credential and isinstance(note, Granting) and note.grants(token) and self.users.still_good(settings, note.identity):
            return note.identity
        return await self.users.identify(claims.application, settings, claims.device, credential)

    def start_anew(self, channel: Channel, token: str, code: str, keep: bool) -> None:
        self.counters.superseded += code == core.Admission.SUPERSEDED
        self.counters.started_anew += not keep
        channel.send(encode(ServerMessage(token=token, time_ms=self.time_ms(), start_anew=StartAnew(code=code, keep=keep))))

    def _config(self, application: str, settings: ApplicationSettings) -> Config:
        return Config(
            heartbeat_s=settings.heartbeat_s,
            heartbeat_smear=settings.heartbeat_smear,
            keepalive_s=settings.keepalive_s,
            offline_s=settings.offline_s,
            resend_min_s=settings.resend_min_s,
            resend_max_s=settings.resend_max_s,
            retry_min_s=settings.retry_min_s,
            retry_max_s=settings.retry_max_s,
            connect_min_s=settings.connect_min_s,
            connect_max_s=settings.connect_max_s,
            quiet_s=settings.quiet_s,
            operations_per_message_max=self.settings.operations_per_message_max,
            message_bytes_max=self.settings.message_bytes_max,
            registrations_max=self.settings.registrations_per_client_max,
            epoch=self.epoch_of(application),
        )

    async def _incarnation(self, client: ClientId) -> int:
        return await self.table.incarnation_of("registrar", client_partition(client, self.settings.partitions))


def unverified(channel: Channel, token: str, error: TokenInvalid, time_ms: int) -> None:
    """Answer a message whose token is not one of this service: start anew."""
    refusal = StartAnew(code=error.code, keep=False, message=str(error))
    channel.send(encode(ServerMessage(token=token[:512], time_ms=time_ms, start_anew=refusal)))


def _in_token(user: str) -> str:
    """A user as tokens name it: they have 512 characters at most, whatever the application, device and data center are called.

    Of a long name its hash is there, which is itself longer than a name that stands there as it is: one is never taken for the other.
    """
    if len(user.encode()) <= _USER_IN_TOKEN_MAX:
        return user
    return "sha256:" + base64.urlsafe_b64encode(hashlib.sha256(user.encode()).digest()[:24]).decode()


def _ending_of(created: Created) -> str:
    """Empty where nobody asks for users."""
    if not created.user:
        return ""
    digest = hashlib.sha256(f"{created.application}\0{created.user}".encode()).digest()
    return "." + base64.urlsafe_b64encode(digest[:_USER_BYTES]).decode()


def _same_wish(one: Init, other: Init) -> bool:
    return (one.application, one.device, one.prior) == (other.application, other.device, other.prior)
