"""`roskva.testing.Service`: the joined server with real clients over wires that break when they are told to (docs/testing.md).

The public surface. Whatever is decided is decided in `joined`, `client.core` and the cores below them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from roskva.client.shell import Client
from roskva.errors import InvalidSetting, ServiceUnreachable
from roskva.matcher.cells import object_row, read_version
from roskva.model import ObjectKey, Update, check_application, name_from_text, name_to_text, object_key
from roskva.protocol.messages import Config, ServerMessage
from roskva.publisher import Publisher, WireUpdate, update_of
from roskva.testing.joined import PARTITIONS, Server
from roskva.testing.loop import HandLoop
from roskva.testing.wires import ADDRESS, Wire, WireConnector

T = TypeVar("T")

_CLOSING_S: Final = 60.0  # of the service's time, for what the clients of a test have still to say at its end


class _Client(Client):
    """A real client, whose connections are wires of a `Service` and whose dice are the test's."""

    _connector: WireConnector  # type: ignore[assignment]  # in the place of the one that opens sockets

    def __init__(self, service: Service, application: str, device: str | None, options: dict[str, Any]) -> None:
        if not options.keys().isdisjoint({"url", "channel"}):
            raise InvalidSetting("A client of a roskva.testing.Service is connected to it: leave url and channel out.")
        super().__init__(ADDRESS, application=application, device=device, **options)
        self._connector = WireConnector(service)
        self._random = service.dice.random
        self._service = service

    def _look(self) -> None:
        """A debugger that holds a test is no sleep: only the clock of the service counts here."""

    def _now(self) -> float:
        return self._service.now_s  # `in_sync` may be asked outside of what is run

    @property
    def wires(self) -> WireConnector:
        return self._connector


class _Publisher(Publisher):
    def __init__(self, service: Service, application: str) -> None:
        super().__init__(ADDRESS, application=application)
        self._service = service

    async def _publish(self, update: WireUpdate) -> None:
        self._service.accept(self._application, update)


class Service:
    """A service inside a test, used with `with`.

    >>> from roskva.testing import Service
    >>> async def story(client):
    ...     async with client:
    ...         await client.register("doc:42")
    ...         async for notification in client:
    ...             return notification.version
    >>> with Service() as service:
    ...     service.publish("shop", "doc:42", 7)
    ...     service.run(story(service.client("shop")))
    7

    loss      which part of the messages is lost, in either direction: 0.0 to 1.0. May be set at any time
    seed      of all chance: the same seed, the same test
    config    what the service wishes of its clients (docs/protocol.md)
    """

    def __init__(self, *, loss: float = 0.0, seed: int = 0, config: Config | None = None) -> None:
        self.dice = random.Random(seed)
        self.loss = loss
        self.running = True
        self._to_lose: dict[str, int] = {"client": 0, "service": 0, "any": 0}
        self._server = Server(config=config or Config())
        self._clients: list[_Client] = []
        self._wires: dict[int, Wire] = {}  # the living ones, by the identity of what the server writes to
        self._hand_loop: HandLoop | None = None

    # The test's side.

    def __enter__(self) -> Self:
        if self._hand_loop is not None:
            raise RuntimeError("this service was used before: make a new one")
        self._hand_loop = HandLoop(self._work, self._server.due_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = self._loop
        self.loss, self._to_lose = 0.0, dict.fromkeys(self._to_lose, 0)
        failed: list[Exception] = []
        try:
            for client in self._clients:
                try:
                    loop.run(client.close(), _CLOSING_S)
                except Exception as why:  # the others are closed all the same
                    failed.append(why)
            loop.end(list(asyncio.all_tasks(loop)))
            try:
                loop.run(loop.shutdown_asyncgens(), _CLOSING_S)
            except Exception as why:
                failed.append(why)
        finally:
            loop.close()
        if failed and error is None:  # else the test has failed already, and what it says is worth more
            raise failed[0]

    def run(self, coroutine: Coroutine[Any, Any, T], within_s: float = 0.0) -> T:
        """Bring it to its end, and answer its result. Raises Stuck if that needs time: more than `within_s`, which may pass by itself."""
        return self._loop.run(coroutine, within_s)

    def advance(self, seconds: float) -> Awaitable[None]:
        """Move the clock, from timer to timer. To be awaited inside of what is run; outside, it is done when this returns."""
        if seconds < 0:
            raise ValueError("the clock cannot go back")
        return self._loop.advance(seconds)

    @property
    def now_s(self) -> float:
        """What the clock shows; it began at 0."""
        return self._loop.time()

    def client(self, application: str, device: str | None = None, **options: Any) -> Client:
        """A client of this service, not started: `async with` it, or `service.run(client.start())`. `options` as for `roskva.Client`."""
        client = _Client(self, application, device or f"device-{len(self._clients) + 1}", options)
        self._clients.append(client)
        return client

    def publisher(self, application: str) -> Publisher:
        return _Publisher(self, application)

    def publish(self, application: str, name: str | bytes, version: int, source: str | None = None) -> None:
        """As a backend does. Clients hear of it when something is run, or the clock is moved."""
        self.accept(check_application(application), update_of(name, version, source))

    def lose(self, next: int, to: Literal["client", "service"] | None = None) -> None:
        """The next so many messages are lost: to clients, to the service, or any."""
        if not _is_count(next):
            raise InvalidSetting(f"lose(next={next!r:.80}): next is how many messages are lost, an integer from 0.")
        if to not in (None, "client", "service"):
            raise InvalidSetting(f'lose(to={to!r:.80}): to is "client" or "service", or is left out.')
        self._to_lose[to or "any"] += next

    @property
    def loss(self) -> float:
        """Which part of the messages is lost, in either direction."""
        return self._loss

    @loss.setter
    def loss(self, part: float) -> None:
        if not _is_part(part):
            raise InvalidSetting(f"loss={part!r:.80}: loss is the part of the messages that is lost, a number from 0.0 to 1.0.")
        self._loss = part

    def disconnect(self, client: Client) -> None:
        """Its connection breaks, and no other comes about until `reconnect`."""
        self._wires_of(client).allowed = False
        self._break(self._wires_of(client).wire)

    def reconnect(self, client: Client) -> None:
        """A connection may come about again: when the client tries next, after a pause."""
        self._wires_of(client).allowed = True

    def stop(self) -> None:
        """All connections break, and what was only in memory is gone. No connection comes about until `start`."""
        self.running = False
        while self._server.work():  # what was accepted is durable
            pass
        self._server.sessions.clear()
        for wire in list(self._wires.values()):
            self._break(wire)

    def start(self) -> None:
        self.running = True

    def restart(self) -> None:
        self.stop()
        self.start()

    def drop_everything(self) -> None:
        """All that the service knew is gone: ids, registrations, versions. It goes on; its clients start anew when they connect again."""
        self._server.feed.clear()
        self.restart()
        self._server.table.clear()

    def invalidate(self, application: str, name: str | bytes) -> None:
        """Everyone registered for it is told unknown, as by `roskva invalidate`."""
        self._server.invalidate(self._key(application, name))

    def reset(self, application: str) -> None:
        """The application's versions begin anew, lower ones included, as by `roskva reset`. Everyone registered is told unknown."""
        self._server.reset(check_application(application))

    def collect(self, client: Client) -> None:
        """The service deletes this client, as it does with those that were not seen for long; its connection breaks."""
        for row in self._server.clients():
            if row.created is not None and (row.created.application, row.created.device) == (client.application, client.device):
                self._server.forget(row.client)
        self._break(self._wires_of(client).wire)

    def registered(self, application: str, name: str | bytes) -> list[str]:
        """The devices that the service has registered for it."""
        key = self._key(application, name)
        rows = (row for row in self._server.clients() if row.created is not None)
        return sorted(row.created.device for row in rows if row.created and (at := row.standing(key)) is not None and at.registered)

    def version(self, application: str, name: str | bytes) -> int | None:
        """What the service knows. None: nothing was published, or what was is lost."""
        known = read_version(self._server.read(object_row(self._key(application, name), PARTITIONS)))
        return None if known is None else known.version

    # The service's side.

    def accept(self, application: str, update: WireUpdate) -> None:
        """For the publishers: an update that was checked."""
        if not self.running:
            raise ServiceUnreachable("The service of this test is stopped.")
        self._server.feed.append(Update(self._key(application, update.object), int(update.version), update.source or ""))

    def plug_in(self, wire: Wire) -> None:
        self._wires[id(wire.outbox)] = wire

    def unplug(self, wire: Wire) -> None:
        if self._wires.pop(id(wire.outbox), None) is not None:
            for client, session in list(self._server.sessions.items()):
                if session.channel is wire.outbox:
                    del self._server.sessions[client]

    def heard(self, wire: Wire, message: Any) -> None:
        if id(wire.outbox) in self._wires and not self._lost("service"):
            self._server.now_s = self._loop.time()
            self._server.receive(wire.outbox, message)

    def _work(self) -> bool:
        """One step of what the service does when nobody else has anything to do at this moment."""
        self._server.now_s = self._loop.time()
        self._server.tick()
        for wire in list(self._wires.values()):
            if wire.outbox:
                said: list[ServerMessage] = [*wire.outbox]
                wire.outbox.clear()
                wire.deliver([message for message in said if not self._lost("client")])
                return True
        return self.running and self._server.work()

    def _lost(self, to: str) -> bool:
        for which in (to, "any"):
            if self._to_lose[which]:
                self._to_lose[which] -= 1
                return True
        return self.loss > 0 and self.dice.random() < self.loss

    def _break(self, wire: Wire | None) -> None:
        if wire is not None:
            self.unplug(wire)
            wire.interrupted()

    def _wires_of(self, client: Client) -> WireConnector:
        if not isinstance(client, _Client) or client not in self._clients:
            raise InvalidSetting("This client is not one of this service.")
        return client.wires

    def _key(self, application: str, name: str | bytes) -> ObjectKey:
        text = name_to_text(name) if isinstance(name, bytes) else name
        return object_key(check_application(application), self._server.epoch(application), name_from_text(text))

    @property
    def _loop(self) -> HandLoop:
        if self._hand_loop is None:
            raise RuntimeError("a service is used with `with`")
        return self._hand_loop


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_part(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
