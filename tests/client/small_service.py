"""A service of one data center in a dictionary, and a client over the real core, on any event loop: for tests of what stands on the client.

Messages take a turn of the loop. What the service owes it sends again over every new connection, and after every handshake.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from roskva.client import actions
from roskva.client.actions import Notification
from roskva.client.core import ClientCore
from roskva.client.following import Following
from roskva.client.handlers import Handlers
from roskva.errors import ClientStopped, InvalidSetting
from roskva.model import name_from_text
from roskva.protocol import messages
from roskva.protocol.messages import ClientMessage, Config, Grant, Notify, ServerMessage, Status
from roskva.protocol.summaries import SetDigest
from roskva.simulation.loop import VirtualLoop

T = TypeVar("T")


def on_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run it with a clock that jumps to the next timer. Whatever is left over when it ends is a defect."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main)
        left = [task.get_name() for task in asyncio.all_tasks(loop)]
        assert left == []
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class SmallService:
    """Keeps one client's registrations, whatever becomes of the client."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}  # the latest known
        self.epoch = 0
        self.registered: dict[str, int] = {}  # object -> seqno
        self.waiting: dict[tuple[str, int, bool], int | None] = {}  # object, seqno, whether unknown: those are apart
        self.notified = 0
        self.acks: list[messages.Ack] = []
        self.operations = 0
        self.refuses: set[str] = set()
        self.why_refused = "too-many-registrations"
        self._session = 0
        self._seqnos = itertools.count(1)
        self.client: CoreClient | None = None  # who is connected

    @property
    def token(self) -> str:
        return f"s{self._session}"

    def publish(self, name: str, version: int) -> None:
        self.versions[name] = max(version, self.versions.get(name, -1))
        if name in self.registered:
            self._owe(name, self.registered[name], version)

    def revoke(self, name: str) -> None:
        """Its user may not have it any more."""
        self.refuses.add(name)
        self._unregister(name)
        self.say(status=[Status(object=name, state=messages.FAILED, code="not-authorized")])

    def lose_version(self, name: str) -> None:
        """Something changed, and the service cannot say to what."""
        self.versions.pop(name, None)
        if name in self.registered:
            self._owe(name, next(self._seqnos), None)

    def reset(self) -> None:
        """A new epoch: versions count from below, and nobody is registered any more."""
        self.epoch += 1
        self.versions.clear()
        self.registered.clear()
        self.waiting.clear()
        self.say()

    def _owe(self, name: str, seqno: int, version: int | None) -> None:
        self.waiting[name, seqno, version is None] = version
        self.say(notify=[self._notify(name, seqno, version)])

    def _notify(self, name: str, seqno: int, version: int | None) -> Notify:
        return Notify(object=name, seqno=str(seqno), version=None if version is None else str(version), epoch=self.epoch)

    def say(self, **fields: Any) -> None:
        if self.client is None:
            return
        self.notified += len(fields.get("notify", []))
        summary = SetDigest(name_from_text(name) for name in self.registered).summary()
        told = {"token": self.token, "summary": summary, "unsettled": len(self.waiting), **fields}
        asyncio.get_running_loop().call_soon(self.client.hear, ServerMessage(**told))

    def connected(self, client: CoreClient) -> None:
        self.client = client

    def hear(self, client: CoreClient, message: ClientMessage) -> None:
        if client is not self.client:
            return
        if message.init is not None:
            self._session += 1
            config = Config(retry_min_s=0.5, keepalive_s=1e6, epoch=self.epoch)
            self.say(grant=Grant(nonce=message.init.nonce, token=self.token), config=config)
            return
        if message.token != self.token:
            return
        returned, client.spoke = not client.spoke, True
        for ack in message.acks:
            self.acks.append(ack)
            key = (ack.object, int(ack.seqno), ack.version is None)
            if key in self.waiting and self.waiting[key] == (None if ack.version is None else int(ack.version)):
                del self.waiting[key]
        waiting = [self._notify(name, seqno, version) for (name, seqno, _), version in self.waiting.items()] if returned else []
        statuses = [self._register(one.object, one.version, one.epoch) for one in message.register]
        statuses += [self._unregister(one.object) for one in message.unregister]
        if message.sync is not None and message.sync.objects is not None:
            stated = {one.object: one for one in message.sync.objects}
            statuses += [self._unregister(name) for name in list(self.registered) if name not in stated]
            statuses += [self._register(name, one.version, one.epoch) for name, one in stated.items() if name not in self.registered]
        self.say(status=statuses, notify=waiting)

    def _register(self, name: str, held: str | None, epoch: int) -> Status:
        self.operations += 1
        if name in self.refuses:
            return Status(object=name, state=messages.FAILED, code=self.why_refused)
        if name not in self.registered:
            seqno = self.registered[name] = next(self._seqnos)
            known = self.versions.get(name)
            if known is None or held is None or epoch != self.epoch or int(held) < known:
                self._owe(name, seqno, known)
        return Status(object=name, state=messages.REGISTERED)

    def _unregister(self, name: str) -> Status:
        self.operations += 1
        self.registered.pop(name, None)
        for key in [key for key in self.waiting if key[0] == name]:
            del self.waiting[key]
        return Status(object=name, state=messages.UNREGISTERED)


class CoreClient:
    """What a LiveCache asks of a client, over the real core. `state` is that of the last run."""

    def __init__(self, service: SmallService, state: bytes | None = None) -> None:
        self.service = service
        self.state = state
        self.spoke = False  # over this connection
        self.acknowledged: list[Notification] = []
        self.handlers = Handlers()
        self.forget_too: list[Callable[[], Awaitable[None]]] = []
        nonces = itertools.count(1)
        self.core = ClientCore("demo", "phone", random=lambda: 0.5, nonce=lambda: f"n{next(nonces)}", state=state)
        self.following = Following()
        self._timer: asyncio.Handle | None = None
        self.up = False

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def start(self) -> CoreClient:
        self._perform(self.core.start(self.now()))
        self.connect()
        return self

    def connect(self) -> None:
        self.up, self.spoke = True, False
        self.service.connected(self)
        self.following.connected()
        self._perform(self.core.connected(self.now()))

    def disconnect(self) -> None:
        self.up, self.service.client = False, None
        self.core.disconnected(self.now())

    def stop(self) -> bytes | None:
        self.disconnect()
        self.core.stop()
        if self._timer is not None:
            self._timer.cancel()
        return self.state

    async def register(
        self,
        name: str | bytes,
        version: int | None = None,
        epoch: int = 0,
        handler: Callable[[Notification], None] | None = None,
        refused: Callable[[bytes, str, str], None] | None = None,
    ) -> None:
        if self.core.stopped is not None:
            raise ClientStopped("The client was stopped.")
        assert isinstance(name, bytes)
        if handler is not None and name in self.core.desired and not self.handlers.may_take(name, handler):
            raise InvalidSetting("It is registered already, without this handler.")
        left = self.handlers.take(name, handler, refused)
        self._perform(self.core.register(self.now(), name, version, epoch))
        for notification in left:
            self.handlers.tell(notification)

    async def unregister(self, name: str | bytes, forget: bool = False) -> None:
        assert isinstance(name, bytes)
        self._perform(self.core.unregister(self.now(), name, forget))
        for notification in self.handlers.drop(name):
            self._perform(self.core.give_back(self.now(), notification))

    async def release(self, name: str | bytes) -> None:
        assert isinstance(name, bytes)
        self.handlers.release(name)

    def acknowledge(self, notification: Notification) -> None:
        self.acknowledged.append(notification)
        self.handlers.dealt_with(notification)
        asyncio.get_running_loop().call_soon(lambda: self._perform(self.core.acknowledge(self.now(), notification)))

    def told_until(self, name: str | bytes) -> float | None:
        assert isinstance(name, bytes)
        return self.following.told_until(self.core, self.now(), name)

    def when_forgotten(self, forget: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        self.forget_too.append(forget)
        return lambda: self.forget_too.remove(forget)

    def hear(self, message: ServerMessage) -> None:
        if self.up and self.service.client is self:
            wanted = self.core.received(self.now(), messages.decode_server(messages.encode(message)))
            self.following.heard(self.core, self.now())
            self._perform(wanted)

    def _perform(self, wanted: list[actions.Action]) -> None:
        for action in wanted:
            if isinstance(action, actions.Send) and self.up:
                message = messages.decode_client(messages.encode(action.message), 1 << 20)
                asyncio.get_running_loop().call_soon(self.service.hear, self, message)
            elif isinstance(action, actions.Notify):
                self.handlers.tell(action.notification)
            elif isinstance(action, actions.WriteState):
                self.state = action.state
            elif isinstance(action, actions.RegistrationFailed) and not action.transient:
                refused = self.handlers.who_hears_of_a_refusal(action.name)
                for notification in self.handlers.drop(action.name):
                    self._perform(self.core.give_back(self.now(), notification))
                if refused is not None:
                    refused(action.name, action.code, action.message)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.core.next_deadline()
        if deadline is not None and self.up:
            self._timer = asyncio.get_running_loop().call_at(max(deadline, self.now()), lambda: self._perform(self.core.tick(self.now())))
