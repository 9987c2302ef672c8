"""Applications with a client each: the real client core, what the application wishes for, what it durably has, what it was shown.

It learns strictly: a version by being told that one or a later one, by having made it, or by a fetch after "unknown" or before a
registration. So a lost notification cannot hide behind a lucky fetch.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING

from roskva.client.actions import (
    Action,
    CloseChannel,
    Notification,
    Notify,
    RegistrationFailed,
    ReissueRegistrations,
    Send,
    StatusChanged,
    Stopped,
    WriteState,
)
from roskva.client.core import ClientCore
from roskva.client.limits import connect_pause_s
from roskva.model import name_from_text
from roskva.probes import reached
from roskva.protocol.messages import decode_server, encode
from roskva.simulation.processes import Process

if TYPE_CHECKING:
    from roskva.simulation.gateways import GatewayEnd, SimulatedGateway
    from roskva.simulation.loop import Call
    from roskva.simulation.world import World

_CONNECT_S = 3.0
_FORGET_S = 10.0  # as long as the shell waits for the service's word that it forgot the client


class ClientEnd:
    """A connection as the client has it."""

    def __init__(self, application: Application, gateway: SimulatedGateway) -> None:
        self.process = application.process
        self.open = True
        self.there: GatewayEnd | None = None
        self._application = application
        self._gateway = gateway

    def ask(self) -> None:
        world = self._application.world
        world.network.post(self.process, self._gateway.process, self._arrived)

    def _arrived(self) -> None:
        """At the gateway."""
        if self.there is not None or not self.open:
            return
        there = self._gateway.accept(self)
        if there is not None:
            self._application.world.network.post(self._gateway.process, self.process, lambda: self._made(there))

    def _made(self, there: GatewayEnd) -> None:
        if self.open and self.there is None:
            self.there = there
            self._application.connection_made(self)

    def send(self, data: bytes) -> None:
        there = self.there
        if self.open and there is not None:
            self._application.world.network.post(self.process, self._gateway.process, lambda: there.received(data))

    def received(self, data: bytes) -> None:
        if self.open:
            self._application.received(data)

    def lost(self) -> None:
        if self.open:
            self.open = False
            self._application.connection_lost(self)

    def close(self) -> None:
        """By this side: the gateway hears of it, or not."""
        self.open = False
        there = self.there
        if there is not None:
            self._application.world.network.post(self.process, self._gateway.process, there.gone)


class Application:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.chance = world.chance_for(f"application {number}")
        self.installations = 0
        self.running = False
        self.stopped = False
        self.cloned = False  # whether another process ever ran with its state
        self.prompt = True  # whether it deals with notifications at once
        self.states_versions = False  # whether it says what it holds when it registers
        self.leaving = False  # whether it signs out, or has, and is not back yet
        self._when_gone: Callable[[], object] = lambda: None
        self.wishes: dict[bytes, None] = {}
        self.install()

    # Lives.

    def install(self) -> None:
        """A new installation: another device, nothing kept."""
        self.installations += 1
        self.device = f"device-{self.number}-{self.installations}"
        self.state: bytes | None = None
        self.store: dict[bytes, int] = {}  # durable: the serial of the state that it has learned of, with all before it
        self.held: dict[bytes, tuple[int, int]] = {}  # durable: epoch and version that it would state
        self.made: set[tuple[bytes, int]] = set()  # durable: its own changes, by their serials

    def start(self) -> None:
        self.process = Process(self.device, self.world.loop, host=f"client-{self.number}")
        self.running = True
        self.leaving = False
        self.runs_s = self.world.loop.time()
        self.queue: dict[tuple[bytes, bool], Notification] = {}
        self.shown: dict[bytes, tuple[int, int]] = {}  # the highest epoch and version that this run was shown
        self.confirmed: dict[bytes, tuple[bool, float]] = {}  # what the server said last, and when
        self.stopped = False
        self.failures = 0
        self.connection: ClientEnd | None = None
        self._timer: Call | None = None
        self._reconnect: Call | None = None
        nonce = lambda: base64.urlsafe_b64encode(self.chance.randbytes(9)).decode()  # noqa: E731
        self.core = ClientCore(
            "demo", self.device, random=self.chance.random, nonce=nonce, state=self.state, config=self.world.client_config
        )
        self.world.tell(self.device, "starts")
        self.carry_out(self.core.start(self.now_s()))
        self._connect()

    def kill(self) -> None:
        """What was in memory is gone, what was acknowledged is not."""
        if not self.running:
            return
        self.world.tell(self.device, "dies")
        self.running = False
        for timer in (self._timer, self._reconnect):
            if timer is not None:
                timer.cancel()
        if self.connection is not None:
            self.connection.close()
        self.process.kill()

    def sign_out(self, wishes: Iterable[bytes], back_after_s: float) -> None:
        """Be forgotten, or give up waiting for that; what was kept is gone either way. Later it is there again, as a new client."""
        world, installation = self.world, self.installations
        self.leaving = True
        world.tell(self.device, "signs out")
        for name in list(self.wishes):
            world.invalidations.unregistered(self, name)
        self.wishes.clear()
        self.confirmed.clear()
        comes_back_with = dict.fromkeys(wishes)

        def gone() -> None:
            if self.leaving and self.installations == installation and self.running:
                self.kill()
                self.install()
                self.wishes = comes_back_with
                world.loop.call_later(back_after_s, self._come_back, self.installations)

        outside = copy_context()  # not of this process, which ends
        self._when_gone = lambda: world.loop.call_soon(gone, context=outside)
        world.loop.call_later(_FORGET_S, gone)
        self.carry_out(self.core.forget(self.now_s()))

    def _come_back(self, installation: int) -> None:
        if self.installations == installation and not self.running:
            self.start()

    def now_s(self) -> float:
        return self.process.clock()

    # The connection.

    def _connect(self) -> None:
        self._reconnect = None
        if not self.running or self.stopped:
            return
        gateway = self.world.some_gateway(self.chance)
        if gateway is not None:
            self.connection = ClientEnd(self, gateway)
            self.connection.ask()
        connection = self.connection
        self._reconnect = self._later(_CONNECT_S, lambda: self._not_connected(connection))

    def _not_connected(self, connection: ClientEnd | None) -> None:
        if connection is None or (connection is self.connection and connection.there is None):
            if connection is not None:
                connection.close()
            self._connect_later()

    def _connect_later(self) -> None:
        self.connection = None
        self.failures += 1
        self._reconnect = self._later(connect_pause_s(self.core.config, self.failures, self.chance.random()), self._connect)

    def connection_made(self, connection: ClientEnd) -> None:
        if connection is self.connection and self.running:
            if self._reconnect is not None:
                self._reconnect.cancel()
            self.failures = 0
            self.carry_out(self.core.connected(self.now_s()))

    def connection_lost(self, connection: ClientEnd) -> None:
        if connection is self.connection and self.running:
            if self._reconnect is not None:
                self._reconnect.cancel()
            if connection.there is not None:
                self.carry_out(self.core.disconnected(self.now_s()))
            self._connect_later()

    def drop_connection(self) -> None:
        connection = self.connection
        if connection is not None and connection.there is not None:
            connection.close()
            self.connection_lost(connection)

    def received(self, data: bytes) -> None:
        if self.running and not self.stopped:
            message = decode_server(data)
            for told in message.notify:
                self.world.silence.told(self, name_from_text(told.object))
            if (
                self.leaving
                and message.start_anew is not None
                and not message.start_anew.keep
                and message.token == self.core._handshake.token
            ):
                reached("application: told that it is forgotten")
                self.world.departures.told(self.world.keyring.verify(message.token).client)
            self.carry_out(self.core.received(self.now_s(), message))

    # What the application does.

    def register(self, name: bytes, fetch: bool = False) -> None:
        if fetch:
            self._fetch(name, self.world.history.epoch)
        self.wishes[name] = None
        self.confirmed.pop(name, None)
        epoch, held = self.held.get(name, (0, None)) if self.states_versions or fetch else (0, None)
        self.world.tell(self.device, f"registers {name.decode()}{'' if held is None else f', holding {held} of epoch {epoch}'}")
        own_ms = self.world.knobs.own_interval_ms
        interval_ms = own_ms * (len(self.wishes) % 3) if own_ms else None
        self.carry_out(self.core.register(self.now_s(), name, held, epoch, interval_ms))

    def unregister(self, name: bytes) -> None:
        self.wishes.pop(name, None)
        self.confirmed.pop(name, None)
        self.world.invalidations.unregistered(self, name)
        self.world.tell(self.device, f"unregisters {name.decode()}")
        self.carry_out(self.core.unregister(self.now_s(), name))

    def made_change(self, name: bytes, serial: int) -> None:
        self.made.add((name, serial))

    def missing(self, name: bytes) -> list[int]:
        """The serials of the acknowledged states of an object that it has not learned of."""
        truth = self.world.truth[name]
        known = self.store.get(name, -1)
        if known >= truth.latest_acknowledged:
            return []
        return [one for one in sorted(truth.acknowledged) if known < one and (name, one) not in self.made]

    def _fetch(self, name: bytes, epoch: int) -> None:
        truth = self.world.truth[name]
        if truth.version >= 0:
            self._learn(name, truth.latest, (epoch, truth.version))
        elif truth.states:
            self._learn(name, truth.latest, None)  # it is not there any more

    def _learn(self, name: bytes, serial: int, held: tuple[int, int] | None) -> None:
        self.store[name] = max(self.store.get(name, -1), serial)
        if held is not None:
            self.held[name] = max(self.held.get(name, held), held)

    def _learn_from(self, notification: Notification) -> None:
        name, epoch, version = notification.name, notification.epoch, notification.version
        if version is None:
            self._fetch(name, epoch)
            return
        serial = self.world.history.serial_of(name, epoch, version)
        if serial is not None:
            self._learn(name, max(serial, self.world.truth[name].reset_at(epoch)), (epoch, version))

    def take(self, notification: Notification) -> None:
        """As the shell's mailbox does: at most one waits per object and kind, and a later version takes the place of an earlier."""
        key = (notification.name, notification.version is None)
        waiting = key in self.queue
        self.queue[key] = notification
        if self.prompt or not self.world.faulty:
            self.deal_with(key)
        elif not waiting:
            self._later(self.chance.expovariate(1.0), lambda: self.deal_with(key))

    def deal_with(self, key: tuple[bytes, bool]) -> None:
        """Learn, make it durable, acknowledge; or fail on it, and want to see it again."""
        notification = self.queue.pop(key, None)
        if notification is None or not self.running:
            return
        name = notification.name
        if self.world.faulty and self.chance.random() < 0.05:
            if notification.version is not None and self.shown.get(name) == (notification.epoch, notification.version):
                del self.shown[name]
            self.carry_out(self.core.give_back(self.now_s(), notification))
            return
        self._learn_from(notification)
        self.carry_out(self.core.acknowledge(self.now_s(), notification))

    # What the core asks for.

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._carry_out(action)
        self._schedule()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Send):
            if action.message.forget:
                self.world.departures.asked(self.world.client_of(self))
            if self.connection is not None:
                self.connection.send(encode(action.message))
        elif isinstance(action, Notify):
            self.world.watch.notified(self, action.notification)
            self.take(action.notification)
        elif isinstance(action, StatusChanged):
            self.confirmed[action.name] = (action.registered, self.world.loop.time())
            self.world.tell(self.device, f"is {'registered' if action.registered else 'not registered'} for {action.name.decode()}")
        elif isinstance(action, RegistrationFailed):
            self.world.tell(self.device, f"registration of {action.name.decode()} failed: {action.code}")
        elif isinstance(action, WriteState):
            self.state = action.state
        elif isinstance(action, ReissueRegistrations):
            for name in list(self.wishes):
                self.register(name)
        elif isinstance(action, CloseChannel):
            self.drop_connection()
        elif isinstance(action, Stopped):
            self.stopped = True
            self.world.tell(self.device, f"stops: {action.error}")
            if self.leaving:
                self._when_gone()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.core.next_deadline()
        if due_s is not None and self.running and not self.stopped:
            self._timer = self._later(max(0.0, due_s - self.now_s()) + 1e-6, self._tick)

    def _tick(self) -> None:
        if self.running and not self.stopped:
            self.carry_out(self.core.tick(self.now_s()))

    def _later(self, seconds: float, work: Callable[[], None]) -> Call:
        return self.world.loop.call_later(seconds, work, context=self.process.context.copy())
