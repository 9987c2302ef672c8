"""What connects a client with the service of a test: the connection is there or not, and messages arrive at once or never."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from roskva.client.channels.carried import CarriedLink
from roskva.client.channels.link import Link, NotConnected, Received
from roskva.client.choice import CARRIED, Failure
from roskva.protocol.channel import Channel
from roskva.protocol.messages import ServerMessage, decode_client, encode

if TYPE_CHECKING:
    from roskva.testing.service import Service

ADDRESS: Final = "http://roskva.invalid"  # nobody is there: it stands in messages for people
_MESSAGE_BYTES_MAX: Final = 1 << 20


class Wire(Channel):
    """One connection. `outbox` is what the server writes to it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.outbox: list[ServerMessage] = []

    def send(self, data: bytes) -> None:
        self._service.heard(self, decode_client(data, _MESSAGE_BYTES_MAX))

    def deliver(self, messages: list[ServerMessage]) -> None:
        for message in messages:
            self.received(encode(message))

    def ended(self) -> None:
        self._service.unplug(self)


class WireConnector:
    """In the place of client/channels/connector.py, and with its surface."""

    url = ADDRESS
    kind = CARRIED
    has_next = False
    falls_back = False

    def __init__(self, service: Service) -> None:
        self._service = service
        self.allowed = True
        self.wire: Wire | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.wire = None

    async def connect(self) -> Link:
        if not self.allowed or not self._service.running:
            why = "the test disconnected this client" if self._service.running else "the service is stopped"
            raise NotConnected(f"{ADDRESS} cannot be reached: {why}.", Failure.UNREACHABLE)
        self.wire = Wire(self._service)
        self._service.plug_in(self.wire)
        return CarriedLink(self.wire)

    async def carry(self, link: Link, received: Received) -> str:
        try:
            return await link.run(received)
        finally:
            self.wire = None
