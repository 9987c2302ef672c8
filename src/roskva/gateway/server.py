"""The one public port: WebSocket for clients and HTTP for everything else, told apart by the first request's head.

`GET /v1/channel` with an upgrade goes to picows, which carries a connection in half the memory and pushes a third faster;
everything else to aiohttp. That means to construct picows' private WSProtocol, so its version is pinned exactly and
tests/gateway/test_port.py guards the seam. With a certificate (gateway/tls.py) every connection begins with TLS, then goes the same way.
Limits: TLS and a head must be complete within OPENING_S; connections beyond `connections_max`, and those of an address beyond
`connections_per_address_max`, are refused; a connection over which no session speaks for SILENT_S is closed, trusted ones aside.
One sweeper looks after all of them: no timer per connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from picows import WSAutoPingStrategy

from roskva.address import address_of, bound_socket
from roskva.config import Settings
from roskva.errors import GoingAway, Overloaded, TooManyConnections, Unavailable
from roskva.gateway.addresses import peer_of
from roskva.gateway.admission import Admission
from roskva.gateway.attached import AttachedConnection, Attachment
from roskva.gateway.opening import OPENING_S, Opening
from roskva.gateway.permission import Asked
from roskva.gateway.polled import PolledConnection, Polls, older
from roskva.gateway.routing import error_message
from roskva.gateway.sharing import SharedPort
from roskva.gateway.tls import Certificates, SecureListener
from roskva.gateway.trusted import TrustedClient, TrustedLine
from roskva.gateway.websocket import SLOW_S, ChannelProtocol, HttpConnection, WebSocketConnection
from roskva.protocol.channel import Channel
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.routing import Router

log = logging.getLogger(__name__)

CHANNEL_PATH: Final = "/v1/channel"
SILENT_S: Final = 120.0
_SWEEP_S: Final = 1.0
_LOOK_S: Final = 0.02
_BACKLOG: Final = 4_096
_ENDED_PER_TURN: Final = 500  # connections of a gateway that stops
# libuv accepts one connection in each turn of the loop, however many wait, and under load a turn takes milliseconds: it listens with so
# many handles of the one socket.
_ACCEPTED_AT_ONCE: Final = 16
# A peer that vanished without a word is noticed by the kernel: after so long without an answer to data or to a probe.
_DEAD_PEER_S: Final = 120

AnyConnection = WebSocketConnection | HttpConnection | PolledConnection | AttachedConnection | TrustedClient
# By what carries them; attached are those of trusted lines, and of an application's own channels.
_CHANNELS: Final[dict[type[AnyConnection], str]] = {
    WebSocketConnection: "websocket",
    HttpConnection: "websocket",
    PolledConnection: "polled",
    AttachedConnection: "attached",
    TrustedClient: "attached",
}


class _PicowsLog(logging.LoggerAdapter[logging.Logger]):
    """picows reports clients' mistakes as errors; here they are the client's, and only of interest when debugging."""

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)

    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


_picows_log: Final = _PicowsLog(logging.getLogger("roskva.picows"), {})


class Port:
    """Accepts connections, and knows those that need watching."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        metrics: Metrics,
        admission: Admission,
        http: Callable[[], asyncio.Protocol],
        certificates: Certificates | None = None,
        member: str = "",
    ) -> None:
        self.member = member  # this gateway, to the others
        self.metrics = metrics
        self._settings = settings
        self.admission = admission
        self.certificates = certificates  # None: the port is plain
        self.message_bytes_max = settings.message_bytes_max
        self.send_buffer_bytes_max = settings.send_buffer_bytes_max
        self.http = http
        self.openings: dict[Opening, float] = {}  # whose first head is not complete, in the order of their arrival
        self.paused: dict[AnyConnection, float] = {}  # whose buffers are full, since when
        self.opening_s = OPENING_S
        self.polls = Polls(self)
        self.lines: set[TrustedLine] = set()
        self._connections_max = settings.connections_max
        self._reconnects_per_s = settings.reconnects_per_s
        self._stopping = False
        self._websockets = 0  # on picows
        self.by_channel = dict.fromkeys(_CHANNELS.values(), 0)  # connections now
        self.http_connections: Callable[[], int] = lambda: 0  # open ones, as aiohttp counts them
        self.relays: Callable[[], int] = lambda: 0  # connections to and from other gateways, for requests that were passed on
        self._http_addresses: dict[object, str] = {}  # of those that count for an address
        self._router = router
        self.connections = router.connections
        self._shared: SharedPort | None = None
        self._listener_socket: socket.socket | None = None
        self._servers: list[asyncio.Server | SecureListener] = []
        self._sweeper: asyncio.Task[None] | None = None

    def bind(self, listen: str) -> str:
        """Take the address; answers HOST:PORT as bound. Nobody is accepted before `start`. Blocks for a moment."""
        if self._settings.share_port:
            self._shared = SharedPort(listen, self._settings.data)
            self._listener_socket = prepared(self._shared.socket)
        else:
            self._listener_socket = listening_socket(listen)
        return address_of(*self._listener_socket.getsockname()[:2])

    def served_by(self, server: web.Server) -> None:
        """Who takes what is not a WebSocket."""
        self.http_connections = lambda: len(server._connections)  # `connections` would copy the list of them, for each client that comes
        lost = server.connection_lost

        def connection_lost(handler: web.RequestHandler, exc: BaseException | None = None) -> None:
            self.admission.leave(self._http_addresses.pop(handler, ""))
            lost(handler, exc)

        # aiohttp tells nobody else that a connection is gone.
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    async def start(self) -> None:
        assert self._listener_socket is not None
        loop = asyncio.get_running_loop()
        with self._listener_socket as listener:
            if self.certificates is not None:
                self._servers.append(SecureListener(listener.dup(), self.certificates, lambda: Opening(self), _BACKLOG))
            else:
                for _ in range(_ACCEPTED_AT_ONCE):
                    self._servers.append(await loop.create_server(lambda: Opening(self), sock=listener.dup(), backlog=_BACKLOG))
        self._sweeper = loop.create_task(self._sweep())

    def stop_accepting(self) -> None:
        self._stopping = True
        for server in self._servers:
            server.close()
        if self._listener_socket is not None:
            self._listener_socket.close()
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        for opening in list(self.openings):
            opening.abort()

    async def stop(self, wait_s: float = 3.0) -> None:
        """Tell all clients how slowly to come back, close every connection, wait a moment for the clients' answers, then end the rest."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        going = list(self.connections.values())
        farewell = error_message(GoingAway(len(going) / self._reconnects_per_s))
        for turn, connection in enumerate(going, 1):
            connection.send(farewell)
            connection.close(GoingAway.code)
            if turn % _ENDED_PER_TURN == 0:
                await asyncio.sleep(0)
        for line in self.lines:
            line.close(GoingAway.code)
        for _ in range(int(wait_s / _LOOK_S)):
            if not self.connections and not self.lines:
                break
            await asyncio.sleep(_LOOK_S)
        for connection in list(self.connections.values()):
            cast(AnyConnection, connection).abort()

    def full(self) -> bool:
        """As many clients as allowed, or as many open files. A polled client may have two, a trusted line has one for all its clients.

        A poll that came to another gateway than its connection's is a file more at either of them.
        """
        clients = len(self.connections) + len(self.openings) + len(self.polls.closed)
        files = self._websockets + len(self.openings) + self.http_connections() + self.relays()
        return self._stopping or max(clients, files) >= self._connections_max

    def check_room(self, address: str) -> None:
        """For a client's connection that is no file of its own. Raises Unavailable, Overloaded, TooManyConnections."""
        if self._stopping:
            raise Unavailable("This gateway stops.")
        if self.full():
            self.metrics.limited_connections += 1
            raise Overloaded("This gateway has as many connections as connections_max allows.")
        if not self.admission.has_room(address):
            raise TooManyConnections("connections_per_address_max")

    def address_of(self, request: Asked) -> str:
        """What the client of a request counts by."""
        forwarded = request.headers.getall("X-Forwarded-For", [""])[-1]
        return self.admission.addresses.counted(peer_of(request.transport), forwarded)

    def http_came(self, protocol: asyncio.BaseProtocol, address: str) -> None:
        if address:
            self._http_addresses[protocol] = address

    def attach(self, channel: Channel) -> Attachment:
        """Serve one client over a channel of the application's own, until its `closed` is called."""
        return Attachment(self, channel)

    def websocket(self, connection: WebSocketConnection) -> asyncio.BaseProtocol:
        """picows' protocol for one connection, as its ws_create_server constructs it."""
        protocol = ChannelProtocol(
            None,  # host and port: of a client
            None,  # path: of a client
            False,  # is_client_side
            lambda request: connection,
            _picows_log,
            True,  # disconnect_on_exception
            None,  # websocket_handshake_timeout: the head is complete
            False,  # enable_auto_ping: the Registrar's keepalives do it, by one sweeper
            20,
            20,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # enable_auto_pong: pings are counted first
            self.message_bytes_max,
            None,  # extra_headers
            2048,  # read_buffer_init_size: most messages are small, and it is kept for the life of the connection
        )
        protocol.connection = connection
        return cast(asyncio.BaseProtocol, protocol)

    def opened(self, connection: AnyConnection) -> None:
        self.admission.opened(connection)
        self._websockets += type(connection) is WebSocketConnection
        self.by_channel[_CHANNELS[type(connection)]] += 1
        self._router.opened(connection)

    def received(self, connection: AnyConnection, data: bytes) -> None:
        if self.admission.spoke(connection):
            self._router.received(connection, data)

    def closed(self, connection: AnyConnection) -> None:
        self.paused.pop(connection, None)
        self._websockets -= type(connection) is WebSocketConnection
        self.by_channel[_CHANNELS[type(connection)]] -= 1
        self._router.closed(connection)
        self.admission.gone(connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                self.sweep(time.monotonic())
            except Exception:
                log.exception("the sweep of connections failed")

    def sweep(self, now_s: float) -> None:
        for opening in older(self.openings, now_s - self.opening_s):
            opening.abort()
        silent_s = max([SILENT_S, *(2 * application.quiet_s for application in self._settings.applications.values())])
        for connection in older(self.admission.strangers, now_s - silent_s):
            del self.admission.strangers[connection]
            if not isinstance(connection, (AttachedConnection, TrustedClient)):  # whoever carries those is no stranger
                connection.close("silent")
        for connection in older(self.paused, now_s - SLOW_S):
            self.metrics.slow_consumers += 1
            connection.abort()
        self.polls.sweep(now_s)
        self.admission.sweep(now_s)


def listening_socket(listen: str) -> socket.socket:
    return prepared(bound_socket(listen))


def prepared(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    # Accepted sockets inherit these.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_S * 1000)
    return listener
