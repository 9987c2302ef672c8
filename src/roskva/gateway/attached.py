"""Client connections over a channel of the application's own (protocol/channel.py): MQTT, XMPP, another WebSocket, a pipe.

There is no connection to open: the first message opens one, and so does the first after the gateway closed it. The application
says `closed` when it knows that the client is gone; else silence tells, as everywhere.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from roskva.errors import MessageTooLarge, Unavailable
from roskva.gateway.admission import Noted
from roskva.gateway.routing import error_message

if TYPE_CHECKING:
    from roskva.gateway.server import Port
    from roskva.protocol.channel import Channel

log = logging.getLogger(__name__)


class Attachment:
    """A channel at a gateway's port."""

    def __init__(self, port: Port, channel: Channel) -> None:
        self._port = port
        self._channel = channel
        self._connection: AttachedConnection | None = None
        channel.listen(self._received)

    @property
    def is_open(self) -> bool:
        """Whether it carries a client's connection at present."""
        return self._connection is not None and not self._connection.is_closed

    def closed(self) -> None:
        """The client is gone, or the application wants to carry nothing any more: the client counts as disconnected at once."""
        self._channel.listen(None)
        if self._connection is not None:
            self._connection.close("closed")

    def _received(self, data: bytes) -> None:
        port = self._port
        if len(data) > port.message_bytes_max:
            self.send(error_message(MessageTooLarge(len(data), port.message_bytes_max)))
            return
        if self._connection is None or self._connection.is_closed:
            if port.full():
                port.metrics.limited_connections += 1
                self.send(error_message(Unavailable("This gateway has as many connections as allowed.")))
                return
            self._connection = AttachedConnection(port, self)
            port.opened(self._connection)
        port.received(self._connection, data)

    def send(self, data: bytes) -> None:
        """Never raises: what an application's channel cannot carry is lost, and said again."""
        try:
            self._channel.send(data)
            self._port.metrics.messages_sent += 1
        except Exception:
            self._port.metrics.messages_dropped += 1
            log.exception("a message could not be sent over an attached channel")


class AttachedConnection(Noted):
    """A client's connection over an attached channel, from its first message until either side ends it."""

    __slots__ = ("_attachment", "_note", "_port", "address", "is_closed", "malformed", "number", "owner", "party", "token")

    def __init__(self, port: Port, attachment: Attachment) -> None:
        self._port = port
        self._attachment = attachment
        self.is_closed = False
        self.address = ""  # whoever carries it is trusted, or part of the application
        self.party = port.admission.party("")
        self.number = 0
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self._note: object | None = None

    def send(self, data: bytes) -> None:
        if not self.is_closed:
            self._attachment.send(data)

    def close(self, code: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._port.closed(self)

    def abort(self) -> None:
        self.close("aborted")
