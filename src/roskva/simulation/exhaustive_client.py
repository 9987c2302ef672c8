"""One client of the exhaustive search: the real core, and an application that makes durable what it acknowledges (Thialfi 3.3).

Everything that may differ between two states is data in here: the dice always fall alike and nonces are counted. `form_of` gives the
canonical form by which states are compared. What no client may ever see is noted in `fault`. Not here: the network, and time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from roskva.client.actions import Action, CloseChannel, Notification, Notify, ReissueRegistrations, Send, Stopped, WriteState
from roskva.client.core import ClientCore
from roskva.client.operations import Operations
from roskva.model import object_key
from roskva.protocol.messages import Config, decode_server, encode

APPLICATION: Final = "demo"
DEVICE: Final = "device"
NAME: Final = b"x"
OBJECT: Final = object_key(APPLICATION, 0, NAME)
# Heartbeats come when nothing else is to be done; nobody is taken for dead for being silent: time passes in jumps.
CONFIG: Final = Config(heartbeat_s=20.0, heartbeat_smear=0.0, keepalive_s=100_000.0, retry_min_s=1.0, retry_max_s=8.0)


class Nonces:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"nonce-{self.count}"


def dice() -> float:
    return 0.5


@dataclass(slots=True)
class ClientSide:
    states_versions: bool = False  # whether the application names the version that it holds when it registers
    nonces: Nonces = field(default_factory=Nonces)
    state: bytes | None = None  # as WriteState gave it
    kept: int = -1  # the version that the application durably has; -1: none
    shown: int = -1  # the highest version that it was shown in this run
    waiting: list[tuple[Notification, int]] = field(default_factory=list)  # with the version that it had then: told, or fetched
    link: int = 0  # counts its connections
    fault: str = ""
    core: ClientCore = field(init=False)
    published: int = 0  # as of this input: what a fetch would yield
    sent: list[tuple[int, bytes]] = field(default_factory=list)  # (link, message), taken away after each input
    hung_up: bool = False  # its connection ended in this input, and there is a new one
    fetched: bool = False  # the application fetched in this input

    def __post_init__(self) -> None:
        self._new_core()

    def _new_core(self) -> None:
        self.core = ClientCore(APPLICATION, DEVICE, random=dice, nonce=self.nonces, state=self.state, config=CONFIG)

    def start(self, now: float) -> None:
        self._carry_out(now, self.core.start(now))
        self.reconnect(now)

    def reconnect(self, now: float) -> None:
        self.core.disconnected(now)
        self.link += 1
        self._carry_out(now, self.core.connected(now))

    def die(self, now: float) -> None:
        """Its state was kept, and what was acknowledged is durable; the rest is gone."""
        self.shown = -1
        self.waiting = []
        self._new_core()
        self.start(now)

    def receive(self, now: float, data: bytes) -> None:
        self._carry_out(now, self.core.received(now, decode_server(data)))

    def acknowledge(self, now: float, index: int) -> None:
        notification, version = self.waiting.pop(index)
        self.kept = max(self.kept, version)
        self._carry_out(now, self.core.acknowledge(now, notification))

    def unregister(self, now: float) -> None:
        self._carry_out(now, self.core.unregister(now, NAME))

    def register(self, now: float) -> None:
        held = self.kept if self.states_versions and self.kept >= 0 else None
        self._carry_out(now, self.core.register(now, NAME, held))

    @property
    def registered(self) -> bool:
        """Whether its application wishes for the object."""
        return NAME in self.core.desired

    def tick(self, now: float) -> None:
        self._carry_out(now, self.core.tick(now))

    def _carry_out(self, now: float, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent.append((self.link, encode(action.message)))
            elif isinstance(action, Notify):
                self._show(action.notification)
            elif isinstance(action, WriteState):
                self.state = action.state
            elif isinstance(action, ReissueRegistrations):
                self.register(now)
            elif isinstance(action, CloseChannel):
                self.hung_up = True
                self.reconnect(now)
            elif isinstance(action, Stopped):
                self.fault = f"the client stopped: {action.error}"

    def _show(self, notification: Notification) -> None:
        version = notification.version
        if version is None:
            self.fetched = True
            self.waiting.append((notification, self.published))  # it fetches at once: as early as may be
            return
        if version > self.published:
            self.fault = f"shown version {version}, which was never published"
        if version <= self.shown:
            self.fault = f"shown version {version} after version {self.shown}"
        self.shown = version
        self.waiting.append((notification, version))


def form_of(thing: Any) -> Any:
    """The canonical, hashable form of a state. Two objects that are one are told from two that are equal."""
    return _form(thing, {})


def _form(thing: Any, seen: dict[int, int]) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        return thing
    if isinstance(thing, (tuple, list, deque)):
        return tuple([_form(one, seen) for one in thing])
    if isinstance(thing, dict):
        return tuple([(_form(key, seen), _form(value, seen)) for key, value in thing.items()])
    if isinstance(thing, msgspec.Struct):
        return msgspec.json.encode(thing)
    if isinstance(thing, Enum):
        return thing.name
    if id(thing) in seen:
        return ("again", seen[id(thing)])
    seen[id(thing)] = len(seen)
    if isinstance(thing, Operations):
        return _operations_form(thing, seen)
    if callable(thing) and hasattr(thing, "__qualname__"):
        return thing.__qualname__
    names = [*getattr(thing, "__dict__", ()), *(name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ()))]
    return (type(thing).__name__, *[_form(getattr(thing, name, None), seen) for name in names])


def _operations_form(operations: Operations, seen: dict[int, int]) -> Any:
    """Without what is skipped when it is met, and without the tickets, which only break ties."""
    live = list(operations._by_name.values())
    repeats = [(due, one) for due, _, one in sorted(operations._repeats, key=lambda entry: entry[:2]) if one in live and one.due == due]
    waiting = [one for one in operations._waiting if one in live]
    return _form((operations._by_name, waiting, repeats, operations._unanswered), seen)
