"""Clients that come back by themselves: the real core of the client (roskva.client), thousands of them in one process.

What a lost connection, a restart or a lost table asks of a client is decided by the same code as in `roskva.Client`: pauses, handshakes,
syncs, acknowledgements. Only what is around it is leaner: picows and uvloop instead of aiohttp, no task per connection, one timer that
is moved only when it must ring earlier, no state file. When each client was connected and informed is noted as it happens.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.load import until
from bench.service import APPLICATION, BenchFailed, say
from roskva.client import actions
from roskva.client.actions import Action, Notification
from roskva.client.core import ClientCore
from roskva.client.limits import connect_pause_s
from roskva.model import name_from_text
from roskva.protocol.messages import ClientMessage, ServerMessage, decode_server, encode

_TEXT: Final = WSMsgType.TEXT
_CONNECT_S: Final = 15.0  # as in roskva.client.channels
_STARTING_MAX: Final = 1_000  # clients that join at once: joining is not measured
_STEP_S: Final = 0.05


class Event:
    """One loss, from the moment at which it happened: what was seen of the way back. Times are of the event loop's clock."""

    def __init__(self, began_s: float, disconnects: bool = False) -> None:
        self.began_s = began_s
        self.disconnects = disconnects  # everybody must connect again: what was heard before that does not count
        self.informed_s: list[float] = []  # after it began, one per client
        self.connected_s: list[float] = []  # the first connection of each client since
        self.granted_s: list[float] = []  # the first new session of each client since
        self.attempts_s: list[float] = []  # every attempt to connect, whatever came of it
        self.counts: Counter[str] = Counter()  # what else happened: connections that failed, errors by their code, and so on


class ReturningClient(WSListener):
    """One client. It is informed when it is in sync and has been told of every object of which it has to hear."""

    __slots__ = (
        "_core",
        "_failures",
        "_fleet",
        "_heard",
        "_ringing_s",
        "_timer",
        "_transport",
        "connected",
        "held",
        "number",
        "seen",
        "to_hear",
    )

    def __init__(self, fleet: ReturningFleet, number: int, device: str, names: Iterable[str]) -> None:
        self._fleet = fleet
        self._core = ClientCore(APPLICATION, device, random=random.random, nonce=_nonce)
        self._transport: WSTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ringing_s = 0.0
        self._failures = 0
        self._heard = False
        self.number = number
        self.connected = False
        self.seen: dict[bytes, int] = {}  # the latest version that the application was shown
        self.to_hear: dict[bytes, int] = {}  # objects of which it must be told: this version, a later one, or unknown
        self.held: list[Notification] | None = None  # not acknowledged, on purpose; None: everything is, at once
        self._perform(self._core.start(fleet.now()))
        for name in names:
            self._perform(self._core.register(fleet.now(), name_from_text(name)))

    @property
    def names(self) -> list[bytes]:
        return list(self._core.desired)

    def in_sync(self) -> bool:
        return self._core.in_sync(self._fleet.now())

    # The connection.

    async def connect(self) -> None:
        self._fleet.noted_attempt()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await ws_connect(lambda: self, self._fleet.url, read_buffer_init_size=2048, websocket_handshake_timeout=_CONNECT_S)
        except (OSError, WSError, TimeoutError) as error:
            self._fleet.count(f"connection failed: {type(error).__name__}")
            self._failures += 1
            self._again()

    def _again(self) -> None:
        if not self._fleet.closing and self._core.stopped is None:
            self._fleet.connect_later(self, connect_pause_s(self._core.config, self._failures, random.random(), self._core.spread_s))

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._heard = False
        self.connected = True
        self._fleet.noted_connected(self)
        self._perform(self._core.connected(self._fleet.now()))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self.connected = False
        self._failures = 0 if self._heard else self._failures + 1
        self._perform(self._core.disconnected(self._fleet.now()))
        self._fleet.count("connections lost")
        self._again()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        elif frame.msg_type == _TEXT:
            self._heard = True
            self.received(decode_server(frame.get_payload_as_memoryview()))

    def received(self, message: ServerMessage) -> None:
        if message.grant is not None:
            self._fleet.noted_granted(self)
        if message.start_anew is not None:
            self._fleet.count(f"told to start anew: {message.start_anew.code}")
        self._perform(self._core.received(self._fleet.now(), message))
        if not self.to_hear and self.in_sync():
            self._fleet.noted_informed(self)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.disconnect(False)

    # What the core asks for.

    def _perform(self, wanted: list[Action]) -> None:
        shown: list[Notification] = []
        for action in wanted:
            if isinstance(action, actions.Send):
                self._send(action.message)
            elif isinstance(action, actions.Notify):
                shown.append(action.notification)
            elif isinstance(action, actions.CloseChannel):
                if self._transport is not None:
                    self._transport.disconnect(False)
            elif isinstance(action, actions.Reported):
                self._fleet.count(f"error: {action.code}")
            elif isinstance(action, actions.Stopped):
                self._fleet.failed(f"a client stopped: {action.error}")
        if shown:
            self._show(shown)
        else:
            self._set_timer()

    def _send(self, message: ClientMessage) -> None:
        if self._transport is not None:
            self._transport.send(_TEXT, encode(message))
            self._fleet.count("messages sent")

    def _show(self, shown: Sequence[Notification]) -> None:
        """The application's part: it takes note, and is done with it at once, unless it is one that holds back."""
        for notification in shown:
            version = notification.version
            self._fleet.count("told unknown" if version is None else "told a version")
            if version is not None:
                self.seen[notification.name] = max(version, self.seen.get(notification.name, 0))
            if version is None or version >= self.to_hear.get(notification.name, 0):
                self.to_hear.pop(notification.name, None)
        if self.held is None:
            self._perform(self._core.acknowledge(self._fleet.now(), *shown))
        else:
            self.held += shown
            self._set_timer()

    def give_back(self) -> None:
        """The application could not deal with what it held: it is shown again when it is delivered again, and then acknowledged."""
        held, self.held = self.held or [], None
        for notification in held:
            self.to_hear[notification.name] = notification.version or 0
            self._perform(self._core.give_back(self._fleet.now(), notification))

    def _set_timer(self) -> None:
        """A timer that rings too early does no harm, so one is moved only if it would ring too late."""
        deadline_s = self._core.next_deadline()
        if deadline_s is None or (self._timer is not None and self._ringing_s <= deadline_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._ringing_s = max(deadline_s, self._fleet.now())
        self._timer = self._fleet.loop.call_at(self._ringing_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._perform(self._core.tick(self._fleet.now()))


class ReturningFleet:
    """Many such clients on one event loop, and what is noted of the present event."""

    def __init__(self, url: str) -> None:
        self.url = url.replace("http", "ws", 1) + "/v1/channel"
        self.loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self.loop.time
        self.clients: list[ReturningClient] = []
        self.event = Event(self.now())
        self.closing = False
        self._failure = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._informed: set[int] = set()
        self._connected: set[int] = set()
        self._granted: set[int] = set()

    def begin_event(self, disconnects: bool = False) -> Event:
        """From now on it is noted when each client is connected, granted a session and informed."""
        self._informed, self._connected, self._granted = set(), set(), set()
        self.event = Event(self.now(), disconnects)
        return self.event

    async def join(self, count: int, names_of: Callable[[int], Sequence[str]], timeout_s: float) -> None:
        """Start so many clients, and wait until all of them are in sync."""
        began_s = self.now()
        self.begin_event()
        while len(self.clients) < count or not self.all_informed():
            self.check()
            if self.now() - began_s > timeout_s:
                raise BenchFailed(
                    f"Only {len(self._informed):,} of {count:,} clients joined within {timeout_s:g} s: {dict(self.event.counts)}"
                )
            room = min(count - len(self.clients), _STARTING_MAX - (len(self.clients) - len(self._informed)))
            for number in range(len(self.clients), len(self.clients) + room):
                client = ReturningClient(self, number, f"device-{number}", names_of(number))
                self.clients.append(client)
                self.connect_later(client, 0.0)
            await asyncio.sleep(_STEP_S)
        say(f"{count:,} clients joined in {self.now() - began_s:.1f} s")

    def connect_later(self, client: ReturningClient, pause_s: float) -> None:
        if pause_s > 0:
            self.loop.call_later(pause_s, self.connect_later, client, 0.0)
        elif not self.closing:
            task = self.loop.create_task(client.connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def noted_connected(self, client: ReturningClient) -> None:
        if client.number not in self._connected:
            self._connected.add(client.number)
            self.event.connected_s.append(self.now() - self.event.began_s)

    def noted_attempt(self) -> None:
        self.event.attempts_s.append(self.now() - self.event.began_s)

    def noted_granted(self, client: ReturningClient) -> None:
        if client.number not in self._granted:
            self._granted.add(client.number)
            self.event.granted_s.append(self.now() - self.event.began_s)

    def noted_informed(self, client: ReturningClient) -> None:
        if client.number not in self._informed and (client.number in self._connected or not self.event.disconnects):
            self._informed.add(client.number)
            self.event.informed_s.append(self.now() - self.event.began_s)

    def count(self, what: str) -> None:
        self.event.counts[what] += 1

    def failed(self, why: str) -> None:
        self._failure = self._failure or why

    def check(self) -> None:
        if self._failure:
            raise BenchFailed(self._failure)

    def all_informed(self) -> bool:
        """Every client was informed at some time since the event began, and all are now."""
        return len(self._informed) == len(self.clients) and all(not client.to_hear and client.in_sync() for client in self.clients)

    async def informed(self, timeout_s: float) -> None:
        """Wait until all clients are."""
        if not await until(lambda: bool(self._failure) or self.all_informed(), timeout_s):
            left = [client for client in self.clients if client.to_hear or not client.in_sync()]
            raise BenchFailed(f"{len(left):,} clients were not informed within {timeout_s:g} s: {dict(self.event.counts)}")
        self.check()

    async def close(self) -> None:
        self.closing = True
        for client in self.clients:
            client.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.clients.clear()


def _nonce() -> str:
    return secrets.token_urlsafe(12)
