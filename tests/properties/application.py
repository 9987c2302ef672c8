"""An application with one client: what it wishes for, what it durably has, and what it was shown. It checks what no client may ever see.

It learns strictly: a version only by being told that one or a later one, by having made that very one (it is the source), or by a fetch
after "unknown" or before a registration. So a lost notification cannot hide behind a lucky fetch, nor behind a change of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

if TYPE_CHECKING:
    from tests.properties.world import World


class Application:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.installations = 0
        self.wishes: set[bytes] = set()
        self.states_versions = False  # whether it says what it holds when it registers
        self.prompt = True  # whether it deals with notifications at once
        self.install()

    def install(self) -> None:
        """A new installation: another device, nothing kept."""
        self.installations += 1
        self.device = f"device-{self.number}-{self.installations}"
        self.state: bytes | None = None
        self.store: dict[bytes, int] = {}  # durable: the version that it has learned, with all before it, by object
        self.made: set[tuple[bytes, int]] = set()  # durable: its own changes; others' changes before them it may not have
        self.run_anew()

    def run_anew(self) -> None:
        """A run of the client begins: what was in memory is gone, what was acknowledged is not."""
        self.queue: list[Notification] = []  # shown, and not dealt with yet
        self.history: list[Notification] = []  # all that this run was shown
        self.statuses: list[tuple[bytes, bool]] = []
        self.failures: list[RegistrationFailed] = []
        self.shown: dict[bytes, int] = {}  # the highest version that this run was shown
        self.confirmed: dict[bytes, bool] = {}
        self.stopped = False
        self.reissues = 0
        world = self.world
        self.core = ClientCore("demo", self.device, random=world.dice, nonce=world.nonce, state=self.state, config=world.client_config)

    def start(self) -> None:
        self.carry_out(self.core.start(self.world.now))

    # What the application does.

    def register(self, name: bytes, fetch: bool = False, interval_ms: int | None = None) -> None:
        if fetch and name in self.world.published:
            self.store[name] = self.world.latest(name)
        self.wishes.add(name)
        self.confirmed.pop(name, None)
        held = self.store.get(name) if self.states_versions or fetch else None
        self.carry_out(self.core.register(self.world.now, name, held, interval_ms=interval_ms))

    def unregister(self, name: bytes) -> None:
        self.wishes.discard(name)
        self.confirmed.pop(name, None)
        self.carry_out(self.core.unregister(self.world.now, name))

    def deal_with(self, index: int = 0) -> None:
        """Take a notification from the queue: learn, make it durable, acknowledge."""
        if self.queue:
            notification = self.queue.pop(index % len(self.queue))
            self._learn(notification)
            self.carry_out(self.core.acknowledge(self.world.now, notification))

    def give_back(self, index: int = 0) -> None:
        """Fail on a notification: it wants to see it again."""
        if self.queue:
            notification = self.queue.pop(index % len(self.queue))
            if notification.version is not None and self.shown.get(notification.name) == notification.version:
                del self.shown[notification.name]
            self.carry_out(self.core.give_back(self.world.now, notification))

    def _learn(self, notification: Notification) -> None:
        name = notification.name
        if notification.version is not None:
            self.store[name] = max(self.store.get(name, -1), notification.version)
        elif name in self.world.published:
            self.store[name] = self.world.latest(name)

    def missing(self, name: bytes) -> list[int]:
        """The published versions of an object that it has not learned of."""
        known = self.store.get(name, -1)
        return [one for one in self.world.published.get(name, ()) if one > known and (name, one) not in self.made]

    # What the core asks for.

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.world.to_server(self, action.message)
            elif isinstance(action, Notify):
                self._shown(action.notification)
            elif isinstance(action, StatusChanged):
                self.confirmed[action.name] = action.registered
                self.statuses.append((action.name, action.registered))
            elif isinstance(action, RegistrationFailed):
                self.failures.append(action)
            elif isinstance(action, WriteState):
                self.state = action.state
            elif isinstance(action, ReissueRegistrations):
                self.reissues += 1
                for name in sorted(self.wishes):
                    self.register(name)
            elif isinstance(action, CloseChannel):
                self.world.disconnect(self, noticed=True)
            elif isinstance(action, Stopped):
                self.stopped = True

    def _shown(self, notification: Notification) -> None:
        name = notification.name
        assert name in self.wishes, f"{self.device} was told of {name!r}, which it is not registered for"
        if notification.version is not None:
            assert notification.version in self.world.published.get(name, ()), f"{name!r} never had version {notification.version}"
            before = self.shown.get(name, -1)
            assert notification.version > before, f"{self.device} saw {name!r} at {notification.version} after {before}"
            self.shown[name] = notification.version
        self.queue.append(notification)
        self.history.append(notification)
        if self.prompt:
            self.deal_with(len(self.queue) - 1)

    def call(self, enter: Callable[[float], list[Action]]) -> None:
        """An input of the core that needs nothing but the time."""
        self.carry_out(enter(self.world.now))
