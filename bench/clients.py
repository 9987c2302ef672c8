"""Lean clients: thousands of WebSocket connections in one process that speak the real protocol and do nothing else.

They share two cores with the service, so they cost as little as possible: picows and uvloop, no task or timer per client, token
and summary of every acknowledgement encoded once. Each client handshakes, registers, and acknowledges at once whatever it is told
(docs/protocol.md). What was heard is kept in arrays and looked at after the measurement.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec import Struct
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.service import APPLICATION, BenchFailed, say
from roskva.model import name_from_text
from roskva.protocol.messages import REGISTERED, ClientMessage, Init, Register, encode
from roskva.protocol.summaries import SetDigest

_CONNECTING_MAX: Final = 500  # handshakes and registrations under way at once
_CLIENT_S: Final = 90.0  # for one client to connect and register
_TEXT: Final = WSMsgType.TEXT


class _Notify(Struct, omit_defaults=True):
    """A notification, and the acknowledgement of it: they have the same fields."""

    object: str
    seqno: str
    version: str | None = None
    epoch: int = 0


class _Status(Struct):
    object: str
    state: str
    message: str = ""


class _Grant(Struct):
    token: str


class _Heard(Struct):
    """The part of a server's message that a lean client looks at."""

    time_ms: int = 0
    notify: list[_Notify] = []
    status: list[_Status] = []
    grant: _Grant | None = None
    start_anew: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Heard)
_encoder = msgspec.json.Encoder()


class Heard:
    """Every notification of a version, in the order of arrival: version, the one known before it, when it was sent, when it came."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.versions = array("q")
        self.before = array("q")  # the version that the client had of this object; 0: none
        self.sent_ms = array("q")
        self.received_s = array("d")
        self.unknown = 0
        self.frames = 0
        self.repeated = 0  # a version that this client had for this object already

    def __len__(self) -> int:
        return len(self.versions)


class LeanClient(WSListener):
    """One connection. `known` is what the application would hold: the latest version of each object."""

    __slots__ = ("_acks", "_heard", "_transport", "_waiting", "closed", "device", "known", "names", "registered", "token")

    application: ClassVar[str] = APPLICATION

    def __init__(self, device: str, names: Sequence[str], heard: Heard) -> None:
        self.device = device
        self.names = names
        self.token = ""
        self.known: dict[str, int] = {}
        self.registered = 0
        self.closed = False
        self._heard = heard
        self._acks = b""
        self._transport: WSTransport | None = None
        self._waiting: asyncio.Future[None] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self.closed = False

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.closed = True
        self._fail("the gateway closed the connection")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != _TEXT:
            if frame.msg_type == WSMsgType.CLOSE:
                transport.disconnect()
            return
        now_s = time.time()
        heard = _decoder.decode(frame.get_payload_as_memoryview())
        if heard.notify:
            transport.send(_TEXT, self._acks + _encoder.encode(heard.notify) + b"}")
            self._note(heard, now_s)
        if heard.status or heard.grant or heard.start_anew or heard.error:
            self._unusual(heard)

    def _note(self, heard: _Heard, now_s: float) -> None:
        log = self._heard
        log.frames += 1
        known = self.known
        for one in heard.notify:
            if one.version is None:
                log.unknown += 1
                continue
            version = int(one.version)
            before = known.get(one.object, 0)
            if before >= version:
                log.repeated += 1
                continue
            known[one.object] = version
            log.versions.append(version)
            log.before.append(before)
            log.sent_ms.append(heard.time_ms)
            log.received_s.append(now_s)

    def _unusual(self, heard: _Heard) -> None:
        if heard.start_anew or heard.error:
            self._fail(bytes(heard.start_anew or heard.error).decode())
        if heard.grant is not None:
            self.token = heard.grant.token
            self._done()
        for status in heard.status:
            if status.state != REGISTERED:
                self._fail(f"{status.object}: {status.state} {status.message}")
            self.registered += 1
        if heard.status and self.registered >= len(self.names):
            self._done()

    def credential(self) -> str:
        """Who its user is; nobody, where nobody asks."""
        return ""

    def _done(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BenchFailed(f"{self.device}: {reason}"))

    async def connect(self, url: str, prior: str | None = None) -> None:
        """Connect and handshake; with a prior token as the same client as before."""
        await self._open(url)
        init = Init(nonce=self.device, application=self.application, device=self.device, prior=prior)
        await self._ask(encode(ClientMessage(init=init, credential=self.credential())))
        digest = SetDigest(name_from_text(name) for name in self.names)
        self._acks = encode(ClientMessage(token=self.token, summary=digest.summary()))[:-1] + b',"acks":'

    async def _open(self, url: str) -> None:
        await ws_connect(lambda: self, url, read_buffer_init_size=2048, websocket_handshake_timeout=30)

    @staticmethod
    def address(url: str) -> str:
        """Where to connect, by the service's address."""
        return url.replace("http", "ws", 1) + "/v1/channel"

    async def register(self) -> None:
        """Returns when every registration is confirmed: the Matcher has its copy."""
        digest = SetDigest(name_from_text(name) for name in self.names)
        wishes = [Register(op=number, object=name) for number, name in enumerate(self.names, 1)]
        await self._ask(encode(ClientMessage(token=self.token, summary=digest.summary(), register=wishes)))

    async def _ask(self, data: bytes) -> None:
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.send(_TEXT, data)
        try:
            await self._waiting
        finally:
            self._waiting = None

    def speak(self) -> None:
        """An empty message: the first that uses a new token, by which it takes effect."""
        assert self._transport is not None
        self._transport.send(_TEXT, self._acks.removesuffix(b',"acks":') + b"}")

    def close(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.disconnect(False)


class Fleet:
    """Many lean clients on one event loop."""

    def __init__(self, url: str, kind: type[LeanClient] = LeanClient) -> None:
        self.url = kind.address(url)
        self._kind = kind
        self.clients: list[LeanClient] = []
        self.heard = Heard()

    async def join(self, count: int, names_of: Callable[[int], Sequence[str]], prefix: str = "device") -> None:
        """Connect and register so many more clients; the n-th registers names_of(n)."""
        began_s = time.monotonic()
        added = [self._kind(f"{prefix}-{number}", names_of(number), self.heard) for number in range(count)]
        queue = iter(added)
        done = 0
        slowest_s = 0.0

        async def one_after_the_other() -> None:
            nonlocal done, slowest_s
            for client in queue:
                asked_s = time.monotonic()
                async with asyncio.timeout(_CLIENT_S):
                    await client.connect(self.url)
                    await client.register()
                slowest_s = max(slowest_s, time.monotonic() - asked_s)
                done += 1
                if done % 2_500 == 0:
                    say(f"{done:,} clients are registered")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_CONNECTING_MAX, count)):
                    group.create_task(one_after_the_other())
        except* TimeoutError:
            raise BenchFailed(f"Only {done:,} of {count:,} clients could connect and register in time.") from None
        self.clients += added
        took_s = time.monotonic() - began_s
        registrations = sum(len(client.names) for client in added)
        say(
            f"{count:,} clients with {registrations:,} registrations joined in {took_s:.1f} s"
            f" ({registrations / took_s:,.0f} registrations/s, the slowest client took {slowest_s:.1f} s)"
        )

    def alive(self) -> int:
        return sum(not client.closed for client in self.clients)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()
