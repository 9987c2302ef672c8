"""The real Registrar and real clients' cores on virtual time: minutes of overload in a moment of CI.

The stores are the simulator's, without faults unless a test adds some. `Matching` stands for the pipeline: it takes registrations
from the feed in order, keeps copies and versions, and repeats whatever a Registrar does not settle, as Spark repeats a batch.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any

from roskva.client.actions import Action, CloseChannel, Notify, Reported, Send
from roskva.client.core import ClientCore
from roskva.config import Settings
from roskva.feed.interface import REGISTRATIONS
from roskva.model import (
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    ClientId,
    ObjectKey,
    Propagation,
    object_key,
)
from roskva.protocol.messages import ClientMessage, decode_server
from roskva.protocol.tokens import Keyring
from roskva.registrar.events import decode_registration
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.row import ClientRow
from roskva.registrar.service import Registrar
from roskva.simulation.loop import VirtualLoop
from roskva.simulation.processes import Process
from roskva.simulation.stores import FeedFront, Stores, TableFront

KEYRING = Keyring({1: b"k" * 32})
DELAY_S = 0.002  # of a message


class Line:
    """A client's connection, both ends of it."""

    def __init__(self, receive: Callable[[Line, bytes], None]) -> None:
        self.session: object | None = None
        self.open = True
        self._receive = receive

    def send(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(DELAY_S, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.open:
            self._receive(self, data)

    def close(self, code: str) -> None:
        self.open = False


class Caller:
    """A device: the real core, and an application that takes whatever it is told at once."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd = crowd
        chance = crowd.chance
        self.core = ClientCore("demo", f"device-{number}", random=chance.random, nonce=lambda: f"{chance.getrandbits(64):x}")
        self.known: dict[bytes, int | None] = {}
        self.overloaded = 0
        self.line: Line | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._do(self.core.start(self._now()))

    def connect(self) -> None:
        self.hang_up()
        self.line = Line(self._received)
        self._do(self.core.connected(self._now()))

    def hang_up(self) -> None:
        """The connection ends, and the gateway notices."""
        if self.line is not None:
            self.line.open = False
            self.crowd.registrar.closed(self.line)
            self.line = None
            self._do(self.core.disconnected(self._now()))

    def register(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._do(self.core.register(self._now(), name))

    def _received(self, line: Line, data: bytes) -> None:
        if line is self.line:
            self._do(self.core.received(self._now(), decode_server(data)))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send) and self.line is not None:
                asyncio.get_running_loop().call_later(DELAY_S, self.crowd.say, self.line, action.message)
            elif isinstance(action, Notify):
                self.known[action.notification.name] = action.notification.version
                asyncio.get_running_loop().call_later(DELAY_S, self._acknowledge, action.notification)
            elif isinstance(action, Reported):
                self.overloaded += action.code == "overloaded"
            elif isinstance(action, CloseChannel):
                asyncio.get_running_loop().call_later(1.0, self.connect)
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.core.next_deadline()
        self._timer = None if due_s is None else asyncio.get_running_loop().call_at(max(due_s, self._now()), self._tick)

    def _acknowledge(self, notification: Any) -> None:
        self._do(self.core.acknowledge(self._now(), notification))

    def _tick(self) -> None:
        self._do(self.core.tick(self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def in_sync(self) -> bool:
        return self.core.in_sync(self._now())


class Matching:
    """In the pipeline's place. `stopped`: it takes nothing, as when Spark is down."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.stopped = False
        self.versions: dict[ObjectKey, int] = {}
        self._copies: dict[ObjectKey, dict[ClientId, tuple[int, bool]]] = {}
        self._read: dict[int, int] = {}
        self._owed: list[Propagation] = []

    def publish(self, name: bytes, version: int) -> None:
        key = object_key("demo", 0, name)
        self.versions[key] = version
        self._owed += [
            Propagation(client, key, seqno, OUTCOME_UPDATE, version)
            for client, (seqno, registered) in self._copies.get(key, {}).items()
            if registered
        ]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.stopped:
                continue
            self._read_feed()
            batch, self._owed = self._owed[:500], self._owed[500:]
            if batch:
                verdicts = await self._crowd.registrar.propagate(batch)
                again = [told for told, verdict in zip(batch, verdicts, strict=True) if verdict != SETTLED]
                self._owed += again

    def _read_feed(self) -> None:
        stores = self._crowd.stores
        for partition, position in stores.newest(REGISTRATIONS).items():
            for record in stores.read_log(REGISTRATIONS, partition, self._read.get(partition, 0), position.offset):
                event = decode_registration(record.value)
                copies = self._copies.setdefault(event.object, {})
                if copies.get(event.client, (0, False))[0] <= event.seqno:
                    copies[event.client] = (event.seqno, event.registered)
                version = self.versions.get(event.object)
                known = OUTCOME_UNKNOWN if version is None else OUTCOME_VERSION
                outcome = known if event.registered else OUTCOME_UNREGISTERED
                self._owed.append(Propagation(event.client, event.object, event.seqno, outcome, version or 0))
            self._read[partition] = position.offset


class Crowd:
    """One Registrar, its stores and its clients."""

    def __init__(self, settings: Settings, seed: int = 1, loop: VirtualLoop | None = None) -> None:
        self.settings = settings
        self.loop = loop or VirtualLoop()
        self.chance = Random(seed)
        self.stores = Stores(self.loop, self.chance, settings.partitions)
        self.callers: list[Caller] = []
        self.matching = Matching(self)
        self.process: Process
        self.registrar: Registrar
        self.granted = ""  # to whoever speaks by hand

    def note_grant(self, data: bytes) -> None:
        grant = decode_server(data).grant
        self.granted = self.granted if grant is None else grant.token

    def run(self, work: Coroutine[Any, Any, None], virtual_s_max: float = 7_200.0) -> None:
        async def within() -> None:
            async with asyncio.timeout(virtual_s_max):
                await self.boot("m1")
                pump = asyncio.create_task(self.matching.run())
                await work
                pump.cancel()
                self.process.kill()

        try:
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(within())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(1.0))
            asyncio.set_event_loop(None)
            self.loop.close()

    async def boot(self, member: str) -> None:
        """A gateway starts, in the place of the one before."""
        if hasattr(self, "process"):
            for caller in self.callers:
                caller.hang_up()
            self.process.kill()
        self.process = Process(member, self.loop, host=member)
        view = MemberView(timeout_s=1e9)
        view.observe([member_cell(Member(member, "127.0.0.1:1", "127.0.0.1:2"), 1)], 0.0)
        table: Any = TableFront(self.stores, self.process)
        feed: Any = FeedFront(self.stores, self.process)
        self.registrar = Registrar(
            self.settings,
            table,
            feed,
            KEYRING,
            member,
            view,
            clock=self.process.clock,
            wall_clock=self.process.wall_clock,
            unguessable=lambda size: base64.urlsafe_b64encode(self.chance.randbytes(size)).decode().rstrip("="),
        )
        await self.process.spawn(self.registrar.start())

    def say(self, line: Line, message: ClientMessage) -> None:
        if line.open:
            claims = KEYRING.verify(message.token) if message.token else None
            self.process.context.run(self.registrar.receive, line, message, claims)

    def gather(self, count: int, names: Callable[[int], Iterable[bytes]]) -> list[Caller]:
        """So many clients, connected, that wish for these objects."""
        first = len(self.callers)
        newcomers = [Caller(self, number) for number in range(first, first + count)]
        self.callers += newcomers
        for number, caller in enumerate(newcomers, first):
            caller.register(names(number))
            caller.connect()
        return newcomers

    def pending(self) -> int:
        """Registrations that no Matcher has answered, in all rows of the table."""
        rows = [(key, cells) for key, cells in self.stores.rows.items() if key.table == "registrar"]
        return sum(ClientRow(ClientId(key.key.decode()), cells.values()).pending_count for key, cells in rows)

    async def until(self, holds: Callable[[], Any]) -> None:
        while not holds():
            await asyncio.sleep(0.25)

    def all_told(self, callers: Iterable[Caller] | None = None) -> bool:
        """Everybody is in sync and knows the latest version of everything that it wishes for."""
        for caller in self.callers if callers is None else callers:
            if not caller.in_sync():
                return False
            for name in caller.core.desired:
                if caller.known.get(name, -1) != self.matching.versions.get(object_key("demo", 0, name)):
                    return False
        return True
