"""Where a client's message goes: to the Registrar here, or to the one at the gateway that owns the client.

A message names its client by its token; the client's partition names the owner. The bytes that another gateway must decide
on are passed on as they came. The gateway only verifies the token's signature: what a token means is the Registrar's to
say. A channel may drop messages, so whatever cannot be routed is answered with "unavailable" and forgotten: the client
sends it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from roskva.config import Settings
from roskva.errors import MalformedMessage, RoskvaError, TokenInvalid, TooManyConnections, Unavailable
from roskva.gateway.connections import Connections
from roskva.model import ClientId, client_partition
from roskva.protocol.internal import Announce, Closed, Forward, Frame
from roskva.protocol.messages import ClientMessage, ErrorReport, ServerMessage, decode_client, encode
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar.handshakes import unverified
from roskva.registrar.members import MemberView
from roskva.registrar.sessions import Channel, Session
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.admission import Admission

log = logging.getLogger(__name__)

MALFORMED_IN_A_ROW_MAX: Final = 10
_REROUTED_PER_TURN: Final = 1_000  # connections that one turn of the event loop moves after a change of members


class Party(NamedTuple):
    """Whom a connection speaks for: a page's origin ("" of our own, or none), and an application ("" without a session)."""

    origin: str
    application: str


class Connection(Channel, Protocol):
    """A client's connection at this gateway: a channel, and what routing remembers of it."""

    @property
    def number(self) -> int: ...  # by which other gateways name it

    token: str  # the last good one, "" before. What it claims is in the session's memory, or is read from it again
    owner: str | None  # the member that its messages go to
    malformed: int  # messages in a row
    address: str  # that it counts for; "" without limits
    party: Party  # that it speaks for


class RemoteConnection(Channel, Protocol):
    """The same, at another gateway."""

    token: str


class Receiver(Protocol):
    """The part of the Registrar that routing calls."""

    def receive(self, channel: Channel, message: ClientMessage, claims: Claims | None) -> None: ...
    def announce(self, channel: Channel, claims: Claims, token: str) -> None: ...
    def closed(self, channel: Channel) -> None: ...
    def members_changed(self) -> None: ...


class Wires(Protocol):
    """The part of the links that routing calls."""

    def send(self, member: str, frame: Frame) -> bool:
        """False: there is no link to that member, or it is full."""
        ...


def now_ms() -> int:
    return int(time.time() * 1000)


def error_message(error: RoskvaError, token: str = "") -> bytes:
    retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
    report = ErrorReport(code=error.code, message=str(error), transient=error.transient, retry_after_s=retry_after_s)
    return encode(ServerMessage(token=token, time_ms=now_ms(), error=report))


class Router:
    def __init__(
        self,
        settings: Settings,
        keyring: Keyring,
        registrar: Receiver,
        members: MemberView,
        member: str,
        wires: Wires,
        metrics: Metrics,
        admission: Admission | None = None,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._keyring = keyring
        self._registrar = registrar
        self._members = members
        self._member = member
        self._wires = wires
        self._metrics = metrics
        self._owners: list[str | None] = [None] * settings.partitions
        self._rerouting: asyncio.Task[None] | None = None
        self.connections = Connections()

    def opened(self, connection: Connection) -> None:
        self.connections.opened(connection)
        self._metrics.connections_opened += 1
        self._metrics.connections = len(self.connections)

    def closed(self, connection: Connection) -> None:
        if self.connections.closed(connection):
            self._metrics.connections = len(self.connections)
            self._move(connection, None)

    def received(self, connection: Connection, data: bytes) -> bool:
        """One message of a client. Never raises: what goes wrong is told to the client. Answers whether it was well formed."""
        self._metrics.messages_received += 1
        token = connection.token
        try:
            message = decode_client(data, self._settings.message_bytes_max)
            token = message.token
            if message.init is None and not message.token:
                raise MalformedMessage("The message has neither a token nor an init.")
            connection.malformed = 0
            self._dispatch(connection, message, data)
            return True
        except RoskvaError as error:
            connection.send(error_message(error, token))
            if isinstance(error, MalformedMessage):
                self._metrics.messages_malformed += 1
                connection.malformed += 1
                if connection.malformed >= MALFORMED_IN_A_ROW_MAX:
                    connection.close(error.code)
            elif isinstance(error, TooManyConnections):
                connection.close(error.code)
        except Exception:
            log.exception("a client's message could not be handled")
            connection.send(error_message(RoskvaError("The message could not be handled."), token))
        return False

    def _dispatch(self, connection: Connection, message: ClientMessage, data: bytes) -> None:
        claims: Claims | None = None
        if self._admission is not None and (message.init is not None or message.credential):
            self._admission.handshake(connection)  # before anything that costs more: a credential is verified, too
        if message.init is not None:
            if self._admission is not None:
                self._admission.name(connection, message.init.application)
            if not connection.token or connection.owner is None:
                self._move(connection, self._owner_for_init(message.init.prior))
            # Else a session may live here, and lives until the next one speaks: its owner answers, and knows a late repeat.
        elif message.token != connection.token or connection.owner is None:
            try:
                claims = self._verify(message.token)
            except TokenInvalid as error:
                self._refuse_token(connection, message.token, error)
                return
            if self._admission is not None:
                self._admission.name(connection, claims.application)
            self._move(connection, self._owner_of(claims.client))
            connection.token = message.token
        if connection.owner == self._member:
            self._registrar.receive(connection, message, claims)
        elif connection.owner is not None and self._wires.send(connection.owner, Forward(connection.number, data)):
            self._metrics.messages_forwarded += 1
        else:
            self._metrics.messages_unroutable += 1
            raise Unavailable("The gateway that looks after this client cannot be reached.")

    def _verify(self, token: str) -> Claims:
        try:
            return self._keyring.verify(token)
        except msgspec.DecodeError:
            raise TokenInvalid("The token is of another version of the service.") from None

    def _refuse_token(self, connection: Connection, token: str, error: TokenInvalid) -> None:
        self._metrics.tokens_refused += 1
        unverified(connection, token, error, now_ms())

    def _owner_of(self, client: ClientId) -> str | None:
        return self._owners[self._partition_of(client)]

    def _partition_of(self, client: ClientId) -> int:
        return client_partition(client, self._settings.partitions)

    def _owner_for_init(self, prior: str | None) -> str | None:
        """A new client begins here; a returning one at the owner of its id, if it is an id of this data center."""
        if prior:
            try:
                claims = self._verify(prior)
            except TokenInvalid:
                return self._member  # the Registrar says what becomes of it
            if claims.data_center == self._settings.data_center:
                return self._owner_of(claims.client)
        return self._member

    def _move(self, connection: Connection, owner: str | None) -> None:
        """Route the connection to another owner (None: nowhere), and tell the one before."""
        before = connection.owner
        if before == owner:
            return
        connection.owner = owner
        if before == self._member:
            self._registrar.closed(connection)
        elif before is not None:
            self._wires.send(before, Closed(connection.number))
            self._without_session(connection)

    def _without_session(self, connection: Connection) -> None:
        """Of those whose owner is another gateway. The Registrar here notes it on the connection (gateway/admission.py)."""
        if self._admission is not None:
            self._admission.session_ended(connection)

    def members_changed(self) -> None:
        """After the view changed: the Registrar first, then every connection whose owner is another now."""
        owners = [self._members.owner(partition) for partition in range(self._settings.partitions)]
        self._owners = [None if owner is None else owner.id for owner in owners]
        self._metrics.partitions_owned = self._owners.count(self._member)
        self._metrics.members = len(self._members.live)
        self._metrics.members_changes += 1
        self._registrar.members_changed()
        if self._rerouting is not None:
            self._rerouting.cancel()
        self._rerouting = asyncio.get_running_loop().create_task(self._reroute())

    async def _reroute(self) -> None:
        for turn, connection in enumerate(list(self.connections.values()), 1):
            if connection.token and connection.number in self.connections:
                note = connection.session
                partition = note.partition if isinstance(note, Session) else self._partition_of(self._verify(connection.token).client)
                self._move(connection, self._owners[partition])
                # Also to an owner that stays: it may have let go of its sessions when its own view changed, and changed back.
                self._announce(connection)
            if turn % _REROUTED_PER_TURN == 0:
                await asyncio.sleep(0)

    def link_up(self, member: str) -> None:
        """A link to this member was made, for the first time or again: it does not know our connections yet."""
        for connection in list(self.connections.values()):
            if connection.owner == member:
                self._without_session(connection)  # until it says so
                self._announce(connection)

    def _announce(self, connection: Connection) -> None:
        if not connection.token or connection.owner is None:
            return
        if connection.owner == self._member:
            self._registrar.announce(connection, self._verify(connection.token), connection.token)
        else:
            self._wires.send(connection.owner, Announce(connection.number, connection.token))  # without a link: link_up does it

    def carries(self, client: ClientId, channel: Channel | None) -> bool:
        """Whether a connection here is the client's, over this channel if one is known. Else it looks at all of other owners' clients."""
        if channel is not None:
            return self.connections.get(getattr(channel, "number", 0)) is channel
        foreign = (one for one in self.connections.values() if one.token and one.owner != self._member)
        return any(self._verify(connection.token).client == client for connection in foreign)

    def deliver(self, number: int, data: bytes) -> None:
        """From the owner at another gateway, for a connection here."""
        connection = self.connections.get(number)
        if connection is not None:
            self._metrics.messages_delivered += 1
            connection.send(data)

    def session_noted(self, number: int, application: str) -> None:
        """From the owner at another gateway: a session of this application speaks over the connection; "": none any more."""
        connection = self.connections.get(number)
        if connection is None or self._admission is None:
            return
        if application:
            self._admission.session_began(connection, application)
        else:
            self._admission.session_ended(connection)

    def disconnect(self, number: int, code: str) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            connection.close(code)

    def forwarded(self, channel: RemoteConnection, data: bytes) -> None:
        """From another gateway, which thinks that this one owns the client.

        Never passed on once more: the Registrar decides.
        """
        try:
            message = decode_client(data, self._settings.message_bytes_max)
            claims: Claims | None = None
            if message.init is not None:
                channel.token = ""
            elif message.token != channel.token:
                claims = self._verify(message.token)
                channel.token = message.token
            self._registrar.receive(channel, message, claims)
        except TokenInvalid as error:
            unverified(channel, message.token, error, now_ms())
        except RoskvaError as error:
            channel.send(error_message(error))
        except Exception:
            log.exception("a forwarded message could not be handled")
            channel.send(error_message(Unavailable("The message could not be handled.")))

    def announced(self, channel: RemoteConnection, token: str) -> None:
        try:
            claims = self._verify(token)
            channel.token = token
            self._registrar.announce(channel, claims, token)
        except TokenInvalid as error:
            log.warning("another gateway announced a connection with a bad token: %s", error)
        except Exception:
            log.exception("an announced connection could not be handled")

    def remote_closed(self, channel: Channel) -> None:
        self._registrar.closed(channel)

    def stop(self) -> None:
        if self._rerouting is not None:
            self._rerouting.cancel()
